"""The ray engine on a cluster of processes for two machines: the vector engine's numbers, whichever process dies."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from fedpeer.algorithms import steppers
from fedpeer.config.choice import parse_choice
from fedpeer.config.federation import Federation
from fedpeer.config.settings import EngineName
from fedpeer.runs.folder import RunFolder
from fedpeer.sims.events import Event, Remark, RoundDone
from fedpeer.sims.prepare import prepare_simulation
from fedpeer.sims.request import SimulationRequest
from fedpeer.sims.simulate import run_prepared
from fedpeer.sims.vector.pool import EngineError, Stopped
from tests.sims.ray.conftest import Machines, vector
from tests.sims.worlds import federation as small
from tests.sims.worlds import relative, same_bits, world

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning")]

PARITY = 1e-5
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
}
SERVED: dict[str, tuple[str, dict[str, Any]]] = {
    "fedavg": ("fedavg", {}),
    "scaffold, some take part": ("scaffold", {"learning__participation": 0.6}),
    "fedper, all train": ("fedper", {"learning__participation": 0.5, "learning__everyone_trains": True}),
}
#: Numbers of shards for the four blocks; each process takes seconds to start.
SHARDS = [pytest.param(1, marks=pytest.mark.soak), 2, pytest.param(4, marks=pytest.mark.soak)]


def federation(**settings: Any) -> Federation:
    """Return the settings of eight peers, which are four blocks."""
    return small(**{"simulation__peers": 8, **settings})


def found(engine: Any, rounds: int = ROUNDS) -> dict[str, Any]:
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


@pytest.mark.parametrize("case", EQUALS)
@pytest.mark.parametrize("shards", SHARDS)
def test_equals_have_the_vector_engines_numbers_on_any_number_of_shards(
    case: str, shards: int, machines: Machines
) -> None:
    method, settings = EQUALS[case]
    made = world(federation(**settings))
    assert_equal(found(machines.engine(made, method, shards)), found(vector(made, method)))


@pytest.mark.parametrize("case", SERVED)
@pytest.mark.parametrize("shards", SHARDS)
def test_a_server_and_its_clients_have_them_too(case: str, shards: int, machines: Machines) -> None:
    method, settings = SERVED[case]
    made = world(federation(**settings))
    expected, other = found(vector(made, method)), found(machines.engine(made, method, shards))
    assert relative(other["x_Pn"], expected["x_Pn"]) < PARITY
    assert other["traffic"] == expected["traffic"]
    for what in ("scores", "server"):
        for mine, theirs in zip(other[what] or (), expected[what] or (), strict=True):
            assert mine == pytest.approx(theirs, rel=PARITY)


def test_each_averaged_parameter_goes_out_once_and_comes_back_once(machines: Machines) -> None:
    """This holds however many exchanges the averaging takes."""
    import ray

    made, moved = world(federation(partial_models=SEMI_LOCAL, gossip__exchanges=5)), {"give": 0, "mix": 0}
    with machines.engine(made, "partial-averaging", 4) as running:
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


def test_shards_are_spread_over_both_machines(machines: Machines) -> None:
    with machines.engine(world(federation()), "local") as running:
        processes = running.process_ids
        assert len(processes) == 4, "one a CPU"
        assert len({psutil.Process(each).ppid() for each in processes}) == 2


@pytest.mark.parametrize("moments", [["mix"], pytest.param(["do", "give", "mix", "take"], marks=pytest.mark.soak)])
def test_a_shard_killed_at_any_moment_is_named_and_made_anew_and_the_result_is_the_same(
    moments: list[str],
    machines: Machines,
    killing: Callable[[Any, str, int], None],
    capfd: pytest.CaptureFixture[str],
) -> None:
    made = world(federation(learning__optimizer="sgd,lr=0.1,momentum=0.9"))
    expected = found(vector(made, "partial-averaging"), len(moments) + 1)
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
    "moments", [["updates"], pytest.param(["do", "updates", "settle", "kept"], marks=pytest.mark.soak)]
)
def test_clients_are_made_anew_too(
    moments: list[str], machines: Machines, killing: Callable[[Any, str, int], None]
) -> None:
    made = world(federation(learning__participation=0.6))
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
    made = world(federation(network=f"python:tests.sims.test_vector_engine:{module}"))
    with pytest.raises(EngineError, match=words), machines.engine(made, "local", 1) as running:
        running.step()


@pytest.mark.parametrize(
    ("method", "moment"),
    [
        pytest.param("partial-averaging", "do", marks=pytest.mark.soak),
        ("partial-averaging", "mix"),
        pytest.param("fedavg", "updates", marks=pytest.mark.soak),
    ],
)
def test_a_stop_in_the_middle_goes_on_to_the_same_numbers(method: str, moment: str, machines: Machines) -> None:
    made, stop = world(federation(learning__optimizer="sgd,lr=0.1,momentum=0.9")), threading.Event()
    expected = found(vector(made, method))["x_Pn"]
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


def request(engine: EngineName, method: str, **more: Any) -> SimulationRequest:
    wide = federation(network="mlp:64+2000+10")  # so large that Ray leaves it on the machine where it was made
    return SimulationRequest(
        federation=wide, methods=(parse_choice(method),), device="cpu", workers=1, engine=engine, **more
    )


def recorded(options: SimulationRequest, folder: Path, on_event: Callable[[Event], None]) -> list[dict[str, Any]]:
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
    events: list[Event] = []

    def on_event(event: Event) -> None:
        events.append(event)
        if isinstance(event, RoundDone) and sum(isinstance(each, RoundDone) for each in events) == 2:
            machines.of_ray.remove_node(third, allow_graceful=False)

    found = recorded(request("ray", method, address=machines.address), tmp_path, on_event)
    assert found == recorded(request("vector", method), tmp_path, lambda event: None)
    said = [event.text for event in events if isinstance(event, Remark)]
    assert f"{method}: a machine was lost, and its peers' last round with it; resuming from the start" in said


def test_more_shards_than_there_are_cpus_are_refused(machines: Machines) -> None:
    from fedpeer.config.choice import ChoiceError

    with pytest.raises(ChoiceError, match=r"has \d CPUs for 99 shards of one CPU each; take --shards \d"):
        machines.cluster.shards(99)


def test_the_examples_are_put_into_the_object_store_once(machines: Machines) -> None:
    made = world(federation())
    x_NF = torch.from_numpy(made.dataset.x)
    first = machines.cluster.hold(x_NF.numpy())
    assert machines.cluster.hold(x_NF.numpy()) is first
    assert machines.cluster.hold(x_NF.clone().numpy()) is not first
