"""What a peer may have forgotten of itself, and why it believes that: its own signature, and nothing else.

A Hello says what its sender remembers of the other, and may lie; so it changes no number of the one who hears it. Who
remembers more of a peer than that peer's Hello says shows what the peer signed itself (`Reminder`): a start of its
process with the incarnation of that time, a transfer or an acknowledgement on a lane between the two. The peer checks
its own signature. Who says more than it shows is refused (`unproven`), and never charged, at any rate: that is what an
honest peer says, and truly, of one that lost its memory, as often as it greets, where the last exchange was in version
1 of the wire, which has no signatures. What it signed and does not know it has forgotten, and comes back as a new
incarnation; or another process with its identity has signed it, of which the later one goes on.
"""

from __future__ import annotations

from fedpeer.gossip.incarnations import INCARNATION_AHEAD_MAX
from fedpeer.gossip.proofs import LIFE_AHEAD_MAX, LaneProof, LifeProof, Signed, Way, lane_text, life_text
from fedpeer.gossip.transfers import Incoming, Outgoing
from fedpeer.peer.state.entries import Reborn
from fedpeer.peer.state.events import Heard, RejectEffect
from fedpeer.peer.state.node_state import NodeState
from fedpeer.peer.wire.messages import Hello, LaneState, Reminder
from fedpeer.rejection import Rejection

#: Lanes of which a reminder says something; one is enough to find out.
LANES_MAX = 2

# ------------------------------------------------------------------------------------------------------------- to sign


def own_signature(life: NodeState) -> bytes:
    """(64 bytes) of what this peer is now."""
    ledger = life.ledger
    now = ledger.incarnation, ledger.life, life.setup.nonce
    if life.signed_as[0] != now:
        life.signed_as = now, life.sign(life_text(_federation(life), life.me, *now))
    return life.signed_as[1]


def lane_signature(life: NodeState, peer: str, group: str, way: Way, number: int, weight: float) -> bytes:
    """(64 bytes) of how far this peer is on a lane to or from that one; nothing for who could not read it."""
    if life.version_of(peer) < 2:
        return b""
    ledger = life.ledger
    ends = (life.me, ledger.incarnation), (peer, ledger.met.get(peer, 0))
    return life.sign(lane_text(_federation(life), group, *ends, way, number, weight))


def is_signed(life: NodeState, peer: str, group: str, way: Way, signed: Signed) -> bool:
    """Whether that peer signed this of a lane between the two, as they know each other now."""
    ledger = life.ledger
    ends = (peer, ledger.met.get(peer, 0)), (life.me, ledger.incarnation)
    return life.verify(
        peer, lane_text(_federation(life), group, *ends, way, signed.number, signed.weight), signed.signature
    )


def is_its_own(life: NodeState, heard: Heard, hello: Hello) -> bool:
    """Whether the numbers of a Hello are signed by its sender; one of an older version of the wire is not signed."""
    text = life_text(_federation(life), heard.sender, heard.incarnation, hello.life, hello.nonce)
    return not hello.signature or life.verify(heard.sender, text, hello.signature)


def _federation(life: NodeState) -> bytes:
    return life.circle.roster.federation_id


# ----------------------------------------------------------------------------------------------------------- to remind


def remind(life: NodeState, heard: Heard, hello: Hello) -> None:
    """Show the sender of a Hello what it signed and does not say any more.

    Where promises are made, a process that knows nobody, of a peer that was met before as another process, has lost its
    disk; until it has seen what shows that, nobody of those may take it for the one that they know.
    """
    peer, ledger = heard.sender, life.ledger
    other, shown = life.others[peer], _remembered(life, peer)
    stranger = not heard.to_incarnation and shown is not None and (shown.life, shown.nonce) != (hello.life, hello.nonce)
    lost_disk = peer in ledger.met and not heard.to_incarnation and bool(life.circle.councils)
    other.reminded = lost_disk and ledger.met_as.get(peer, (0, 0, b""))[:2] != (hello.life, hello.nonce)
    earlier = shown is not None and (
        shown.incarnation > heard.incarnation or (shown.life, shown.nonce) > (hello.life, hello.nonce)
    )
    lanes = _lanes(life, heard, hello)
    if earlier or stranger or lanes:
        life.send(peer, Reminder(life=shown if earlier or stranger else None, lanes=lanes))


def _remembered(life: NodeState, peer: str) -> LifeProof | None:
    """The last start that this peer signed: of those heard of in this life, else of the one that it was met as."""
    other, ledger = life.others[peer], life.ledger
    if other.proof is not None:
        return other.proof
    number, nonce, signature = ledger.met_as.get(peer, (0, 0, b""))
    if not signature:
        return None
    return LifeProof(incarnation=ledger.met[peer], life=number, nonce=nonce, signature=signature)


def _lanes(life: NodeState, heard: Heard, hello: Hello) -> tuple[LaneProof, ...]:
    peer, ledger = heard.sender, life.ledger
    if heard.incarnation != ledger.met.get(peer) or heard.to_incarnation not in (0, ledger.incarnation):
        return ()
    found = []
    for lane in hello.lanes:
        if lane.group in ledger.groups:
            holding = ledger.groups[lane.group]
            made, taken = holding.into.get(peer, Incoming()).signed, holding.out.get(peer, Outgoing()).signed
            if made is not None and _less(lane.made, lane.made_weight, made):
                found.append(_proof(lane.group, "made", made))
            if taken is not None and _less(lane.taken, lane.taken_weight, taken):
                found.append(_proof(lane.group, "taken", taken))
    return tuple(found[:LANES_MAX])


def _less(number: int, weight: float, signed: Signed) -> bool:
    return number < signed.number or (number == signed.number and weight != signed.weight)


def _proof(group: str, way: Way, signed: Signed) -> LaneProof:
    return LaneProof(group=group, way=way, number=signed.number, weight=signed.weight, signature=signed.signature)


# ------------------------------------------------------------------------------------------------------ to be reminded


def hear_reminder(life: NodeState, heard: Heard, reminder: Reminder) -> None:
    """Something that this peer is said to have signed: what follows from it, if it has."""
    shown = reminder.life
    if shown is not None:
        text = life_text(_federation(life), life.me, shown.incarnation, shown.life, shown.nonce)
        if not life.verify(life.me, text, shown.signature):
            life.refuse("unproven", heard.sender, "what it shows of this peer is not signed by this peer")
            return
        incarnation = life.ledger.incarnation
        other_self(life, heard.sender, shown.incarnation, shown.life, shown.nonce)
        if life.ledger.incarnation == incarnation:
            # Nothing was forgotten: an earlier process was met, and ended before it had met the other in turn. By
            # naming the other's incarnation, the next Hello says that this was seen.
            other = life.others[heard.sender]
            other.shown = heard.incarnation
            other.greet_soon(life.now)
    if life.phase == "stopped" or heard.to_incarnation != life.ledger.incarnation:
        return
    known = life.ledger.met.get(heard.sender)
    for proof in reminder.lanes:
        if proof.group not in life.ledger.groups or (known is not None and heard.incarnation < known):
            continue
        ends = (life.me, life.ledger.incarnation), (heard.sender, heard.incarnation)
        text = lane_text(_federation(life), proof.group, *ends, proof.way, proof.number, proof.weight)
        if not life.verify(life.me, text, proof.signature):
            life.refuse("unproven", heard.sender, "what it shows of a lane is not signed by this peer")
            return
        if _forgot(life, heard, proof):
            born_again(life, life.ledger.incarnation + 1, f"{heard.sender} remembers more than this peer")
            return


def _forgot(life: NodeState, heard: Heard, proof: LaneProof) -> bool:
    """Whether this peer does not know what it signed of a lane."""
    holding = life.ledger.groups[proof.group]
    out, into = holding.out.get(heard.sender, Outgoing()), holding.into.get(heard.sender, Incoming())
    if heard.incarnation != life.ledger.met.get(heard.sender):  # with another memory of its, which we never met
        out, into = Outgoing(), Incoming()
    if proof.way == "taken":
        return proof.number > into.taken or (proof.number == into.taken and proof.weight != into.taken_weight)
    return proof.number > out.made or (proof.number > out.acked and proof.weight != out.weight_until(proof.number))


def other_self(life: NodeState, sender: str, incarnation: int, number: int, nonce: int) -> None:
    """This peer signed that it is this incarnation in the start of this number, which it may not know. `sender` shows
    it, or nobody in particular ("").

    Of two living processes with one identity the one that started later goes on (E15). A process that has just started
    began after all others: it takes the next number. What an earlier process signed and this disk does not know is
    memory that was lost.
    """
    ledger = life.ledger
    if number > ledger.life + LIFE_AHEAD_MAX or incarnation > ledger.incarnation + INCARNATION_AHEAD_MAX:
        text = f"incarnation {incarnation}, start {number} of this peer"
        life.effects.append(RejectEffect(Rejection("incarnation_jump", text, sender)))
        return
    other_process = nonce != life.setup.nonce or number not in life.numbers
    later = other_process and (number, nonce) > (ledger.life, life.setup.nonce)
    if later and not life.young and incarnation >= ledger.incarnation:
        text = f"another process with the identity of {life.me} started after this one, so this one stops"
        life.note("error", "duplicate_peer", text)
        life.stop(2, f"{text}; start {life.me} on one machine only")
        return
    if later:
        life.outdone(number + 1)
    elif other_process and life.new:
        life.amnesia = True
    lost = other_process and (later or life.new)
    if incarnation > ledger.incarnation or (incarnation == ledger.incarnation and lost):
        born_again(life, incarnation + 1, "others know of a later start or incarnation of this peer")
    elif later:
        life.advertise()


def born_again(life: NodeState, incarnation: int, why: str) -> None:
    """This peer lost memory: a new incarnation, which everybody has to meet anew."""
    life.write(Reborn(incarnation=incarnation))
    life.note("warning", "reborn", f"memory was lost: {why}; going on as incarnation {incarnation}")
    life.advertise()
    life.changed()
    for other in life.others.values():
        other.met, other.hello_at = False, life.now


def unproven_reminder(life: NodeState, heard: Heard, hello: Hello) -> str | None:
    """What a Hello says of this peer that only this peer's own signature could show; None: nothing."""
    ledger = life.ledger
    if heard.to_incarnation > ledger.incarnation:
        return f"incarnation {heard.to_incarnation}, and this is {ledger.incarnation}"
    if hello.known_life > ledger.life:
        return f"start {hello.known_life}, and this is {ledger.life}"
    if heard.to_incarnation < ledger.incarnation:
        return None
    for lane in hello.lanes:
        if lane.group in ledger.groups and _says_more(life, heard.sender, lane):
            return f'transfers in the group "{lane.group}" that this peer does not remember'
    return None


def _says_more(life: NodeState, peer: str, lane: LaneState) -> bool:
    holding = life.ledger.groups[lane.group]
    out, into = holding.out.get(peer, Outgoing()), holding.into.get(peer, Incoming())
    other_sum = lane.taken > out.acked and out.weight_until(lane.taken) != lane.taken_weight
    return lane.taken > out.made or lane.acked > into.taken or other_sum
