"""The three bounds on weight: no honest history reaches one, whatever is lost; liars are stopped at them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpeer.gossip import transfers
from fedpeer.gossip.mass import Mass
from fedpeer.gossip.reductions import float64
from fedpeer.gossip.transfers import Incoming, NumberedTransfer, Outgoing
from fedpeer.gossip.weight_limits import WeightLimits
from tests.gossip.test_transfers import Forgetful


class Limited(Forgetful):
    """Peers that keep the bounds when they send weight, and enforce them on others when they receive it."""

    def __init__(self, seed: int, peers: int) -> None:
        super().__init__(seed, float64(), peers=peers, length=2)
        self.limits = WeightLimits.among(len(self.peers))
        self.refused: list[tuple[str, str, str]] = []
        #: By (peer, neighbor): weight that the peer got from the neighbor's earlier incarnations, beyond what it gave.
        self.before: dict[tuple[str, str], float] = {}

    def greet(self, peer: str, near: str) -> None:
        written_off = self.written_off[near]
        super().greet(peer, near)
        lost = self.written_off[near] - written_off
        self.before[near, peer] = max(self.before.get((near, peer), 0.0) - lost, 0.0)

    def reborn(self, peer: str, estimate_D: torch.Tensor) -> None:
        super().reborn(peer, estimate_D)
        self.before = {pair: weight for pair, weight in self.before.items() if pair[0] != peer}

    def _room(self, peer: str, near: str) -> float:
        before = self.before.get((near, peer), 0.0)
        return self.limits.room(self.out[peer, near], self.into[near, peer], before)

    def _give(self, peer: str) -> None:
        weight, near = float(self.held[peer].weight), self.near[peer]
        full = {q for q in near if self._room(peer, q) < weight / (len(near) + 1)}
        kept, self.near[peer] = near, [q for q in near if q not in full]
        if self.near[peer]:
            super()._give(peer)
        self.near[peer] = kept

    def _judged(self, source: str, me: str, share: NumberedTransfer) -> None:
        channel = self.into[source, me]
        if transfers.judge(channel, share) is transfers.TransferDecision.TAKE:
            held = float(self.held[me].weight)
            before = self.before.get((me, source), 0.0)
            found = self.limits.refusal(self.out[me, source], channel, held, share.weight, before)
            if found is not None:
                self.refused.append((found, source, me))
                return
        super()._judged(source, me, share)


HISTORIES = given(st.integers(0, 2**32), st.lists(st.integers(0, 80), max_size=4))


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@HISTORIES
def test_no_honest_history_comes_to_a_bound(seed: int, births: list[int]) -> None:
    """The faults are loss, repeats, delays, edges cut in one direction, and members that lose their memory."""
    honest_history(seed, births)


@pytest.mark.soak
@settings(max_examples=100, deadline=None)
@HISTORIES
def test_none_of_many_honest_histories_comes_to_a_bound(seed: int, births: list[int]) -> None:
    honest_history(seed, births)


def honest_history(seed: int, births: list[int]) -> None:
    simulator = Limited(seed, peers=3 + seed % 6)
    for round in range(80):
        if round % 20 == 0:
            simulator.storm()
        for peer in [simulator.peers[each % len(simulator.peers)] for each in births if each == round]:
            simulator.reborn(peer, simulator.held[peer].estimate_D)
            for near in simulator.near[peer]:
                simulator.greet(peer, near)
        simulator.step()
        assert not simulator.refused
    simulator.heal()
    simulator.settle()
    assert float(simulator.everything().weight) == pytest.approx(simulator.accounts(), abs=1e-9)


class Lying(Limited):
    """A simulator in which liars create weight out of nothing.

    They give each neighbor as much as the two ends of the channel allow, and keep all of their own.
    """

    liars: frozenset[str] = frozenset()

    def _give(self, peer: str) -> None:
        if peer not in self.liars:
            super()._give(peer)
            return
        for near in self.near[peer]:
            channel = self.out[peer, near]
            if transfers.resting(channel):
                continue
            gone = channel.weight_until(channel.made) - self.into[near, peer].taken_weight
            weight = min(self.limits.share, max(self.limits.net - gone, 0.25))
            mass = Mass.of(torch.ones(2), weight)
            _, channels, _ = transfers.give(mass, {near: channel}, 1.0, self.form, (self.now, 0), self.rng, whole=True)
            self.out[peer, near] = channels[near]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("members", "liars", "seed"),
    [
        (4, 1, 0),
        (8, 2, 0),
        *(pytest.param(*lies, seed, marks=pytest.mark.soak) for lies in ((4, 1), (8, 2)) for seed in (1, 2)),
    ],
)
def test_liars_load_others_up_to_the_bound_and_honest_peers_stay_right_among_themselves(
    members: int, liars: int, seed: int
) -> None:
    """Only liars are charged, for an offence that no other peer can induce.

    The weight among the honest peers is at most what they put in plus what the bounds let through.
    """
    simulator = Lying(seed, peers=members)
    simulator.liars = frozenset(simulator.peers[:liars])
    honest = simulator.peers[liars:]
    for round in range(300):
        if round % 50 == 0:
            simulator.storm(0.3)
        simulator.step()
        there = sum(float(simulator.held[peer].weight) for peer in honest)
        assert there <= len(honest) * (1 + liars * (members - 1)) * (1 + 1e-6)
    charged = {source for code, source, me in simulator.refused if code == "bad_weight" and me not in simulator.liars}
    assert charged == simulator.liars
    assert there > len(honest) * 1.5, "they did what they could"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (1, 2))])
def test_liars_that_are_born_again_and_again_load_others_no_more_than_others(seed: int) -> None:
    """Weight from all incarnations of a liar counts; without `before` it would grow with each new incarnation."""
    simulator = Lying(seed, peers=4)
    simulator.liars = frozenset(simulator.peers[:1])
    (liar,), honest = simulator.peers[:1], simulator.peers[1:]
    for round in range(150):
        if round % 10 == 9:
            simulator.reborn(liar, torch.ones(2))
            for near in simulator.near[liar]:
                simulator.greet(liar, near)
        simulator.step()
        there = sum(float(simulator.held[peer].weight) for peer in honest)
        assert there <= len(honest) * (1 + 3) * (1 + 1e-6)
        assert all(float(simulator.held[peer].weight) <= simulator.limits.held for peer in honest)
    assert {(code, source) for code, source, me in simulator.refused if me != liar} == {("bad_weight", liar)}


def test_the_bounds_of_a_group() -> None:
    limits = WeightLimits.among(4)
    assert (limits.share, limits.net, limits.held) == (4.0, 3.0, 10.0)
    gone, came = Outgoing(made=1, acked_weight=1.0), Incoming(taken=1, taken_weight=2.0)
    assert limits.refusal(gone, came, 2.0, 2.0) is None
    assert limits.refusal(gone, came, 2.0, 2.1) == "bad_weight"
    assert limits.refusal(gone, came, 9.0, 1.5) == "no_room"
    assert limits.refusal(replace(gone, acked_weight=9.0), came, 9.0, 1.5) is None, "it comes back"
    assert limits.refusal(gone, came, 2.0, 1.5, 0.6) == "bad_weight", "its earlier incarnations gave 0.6 more"
    assert limits.refusal(gone, came, 2.0, 1.5, 0.6, stated=False) == "no_room", "which it cannot know"
    assert limits.room(replace(gone, acked_weight=4.5), came, 0.4) == pytest.approx(0.1)
    assert limits.room(gone, came) == pytest.approx(4.0), "never heavier than a share may be"
    assert limits.room(replace(gone, acked_weight=4.5), came) == pytest.approx(0.5)


def test_where_edges_lead_one_way_only_what_is_held_counts() -> None:
    limits = WeightLimits.among(4, both_ways=False)
    assert limits.net == math.inf
    assert limits.refusal(Outgoing(), Incoming(taken=9, taken_weight=1e6), 1.0, 1.0) is None
    assert limits.refusal(Outgoing(), Incoming(taken=9, taken_weight=1e6), 7.5, 1.0) == "no_room"
    assert limits.refusal(Outgoing(made=1, acked_weight=2.0), Incoming(), 7.5, 1.0) is None, "it comes back"
