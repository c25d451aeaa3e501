"""`fedpeer simulate`: its options, and the run that it starts or resumes.

`simulate_options.py` turns the options into settings; `running.py` runs and shows the simulation.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpeer.cli.files import runs_folder
from fedpeer.cli.setting_options import completion_of, number

if TYPE_CHECKING:
    from fedpeer.runs.folder import RunFolder
    from fedpeer.sims.request import SimulationRequest
    from fedpeer.sims.simulation import Simulation

DATA, LEARN, GOSSIP, RUN = "Peers and data", "Learning", "Gossip", "The run"


#: Options that are not settings of the simulation.
_BESIDE = ("config", "out", "as_json", "quiet")


def _opt(help: str, panel: str, metavar: str, complete: Callable[[str], list[str]] | None = None) -> Any:
    return typer.Option(help=help, rich_help_panel=panel, metavar=metavar, show_default=False, autocompletion=complete)


def _number(help: str, panel: str, metavar: str = "N") -> Any:
    return number(help, metavar, rich_help_panel=panel, show_default=False)


def simulate_command(
    context: typer.Context,
    peers: Annotated[int | None, _number("Number of peers; default 16, or as many as the split makes.", DATA)] = None,
    dataset: Annotated[
        str | None, _opt("One of fedpeer data list, or csv:FILE,label=NAME.", DATA, "NAME", completion_of("dataset"))
    ] = None,
    split: Annotated[str | None, _opt("How the data are divided, such as dirichlet:0.3.", DATA, "RULE")] = None,
    algorithm: Annotated[
        str | None, _opt("Compare this algorithm with local training.", LEARN, "NAME", completion_of("algorithm"))
    ] = None,
    compare: Annotated[
        str | None, _opt("Algorithms to compare.", LEARN, "A,B,...", completion_of("algorithm", several=True))
    ] = None,
    network: Annotated[
        str | None,
        _opt(
            "Such as mlp:64+300+100+10, cnn, lstm or python:module:function.", LEARN, "NAME", completion_of("network")
        ),
    ] = None,
    rounds: Annotated[int | None, _number("Number of rounds.", LEARN)] = None,
    steps: Annotated[str | None, _number('Local steps per round, or "pass": all examples once.', LEARN)] = None,
    batch_size: Annotated[int | None, _number("Examples per local step.", LEARN)] = None,
    participation: Annotated[
        float | None, _number("Fraction of the peers in each round; for algorithms with a server.", LEARN, "X")
    ] = None,
    optimizer: Annotated[
        str | None,
        _opt("One of PyTorch, such as adam,lr=0.001, or your own.", LEARN, "NAME", completion_of("optimizer")),
    ] = None,
    lr: Annotated[str | None, _opt("Learning rate of the optimizer.", LEARN, "X")] = None,
    loss: Annotated[
        str | None,
        _opt("Loss; default cross-entropy, or mean-squared-error for numbers.", LEARN, "NAME", completion_of("loss")),
    ] = None,
    class_weights: Annotated[
        str | None,
        _opt(
            "Weight of each class in the loss: none, balanced, auto (own tables have it), or ham=1,spam=5.",
            LEARN,
            "RULE",
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        _opt(
            "Further metrics of the last models, such as auc,f1 or mae,r2.",
            LEARN,
            "A,B,...",
            completion_of("metrics", several=True),
        ),
    ] = None,
    topology: Annotated[
        str | None, _opt("Communication graph of the peers.", GOSSIP, "NAME", completion_of("topology"))
    ] = None,
    protocol: Annotated[str | None, _opt("push-sum, push-pull, exact or coordinator.", GOSSIP, "NAME")] = None,
    tolerance: Annotated[float | None, _number("Disagreement left after an averaging.", GOSSIP, "X")] = None,
    exchanges: Annotated[int | None, _number("Exchanges per averaging, instead of a tolerance.", GOSSIP)] = None,
    seed: Annotated[int | None, _number("Seed of everything random; default 0.", RUN, "S")] = None,
    repeats: Annotated[int | None, _number("Number of seeds, from S on.", RUN)] = None,
    device: Annotated[str | None, _opt("auto, cpu, cuda or mps.", RUN, "NAME")] = None,
    engine: Annotated[
        str | None,
        _opt("vector; ray: a cluster; network: whole peers in virtual time; processes: real peers.", RUN, "NAME"),
    ] = None,
    faults: Annotated[
        str | None,
        _opt("With --engine network: a seed, links,loss=0.3,delay=2, slow:1-4; several joined by /.", RUN, "FAULTS"),
    ] = None,
    workers: Annotated[int | None, _number("Training processes; results do not depend on it.", RUN)] = None,
    address: Annotated[
        str | None, _opt("Ray cluster: HOST:PORT or auto; default: one on this machine.", RUN, "ADDRESS")
    ] = None,
    shards: Annotated[
        int | None, _number("Split each run into N Ray processes; default: distribute whole runs.", RUN)
    ] = None,
    tracking: Annotated[
        str | None,
        _opt(
            "Experiment trackers, such as tensorboard or mlflow,uri=http://host:5000.",
            RUN,
            "A,B,...",
            completion_of("tracking", several=True),
        ),
    ] = None,
    config: Annotated[Path | None, _opt("A federation file; other options override it.", RUN, "FILE")] = None,
    out: Annotated[Path | None, _opt("Folder of runs; default $FEDPEER_RUNS or fedpeer-runs.", RUN, "DIR")] = None,
    resume: Annotated[str | None, _opt("Resume an interrupted run: its id, or last.", RUN, "RUN")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", metavar="", help="Print one JSON object only.", rich_help_panel=RUN)
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", metavar="", help="Show warnings only, no progress.", rich_help_panel=RUN)
    ] = False,
) -> int:
    """Simulate peers with different tasks on this machine and compare how well each algorithm trains them.

    Without options, 16 peers learn handwritten digits: each alone, by partial averaging, and by full averaging.
    """
    from fedpeer.cli.running import run_simulation

    root = runs_folder(out)
    given = {name: value for name, value in context.params.items() if value is not None and name not in _BESIDE}
    request, folder = _begun(root, given, config, context.obj) if resume is None else _resumed(root, given, config)
    return run_simulation(request, folder, as_json=as_json, quiet=quiet)


def _begun(
    root: Path, given: Mapping[str, Any], config: Path | None, typed: Sequence[str]
) -> tuple[SimulationRequest, Callable[[Simulation], RunFolder]]:
    """Return the request of options and file, and the function that creates its run folder.

    The run folder records the command line, `typed`.
    """
    from fedpeer.cli.simulate_options import options_of

    def create(simulation: Simulation) -> RunFolder:
        from fedpeer.sims.record import begin_record

        return begin_record(root, simulation, shlex.join(["fedpeer", *typed]))

    return options_of(given, config), create


def _resumed(
    root: Path, given: Mapping[str, Any], config: Path | None
) -> tuple[SimulationRequest, Callable[[Simulation], RunFolder]]:
    """Return the request of an interrupted run, and the function that returns its folder.

    Only the device, workers and cluster may change.
    """
    from fedpeer.cli.simulate_options import resumed_request
    from fedpeer.config.problems import ConfigError, ConfigProblem
    from fedpeer.runs.folder import RunFolder

    request_of = resumed_request(given, config)
    run = RunFolder.open(root, given["resume"])
    if run.status in ("finished", "running"):
        way_out = f"see fedpeer runs show {run.id}" if run.status == "finished" else "wait for it, or stop it"
        raise ConfigError(
            "the command line", [ConfigProblem((), f"run {run.id} is {run.status}; {way_out}", "--resume")]
        )
    settings = run.read("settings") or {}
    if settings.get("objects"):
        given_as = f"run {run.id} got its {' and '.join(settings['objects'])} as Python objects"
        text = f'{given_as}; make the same call of fedpeer.simulate again, with resume="{run.id}"'
        raise ConfigError("the command line", [ConfigProblem((), text, "--resume")])
    return request_of(settings), lambda simulation: run
