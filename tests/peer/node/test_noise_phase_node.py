"""A peer with a noise phase before each average: what it sends first and shows, how it leaves, what is rejected."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedpeer.algorithms.draws import Draws
from fedpeer.config.federation import Federation
from fedpeer.config.rules import PEERS
from fedpeer.gossip.mass import Mass
from fedpeer.gossip.reductions import FLOAT32
from fedpeer.learning.groups import averaging_among
from fedpeer.peer.node.rounds import RoundProgress, _shares
from fedpeer.peer.state.durable_state import DurableState, Rules
from fedpeer.peer.state.entries import (
    Acked,
    Entry,
    LocalTrained,
    MaskedShares,
    Met,
    Opened,
    RealShares,
    Reborn,
    Returned,
)
from fedpeer.peer.state.events import MessageReceived, OperatorCommand, Send
from fedpeer.peer.state.journal import durable_state_of, entry_bytes, snapshot_bytes
from fedpeer.peer.wire.messages import Value, ValueRequest
from fedpeer.sims.network.faults import Faults
from fedpeer.sims.network.links import LinkRules
from tests.config.refusals import refusals
from tests.faults.noise_phase import NoisePhaseCluster, correlation, noise_phase_world
from tests.reference import judges


def running(ticks: float, *, watched: bool = False, **settings: Any) -> NoisePhaseCluster:
    """Run a cluster; `watched`: masses are checked after each step, which takes most of the time."""
    cluster = NoisePhaseCluster(noise_phase_world(**settings), Faults(seed=1, links=LinkRules(delay=0.2)))
    if not watched:
        cluster.simulator.stepped = lambda peer, machine: None
    cluster.simulator.start()
    cluster.run(ticks)
    return cluster


@pytest.mark.slow
def test_what_is_sent_first_says_nothing_of_what_is_held() -> None:  # P17
    """Over more than 10^4 numbers, sent and held values are uncorrelated, and so are shares to different peers or in
    different rounds."""
    cluster = running(250.0, network="mlp:64+10+10")
    first = list(cluster.masked_shares())
    sent, held = (
        torch.cat(each) for each in zip(*((s.estimate_D, cluster.value_D(s.sender)) for s in first), strict=True)
    )
    assert len(sent) >= 10_000
    assert abs(correlation(sent, held)) < 0.05
    assert float(sent.std()) == pytest.approx(1.0, rel=0.05)
    assert float(sent.mean()) == pytest.approx(0.0, abs=0.05)
    assert (
        abs(correlation(torch.cat([s.estimate_D for s in first[:-1]]), torch.cat([s.estimate_D for s in first[1:]])))
        < 0.05
    )
    assert {s.to for s in first if s.sender == "peer1"} == {"peer2", "peer3", "peer4"}
    later = [s for s in cluster.told if s.exchange == 2]
    assert all(torch.allclose(s.estimate_D, cluster.truth[cluster.groups[0]], atol=1e-5) for s in later)


@pytest.mark.slow
def test_an_estimate_is_shown_when_its_average_is_over() -> None:
    """A peer that asks in the middle gets the result of the previous average, and nothing before the first one."""
    cluster = running(0.0)
    (group,) = cluster.groups
    seen: list[tuple[int, Tensor, list[Value]]] = []
    while len(seen) < 40:
        cluster.run(cluster.simulator.now + 3.0)
        node = cluster.nodes().get("peer2")
        if node is None or node.phase != "learning" or not node.state.others["peer1"].met:
            continue
        incarnation = node.durable.met["peer1"]
        effects = node.step(MessageReceived("peer1", incarnation, node.durable.incarnation, ValueRequest(group=group)))
        masked_to = [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, Value)]
        seen.append((node.durable.round, node.durable.estimate_D(group), masked_to))
    assert all(not masked_to for round, _, masked_to in seen if round == 1)
    answers = [(estimate_D, each.value_D) for _, estimate_D, masked_to in seen for each in masked_to]
    truth_D = cluster.truth[group]
    assert all(torch.allclose(value_D.double(), truth_D, atol=1e-5) for _, value_D in answers)
    assert any(not torch.allclose(estimate_D, truth_D, atol=0.1) for estimate_D, _ in answers), "some in the middle"


@pytest.mark.slow
def test_who_leaves_tells_noise_before_it_hands_over_what_it_holds() -> None:
    cluster = running(150.0, watched=True)
    simulator, (group,) = cluster.simulator, cluster.groups
    cluster.run(simulator.now + 200.0, lambda: cluster.node("peer3").rounds.training)
    simulator.feed("peer3", OperatorCommand("leave"))
    before = len(cluster.told)
    assert cluster.run(simulator.now + 300.0, lambda: "peer3" in simulator.stopped)
    handed = [s for s in cluster.told[before:] if s.sender == "peer3"]
    first, last = handed[:3], handed[-3:]
    assert len(handed) >= 6
    value_D = cluster.value_D("peer3")
    held_D = cluster.truth[group]  # before it trained; training leaves it as it is
    for each in first:
        assert abs(correlation(each.estimate_D, held_D)) < 0.5
        assert not torch.allclose(each.estimate_D, held_D, atol=0.5)
    assert not any(torch.allclose(each.estimate_D, value_D, atol=0.1) for each in last)
    cluster.judge()
    assert cluster.durable_states()["peer3"].left


@pytest.fixture(scope="module")
def begun() -> NoisePhaseCluster:
    """Return a cluster in its first round or the next; no test lets it go on."""
    return running(60.0)


@pytest.mark.parametrize(
    ("exchange", "masked_to", "cut", "masked_shares"),
    [
        pytest.param(0, (), (), True, id="at first"),
        pytest.param(1, ("peer2", "peer3"), (), False, id="as many as asked"),
        pytest.param(1, ("peer2",), (), True, id="too few"),
        pytest.param(1, (), (), True, id="nobody"),
        pytest.param(1, ("peer2",), ("peer3", "peer4"), False, id="all whom it can reach"),
        pytest.param(1, (), ("peer3", "peer4"), True, id="nobody of those"),
        pytest.param(2, ("peer2",), ("peer4",), True, id="also later"),
    ],
)
def test_true_shares_wait_until_enough_were_told(
    begun: NoisePhaseCluster, exchange: int, masked_to: tuple[str, ...], cut: tuple[str, ...], masked_shares: bool
) -> None:
    """This holds whatever kept a peer from sending noise in the exchanges that are meant for it."""
    state, (group,) = begun.node("peer1").state, begun.groups
    holding = state.durable.groups[group]
    free = {peer: replace(channel, open=()) for peer, channel in holding.out.items()}
    at = (state.durable.round, exchange)
    state.durable.groups[group] = replace(holding, at=at, masked_to=frozenset(masked_to), out=free)
    rounds = RoundProgress()
    rounds.groups[group].silent = dict.fromkeys(cut, state.now)
    rounds.groups[group].unheard = dict.fromkeys(cut, state.now + 1)
    shares = _shares(state, rounds, group, exchange, 0.25)
    assert isinstance(shares, MaskedShares) is masked_shares


@pytest.mark.slow
def test_honest_noise_is_plausible_and_what_nobody_makes_up_is_not() -> None:
    """This also holds at peers that do not train."""
    cluster = running(250.0)
    assert len({s.round for s in cluster.masked_shares()}) >= 4
    assert not {"implausible", "out_of_reach"} & set(judges.refused(cluster.simulator.rows))
    durable = cluster.node("peer1").durable
    (reach,) = (durable.reach(group) for group in durable.groups)
    assert reach.refusal(Mass.of(torch.full((85,), 1e3)), Mass.of(torch.ones(85)), noise=1.0)


def durable() -> DurableState:
    return DurableState.blank(
        Rules("peer1", Draws(0), FLOAT32, masked=True), {"all": torch.arange(50)}, torch.ones(50), 0
    )


def test_the_same_entry_makes_the_same_shares_and_another_key_others() -> None:
    options: dict[str, Any] = {
        "group": "all",
        "round": 1,
        "exchange": 0,
        "to": ("b", "c"),
        "expect": (),
    }
    made = [
        durable().apply(Opened(**options, shares=MaskedShares(0.25, key, 0.5)))
        for key in (b"k" * 32, b"k" * 32, b"l" * 32)
    ]
    one, again, other = ({peer: share.payload for peer, share in each.items()} for each in made)
    assert torch.equal(one["b"], again["b"])
    assert abs(correlation(one["b"], one["c"])) < 0.5
    assert abs(correlation(one["b"], other["b"])) < 0.5


def test_who_was_told_is_on_disk_and_forgotten_with_the_next_average() -> None:
    before = durable()
    options: dict[str, Any] = {"group": "all", "to": ("b",), "expect": ()}
    entries = [
        Opened(**options, round=1, exchange=0, shares=MaskedShares(0.25, b"k", 1.0)),
        Opened(**options, round=1, exchange=1, shares=RealShares(0.25)),
    ]
    kept = durable()
    for entry in entries:
        kept.apply(entry)
    assert kept.groups["all"].masked_to == {"b"}
    for snapshot, journal in ((snapshot_bytes(kept, {}), []), (snapshot_bytes(before, {}), map(entry_bytes, entries))):
        again = durable_state_of(snapshot, journal, kept.rules, kept.index, {})
        assert snapshot_bytes(again, {}) == snapshot_bytes(kept, {})
    kept.apply(Acked(group="all", peer="b", taken=2))
    kept.apply(Opened(**options, round=2, exchange=0, shares=RealShares(0.25)))
    assert not kept.groups["all"].masked_to


@pytest.mark.parametrize(
    "gone",
    [Met(peer="b", incarnation=2), Returned(group="all", peer="b")],
    ids=["another incarnation", "it has left"],
)
def test_whose_noise_came_back_was_told_nothing(gone: Entry) -> None:
    """Noise that was sent to such a peer is held again, and hides nothing any more."""
    one = durable()
    options: dict[str, Any] = {"group": "all", "round": 1, "exchange": 0, "expect": ()}
    one.apply(Opened(**options, to=("b", "c"), shares=MaskedShares(0.25, b"k", 1.0)))
    one.apply(gone)
    assert one.groups["all"].masked_to == {"c"}


@pytest.mark.parametrize(("trained", "comes_back_with"), [(True, 3.0), (False, 1.0)])
def test_who_lost_memory_comes_back_with_its_model_and_not_with_noise(trained: bool, comes_back_with: float) -> None:
    one = durable()
    if trained:
        one.apply(LocalTrained(round=1, x_n=torch.full((50,), 3.0), s_k=torch.zeros(0)))
        options: dict[str, Any] = {
            "group": "all",
            "round": 1,
            "exchange": 0,
            "to": ("b",),
            "expect": (),
        }
        one.apply(Opened(**options, shares=MaskedShares(0.25, b"k", 1.0)))
    one.apply(Reborn(incarnation=2))
    assert torch.equal(one.estimate_D("all"), torch.full((50,), comes_back_with, dtype=torch.float64))
    assert not one.groups["all"].masked_to


@pytest.mark.parametrize(
    ("gossip", "learning", "words"),
    [
        ({"privacy": "noise", "protocol": "push-pull"}, {}, "push-sum or exact"),
        ({"privacy": "noise", "protocol": "coordinator"}, {}, "push-sum or exact"),
        ({"privacy": "noise", "wire": "top-k:0.1"}, {}, "another gossip.wire"),
        ({"privacy": "noise"}, {"mode": "asynchronous"}, "mode: synchronous"),
        ({"privacy": "noise,pushes=0"}, {}, "1 or more neighbors"),
        ({"privacy": "noise,scale=0"}, {}, "above 0"),
        ({"privacy": "noises"}, {}, 'did you mean "noise"'),
    ],
    ids=["push-pull", "coordinator", "top-k", "asynchronous", "pushes", "scale", "name"],
)
def test_what_makes_no_sense_is_said(gossip: dict[str, str], learning: dict[str, str], words: str) -> None:
    data = {"gossip": gossip, "learning": learning}
    found = refusals(data)
    assert [problem.path for problem in found] == [("gossip", "privacy")]
    assert words in found[0].text


def test_an_algorithm_with_a_server_has_nobody_to_tell_noise() -> None:
    noisy = {"gossip": {"privacy": "noise"}}
    assert [problem.path for problem in refusals({"learning": {"algorithm": "fedavg"}} | noisy)] == [
        ("gossip", "privacy")
    ]
    assert not refusals(noisy, PEERS)


@pytest.mark.parametrize(
    ("topology", "pushes", "masked"),
    [
        ("ring", 1, 1),
        ("ring", 9, 1),
        ("star", 2, 1),
        ("exponential", 9, 1),
        ("one-peer-exponential", 1, 1),
        ("one-peer-exponential", 3, 3),
        ("one-peer-exponential", 9, 3),
    ],
)
def test_the_phase_is_as_long_as_it_takes_to_tell_so_many(topology: str, pushes: int, masked: int) -> None:
    """Eight peers have three neighbors each along the exponential graph, all at once or one at a time."""
    members = tuple(f"peer{number}" for number in range(8))
    finer, noisy = (
        averaging_among(members, "all", Federation.model_validate({"gossip": options}).gossip, 0)
        for options in (
            {"topology": topology, "tolerance": 1e-5},
            {"topology": topology, "tolerance": 1e-4, "privacy": f"noise,pushes={pushes},scale=9"},
        )
    )
    assert (finer.masked, noisy.masked) == (0, masked)
    assert noisy.exchanges - masked == finer.exchanges, "of ten times the spread a tenth may be left"
