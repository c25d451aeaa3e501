"""A peer that averages by drift: what it sends while it sleeps, what it remembers, what others may send to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedpeer.config.rules import PEERS
from fedpeer.gossip.mass import Mass
from fedpeer.gossip.reductions import FLOAT32, NOTHING, int8
from fedpeer.gossip.transfers import (
    Incoming,
    NumberedTransfer,
    Outgoing,
    TransferDecision,
    acknowledged,
    give,
    give_nothing,
    judge,
    take,
)
from fedpeer.peer.node import rounds
from fedpeer.peer.node.node import Node
from fedpeer.peer.node.rounds import QUIET_TRAININGS, _is_active
from fedpeer.peer.state.durable_state import GroupState
from fedpeer.peer.state.journal import durable_state_of, snapshot_bytes
from fedpeer.peer.wire.message_policy import MessagePolicy
from fedpeer.peer.wire.messages import Transfer
from fedpeer.sims.network.driver import Machine
from fedpeer.sims.network.faults import Faults
from fedpeer.sims.network.links import LinkRules, partition
from tests.config.refusals import refusals
from tests.faults.event_triggered import DRIFT, FAST, Drifting, drifting_world
from tests.peer.frames import ENVELOPE, LENGTH, PLAIN, POLICY, framed, spec
from tests.peer.wire.test_codec import message_of, refusal_of

CHANNELS = {"b": Outgoing(), "c": Outgoing()}


def running(ticks: float, **settings: Any) -> Drifting:
    """Run a cluster; masses are not checked after each step, since that takes most of the time."""
    cluster = Drifting(drifting_world(**settings), Faults(seed=1, links=LinkRules(delay=0.2)))
    cluster.simulator.stepped = lambda peer, machine: None
    cluster.simulator.start()
    cluster.run(ticks)
    return cluster


@pytest.mark.parametrize("form", [FLOAT32, int8()], ids=lambda form: form.name)
def test_nothing_is_a_transfer_that_moves_nothing(form: Any) -> None:
    """An empty transfer between two shares continues the numbering, leaves masses and references as they are, and is
    taken once."""

    draws, held = np.random.default_rng(0), Mass.of(torch.arange(600.0))
    held, channels, first = give(held, CHANNELS, 1 / 3, form, (1, 0), draws)
    channels, second = give_nothing({"b": channels["b"]}, (1, 1))
    assert second["b"].nothing
    assert (second["b"].seq, second["b"].weight, second["b"].payload.numel()) == (2, 0.0, 0)
    into, _ = take(Incoming(), first["b"], form, 600)
    assert judge(into, second["b"]) is TransferDecision.TAKE
    after, mass = take(into, second["b"], form, 600)
    assert float(mass.weight) == float(mass.value_D.abs().sum()) == 0.0
    assert after.reference_D is into.reference_D
    assert after.taken_weight == into.taken_weight
    assert judge(after, second["b"]) is TransferDecision.REPEATED
    assert judge(after, replace(second["b"], exchange=2)) is TransferDecision.REUSED
    channel, _ = acknowledged(channels["b"], 2, form)
    assert (channel.acked, channel.open) == (2, ())
    assert channel.acked_weight == after.taken_weight
    _, _, third = give(held, {"b": channel}, 1 / 3, form, (2, 0), draws)
    last, mass = take(after, third["b"], form, 600)
    torch.testing.assert_close(mass.value_D, held.value_D / 3, atol=0.5, rtol=1e-3)
    assert last.taken == 3


@pytest.mark.slow
def test_who_moves_slowly_sleeps_more_and_all_stay_near() -> None:
    cluster = running(200.0)
    share = {peer: counts[False] / counts.total() for peer, counts in cluster.said.items()}
    rounds = min(node.durable.round for node in cluster.nodes().values())
    assert rounds >= 4
    assert max(share, key=lambda peer: share[peer]) == "peer1"
    assert all(0 < part < 0.6 for part in share.values())
    assert cluster.apart() <= 2 * DRIFT + 2 * FAST


@pytest.mark.slow
def test_what_it_remembers_outlives_the_process() -> None:
    """This also holds in the middle of an averaging in which a peer has sent an empty transfer."""
    cluster = running(0.0)
    (group,) = cluster.groups
    seen: set[tuple[bool, bool]] = set()

    def looked(peer: str, machine: Machine) -> None:
        assert isinstance(machine, Node)
        durable, holding = machine.durable, machine.durable.groups[group]
        kind = bool(holding.nothing), holding.active
        if kind in seen:
            return
        seen.add(kind)
        data = snapshot_bytes(durable, {"peer": peer})
        again = durable_state_of(data, [], durable.rules, durable.index, {"peer": peer}).groups[group]
        assert (again.nothing, again.active, again.missing) == (holding.nothing, holding.active, holding.missing)
        assert holding.settled_D is not None
        assert again.settled_D is not None
        assert torch.equal(again.settled_D, holding.settled_D)

    cluster.simulator.stepped = looked
    assert cluster.run(600.0, lambda: len(seen) == 4), seen


@pytest.mark.slow
def test_after_a_cut_all_average_although_nobody_has_moved() -> None:
    """While the cut lasts, and after all have averaged together, no peer sends shares."""
    cuts = partition(20.0, 500.0, ["peer1"], ["peer2", "peer3", "peer4"])
    faults = Faults(seed=1, links=LinkRules(delay=0.2), cuts=cuts, heal=500.0)
    cluster = Drifting(drifting_world(gossip__drift=10.0), faults)
    cluster.simulator.stepped = lambda peer, machine: None
    cluster.simulator.start()

    def gave(until: float) -> dict[str, int]:
        before = {peer: counts[False] for peer, counts in cluster.said.items()}
        cluster.run(until)
        return {peer: counts[False] - before[peer] for peer, counts in cluster.said.items()}

    gave(300.0)
    assert not any(gave(500.0).values()), "those who go on without it have averaged"
    before = cluster.apart()
    assert all(gave(600.0).values())
    assert cluster.apart() < before / 2
    assert not any(gave(700.0).values())


@pytest.mark.slow
def test_who_waits_for_acknowledgements_first_gives_to_a_member_that_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = running(30.0, gossip__drift=10.0)
    (group,) = cluster.groups
    node = cluster.node("peer2")
    node.rounds.groups[group].missed = {"peer1"}
    monkeypatch.setattr(rounds, "resting", lambda channel: True)
    assert not rounds._open(node.state, node.rounds, node.repeats, group, 0)
    monkeypatch.undo()
    assert rounds._open(node.state, node.rounds, node.repeats, group, 0)
    assert node.durable.groups[group].active
    assert not node.rounds.groups[group].missed


def test_who_sleeps_and_who_wakes() -> None:
    settled_D = torch.ones(4)
    still, far = (Mass.of(settled_D * scale) for scale in (1.0, 1.2))
    inactive = GroupState(still, settled_D=settled_D)
    assert not _is_active(inactive, 0, 0.1)
    assert _is_active(replace(inactive, held=far), 0, 0.1)
    assert not _is_active(replace(inactive, held=far), 0, 0.3)
    assert _is_active(replace(inactive, settled_D=None), 0, 0.1), "who does not know gives"
    assert not _is_active(replace(inactive, held=far), 1, 0.1), "behind the first exchange only who is woken"
    assert _is_active(replace(inactive, active=True), 1, 0.1)
    assert not _is_active(replace(inactive, active=True), 0, 0.1), "waking is for one averaging"


NOTHINGS = replace(POLICY, groups={"all": spec(forms=PLAIN | {NOTHING.name: NOTHING})})


@pytest.mark.parametrize(
    ("change", "policy", "code"),
    [
        ({}, POLICY, "wrong_dtype"),
        ({"weight": 0.1}, NOTHINGS, "bad_weight"),
        ({"weight": float("nan")}, NOTHINGS, "bad_weight"),
        ({"payload": torch.zeros(1, dtype=torch.uint8)}, NOTHINGS, "wrong_shape"),
        ({"form": "float32", "payload": torch.ones(LENGTH)}, NOTHINGS, "bad_weight"),
    ],
    ids=["not by drift", "some weight", "no number", "a tail", "numbers without weight"],
)
def test_nothing_is_taken_only_where_averages_go_by_drift_and_only_as_nothing(
    change: dict[str, Any], policy: MessagePolicy, code: str
) -> None:
    said = {
        "seq": 1,
        "round": 1,
        "exchange": 0,
        "weight": 0.0,
        "form": "nothing",
        "payload": torch.empty(0, dtype=torch.uint8),
    }
    frame = framed(Transfer(group="all", share=NumberedTransfer(**{**said, **change})), ENVELOPE)
    assert refusal_of(frame, policy) == code
    whole = message_of(framed(Transfer(group="all", share=NumberedTransfer(**said)), ENVELOPE), NOTHINGS)  # type: ignore[arg-type]
    assert isinstance(whole, Transfer)
    assert whole.share.nothing


@pytest.mark.slow
def test_without_rounds_a_peer_pushes_what_has_moved() -> None:
    """Now and then it also pushes slices that have not moved, so that weight comes back. No empty transfer is sent."""
    told, rounds = {}, {}
    for drift in (None, DRIFT, 10.0):
        cluster = running(200.0, learning__mode="asynchronous", gossip__drift=drift)
        assert not any(counts[True] for counts in cluster.said.values())
        told[drift] = {peer: counts[False] for peer, counts in cluster.said.items()}
        rounds[drift] = min(node.durable.round for node in cluster.nodes().values())
        if drift != 10.0:
            assert cluster.apart() <= 4 * DRIFT + 2 * FAST
    assert sum(told[DRIFT].values()) < sum(told[None].values()) / 4
    assert rounds[DRIFT] >= rounds[None], "nobody is held up"
    for peer, count in told[10.0].items():
        assert 2 <= count <= 2 * (rounds[10.0] / QUIET_TRAININGS + 2), f"{peer}: two neighbors, every eighth training"


@pytest.mark.parametrize(
    ("settings", "fits"),
    [
        ({"gossip": {"drift": 0.1}}, True),
        ({"gossip": {"drift": 0.1, "protocol": "exact", "exchanges": 1}}, True),
        ({"gossip": {"drift": 0.1}, "learning": {"mode": "asynchronous"}}, True),
        ({"gossip": {"drift": 0.1, "protocol": "coordinator"}}, False),
        ({"gossip": {"drift": 0.1, "privacy": "noise"}}, False),
        ({"gossip": {"drift": 0.1, "exchanges": 1}}, False),
    ],
)
def test_a_file_is_checked_for_what_it_does_not_go_with(settings: dict[str, Any], fits: bool) -> None:
    found = refusals(settings, PEERS)
    assert [problem.path for problem in found] == ([] if fits else [("gossip", "drift")])
