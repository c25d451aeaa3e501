"""Effects of membership: probes are sent, changes are noted, and a second process of this peer is noticed."""

from __future__ import annotations

from fedpeer.gossip.membership import MemberChange, MembershipEffect, OtherSelf, SendProbe
from fedpeer.gossip.outcomes import ClaimRejection
from fedpeer.peer.node.reminders import other_self
from fedpeer.peer.state.neighbors import DOUBT_TICKS
from fedpeer.peer.state.node_state import NodeState
from fedpeer.peer.wire.messages import Ping, PingRequest, Pong
from fedpeer.rejection import Rejection


def attend(state: NodeState, outs: list[MembershipEffect]) -> None:
    """Carry out the outputs of membership."""
    for out in outs:
        match out:
            case SendProbe(kind="ping"):
                state.send(out.to, Ping(number=out.number, claims=out.claims))
            case SendProbe(kind="ping-request"):
                state.send(out.to, PingRequest(number=out.number, target=out.target, claims=out.claims))
            case SendProbe():
                state.send(out.to, Pong(number=out.number, target=out.target, received=out.received, claims=out.claims))
            case MemberChange():
                _changed(state, out)
            case Rejection(code="unknown_peer" | "bad_signature") if _goes_by_another_roster(state, out):
                state.note("debug", "other_roster", out.text, peer=out.sender)
            case Rejection():
                state.count(out.code, out.sender, out.text)
            case OtherSelf():
                advert = out.claim.advert
                assert advert is not None, "a statement has an advert"
                other_self(state, "", out.claim.incarnation, advert.generation, advert.nonce)


def _changed(state: NodeState, change: MemberChange) -> None:
    """Take up a change of a peer's membership status."""
    other = state.others.get(change.peer)
    doubt = {change.before, change.after} == {"alive", "suspect"}
    text = f"{change.peer} is {change.after}, according to {change.reason}"
    state.note("debug" if doubt else "info", "membership", text, peer=change.peer, state=change.after)
    if other is None:
        return
    statement = state.membership.last_statement(change.peer)
    if statement is not None and statement.advert is not None:
        other.begun = statement.advert.begun
    other.buried_at = state.now if change.after == "dead" else None
    if change.after == "dead":
        other.away_since = state.ran
    if change.after == "alive" and (not other.met or state.unlike(change.peer)):
        other.greet_soon(state.now)
    state.others.changed()


def _goes_by_another_roster(state: NodeState, refused: Rejection) -> bool:
    """Return whether a claim about a peer that our roster lacks, or has with another key, may come in good faith.

    Its sender uses another roster, or did when it sent the claim, since messages may overtake one another; or the
    subject of the claims uses a later roster, of which the sender has heard and this peer has not.
    """
    new = state.enrolled_at is not None and state.now - state.enrolled_at < DOUBT_TICKS
    mine = state.peer_groups.roster.number
    roster = refused.roster if isinstance(refused, ClaimRejection) else 0
    return refused.sender in state.others and (new or roster > mine or state.others[refused.sender].roster != mine)
