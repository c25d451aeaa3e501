"""The other peers as a running node knows them, and the status of each in a group.

Membership knows whether a peer is alive. A `Neighbor` knows whether the two have met and on which groups they agree. A
`Reputation` knows whether the peer's messages are taken. `status_of` derives one status from these, and everything that
sends or waits for shares uses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedpeer.gossip.averaging import Averaging
from fedpeer.gossip.awareness import ProbeTiming
from fedpeer.gossip.dissemination import MemberStatus
from fedpeer.gossip.membership import Membership
from fedpeer.peer.state.neighbor import Neighbor
from fedpeer.peer.state.reputation import Reputation
from fedpeer.peer.wire.message_policy import MessagePolicy
from fedpeer.peer.wire.versions import NEWEST

#: Status of another peer in a group: the first of these that holds.
#:
#: unmet        not met since this process started
#: disagreeing  has a contract or network in which the group is another one
#: paused       its messages are not taken for a while, or never again
#: left         hands everything over, or has done so
#: doubted      thought dead for less than `DOUBT_TICKS`
#: dead         thought dead for longer
#: active       none of these: shares can go to and come from it
NeighborStatus = Literal["unmet", "disagreeing", "paused", "left", "doubted", "dead", "active"]

#: Ticks for which a peer that is thought dead is still waited for, up to the usual deadline: within them a false death
#: is refuted (P8). A peer that believed a death at once would go on alone, rounds ahead of peers that only lost some
#: packets.
DOUBT_TICKS = 200
#: Ticks of running time after which a peer that is away may never come back: ten minutes, twice the longest cut that is
#: promised to do no harm.
AWAY_TICKS = 24_000
#: More ticks at once than this mean that this process stood still, as in membership: in the rest of them no answer of
#: another peer could be received.
_PAUSE_TICKS = ProbeTiming().pause


@dataclass
class Clock:
    """Ticks since this process began (`now`), and those of them in which it ran (`ran`)."""

    now: int = 0
    ran: int = 0

    def advance(self, now: int) -> None:
        self.ran += min(now - self.now, _PAUSE_TICKS)
        self.now = now


def status_of(other: Neighbor | None, group: str, member: MemberStatus, *, listens: bool) -> NeighborStatus:
    """Return a peer's status in a group from its membership status and whether its messages are taken."""
    if other is None or not other.met:
        return "unmet"
    if group not in other.agreed:
        return "disagreeing"
    if not listens:
        return "paused"
    if member == "left":
        return "left"
    if member == "dead":
        return "dead" if other.buried_at is None else "doubted"
    return "active"


class Neighbors(dict[str, Neighbor]):
    """All other peers of the roster, by id.

    reputations   of peers from which something was rejected
    statuses      by (peer, group); kept until `changed`, as the next two, since every message needs them
    living        by group, its averaging among the expected members
    policies      by sender, the policy that its messages are checked against
    """

    def __init__(self, membership: Membership, clock: Clock) -> None:
        super().__init__()
        self._membership, self._clock = membership, clock
        self.reputations: dict[str, Reputation] = {}
        self.statuses: dict[tuple[str, str], NeighborStatus] = {}
        self.living: dict[str, Averaging] = {}
        self.policies: dict[str | None, MessagePolicy] = {}
        self._silenced = set[str]()  # whose messages were not taken at the last tick

    def status(self, peer: str, group: str) -> NeighborStatus:
        """Return the status of a peer of the roster in a group."""
        key = (peer, group)
        if key not in self.statuses:
            member = self._membership.status(peer) if peer in self else "unknown"
            self.statuses[key] = status_of(self.get(peer), group, member, listens=self.listens(peer))
        return self.statuses[key]

    def available(self, peer: str, group: str) -> bool:
        """Return whether shares can go to and come from this peer now, as far as is known."""
        return self.status(peer, group) == "active"

    def expected(self, peer: str, group: str) -> bool:
        """Return whether averaging counts on this peer: it is available, or was until a moment ago."""
        return self.status(peer, group) in ("active", "doubted")

    def listens(self, peer: str) -> bool:
        """Return whether messages of this peer are taken now."""
        reputation = self.reputations.get(peer)
        return reputation is None or reputation.listens(self._clock.now)

    def present(self, peer: str) -> bool:
        """Return whether membership takes this peer for running."""
        return self._membership.status(peer) in ("alive", "suspect", "finished")

    def unfinished(self, peer: str) -> bool:
        """Return whether membership takes this peer for running, with rounds to go."""
        return self._membership.status(peer) in ("alive", "suspect")

    def long_away(self, peer: str) -> bool:
        """Return whether this peer has been away, by membership, for so long that it may never come back."""
        return not self.present(peer) and self._clock.ran - self[peer].away_since >= AWAY_TICKS

    def gone(self, peer: str) -> bool:
        """Return whether membership takes this peer for dead, or it has announced that it leaves."""
        return self._membership.status(peer) in ("dead", "left")

    def leaving(self, peer: str) -> bool:
        """Return whether this peer is leaving, and has not announced yet that it has handed everything over."""
        return peer in self and self[peer].met and self._membership.status(peer) == "left"

    def received_since(self, peer: str, tick: int) -> bool:
        """Return whether anything came from this peer itself since this tick."""
        return peer in self and self[peer].received_at >= tick

    def heard_within(self, peer: str, ticks: int) -> bool:
        """Return whether anything came from this peer itself within so many ticks in which this process ran."""
        return peer in self and self._clock.ran - self[peer].received_ran <= ticks

    def round_of(self, peer: str) -> int:
        """Return the latest round in which this peer was seen, or which it states.

        A peer that is not a neighbor is seen only when it is met.
        """
        statement = self._membership.last_statement(peer)
        stated = statement.advert.round if statement is not None and statement.advert is not None else 0
        return max(self[peer].round, stated)

    def begun(self, peer: str) -> bool:
        """Return whether this peer has begun to learn, by its Hello or by the round that it states."""
        return self[peer].begun or self.round_of(peer) > 0

    def version_of(self, peer: str) -> int:
        """Return the version of the wire in which messages to this peer are written."""
        return self[peer].version if peer in self else NEWEST

    def can(self, peer: str, capability: str) -> bool:
        """Return whether this peer states a capability beyond its version of the wire."""
        return peer in self and capability in self[peer].capabilities

    def charge(self, code: str, sender: str, tick_s: float) -> Reputation | None:
        """Charge a rejection to the sender's reputation; return that if its messages are not taken from now on."""
        now = self._clock.now
        before = self.reputations.get(sender, Reputation())
        after = self.reputations[sender] = before.after(code, now, tick_s)
        if before.listens(now) == after.listens(now):
            return None
        self.changed()
        return after if before.listens(now) else None

    def forget(self, peer: str) -> None:
        """Drop what is known of a peer that is no longer in the roster, or has another key."""
        self.pop(peer, None)
        self.reputations.pop(peer, None)

    def reconsider(self) -> None:
        """Update what time changes: pauses and doubts that may be over."""
        now = self._clock.now
        over = [each for each in self.values() if now - (each.buried_at or now) >= DOUBT_TICKS]
        for other in over:
            other.buried_at = None
        silenced = {peer for peer in self.reputations if not self.listens(peer)}
        if over or silenced != self._silenced:
            self._silenced = silenced
            self.changed()

    def changed(self) -> None:
        """Forget derived values: a peer came, went, met this one or was paused, or this peer itself has changed."""
        for kept in (self.statuses, self.living, self.policies):
            kept.clear()
