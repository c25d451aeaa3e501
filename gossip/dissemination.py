"""The claims that a peer holds about every other peer, and which of them to attach to the next message.

Nothing here reads a clock or sends anything. The table has one entry for each id of the roster: the newest statement
that the peer with this id made about itself, and the verdicts on that statement, this peer's own and others'. A verdict
counts only against the very statement that it names and that is held here, so no peer can be declared dead under a
version that it never used. Others' verdicts only make a peer suspect; it is dead only by this peer's own verdict. The
order of claims: the later incarnation, within it the later generation, within that the higher version; at the same
version left > finished > dead > suspect > alive.

News is passed on a bounded number of times, the least often sent first. Room left in a message is filled with the
table's entries in turn, so that a peer that missed a claim gets it in the end (SWIM, 2002, section 4.1; memberlist's
push-pull).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fedpeer.gossip.claims import (
    CLAIMS_MAX,
    VERDICTS,
    Claim,
    ClaimedState,
    Verify,
    claim_bytes,
    claim_text,
    well_formed,
)

#: A peer's state according to its claims; unknown: no statement of it has come yet.
MemberStatus = ClaimedState | Literal["unknown"]

#: Result of taking a claim. new: taken. known: adds nothing. old: outdated, and the sender should learn what is newer.
#: early: about a statement that is not held here. The others are codes of rejections.
Taken = Literal[
    "new", "known", "old", "early", "bad_signature", "unknown_peer", "stale_incarnation", "false_accuser"
]  # fmt: skip

#: Bytes of the claims in one message: what 4 KiB leave beside an envelope with two ids of 64 letters.
_CLAIMS_BYTES_MAX = 3_500
#: Each piece of news is sent this many times log2 of the peers (memberlist's multiplier is 4 times log10, and it
#: gossips in bigger rounds). Fifteen transmissions by each of 16 peers reach everyone at 30 % loss.
_RETRANSMITS = 3
#: Entries of the table that fill up an ordinary message; a newcomer gets as many as fit.
_FILL = 2


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """The claims held about one peer.

    statement  the peer's newest statement
    ours       this peer's own verdict on it
    others     other peers' verdicts on it, one for each author
    unheeded   a verdict by an author that is not believed: it does not count here and is sent to its subject only, so
               that the subject's answer corrects its author
    """

    statement: Claim | None = None
    ours: Claim | None = None
    others: tuple[Claim, ...] = ()
    unheeded: Claim | None = None

    @property
    def verdicts(self) -> tuple[Claim, ...]:
        return self.others if self.ours is None else (self.ours, *self.others)

    @property
    def status(self) -> MemberStatus:
        if self.statement is None:
            return "unknown"
        if self.ours is not None and self.ours.state == "dead":
            return "dead"
        return "suspect" if self.verdicts else self.statement.state

    @property
    def claims(self) -> tuple[Claim, ...]:
        """The statement, then the verdicts, which a recipient cannot take without their statement."""
        return () if self.statement is None else (self.statement, *self.verdicts)

    def refuted_by(self, claim: Claim) -> bool:
        """Return whether `claim` is a later "alive" of the same process, which proves verdicts on this one wrong."""
        mine, theirs = self.statement, claim
        if mine is None or theirs.state != "alive" or mine.advert is None or theirs.advert is None:
            return False
        generation = mine.advert.generation, mine.advert.nonce
        return (theirs.advert.generation, theirs.advert.nonce) == generation and theirs.number > mine.number


class MemberTable:
    """One peer's table of claims and its queue of news; both are bounded by the roster.

    confirmations   how many verdicts of others, beyond the first, are kept and passed on
    """

    def __init__(self, me: str, federation: bytes, verify: Verify, confirmations: int) -> None:
        self.me = me
        self._federation = federation
        self._verify = verify
        self._confirmations = confirmations
        self._held: dict[str, MemberRecord] = {}
        self._sent: dict[Claim, int] = {}  # news, and how often each was sent
        self._urgent: set[Claim] = set()  # news that is worth messages of its own
        self._turn = 0
        self._living: tuple[str, ...] | None = None  # None if a record has changed since the last call

    @property
    def roster(self) -> tuple[str, ...]:
        """All ids, sorted."""
        return tuple(self._held)

    def set_roster(self, ids: Collection[str]) -> None:
        """Replace the roster: peers that are not in it are forgotten, new ones are unknown."""
        self._held = {peer: self._held.get(peer, MemberRecord()) for peer in sorted(ids)}
        self._living = None
        self._forget([claim for claim in self._sent if claim.about not in self._held])

    @property
    def living(self) -> tuple[str, ...]:
        """Ids of the other peers that are alive or suspect, sorted."""
        if self._living is None:
            others = ((peer, held.status) for peer, held in self._held.items() if peer != self.me)
            self._living = tuple(peer for peer, status in others if status in ("alive", "suspect"))
        return self._living

    def __contains__(self, peer: str) -> bool:
        return peer in self._held

    def __getitem__(self, peer: str) -> MemberRecord:
        return self._held[peer]

    @property
    def urgent(self) -> bool:
        """True if there is news that should not wait for the next probe."""
        return bool(self._urgent)

    def checked(self, claim: Claim) -> Taken | None:
        """Return the code of a rejection if a claim cannot be genuine, else None; this costs a signature check."""
        if claim.about not in self._held or claim.author not in self._held:
            return "unknown_peer"
        if not well_formed(claim) or not self._verify(
            claim.author, claim_text(self._federation, claim), claim.signature
        ):
            return "bad_signature"
        return None

    def take(self, claim: Claim, *, credible: bool = True) -> Taken:
        """Take a claim about another peer, if it is genuine and news, and a verdict if its author is `credible`."""
        held = self._held.get(claim.about)
        if held is None:
            return "unknown_peer"
        if claim in held.claims:
            return "known"
        refused = self.checked(claim)
        if refused is not None:
            return refused
        if claim.state not in VERDICTS:
            return self._take_statement(held, claim)
        return self._take_verdict(held, claim, credible)

    def _take_statement(self, held: MemberRecord, claim: Claim) -> Taken:
        if held.statement is not None and _order(claim) < _order(held.statement):
            return "old"
        self.put(MemberRecord(claim), urgent=held.status != claim.state)
        return "new"

    def _take_verdict(self, held: MemberRecord, claim: Claim, credible: bool) -> Taken:
        statement = held.statement
        if statement is None or claim.number > statement.number:
            return "early"
        if claim.number < statement.number:
            return "stale_incarnation" if claim.state == "dead" else "old"
        if statement.state != "alive" or held.status == "dead":
            return "known"  # a peer that finished or left is not suspected, and a dead one stays dead
        if claim.author == self.me:
            return "known"  # this peer's own findings do not come from outside; this may be from an earlier generation
        before = next((verdict for verdict in held.others if verdict.author == claim.author), None)
        if before is None and len(held.others) > self._confirmations:
            return "known"
        if before is not None and (before.state == "dead" or claim.state == "suspect"):
            return "known"
        if not credible:
            self._held[claim.about] = replace(held, unheeded=claim)
            return "false_accuser"
        kept = tuple(verdict for verdict in held.others if verdict is not before)
        self.put(replace(held, others=(*kept, claim)), urgent=True)
        return "new"

    def find(self, claim: Claim) -> bool:
        """Store a verdict of this peer's own; return False if it adds nothing."""
        held = self._held[claim.about]
        alive = held.statement is not None and held.statement.state == "alive"
        if not alive or held.status == "dead" or (held.ours is not None and claim.state == "suspect"):
            return False
        self.put(replace(held, ours=claim), urgent=True)
        return True

    def withdraw(self, peer: str) -> bool:
        """Drop all verdicts on a peer that this one declared dead; return False if it did not."""
        held = self._held[peer]
        if held.status != "dead":
            return False
        self.put(replace(held, ours=None, others=()), urgent=False)
        return True

    def put(self, held: MemberRecord, *, urgent: bool) -> None:
        """Replace a peer's record and queue its new claims as news; where the status changes, its statement as well."""
        assert held.statement is not None
        before = self._held[held.statement.about]
        self._held[held.statement.about] = held
        self._living = None
        again = {held.statement} if held.status != before.status else set()
        fresh = [claim for claim in held.claims if claim in again or claim not in before.claims]
        self._forget(claim for claim in before.claims if claim not in held.claims)
        self._sent.update(dict.fromkeys(fresh, 0))
        if urgent:
            self._urgent.update(fresh)

    def choose(self, to: str, known_badly: Sequence[str] = (), *, newcomer: bool = False) -> tuple[Claim, ...]:
        """Choose the claims to attach to a message to `to`, at most CLAIMS_MAX and _CLAIMS_BYTES_MAX.

        Verdicts on the recipient come first, so that it can refute them (Lifeguard's buddy system), then the peers on
        which it has outdated claims (`known_badly`), then news, then the table's entries in turn. A newcomer gets this
        peer's own statement before the news, and as much of the table as fits.
        """
        news = heapq.nsmallest(CLAIMS_MAX, self._sent, key=lambda claim: self._sent[claim])
        chosen: dict[Claim, None] = {}
        room = _CLAIMS_BYTES_MAX
        for claim in self._offered(to, known_badly, news, newcomer):
            size = claim_bytes(claim)
            if claim in chosen or size > room:
                continue
            chosen[claim] = None
            room -= size
            if len(chosen) == CLAIMS_MAX:
                break
        sent = [claim for claim in chosen if claim in self._sent]
        for claim in sent:
            self._sent[claim] += 1
        limit = _RETRANSMITS * math.ceil(math.log2(len(self._held) + 1))
        self._forget([claim for claim in sent if self._sent[claim] >= limit])
        return tuple(chosen)

    def _offered(self, to: str, known_badly: Sequence[str], news: Sequence[Claim], newcomer: bool) -> Iterable[Claim]:
        accused = self._held[to]
        yield from accused.verdicts[:1]
        yield from [accused.unheeded] if accused.unheeded else []
        for peer in (*known_badly, *([self.me] if newcomer else [])):
            yield from self._held[peer].claims[:2]
        yield from news
        for _ in range(len(self._held) if newcomer else _FILL):
            self._turn = (self._turn + 1) % len(self._held)
            peer = self.roster[self._turn]
            if peer != to:
                yield from self._held[peer].claims[:2]

    def _forget(self, claims: Iterable[Claim]) -> None:
        """Drop claims from the news: sent often enough, or no longer stored."""
        for claim in claims:
            self._sent.pop(claim, None)
            self._urgent.discard(claim)


def _order(claim: Claim) -> tuple[object, ...]:
    """Return a sort key of a statement: the later statement is the larger.

    Within one incarnation, a later generation outdoes an earlier one whatever the versions: of two processes with one
    identity, the later need not first learn what the other has stated.
    """
    assert claim.advert is not None
    state = ("alive", "finished", "left").index(claim.state)
    return claim.incarnation, claim.advert.generation, claim.advert.nonce, claim.version, state
