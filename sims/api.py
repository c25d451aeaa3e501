"""`fedpeer.simulate`, the Python API: takes a module, data and settings; returns results, models and a report."""

from __future__ import annotations

import functools
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Annotated, Any

import networkx as nx
import numpy as np
import torch
from pydantic import BaseModel, Field
from rich.console import Console
from torch import nn

from fedpeer.config.choice import Choice, ChoiceError, parse_choice
from fedpeer.config.federation import Federation
from fedpeer.config.problems import ConfigError, ConfigProblem
from fedpeer.config.problems import Path as SettingPath
from fedpeer.config.reading import typed
from fedpeer.config.rules import KEYWORDS, problems_of
from fedpeer.config.settings import EngineName, RunOptions, Strict
from fedpeer.data.own.arrays import of_objects
from fedpeer.learning.anchors import anchored_federation
from fedpeer.runs.report import write_report
from fedpeer.sims.checks import combination_of
from fedpeer.sims.events import Remark, SimulationEvent
from fedpeer.sims.prepare import code_objects, prepare_simulation
from fedpeer.sims.progress import NoProgress, ProgressDisplay, progress_display
from fedpeer.sims.record import begin_record, continued_record
from fedpeer.sims.request import SimulationRequest, default_methods
from fedpeer.sims.results import Results
from fedpeer.sims.simulate import OnEvent
from fedpeer.sims.simulate import run_prepared as carry_out
from fedpeer.sims.tracked import tracked
from fedpeer.sims.vector.fork_server import start_early

#: Arguments that replace settings of the federation.
_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "data": ("simulation", "dataset"),
    "network": ("network",),
    "tracking": ("simulation", "tracking"),
}


class _CallArguments(Strict):
    """Arguments of `fedpeer.simulate` that are neither settings of the federation nor options of the run."""

    methods: list[Any] | None = Field(default=None, min_length=1, description="the algorithms to compare")
    seeds: list[Annotated[int, Field(ge=0, le=2**63 - 1)]] | None = Field(
        default=None, min_length=1, description="each method runs once with each of them"
    )
    out: str | Path = Field(default="fedpeer-runs", description="folder of runs")
    resume: str | None = Field(default=None, min_length=1, description="the run to carry on: its id, or last")
    progress: bool | None = Field(default=None, description="whether progress is shown; default: in a notebook")


def simulate(
    data: object = None,
    network: nn.Module | str | None = None,
    *,
    federation: Federation | Mapping[str, Any] | None = None,
    methods: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    device: str = "auto",
    workers: int | None = None,
    engine: EngineName = "vector",
    faults: str = "",
    address: str = "",
    shards: int | None = None,
    out: str | Path = "fedpeer-runs",
    resume: str | None = None,
    tracking: object = None,
    progress: bool | None = None,
    on_event: OnEvent = lambda event: None,
) -> Results:
    """Train many peers on this machine by several methods on the same split of the data, and compare the methods.

    Args:
        data: a `fedpeer.Dataset`, `(x, y)` arrays or tensors, a PyTorch data set, or a name such as "digits".
        network: an `nn.Module`, or a name such as "mlp:64+30+10". All peers begin with the module's own parameters, for
            each seed, unless `learning.start` says otherwise; to repeat a run, call `torch.manual_seed` before you
            make the module.
        federation: the settings of `federation.yaml`, as a mapping or a `Federation`; `data`, `network` and `tracking`
            replace those in it. What is not chosen is as in `fedpeer simulate`. In a mapping a topology may be an
            undirected graph of networkx, whose nodes are the peers' ids or 0, 1, ..., and `learning.loss`,
            `learning.optimizer` and `simulation.metrics` may be functions of your own.
        methods: the algorithms to compare; default: local, partial-averaging and, if all peers have the same network,
            full-averaging; an algorithm that the federation names is one of them, or compared with local.
        seeds: each method runs once with each seed; default: the federation's seed.
        device: "cpu", "cuda", "mps" or "auto" (the fastest available).
        workers: worker processes of the vector engine on a CPU; default: one per core, or one per run if several runs
            are distributed over a Ray cluster.
        engine: "vector"; "ray": the same on a Ray cluster; "network": whole peers in virtual time; or "processes": real
            peer processes, which read their data and network themselves.
        faults: the faults of the network engine, as in `--faults`.
        address: address of the Ray cluster, HOST:PORT or "auto"; default: a cluster of this machine alone.
        shards: shards of the ray engine; default: one per CPU for a single run; several runs are distributed whole.
        out: folder in which the run's folder is made.
        resume: id of an interrupted run in that folder, or "last", to carry on; all other arguments must be those with
            which it was begun, but for device and workers.
        tracking: experiment trackers that get settings and scores, such as "tensorboard" or ["tensorboard",
            {"mlflow": {"uri": ...}}], instead of the federation's `simulation.tracking`.
        progress: show progress, as bars in a notebook and on a terminal and as lines elsewhere; default: in a notebook,
            and in a script what needs your attention only, such as a loss that is NaN; False: nothing.
        on_event: called with each `fedpeer.sims.events` event.

    Returns:
        The results; everything is also in a folder under `out`.

    Raises:
        ConfigError: all mistakes in the arguments.
        TrackingError: the library of a tracker is not installed.
        RunError: the run to resume does not exist, is finished, or was begun with other settings.

    `docs/python.md` has an example that can be run unchanged.
    """
    given = {"methods": methods, "seeds": seeds, "out": out, "resume": resume, "progress": progress}
    arguments, problems = _arguments(given, network, federation, on_event)
    network = getattr(network, "_orig_mod", network)  # under torch.compile: workers compile for themselves, or not
    dataset = None if data is None or isinstance(data, str) else of_objects(data)
    module = network if isinstance(network, nn.Module) else None
    objects = [name for name, given in (("data", dataset), ("network", module)) if given is not None]
    replacing = {"data": data, "network": network, "tracking": tracking}
    wrong = {problem.dotted for problem in problems}
    named = {name: value for name, value in replacing.items() if value is not None and name not in {*objects, *wrong}}
    run_options = {
        "device": device, "workers": workers, "engine": engine, "faults": faults, "address": address, "shards": shards
    }  # fmt: skip
    code = dict[str, Callable[..., Any]]()
    request = _request(federation, named, arguments, run_options, objects, code, problems)
    objects += code_objects(request.federation, code)
    if dataset is not None:  # treated like a user's own file
        own = request.federation.simulation.model_copy(update={"dataset": Choice("python", dataset.name)})
        request = replace(request, federation=request.federation.model_copy(update={"simulation": own}))
    if module is None:
        start_early(request)
    simulation = prepare_simulation(request, dataset=dataset, module=module, code=code)
    if resume is None:
        run = begin_record(Path(arguments.out), simulation, shlex.join(sys.argv), objects)
    else:
        run = continued_record(Path(arguments.out), resume, simulation, objects)
    try:
        with _display(progress) as display:

            def on_both(event: SimulationEvent) -> None:
                display(event)
                on_event(event)

            try:
                with tracked(simulation, run, on_both) as handle:
                    summary = carry_out(simulation, run, handle)
            except KeyboardInterrupt:
                display(
                    Remark(text=f'stopped; all measurements are kept: the same call with resume="{run.id}" goes on')
                )
                raise
    finally:  # an interrupted run can be carried on by this process, such as a notebook's
        run.let_go()
    write_report(run)
    return Results(summary, run.path)


def _display(progress: bool | None) -> ProgressDisplay:
    console = Console(stderr=True)
    if progress is False:
        return NoProgress()
    return progress_display(console, quiet=progress is None and not console.is_jupyter)


def _arguments(
    given: Mapping[str, Any], network: object, federation: object, on_event: object
) -> tuple[_CallArguments, list[ConfigProblem]]:
    """Return the arguments that are not settings, and the mistakes in the types of arguments that are read first."""
    found, problems = typed(_CallArguments, {name: _plain(_as_list(value)) for name, value in given.items()})
    if found is None:  # a list without its wrong entries would be empty
        raise ConfigError("the simulation", problems)
    if found.seeds is not None:
        again = sorted({seed for seed in found.seeds if found.seeds.count(seed) > 1})
        problems += [ConfigProblem(("seeds",), f"{seed} is listed twice; list each seed once") for seed in again]
    if callable(network) and not isinstance(network, nn.Module):
        name = getattr(network, "__name__", "it")
        problems.append(ConfigProblem(("network",), f"found {name}, no network yet; pass what it returns: {name}(...)"))
    if not (federation is None or isinstance(federation, Federation | Mapping)):
        text = f"found {type(federation).__name__}; write a mapping, such as that in a YAML file, or a Federation"
        problems.append(ConfigProblem(("federation",), text))
    if not callable(on_event):
        problems.append(ConfigProblem(("on_event",), "it cannot be called; pass a function of one event"))
    return found, problems


def _as_list(value: object) -> object:
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str | Path | Mapping) else value


def _plain(value: Any) -> Any:
    """Return a copy of settings with Python's numbers for numpy's; other values stay as they are."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {_plain(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _request(
    federation: Federation | Mapping[str, Any] | None,
    named: Mapping[str, object],
    arguments: _CallArguments,
    run_options: Mapping[str, Any],
    objects: Sequence[str],
    code: dict[str, Callable[..., Any]],
    problems: list[ConfigProblem],
) -> SimulationRequest:
    """Return the request that the arguments make.

    Args:
        named: the values of arguments that replace settings, by argument.
        objects: which of data and network are given as Python objects.
        code: filled with the functions in the settings, by the names that these get.
        problems: the problems found before; all are reported at once.

    Raises:
        ConfigError: all problems of the arguments.
        DataError, NetworkError: a file that the settings name cannot be read.
    """
    options, more = typed(RunOptions, _plain(run_options))
    problems += more
    assert options is not None, "every option has a default"
    settings = _written(federation, problems, code)
    for name, value in named.items():
        settings = _laid(settings, _ARGUMENTS[name], value)
    found, more = typed(Federation, settings)
    problems += more
    chosen = None if arguments.methods is None else _compared(arguments.methods, problems)
    if found is not None:
        if "network" in objects and found.network is not None:
            found = found.model_copy(update={"network": None})  # a default of tables, or overridden by the object
        request = SimulationRequest(
            federation=found,
            methods=default_methods(found) if chosen is None else chosen,
            seeds=(found.seed,) if arguments.seeds is None else tuple(arguments.seeds),
            **options.model_dump(exclude={"repeats"}),
        )
        problems += problems_of(combination_of(request, [*objects, *code_objects(found, code)]), KEYWORDS)
    if found is None or problems:
        raise ConfigError("the simulation", [_as_argument(each, named) for each in problems])
    return replace(request, federation=anchored_federation(found, Path()))


def _as_argument(problem: ConfigProblem, named: Mapping[str, object]) -> ConfigProblem:
    """Return the problem with the argument's name if its setting came from an argument."""
    name = next((name for name in named if problem.path == _ARGUMENTS[name]), None)
    return problem if name is None else replace(problem, path=(name,))


def _laid(settings: Any, path: tuple[str, ...], value: object) -> Any:
    """Return a copy of the settings with another value at the path; a part that is no mapping is reported later."""
    if not path:
        return value
    key, *rest = path
    if isinstance(settings, BaseModel):  # a copy of it would not be checked
        settings = settings.model_dump(mode="json", exclude_unset=True)
    if not isinstance(settings, Mapping):
        return settings
    return {**settings, key: _laid(settings.get(key, {}), tuple(rest), value)}


def _written(
    federation: Federation | Mapping[str, Any] | None,
    problems: list[ConfigProblem],
    code: dict[str, Callable[..., Any]],
) -> dict[str, Any]:
    """Return a copy of the settings with the choice `edges` for each graph of networkx, and a name for each function.

    Args:
        code: filled with these functions, by name.
    """
    if isinstance(federation, Federation):
        return federation.model_dump(mode="json", exclude_unset=True)
    settings: dict[str, Any] = _plain(federation) if isinstance(federation, Mapping) else {}
    learning = settings.get("learning")
    if isinstance(learning, dict):
        if isinstance(learning.get("optimizer"), torch.optim.Optimizer):
            text = "it is an optimizer of one network; pass its class, or functools.partial(torch.optim.SGD, lr=0.1)"
            problems.append(ConfigProblem(("learning", "optimizer"), text))
            del learning["optimizer"]
        if isinstance(loss := learning.get("loss"), type) and issubclass(loss, nn.Module):
            text = f"it is a class, and its objects are losses; pass {loss.__name__}()"
            problems.append(ConfigProblem(("learning", "loss"), text))
            del learning["loss"]
        for key in ("loss", "optimizer"):
            if callable(function := learning.get(key)):
                name = _name_of(function, key)
                code[name], learning[key] = function, Choice("python", name)
    simulation = settings.get("simulation")
    if isinstance(simulation, dict) and (metrics := simulation.get("metrics")) is not None:
        several = metrics if isinstance(metrics, list | tuple) else [metrics]
        if any(map(callable, several)):
            simulation["metrics"] = [_metric(each, code) if callable(each) else each for each in several]
    models = settings.get("partial_models")
    for path, inside in (
        ((), settings),
        *((("partial_models", name), each) for name, each in (models.items() if isinstance(models, dict) else ())),
    ):
        gossip = inside.get("gossip") if isinstance(inside, dict) else None
        if isinstance(gossip, dict) and isinstance(graph := gossip.get("topology"), nx.Graph):
            everyone = isinstance(inside.get("members", "all"), str)
            gossip["topology"] = _edges(graph, (*path, "gossip", "topology"), problems, everyone=everyone)
    return settings


def _metric(function: Callable[..., Any], code: dict[str, Callable[..., Any]]) -> Choice:
    """Return the choice of a user's metric, named after the function; a second one of the same name gets a number."""
    name = first = _name_of(function)
    number = 1
    while code.get(name, function) is not function:
        number += 1
        name = f"{first}_{number}"
    code[name] = function
    return Choice("python", name)


def _name_of(function: Callable[..., Any], key: str = "") -> str:
    """Return `module:function` for any callable of the user's; for one key and callable always the same."""
    while isinstance(function, functools.partial):
        function = function.func
    kind = type(function)
    module, name = getattr(function, "__module__", kind.__module__), getattr(function, "__name__", kind.__name__)
    return f"{module}:{key}{'_' if key else ''}{re.sub(r'[^A-Za-z0-9_]', '', name)}"


def _edges(
    graph: nx.Graph, path: SettingPath, problems: list[ConfigProblem], *, everyone: bool
) -> dict[str, list[str]]:
    """Return the edges of a graph whose nodes are peers' ids, or their numbers 0, 1, ...

    Args:
        everyone: whether the graph is for all peers; one for some members may lack node 0.
    """
    first = 0
    if everyone and 1 in graph and {*graph} == {*range(1, len(graph) + 1)}:
        text = "the nodes of this graph count from 1, but node 0 is peer1"
        problems.append(ConfigProblem(path, f"{text}; renumber them by networkx.relabel_nodes(graph, lambda n: n - 1)"))
        first = 1  # other mistakes are found in what was meant

    def name(node: object) -> str:
        return f"peer{int(node) + 1 - first}" if isinstance(node, Integral) else str(node)

    if graph.is_directed():
        problems.append(ConfigProblem(path, "this graph is directed; make it undirected by graph.to_undirected()"))
    return {"edges": [f"{name(one)}-{name(other)}" for one, other in graph.edges()]}


def _compared(methods: Sequence[object], problems: list[ConfigProblem]) -> tuple[Choice, ...]:
    """Return the algorithms to compare, without invalid ones."""
    found = []
    for text in methods:
        try:
            found.append(parse_choice(str(text)))
        except ChoiceError as error:
            problems.append(ConfigProblem(("methods",), str(error)))
    return tuple(found)
