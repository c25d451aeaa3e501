"""`fedpeer simulate`: the options, the run folder that it begins or goes on with, and what it leaves on the screen.

What the options mean is in `asking.py`; how a run looks and how it is stopped is in `running.py`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpeer.cli.files import runs_folder

if TYPE_CHECKING:
    from fedpeer.runs.folder import RunFolder
    from fedpeer.sims.request import SimulationRequest
    from fedpeer.sims.simulation import Simulation

DATA, LEARN, GOSSIP, RUN = "Peers and data", "Learning", "Gossip", "The run"


def _opt(help: str, panel: str, metavar: str) -> Any:
    return typer.Option(help=help, rich_help_panel=panel, metavar=metavar, show_default=False)


Text = str | None


def simulate_command(
    context: typer.Context,
    peers: Annotated[Text, _opt("How many; default 16, or as many as the split makes.", DATA, "N")] = None,
    dataset: Annotated[
        Text, _opt("See fedpeer data list; or csv:FILE,label=NAME. Default digits.", DATA, "NAME")
    ] = None,
    split: Annotated[Text, _opt("Who holds what, such as dirichlet:0.3.", DATA, "RULE")] = None,
    algorithm: Annotated[Text, _opt("Compare learning alone with this one.", LEARN, "NAME")] = None,
    compare: Annotated[Text, _opt("Default local,partial-averaging,full-averaging.", LEARN, "A,B,...")] = None,
    network: Annotated[Text, _opt("mlp:64+300+100+10, cnn, lstm, python:module:function.", LEARN, "NAME")] = None,
    rounds: Annotated[Text, _opt("Averagings in a run; default 30.", LEARN, "N")] = None,
    steps: Annotated[Text, _opt('Updates between two averagings, or "pass"; default 87.', LEARN, "N")] = None,
    batch_size: Annotated[Text, _opt("Examples in one update; default 1.", LEARN, "N")] = None,
    participation: Annotated[
        Text, _opt("Share of the peers in a round of an algorithm with a server; default 1.", LEARN, "X")
    ] = None,
    optimizer: Annotated[Text, _opt("Torch's, such as adam,lr=0.001; default sgd,lr=0.1.", LEARN, "NAME")] = None,
    lr: Annotated[Text, _opt("Learning rate of the optimizer; default 0.1.", LEARN, "X")] = None,
    loss: Annotated[Text, _opt("Default: cross-entropy, or mean-squared-error for numbers.", LEARN, "NAME")] = None,
    topology: Annotated[Text, _opt("Who talks to whom; default k-regular:4.", GOSSIP, "NAME")] = None,
    protocol: Annotated[Text, _opt("push-sum (default), push-pull, exact or coordinator.", GOSSIP, "NAME")] = None,
    tolerance: Annotated[Text, _opt("Disagreement left after an averaging; default 1e-4.", GOSSIP, "X")] = None,
    exchanges: Annotated[Text, _opt("Exchanges per averaging, instead of the tolerance.", GOSSIP, "N")] = None,
    seed: Annotated[Text, _opt("Everything random follows from it; default 0.", RUN, "S")] = None,
    repeats: Annotated[Text, _opt("How many seeds: S, S+1, ...; default 1.", RUN, "N")] = None,
    device: Annotated[Text, _opt("auto (default), cpu, cuda or mps.", RUN, "NAME")] = None,
    engine: Annotated[
        Text,
        _opt(
            "vector (default), ray: on a cluster, network: whole peers in virtual time, processes: real.", RUN, "NAME"
        ),
    ] = None,
    faults: Annotated[
        Text, _opt("In the network: a seed, links,loss=0.3,delay=2, slow:1-4, several joined by /.", RUN, "FAULTS")
    ] = None,
    workers: Annotated[Text, _opt("Training processes; the numbers do not depend on it.", RUN, "N")] = None,
    address: Annotated[
        Text, _opt("Of a Ray cluster, HOST:PORT or auto; default: one of this machine.", RUN, "ADDRESS")
    ] = None,
    shards: Annotated[
        Text, _opt("Cut each run into N processes of Ray; default: several runs are spread whole.", RUN, "N")
    ] = None,
    config: Annotated[Path | None, _opt("A federation file; other options override it.", RUN, "FILE")] = None,
    out: Annotated[Path | None, _opt("Folder of runs; default $FEDPEER_RUNS or fedpeer-runs.", RUN, "DIR")] = None,
    resume: Annotated[Text, _opt("Go on with an interrupted run: its id, or last.", RUN, "RUN")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", metavar="", help="Print one JSON object only.", rich_help_panel=RUN)
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", metavar="", help="Show no progress.", rich_help_panel=RUN)] = False,
) -> int:
    """Let peers with different tasks teach each other on this machine, and see what it was worth.

    Without options: 16 peers learn handwritten digits, each alone, by partial averaging, and by full averaging.
    """
    from fedpeer.cli.running import run_simulation

    root = runs_folder(out)
    given = {name: value for name, value in context.params.items() if isinstance(value, str)}
    request, folder = _begun(root, given, config, context.obj) if resume is None else _resumed(root, given, config)
    return run_simulation(request, folder, as_json=as_json, quiet=quiet)


def _begun(
    root: Path, given: Mapping[str, str], config: Path | None, typed: Sequence[str]
) -> tuple[SimulationRequest, Callable[[Simulation], RunFolder]]:
    """What options and file ask for, and what makes a new folder for it, which remembers what was typed."""
    from fedpeer.cli.asking import options_of

    def create(simulation: Simulation) -> RunFolder:
        from fedpeer.sims.record import begin_record

        return begin_record(root, simulation, shlex.join(["fedpeer", *typed]))

    return options_of(given, config), create


def _resumed(
    root: Path, given: Mapping[str, str], config: Path | None
) -> tuple[SimulationRequest, Callable[[Simulation], RunFolder]]:
    """An interrupted run as it was asked for; only where it is played may change."""
    from fedpeer.cli.asking import asked_again
    from fedpeer.config.problems import ConfigError, ConfigProblem
    from fedpeer.runs.folder import RunFolder

    request_of = asked_again(given, config)
    run = RunFolder.open(root, given["resume"])
    if run.status in ("finished", "running"):
        way_out = f"see fedpeer runs show {run.id}" if run.status == "finished" else "wait for it, or stop it"
        raise ConfigError(
            "the command line", [ConfigProblem((), f"run {run.id} is {run.status}; {way_out}", "--resume")]
        )
    settings = run.read("settings") or {}
    if settings.get("objects"):
        text = (
            f"run {run.id} was given its {' and '.join(settings['objects'])} as Python objects; repeat it from Python"
        )
        raise ConfigError("the command line", [ConfigProblem((), text, "--resume")])
    return request_of(settings), lambda simulation: run
