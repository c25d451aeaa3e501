"""Transfers in and out: what is judged before a share is taken, what is acknowledged, what is said again.

Checks stand in the order of cost and of suspicion: who and which life, which group, which number, which round,
whether it is plausible. Only then is it taken, made durable and acknowledged. Everything refused stays open at its
sender, which says it again, so a refusal never loses mass.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from fedpeer.gossip.proofs import Signed, Way
from fedpeer.gossip.transfers import Incoming, NumberedTransfer, Outgoing, TransferDecision, implied_D, judge
from fedpeer.peer.node.admission import may_precede, weight_limits, weight_refusal
from fedpeer.peer.node.reminders import is_signed, lane_signature
from fedpeer.peer.node.retransmission import Retransmissions
from fedpeer.peer.state.durable_state import NOTHING_HELD
from fedpeer.peer.state.entries import Acked, ShareApplied
from fedpeer.peer.state.node_state import NodeState
from fedpeer.peer.wire.messages import Ack, Transfer

#: Rounds that two who keep step are apart at most, beside those that news needs to come round a group. What is made
#: further ahead would wait for rounds that this peer may never reach as others do, and be missed by everybody.
STEP_ROUNDS = 2
#: Bytes of the shares that wait for exchanges to come, of all groups and all neighbours together; but two of each
#: neighbour, who may be an exchange ahead in good order. What does not find room is added at once: that is another way
#: to the same average, and loses nothing.
WAITING_BYTES = 16 << 20
WAITING_MIN = 2
#: Shares of one neighbour that wait, however small; news comes round a group of so many within as many exchanges.
WAITING_MAX = 256
#: Bytes that a share which waits takes beside its numbers.
PLACE_BYTES = 1024


def ship(life: NodeState, repeats: Retransmissions, group: str, made: dict[str, NumberedTransfer]) -> None:
    """Say new transfers."""
    for peer, parcel in made.items():
        repeats.sent((peer, group, parcel.seq), life.now)
        life.send(peer, _signed_transfer(life, peer, group, parcel))


def _signed_transfer(life: NodeState, peer: str, group: str, parcel: NumberedTransfer) -> Transfer:
    """With what shows later that this peer made it; the same whenever it is said to the same process."""
    total = life.ledger.groups[group].out[peer].weight_until(parcel.seq)
    signature = lane_signature(life, peer, group, "made", parcel.seq, total)
    return Transfer(group=group, parcel=parcel, total=total, signature=signature)


def fitting(
    life: NodeState, group: str, to: Collection[str], fraction: float, start_weight: float | None = None
) -> tuple[tuple[str, ...], float]:
    """Return the peers of `to` that may get a share now, and what part of the weight it may be: `fraction`, or less.

    start_weight: what will be held; default: what is, with all that waits.
    """
    limits, holding = weight_limits(life, group), life.ledger.groups[group]
    weight = holding.weight if start_weight is None else start_weight
    room = {
        p: limits.room(
            holding.out.get(p, Outgoing()), holding.into.get(p, Incoming()), life.others[p].before.get(group, 0.0)
        )
        for p in to
    }
    most = max(room.values(), default=0.0)
    if most <= 0:
        return (), fraction
    # One share for all: as much as those bear who have room for about as much as anybody.
    share = min(fraction * weight, *(each for each in room.values() if each >= most / 4))
    return tuple(p for p in to if room[p] >= share), share / weight if share < fraction * weight else fraction


def hear_transfer(life: NodeState, peer: str, transfer: Transfer) -> bool:
    """Take it, or refuse it by name; whether it was taken."""
    group, parcel = transfer.group, transfer.parcel
    other, holding = life.others[peer], life.ledger.groups[group]

    def refuse(code: str, text: str = "") -> bool:
        life.refuse(code, peer, text, group=group, seq=parcel.seq)
        return False

    # Who leaves takes nothing, or it would never have given everything; but from one who leaves as well, since each
    # would wait for the other. What is refused comes back to its sender when all is handed over.
    if life.ledger.left or (life.phase == "leaving" and not life.parts(peer)):
        return refuse("early", "this peer hands everything over and goes")
    if not other.met:
        other.greet_soon(life.now)
        return refuse("early", "we have not met in this life")
    if group not in other.agreed:
        return refuse("plan_mismatch", f'the group "{group}"')
    lane = holding.into.get(peer, Incoming())
    verdict = judge(lane, parcel)
    if verdict is TransferDecision.REPEATED:
        life.count("repeated", peer)
        acknowledge(life, peer, group)
        return False
    if verdict is not TransferDecision.TAKE:
        if verdict is TransferDecision.REUSED:
            other.greet_soon(life.now)
        return refuse(verdict.value, f"number {parcel.seq} where {lane.taken + 1} is next")
    last = life.setup.federation.learning.rounds
    if parcel.round > last + 1:
        return refuse("epoch_too_early", f"round {parcel.round}, and the last is {last}")
    if parcel.exchange > life.exchanges_max(group) and (parcel.round, parcel.exchange) >= holding.at:
        # Nobody who goes by the same roster has so many; by another one they may, and it is taken when it is late.
        known = not may_precede(life, peer, group, parcel.seq)
        most = life.exchanges_max(group)
        return refuse("epoch_too_early" if known else "early", f"exchange {parcel.exchange}, and the last is {most}")
    heavy = weight_refusal(life, peer, group, parcel)
    if heavy is not None:
        return refuse(heavy, f"{parcel.weight:g} beside the {holding.weight:g} held")
    if not parcel.nothing:
        implied = implied_D(lane, parcel, life.ledger.rules.form, len(life.ledger.index[group]))
        noise = life.circle.averaging[group].noise
        # Who leaves, and has nothing any more, takes from others who leave.
        own_D = holding.held.estimate_D if float(holding.held.weight) > NOTHING_HELD else implied
        far = life.ledger.reach(group).refusal(implied, own_D, noise.scale if noise else 0.0)
        if far is not None:
            return refuse(*far)
    if transfer.signature:
        signed = Signed(parcel.seq, transfer.total, transfer.signature)
        wrong = _unlike(life, peer, group, "made", signed, lane.taken_weight + parcel.weight)
        if wrong is not None:
            return refuse(wrong, f"number {parcel.seq}, and all weights up to it")
    other.begun = True
    other.seen_in(parcel.round, life.now)
    at_once = not _may_wait(life, group, peer, parcel)
    life.write(ShareApplied(group=group, sender=peer, parcel=parcel, at_once=at_once, signature=transfer.signature))
    acknowledge(life, peer, group)
    return True


def _may_wait(life: NodeState, group: str, peer: str, parcel: NumberedTransfer) -> bool:
    """Whether a share of an exchange to come is kept until then: it is not for rounds that this peer may never reach as
    others do, and there is room for it."""
    policy, holding = life.circle.averaging[group], life.ledger.groups[group]
    ahead = policy.every * (STEP_ROUNDS + math.ceil(len(policy.overlay.members) / max(1, policy.exchanges)))
    if parcel.round > life.ledger.round + ahead:
        return False
    place = (parcel.round, parcel.exchange, peer)
    if place in holding.waiting:
        return True
    lanes = sum(len(each.members) - 1 for each in life.circle.groups.values())
    room = WAITING_BYTES // lanes // (8 * len(life.ledger.index[group]) + PLACE_BYTES)
    kept = sum(each[2] == peer for places in (holding.waiting, holding.nothing) for each in places)
    return kept < max(WAITING_MIN, min(room, WAITING_MAX))


def acknowledge(life: NodeState, peer: str, group: str) -> None:
    """Say what is taken; it is durable by then, since it was written before."""
    lane = life.ledger.groups[group].into.get(peer, Incoming())
    signature = lane_signature(life, peer, group, "taken", lane.taken, lane.taken_weight) if lane.taken else b""
    ack = Ack(group=group, taken=lane.taken, round=life.ledger.round, total=lane.taken_weight, signature=signature)
    life.send(peer, ack)


def _unlike(life: NodeState, peer: str, group: str, way: Way, signed: Signed, total: float) -> str | None:
    """Why what a neighbour signed of a lane is not what is known of it here; None if it is."""
    if not is_signed(life, peer, group, way, signed):
        return "bad_signature"
    if signed.weight != total:  # of another memory of the lane
        life.others[peer].greet_soon(life.now)
        return "sequence_reused"
    return None


def hear_ack(life: NodeState, repeats: Retransmissions, peer: str, ack: Ack) -> None:
    """Close what the neighbour has; knowing of more than was made means that somebody lost memory."""
    other, holding = life.others[peer], life.ledger.groups[ack.group]
    if not other.met:
        other.greet_soon(life.now)
        return
    lane = holding.out.get(peer, Outgoing())
    if ack.taken > lane.made:
        life.refuse("sequence_jump", peer, f"it has {ack.taken}, and {lane.made} were made", group=ack.group)
        other.greet_soon(life.now)
        return
    news = ack.taken > lane.acked
    if news and ack.signature:
        signed = Signed(ack.taken, ack.total, ack.signature)
        wrong = _unlike(life, peer, ack.group, "taken", signed, lane.weight_until(ack.taken))
        if wrong is not None:
            life.refuse(wrong, peer, f"it has {ack.taken}, and all weights up to it", group=ack.group)
            return
    other.seen_in(min(ack.round, life.setup.federation.learning.rounds + 1), life.now)
    repeats.answered(peer, ack.group, ack.taken, life.now)
    if news:
        life.write(Acked(group=ack.group, peer=peer, taken=ack.taken, signature=ack.signature))


def say_again(life: NodeState, repeats: Retransmissions) -> None:
    """Repeat what is overdue, the same bytes."""
    for peer, group, seq in repeats.due(life.now):
        waits = life.phase == "leaving" and life.parts(peer)
        if group not in life.ledger.groups or not (waits or life.expected(peer, group)):
            continue
        lane = life.ledger.groups[group].out.get(peer, Outgoing())
        parcel = next((parcel for parcel in lane.open if parcel.seq == seq), None)
        if parcel is None:  # of a lane that was closed: one of the two is a new incarnation
            repeats.drop((peer, group, seq))
            continue
        repeats.sent((peer, group, seq), life.now)
        life.send(peer, _signed_transfer(life, peer, group, parcel))


def say_all_open(life: NodeState, repeats: Retransmissions, peer: str) -> None:
    """To a neighbour just met: whatever it may not have."""
    repeats.forget(peer)
    for group, holding in life.ledger.groups.items():
        if peer in holding.out and group in life.others[peer].agreed:
            for parcel in holding.out[peer].open:
                ship(life, repeats, group, {peer: parcel})
