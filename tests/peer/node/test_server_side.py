"""A peer's work under an algorithm with a server: which clients a round has, which updates count, and what it
requires of a server that another peer made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from fedpeer.algorithms.byzantine import RobustError
from fedpeer.algorithms.leaves import leaves_of, rebuilt
from fedpeer.config.choice import parse_choice
from fedpeer.data.dataset import Dataset
from fedpeer.data.own.code import imported
from fedpeer.learning.local_task import LocalTask
from fedpeer.peer.node.server_side import ServerSide
from fedpeer.peer.node.trainer import LocalTrainer
from fedpeer.peer.state.events import AggregateUpdates, ClientTrained, TrainClient, UpdatesAggregated
from fedpeer.peer.wire.leaf_bytes import content_of, split_leaves
from fedpeer.peer.wire.rejections import REJECTIONS
from fedpeer.rejection import Rejection
from fedpeer.sims.peers import local_tasks
from fedpeer.sims.world import World, build_world
from tests.sims import worlds

THREE = ("peer1", "peer2", "peer3")
SIX = tuple(f"peer{number}" for number in range(1, 7))


@cache
def world(**learning: object) -> World:
    settings = {f"learning__{name}": value for name, value in learning.items()}
    return worlds.world(worlds.federation(network="mlp:64+2+10", simulation__peers=6, **settings))


def served(local_task: LocalTask, method: str, peers: Sequence[str]) -> ServerSide:
    side = LocalTrainer(local_task, parse_choice(method), imported, peers).server_side
    assert side is not None
    return side


def side_of(method: str, peer: str = "peer1", **learning: object) -> ServerSide:
    made = world(algorithm=method, **learning)
    return served(local_tasks(made)[peer], method, made.peers)


@cache
def tasks() -> World:
    """Return a world of six linear models for two classes."""
    x, y = load_digits(return_X_y=True)
    options = worlds.federation(network="linear", learning__loss="binary", simulation__split="blocks:40,test=50")
    data = Dataset(
        name="digits",
        x=x.astype(np.float32) / 16,
        y=(y < 5).astype(np.int64),
        task="classification",
        input_kind="features",
        classes=("0", "1"),
    )
    return build_world(options, data, 0)


def task(method: str) -> ServerSide:
    """Return the `ServerSide` of peer3."""
    return served(local_tasks(tasks())["peer3"], method, tasks().peers)


def update_of(one: ServerSide, clients: tuple[str, ...] = SIX) -> bytes:
    done = one.work(TrainClient(1, one.spec.client, one.spec.server, clients))
    assert isinstance(done, ClientTrained)
    assert done.fault is None
    return done.update


def closed(one: ServerSide, updates: dict[str, bytes], clients: tuple[str, ...] = SIX) -> UpdatesAggregated:
    done = one.work(AggregateUpdates(4, 1, one.spec.server, {"peer6": 0}, updates, clients))
    assert isinstance(done, UpdatesAggregated)
    return done


def server_of(one: ServerSide, done: UpdatesAggregated) -> tuple[dict[str, int], dict[str, Tensor]]:
    """Return when each client's update counted, and the server's leaves."""
    assert done.content is not None
    found = split_leaves(done.content, one.spec.server_bytes)
    assert found is not None
    return found[0], one.server.leaves(found[1])


def test_a_round_is_closed_for_the_clients_that_it_has() -> None:
    """SCAFFOLD: c moves by |S|/N of the mean change, so half as far among twice as many clients."""
    one = side_of("scaffold")
    updates = {"peer1": update_of(one)}
    few, many = (server_of(one, closed(one, updates, clients))[1] for clients in (THREE, SIX))
    start = one.server.leaves(one.spec.server)
    for name in start:
        if name.startswith("control"):
            torch.testing.assert_close(few[name] - start[name], 2 * (many[name] - start[name]))
            assert (few[name] != start[name]).any()
        else:
            assert torch.equal(few[name], many[name])
    assert any(name.startswith("control") for name in start)


def test_who_takes_part_is_drawn_among_the_clients_of_the_round() -> None:
    one = side_of("fedavg", participation=0.5)
    assert {len(one.spec.takes_part(round, SIX)) for round in range(1, 9)} == {3}
    drawn = {peer for round in range(1, 30) for peer in one.spec.takes_part(round, THREE)}
    assert drawn == set(THREE)


def test_a_rule_that_is_left_with_too_few_clients_goes_by_the_median() -> None:
    one = side_of("fedavg", aggregation="trimmed-mean,liars=1")
    update = one.update.read(update_of(one))
    sent = {
        peer: one.update.written(
            rebuilt(update, {**leaves_of(update), "model_n": torch.full_like(update.model_n, value)})
        )
        for peer, value in zip(THREE, (1.0, 2.0, 9.0), strict=True)
    }
    _, server = server_of(one, closed(one, sent, THREE))
    assert (server["model_n"] == 2).all()


@pytest.mark.slow
def test_an_update_that_moved_too_far_is_left_out_by_name() -> None:
    one = side_of("fedavg", farthest=10)
    start, update = one.server.read(one.spec.server), one.update.read(update_of(one))
    change_n = update.model_n - start.model_n

    def moved(times: float) -> bytes:
        return one.update.written(rebuilt(update, {**leaves_of(update), "model_n": start.model_n + times * change_n}))

    sent = {"peer1": moved(1.0), "peer2": moved(-1.5), "peer3": moved(20.0)}
    done = closed(one, sent)
    assert {peer: why.code for peer, why in done.out.items()} == {"peer3": "too_far"}
    assert "R16" in REJECTIONS["too_far"].ids
    counted, server = server_of(one, done)
    assert counted == {"peer1": 1, "peer2": 1, "peer6": 0}, "it did not count"
    torch.testing.assert_close(server["model_n"], start.model_n - 0.25 * change_n)
    assert not closed(side_of("fedavg"), sent).out, "only where it is asked for"


@pytest.mark.slow
def test_the_vector_engine_leaves_out_the_same() -> None:
    """The engine also leaves out the peer whose update moved too far; the mean is then that of the other updates."""
    made = world(algorithm="fedavg", farthest=1.05)
    sides = {peer: served(each, "fedavg", made.peers) for peer, each in local_tasks(made).items()}
    done = closed(sides["peer1"], {peer: update_of(each) for peer, each in sides.items()})
    assert done.out
    refused: dict[str, str] = {}
    with worlds.engine(made, "fedavg", refused=refused.__setitem__) as running:
        running.step()
        assert running.server_n is not None
        torch.testing.assert_close(running.server_n, server_of(sides["peer1"], done)[1]["model_n"])
    assert refused.keys() == done.out.keys()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["mocha", "minibatch-sgd"])
def test_an_update_of_a_task_says_whose_it_is(method: str) -> None:
    one = task(method)
    assert one.spec.fixed, "V has a row for each task"
    assert one.spec.number(update_of(one)) == 2
    assert one.spec.number(update_of(one, ("peer0", *SIX))) == 3, "among the clients of the round"
    assert not side_of("fedavg").spec.fixed
    assert side_of("fedavg").spec.number(update_of(side_of("fedavg"))) is None


def skewed(matrix_TT: Tensor) -> Tensor:
    matrix_TT[0, 1] += 1e-3 * matrix_TT.abs().max()
    return matrix_TT


def indefinite(matrix_TT: Tensor) -> Tensor:
    matrix_TT[0, 1] = matrix_TT[1, 0] = 2 * matrix_TT[0, 0]
    return matrix_TT


def negative(matrix_TT: Tensor) -> Tensor:
    matrix_TT[0, 0] *= -1
    return matrix_TT


@pytest.mark.parametrize("method", ["mocha", "minibatch-sgd"])
@pytest.mark.parametrize(
    "bad", [skewed, indefinite, negative], ids=["R15-skewed", "R15-indefinite", "R15-negative-diagonal"]
)
def test_a_task_matrix_that_cannot_be_is_refused(method: str, bad: Callable[[Tensor], Tensor]) -> None:
    one = task(method)
    good = one.server.leaves(one.spec.server)

    def found(matrix_TT: Tensor) -> Rejection | None:
        server = rebuilt(one.server.template, {**good, "coupling.matrix_TT": matrix_TT})
        return one.spec.model_fault(content_of({}, one.server.written(server)))

    matrix_TT = good["coupling.matrix_TT"]
    assert found(matrix_TT) is None
    wrong = found(bad(matrix_TT.clone()))
    assert wrong is not None
    assert wrong.code == "bad_task_matrix"
    assert "R15" in REJECTIONS["bad_task_matrix"].ids


@pytest.mark.parametrize(
    ("method", "leaf", "factor"),
    [
        ("virtual", "posterior.xi_D", -1.0),
        ("virtual", "posterior.xi_D", 0.0),
        ("virtual", "taken_D", 1.5),
        ("pfedbayes", "sigma_n", -1.0),
        ("fedadam", "second_n", -1.0),
    ],
    ids=["R14-negative", "R14-zero", "R14-part", "R14-deviation", "R14-moment"],
)
def test_a_server_that_is_no_distribution_is_refused(method: str, leaf: str, factor: float) -> None:
    one = side_of(method)
    good = one.server.leaves(one.spec.server)

    def found(values_n: Tensor) -> Rejection | None:
        server = rebuilt(one.server.template, {**good, leaf: values_n})
        return one.spec.model_fault(content_of({}, one.server.written(server)))

    assert found(good[leaf]) is None
    wrong = found(factor * good[leaf])
    assert wrong is not None
    assert wrong.code == "bad_precision"
    assert "R14" in REJECTIONS["bad_precision"].ids


def test_a_peer_starts_again_after_more_have_left_than_the_aggregation_rule_bears() -> None:
    """Running peers go on as in rounds in which peers are absent, so a start does, too."""
    made = world(algorithm="fedavg", aggregation="krum,liars=1")
    task, method, left = local_tasks(made)["peer1"], parse_choice("fedavg"), made.peers[:4]
    with pytest.raises(RobustError, match="needs 2"):
        LocalTrainer(task, method, imported, left)
    side = LocalTrainer(task, method, imported, left, begun=True).server_side
    assert side is not None
    assert side.spec.takes_part(1, left) == left
