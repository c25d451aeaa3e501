"""Averaging by drift in the vector engine.

Peers that have moved average, sleeping slices stay unchanged, and bytes are counted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedpeer.config.problems import ConfigError
from fedpeer.gossip.averaging import SHARE_EXTRA_BYTES, turn
from fedpeer.sims.vector.engine import VectorEngine
from fedpeer.sims.vector.event_triggered import EventTriggered
from fedpeer.sims.vector.gossip_rounds import GossipRounds
from tests.sims.worlds import engine, federation, relative, same_bits, world

METHOD = "full-averaging"
SLICED = {
    "everyone": {"neurons": {"input": "all", "hidden1": 6, "output": "all"}},
    "pair": {"depends_on": ["everyone"], "neurons": {"hidden1": 3}, "members": ["peer1", "peer2"]},
    "four": {"depends_on": ["everyone"], "neurons": {"hidden1": 2}, "members": ["peer2", "peer3", "peer4", "peer6"]},
}


def options(drift: float | None, **more: Any) -> Any:
    return world(federation(gossip__drift=drift, learning__rounds=6, **more))


def run(made: Any, rounds: int, method: str = METHOD) -> tuple[Tensor, list[tuple[list[int], list[int]]]]:
    with engine(made, method) as running:
        sent = []
        for _ in range(rounds):
            running.step()
            sent.append(running.traffic)
        return running.x_Pn.clone(), sent


@pytest.mark.parametrize("protocol", ["push-sum", "exact"])
def test_where_nobody_has_moved_nothing_changes_and_hardly_anything_is_sent(protocol: str) -> None:
    found_Pn, sent = run(options(10.0, gossip__protocol=protocol), 3)
    alone_Pn, _ = run(options(None), 3, "local")
    assert same_bits(found_Pn, alone_Pn)
    messages = 2 * 5 if protocol == "exact" else 2 * 2
    assert sent == [([messages] * 6, [messages * SHARE_EXTRA_BYTES] * 6)] * 3


@pytest.mark.parametrize("protocol", ["push-sum", "push-pull"])
def test_where_all_have_moved_it_is_the_usual_averaging(protocol: str) -> None:
    found_Pn, sent = run(options(1e-9, gossip__protocol=protocol), 3)
    usual_Pn, usual = run(options(None, gossip__protocol=protocol), 3)
    assert same_bits(found_Pn, usual_Pn)
    assert sent == usual


def test_one_who_has_moved_gives_all_the_exact_mean() -> None:
    made = options(0.05, gossip__protocol="exact", gossip__every=2)
    with engine(made, METHOD) as running:
        averaged = 0
        for _ in range(6):
            trained_Pn = captured(running)
            running.step()
            if running.round % 2 == 0:
                some = drifting_of(running).active["everyone"][0].any()
                expected_Pn = trained_Pn[0].mean(0).expand(6, -1) if some else trained_Pn[0]
                assert relative(running.x_Pn, expected_Pn) < 1e-6
                averaged += bool(some)
        assert averaged


def drifting_of(running: VectorEngine) -> EventTriggered:
    assert isinstance(running._rounds, GossipRounds)
    assert running._rounds._triggers is not None
    return running._rounds._triggers


def captured(running: VectorEngine) -> list[Tensor]:
    """Return a list that the next averaging fills with two tensors (P, n), as they are before it.

    These are the trained parameters and the remembered ones.
    """
    found: list[Tensor] = []
    drifting = drifting_of(running)
    look = type(drifting).look

    def spied(x_Pn: Tensor, round: int) -> None:
        found.extend([x_Pn.clone(), drifting.x_Pn.clone()])
        look(drifting, x_Pn, round)

    drifting.look = spied  # type: ignore[method-assign]
    return found


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_it_is_what_the_peers_do_one_by_one(weights: str) -> None:
    """The engine gives the numbers of a loop over peers by name, group by group.

    At this threshold some slices move and others do not.
    """
    split = {"simulation__split": "slicing:10"} if weights == "samples" else {}
    made = options(0.04, partial_models=SLICED, gossip__exchanges=3, learning__weights=weights, **split)
    patterns = set()
    with engine(made, "partial-averaging") as running:
        plan, drift = running._plan, 0.04
        for round in range(6):
            trained = captured(running)
            before = {group: each.copy() for group, each in running.weights.items()}
            running.step()
            x_Pn, last_Pn = (each.double().numpy() for each in trained)
            expected_Pn, remembered_Pn = x_Pn.copy(), last_Pn.copy()
            for group in plan.groups:
                policy, rows = running._averaging[group.id], [plan.peers.index(p) for p in group.members]
                at = {peer: (row, group.indices[peer]) for peer, row in zip(group.members, rows, strict=True)}
                start = dict(zip(group.members, before[group.id], strict=True))
                if running._start_weights is not None:
                    start = {peer: running._start_weights[row] for peer, (row, _) in at.items()}
                far = {p: np.linalg.norm(x_Pn[at[p]] - last_Pn[at[p]]) / np.linalg.norm(last_Pn[at[p]]) for p in at}
                active = {peer for peer in at if far[peer] > drift}
                patterns.add((group.id, len(active)))
                held = {p: (x_Pn[at[p]] * start[p], start[p]) for p in at}
                for exchange in range(policy.exchanges):
                    post = []
                    for peer in active:
                        plan_of_peer = turn(policy, peer, round, exchange)
                        value_D, weight = held[peer]
                        share = value_D * plan_of_peer.fraction, weight * plan_of_peer.fraction
                        kept = 1 - plan_of_peer.fraction * len(plan_of_peer.to)
                        held[peer] = value_D * kept, weight * kept
                        post += [(to, share) for to in plan_of_peer.to]
                    for to, (value_D, weight) in post:
                        held[to] = held[to][0] + value_D, held[to][1] + weight
                    active |= {to for to, _ in post}
                for peer, (value_D, weight) in held.items():
                    expected_Pn[at[peer]] = value_D / weight
                    if peer in active:
                        remembered_Pn[at[peer]] = value_D / weight
                np.testing.assert_allclose(running.weights[group.id], [held[p][1] for p in group.members], rtol=1e-12)
            np.testing.assert_allclose(running.x_Pn.numpy(), expected_Pn, atol=1e-6)
            np.testing.assert_allclose(drifting_of(running).x_Pn.numpy(), remembered_Pn, atol=1e-6)
    some = {count for group, count in patterns if group == "everyone"}
    assert some - {0, 6}, "some sleep and some do not"


def test_neither_workers_nor_a_stop_change_a_bit() -> None:
    made = options(0.05)
    with engine(made, METHOD, workers=2) as running:
        for _ in range(2):
            running.step()
        tensors, state = running.snapshot()
        kept = {name: value.clone() for name, value in tensors.items()}
        sent = running.traffic
        for _ in range(3):
            running.step()
        whole, last = running.x_Pn.clone(), running.traffic
    with engine(made, METHOD) as again:
        again.restore(kept, state)
        assert again.traffic == sent
        for _ in range(3):
            again.step()
        assert same_bits(again.x_Pn, whole)
        assert again.traffic == last


def test_it_saves_where_little_changes() -> None:
    """Bytes fall as the threshold rises, and the messages of a quiet averaging are a few per cent of a full one."""
    bytes_by_drift = [sum(map(sum, (size for _, size in run(options(drift), 5)[1]))) for drift in (None, 0.05, 0.2)]
    assert bytes_by_drift[0] > 1.3 * bytes_by_drift[1] > 1.3**2 * bytes_by_drift[2]


@pytest.mark.parametrize("drift", [0, -1, 10.5, float("nan"), float("inf"), "little"])
def test_the_threshold_has_bounds(drift: object) -> None:
    with pytest.raises(ConfigError, match=r"gossip\.drift"):
        federation(gossip__drift=drift)


def test_tensors_are_not_shared_with_the_parameters() -> None:
    with engine(options(10.0), METHOD) as running:
        drifting = drifting_of(running)
        start_Pn = drifting.x_Pn.clone()
        running.step()
        assert torch.equal(drifting.x_Pn, start_Pn), "who slept remembers the start"
        assert not torch.equal(running.x_Pn, start_Pn)
