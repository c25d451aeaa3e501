"""Transfers in and out: checks before a share is taken, acknowledgements, retransmissions.

Checks come in the order of cost and of suspicion: sender and generation, group, number, round, plausibility. Only then
is a share taken, made durable and acknowledged. A rejected transfer stays open at its sender, which repeats it, so a
rejection never loses mass.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from fedpeer.gossip.proofs import ChannelEnd, Signed
from fedpeer.gossip.transfers import Incoming, NumberedTransfer, Outgoing, TransferDecision, brought, judge
from fedpeer.peer.node.admission import may_precede, weight_limits, weight_refusal
from fedpeer.peer.node.reminders import channel_signature, is_signed
from fedpeer.peer.node.retransmission import Retransmissions
from fedpeer.peer.state.durable_state import NOTHING_HELD
from fedpeer.peer.state.entries import Acked, ShareApplied
from fedpeer.peer.state.node_state import NodeState
from fedpeer.peer.wire.messages import Ack, Transfer

#: Most rounds between two peers in step, beside those that news needs to travel around a group. A share that was made
#: further ahead would wait for a round that this peer may never reach, and its mass would be missing for everybody.
_STEP_ROUNDS = 2
#: Bytes of all shares that wait for later exchanges, of all groups and neighbors together; two of each neighbor always
#: have room, since it may regularly be an exchange ahead. A share without room is added at once: that is another way to
#: the same average, and loses nothing.
WAITING_BYTES = 16 << 20
_WAITING_MIN = 2
#: Most shares of one neighbor that wait, however small; news travels around a group of so many members within as many
#: exchanges.
_WAITING_MAX = 256
#: Bytes of a waiting share beside its values.
_PLACE_BYTES = 1024


def ship(state: NodeState, repeats: Retransmissions, group: str, made: dict[str, NumberedTransfer]) -> None:
    """Send new transfers."""
    for peer, share in made.items():
        repeats.sent((peer, group, share.seq), state.now)
        state.send(peer, _signed_transfer(state, peer, group, share))


def _signed_transfer(state: NodeState, peer: str, group: str, share: NumberedTransfer) -> Transfer:
    """Return the message of a transfer, signed by this peer; repeats to the same process are the same."""
    total = state.durable.groups[group].out[peer].weight_until(share.seq)
    signature = channel_signature(state, peer, group, "made", share.seq, total)
    return Transfer(group=group, share=share, total=total, signature=signature)


def fitting(
    state: NodeState, group: str, to: Collection[str], fraction: float, start_weight: float | None = None
) -> tuple[tuple[str, ...], float]:
    """Return the peers of `to` that may get a share now, and the fraction of the weight it may be: `fraction`, or less.

    Args:
        start_weight: weight that will be held; default: the weight held and waiting.
    """
    limits, holding = weight_limits(state, group), state.durable.groups[group]
    weight = holding.weight if start_weight is None else start_weight
    room = {
        p: limits.room(
            holding.out.get(p, Outgoing()), holding.into.get(p, Incoming()), state.others[p].before.get(group, 0.0)
        )
        for p in to
    }
    most = max(room.values(), default=0.0)
    if most <= 0:
        return (), fraction
    # All get the same share: as much as fits all peers with at least a quarter of the most room.
    share = min(fraction * weight, *(each for each in room.values() if each >= most / 4))
    return tuple(p for p in to if room[p] >= share), share / weight if share < fraction * weight else fraction


def on_transfer(state: NodeState, peer: str, transfer: Transfer) -> bool:
    """Take a share or reject it by name; return whether it was taken."""
    group, share, other = transfer.group, transfer.share, state.others[peer]
    channel = state.durable.groups[group].into.get(peer, Incoming())
    decision, refusal = judge(channel, share), _closed_to(state, peer, group)
    if refusal is None and decision is TransferDecision.REPEATED:
        state.count("repeated", peer)
        _acknowledge(state, peer, group)
        return False
    refusal = refusal or _implausible(state, peer, transfer, channel, decision)
    if refusal is not None:
        code, text = refusal
        state.refuse(code, peer, text, group=group, seq=share.seq)
        return False
    other.begun = True
    other.seen_in(share.round, state.now)
    at_once = not _may_wait(state, group, peer, share)
    state.write(ShareApplied(group=group, sender=peer, share=share, at_once=at_once, signature=transfer.signature))
    _acknowledge(state, peer, group)
    return True


def _closed_to(state: NodeState, peer: str, group: str) -> tuple[str, str] | None:
    """Return why this peer takes no shares of a group from a neighbor now, as code and text; None if it does."""
    other = state.others[peer]
    # A leaving peer takes nothing, or it would never be empty, except from another leaving peer, since each would wait
    # for the other. A rejected share comes back to its sender when everything is handed over.
    if state.durable.left or (state.phase == "leaving" and not state.others.leaving(peer)):
        return "early", "this peer is leaving and takes no more shares"
    if not other.met:
        other.greet_soon(state.now)
        return "early", "we have not met since this process started"
    if group not in other.agreed:
        return "plan_mismatch", f'the group "{group}"'
    return None


def _implausible(
    state: NodeState, peer: str, transfer: Transfer, channel: Incoming, decision: TransferDecision
) -> tuple[str, str] | None:
    """Return why a new share is not taken, as code and text; None if it is."""
    group, share, holding = transfer.group, transfer.share, state.durable.groups[transfer.group]
    if decision is TransferDecision.REUSED:
        state.others[peer].greet_soon(state.now)
    if decision is not TransferDecision.TAKE:
        return decision.value, f"number {share.seq}, but {channel.taken + 1} is next"
    last, most = state.setup.federation.learning.rounds, state.exchanges_max(group)
    if share.round > last + 1:
        return "epoch_too_early", f"round {share.round}, but the last is {last}"
    if share.exchange > most and (share.round, share.exchange) >= holding.at:
        # Under our roster no peer has so many exchanges; under another roster a peer may, and its share is taken late.
        known = not may_precede(state, peer, group, share.seq)
        return "epoch_too_early" if known else "early", f"exchange {share.exchange}, but the last is {most}"
    heavy = weight_refusal(state, peer, group, share)
    if heavy is not None:
        return heavy, f"weight {share.weight:g}, while {holding.weight:g} is held here"
    if not share.nothing:
        mass = brought(channel, share, state.durable.rules.form_of(group), len(state.durable.index[group]))
        noise = state.peer_groups.averaging[group].noise
        # A peer that leaves and is empty takes from others that leave.
        own = holding.held if float(holding.held.weight) > NOTHING_HELD else mass
        far = state.durable.reach(group).refusal(mass, own, noise.scale if noise else 0.0)
        if far is not None:
            return far
    if transfer.signature:
        signed = Signed(share.seq, transfer.total, transfer.signature)
        wrong = _unlike(state, peer, group, "made", signed, channel.taken_weight + share.weight)
        if wrong is not None:
            return wrong, f"signature of number {share.seq} and the sum of weights up to it"
    return None


def _may_wait(state: NodeState, group: str, peer: str, share: NumberedTransfer) -> bool:
    """Return whether a share of a later exchange may wait: its round is not too far ahead, and there is room for it."""
    policy, holding = state.peer_groups.averaging[group], state.durable.groups[group]
    ahead = policy.every * (_STEP_ROUNDS + math.ceil(len(policy.overlay.members) / max(1, policy.exchanges)))
    if share.round > state.durable.round + ahead:
        return False
    place = (share.round, share.exchange, peer)
    if place in holding.waiting:
        return True
    channels = sum(len(each.members) - 1 for each in state.peer_groups.groups.values())
    room = WAITING_BYTES // channels // (8 * len(state.durable.index[group]) + _PLACE_BYTES)
    kept = sum(each[2] == peer for places in (holding.waiting, holding.nothing) for each in places)
    return kept < max(_WAITING_MIN, min(room, _WAITING_MAX))


def _acknowledge(state: NodeState, peer: str, group: str) -> None:
    """Acknowledge what is taken; it is durable when this is sent, since its entry was written before."""
    channel = state.durable.groups[group].into.get(peer, Incoming())
    signature = (
        channel_signature(state, peer, group, "taken", channel.taken, channel.taken_weight) if channel.taken else b""
    )
    ack = Ack(
        group=group, taken=channel.taken, round=state.durable.round, total=channel.taken_weight, signature=signature
    )
    state.send(peer, ack)


def _unlike(state: NodeState, peer: str, group: str, way: ChannelEnd, signed: Signed, total: float) -> str | None:
    """Return the code of a rejection if a neighbor's signed channel state contradicts ours; None if it does not."""
    if not is_signed(state, peer, group, way, signed):
        return "bad_signature"
    if signed.weight != total:  # the two remember the channel differently
        state.others[peer].greet_soon(state.now)
        return "sequence_reused"
    return None


def on_ack(state: NodeState, repeats: Retransmissions, peer: str, ack: Ack) -> None:
    """Close the transfers that a neighbor has taken; if it has more than were made, one of the two lost memory."""
    other, holding = state.others[peer], state.durable.groups[ack.group]
    if not other.met:
        other.greet_soon(state.now)
        return
    channel = holding.out.get(peer, Outgoing())
    if ack.taken > channel.made:
        state.refuse(
            "sequence_jump", peer, f"it has {ack.taken} transfers, but {channel.made} were made", group=ack.group
        )
        other.greet_soon(state.now)
        return
    news = ack.taken > channel.acked
    if news and ack.signature:
        signed = Signed(ack.taken, ack.total, ack.signature)
        wrong = _unlike(state, peer, ack.group, "taken", signed, channel.weight_until(ack.taken))
        if wrong is not None:
            state.refuse(
                wrong, peer, f"signature of number {ack.taken} and the sum of weights up to it", group=ack.group
            )
            return
    other.seen_in(min(ack.round, state.setup.federation.learning.rounds + 1), state.now)
    repeats.answered(peer, ack.group, ack.taken, state.now)
    if news:
        state.write(Acked(group=ack.group, peer=peer, taken=ack.taken, signature=ack.signature))


def retransmit(state: NodeState, repeats: Retransmissions) -> None:
    """Repeat overdue transfers with the same bytes."""
    for peer, group, seq in repeats.due(state.now):
        if group not in state.durable.groups or peer not in state.others:  # a roster has ended it, or revoked the peer
            repeats.drop((peer, group, seq))
            continue
        waits = state.phase == "leaving" and state.others.leaving(peer)
        if not (waits or state.others.expected(peer, group)):
            continue
        channel = state.durable.groups[group].out.get(peer, Outgoing())
        share = next((share for share in channel.open if share.seq == seq), None)
        if share is None:  # its channel was closed: one of the two is a new incarnation
            repeats.drop((peer, group, seq))
            continue
        repeats.sent((peer, group, seq), state.now)
        state.send(peer, _signed_transfer(state, peer, group, share))


def resend_open(state: NodeState, repeats: Retransmissions, peer: str) -> None:
    """Send a neighbor that was just met all transfers that it may not have."""
    repeats.forget(peer)
    for group, holding in state.durable.groups.items():
        if peer in holding.out and group in state.others[peer].agreed:
            for share in holding.out[peer].open:
                ship(state, repeats, group, {peer: share})
