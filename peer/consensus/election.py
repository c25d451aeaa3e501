"""One voter's part in Raft's leader election, as a pure machine: no clock, no network, no key of its own.

A term has at most one coordinator (Raft's leader): it needs the votes of more than half of the voter set, and nobody
votes twice in a term. A voter that receives no heartbeat for a while first asks whether it would be elected (pre-vote),
so that a peer behind a bad link disturbs nobody; a voter that received one lately refuses (lease). A coordinator
without answers from a majority steps down (check quorum); it does so at once if the processes of so many voters have
ended, or so many state a later term, that the others are no majority. A vote goes only to a candidate that knows
everything the voter accepted. So the winner holds the newest committed round that may be in force, and its model
(`round_commit.py`).

A term counts only if a majority can have meant it. A peer's term is raised by its own vote for a candidate, and by a
leader certificate, which carries a majority's signatures. The term that another peer states in a vote reply or a
heartbeat reply raises no peer's term; otherwise anyone could depose a coordinator and end every election by stating
numbers. While there is a coordinator, nobody votes. Without one, a peer that stands again and again, or is elected and
commits nothing, gets votes less and less often (`candidacies.py`). A candidate whose term is too low asks for the
lowest term in which a majority can promise its votes, by the voters' own statements; voters that state a higher term
are not asked.

A peer that has voted in a term that nobody won, and receives a heartbeat of an earlier term's coordinator, does not
depose that coordinator: it sends its updates there (`followed`), applies the rounds that come into force, and accepts
nothing in that term. When that coordinator has no majority left, all peers meet in a later term.

If the coordinator's machine refuses connections, its process has ended: peers no longer wait for it, however long
leases are by then. A follower that receives nothing from it for two heartbeats sends it a message to find out.

Disks or links may take longer than a poll: votes that arrive later count while the candidate is in that term, and polls
last longer each time that nobody is elected.

A coordinator that was silent for longer than its lease but is alive shows that machines here have no time for their
processes, and so does this process when it stands still for that long: leases are longer from then on, and shorten
again when nobody has stood still for a while.

A leader certificate grows with the number of voters, so a heartbeat carries it only until the member replies in that
term. From then on the heartbeat carries the certificate's digest (`ShortHeartbeat`), which names a certificate that the
recipient itself has verified. A recipient that does not know the certificate, since it was started again, does not
reply; a member that has not replied for three heartbeats gets the certificate with each further heartbeat. So lost
messages delay nobody, and a digest that was made up is worth nothing.

Leases and waits serve progress only: safety rests on terms and signatures, whatever ticks are passed in. Preference for
capable peers is the order in which they stand, not a rule: `patience` 0 stands first.

A certificate proves that a majority of *its* roster voted. Once a round is applied, certificates of an earlier roster
that differs from the one in force by two voters or more no longer count: a majority of that roster need not meet one of
the roster in force, and in a federation that began with one peer, that peer alone would be a majority for ever. A
coordinator that was elected under such a roster steps down when the round that outdates its roster comes into force;
nobody waits for its lease, and it stands again before all others. A peer that has applied no round yet knows no roster
that is in force.

With fewer than three voters no majority survives the loss of one, so there is no failover: the voter with the lowest
living id stands, and while one of two voters is away, rounds wait.

Sources: Ongaro and Ousterhout, In Search of an Understandable Consensus Algorithm, 2014, sections 5.2 and 5.4; Ongaro,
Consensus: Bridging Theory and Practice, 2014, sections 4.2.3, 6.2 and 9.6. Heartbeats with votes are fedpeer's own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

import numpy as np

from fedpeer.gossip.claims import Sign
from fedpeer.peer.consensus.candidacies import FailedCandidacies
from fedpeer.peer.consensus.polls import ElectionTiming, Poll
from fedpeer.peer.wire.consensus_messages import (
    ConsensusEffect,
    HardState,
    Heartbeat,
    HeartbeatReply,
    LeaderCertificate,
    LeaderChanged,
    PersistConsensus,
    Progress,
    Scope,
    SendConsensus,
    ShortHeartbeat,
    VerifyUnder,
    VoteReply,
    VoteRequest,
    VoterSet,
    certificate_digest,
    leader_certificate_holds,
    vote_text,
)
from fedpeer.rejection import Rejection

#: Terms further ahead than this are rejected: with an election every second it would take twelve days.
TERM_JUMP_MAX = 2**20
#: Terms further ahead than this are not believed on one peer's word: that would take so many elections in a row that a
#: majority wanted, that nobody won, and of which this peer received nothing. A peer that missed more learns the term
#: from a leader certificate, or from a round that came into force.
RAISE_MAX = 16
#: Earlier rosters that are remembered: a peer that is behind coordinates or certifies under one of them.
_EARLIER_MAX = 8
#: Leader certificates that are remembered by their digests: that of this term's coordinator, and that of an earlier
#: term's coordinator, which is followed while this term has none. All other certificates belong to past terms.
_VERIFIED_MAX = 2
#: Fewest voters with which the others go on when one dies.
_FAILOVER_MIN = 3


class Election:
    """The election machine of one peer.

    voter_sets     known voter sets; `force` is the number of the one in force
    hard_state     term and vote, as they were last made durable
    progress       progress of this peer; the driver of the machine keeps it up to date
    patience       from 0 (the most capable peer) to 1 (`capability.py`)
    draws          source of the random waits; consumed as time goes on
    sign           signs with this peer's key; `verify_under`: verifies by the keys of a roster
    reads_short    returns whether a peer reads a `ShortHeartbeat`; earlier releases do not
    """

    def __init__(
        self,
        me: str,
        *,
        scope: Scope,
        voter_sets: Collection[VoterSet],
        force: int,
        hard_state: HardState,
        progress: Progress,
        patience: float,
        draws: np.random.Generator,
        sign: Sign,
        verify_under: VerifyUnder,
        reads_short: Callable[[str], bool],
        timing: ElectionTiming | None = None,
    ) -> None:
        self.me = me
        self.scope = scope
        self.hard_state = hard_state
        self.progress = progress
        self.patience = patience
        self._last_in_turn = False
        self.known = {each.number: each for each in voter_sets}
        self.voter_set = self.known[force]
        self.coordinator: str | None = None
        self._timing = timing or ElectionTiming()
        self._draws, self._sign, self._verify_under, self._reads_short = draws, sign, verify_under, reads_short
        self._clock = 0  # ticks in which this process ran
        self._now: int | None = None
        self._received = 0  # tick of the last heartbeat; a process that has just started cannot know that there is none
        self._last = ""  # its sender
        self._ended_processes: set[str] = set()  # peers whose machines refused connections since their last message
        self._asks = 0  # tick at which to test next whether the coordinator listens
        self._lease = self._timing.shortest
        self._slow_at = 0  # tick at which a peer turned out to be alive after a longer silence
        self._deadline = self._wait()
        self._poll: Poll | None = None
        self._candidacy: Poll | None = None  # for votes in this term; late ones count, too
        self._tries = 0  # elections since there was a coordinator
        self._certificate: LeaderCertificate | None = None
        self._elected_under = 0  # number of the roster whose voters elected the coordinator
        self._digest = b""  # of this certificate
        self._next_beat = 0
        self._answered: dict[str, int] = {}
        self._replied: dict[str, int] = {}  # ticks of replies to this certificate
        self._verified: dict[bytes, LeaderCertificate] = {}  # by digest, the last ones
        self._votes: dict[str, str] = {}  # of this term, as far as they were seen
        self._deferred: set[str] = set()  # peers given way to since this term began or its last heartbeat
        self._ended = 0  # a term that had two coordinators
        self._failed = FailedCandidacies(self._timing.shortest)
        self._ahead: dict[str, int] = {}  # later terms that voters state as theirs
        self._earlier: tuple[LeaderCertificate, int] | None = None  # of an earlier term; tick of its last heartbeat
        self._lost: tuple[str, int, int] | None = None  # coordinator whose silence ended its term; last tick, the term
        self._living: frozenset[str] = frozenset()

    # ------------------------------------------------------------------------------------------------- to be looked at

    @property
    def leading(self) -> bool:
        """True while this peer coordinates."""
        return self._certificate is not None

    @property
    def followed(self) -> tuple[str, int] | None:
        """The peer that takes this peer's updates, and its term; None if no peer does.

        It is the coordinator; or an earlier term's coordinator that sent a heartbeat lately, if this peer has voted in
        a later term that nobody won.
        """
        if self.coordinator is not None:
            return self.coordinator, self.hard_state.term
        if self._earlier is None or self._clock - self._earlier[1] >= self._lease:
            return None
        return self._earlier[0].candidate, self._earlier[0].term

    def silent(self, peer: str) -> bool:
        """Return whether `peer` left this coordinator's heartbeats unanswered for so long that it is gone.

        The wait is shorter if its process is known to have ended. For the previous coordinator the wait counts from its
        last heartbeat.
        """
        longest = self._timing.refused if peer in self._ended_processes else self._timing.gone
        return self.leading and self._clock - self._answered.get(peer, self._clock) > longest

    @property
    def failover(self) -> bool:
        """True if the others go on when the coordinator dies."""
        return len(self.voter_set.voters) >= _FAILOVER_MIN

    @property
    def audience(self) -> list[str]:
        """Other members of the voter set in force and of later ones, sorted."""
        known = (each.members for each in self.known.values() if each.number >= self.voter_set.number)
        return sorted(frozenset().union(*known) - {self.me})

    def outdated(self, number: int) -> bool:
        """Return whether nothing under this roster counts: it is earlier, and its majorities need not meet ours."""
        named, now = self.known.get(number), self.voter_set
        return self.progress.applied > 0 and number < now.number and named is not None and not named.near(now)

    # ---------------------------------------------------------------------------------------------------- what happens

    def tick(self, now: int, living: Collection[str], *, stands: bool = True) -> list[ConsensusEffect]:
        """Advance to tick `now`; `living` are the other peers that membership takes for alive.

        `stands`: this peer may be a candidate.
        """
        passed = now - self._now if self._now is not None else 0
        self._clock += min(passed, self._timing.pause)
        self._note_pause(passed)
        self._now, self._living = now, frozenset(living)
        if self._clock - self._slow_at >= self._timing.slow:
            self._slow_at, self._lease = self._clock, max(self._lease // 2, self._timing.shortest)
        if self._certificate is not None:
            return self._keep_leading()
        if self._poll is not None:
            return self._repeat_requests()
        if self._clock < self._deadline or not (stands and self._may_stand(living)):
            return self._probe_coordinator()
        out: list[ConsensusEffect] = []
        if self.coordinator is not None:
            out, self._lost = (
                [LeaderChanged(self.hard_state.term, None)],
                (self.coordinator, self._received, self.hard_state.term),
            )
        self.coordinator = None
        return out + self._open_poll(self.hard_state.term + 1, pre=True)

    def stand_last(self, last: bool) -> None:
        """Let all others stand first while nobody can connect to this peer, since carried connections are slower."""
        if last != self._last_in_turn:
            self._last_in_turn = last
            self._deadline += self._timing.last if last else -self._timing.last

    def nobody_listens(self, peer: str) -> None:
        """Take `peer` for gone: its machine refuses connections, so its process has ended.

        It cannot come back as the coordinator of its term. If it is alive all the same, its next message shows that.
        """
        new = peer not in self._ended_processes
        self._ended_processes.add(peer)
        if self._earlier is not None and peer == self._earlier[0].candidate:
            self._earlier = None
        if peer == self.coordinator and not self.leading and new:
            self._deadline = min(
                self._deadline, max(self._clock, self._received + self._timing.refused) + self._draw_turn()
            )

    def on_vote_request(self, sender: str, vote_request: VoteRequest) -> list[ConsensusEffect]:
        """Answer a vote request or a pre-vote request."""
        if jump := self._term_jump(sender, vote_request.term):
            return jump
        voter_set = self.known.get(vote_request.roster)
        if voter_set is not None and sender not in voter_set.voters:
            return [Rejection("unknown_peer", f"{sender} is not a voter of roster {vote_request.roster}", sender)]
        if self.outdated(vote_request.roster):
            return [self._outdated_roster(sender, "stands", vote_request.roster), self._refusal(sender, vote_request)]
        able = voter_set is not None and vote_request.progress.at_least(self.progress)
        newer = vote_request.term > self.hard_state.term
        out: list[ConsensusEffect] = []
        if newer and not vote_request.pre:
            in_time = self._failed.stands(sender, vote_request.term, self._clock)
            able = able and bool(in_time)
            if in_time is False:
                out.append(
                    Rejection("too_many_terms", f"stands in term {vote_request.term} soon after another", sender)
                )
        if not able or self._has_coordinator() or vote_request.term > self.hard_state.term + RAISE_MAX:
            return [*out, self._refusal(sender, vote_request)]
        if vote_request.pre:
            if not newer or self._failed.rests(sender, self._clock) or not self._defers(sender, vote_request.progress):
                return [self._refusal(sender, vote_request)]
            return [SendConsensus(sender, VoteReply(vote_request.term, True, True, b""))]
        if not newer and (vote_request.term < self.hard_state.term or self.hard_state.voted not in ("", sender)):
            return [self._refusal(sender, vote_request)]
        if newer:  # the candidate gets time to win; asking again gives it no more
            self._deadline = self._clock + max(self._lease, self._lengthened(self._timing.shortest)) + self._draw_turn()
            self._tries += 1
        out += self._adopt(vote_request.term, sender)
        text = vote_text(self.scope, self.me, vote_request.term, vote_request.roster, sender)
        return [*out, SendConsensus(sender, VoteReply(vote_request.term, False, True, self._sign(text)))]

    def on_vote_reply(self, sender: str, reply: VoteReply) -> list[ConsensusEffect]:
        """Count a voter's reply to the poll under way."""
        if jump := self._term_jump(sender, reply.term):
            return jump
        poll = self._poll
        if not reply.pre and reply.granted and (poll is None or poll.pre):
            poll = self._candidacy
        if poll is None or reply.pre != poll.pre or (reply.granted and reply.term != poll.term):
            return []
        if sender not in poll.voter_set.voters:
            return [Rejection("unknown_peer", f"{sender} is not a voter of roster {poll.voter_set.number}", sender)]
        if not reply.granted:
            poll.refused.add(sender)
            if poll.term <= reply.term <= self.hard_state.term + RAISE_MAX:
                self._ahead[sender] = reply.term
            lost = not poll.pre and not poll.voter_set.carried(poll.voter_set.voters - poll.refused)
            return self._back_off() if lost else []
        text = vote_text(self.scope, sender, poll.term, poll.voter_set.number, self.me)
        if not poll.pre and not self._verify_under(poll.voter_set.number)(sender, text, reply.signature):
            return [Rejection("bad_signature", f"a vote for term {poll.term} that {sender} did not sign", sender)]
        poll.granted[sender] = reply.signature
        return [*([] if poll.pre else self._note_votes((sender,), self.me)), *self._count_votes(poll)]

    def on_heartbeat(self, sender: str, leader_certificate: LeaderCertificate) -> list[ConsensusEffect]:
        """Follow the sender of a heartbeat, if its certificate shows that it coordinates."""
        if jump := self._term_jump(sender, leader_certificate.term):
            return jump
        self._note_late_heartbeat(sender, leader_certificate.term)
        if leader_certificate.term < self.hard_state.term and self._follows_earlier(sender, leader_certificate):
            return [self._heartbeat_reply(sender)]
        if leader_certificate.term < self.hard_state.term or leader_certificate.term == self._ended:
            return self._stale(sender, leader_certificate.term)
        out: list[ConsensusEffect] = []
        if leader_certificate.term > self.hard_state.term or sender != self.coordinator:
            refusal = self._certificate_problem(sender, leader_certificate)
            if refusal is not None:
                return [refusal]
            if leader_certificate.term == self.hard_state.term and self.coordinator is not None:
                return self._end_term(sender, leader_certificate)
            out += self._adopt(leader_certificate.term, sender)
            out += self._note_votes((author for author, _ in leader_certificate.votes), sender)
            self.coordinator, self._elected_under = sender, leader_certificate.roster
            self._poll = self._candidacy = None
            self._ahead.clear()
            out.append(LeaderChanged(leader_certificate.term, sender))
        self._last, self._received, self._asks = sender, self._clock, self._clock + self._timing.refused
        self._ended_processes.discard(sender)
        self._deadline, self._tries = self._wait(), 0
        self._deferred.clear()
        return [*out, self._heartbeat_reply(sender)]

    def on_short_heartbeat(self, sender: str, heartbeat: ShortHeartbeat) -> list[ConsensusEffect]:
        """Follow the sender of a heartbeat, if this peer has verified the certificate that it names."""
        leader_certificate = self._verified.get(heartbeat.digest)
        if leader_certificate is not None and leader_certificate.term == heartbeat.term:
            return self.on_heartbeat(sender, leader_certificate)
        if jump := self._term_jump(sender, heartbeat.term):
            return jump
        stale = heartbeat.term < self.hard_state.term and not self._may_follow_earlier(heartbeat.term)
        return self._stale(sender, heartbeat.term) if stale else []

    def on_heartbeat_reply(self, sender: str, reply: HeartbeatReply) -> list[ConsensusEffect]:
        """Note that a follower is alive; one that states a later term accepts nothing in this one."""
        if jump := self._term_jump(sender, reply.term):
            return jump
        self._ended_processes.discard(sender)
        if self.leading and self.hard_state.term <= reply.term <= self.hard_state.term + RAISE_MAX:
            self._answered[sender] = self._replied[sender] = self._clock
            self._ahead.pop(sender, None)
            if reply.term > self.hard_state.term:
                self._ahead[sender] = reply.term
        return []

    def committed(self, term: int) -> list[ConsensusEffect]:
        """Take note of a committed round of this term, which a majority has accepted."""
        self._failed.begin_anew()
        return self._adopt(term, "") if self.coordinator is None and term > self.hard_state.term else []

    def announce(self, voter_set: VoterSet) -> None:
        """Remember the voter set of another roster; it counts once a committed round names it."""
        self.known[voter_set.number] = voter_set
        earlier = sorted(number for number in self.known if number < self.voter_set.number)
        for number in earlier[:-_EARLIER_MAX]:
            del self.known[number]

    def abstain(self) -> list[ConsensusEffect]:
        """Coordinate no more and stand no more; votes that are under way to this peer do not count."""
        self._poll = self._candidacy = None
        return self._step_down() if self.leading else []

    def enforce(self, number: int) -> list[ConsensusEffect]:
        """Put the voter set of this number in force, as a committed round says."""
        if number == self.voter_set.number:
            return []
        self.voter_set = self.known[number]
        self._poll = self._candidacy = None
        if self._earlier is not None and self.outdated(self._earlier[0].roster):
            self._earlier = None
        if self.coordinator is not None and self.outdated(self._elected_under):
            return self._end_outdated_term()
        return self._step_down() if self.leading and self.me not in self.voter_set.voters else []

    # ---------------------------------------------------------------------------------------------------- being elected

    def _may_stand(self, living: Collection[str]) -> bool:
        voters = self.voter_set.voters
        if self.failover or self.me not in voters:
            return self.me in voters
        return self.me == min(peer for peer in voters if peer == self.me or peer in living)

    def _open_poll(self, term: int, *, pre: bool) -> list[ConsensusEffect]:
        clock, timing = self._clock, self._timing
        out: list[ConsensusEffect] = [] if pre else self._adopt(term, self.me)
        until = clock + (timing.pre_poll if pre else self._lengthened(timing.poll))
        poll = Poll(term, pre, self.voter_set, clock, until, clock)
        mine = b"" if pre else self._sign(vote_text(self.scope, self.me, term, poll.voter_set.number, self.me))
        poll.granted[self.me] = mine
        self._poll = poll
        if not pre:
            self._candidacy, self._tries = poll, self._tries + 1
        return [*out, *(self._count_votes(poll) or self._repeat_requests())]

    def _repeat_requests(self) -> list[ConsensusEffect]:
        poll = self._poll
        assert poll is not None, "there is something to ask"
        if self._clock >= poll.until:
            return self._back_off()
        if self._clock < poll.again:
            return []
        if poll.pre and self._clock >= poll.since + self._timing.answer:
            poll = self._poll = self._in_higher_term(poll)
        poll.again = self._clock + self._timing.repeat
        vote_request = VoteRequest(poll.term, poll.pre, poll.voter_set.number, self.progress)
        return [SendConsensus(peer, vote_request) for peer in sorted(poll.voter_set.voters - poll.granted.keys())]

    def _in_higher_term(self, poll: Poll) -> Poll:
        """Return the poll for the lowest term in which a majority can grant it."""
        able = set(poll.granted)
        for voter, term in sorted(self._ahead.items(), key=lambda item: item[1]):
            able.add(voter)
            if term >= poll.term and poll.voter_set.carried(able):
                return replace(poll, term=term + 1, since=self._clock, granted={self.me: b""}, refused=set())
        return poll

    def _count_votes(self, poll: Poll) -> list[ConsensusEffect]:
        if not poll.voter_set.carried(poll.granted):
            return []
        if poll.pre:
            return self._open_poll(poll.term, pre=False)
        self._poll, self._candidacy, self._tries = None, None, 0
        self._certificate = LeaderCertificate(
            poll.term, self.me, poll.voter_set.number, tuple(sorted(poll.granted.items()))
        )
        self._digest, self._replied = certificate_digest(self.scope, self._certificate), {}
        self.coordinator, self._elected_under = self.me, poll.voter_set.number
        self._ended_processes -= poll.granted.keys()
        long_ago = self._clock - self._timing.quorum - 1
        there = poll.granted.keys() | self._living
        self._answered = {peer: self._clock if peer in there else long_ago for peer in self.audience}
        if self._lost is not None and self._lost[0] not in poll.granted:
            self._answered[self._lost[0]] = self._lost[1]
        return [LeaderChanged(poll.term, self.me), *self._heartbeats()]

    def _defers(self, to: str, progress: Progress) -> bool:
        """Return whether to promise this candidate a vote, and if so give way to it for a while.

        If two peers ask at the same time, the one that is further goes on, else the one with the lower id; otherwise
        both would stand and split the votes. A peer gives way to each candidate once, since a candidate that receives
        no answers may ask forever.
        """
        if to in self._deferred:
            return True
        if self._poll is not None:
            before = not self.progress.at_least(progress) or to < self.me
            if not before or not self._poll.pre:
                return False
            self._poll = None
        self._deferred.add(to)
        self._deadline = max(self._deadline, self._clock + self._timing.deference + self._drawn(self._timing.jitter))
        return True

    def _back_off(self) -> list[ConsensusEffect]:
        """End the poll without a result; the next one begins after a random wait."""
        self._poll = None
        self._deadline = self._clock + self._drawn(2 * self._timing.jitter)
        return []

    # ------------------------------------------------------------------------------------------- coordinating, terms

    def _keep_leading(self) -> list[ConsensusEffect]:
        recent = {peer for peer, when in self._answered.items() if self._clock - when <= self._timing.quorum}
        ahead = {peer for peer, term in self._ahead.items() if term > self.hard_state.term}
        if self.voter_set.carried(recent - ahead - self._ended_processes | {self.me}):
            return self._heartbeats() if self._clock >= self._next_beat else []
        out = self._step_down()
        self._deadline = self._clock + self._draw_turn()  # there is no coordinator whose lease could still hold
        return out

    def _note_late_heartbeat(self, sender: str, term: int) -> None:
        """Lengthen leases if this coordinator turns out to have been silent for longer than its lease."""
        if sender == self.coordinator and term == self.hard_state.term:
            if (silent := self._clock - self._received) >= self._long_silence:  # perhaps only packets were lost
                self._lengthen_lease(silent * 3 // 2)
        elif self._lost is not None and (sender, term) == (self._lost[0], self._lost[2]):
            self._lost = None
            self._lengthen_lease(self._timing.longest)

    def _probe_coordinator(self) -> list[ConsensusEffect]:
        """Send a message to a silent coordinator: if its process has ended, its machine refuses the connection."""
        if self.coordinator is None or self.coordinator in self._ended_processes or self._clock < self._asks:
            return []
        self._asks = self._clock + self._timing.refused
        return [self._heartbeat_reply(self.coordinator)]

    def _note_pause(self, ticks: int) -> None:
        """Lengthen leases if this process stood still for these ticks: others will, too, and for longer."""
        if ticks >= self._long_silence:
            self._lengthen_lease(self._timing.longest)

    @property
    def _long_silence(self) -> int:
        """Ticks of silence from which on leases are lengthened, if the silent process was alive."""
        return min(self._lease, self._timing.longest * 2 // 3)

    def _lengthen_lease(self, ticks: int) -> None:
        self._lease = max(self._lease, min(ticks, self._timing.longest))
        self._slow_at = self._clock

    def _follows_earlier(self, sender: str, leader_certificate: LeaderCertificate) -> bool:
        """Return whether to follow this coordinator of an earlier term, because this term has none."""
        if (
            not self._may_follow_earlier(leader_certificate.term)
            or self._certificate_problem(sender, leader_certificate) is not None
        ):
            return False
        self._earlier = leader_certificate, self._clock
        return True

    def _may_follow_earlier(self, term: int) -> bool:
        """Return whether a coordinator of this earlier term can be followed."""
        return self.coordinator is None and term >= self.progress.term

    def _heartbeats(self) -> list[ConsensusEffect]:
        assert self._certificate is not None, "only a coordinator has a heartbeat"
        self._next_beat = self._clock + self._timing.beat
        full = Heartbeat(self._certificate, self.progress)
        short = ShortHeartbeat(self._certificate.term, self._digest, self.progress)
        return [SendConsensus(peer, short if self._knows_certificate(peer) else full) for peer in self.audience]

    def _knows_certificate(self, peer: str) -> bool:
        """Return whether this member knows the certificate and reads heartbeats that name it."""
        replied = self._replied.get(peer)
        return replied is not None and self._clock - replied <= self._timing.known and self._reads_short(peer)

    def _step_down(self) -> list[ConsensusEffect]:
        self._certificate = self._poll = self.coordinator = None
        self._deadline = self._wait()
        return [LeaderChanged(self.hard_state.term, None)]

    def _end_outdated_term(self) -> list[ConsensusEffect]:
        """End a coordinator's term, since its roster counts no longer: it stands at once, and nobody waits for it."""
        led, down = self.leading, self._step_down()
        self._received = self._clock - self._timing.longest
        if led:
            self._deadline = self._clock
        return down

    def _adopt(self, term: int, voted: str) -> list[ConsensusEffect]:
        """Enter this term durably; within the same term a vote that was given stays."""
        out: list[ConsensusEffect] = []
        if term > self.hard_state.term:
            self._votes, self._candidacy = {}, None
            self._deferred.clear()
            out = self._step_down() if self.coordinator else []
            if self._poll is not None:
                self._back_off()
            hard_state = HardState(term, voted)
        else:
            hard_state = HardState(term, self.hard_state.voted or voted)
        if hard_state != self.hard_state:
            self.hard_state = hard_state
            out.append(PersistConsensus(hard_state))
        return out

    def _end_term(self, sender: str, leader_certificate: LeaderCertificate) -> list[ConsensusEffect]:
        """End a term with two coordinators: a voter voted twice. Neither is followed; the next term decides."""
        text = f"coordinates in term {leader_certificate.term}, as {self.coordinator} does"
        doubles = self._note_votes((author for author, _ in leader_certificate.votes), sender)
        self._ended, self._candidacy = leader_certificate.term, None
        down = self._step_down()
        self._received = self._clock - self._lease  # the lease is over, too
        self._back_off()
        return [Rejection("two_coordinators", text, sender), *doubles, *down]

    def _note_votes(self, voters: Iterable[str], candidate: str) -> list[ConsensusEffect]:
        """Note votes of this term; return a rejection for each voter that has voted for two candidates."""
        return [
            Rejection(
                "double_vote", f"votes for {self._votes[voter]} and {candidate} in term {self.hard_state.term}", voter
            )
            for voter in voters
            if self._votes.setdefault(voter, candidate) != candidate
        ]

    # ------------------------------------------------------------------------------------------------------- judgement

    def _has_coordinator(self) -> bool:
        """Return whether there is a coordinator that sent a heartbeat lately."""
        lease = self._timing.refused if self._last in self._ended_processes else self._lease
        if self.leading or self._clock - self._received < lease:
            return True
        earlier = self._earlier  # the last round that came into force shows that a majority follows it
        return earlier is not None and self._clock - earlier[1] < self._lease and earlier[0].term == self.progress.term

    def _certificate_problem(self, sender: str, leader_certificate: LeaderCertificate) -> Rejection | None:
        """Return what is wrong with a leader certificate; None if it is verified, now or before."""
        if self.outdated(leader_certificate.roster):
            return self._outdated_roster(sender, "coordinates", leader_certificate.roster)
        digest = certificate_digest(self.scope, leader_certificate)
        if digest in self._verified and leader_certificate.candidate == sender:
            return None
        voter_set = self.known.get(leader_certificate.roster)
        if voter_set is None:
            return Rejection(
                "round_gap", f"coordinates under roster {leader_certificate.roster}, which is not known here", sender
            )
        if leader_certificate.candidate != sender or not leader_certificate_holds(
            self.scope, leader_certificate, voter_set, self._verify_under
        ):
            return Rejection(
                "bad_signature", f"coordinates in term {leader_certificate.term} without a majority's votes", sender
            )
        self._verified[digest] = leader_certificate
        if len(self._verified) > _VERIFIED_MAX:
            del self._verified[next(iter(self._verified))]
        return None

    def _outdated_roster(self, sender: str, does: str, roster: int) -> Rejection:
        text = f"{does} under roster {roster}, and two voters or more have changed until roster {self.voter_set.number}"
        return Rejection("stale_roster", text, sender)

    def _term_jump(self, sender: str, term: int) -> list[ConsensusEffect]:
        if term <= self.hard_state.term + TERM_JUMP_MAX:
            return []
        return [Rejection("term_jump", f"term {term} after {self.hard_state.term}", sender)]

    def _wait(self) -> int:
        return self._clock + self._lease + self._draw_turn()

    def _lengthened(self, ticks: int) -> int:
        """Return these ticks, or more if elections fail: disks or messages may take longer here than a poll."""
        return max(ticks, min(ticks << max(0, self._tries - 1), self._timing.longest))

    def _draw_turn(self) -> int:
        """Draw the ticks for which this peer lets others stand first."""
        last = self._timing.last if self._last_in_turn else 0
        return last + round(self.patience * self._timing.spread) + self._drawn(self._timing.jitter)

    def _drawn(self, below: int) -> int:
        return int(self._draws.integers(below))

    def _refusal(self, sender: str, vote_request: VoteRequest) -> SendConsensus:
        return SendConsensus(sender, VoteReply(self.hard_state.term, vote_request.pre, False, b""))

    def _stale(self, sender: str, term: int) -> list[ConsensusEffect]:
        text = f"coordinates in term {term}, but the term is {self.hard_state.term}"
        return [Rejection("stale_term", text, sender), self._heartbeat_reply(sender)]

    def _heartbeat_reply(self, to: str) -> SendConsensus:
        return SendConsensus(to, HeartbeatReply(self.hard_state.term, self.progress))
