"""What a peer holds of every other one, and what of it goes along with the next message. No time, nothing is sent.

The table has one place for each id of the roster: the newest statement that this peer made about itself, and what
this peer and others think of that statement. A verdict counts only against the very statement that it names and that is
held here, so nobody can be buried under a number that it never used. Others' verdicts make suspect, and no more: dead
is who is dead by this peer's own verdict. Order: the later incarnation, of one incarnation the later life, of one life
the higher version; at the same one left > finished > dead > suspect > alive.

News is passed on a bounded number of times, the least told first; room left over is filled with the table in turn, so
that whoever missed something gets it in the end (SWIM, 2002, section 4.1; memberlist's push-pull).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fedpeer.gossip.claims import VERDICTS, Claim, State, Verify, claim_bytes, claim_text, well_formed

#: What a peer is to us: as its claims say, or never heard.
MemberStatus = State | Literal["unknown"]

#: What became of a claim. new: taken. known: nothing in it. old: we know better, and the sender should. early: about a
#: statement that we do not hold. The others are refusals by name.
Taken = Literal[
    "new", "known", "old", "early", "bad_signature", "unknown_peer", "stale_incarnation", "false_accuser"
]  # fmt: skip

#: Claims in one message; memberlist fills an UDP packet, we the 4 KiB of metadata.
CLAIMS_MAX = 8
#: Bytes of them: what 4 KiB leave beside an envelope with two ids of 64 letters.
_CLAIMS_BYTES_MAX = 3_500
#: Each news is told this many times log2 of the peers (memberlist's multiplier is 4 times log10, and it gossips in
#: bigger rounds). Fifteen tellings by each of 16 peers leave nobody out at 30 % loss.
_TELLINGS = 3
#: Places of the table that fill up an ordinary message; all that fits goes to a newcomer.
_FILL = 2


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """The newest statement of a peer, this peer's own verdict about it, and those of others, one an author.

    unheeded   one of an author that is not believed: it counts for nothing here, and only its subject is told, which
               answers, so that its author hears better
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
        """The statement first, so that who receives both can make sense of the verdict."""
        return () if self.statement is None else (self.statement, *self.verdicts)

    def refuted_by(self, claim: Claim) -> bool:
        """Whether the same process says later that it is alive, so that verdicts about this statement were wrong."""
        mine, theirs = self.statement, claim
        if mine is None or theirs.state != "alive" or mine.advert is None or theirs.advert is None:
            return False
        generation = mine.advert.generation, mine.advert.nonce
        return (theirs.advert.generation, theirs.advert.nonce) == generation and theirs.number > mine.number


class MemberTable:
    """The table of one peer and its queue of news; both bounded by the roster.

    confirmations   verdicts of others beyond the first that are kept and passed on
    """

    def __init__(self, me: str, federation: bytes, verify: Verify, confirmations: int) -> None:
        self.me = me
        self._federation = federation
        self._verify = verify
        self._confirmations = confirmations
        self._held: dict[str, MemberRecord] = {}
        self._told: dict[Claim, int] = {}  # news, and how often each was told
        self._urgent: set[Claim] = set()  # of these, what is worth messages of its own
        self._turn = 0

    @property
    def roster(self) -> tuple[str, ...]:
        """All ids, in order."""
        return tuple(self._held)

    def set_roster(self, ids: Collection[str]) -> None:
        """Forget those who are not in it; the new ones are unknown."""
        self._held = {peer: self._held.get(peer, MemberRecord()) for peer in sorted(ids)}

    def __contains__(self, peer: str) -> bool:
        return peer in self._held

    def __getitem__(self, peer: str) -> MemberRecord:
        return self._held[peer]

    @property
    def urgent(self) -> bool:
        """Whether there is news that should not wait for the next probe."""
        self._forget_old_news()
        return not self._urgent.isdisjoint(self._told)

    def checked(self, claim: Claim) -> Taken | None:
        """The refusal of a claim that cannot be genuine, or None. Costs a signature check."""
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
            return "known"  # who finished or left has nothing to be suspected of, and the dead are dead
        if claim.author == self.me:
            return "known"  # what this peer finds is not told to it; this may be from an earlier generation
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
        """Hold a verdict of this peer's own; False where it says nothing new."""
        held = self._held[claim.about]
        alive = held.statement is not None and held.statement.state == "alive"
        if not alive or held.status == "dead" or (held.ours is not None and claim.state == "suspect"):
            return False
        self.put(replace(held, ours=claim), urgent=True)
        return True

    def put(self, held: MemberRecord, *, urgent: bool) -> None:
        """Hold this of a peer, and tell what is new in it; a verdict takes its statement along."""
        assert held.statement is not None
        before = self._held[held.statement.about]
        self._held[held.statement.about] = held
        again = {held.statement} if held.status != before.status else set()
        fresh = [claim for claim in held.claims if claim in again or claim not in before.claims]
        self._told.update(dict.fromkeys(fresh, 0))
        if urgent:
            self._urgent.update(fresh)

    def choose(self, to: str, known_badly: Sequence[str] = (), *, newcomer: bool = False) -> tuple[Claim, ...]:
        """The claims that go along with a message to `to`, at most CLAIMS_MAX and _CLAIMS_BYTES_MAX.

        First what others think of it, so that it can answer (Lifeguard's buddy system); then what it knows
        badly; then the news; then the table in turn, for a newcomer everything that fits and ourselves first.
        """
        self._forget_old_news()
        news = heapq.nsmallest(CLAIMS_MAX, self._told, key=lambda claim: self._told[claim])
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
        for claim in chosen:
            if claim in self._told:
                self._told[claim] += 1
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

    def _forget_old_news(self) -> None:
        limit = _TELLINGS * math.ceil(math.log2(len(self._held) + 1))
        self._told = {
            claim: count
            for claim, count in self._told.items()
            if count < limit and claim.about in self._held and claim in self._held[claim.about].claims
        }
        self._urgent &= self._told.keys()


def _order(claim: Claim) -> tuple[object, ...]:
    """The later statement is the larger. A later generation outdoes an earlier one of the same memory, whatever its
    version:
    of two processes with one identity the later need not hear first what the other has said."""
    assert claim.advert is not None
    state = ("alive", "finished", "left").index(claim.state)
    return claim.incarnation, claim.advert.generation, claim.advert.nonce, claim.version, state
