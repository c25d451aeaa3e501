"""The vector engine compared with an obvious loop and with itself under other workers and blocks.

Further tests kill workers and stop rounds.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing import connection, forkserver
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedpeer.algorithms import steppers
from fedpeer.algorithms.batches import order
from fedpeer.config.choice import parse_choice
from fedpeer.learning.groups import averaging_of
from fedpeer.learning.holdings import load_dataset
from fedpeer.sims.vector import pool
from fedpeer.sims.vector.pool import EngineError, Stopped, WorkerPool
from fedpeer.sims.world import World, build_world, plan_of
from tests.sims.worlds import engine, federation, played, relative, same_bits, start_of, world

PARITY = 1e-5


def twin(
    made: World, method: str, rounds: int = 3, begin: Callable[[int, Tensor], None] = lambda number, x_Pn: None
) -> Tensor:
    """Return the result of the same run as an obvious loop over peers and batches, with autograd and means by hand.

    `begin` may change the models (P, n) with which a round 0, 1, ... begins.
    """
    learning = made.federation.learning
    plan = plan_of(made, parse_choice(method))
    averaging = averaging_of(plan, made.federation, made.seed)
    x_Pn = start_of(made)
    weight = {group.id: torch.ones(len(group.members), dtype=torch.float64) for group in plan.groups}
    optimizers: list[Any] = [None] * len(made.peers)
    modules = [copy.deepcopy(made.module) for _ in made.peers]
    steps = learning.steps_between_averaging
    assert isinstance(steps, int)
    for number in range(rounds):
        begin(number, x_Pn)
        for p, peer in enumerate(made.peers):
            module = modules[p].train()
            with torch.no_grad():
                for name, value in made.layout.unflatten(x_Pn[p]).items():
                    held = dict(module.named_parameters()) | dict(module.named_buffers())
                    held[name].copy_(value)
            if optimizers[p] is None:
                choice = learning.optimizer
                settings = {key: float(value) for key, value in choice.settings.items()}
                kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[choice.name]
                optimizers[p] = kind(module.parameters(), **settings)
            x = torch.from_numpy(np.asarray(made.split.inputs(made.dataset, p)))
            y = torch.from_numpy(np.asarray(made.split.labels(made.dataset, p)))
            seen = order(len(x), number * steps * learning.batch_size, steps * learning.batch_size, made.draws, peer)
            for batch in seen.reshape(steps, learning.batch_size):
                optimizers[p].zero_grad()
                torch.autograd.backward(nn.functional.cross_entropy(module(x[batch]), y[batch]))
                optimizers[p].step()
            x_Pn[p] = made.layout.flatten(module)
        for group in plan.groups:
            if (number + 1) % averaging[group.id].every:
                continue
            rows = [made.peers.index(member) for member in group.members]
            value = torch.stack(
                [x_Pn[r, torch.from_numpy(group.indices[m])].double() for r, m in zip(rows, group.members, strict=True)]
            )
            value *= weight[group.id][:, None]
            if averaging[group.id].exact:
                value = (value.sum(0) / weight[group.id].sum()).expand_as(value) * weight[group.id][:, None]
            else:
                for each in averaging[group.id].matrices(number):
                    matrix = torch.from_numpy(each.toarray())
                    value, weight[group.id] = matrix @ value, matrix @ weight[group.id]
            for row, member, new in zip(rows, group.members, value / weight[group.id][:, None], strict=True):
                x_Pn[row, torch.from_numpy(group.indices[member])] = new.float()
    return x_Pn


@pytest.mark.parametrize(
    ("batch_size", "method"),
    [
        (1, "partial-averaging"),
        (5, "local"),
        (5, "partial-averaging"),
        (5, "full-averaging"),
        pytest.param(1, "local", marks=pytest.mark.soak),
        pytest.param(1, "full-averaging", marks=pytest.mark.soak),
    ],
)
def test_the_engine_computes_what_an_obvious_loop_computes(method: str, batch_size: int) -> None:
    made = world(federation(learning__batch_size=batch_size))
    assert relative(played(made, method=method), twin(made, method)) < PARITY


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "optimizer"),
    [
        ("mlp:64+12+10,activation=relu", "sgd,lr=0.1,momentum=0.9"),
        ("mlp,layers=64+12+10,dropout=0.0", "adam,lr=0.01"),
        pytest.param("mlp:64+12+10,activation=relu", "adam,lr=0.01", marks=pytest.mark.soak),
        pytest.param("mlp,layers=64+12+10,dropout=0.0", "sgd,lr=0.1,momentum=0.9", marks=pytest.mark.soak),
    ],
)
def test_momentum_and_adam_go_on_after_an_averaging(network: str, optimizer: str) -> None:
    made = world(federation(network=network, learning__optimizer=optimizer, learning__start="torch"))
    assert relative(played(made), twin(made, "partial-averaging")) < PARITY


def test_protocols_and_irregular_graphs_carry_their_weights_from_round_to_round() -> None:
    for gossip in ({"topology": "star"}, {"topology": "exponential"}, {"protocol": "push-pull"}, {"protocol": "exact"}):
        made = world(federation(gossip={"exchanges": 2, "tolerance": None, **gossip}))
        assert relative(played(made, rounds=2), twin(made, "partial-averaging", rounds=2)) < PARITY, gossip


def test_averaging_every_third_round_is_averaging_after_rounds_three_times_as_long() -> None:
    long, short = (
        world(federation(learning__steps_between_averaging=steps, gossip={"topology": "exponential", **gossip}))
        for steps, gossip in ((9, {"exchanges": 2}), (3, {"exchanges": 2, "every": 3}))
    )
    assert same_bits(played(long, rounds=2), played(short, rounds=6))
    with engine(short) as running:
        spoken = []
        for _ in range(4):
            running.step()
            spoken.append(sum(running.traffic[0]))
    assert spoken[:2] == [0, 0]
    assert spoken[2] > 0
    assert spoken[3] == 0


@pytest.mark.parametrize("learning", [{}, {"learning__weights": "samples"}])
def test_a_coordinator_of_each_group_takes_the_exact_mean_for_fewer_messages(learning: dict[str, Any]) -> None:
    models = {
        "everyone": {"neurons": {"input": "all", "hidden1": 6, "output": "all"}},
        "three": {"neurons": {"hidden1": 2}, "members": ["peer4", "peer3", "peer2"]},
    }
    exact, led = (
        world(federation(partial_models=models, gossip={"protocol": protocol}, **learning))
        for protocol in ("exact", "coordinator")
    )
    assert same_bits(played(exact), played(led))
    with engine(led) as running:
        running.step()
        messages, amount = running.traffic
        length = {group.id: group.length for group in running._plan.groups}
    # peer1 leads the six of the first group, peer2 the three of the second.
    assert messages == [5, 1 + 2, 1 + 1, 1 + 1, 1, 1]
    sizes = {name: 4 * count + 128 for name, count in length.items()}
    assert amount[1:3] == [sizes["everyone"] + 2 * sizes["three"], sizes["everyone"] + sizes["three"]]
    assert amount[0] == 5 * sizes["everyone"]


def test_semi_local_models_average_among_their_members_only() -> None:
    models = {
        "everyone": {"neurons": {"input": "all", "hidden1": 6, "output": "all"}},
        "pair": {"depends_on": ["everyone"], "neurons": {"hidden1": 3}, "members": ["peer1", "peer2"]},
        "three": {"neurons": {"hidden1": 2}, "members": ["peer2", "peer3", "peer4"]},
    }
    made = world(federation(partial_models=models, gossip={"protocol": "exact"}))
    for method in ("partial-averaging", "partial-averaging,cross_model=true"):
        assert relative(played(made, method=method), twin(made, method)) < PARITY


def test_weights_by_samples_give_the_weighted_mean() -> None:
    options = federation(
        learning__weights="samples",
        gossip={"protocol": "exact"},
        simulation__split="slicing:10",
        simulation__peers=4,
    )
    made = world(options)
    counts = np.array([len(share.train_M) for share in made.split.shares], float)
    assert counts.max() > counts.min()
    with engine(made, "full-averaging") as running:
        running.step()
        trained, mixed = running.workspace.x[1].double(), running.x_Pn
    mean = (torch.from_numpy(counts)[:, None] * trained).sum(0) / counts.sum()
    assert torch.allclose(mixed.double(), mean.expand_as(trained), atol=1e-7)
    gossiped = world(
        options.model_copy(
            update={"gossip": options.gossip.model_copy(update={"protocol": "push-sum", "tolerance": 1e-9})}
        )
    )
    assert relative(played(gossiped, method="full-averaging"), played(made, method="full-averaging")) < PARITY


def test_the_number_of_workers_never_changes_a_bit() -> None:
    made = world(federation())
    one, two, three = (played(made, workers=workers) for workers in (1, 2, 3))
    assert same_bits(one, two)
    assert same_bits(one, three)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"learning__batch_size": 1}, {"learning__optimizer": "adam,lr=0.01"}])
def test_blocks_of_any_size_give_the_same_parameters(monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]) -> None:
    made = world(federation(**settings))
    results = []
    for least, scalars in ((4, 1), (1, 3 * made.layout.n), (1, 100 * made.layout.n)):
        monkeypatch.setattr(steppers, "_BLOCKS_LEAST", least)
        monkeypatch.setattr(steppers, "_CACHED_SCALARS", scalars)
        with engine(made) as running:
            running.step()
            running.step()
            results.append((len(running._blocks), running.x_Pn.clone()))
    assert [blocks for blocks, _ in results] == [6, 2, 1]
    assert all(relative(x, results[0][1]) < PARITY for _, x in results)


def test_a_device_of_its_own_gives_the_workers_numbers() -> None:
    made = world(federation())
    assert relative(played(made, device="cpu:0"), played(made)) < PARITY


def test_what_is_in_no_group_is_trained_and_not_touched() -> None:
    made = world(federation())
    with engine(made, workers=2) as running:
        running.step()
        trained, mixed = running.workspace.x[1], running.x_Pn
        for row, peer in enumerate(made.peers):
            local = torch.from_numpy(running._plan.local[peer])
            assert len(local)
            assert same_bits(trained[row, local], mixed[row, local])
        assert not same_bits(trained, mixed)


def test_a_partial_model_may_be_called_local_something() -> None:
    slices = {"neurons": {"input": "all", "hidden1": 6, "output": "all"}}
    found = [played(world(federation(partial_models={name: slices})), rounds=1) for name in ("wards", "local 1")]
    assert same_bits(*found)


def test_a_worker_killed_twice_is_named_and_replaced_and_the_result_is_the_same() -> None:
    made = world(federation())
    undisturbed = played(made, workers=2)
    seen: list[tuple[str, str]] = []

    def replaced(worker: str, reason: str) -> None:
        seen.append((worker, reason))
        if len(seen) == 1:  # the replacement has not begun yet: this worker is another one, busy with a task
            os.kill(running.process_ids[1], signal.SIGKILL)

    with engine(made, workers=2, replaced=replaced) as running:
        running.step()
        os.kill(running.process_ids[0], signal.SIGKILL)
        running.step()
        running.step()
        disturbed = running.x_Pn.clone()
    assert [worker for worker, _ in seen] == ["worker1", "worker2"]
    assert all("SIGKILL" in reason for _, reason in seen)
    assert same_bits(undisturbed, disturbed)


def test_a_fork_server_that_is_being_killed_with_its_workers_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal to the whole group of processes reaches the fork server, too: for a moment it refuses connections.

    If it had accepted one, or the signal reaches the process that it has just forked, no process id arrives.
    """
    made = world(federation())
    undisturbed = played(made, workers=2)
    connect, refusals = forkserver.connect_to_new_process, iter([ConnectionRefusedError, EOFError])

    def connecting(fds: list[int]) -> tuple[int, int]:
        if (refusal := next(refusals, None)) is not None:
            raise refusal
        return connect(fds)

    with engine(made, workers=2) as running:
        running.step()
        monkeypatch.setattr(forkserver, "connect_to_new_process", connecting)
        os.kill(running.process_ids[0], signal.SIGKILL)
        running.step()
        running.step()
        assert same_bits(undisturbed, running.x_Pn)
    assert next(refusals, None) is None


def test_a_replacement_that_dies_before_it_has_a_matrix_is_replaced_too(monkeypatch: pytest.MonkeyPatch) -> None:
    made, seen = world(federation()), list[str]()
    undisturbed = played(made, workers=2)
    launched = WorkerPool._launched

    def killed(self: WorkerPool, name: str, worker_end: connection.Connection) -> BaseProcess:
        process = launched(self, name, worker_end)
        if len(seen) == 0:
            process.kill()
            process.join()
        return process

    with engine(made, workers=2, replaced=lambda worker, reason: seen.append(worker)) as running:
        running.step()
        monkeypatch.setattr(WorkerPool, "_launched", killed)
        os.kill(running.process_ids[0], signal.SIGKILL)
        running.step()
        running.step()
        assert same_bits(undisturbed, running.x_Pn)
    assert seen == ["worker1", "worker1"]


def test_a_worker_that_ends_with_the_signal_to_stop_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    made, stop, seen = world(federation()), threading.Event(), list[str]()
    with engine(made, workers=2, stop=stop, replaced=lambda worker, reason: seen.append(worker)) as running:
        running.step()

        def signalled(objects: Any, timeout: float) -> Any:
            stop.set()
            os.kill(running.process_ids[0], signal.SIGKILL)
            of_worker = objects[len(objects) // 2]  # the pipes come first
            connection.wait([of_worker])
            return [of_worker]

        monkeypatch.setattr(pool, "wait", signalled)
        with pytest.raises(Stopped):
            running.step()
    assert seen == []


class Suicidal(nn.Module):
    """A network that kills the process that trains it."""

    def __init__(self) -> None:
        super().__init__()
        self.output = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and torch.is_grad_enabled():
            os.kill(os.getpid(), signal.SIGKILL)
        answer: Tensor = self.output(x)
        return answer


class Faulty(Suicidal):
    def forward(self, x: Tensor) -> Tensor:
        if self.training and torch.is_grad_enabled():
            raise RuntimeError("no such luck")
        answer: Tensor = self.output(x)
        return answer


@pytest.mark.slow
@pytest.mark.parametrize(("module", "words"), [("Suicidal", "killed 3 workers"), ("Faulty", "no such luck")])
def test_a_task_that_cannot_be_done_ends_the_run_with_its_own_words(
    module: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steppers, "mappable", lambda *_: False)
    made = world(federation(network=f"python:tests.sims.test_vector_engine:{module}"))
    with engine(made) as running, pytest.raises(EngineError, match=words):
        running.step()


@pytest.mark.parametrize("phase", ["training", "averaging"])
def test_a_stop_in_the_middle_goes_on_to_the_same_numbers(phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = world(federation(learning__optimizer="sgd,lr=0.1,momentum=0.9"))
    stop = threading.Event()
    with engine(made, stop=stop) as running:
        running.step()
        if phase == "training":
            stop.set()
        else:
            monkeypatch.setattr(running._rounds, "_prepare_mixing", lambda number: stop.set())
        with pytest.raises(Stopped):
            running.step()
        tensors, state = running.snapshot()
        tensors = {name: value.clone() for name, value in tensors.items()}
    assert state["trained"] == (phase == "averaging")
    with engine(made) as again:
        again.restore(tensors, state)
        while again.round < 3:
            again.step()
        assert same_bits(played(made), again.x_Pn)


@pytest.mark.parametrize("buffers", ["average", "local"])
def test_normalisation_is_averaged_or_stays_local_as_the_federation_says(buffers: str) -> None:
    network = "cnn:4,hidden=8,kernel=3,norm=batch"
    options = federation(network=network, learning__buffers=buffers, gossip={"protocol": "exact"})
    digits = load_dataset(options.simulation.dataset)
    images = dataclasses.replace(digits, x=digits.x.reshape(-1, 1, 8, 8), input_kind="image")
    with engine(build_world(options, images, 0), "full-averaging") as running:
        running.step()
        one, two = (running._job.layout.unflatten(x_n) for x_n in running.x_Pn[:2])
    norm = {"norm1.weight", "norm1.bias", "norm1.running_mean", "norm1.running_var"}
    differing = {name for name in one if not torch.equal(one[name], two[name])}
    assert differing == (norm if buffers == "local" else set())


def test_disagreement_is_the_largest_distance_from_the_mean_relative_to_its_norm() -> None:
    made = world(federation())
    with engine(made, workers=2) as running:
        running.step()
        (group,) = running._plan.groups
        index = torch.from_numpy(group.indices["peer1"])
        value = running.x_Pn[:, index].double()
        mean = value.mean(0)
        expected = float((value - mean).norm(dim=1).max() / mean.norm())
        assert running.disagreement() == {group.id: pytest.approx(expected, rel=1e-9)}
        assert expected > 1e-4
