"""One peer in the council of a group: it elects, sends its update, and goes by what a majority put in force.

Nobody has to be told that a round opens. Whoever holds the server after round r knows by the seed who takes part in
round r + 1, and opens it alone. Those train and send their updates to the coordinator of the moment; to the next one
the same bytes, if it changes. The coordinator closes the round when all have sent who are there, or the deadline is
over (`collected_updates.py`); what it made is a decree like any other (`decree.py`), and all fetch the model that the
decree names before they accept it.

Votes are the machine's business. Here its outputs become effects in their order, and it is told what is durable. Where
the update comes from, and what a peer makes of a round that is in force, is not a council's business: `client.py` says
so for the clients of a server, `fellow.py` for equals whose groups average.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from fedpeer.gossip.claims import Sign, Verify
from fedpeer.peer.consensus.collected_updates import CollectedUpdates
from fedpeer.peer.consensus.decree import RoundCommit
from fedpeer.peer.consensus.election import Election
from fedpeer.peer.consensus.retries import RetryTimer
from fedpeer.peer.consensus.revoked_keys import attested
from fedpeer.peer.consensus.voting import signers, swear, unproven_vote
from fedpeer.peer.state.algorithm_spec import AlgorithmSpec
from fedpeer.peer.state.consensus_state import ConsensusState, PendingUpdate, commit_state_changed
from fedpeer.peer.state.entries import ModelStored, TermChanged
from fedpeer.peer.state.events import AggregateUpdates, UpdatesAggregated
from fedpeer.peer.state.node_state import NodeState
from fedpeer.peer.state.voters import EVERYONE
from fedpeer.peer.wire.ballots import (
    Accept,
    ApplyModel,
    CommitState,
    CountUpdate,
    Fetch,
    HardState,
    Heartbeat,
    HeartbeatReply,
    LeaderChanged,
    Out,
    PersistConsensus,
    Scope,
    SendConsensus,
    VoteRequest,
)
from fedpeer.peer.wire.leaf_bytes import content_of, split_leaves
from fedpeer.peer.wire.messages import Ack, ConsensusMessage, ModelReply, ModelRequest, RejectMessage, Update
from fedpeer.peer.wire.tails import content_digest
from fedpeer.rejection import Rejection

#: Ticks without a coordinator after which rounds are said to pause: a new one takes at most 200 (promise P5), so there
#: is no majority.
PAUSED_TICKS = 240


#: Refusals of an update by who is behind itself, or coordinates no more: it is offered again.
PASSING = {"stale_term", "round_gap"}


class RoundConsensus:
    """One peer's part in the coordinated rounds of a group.

    decrees     the machine of elections and decrees
    counted     by client, the last round in which its update counted, by the round in force; `server`: its leaves
    """

    def __init__(
        self, life: NodeState, group: str, course: AlgorithmSpec, draws: np.random.Generator, sign: Sign, verify: Verify
    ) -> None:
        self.life, self.group, self.course = life, group, course
        chamber, verify = self.chamber, attested(life, group, verify)
        scope = Scope(life.circle.roster.federation_id, group)
        election = Election(
            life.me,
            scope=scope,
            electorates=tuple(chamber.electorates.values()),
            force=chamber.holding.roster,
            stand=chamber.stand,
            progress=chamber.holding.progress,
            patience=course.patience,
            draws=draws,
            sign=sign,
            verify=verify,
        )
        self.decrees = RoundCommit(election, chamber.holding, sign, verify)
        for digest in chamber.models:
            self.decrees.holds(digest)
        self._gathering = CollectedUpdates()
        self._sent, self._wanted = RetryTimer(), dict[bytes, RetryTimer]()
        self._led_at: int | None = None  # when there was a coordinator last
        self._paused = False
        self._noted = dict[str, int]()
        self._part: tuple[tuple[int, int], tuple[str, ...]] = ((0, 0), ())
        self._read: tuple[bytes, dict[str, int], bytes] = (b"", {}, course.server)
        self._known: tuple[PendingUpdate, bytes, Rejection | None] | None = (
            None  # of this peer's update: digest, what is wrong
        )

    @property
    def chamber(self) -> ConsensusState:
        return self.life.ledger.chambers[self.group]

    @property
    def applied(self) -> int:
        """The round that is in force here."""
        return self.decrees.holding.round

    @property
    def coordinator(self) -> str | None:
        """Who takes this peer's updates."""
        followed = self.decrees.election.followed
        return None if followed is None else followed[0]

    @property
    def clients(self) -> tuple[str, ...]:
        """All clients of the round under way, in the order in which the algorithm counts them."""
        return tuple(sorted(self.decrees.election.electorate.members))

    @property
    def over(self) -> bool:
        """Whether all rounds are: among equals these are the averagings."""
        federation = self.life.setup.federation
        every = federation.gossip.every if self.life.setup.part == "fellow" else 1
        return self.applied >= federation.learning.rounds // every

    @property
    def trains(self) -> bool:
        """Whether this peer trains in the round under way."""
        if self.life.me not in self.clients:
            return False
        return self.course.everyone(self.applied + 1) or self.life.me in self._takes_part()

    @property
    def paused(self) -> bool:
        """Whether rounds are said to pause."""
        return self._paused

    @property
    def missing(self) -> tuple[str, ...]:
        """Whose updates this peer waits for, if it coordinates."""
        if not self.decrees.gathering or self._gathering.closed:
            return ()
        return tuple(self._gathering.awaited(self._takes_part(), self._there))

    def in_force(self) -> tuple[Mapping[str, int], bytes]:
        """What holds after the last round: by client the last round in which its update counted, and the server."""
        applied = self.decrees.holding.applied
        if applied is not None and applied.decree.digest != self._read[0]:
            found = split_leaves(self.chamber.models[applied.decree.digest], self.course.server_bytes)
            assert found is not None, "what is taken over is looked at before"
            self._read = applied.decree.digest, *found
        return self._read[1], self._read[2]

    # ---------------------------------------------------------------------------------------------------- what happens

    def tick(self) -> None:
        """Time has passed: vote, stand, lead."""
        life = self.life
        swear(self)
        if self.chamber.votes:
            there = [peer for peer in life.others if life.membership.standing(peer) in ("alive", "suspect", "finished")]
            self._do(self.decrees.tick(life.now, there))
        if self.coordinator is not None or self._led_at is None:
            self._led_at = life.now
            if self._paused:
                self._paused = False
                text = f"{self.coordinator} coordinates{self._named}; rounds go on"
                life.note("info", "rounds_resumed", text, group=self.group)
        elif life.now - self._led_at > PAUSED_TICKS and not self._paused and life.phase == "learning":
            self._paused = True
            wanted = "more than half of the voters have to be there"
            if not self.chamber.sworn:  # it may have promised something before its disk was lost: others would know
                wanted = "at its first start a peer has to meet more than half of the other voters before it votes"
            text = f"nobody coordinates{self._named}: {wanted}; rounds pause"
            life.note("warning", "rounds_paused", text, round=self.applied, group=self.group)

    def hear_ballot(self, peer: str, ballot: ConsensusMessage) -> None:
        """A statement of the election, or about a decree."""
        said = ballot.said
        if isinstance(said, VoteRequest) and not self.chamber.votes:
            return
        if isinstance(said, Heartbeat | HeartbeatReply):
            self.life.others[peer].seen_in(said.progress.applied + 1, self.life.now)
        outs = self.decrees.heard(peer, said)
        if signers(said) - self.life.circle.roster.by_id.keys():
            # Who is put out signed it while it belonged. Without its key that proves nothing, and whoever hands it over
            # is not to blame. The next round, and the next coordinator, do without that signature.
            outs = [replace(out, code="round_gap") if unproven_vote(out) else out for out in outs]
        self._do(outs)

    def hear_update(self, peer: str, update: Update) -> None:
        """A client's update, for the round that this peer closes, if it coordinates."""
        life, at = self.life, (self.decrees.election.stand.term, self.applied + 1)
        if self.decrees.gathering and (update.term, update.round) == at:
            self._gathering.at(at, life.now)
            if self._gathering.closed:
                self._refuse(peer, "round_closed", f"an update for round {update.round}, which is over")
                return
            if peer not in self._takes_part():
                self._refuse(peer, "implausible", f"takes no part in round {update.round}")
                return
            wrong = update.fault or self._in_whose_name(peer, update)
            if wrong is not None:
                self._gathering.refused.add(peer)
                self._refuse(peer, wrong.code, wrong.text)
                return
        self._take(peer, update, self.decrees.heard_update(peer, update.term, update.round, update.digest))

    def _in_whose_name(self, peer: str, update: Update) -> Rejection | None:
        """What is wrong with the number of the client in an update, where there is one."""
        number, own = self.course.number(update.content), self.clients.index(peer)
        if number in (None, own):
            return None
        return Rejection("wrong_client", f"the update is client {number}'s, and {peer} is client {own}")

    def hear_ack(self, peer: str, ack: Ack) -> None:
        """The coordinator of a term (`taken`) has this peer's update of a round."""
        self._sent.answered((peer, ack.taken, ack.round))

    def hear_refused(self, peer: str, refused: RejectMessage) -> None:
        """The coordinator does not take this peer's update; it is not offered to it again."""
        study, followed = self.chamber.study, self.decrees.election.followed
        if study is not None and followed is not None and refused.code not in PASSING:
            self._sent.answered((peer, followed[1], study.round))

    def hear_wanted(self, peer: str, wanted: ModelRequest) -> None:
        """Somebody needs a model."""
        content = self.chamber.models.get(wanted.digest)
        if content is not None:
            self.life.send(peer, ModelReply(group=self.group, digest=wanted.digest, content=content))

    def hear_model(self, model: ModelReply) -> None:
        """A model that was asked for; what is none is no message."""
        if self._wanted.pop(model.digest, None) is not None:
            self._store(model.digest, model.content)

    # -------------------------------------------------------------------------------------------------- what work gave

    def offers(self, digest: bytes, fault: Rejection | None) -> None:
        """This peer's client has made an update with this digest; what is wrong with it, if anything."""
        if self.chamber.study is not None:
            self._known = self.chamber.study, digest, fault

    def concluded(self, done: UpdatesAggregated) -> None:
        """The server after the round is made; it is proposed, if this peer still coordinates that round."""
        at = (self.decrees.election.stand.term, self.applied + 1)
        if not self.decrees.gathering or (done.term, done.round) != at:
            return
        for peer, why in done.out.items():
            self._refuse(peer, why.code, why.text)
        if done.content is not None:
            self._propose(done.content, done.digest)
        else:
            text = f"round {done.round}{self._named} leads to numbers that are none, and changes nothing"
            text += "; try a smaller rate"
            self.life.note("warning", "round_void", text, round=done.round)
            self._propose_again()

    # ------------------------------------------------------------------------------------------------------- proceeding

    def go_on(self) -> None:
        """Go as far as possible: send the update of the round under way, close it."""
        self._offer()
        if not self.over and self.decrees.gathering:
            self._close()

    def _takes_part(self) -> tuple[str, ...]:
        """Who takes part in the round under way; it is asked for with every message."""
        key = (self.applied + 1, self.decrees.holding.roster)
        if key != self._part[0]:
            self._part = key, self.course.takes_part(key[0], self.clients)
        return self._part[1]

    def _there(self, peer: str) -> bool:
        """Whether somebody may still send its update: it answers the heartbeats of this coordinator, or has not been
        met yet by this process. What membership says comes later, and is taken back at times."""
        life = self.life
        other = life.others.get(peer)
        if peer == life.me or other is None:
            return peer == life.me
        standing = life.membership.standing(peer)
        if not other.met:
            return standing in ("alive", "suspect") and life.listens(peer)
        return life.agrees(peer, self.group) and standing != "left" and not self.decrees.election.silent(peer)

    def _offer(self) -> None:
        """Send the update of the round under way to whoever coordinates it."""
        study, followed = self.chamber.study, self.decrees.election.followed
        if study is None or study.round != self.applied + 1 or followed is None:
            return
        if self.life.me not in self._takes_part():
            return
        coordinator, term = followed
        if coordinator != self.life.me:
            key = (coordinator, term, study.round)
            if self._sent.due(key, self.life.now):
                self.life.send(coordinator, self._update(term))
        elif self.decrees.gathering:
            self._gathering.at((term, study.round), self.life.now)
            if self.life.me not in self._gathering.updates.keys() | self._gathering.refused:
                self.hear_update(self.life.me, self._update(term))

    def _update(self, term: int) -> Update:
        study, known = self.chamber.study, self._known
        assert study is not None, "there is an update"
        if known is None or known[0] is not study:
            known = self._known = study, content_digest(study.update), self.course.fault(study.update)
        _, digest, fault = known
        return Update(group=self.group, term=term, round=study.round, digest=digest, content=study.update, fault=fault)

    def _close(self) -> None:
        """Close the round, if everybody has sent who is there, or its time is over."""
        life, at = self.life, (self.decrees.election.stand.term, self.applied + 1)
        gathering = self._gathering
        gathering.at(at, life.now)
        awaited = gathering.awaited(self._takes_part(), self._there)
        over = life.now - gathering.since >= life.setup.ticks(life.setup.federation.gossip.deadline)
        if gathering.closed or (awaited and not (over and gathering.updates)) or not (over or gathering.updates):
            return
        gathering.closed = True
        late = [peer for peer in self._takes_part() if peer not in gathering.updates]
        if late:
            text = f"round {at[1]}{self._named} goes on without {', '.join(late)}"
            life.note("info", "went_on_without", text, group=self.group, without=late, round=at[1])
        self._note_first("closed", at[0], at[1])
        if not gathering.updates:
            self._propose_again()  # nobody is there who takes part: the next round has others
            return
        (counted, server), members = self.in_force(), set(self.clients)
        counted = {peer: last for peer, last in counted.items() if peer in members}
        updates = dict(sorted(gathering.updates.items()))
        life.effects.append(AggregateUpdates(*at, server, counted, updates, self.clients, self.group))

    def _propose_again(self) -> None:
        """What is in force shall be so after this round, too."""
        applied = self.decrees.holding.applied
        if applied is None:
            content = content_of({}, self.course.server)
            self._propose(content, content_digest(content))
        else:
            self._propose(self.chamber.models[applied.decree.digest], applied.decree.digest)

    def _propose(self, content: bytes, digest: bytes) -> None:
        self._store(digest, content)
        self._do(self.decrees.propose(digest))

    def _store(self, digest: bytes, content: bytes) -> None:
        """Keep a model, and do what waits for it."""
        self.life.write(ModelStored(group=self.group, digest=digest, content=content))
        self._do(self.decrees.holds(digest))

    # ---------------------------------------------------------------------------------------------- the machine's words

    def _do(self, outs: Iterable[Out]) -> None:
        """What the machine wants, in its order."""
        life = self.life
        for out in outs:
            match out:
                case PersistConsensus(HardState() as stand):
                    life.write(TermChanged(group=self.group, term=stand.term, voted=stand.voted))
                case PersistConsensus(CommitState() as holding):
                    life.write(commit_state_changed(self.group, holding))
                case SendConsensus(_, Accept()) if not self.chamber.votes:
                    pass
                case SendConsensus(_, Heartbeat() | HeartbeatReply() as said):  # it is there, whatever its disk does
                    term = said.mandate.term if isinstance(said, Heartbeat) else said.term
                    here = (self.group, "lead" if isinstance(said, Heartbeat) else "follow", term)
                    life.send(out.to, ConsensusMessage(group=self.group, said=said), here)
                case SendConsensus():
                    life.send(out.to, ConsensusMessage(group=self.group, said=out.message))
                case LeaderChanged():
                    who = "nobody coordinates" if out.coordinator is None else f"{out.coordinator} coordinates"
                    fields = {"term": out.term, "coordinator": out.coordinator, "group": self.group}
                    life.note("info", "coordinator", f"{who}{self._named} in term {out.term}", **fields)
                case Fetch():
                    key = (out.holder, out.digest)
                    if self._wanted.setdefault(out.digest, RetryTimer()).due(key, life.now):
                        life.send(out.holder, ModelRequest(group=self.group, digest=out.digest))
                case ApplyModel(decree):
                    self._wanted.clear()
                    self._note_first("in_force", decree.term, decree.round)
                case CountUpdate():
                    raise AssertionError("updates are taken where they are heard")
                case Rejection():
                    life.count(out.code, out.sender, out.text)

    def _note_first(self, what: str, term: int, round: int) -> None:
        """Note the first round of a term that is so: what a change of coordinator cost. The others are routine."""
        if term != self._noted.get(what):
            self._noted[what] = term
            text = f"round {round}{self._named} is the first that is {what.replace('_', ' ')} in term {term}"
            self.life.note("debug", what, text, round=round, term=term, group=self.group)

    @property
    def _named(self) -> str:
        """What a sentence says of the council; nothing where it is that of all."""
        return "" if self.group == EVERYONE else f' "{self.group}"'

    def _refuse(self, peer: str, code: str, text: str) -> None:
        """Somebody's update is not taken, or this peer's own."""
        if peer == self.life.me:
            self.life.note("warning", "update_void", f"this peer's own update does not count: {text}", code=code)
        else:
            self.life.refuse(code, peer, text, group=self.group)

    def _take(self, peer: str, update: Update, outs: Iterable[Out]) -> None:
        """What the machine says of an update; who sent it is told."""
        life, refused = self.life, False
        for out in outs:
            match out:
                case CountUpdate():
                    self._gathering.updates[peer] = update.content
                case Rejection():
                    refused = True
                    self._refuse(peer, out.code, out.text)
                case _:
                    self._do([out])
        if peer != life.me and not refused:
            life.send(peer, Ack(group=self.group, taken=update.term, round=update.round))
