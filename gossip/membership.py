"""Membership: one peer's part in SWIM with Lifeguard, as a pure machine without clock, network or key of its own.

`detector.py` finds peers that do not answer, `dissemination.py` holds all claims and chooses which to send,
`awareness.py` computes the waits, and `credit.py` decides whose verdicts count. This module joins them: findings become
signed claims, claims become changes of status, and this peer refutes verdicts on itself by its next statement. Urgent
news makes a few messages of its own; everything else travels on pings and pongs. Dead peers are pinged now and then
with the verdicts on them, so that partitions heal by themselves.

Time is the ticks passed in; a long gap counts as a pause of this process and not as silence of the other peers. Methods
return the effects to carry out, in order: `SendProbe`, `MemberChange`, `Rejection`, `OtherSelf`.

Sources: Das, Gupta, Motivala, SWIM, 2002; Dadgar, Phillips, Currey, Lifeguard, 2018.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from fedpeer.gossip.awareness import Awareness, ProbeTiming
from fedpeer.gossip.claims import STATEMENT_BYTES_MAX, VERDICTS, ClaimedState, Sign, Verify, claim_bytes
from fedpeer.gossip.claims import Advert as Advert
from fedpeer.gossip.claims import Claim as Claim
from fedpeer.gossip.claims import claim_text as claim_text
from fedpeer.gossip.credit import Credit
from fedpeer.gossip.detector import Accuse, Ask, Detector
from fedpeer.gossip.dissemination import MemberRecord, MemberStatus, MemberTable, Taken
from fedpeer.gossip.outcomes import ClaimRejection
from fedpeer.gossip.outcomes import MemberChange as MemberChange
from fedpeer.gossip.outcomes import MembershipEffect as MembershipEffect
from fedpeer.gossip.outcomes import OtherSelf as OtherSelf
from fedpeer.gossip.outcomes import SendProbe as SendProbe
from fedpeer.rejection import Rejection


class Membership:
    """One peer's membership machine.

    me            id of this peer
    federation    digest of the federation, part of every signed text
    roster        ids of all peers of the federation, this one included
    incarnation   incarnation of this peer's memory
    advert        this peer's description of itself; `advertise` changes it
    draws         random numbers that choose whom to ping, and when to begin
    sign          signs with this peer's key
    verify        checks signatures with the roster's keys
    timing        waits in ticks; default `ProbeTiming()`
    """

    def __init__(
        self,
        me: str,
        *,
        federation: bytes,
        roster: Collection[str],
        incarnation: int,
        advert: Advert,
        draws: np.random.Generator,
        sign: Sign,
        verify: Verify,
        timing: ProbeTiming | None = None,
    ) -> None:
        assert me in roster, "the roster contains this peer"
        self.me = me
        self._timing = timing or ProbeTiming()
        self._federation = federation
        self._sign = sign
        self._members = MemberTable(me, federation, verify, self._timing.confirmations)
        self._members.set_roster(roster)
        self._detector = Detector(me, self._timing, draws)
        self._credit = Credit()
        self._clock = 0  # ticks in which this process ran
        self._now: int | None = None
        self._next_gossip = 0
        self._next_revisit = int(draws.integers(self._timing.revisit))
        self._wanted: tuple[int, ClaimedState, Advert] = incarnation, "alive", advert
        self._next_passing: dict[str, int] = {}
        #: By peer that was heard after this peer's verdict of death, the number of the statement that the verdict was
        #: about; and those of these peers that were sent no message since.
        self._withdrawn: dict[str, tuple[int, int]] = {}
        self._returned: set[str] = set()
        self._reported: Claim | None = None
        self._stated = 0
        self._restate(1, urgent=True)

    # ------------------------------------------------------------------------------------------------- to be looked at

    @property
    def statement(self) -> Claim:
        """This peer's newest statement about itself."""
        mine = self._members[self.me].statement
        assert mine is not None
        return mine

    @property
    def awareness(self) -> Awareness:
        """This peer's health and its measured fraction of unanswered pings."""
        return self._detector.awareness

    def status(self, peer: str) -> MemberStatus:
        """Return the status of a peer of the roster."""
        return self._members[peer].status

    def last_statement(self, peer: str) -> Claim | None:
        """Return the newest known statement of a peer of the roster."""
        return self._members[peer].statement

    @property
    def living(self) -> tuple[str, ...]:
        """Ids of the other peers that are alive or suspect, sorted."""
        return self._members.living

    # ---------------------------------------------------------------------------------------------------- what happens

    def tick(self, now: int) -> list[MembershipEffect]:
        """Advance to tick `now`; no peer is blamed for its silence during a gap of more than `pause` ticks."""
        self._clock += min(now - self._now, self._timing.pause) if self._now is not None else 0
        self._now = now
        living = self.living
        out: list[MembershipEffect] = []
        for found in self._detector.tick(self._clock, living):
            out += self._accuse(found) if isinstance(found, Accuse) else [self._say(found)]
        if self._overdue():
            self._restate(self.statement.version + 1, urgent=False)
        if self._clock >= self._next_gossip and self._members.urgent:
            self._next_gossip = self._clock + self._timing.gossip
            others = living or [peer for peer in self._members.roster if peer != self.me]
            out += self._pings(self._detector.some(others, self._timing.fan_out))
        if self._clock >= self._next_revisit:
            self._next_revisit = self._clock + self._timing.revisit
            absent = [peer for peer in self._members.roster if self._is_absent(peer)]
            out += self._pings(self._detector.some(absent, 1))
        return out

    def received(self, sender: str) -> list[MembershipEffect]:
        """Record that a message, whatever its content, came from the sender itself: it is alive.

        This peer's own verdict that the sender is dead is withdrawn. Where packets are lost, waiting until the sender
        has heard of the verdict and has refuted it would take two more messages, each of which may be late by seconds.
        """
        if sender not in self._members:
            return []
        self._detector.received(sender, self._clock)
        if not self._members.withdraw(sender):
            return []
        self._returned.add(sender)
        statement = self._members[sender].statement
        assert statement is not None, "a verdict is on a statement"
        self._withdrawn[sender] = statement.number
        self._inform_detector(sender)
        return [MemberChange(sender, "dead", self.status(sender), sender)]

    def on_ping(self, sender: str, number: int, claims: Sequence[Claim]) -> list[MembershipEffect]:
        """Answer a ping with a pong that corrects the sender's outdated claims."""
        if sender not in self._members:
            return [_stranger(sender, sender)]
        back = self.received(sender)
        newcomer = self._is_absent(sender)
        out, badly = self._learn(sender, claims)
        return [*back, *out, self._say(Ask(sender, "pong", number, self.me), badly, newcomer=newcomer)]

    def on_ping_request(self, sender: str, number: int, target: str, claims: Sequence[Claim]) -> list[MembershipEffect]:
        """Ping `target` for a sender that cannot reach it, or answer if this peer is the target."""
        if sender not in self._members or target not in self._members:
            return [_stranger(sender, target if sender in self._members else sender)]
        back = self.received(sender)
        out, badly = self._learn(sender, claims)
        out = back + out
        if target == self.me:
            return [*out, self._say(Ask(sender, "pong", number, self.me), badly)]
        return out + [self._say(ask) for ask in self._detector.relay(sender, number, target, self._clock)]

    def on_pong(
        self, sender: str, number: int, target: str, received: bool, claims: Sequence[Claim]
    ) -> list[MembershipEffect]:
        """Handle the answer to a ping or a ping request of this peer's."""
        if sender not in self._members:
            return [_stranger(sender, sender)]
        back = self.received(sender)
        out, _ = self._learn(sender, claims)
        asks = self._detector.answered(sender, number, target, received, self._clock)
        return [*back, *out, *map(self._say, asks)]

    def on_claims(self, sender: str, claims: Sequence[Claim]) -> list[MembershipEffect]:
        """Take claims that came with any other message."""
        return self._learn(sender, claims)[0] if sender in self._members else [_stranger(sender, sender)]

    def advertise(
        self, advert: Advert, *, state: Literal["alive", "finished", "left"] = "alive", incarnation: int | None = None
    ) -> None:
        """Change this peer's description of itself, which the next ticks send.

        A statement is made at once if more than round and score changed, else when the next one is due.
        """
        known, _, before = self._wanted
        self._wanted = incarnation or known, state, advert
        mine = self.statement
        moved_on = replace(before, round=advert.round, score=advert.score)
        if (mine.incarnation, mine.state, moved_on) != self._wanted:
            # A new incarnation starts its versions at 1: verdicts on the earlier one do not apply to it.
            self._restate(mine.version + 1 if mine.incarnation == self._wanted[0] else 1, urgent=True)

    def set_roster(self, ids: Collection[str]) -> list[MembershipEffect]:
        """Replace the roster: peers that are not in it are forgotten, new ones are unknown."""
        assert self.me in ids, "a peer that is removed from the roster stops"
        gone = [peer for peer in self._members.roster if peer not in ids]
        known = [peer for peer in gone if self.status(peer) != "unknown"]
        out: list[MembershipEffect] = [MemberChange(peer, self.status(peer), "unknown", "roster") for peer in known]
        for peer in gone:
            self._detector.changed(peer, "unknown", 0, ours=False, clock=self._clock)
            self._credit.forget(peer)
            self._next_passing.pop(peer, None)
            self._withdrawn.pop(peer, None)
            self._returned.discard(peer)
        self._members.set_roster(ids)
        return out

    # ---------------------------------------------------------------------------------------------------------- claims

    def _learn(self, sender: str, claims: Sequence[Claim]) -> tuple[list[MembershipEffect], list[str]]:
        """Take new claims; return the effects, and the peers on which the sender has outdated claims.

        Changes are counted over a whole message: an old statement and a later verdict of death are one change.
        """
        before = {claim.about: self.status(claim.about) for claim in claims if claim.about in self._members}
        because: dict[str, str] = {}
        out: list[MembershipEffect] = []
        badly: dict[str, None] = {}
        roster = max((claim.advert.roster for claim in claims if claim.advert is not None), default=0)
        for claim in claims:
            if claim.about == self.me:
                found, right = self._answer(sender, claim)
                out += found
            else:
                right = True
                match self._take(claim):
                    case "new":
                        because[claim.about] = claim.author
                        self._inform_detector(claim.about)
                    case "old":
                        right = False
                    case "stale_incarnation" | "bad_signature" | "unknown_peer" | "false_accuser" as code:
                        right = code != "stale_incarnation"
                        out.append(ClaimRejection(code, _described(claim), sender, roster=roster))
                        if code == "false_accuser":
                            out += self._pass_on(claim)
            if not right:
                badly[claim.about] = None
        changes = (
            MemberChange(peer, before[peer], self.status(peer), author)
            for peer, author in because.items()
            if before[peer] != self.status(peer)
        )
        return [*out, *changes], list(badly)

    def _take(self, claim: Claim) -> Taken:
        """Take a claim about another peer; if a statement refutes verdicts, mark their authors.

        If this peer had the same verdict, no author is marked: other peers could not reach the subject either.
        """
        held = self._members[claim.about] if claim.about in self._members else MemberRecord()
        found = held.ours is not None
        if held.statement is not None and self._withdrawn.get(claim.about) == held.statement.number:
            found = True
        taken = self._members.take(claim, credible=self._believes(claim.author))
        if taken == "new" and claim.state not in VERDICTS and not found and held.refuted_by(claim):
            for verdict in held.others:
                self._credit.refuted(verdict.author, self._clock)
        return taken

    def _pass_on(self, claim: Claim) -> list[MembershipEffect]:
        """Ping the subject of a verdict that is not believed: its answer may have no other path to the author."""
        if self._clock < self._next_passing.get(claim.about, 0):
            return []
        self._next_passing[claim.about] = self._clock + self._timing.answer
        return self._pings([claim.about])

    def _believes(self, author: str) -> bool:
        return self._credit.believes(author, self._clock, self.awareness.stretch)

    def _answer(self, sender: str, claim: Claim) -> tuple[list[MembershipEffect], bool]:
        """Answer a claim about this peer; return the effects, and False if the sender's claims are outdated."""
        mine = self.statement
        if claim == mine:
            return [], True
        refused = self._members.checked(claim)
        if refused is not None:
            return [Rejection(refused, _described(claim), sender)], True
        if claim.advert is not None:
            return self._answer_statement(claim), False
        if claim.number < mine.number:
            stale = claim.state == "dead"
            return [Rejection("stale_incarnation", _described(claim), sender)] if stale else [], False
        if claim.number > mine.number or mine.state != "alive":
            return [], True  # about a statement that this process did not make, or about a final one
        # Others may still believe the verdict, so it is refuted; but an author that is not believed neither lowers this
        # peer's health nor causes messages that would not be sent anyway.
        credible = self._believes(claim.author)
        if credible:
            self._detector.refuted()
        self._credit.refuted(claim.author, self._clock)
        self._restate(mine.version + 1, urgent=credible)
        return [Rejection("refuted", _described(claim), sender)], False

    def _answer_statement(self, claim: Claim) -> list[MembershipEffect]:
        """Handle a statement under this peer's own key that is not its newest."""
        mine = self.statement
        assert claim.advert is not None, "statements carry an advert"
        assert mine.advert is not None, "statements carry an advert"
        theirs, ours = (claim.advert.generation, claim.advert.nonce), (mine.advert.generation, mine.advert.nonce)
        if theirs == ours or (theirs < ours and claim.number < mine.number):
            return []
        if theirs < ours and claim.incarnation == mine.incarnation:
            self._restate(claim.version + 1, urgent=True)  # made before this process started: overtake it
            return []
        if claim == self._reported:
            return []
        self._reported = claim
        return [OtherSelf("duplicate" if theirs > ours else "forgotten", claim)]

    def _accuse(self, found: Accuse) -> list[MembershipEffect]:
        """Sign and store a finding of this peer's own, unless the stored claims already cover it."""
        held = self._members[found.peer]
        if held.statement is None:
            return []
        before = held.status
        claim = self._signed(found.peer, held.statement.incarnation, held.statement.version, found.verdict, None)
        if not self._members.find(claim):
            return []
        self._inform_detector(found.peer)
        after = self.status(found.peer)
        return [MemberChange(found.peer, before, after, self.me)] if after != before else []

    def _inform_detector(self, peer: str) -> None:
        held = self._members[peer]
        ours = held.ours is not None
        self._detector.changed(peer, held.status, len(held.verdicts) - 1, ours, self._clock)

    # ------------------------------------------------------------------------------------------------- this peer's own

    def _overdue(self) -> bool:
        wait = max(self._timing.restate, 4 * len(self._members.roster))
        return self.statement.advert != self._wanted[2] and self._clock >= self._stated + wait

    def _restate(self, version: int, *, urgent: bool) -> None:
        """Make the next statement; if it is not urgent, it travels on messages that are sent anyway."""
        incarnation, state, advert = self._wanted
        claim = self._signed(self.me, incarnation, version, state, advert)
        assert claim_bytes(claim) <= STATEMENT_BYTES_MAX, f"a statement of {claim_bytes(claim)} bytes leaves no room"
        self._members.put(MemberRecord(claim), urgent=urgent)
        self._stated = self._clock

    def _signed(self, about: str, incarnation: int, version: int, state: ClaimedState, advert: Advert | None) -> Claim:
        claim = Claim(
            about=about,
            incarnation=incarnation,
            version=version,
            state=state,
            author=self.me,
            advert=advert,
            signature=b"",
        )
        return replace(claim, signature=self._sign(claim_text(self._federation, claim)))

    def _pings(self, peers: Iterable[str]) -> list[MembershipEffect]:
        return [self._say(self._detector.ping(peer, self._clock)) for peer in peers]

    def _is_absent(self, peer: str) -> bool:
        return self.status(peer) in ("dead", "unknown")

    def _say(self, ask: Ask, badly: Sequence[str] = (), *, newcomer: bool = False) -> SendProbe:
        newcomer = newcomer or self._is_absent(ask.to) or ask.to in badly or ask.to in self._returned
        self._returned.discard(ask.to)
        claims = self._members.choose(ask.to, badly, newcomer=newcomer)
        return SendProbe(ask.to, ask.kind, ask.number, ask.target, ask.received, claims)


def _stranger(sender: str, peer: str) -> Rejection:
    return Rejection("unknown_peer", f"{peer} is not in the roster", sender)


def _described(claim: Claim) -> str:
    of = f"{claim.about} (incarnation {claim.incarnation}, version {claim.version})"
    return f"{claim.author} claims that {of} is {claim.state}"
