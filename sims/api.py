"""`fedpeer.simulate` for Python: a module, data and settings in; results, models and a report out."""

from __future__ import annotations

import copy
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from fedpeer.config.choice import Choice, ChoiceError, parse_choice
from fedpeer.config.federation import Federation
from fedpeer.config.problems import ConfigError, ConfigProblem
from fedpeer.config.problems import Path as SettingPath
from fedpeer.config.reading import typed
from fedpeer.config.rules import KEYWORDS, problems_of
from fedpeer.config.settings import EngineName, RunOptions
from fedpeer.data.dataset import Dataset
from fedpeer.data.own.arrays import of_objects
from fedpeer.runs.report import write_report
from fedpeer.sims.engine import combination_of
from fedpeer.sims.prepare import prepare_simulation
from fedpeer.sims.record import begin_record
from fedpeer.sims.request import DEFAULT_METHODS, SimulationRequest
from fedpeer.sims.simulate import Tell
from fedpeer.sims.simulate import run_prepared as carry_out


@dataclass(frozen=True)
class Results:
    """What a simulation gave.

    summary    the object that `fedpeer simulate --json` prints
    folder     the run's folder, with metrics, models and `report.html`
    """

    summary: Mapping[str, Any]
    folder: Path

    def score(self, method: str) -> float:
        """Mean accuracy over peers and seeds (a fraction), or mean error for regression."""
        found = self.summary["methods"][method]
        return float(found["accuracy_mean"] if "accuracy_mean" in found else found["error_mean"])

    def state_dict(self, method: str, peer: str, seed: int | None = None) -> dict[str, torch.Tensor]:
        """A peer's trained parameters, for `module.load_state_dict(..., strict=False)` (counters are not kept)."""
        seed = self.summary["seeds"][0] if seed is None else seed
        stored = load_file(self.folder / "models" / f"{method}-seed{seed}.safetensors")
        found = {name.removeprefix(f"{peer}/"): value for name, value in stored.items() if name.startswith(f"{peer}/")}
        if not found:
            raise KeyError(f"{peer} is not in {self.folder.name}")
        return found


def simulate(
    data: object = None,
    network: nn.Module | str | None = None,
    *,
    federation: Federation | Mapping[str, Any] | None = None,
    methods: Sequence[str] = DEFAULT_METHODS,
    seeds: Sequence[int] = (0,),
    device: str = "auto",
    workers: int | None = None,
    engine: EngineName = "vector",
    faults: str = "",
    address: str = "",
    shards: int | None = None,
    out: str | Path = "fedpeer-runs",
    tell: Tell = lambda event: None,
) -> Results:
    """Let many peers learn on this machine, by several methods on the same split, and compare.

    Args:
        data: a `fedpeer.Dataset`, `(x, y)` arrays or tensors, a PyTorch data set, or a name such as "digits".
        network: an `nn.Module` (its form; the start is drawn by `learning.start`), or a name such as "mlp:64+30+10".
        federation: what `federation.yaml` holds, as a mapping or a `Federation`.
        methods: algorithms to compare.
        seeds: one run of each method a seed.
        engine: "vector"; "ray": the same on a Ray cluster; "network": whole peers in virtual time; or "processes": real
            ones, which read their data and network themselves.
        faults: what goes wrong in the network, as `--faults` says it.
        address: of the Ray cluster, HOST:PORT or "auto"; one of this machine alone where it is left out.
        shards: of the ray engine; where they are left out several runs are spread whole, and one has a shard a CPU.
        tell: called with each `fedpeer.sims.events` event.

    Returns:
        The results; everything is also in a folder under `out`.

    `docs/python.md` has an example that runs as it stands.
    """
    dataset = None if data is None or isinstance(data, str) else data if isinstance(data, Dataset) else of_objects(data)
    module = network if isinstance(network, nn.Module) else None
    objects = [name for name, given in (("data", dataset), ("network", module)) if given is not None]
    names = {"data": data if dataset is None else None, "network": network if module is None else None}
    run_options = {
        "device": device, "workers": workers, "engine": engine, "faults": faults, "address": address, "shards": shards
    }  # fmt: skip
    request = _request(federation, names, methods, seeds, run_options, objects)
    if dataset is not None:  # treated as a user's own file is
        own = request.federation.simulation.model_copy(update={"dataset": Choice("python", dataset.name)})
        request = replace(request, federation=request.federation.model_copy(update={"simulation": own}))
    simulation = prepare_simulation(request, dataset=dataset, module=module)
    run = begin_record(Path(out), simulation, shlex.join(sys.argv), objects)
    summary = carry_out(simulation, run, tell)
    write_report(run)
    return Results(summary, run.path)


def _request(
    federation: Federation | Mapping[str, Any] | None,
    names: Mapping[str, object],
    methods: Sequence[str],
    seeds: Sequence[int],
    run_options: Mapping[str, Any],
    objects: Sequence[str],
) -> SimulationRequest:
    """Return what the arguments ask for. `names` of data and network that are given by name.

    Raises:
        ConfigError: everything that is wrong with them.
    """
    options, problems = typed(RunOptions, run_options)
    assert options is not None, "every option has a default"
    settings = federation if isinstance(federation, Federation) else _written(federation)
    found, more = (settings, []) if isinstance(settings, Federation) else typed(Federation, settings)
    problems += more
    chosen = [_choice((name,), text, problems) for name, text in names.items()]
    compared = [_choice(("methods",), text, problems) for text in methods]
    if found is not None:
        named = dict(zip(names, chosen, strict=True))
        if named["data"] is not None:
            simulation = found.simulation.model_copy(update={"dataset": named["data"]})
            found = found.model_copy(update={"simulation": simulation})
        if named["network"] is not None:
            found = found.model_copy(update={"network": named["network"]})
        request = SimulationRequest(
            federation=found,
            methods=tuple(method for method in compared if method is not None),
            seeds=tuple(seeds),
            **options.model_dump(exclude={"repeats"}),
        )
        places: dict[SettingPath, SettingPath] = {("simulation", "dataset"): ("data",)} if named["data"] else {}
        wrong = problems_of(combination_of(request, objects), KEYWORDS)
        problems += [replace(each, path=places.get(each.path, each.path)) for each in wrong]
    if problems:
        raise ConfigError("the simulation", problems)
    return request


def _written(federation: Mapping[str, Any] | None) -> Mapping[str, Any]:
    return {} if federation is None else copy.deepcopy(dict(federation))


def _choice(path: SettingPath, text: object, problems: list[ConfigProblem]) -> Choice | None:
    """The choice that an argument names; None where it names none."""
    try:
        return None if text is None else parse_choice(str(text))
    except ChoiceError as error:
        problems.append(ConfigProblem(path, str(error)))
        return None
