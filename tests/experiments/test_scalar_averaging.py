"""Large-scale simulation: exchanges equal the products of the matrices, channels equal those of `transfers.py`, and
nothing is lost.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpeer.experiments.scalar_gossip.averaging import ScalarGossip
from fedpeer.gossip import transfers
from fedpeer.gossip.averaging import Averaging
from fedpeer.gossip.mass import Mass
from fedpeer.gossip.reductions import FORMS
from fedpeer.gossip.transfers import Incoming, Outgoing
from fedpeer.topology.graphs import DRAWN_ANEW, GRAPHS
from fedpeer.topology.overlay import overlay
from fedpeer.topology.wide import WideGraph, wide

NAMES = [name for name in GRAPHS if name not in ("edges", *DRAWN_ANEW)]
Protocol = Literal["push-sum", "push-pull"]


def made(name: str, members: int, **given: Any) -> WideGraph:
    return wide(name, members, given, np.random.default_rng(0))


def values(members: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.random.default_rng(7).standard_normal(members)


def averaging(name: str, members: int, protocol: Protocol, exchanges: int) -> Averaging:
    drawn = overlay(partial(GRAPHS[name]), [f"peer{i}" for i in range(members)], np.random.default_rng(0))
    return Averaging.of(
        drawn, protocol, draws=lambda round, exchange: np.random.default_rng([round, exchange]), exchanges=exchanges
    )


@pytest.mark.parametrize("protocol", ["push-sum", "push-pull"])
@pytest.mark.parametrize("name", NAMES)
def test_exchanges_are_the_product_of_the_matrices(name: str, protocol: Protocol) -> None:
    for members in (2, 13):
        policy = averaging(name, members, protocol, 9)
        simulation = ScalarGossip(made(name, members), protocol, values(members))
        start_2P = simulation.mass_2P.copy()
        for exchange in range(9):
            simulation.exchange(exchange, np.random.default_rng([0, exchange]))
        matrix = policy.matrix(0)
        assert np.abs(simulation.mass_2P.T - matrix @ start_2P.T).max() < 1e-12


def test_all_pairs_without_edges_are_all_pairs_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    many = ScalarGossip(made("complete", 6_000), "push-sum", values(6_000))
    assert many.graph.phases == ()
    assert many.exchange(0, np.random.default_rng(0)).shares == 6_000 * 5_999
    assert many.disagreement() < 1e-12
    pulled = ScalarGossip(made("complete", 6_000), "push-pull", values(6_000))
    start = pulled.mass_2P[0].copy()
    assert pulled.exchange(0, np.random.default_rng(0)).shares == 6_000
    assert len(np.unique(pulled.mass_2P[0])) == 3_000
    assert pulled.mass_2P[0].sum() == pytest.approx(start.sum())


# ---------------------------------------------------------------------------------------------------------------
# channels


def play_lanes(graph: WideGraph, loss: float, rounds: int, seed: int) -> list[Mass]:
    """Run the same exchanges with the functions of real peers, message by message: the slow reference."""
    draws, form, members = np.random.default_rng(seed), FORMS["float64"](), graph.members
    held = [Mass.of(torch.tensor([each], dtype=torch.float64)) for each in values(members)]
    out: dict[tuple[int, int, int], Outgoing] = {}
    into: dict[tuple[int, int, int], Incoming] = {}
    opened: list[tuple[tuple[int, int, int], transfers.NumberedTransfer]] = []
    for number in range(rounds):
        phase = number % len(graph.phases)
        edges = graph.phases[phase]
        for src in range(members):
            near = edges.indices[edges.indptr[src] : edges.indptr[src + 1]].tolist()
            mine = [channel for (p, a, b), channel in out.items() if a == src]
            if transfers.exhausted(held[src], 1.0) or transfers.overdrawn(held[src], mine):
                continue
            free = {b: out.get((phase, src, b), Outgoing()) for b in near}
            free = {b: channel for b, channel in free.items() if not transfers.resting(channel)}
            ids = {str(b): channel for b, channel in free.items()}
            if not ids:
                continue
            held[src], after, shares = transfers.give(held[src], ids, 1 / (len(near) + 1), form, (0, number), draws)
            for b, share in shares.items():
                out[phase, src, int(b)] = after[b]
                opened.append(((phase, src, int(b)), share))
        arrived = draws.random(len(opened), dtype=np.float32) >= loss
        come = [each for each, here in zip(opened, arrived, strict=True) if here]
        for edge, share in come:
            channel = into.get(edge, Incoming())
            if transfers.judge(channel, share) is transfers.TransferDecision.TAKE:
                into[edge], mass = transfers.take(channel, share, form, 1)
                held[edge[2]] = held[edge[2]] + mass
        back = draws.random(len(come), dtype=np.float32) >= loss
        for (edge, _), here in zip(come, back, strict=True):
            if here:
                out[edge], _ = transfers.acknowledged(out[edge], into.get(edge, Incoming()).taken, form)
        opened = [(edge, share) for edge, share in opened if share.seq > out[edge].acked]
    return held


@pytest.mark.parametrize("name", ["ring", "k-regular", "one-peer-exponential", "star"])
def test_channels_are_those_of_real_peers(name: str) -> None:
    graph = made(name, 9)
    for loss, seed in ((0.1, 1), (0.5, 2)):
        simulation, draws = ScalarGossip(graph, "push-sum", values(9), loss=loss), np.random.default_rng(seed)
        for number in range(30):
            simulation.exchange(number, draws)
        published = play_lanes(graph, loss, 30, seed)
        assert simulation.mass_2P[0] == pytest.approx(
            [float(mass.value_D[0]) for mass in published], rel=1e-12, abs=1e-14
        )
        assert simulation.mass_2P[1] == pytest.approx([float(mass.weight) for mass in published], rel=1e-12)


def test_who_holds_hardly_any_weight_rests() -> None:
    simulation = ScalarGossip(made("ring", 5), "push-sum", values(5), loss=0.1)
    simulation.mass_2P[:, 0] /= 17
    assert simulation.exchange(0, np.random.default_rng(0)).shares == 2 * 4


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(["ring", "k-regular", "exponential", "one-peer-exponential", "star", "complete"]),
    protocol=st.sampled_from(["push-sum", "push-pull"]),
    loss=st.floats(0.01, 0.9),
    members=st.integers(2, 20),
    seed=st.integers(0, 2**32),
)
def test_on_channels_nothing_is_lost_at_any_moment(
    name: str, protocol: Protocol, loss: float, members: int, seed: int
) -> None:
    simulation, draws = (
        ScalarGossip(made(name, members), protocol, values(members), loss=loss),
        np.random.default_rng(seed),
    )
    whole = simulation.everything()
    for number in range(40):
        simulation.exchange(number, draws)
        assert simulation.everything() == pytest.approx(whole, rel=1e-12, abs=1e-12)
        assert (simulation.mass_2P[1] > 0).all()


@pytest.mark.parametrize("protocol", ["push-sum", "push-pull"])
def test_channels_without_a_loss_change_nothing(protocol: Protocol) -> None:
    graph = made("k-regular", 40)
    plain, laned = (ScalarGossip(graph, protocol, values(40), loss=loss) for loss in (0.0, 1e-30))
    for number in range(40):
        sent = [simulation.exchange(number, np.random.default_rng(number)) for simulation in (plain, laned)]
        assert sent[0].shares == sent[1].shares == sent[1].answers
    assert np.abs(plain.mass_2P - laned.mass_2P).max() < 1e-12
    assert laned.channels is not None
    assert len(laned.channels.channel_K) == 0, "all is acknowledged"


def test_with_channels_all_agree_on_the_mean_and_without_on_something_else() -> None:
    graph = made("k-regular", 200)
    laned, forgetful = (
        ScalarGossip(graph, "push-sum", values(200), loss=0.3, channels=channels) for channels in (True, False)
    )
    for simulation in (laned, forgetful):
        draws = np.random.default_rng(0)
        for number in range(250):
            simulation.exchange(number, draws)
        assert simulation.disagreement() < 1e-6
    assert laned.drift() < 1e-12
    assert np.abs(laned.mass_2P[0] / laned.mass_2P[1] - values(200).mean()).max() < 1e-4
    assert forgetful.drift() > 1e-3
    assert forgetful.everything()[1] < 0.5 * 200
    pulled, draws = ScalarGossip(graph, "push-pull", values(200), loss=0.3, channels=False), np.random.default_rng(0)
    pulled.exchange(0, draws)
    assert pulled.everything()[1] == pytest.approx(200 * (1 - 0.15), rel=0.05), "half of what is given, 30 % of it"


# --------------------------------------------------------------------------------------------------- coming and going


def test_who_leaves_hands_over_to_its_neighbors_and_a_newcomer_begins_with_what_two_of_them_think() -> None:
    graph = made("ring", 8)
    simulation = ScalarGossip(graph, "push-sum", np.arange(8.0))
    simulation.mass_2P[1] = 2.0

    class Chosen:
        def random(self, size: int) -> np.ndarray[Any, np.dtype[np.float64]]:
            return np.array([1.0, 1, 0, 1, 1, 1, 1, 1])  # peer 2 of 0..7 leaves

    assert simulation.replace(0.5, Chosen(), handed_over=True) == 1  # type: ignore[arg-type]
    assert simulation.mass_2P[:, 1].tolist() == [1 + 1, 2 + 1]
    assert simulation.mass_2P[:, 3].tolist() == [3 + 1, 2 + 1]
    assert simulation.mass_2P[:, 2] == pytest.approx([(2 / 3 + 4 / 3) / 2, 1])
    assert simulation.everything()[1] == 8 * 2 + 1, "handed over, and a newcomer's own"


@pytest.mark.parametrize("loss", [0.0, 0.4])
@pytest.mark.parametrize("name", ["k-regular", "one-peer-exponential"])
def test_mass_of_those_who_leave_stays_and_of_lost_disks_goes(name: str, loss: float) -> None:
    graph = made(name, 60)
    for handed_over in (True, False):
        simulation, draws = ScalarGossip(graph, "push-sum", values(60), loss=loss), np.random.default_rng(3)
        for number in range(25):
            simulation.exchange(number, draws)
            before, held = simulation.everything(), simulation.mass_2P.copy()
            newcomers = simulation.replace(0.1, draws, handed_over=handed_over)
            after = simulation.everything()
            assert (simulation.mass_2P[1] > 0).all()
            if handed_over:
                assert after[1] == pytest.approx(before[1] + newcomers)
            elif newcomers:
                assert after[1] < before[1] + newcomers
            assert np.abs(simulation.mass_2P - held).max() > 0 or not newcomers
            estimate_P = simulation.mass_2P[0] / simulation.mass_2P[1]
            assert np.abs(estimate_P).max() <= np.abs(values(60)).max() + 1e-12, "within what was put in"
    for number in range(25, 400):
        simulation.exchange(number, draws)
    assert simulation.disagreement() < 1e-6


@pytest.mark.parametrize("loss", [0.0, 0.9])
def test_who_has_no_neighbor_that_stays_stays(loss: float) -> None:
    """Such a peer keeps the mass that it holds and the mass that it has in transit."""
    simulation, draws = ScalarGossip(made("ring", 6), "push-sum", values(6), loss=loss), np.random.default_rng(0)
    simulation.exchange(0, draws)
    held_2P, everything = simulation.mass_2P.copy(), simulation.everything()
    assert not loss or everything[1] > held_2P[1].sum(), "something is under way"
    assert simulation.replace(0.999999, draws, handed_over=False) == 0
    assert (simulation.mass_2P == held_2P).all()
    assert (simulation.everything() == everything).all()


def test_a_hundred_thousand_agree_as_theory_foretells() -> None:
    simulation, exchanges = ScalarGossip(made("one-peer-exponential", 131_072), "push-sum", values(131_072)), 0
    while simulation.disagreement() > 1e-9:
        simulation.exchange(exchanges, np.random.default_rng(0))
        exchanges += 1
    assert exchanges == 17, "log2 of the peers: then it is exact"
