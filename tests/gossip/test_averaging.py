"""A whole averaging: run message by message it equals the matrix, it reaches the true mean, traffic is what is sent."""

from __future__ import annotations

import random
from functools import partial
from typing import Any, cast

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import issparse
from torch import Tensor

from fedpeer.gossip.averaging import MESSAGE_HEAD_BYTES, SHARE_EXTRA_BYTES, Averaging, AveragingProtocol, traffic, turn
from fedpeer.gossip.mass import Mass
from fedpeer.topology.graphs import DRAWN_ANEW, GRAPHS
from fedpeer.topology.mixing import Protocol, adjacency
from fedpeer.topology.overlay import Overlay, overlay
from tests.gossip.test_mass import WIRES, values
from tests.reference.exact import disagreement, weighted_mean
from tests.reference.synchronous import Sent, begin, synchronous_round, take

PROTOCOLS: list[Protocol] = ["push-sum", "push-pull", "exact"]
NAMES = [name for name in GRAPHS if name != "edges"]


def drawn(round: int, exchange: int, seed: int = 0) -> np.random.Generator:
    return np.random.default_rng([seed, round, exchange])


def policy(
    name: str,
    count: int,
    protocol: AveragingProtocol,
    *,
    tolerance: float | None = None,
    exchanges: int | None = None,
    seed: int = 0,
) -> Averaging:
    members = [f"peer{i + 1}" for i in range(count)]
    graph = overlay(GRAPHS[name], members, np.random.default_rng(seed))
    return Averaging.of(graph, protocol, tolerance=tolerance, exchanges=exchanges, draws=partial(drawn, seed=seed))


def dense(of: Averaging, round: int) -> Tensor:
    matrix: Any = of.matrix(round)
    return torch.from_numpy(matrix.toarray() if issparse(matrix) else matrix)


def play(
    of: Averaging, round: int, mass_PD: Mass, order: random.Random, wire: torch.dtype = torch.float64
) -> tuple[Mass, list[int]]:
    """Deliver all messages in a random order; return (masses, messages sent by each peer)."""
    names = of.overlay.members
    members, post, count = {}, list[tuple[str, Sent]](), dict.fromkeys(names, 0)
    for i, peer in enumerate(names):
        members[peer], sent = begin(of, peer, round, Mass(mass_PD.value_D[i], mass_PD.weight[i]), wire=wire)
        post += [(peer, each) for each in sent]
        count[peer] += len(sent)
    while post:
        sender, message = post.pop(order.randrange(len(post)))
        assert torch.equal(message.mass.value_D, message.mass.value_D.to(wire).to(torch.float64)), "as it travels"
        members[message.to], sent = take(members[message.to], sender, message.exchange, message.mass)
        post += [(message.to, each) for each in sent]
        count[message.to] += len(sent)
    assert all(member.done and not member.arrived for member in members.values())
    after = [members[peer].held for peer in names]
    return Mass(torch.stack([m.value_D for m in after]), torch.stack([m.weight for m in after])), list(count.values())


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    protocol=st.sampled_from(PROTOCOLS),
    count=st.integers(1, 12),
    exchanges=st.integers(1, 6),
    round=st.integers(0, 5),
    seed=st.integers(0, 9999),
)
def test_message_by_message_is_the_matrix_in_whatever_order(
    name: str, protocol: Protocol, count: int, exchanges: int, round: int, seed: int
) -> None:
    of = policy(name, count, protocol, exchanges=exchanges, seed=seed)
    weight_P = torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + 0.5
    mass_PD = Mass.of(values(count, 4, seed), weight_P)
    played, sent = play(of, round, mass_PD, random.Random(seed))
    expected = synchronous_round(mass_PD, dense(of, round))
    torch.testing.assert_close(played.value_D, expected.value_D, atol=1e-12, rtol=0)
    torch.testing.assert_close(played.weight, expected.weight, atol=1e-12, rtol=0)
    again, _ = play(of, round, mass_PD, random.Random(seed + 1))
    assert torch.equal(again.value_D, played.value_D), "the same bits in another order of arrival"
    assert sent == [messages for messages, _ in traffic(of, 4, round)]


@pytest.mark.slow
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("name", ["k-regular", "star", "exponential", "one-peer-exponential"])
def test_rounding_for_the_wire_loses_no_mass(name: str, wire: torch.dtype) -> None:
    of = policy(name, 11, "push-sum", exchanges=30)
    mass_PD = Mass.of(values(11, 200, 7))
    played, _ = play(of, 0, mass_PD, random.Random(0), wire)
    torch.testing.assert_close(played.value_D.sum(0), mass_PD.value_D.sum(0), atol=1e-12, rtol=0)
    torch.testing.assert_close(played.weight.sum(), mass_PD.weight.sum(), atol=1e-13, rtol=0)
    unrounded = synchronous_round(mass_PD, dense(of, 0))
    largest = float((played.value_D - unrounded.value_D).abs().max())
    assert largest <= 30 * torch.finfo(wire).eps * float(mass_PD.value_D.abs().max())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_it_reaches_the_true_weighted_mean_within_the_tolerance(name: str, protocol: Protocol) -> None:
    """With weights of 1 the prediction holds literally; where there are draws it holds in root mean square, hence the
    factor 3."""
    of = policy(name, 10, protocol, tolerance=1e-3)
    mass_PD = Mass.of(values(10, 30, 11))
    left_PD = synchronous_round(mass_PD, dense(of, 0)).estimate_D - mass_PD.estimate_D.mean(0)
    begun_PD = mass_PD.estimate_D - mass_PD.estimate_D.mean(0)
    allowed = 1e-3 * (3 if protocol == "push-pull" or name in DRAWN_ANEW else 1)
    assert float((left_PD.norm(dim=0) / begun_PD.norm(dim=0)).max()) <= allowed


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_samples_as_weights_give_the_weighted_mean_round_after_round(protocol: Protocol) -> None:
    of = policy("small-world", 9, protocol, tolerance=1e-6)
    mass_PD = Mass.of(values(9, 5, 12), torch.arange(1, 10, dtype=torch.float64) / 5)
    truth_D = weighted_mean(mass_PD)
    for round in range(3):
        mass_PD = synchronous_round(mass_PD, dense(of, round))
        torch.testing.assert_close(weighted_mean(mass_PD), truth_D, atol=1e-12, rtol=0)
    torch.testing.assert_close(mass_PD.estimate_D, truth_D.expand(9, 5), atol=1e-5, rtol=0)
    assert disagreement(mass_PD.estimate_D) < 1e-5


def test_averaging_what_arrives_agrees_on_something_else() -> None:
    """Row-stochastic averaging (the plain mean over a peer and its in-neighbors) is biased where degrees differ."""
    of = policy("star", 8, "push-sum", exchanges=1)
    adjacent = adjacency(of.overlay.phases[0]).toarray() + np.eye(8)
    naive_PP = torch.from_numpy(np.linalg.matrix_power(adjacent / adjacent.sum(1, keepdims=True), 500))
    x_PD = values(8, 3, 13)
    agreed_PD, mean_D = naive_PP @ x_PD, x_PD.mean(0)
    assert disagreement(agreed_PD) < 1e-12
    assert float((agreed_PD[0] - mean_D).norm()) > 0.1
    exact = policy("star", 8, "push-sum", tolerance=1e-10)
    torch.testing.assert_close(
        synchronous_round(Mass.of(x_PD), dense(exact, 0)).estimate_D[0], mean_D, atol=1e-8, rtol=0
    )


def test_a_directed_graph_of_unequal_degrees_reaches_the_true_mean_too() -> None:
    """No builder makes such a graph: 2 sends to three and receives from two. Weights other than 1 correct the bias."""
    members = tuple(f"peer{i + 1}" for i in range(5))
    graph = nx.DiGraph([(0, 1), (0, 2), (1, 2), (2, 3), (2, 0), (2, 4), (3, 4), (4, 0)])
    of = Averaging.of(Overlay(members, (graph,)), "push-sum", tolerance=1e-8, draws=drawn)
    mass_PD = Mass.of(values(5, 4, 30))
    played, sent = play(of, 1, mass_PD, random.Random(0))
    assert sent == [messages for messages, _ in traffic(of, 4)] == [of.exchanges * d for d in (2, 1, 3, 1, 1)]
    torch.testing.assert_close(played.estimate_D, mass_PD.value_D.mean(0).expand(5, 4), atol=1e-7, rtol=0)
    assert float(played.weight.max() - played.weight.min()) > 0.1


def test_many_groups_at_once_are_each_alone() -> None:
    """Two groups with common members share nothing: their messages may be mixed in any order."""
    one, two = policy("ring", 5, "push-sum", exchanges=4), policy("k-regular", 7, "push-pull", exchanges=6)
    starts = {"one": Mass.of(values(5, 3, 20)), "two": Mass.of(values(7, 4, 21))}
    states, post, order = {}, list[tuple[str, str, Sent]](), random.Random(3)
    for group, of in (("one", one), ("two", two)):
        for i, peer in enumerate(of.overlay.members):
            held = Mass(starts[group].value_D[i], starts[group].weight[i])
            states[group, peer], sent = begin(of, peer, 2, held)
            post += [(group, peer, each) for each in sent]
    while post:
        group, sender, message = post.pop(order.randrange(len(post)))
        states[group, message.to], sent = take(states[group, message.to], sender, message.exchange, message.mass)
        post += [(group, message.to, each) for each in sent]
    for group, of in (("one", one), ("two", two)):
        alone, _ = play(of, 2, starts[group], random.Random(9))
        for i, peer in enumerate(of.overlay.members):
            assert torch.equal(states[group, peer].held.value_D, alone.value_D[i])


def test_turns_on_known_graphs() -> None:
    assert turn(policy("ring", 4, "push-sum", exchanges=1), "peer1", 0, 0).to == ("peer2", "peer4")
    hop = policy("one-peer-exponential", 8, "push-sum", exchanges=2)
    given = [turn(hop, "peer1", round, exchange).to for round in range(2) for exchange in range(2)]
    assert given == [("peer2",), ("peer3",), ("peer5",), ("peer2",)], "the phases go on over the rounds"
    assert turn(hop, "peer1", 0, 1).expect == ("peer7",)
    everyone = turn(policy("ring", 4, "exact", exchanges=9), "peer2", 0, 0)
    assert everyone.to == everyone.expect == ("peer1", "peer3", "peer4")
    assert everyone.fraction == 0.25
    meeting = policy("k-regular", 8, "push-pull", exchanges=3)
    for exchange in range(3):
        for peer in meeting.overlay.members:
            met = turn(meeting, peer, 1, exchange)
            assert met.to == met.expect
            assert all(turn(meeting, other, 1, exchange).to == (peer,) for other in met.to)


def test_how_many_exchanges() -> None:
    assert policy("ring", 1, "push-sum", tolerance=1e-4).exchanges == 0
    assert policy("ring", 6, "exact", exchanges=7).exchanges == 1
    assert policy("ring", 6, "push-sum", exchanges=7).exchanges == 7
    assert policy("one-peer-exponential", 8, "push-sum", tolerance=1e-4).exchanges == 3
    assert dense(policy("ring", 1, "push-sum", tolerance=1e-4), 3).tolist() == [[1.0]]


def test_a_matrix_is_computed_once_where_it_comes_again_and_anew_where_not() -> None:
    still = policy("k-regular", 8, "push-sum", exchanges=2)
    assert still.matrix(0) is still.matrix(5)
    moving = policy("one-peer-exponential", 8, "push-sum", exchanges=2)
    assert moving.matrix(0) is moving.matrix(3)
    assert all(one is other for one, other in zip(moving.matrices(0), moving.matrices(3), strict=True))
    first, last = moving.matrices(1)  # the third and the first of three phases
    assert first is not last
    assert last is moving.matrices(0)[0]
    assert not np.array_equal(cast(np.ndarray, moving.matrix(0)), cast(np.ndarray, moving.matrix(1)))
    for name in DRAWN_ANEW:
        drawn_anew = policy(name, 8, "push-sum", exchanges=1)
        graphs = [drawn_anew.matrices(round)[0].toarray().tolist() for round in range(4)]
        assert any(graph != graphs[0] for graph in graphs), name
    meeting = policy("k-regular", 8, "push-pull", exchanges=2)
    assert not np.array_equal(cast(np.ndarray, meeting.matrix(0)), cast(np.ndarray, meeting.matrix(1)))


def test_traffic_in_closed_form() -> None:
    size = 1000 * 4 + SHARE_EXTRA_BYTES
    assert traffic(policy("k-regular", 16, "push-sum", exchanges=5), 1000) == [(20, 20 * size)] * 16
    assert traffic(policy("star", 4, "push-sum", exchanges=2), 1000) == [(6, 6 * size)] + [(2, 2 * size)] * 3
    assert traffic(policy("ring", 5, "exact", exchanges=1), 1000) == [(4, 4 * size)] * 5
    assert traffic(policy("one-peer-exponential", 8, "push-sum", tolerance=0.1), 1000) == [(3, 3 * size)] * 8
    assert traffic(policy("ring", 1, "push-sum", tolerance=0.1), 1000) == [(0, 0)]
    pairs = traffic(policy("complete", 6, "push-pull", exchanges=4), 1000)
    assert pairs == [(4, 4 * size)] * 6, "in a complete graph everyone finds a partner"


def test_a_share_is_taken_once_and_only_while_it_is_wanted() -> None:
    of = policy("ring", 3, "push-sum", exchanges=1)
    member, _ = begin(of, "peer1", 0, Mass.of(torch.ones(2)))
    share = Mass.of(torch.ones(2), 0.5)
    member, _ = take(member, "peer2", 0, share)
    assert member.missing == ("peer3",)
    with pytest.raises(AssertionError, match="once"):
        take(member, "peer2", 0, share)
    with pytest.raises(AssertionError, match="not over"):
        take(member, "peer3", 1, share)


def test_a_coordinator_is_the_exact_mean_with_two_messages_for_each_other_member() -> None:
    ways: tuple[AveragingProtocol, AveragingProtocol] = ("exact", "coordinator")
    exact, led = (policy("small-world", 9, way, exchanges=4) for way in ways)
    assert exact.exact
    assert led.exact
    assert led.exchanges == 1
    assert torch.equal(dense(led, 3), dense(exact, 3))
    sent = dict(zip(led.overlay.members, traffic(led, 10), strict=True))
    assert led.coordinator == min(sent)
    size = 10 * 4 + MESSAGE_HEAD_BYTES
    assert sent.pop(min(sent)) == (8, 8 * size)
    assert set(sent.values()) == {(1, size)}
    assert sum(count for count, _ in traffic(exact, 10)) == 9 * 8
    with pytest.raises(AssertionError, match="not shares"):
        turn(led, led.overlay.members[0], 0, 0)
