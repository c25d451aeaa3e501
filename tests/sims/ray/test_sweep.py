"""Whole runs spread over a cluster: they leave the same as here, whichever process dies or is stopped meanwhile."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.numpy import load_file

from fedpeer.cli.progress import ProgressTable
from fedpeer.config.choice import ChoiceError, parse_choice
from fedpeer.config.settings import EngineName
from fedpeer.data.dataset import DataError
from fedpeer.experiments.events import Begun, ExperimentEvent, OfRun
from fedpeer.experiments.experiment import Cell, RunSize
from fedpeer.experiments.runner import found, run_experiment
from fedpeer.experiments.short_requests import experiment_options as asked_for
from fedpeer.learning.holdings import load_dataset
from fedpeer.runs.disk import read_json
from fedpeer.runs.folder import RunFolder
from fedpeer.sims.events import Event, MethodStarted, RoundDone, RunLost
from fedpeer.sims.prepare import prepare_simulation
from fedpeer.sims.request import SimulationRequest
from fedpeer.sims.simulate import run_prepared
from tests.experiments.test_experiments import TINY, wanted
from tests.sims.ray.conftest import Machines
from tests.sims.worlds import federation

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning")]

METHODS, SEEDS = ("fedavg",), (0, 1)


@pytest.fixture
def held(machines: Machines) -> Iterator[Path]:
    """Create the file that makes runs wait after a round or two, and yield its path; remove it at the end."""
    machines.hold.touch()
    yield machines.hold
    machines.hold.unlink(missing_ok=True)


def request(engine: EngineName, **more: Any) -> SimulationRequest:
    settings = federation(network="python:tests.sims.ray.held:Held", simulation__peers=3, learning__rounds=6)
    methods = tuple(map(parse_choice, METHODS))
    return SimulationRequest(
        federation=settings, methods=methods, seeds=SEEDS, device="cpu", workers=1, engine=engine, **more
    )


def begun(options: SimulationRequest, root: Path) -> RunFolder:
    return RunFolder.create(root, name="digits", settings=options.to_json(), environment={})


def played(
    options: SimulationRequest, run: RunFolder, on_event: Callable[[Event], None] = lambda event: None, **more: Any
) -> dict[str, Any]:
    """Run a simulation; return all that it leaves, without times and names."""
    simulation = prepare_simulation(options, dataset=load_dataset(options.federation.simulation.dataset))
    summary = run_prepared(simulation, run, on_event, **more)
    for method in summary["methods"].values():
        del method["seconds_per_round"]
    del summary["run"], summary["report"]
    return {
        "status": run.status,
        "summary": summary,
        "rows": without_seconds(run),
        "files": sorted(path.relative_to(run.path).as_posix() for path in run.path.rglob("*") if path.is_file()),
        "models": {
            path.name: {name: value.tobytes() for name, value in load_file(path).items()}
            for path in (run.path / "models").glob("*.safetensors")
        },
        "cards": {path.name: read_json(path) for path in (run.path / "models").glob("*.json")},
    }


def without_seconds(run: RunFolder) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in run.rows()]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what the simulation leaves with the vector engine."""
    options = request("vector")
    return played(options, begun(options, tmp_path_factory.mktemp("vector")))


def processes_of(name: str) -> list[psutil.Process]:
    """Return Ray's processes that execute the run of this name."""
    return [each for each in psutil.process_iter(["cmdline"]) if f"ray::{name}" in (each.info["cmdline"] or ())]


def test_a_run_whose_process_is_killed_is_played_again_and_all_is_as_here(
    machines: Machines, held: Path, expected: dict[str, Any], tmp_path: Path
) -> None:
    board, lost, counted = ProgressTable(), list[RunLost](), list[tuple[int, int, int]]()

    def on_event(event: Event) -> None:
        if not board.tallies:
            board.start(event)  # type: ignore[arg-type]
        board.on_event(event)
        counted.append(board.runs)
        if isinstance(event, RoundDone) and held.exists():
            (process,) = processes_of(f"{event.method}, seed {event.seed}")
            os.kill(process.pid, signal.SIGKILL)
            held.unlink()
        if isinstance(event, RunLost):
            lost.append(event)
            assert event.seed not in board.tallies[event.method].running, "it waits"

    options = request("ray", address=machines.address)
    assert played(options, begun(options, tmp_path), on_event) == expected
    (one,) = lost
    assert one.reason == "its process ended"
    assert one.round >= 1
    assert counted[0] == (0, 0, 2)
    assert counted[-1] == (2, 0, 0)
    assert all(sum(counts) == 2 and min(counts) >= 0 for counts in counted)
    assert max(running for _, running, _ in counted) > 1, "several at once"
    finished = [done for done, _, _ in counted]
    assert finished == sorted(finished), "what is finished stays so"


@pytest.mark.soak  # an experiment below does the same
def test_a_simulation_that_was_stopped_goes_on_in_the_middle_of_its_runs(
    machines: Machines, held: Path, expected: dict[str, Any], tmp_path: Path
) -> None:
    options, stop, first = request("ray", address=machines.address), threading.Event(), dict[tuple[str, int], int]()
    run = begun(options, tmp_path)

    def stopping(event: Event) -> None:
        if isinstance(event, RoundDone):
            stop.set()

    assert played(options, run, stopping, stop=stop)["status"] == "interrupted"
    held.unlink()

    def going_on(event: Event) -> None:
        if isinstance(event, RoundDone):
            first.setdefault((event.method, event.seed), event.round)

    assert played(options, run, going_on) == expected
    assert max(first.values()) > 1, "not from the start"


def line(method: str, size: RunSize) -> SimulationRequest:
    """Return a run of an experiment that the held network can keep waiting in its last rounds."""
    return asked_for(
        method,
        size,
        learning={"batch_size": 5, "steps_between_averaging": 8, "rounds": 6},
        simulation={"dataset": "digits", "split": "blocks:40,shuffle=true,test=50"},
        network="python:tests.sims.ray.held:Held",
    )


HELD = replace(
    TINY,
    cells=lambda size: (
        Cell(label="Local", variants={"": line("local", size)}),
        Cell(label="FedAvg", variants={"": line("fedavg", size)}),
    ),
)


def test_an_experiment_has_the_same_numbers_and_goes_on_after_a_stop(machines: Machines, tmp_path: Path) -> None:
    """The stop is set when a run has done a round; no run can end before the stop arrives, because all of them wait."""
    stop, told = threading.Event(), list[ExperimentEvent]()

    def stopping(event: ExperimentEvent) -> None:
        if isinstance(event, OfRun) and isinstance(event.event, RoundDone):
            stop.set()

    here = replace(wanted(tmp_path / "here", "quick", seeds=2), experiment=HELD)
    spread = replace(here, root=tmp_path / "spread", cluster=machines.address)
    assert run_experiment(here)
    assert run_experiment(replace(spread, only=("Local",)))
    machines.hold.touch()
    try:
        assert not run_experiment(spread, stopping, stop)
    finally:
        machines.hold.unlink()
    assert run_experiment(spread, told.append)
    begun = next(event for event in told if isinstance(event, Begun))
    assert (begun.runs, begun.at_once, begun.finished) == (4, 4, 2), "those of Local"
    first = [
        each.event.first_round for each in told if isinstance(each, OfRun) and isinstance(each.event, MethodStarted)
    ]
    assert len(first) == 2, "those of FedAvg alone"
    assert max(first) > 1, "not from the start"
    one, other = ({label: each.per_seed for label, each in found(options).items()} for options in (here, spread))
    assert one == other
    assert len(one["FedAvg"]["PM"]) == 2
    one_runs, other_runs = (sorted(options.folder.glob("*/cell.json")) for options in (here, spread))
    rows = [
        {path.read_text(): without_seconds(RunFolder(path.parent)) for path in paths}
        for paths in (one_runs, other_runs)
    ]
    assert rows[0] == rows[1]
    assert not list(tmp_path.glob("**/models"))


def test_what_a_run_cannot_have_is_told_as_the_users_mistake(machines: Machines) -> None:
    from fedpeer.sims.ray.remote_run import RemoteRun
    from fedpeer.sims.ray.sweep import Sweep

    most, stop = machines.cluster.widest, threading.Event()
    with pytest.raises(ChoiceError, match=rf"no machine of the Ray cluster has 99 CPUs.*--workers {most}"):
        Sweep(machines.cluster, 99, lambda remote_run, event: None, stop, run_prepared)
    missing = federation(simulation__dataset="csv:/nowhere.csv,label=y", simulation__split=None)
    options = SimulationRequest(federation=missing, methods=(parse_choice("local"),))
    with Sweep(machines.cluster, 1, lambda remote_run, event: None, stop, run_prepared) as sweep:
        sweep.begin(RemoteRun(key="one", name="local, seed 0", request=options))
        with pytest.raises(DataError, match=r"^on .* a machine of the Ray cluster: .*/nowhere.csv"):
            sweep.finished()


def test_data_that_is_not_on_a_machine_is_named_with_the_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("ray")
    import socket

    from fedpeer.sims.ray.remote_run import _dataset

    monkeypatch.setenv("FEDPEER_DATA", str(tmp_path))
    with pytest.raises(DataError, match=rf"femnist is not on {socket.gethostname()} .*fedpeer data prepare femnist"):
        _dataset(parse_choice("femnist"))
