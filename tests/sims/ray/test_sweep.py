"""A Ray cluster of two machines: the shards of one run, and whole runs, spread over it.

They leave the same as the vector engine here, whichever process dies or is stopped meanwhile. All tests that need the
cluster are in this file, so that one worker of the tests starts one.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.numpy import load_file

from fedpeer.algorithms import steppers
from fedpeer.config.choice import ChoiceError, parse_choice
from fedpeer.config.federation import Federation
from fedpeer.config.settings import EngineName
from fedpeer.data.dataset import DataError
from fedpeer.experiments.events import Begun, ExperimentEvent, OfRun
from fedpeer.experiments.experiment import Cell, RunSize
from fedpeer.experiments.runner import found, run_experiment
from fedpeer.experiments.short_requests import experiment_options as asked_for
from fedpeer.learning.holdings import load_dataset
from fedpeer.runs.disk import read_json
from fedpeer.runs.folder import RunFolder
from fedpeer.sims.events import MethodStarted, Remark, RoundDone, RunLost, SimulationEvent
from fedpeer.sims.prepare import prepare_simulation
from fedpeer.sims.request import SimulationRequest
from fedpeer.sims.simulate import run_prepared
from fedpeer.sims.tally import ProgressTable
from fedpeer.sims.vector.pool import EngineError, Stopped
from tests.experiments.test_experiments import TINY, wanted
from tests.net.peers import until
from tests.sims.ray.conftest import Machines, vector
from tests.sims.worlds import federation, relative, same_bits, world

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning")]

# ---------------------------------------------------------------------------------------------------- shards of one run

PARITY = 1e-5
#: Time limit in seconds for one event, such as the start of a process that imports torch on a machine with other load.
PATIENCE = 90.0
ROUNDS = 3
SEMI_LOCAL = {
    "everyone": {"neurons": {"input": "all", "hidden1": 6, "output": "all"}},
    "pair": {"depends_on": ["everyone"], "neurons": {"hidden1": 3}, "members": ["peer1", "peer2"]},
    "three": {"neurons": {"hidden1": 2}, "members": ["peer2", "peer3", "peer4"]},
}
#: Method and settings of cases without a server.
EQUALS: dict[str, tuple[str, dict[str, Any]]] = {
    "momentum": ("partial-averaging", {"learning__optimizer": "sgd,lr=0.1,momentum=0.9"}),
    "groups, weights": ("partial-averaging", {"partial_models": SEMI_LOCAL, "gossip": {"topology": "star"}}),
    "every second round": ("full-averaging", {"gossip": {"protocol": "exact", "every": 2}}),
    "nothing": ("local", {}),
    "states": ("pfedvem-gossip,head_lr=0.001", {}),
    "derived models, a graph that is drawn anew": ("dispfl", {"gossip": {"topology": "el-oracle", "exchanges": 1}}),
}
SERVED: dict[str, tuple[str, dict[str, Any]]] = {
    "fedavg": ("fedavg", {}),
    "scaffold, some take part": ("scaffold", {"learning__participation": 0.6}),
    "fedper, all train": ("fedper", {"learning__participation": 0.5, "learning__everyone_trains": True}),
}
#: Numbers of shards for the four blocks; each process takes seconds to start.
SHARDS = [pytest.param(1, marks=pytest.mark.soak), 2, pytest.param(4, marks=pytest.mark.soak)]


def eight_peers(**settings: Any) -> Federation:
    """Return the settings of eight peers, which are four blocks."""
    return federation(**{"simulation__peers": 8, **settings})


def all_of(engine: Any, rounds: int = ROUNDS) -> dict[str, Any]:
    """Run some rounds; return all that a simulation records of them."""
    with engine:
        while engine.round < rounds:
            engine.step()
        return {
            "x_Pn": engine.x_Pn.clone(),
            "scores": engine.evaluate(),
            "server": engine.evaluate_server(),
            "statistics": engine.statistics(),
            "disagreement": engine.disagreement(),
            "traffic": engine.traffic,
            "weights": {group: each.tolist() for group, each in engine.weights.items()},
        }


def assert_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert same_bits(one.pop("x_Pn"), other.pop("x_Pn"))
    assert one == other


def test_shards_are_spread_over_both_machines(machines: Machines) -> None:
    """This test is the first one, so that no shard is left of another one."""
    with machines.engine(world(eight_peers()), "local") as running:
        processes = running.process_ids
        assert len(processes) == machines.cluster.places, "one a CPU"
        assert len({psutil.Process(each).ppid() for each in processes}) == 2


@pytest.mark.parametrize("case", EQUALS)
@pytest.mark.parametrize("shards", SHARDS)
def test_equals_have_the_vector_engines_numbers_on_any_number_of_shards(
    case: str, shards: int, machines: Machines
) -> None:
    method, settings = EQUALS[case]
    made = world(eight_peers(**settings))
    assert_equal(all_of(machines.engine(made, method, shards)), all_of(vector(made, method)))


@pytest.mark.parametrize("case", SERVED)
@pytest.mark.parametrize("shards", SHARDS)
def test_a_server_and_its_clients_have_them_too(case: str, shards: int, machines: Machines) -> None:
    method, settings = SERVED[case]
    made = world(eight_peers(**settings))
    expected, other = all_of(vector(made, method)), all_of(machines.engine(made, method, shards))
    assert relative(other["x_Pn"], expected["x_Pn"]) < PARITY
    assert other["traffic"] == expected["traffic"]
    for what in ("scores", "server"):
        for mine, theirs in zip(other[what] or (), expected[what] or (), strict=True):
            assert mine == pytest.approx(theirs, rel=PARITY)


def test_each_averaged_parameter_goes_out_once_and_comes_back_once(machines: Machines) -> None:
    """This holds however many exchanges the averaging takes."""
    import ray

    made, moved = world(eight_peers(partial_models=SEMI_LOCAL, gossip__exchanges=5)), {"give": 0, "mix": 0}
    with machines.engine(made, "partial-averaging", 2) as running:
        run = running._session.executor.shards.run

        def counting(calls: Any, **how: Any) -> Any:
            found = run(calls, **how)
            for call, (_, *values) in zip(calls, found, strict=True):
                if call.method in moved:
                    moved[call.method] += sum(ray.get(each).size for each in values)
            return found

        running._session.executor.shards.run = counting
        running.step()
        scalars = sum(len(group.members) * group.length for group in running._plan.groups)
    assert moved == {"give": scalars, "mix": scalars}


@pytest.mark.parametrize("moments", [["mix"], pytest.param(["do", "give", "mix", "take"], marks=pytest.mark.soak)])
def test_a_shard_killed_at_any_moment_is_named_and_made_anew_and_the_result_is_the_same(
    moments: list[str],
    machines: Machines,
    killing: Callable[[Any, str, int], None],
    capfd: pytest.CaptureFixture[str],
) -> None:
    made = world(eight_peers(learning__optimizer="sgd,lr=0.1,momentum=0.9"))
    expected = all_of(vector(made, "partial-averaging"), len(moments) + 1)
    seen: list[tuple[str, str]] = []
    with machines.engine(made, "partial-averaging", 2, replaced=lambda who, why: seen.append((who, why))) as running:
        for number, moment in enumerate(moments):
            killing(running, moment, number % 2)
            running.step()
        running.step()
        assert same_bits(running.x_Pn, expected["x_Pn"])
    assert seen == [(f"shard{1 + number % 2}", "its process ended") for number in range(len(moments))]
    assert capfd.readouterr().out == "", "results stand there, and Ray must not speak of dead workers"


@pytest.mark.parametrize(
    "moments",
    [pytest.param(each, marks=pytest.mark.soak) for each in (["updates"], ["do", "updates", "settle", "kept"])],
)
def test_clients_are_made_anew_too(
    moments: list[str], machines: Machines, killing: Callable[[Any, str, int], None]
) -> None:
    made = world(eight_peers(learning__participation=0.6))
    with machines.engine(made, "scaffold", 2) as undisturbed:
        for _ in moments:
            undisturbed.step()
        expected = undisturbed.x_Pn.clone()
    seen: list[str] = []
    with machines.engine(made, "scaffold", 2, replaced=lambda who, why: seen.append(who)) as running:
        for number, moment in enumerate(moments):
            killing(running, moment, number % 2)
            running.step()
        assert same_bits(running.x_Pn, expected)
    assert seen == [f"shard{1 + number % 2}" for number in range(len(moments))]


@pytest.mark.parametrize(
    ("module", "words"),
    [
        pytest.param("Suicidal", "died 3 times in a round", marks=pytest.mark.soak),  # three actors begin
        ("Faulty", "no such luck"),
    ],
)
def test_a_task_that_cannot_be_done_ends_the_run_with_its_own_words(
    module: str, words: str, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steppers, "mappable", lambda *_: False)
    made = world(eight_peers(network=f"python:tests.sims.test_vector_engine:{module}"))
    with pytest.raises(EngineError, match=words), machines.engine(made, "local", 1) as running:
        running.step()


@pytest.mark.parametrize(
    ("method", "moment"),
    [
        pytest.param("partial-averaging", "do", marks=pytest.mark.soak),
        pytest.param("partial-averaging", "mix", marks=pytest.mark.soak),
        pytest.param("fedavg", "updates", marks=pytest.mark.soak),
    ],
)
def test_a_stop_in_the_middle_goes_on_to_the_same_numbers(method: str, moment: str, machines: Machines) -> None:
    made, stop = world(eight_peers(learning__optimizer="sgd,lr=0.1,momentum=0.9")), threading.Event()
    expected = all_of(vector(made, method))["x_Pn"]
    with machines.engine(made, method, 2, stop=stop) as running:
        running.step()
        run = running._session.executor.shards.run

        def stopping(calls: Any, **how: Any) -> Any:
            if any(call.method == moment for call in calls):
                stop.set()
            return run(calls, **how)

        running._session.executor.shards.run = stopping
        with pytest.raises(Stopped):
            running.step()
        tensors, state = running.snapshot()
        tensors = {name: value.clone() for name, value in tensors.items()}
    assert state["round"] == 1
    with machines.engine(made, method, 1) as again:
        again.restore(tensors, state)
        while again.round < ROUNDS:
            again.step()
        assert same_bits(again.x_Pn, expected)


def wide_request(engine: EngineName, method: str, **more: Any) -> SimulationRequest:
    wide = eight_peers(network="mlp:64+2000+10")  # so large that Ray leaves it on the machine where it was made
    return SimulationRequest(
        federation=wide, methods=(parse_choice(method),), device="cpu", workers=1, engine=engine, **more
    )


def recorded(
    options: SimulationRequest, folder: Path, on_event: Callable[[SimulationEvent], None]
) -> list[dict[str, Any]]:
    """Run a whole simulation; return its rows without the seconds."""
    run = RunFolder.create(folder, name=options.engine, settings=options.to_json(), environment={})
    run_prepared(prepare_simulation(options), run, on_event)
    return [{name: value for name, value in row.items() if name != "seconds"} for row in run.rows()]


@pytest.mark.soak  # Ray takes half a minute to find that a machine is gone
@pytest.mark.parametrize("method", ["partial-averaging", "fedavg"])
def test_a_lost_machine_costs_the_rounds_since_the_last_checkpoint_and_changes_nothing(
    method: str, machines: Machines, tmp_path: Path
) -> None:
    machines.cluster.close()  # its idle shards occupy CPUs
    third = machines.of_ray.add_node(num_cpus=2)
    machines.of_ray.wait_for_nodes()
    events: list[SimulationEvent] = []

    def on_event(event: SimulationEvent) -> None:
        events.append(event)
        if isinstance(event, RoundDone) and sum(isinstance(each, RoundDone) for each in events) == 2:
            machines.of_ray.remove_node(third, allow_graceful=False)

    found = recorded(wide_request("ray", method, address=machines.address), tmp_path, on_event)
    assert found == recorded(wide_request("vector", method), tmp_path, lambda event: None)
    said = [event.text for event in events if isinstance(event, Remark)]
    assert f"{method}: a machine was lost, and its peers' last round with it; resuming from the start" in said


def test_more_shards_than_there_are_cpus_are_refused(machines: Machines) -> None:
    with pytest.raises(ChoiceError, match=r"has \d CPUs for 99 shards of one CPU each; take --shards \d"):
        machines.cluster.shards(99)


def test_the_examples_are_put_into_the_object_store_once(machines: Machines) -> None:
    made = world(eight_peers())
    x_NF = torch.from_numpy(made.dataset.x)
    first = machines.cluster.hold(x_NF.numpy())
    assert machines.cluster.hold(x_NF.numpy()) is first
    assert machines.cluster.hold(x_NF.clone().numpy()) is not first


# ---------------------------------------------------------------------------------------------------------- whole runs

METHODS, SEEDS = ("fedavg",), (0, 1)


@pytest.fixture
def free(machines: Machines) -> Machines:
    """Return the machines without idle shards, which occupy CPUs."""
    machines.cluster.close()
    return machines


@pytest.fixture
def held(free: Machines) -> Iterator[Path]:
    """Create the file that makes runs wait after a round or two, and yield its path; remove it at the end."""
    free.hold.touch()
    yield free.hold
    free.hold.unlink(missing_ok=True)


def request(engine: EngineName, **more: Any) -> SimulationRequest:
    settings = federation(network="python:tests.sims.ray.held:Held", simulation__peers=3, learning__rounds=6)
    methods = tuple(map(parse_choice, METHODS))
    return SimulationRequest(
        federation=settings, methods=methods, seeds=SEEDS, device="cpu", workers=1, engine=engine, **more
    )


def begun(options: SimulationRequest, root: Path) -> RunFolder:
    return RunFolder.create(root, name="digits", settings=options.to_json(), environment={})


def played(
    options: SimulationRequest,
    run: RunFolder,
    on_event: Callable[[SimulationEvent], None] = lambda event: None,
    **more: Any,
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


@pytest.mark.soak
def test_a_run_whose_process_is_killed_is_played_again_and_all_is_as_here(
    machines: Machines, held: Path, expected: dict[str, Any], tmp_path: Path
) -> None:
    board, lost, counted = ProgressTable(), list[RunLost](), list[tuple[int, int, int]]()

    def on_event(event: SimulationEvent) -> None:
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

    def stopping(event: SimulationEvent) -> None:
        if isinstance(event, RoundDone):
            stop.set()

    assert played(options, run, stopping, stop=stop)["status"] == "interrupted"
    held.unlink()

    def going_on(event: SimulationEvent) -> None:
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


def test_an_experiment_has_the_same_numbers_and_goes_on_after_a_stop(free: Machines, tmp_path: Path) -> None:
    """Runs that were finished here are not repeated on the cluster, where each process imports torch for seconds.

    The stop is set when a run has done a round; no run can end before the stop arrives, because all of them wait.
    """
    stop, told = threading.Event(), list[ExperimentEvent]()

    def stopping(event: ExperimentEvent) -> None:
        if isinstance(event, OfRun) and isinstance(event.event, RoundDone):
            stop.set()

    here = replace(wanted(tmp_path / "here", "quick", seeds=2), experiment=HELD)
    spread = replace(here, root=tmp_path / "spread", cluster=free.address)
    assert run_experiment(replace(here, only=("Local",)))
    shutil.copytree(here.folder, spread.folder)
    assert run_experiment(here)
    free.hold.touch()
    try:
        assert not run_experiment(spread, stopping, stop)
    finally:
        free.hold.unlink()
    assert run_experiment(spread, told.append)
    begun = next(event for event in told if isinstance(event, Begun))
    assert (begun.runs, begun.at_once, begun.finished) == (4, free.cluster.places, 2), "those of Local"
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


def test_what_a_run_cannot_have_is_told_as_the_users_mistake(free: Machines) -> None:
    from fedpeer.sims.ray.remote_run import RemoteRun
    from fedpeer.sims.ray.sweep import Sweep

    most, stop = free.cluster.widest, threading.Event()
    with pytest.raises(ChoiceError, match=rf"no machine of the Ray cluster has 99 CPUs.*--workers {most}"):
        Sweep(free.cluster, 99, lambda remote_run, event: None, stop, run_prepared)
    missing = federation(simulation__dataset="csv:/nowhere.csv,label=y", simulation__split=None)
    options = SimulationRequest(federation=missing, methods=(parse_choice("local"),))
    with Sweep(free.cluster, 1, lambda remote_run, event: None, stop, run_prepared) as sweep:
        sweep.begin(RemoteRun(key="one", name="local, seed 0", request=options))
        with pytest.raises(DataError, match=r"^on .* a machine of the Ray cluster: .*/nowhere.csv"):
            sweep.finished()


def test_a_run_that_is_cancelled_before_it_trains_ends_with_its_process(free: Machines) -> None:
    """The process may be importing modules, and the next run would get it with a half-imported module."""
    from fedpeer.sims.ray.remote_run import RemoteRun
    from fedpeer.sims.ray.sweep import Sweep

    loading = federation(simulation__dataset="python:tests.sims.ray.held:held_data", simulation__split="iid")
    options = SimulationRequest(federation=loading, methods=(parse_choice("local"),))
    try:
        with Sweep(free.cluster, 1, lambda remote_run, event: None, threading.Event(), run_prepared) as sweep:
            sweep.begin(RemoteRun(key="one", name="local, seed 0", request=options))
            until(lambda: free.hold.exists() and free.hold.read_text() != "", "the data set is asked for", PATIENCE)
            process = psutil.Process(int(free.hold.read_text()))
        process.wait(PATIENCE)
    finally:
        free.hold.unlink(missing_ok=True)


def test_data_that_is_not_on_a_machine_is_named_with_the_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("ray")
    import socket

    from fedpeer.sims.ray.remote_run import _dataset

    monkeypatch.setenv("FEDPEER_DATA", str(tmp_path))
    with pytest.raises(DataError, match=rf"femnist is not on {socket.gethostname()} .*fedpeer data prepare femnist"):
        _dataset(parse_choice("femnist"))
