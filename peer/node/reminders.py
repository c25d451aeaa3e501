"""Reminders of forgotten state: a peer believes that it forgot something only if shown its own signature.

A Hello states what its sender remembers of the recipient, and may lie; so it changes none of the recipient's numbers.
If a peer remembers more of another than the other's Hello states, it shows what the other has signed (`Reminder`): a
start of its process with its incarnation at that time, or a transfer or an acknowledgement on a channel between the
two. The other checks its own signature. A statement without such proof is rejected (`unproven`), but never charged: if
the last exchange was in version 1 of the wire, which has no signatures, an honest peer may truly state it, with every
Hello, of a peer that lost its memory. If the other has forgotten what it signed, it comes back as a new incarnation; if
another process with its identity signed it, the later of the two goes on.
"""

from __future__ import annotations

from fedpeer.gossip.incarnations import INCARNATION_AHEAD_MAX
from fedpeer.gossip.proofs import (
    GENERATION_AHEAD_MAX,
    ChannelEnd,
    ChannelProof,
    GenerationProof,
    Signed,
    channel_text,
    generation_text,
)
from fedpeer.gossip.transfers import Incoming, Outgoing
from fedpeer.peer.state.entries import Reborn
from fedpeer.peer.state.events import MessageReceived, RejectEffect
from fedpeer.peer.state.node_state import NodeState
from fedpeer.peer.wire.messages import ChannelState, Hello, Reminder
from fedpeer.rejection import Rejection

#: Most channels in a reminder; one is enough to find out.
_PROOFS_MAX = 2

# ------------------------------------------------------------------------------------------------------------- to sign


def own_signature(state: NodeState) -> bytes:
    """Return the signature (64 bytes) of this peer's incarnation, generation and nonce."""
    durable = state.durable
    now = durable.incarnation, durable.generation, state.setup.nonce
    if state.starts.signature[0] != now:
        state.starts.signature = now, state.sign(generation_text(_federation(state), state.me, *now))
    return state.starts.signature[1]


def channel_signature(state: NodeState, peer: str, group: str, way: ChannelEnd, number: int, weight: float) -> bytes:
    """Return the signature (64 bytes) of this peer's place on a channel to or from `peer`.

    b"" if `peer` speaks a version of the wire without signatures.
    """
    if state.others.version_of(peer) < 2:
        return b""
    durable = state.durable
    ends = (state.me, durable.incarnation), (peer, durable.met.get(peer, 0))
    return state.sign(channel_text(_federation(state), group, *ends, way, number, weight))


def is_signed(state: NodeState, peer: str, group: str, way: ChannelEnd, signed: Signed) -> bool:
    """Return whether `peer` signed this state of a channel between the two, under their present incarnations."""
    durable = state.durable
    ends = (peer, durable.met.get(peer, 0)), (state.me, durable.incarnation)
    return state.verify(
        peer, channel_text(_federation(state), group, *ends, way, signed.number, signed.weight), signed.signature
    )


def is_its_own(state: NodeState, received: MessageReceived, hello: Hello) -> bool:
    """Return whether the numbers of a Hello are signed by its sender, or not at all (older versions of the wire)."""
    text = generation_text(_federation(state), received.sender, received.incarnation, hello.generation, hello.nonce)
    return not hello.signature or state.verify(received.sender, text, hello.signature)


def _federation(state: NodeState) -> bytes:
    return state.peer_groups.roster.federation_id


# ----------------------------------------------------------------------------------------------------------- to remind


def remind(state: NodeState, received: MessageReceived, hello: Hello) -> None:
    """Send the sender of a Hello proof of what it has signed but no longer states.

    In groups with a coordinator, a peer that was met before as another process has lost its disk if its process knows
    nobody. Until it has seen the proof, no peer may take it for the process that was met.
    """
    peer, durable = received.sender, state.durable
    other, shown = state.others[peer], _remembered(state, peer)
    stranger = (
        not received.to_incarnation
        and shown is not None
        and (shown.generation, shown.nonce) != (hello.generation, hello.nonce)
    )
    lost_disk = peer in durable.met and not received.to_incarnation and bool(state.peer_groups.consensus_by_group)
    other.reminded = lost_disk and durable.met_as.get(peer, (0, 0, b""))[:2] != (hello.generation, hello.nonce)
    earlier = shown is not None and (
        shown.incarnation > received.incarnation
        or shown.generation > hello.generation
        or (shown.generation == hello.generation and shown.nonce != hello.nonce)
    )
    channels = _channels(state, received, hello)
    if earlier or stranger or channels:
        state.send(peer, Reminder(generation=shown if earlier or stranger else None, channels=channels))


def _remembered(state: NodeState, peer: str) -> GenerationProof | None:
    """Return the last start that `peer` signed, as received by this process, else as stored when it was met."""
    other, durable = state.others[peer], state.durable
    if other.proof is not None:
        return other.proof
    number, nonce, signature = durable.met_as.get(peer, (0, 0, b""))
    if not signature:
        return None
    return GenerationProof(incarnation=durable.met[peer], generation=number, nonce=nonce, signature=signature)


def _channels(state: NodeState, received: MessageReceived, hello: Hello) -> tuple[ChannelProof, ...]:
    peer, durable = received.sender, state.durable
    if received.incarnation != durable.met.get(peer) or received.to_incarnation not in (0, durable.incarnation):
        return ()
    found = []
    for channel in hello.channels:
        if channel.group in durable.groups:
            holding = durable.groups[channel.group]
            made, taken = holding.into.get(peer, Incoming()).signed, holding.out.get(peer, Outgoing()).signed
            if made is not None and _less(channel.made, channel.made_weight, made):
                found.append(_proof(channel.group, "made", made))
            if taken is not None and _less(channel.taken, channel.taken_weight, taken):
                found.append(_proof(channel.group, "taken", taken))
    return tuple(found[:_PROOFS_MAX])


def _less(number: int, weight: float, signed: Signed) -> bool:
    return number < signed.number or (number == signed.number and weight != signed.weight)


def _proof(group: str, way: ChannelEnd, signed: Signed) -> ChannelProof:
    return ChannelProof(group=group, way=way, number=signed.number, weight=signed.weight, signature=signed.signature)


# ------------------------------------------------------------------------------------------------------ to be reminded


def on_reminder(state: NodeState, received: MessageReceived, reminder: Reminder) -> None:
    """Check the proofs about this peer in a reminder, and act on those that it has signed."""
    shown = reminder.generation
    if shown is not None:
        text = generation_text(_federation(state), state.me, shown.incarnation, shown.generation, shown.nonce)
        if not state.verify(state.me, text, shown.signature):
            state.refuse("unproven", received.sender, "its proof about this peer is not signed by this peer")
            return
        incarnation = state.durable.incarnation
        other_self(state, received.sender, shown.incarnation, shown.generation, shown.nonce)
        if state.durable.incarnation == incarnation:
            # Nothing was forgotten: the sender met an earlier process here, which ended before it had met the sender.
            # The next Hello names the sender's incarnation, which shows that this peer has seen the proof.
            other = state.others[received.sender]
            other.shown = received.incarnation
            other.greet_soon(state.now)
    if state.phase == "stopped" or received.to_incarnation != state.durable.incarnation:
        return
    known = state.durable.met.get(received.sender)
    for proof in reminder.channels:
        if proof.group not in state.durable.groups or (known is not None and received.incarnation < known):
            continue
        ends = (state.me, state.durable.incarnation), (received.sender, received.incarnation)
        text = channel_text(_federation(state), proof.group, *ends, proof.way, proof.number, proof.weight)
        if not state.verify(state.me, text, proof.signature):
            state.refuse("unproven", received.sender, "its proof about a channel is not signed by this peer")
            return
        if _forgot(state, received, proof):
            state.lose_vote()
            begin_incarnation(state, state.durable.incarnation + 1, f"{received.sender} remembers more than this peer")
            return


def _forgot(state: NodeState, received: MessageReceived, proof: ChannelProof) -> bool:
    """Return whether this peer does not remember the state of a channel that it signed."""
    holding = state.durable.groups[proof.group]
    out, into = holding.out.get(received.sender, Outgoing()), holding.into.get(received.sender, Incoming())
    if received.incarnation != state.durable.met.get(received.sender):  # another incarnation, which we never met
        out, into = Outgoing(), Incoming()
    if proof.way == "taken":
        return proof.number > into.taken or (proof.number == into.taken and proof.weight != into.taken_weight)
    return proof.number > out.made or (proof.number > out.acked and proof.weight != out.weight_until(proof.number))


def other_self(state: NodeState, sender: str, incarnation: int, generation: int, nonce: int) -> None:
    """Act on the proof that this peer has signed this incarnation and start, which it may not know.

    If two processes run with one identity, the one that started later goes on (E15). A process that has just started is
    the later one: it takes the next generation. State that an earlier process signed and this disk does not have is
    lost memory, and so are the promises of a process that did not run on this disk. If the vote was lost once, such a
    process of an earlier incarnation is no news: a peer that left, or has another key, keeps its vote when it is back.

    Args:
        sender: the peer that shows the proof; "": nobody in particular.
        generation: of that start; `nonce`: its nonce.
    """
    durable = state.durable
    if (
        generation > durable.generation + GENERATION_AHEAD_MAX
        or incarnation > durable.incarnation + INCARNATION_AHEAD_MAX
    ):
        text = f"incarnation {incarnation}, generation {generation} of this peer"
        state.effects.append(RejectEffect(Rejection("incarnation_jump", text, sender)))
        return
    starts = state.starts
    other_process = nonce != state.setup.nonce or generation not in starts.numbers
    later = other_process and (generation, nonce) > (durable.generation, state.setup.nonce)
    if later and not state.young and incarnation >= durable.incarnation:
        text = f"another process with the identity of {state.me} started after this one, so this one stops"
        state.note("error", "duplicate_peer", text)
        state.stop(2, f"{text}; start {state.me} on one machine only")
        return
    other_disk = other_process and generation not in starts.before
    unknown = later or (other_disk and (not starts.before or generation < starts.before.start))
    lost = incarnation > durable.incarnation or (incarnation == durable.incarnation and unknown)
    known = incarnation < durable.incarnation and all(each.lost for each in durable.consensus_states.values())
    if lost or later or (other_disk and not known):
        state.lose_vote()
    if later:
        state.start(generation + 1)
    if lost:
        begin_incarnation(state, incarnation + 1, "others know of a later generation or incarnation of this peer")
    elif later:
        state.advertise()


def begin_incarnation(state: NodeState, incarnation: int, why: str) -> None:
    """Take a new incarnation, since memory was lost; all peers have to meet it anew."""
    state.write(Reborn(incarnation=incarnation))
    state.note("warning", "reborn", f"memory was lost: {why}; going on as incarnation {incarnation}")
    state.advertise()
    state.others.changed()
    for other in state.others.values():
        other.met, other.hello_at = False, state.now


def unproven_reminder(state: NodeState, received: MessageReceived, hello: Hello) -> str | None:
    """Return what a Hello states of this peer that only this peer's signature could prove; None: nothing."""
    durable = state.durable
    if received.to_incarnation > durable.incarnation:
        return f"incarnation {received.to_incarnation}, but this is {durable.incarnation}"
    if hello.known_generation > durable.generation:
        return f"generation {hello.known_generation}, but this is {durable.generation}"
    if received.to_incarnation < durable.incarnation:
        return None
    for channel in hello.channels:
        if channel.group in durable.groups and _says_more(state, received.sender, channel):
            return f'transfers in the group "{channel.group}" that this peer does not remember'
    return None


def _says_more(state: NodeState, peer: str, channel: ChannelState) -> bool:
    holding = state.durable.groups[channel.group]
    out, into = holding.out.get(peer, Outgoing()), holding.into.get(peer, Incoming())
    other_sum = channel.taken > out.acked and out.weight_until(channel.taken) != channel.taken_weight
    return channel.taken > out.made or channel.acked > into.taken or other_sum
