"""Switches that each break one rule of the protocol, and the scenario that must then fail.

A test that cannot fail shows nothing. For each rule `SABOTAGE` names a way to break it, in the code that enforces it,
and the scenario and seeds that have to notice. A coordinator that ignores what was accepted before it is tested with
the mathematics of committed rounds (`tests/gossip/`). Messages of an earlier incarnation are rejected twice, by its
number and by signatures that name incarnations, so no scenario notices when one of the two is missing: the rejections
by number are E12.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from fedpeer.gossip import reductions, transfers
from fedpeer.gossip.averaging import Averaging
from fedpeer.gossip.detector import Accuse, Detector
from fedpeer.gossip.mass import Mass
from fedpeer.gossip.weight_limits import WeightLimits
from fedpeer.peer.consensus.collected_updates import CollectedUpdates
from fedpeer.peer.consensus.election import Election
from fedpeer.peer.consensus.round_commit import RoundCommit
from fedpeer.peer.consensus.round_consensus import RoundConsensus
from fedpeer.peer.node import channels, handshake, reminders, rounds
from fedpeer.peer.node.node import Node
from fedpeer.peer.state.consensus_state import ConsensusState
from fedpeer.peer.state.entries import ClientStateSaved, ConsensusEntry, Entry, UpdateMade
from fedpeer.peer.state.events import Effect, Event, MessageReceived, Persist, Send
from fedpeer.peer.state.node_state import NodeState
from fedpeer.peer.state.reputation import Reputation
from fedpeer.peer.state.saving import Outbox
from fedpeer.peer.wire.codec import decode
from fedpeer.peer.wire.messages import Ack, Hello, Transfer
from fedpeer.rejection import Rejection
from tests.faults import isolation, liars, scenarios, sessions
from tests.peer.frames import PARTY, POLICY
from tests.peer.hostile import HOSTILE

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Switch:
    """One rule, broken by `breaks`; `play` must then fail for at least one of `seeds`. The run with the rule unbroken
    costs nothing where the seed is one of `test_scenarios.py`."""

    breaks: Callable[[Patch], None]
    play: Callable[[int], None]
    seeds: Iterable[int]


def _no_sums(patch: Patch) -> None:
    """Ignore the signed sum of weights up to a number, which also shows a broken order: both rules must be broken."""
    patch.setattr(channels, "_unlike", lambda *known: None)


def take_an_equal_number_again(patch: Patch) -> None:
    _no_sums(patch)
    patch.setattr(transfers, "_known", lambda channel, share: share.seq < channel.taken)
    patch.setattr(transfers, "_next", lambda channel, share: share.seq in (channel.taken, channel.taken + 1))


def take_out_of_order(patch: Patch) -> None:
    _no_sums(patch)
    patch.setattr(transfers, "_next", lambda channel, share: share.seq > channel.taken)


def debit_before_rounding(patch: Patch) -> None:
    def debited(held: Mass, open_channels: object, shares: dict[str, transfers.NumberedTransfer], form: object) -> Mass:
        given = sum(share.weight for share in shares.values())
        return held.scaled(1 - given / float(held.weight))

    patch.setattr(transfers, "_debited", debited)


def _reordered(patch: Patch, early: Callable[[Effect], bool]) -> None:
    step = Node.step

    def hasty(self: Node, event: Event) -> list[Effect]:
        return sorted(step(self, event), key=lambda effect: not early(effect))

    patch.setattr(Node, "step", hasty)


def send_before_the_save(patch: Patch) -> None:
    _reordered(patch, lambda effect: not isinstance(effect, Persist))


def acknowledge_before_the_save(patch: Patch) -> None:
    _reordered(patch, lambda effect: isinstance(effect, Send) and isinstance(effect.message, Ack))


def no_window(patch: Patch) -> None:
    for module in (transfers, rounds):
        patch.setattr(module, "resting", lambda channel: False)
    patch.setattr(rounds, "_silent", lambda state, progress, group: {})


def repeat_with_other_bytes(patch: Patch) -> None:
    def changed(*, group: str, share: transfers.NumberedTransfer, **signed: Any) -> Transfer:
        said.append(id(share))
        other = share.payload + (said.count(id(share)) - 1) * 1e-3
        return Transfer(group=group, share=replace(share, payload=other.to(share.payload.dtype)), **signed)

    said: list[int] = []
    patch.setattr(channels, "Transfer", changed)


def float32_accumulators(patch: Patch) -> None:
    def added(one: Mass, other: Mass) -> Mass:
        return Mass((one.value_D + other.value_D).float().double(), one.weight + other.weight)

    patch.setattr(Mass, "__add__", added)


def skip_the_finite_check(patch: Patch) -> None:
    patch.setattr(reductions, "all_finite", lambda values: True)


def apply_without_a_majority(patch: Patch) -> None:
    patch.setattr(RoundCommit, "_carried", lambda self, proposal, by, after: True)


def forget_the_update_that_was_sent(patch: Patch) -> None:
    """Do not save the result of training before it is sent."""
    write = NodeState.write

    def forgetful(self: NodeState, entry: Entry) -> dict[str, transfers.NumberedTransfer]:
        return self.durable.apply(entry) if isinstance(entry, UpdateMade) else write(self, entry)

    patch.setattr(NodeState, "write", forgetful)


def settle_a_round_twice(patch: Patch) -> None:
    """Keep a settled update pending, so that it is settled again."""
    changed = ConsensusState.changed

    def again(self: ConsensusState, entry: ConsensusEntry) -> ConsensusState:
        found = changed(self, entry)
        return replace(found, pending=self.pending) if isinstance(entry, ClientStateSaved) else found

    patch.setattr(ConsensusState, "changed", again)


def count_a_late_update_again(patch: Patch) -> None:
    """Let the updates that counted in a round wait for the next one, too."""
    at = CollectedUpdates.at

    def kept(self: CollectedUpdates, place: tuple[int, int], now: int, counted: object = None) -> None:
        at(self, place, now, {})

    patch.setattr(CollectedUpdates, "at", kept)


def settle_while_an_update_waits(patch: Patch) -> None:
    """Let a client train anew although its update may still count."""
    waits = property(lambda self: getattr(self.consensus_state.pending, "round", 0) == self.applied + 1)
    patch.setattr(RoundConsensus, "update_waits", waits)


def vote_without_a_memory(patch: Patch) -> None:
    """Let a voter that lost its disk vote as if nothing had been on it."""
    patch.setattr(ConsensusState, "votes", property(lambda self: True))


def listen_to_everybody(patch: Patch) -> None:
    patch.setattr(Reputation, "listens", lambda self, now: True)


def believe_any_hello(patch: Patch) -> None:
    """Believe whatever others state about this peer's past."""
    patch.setattr(handshake, "unproven_reminder", _born_again_at_once)


def _born_again_at_once(state: NodeState, received: MessageReceived, hello: Hello) -> None:
    if received.to_incarnation > state.durable.incarnation:
        reminders.begin_incarnation(state, received.to_incarnation + 1, "somebody says so")


def take_any_weight(patch: Patch) -> None:
    patch.setattr(WeightLimits, "refusal", lambda *anything, **else_: None)


def wait_for_a_process_that_has_ended(patch: Patch) -> None:
    """Ignore that a machine refuses connections."""
    patch.setattr(Election, "nobody_listens", lambda self, peer: None)


def let_heartbeats_wait_for_the_disk(patch: Patch) -> None:
    patch.setattr(Outbox, "again", lambda self, effects: ([], list(effects)))


def wait_along_a_dropped_edge(patch: Patch) -> None:
    """Wait along an edge that was added for peers that seemed dead, although they are back."""
    patch.setattr(Averaging, "linked", lambda self, one, other: True)


def bury_at_the_first_unanswered_ping(patch: Patch) -> None:
    """Ask no helpers, and check no suspicion: one of the two is enough at 10 % loss."""

    def later(self: Detector, probe: Any, clock: int, living: Any) -> Iterator[Accuse]:
        if clock - probe.begun >= self._timing.answer:
            self._probes.remove(probe)
            yield Accuse(probe.target, "dead")

    patch.setattr(Detector, "_later", later)


def not_finite(_: int) -> None:
    """S06: Values that are not numbers are rejected by that name."""
    for bad in HOSTILE:
        if bad.id.startswith("S06"):
            found = decode(bad.build(PARTY), POLICY)
            assert isinstance(found, Rejection), bad.id
            assert found.code == bad.code, bad.id


SABOTAGE = {
    "take an equal number again": Switch(take_an_equal_number_again, scenarios.truth, range(3)),
    "take out of order": Switch(take_out_of_order, scenarios.truth, range(3)),
    "debit before rounding": Switch(debit_before_rounding, scenarios.truth, range(1)),
    "send before the save": Switch(send_before_the_save, scenarios.killed, range(60, 90)),
    "acknowledge before the save": Switch(acknowledge_before_the_save, scenarios.killed, range(74, 90)),
    "no window": Switch(no_window, scenarios.cut, range(3, 4)),
    "repeat with other bytes": Switch(repeat_with_other_bytes, scenarios.truth, range(3)),
    "f32 accumulators": Switch(float32_accumulators, scenarios.truth, range(1)),
    "skip the finite check": Switch(skip_the_finite_check, not_finite, range(1)),
    "apply without a majority": Switch(apply_without_a_majority, sessions.coordinator_killed, range(2, 62, 40)),
    "forget the update that was sent": Switch(
        forget_the_update_that_was_sent, sessions.client_killed, range(89, 200, 40)
    ),
    "count a late update again": Switch(count_a_late_update_again, sessions.buffered, range(2, 3)),
    "settle while an update waits": Switch(settle_while_an_update_waits, sessions.buffered, range(3, 4)),
    "settle a round twice": Switch(settle_a_round_twice, sessions.client_killed, range(20, 200, 60)),
    "listen to everybody": Switch(listen_to_everybody, liars.liars, range(2, 3)),
    "believe any Hello": Switch(believe_any_hello, liars.liars_soon, range(1)),
    "take any weight": Switch(take_any_weight, liars.liars, range(2, 3)),
    "wait for a process that has ended": Switch(wait_for_a_process_that_has_ended, sessions.starved, range(1)),
    "let heartbeats wait for the disk": Switch(let_heartbeats_wait_for_the_disk, sessions.starved, range(4, 5)),
    "wait along a dropped edge": Switch(wait_along_a_dropped_edge, isolation.isolated, (863,)),
    "bury at the first unanswered ping": Switch(bury_at_the_first_unanswered_ping, scenarios.detection, range(1, 2)),
    "vote without a memory": Switch(vote_without_a_memory, sessions.disk_lost, range(1)),
}
