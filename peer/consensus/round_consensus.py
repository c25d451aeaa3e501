"""One peer's part in a group's consensus on its rounds: it votes, sends its update, and applies committed rounds.

Under an aggregation goal (`learning.aggregation_goal`) a round closes when so many updates have come. The other updates
count in a later round: the coordinator keeps them within its term, and their clients send them to the next coordinator,
since the round of their training is not over before that. The committed model names the round of each client's last
update that counted, so each update counts once, whichever peer dies.

No message opens a round. A peer that holds the server's model after round r derives from the seed which clients take
part in round r + 1, and opens it by itself. They train and send their updates to the present coordinator, and the same
bytes to the next one, if it changes. The coordinator closes the round when all reachable participants have sent, or at
the deadline (`collected_updates.py`). It proposes the result (`round_commit.py`), and all peers fetch the model that a
proposal names before they accept it.

`RoundCommit` handles the votes. This module turns its outputs into effects, in their order, and tells it what is
durable. Other modules decide where the update comes from, and what a peer does with a committed round: `client.py` for
clients of a server, `group_averager.py` for peers whose groups average through a coordinator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedpeer.gossip.claims import Sign
from fedpeer.peer.consensus.collected_updates import CollectedUpdates
from fedpeer.peer.consensus.election import Election
from fedpeer.peer.consensus.retries import RetryTimer
from fedpeer.peer.consensus.roster_keys import RosterKeys, VerifyBy
from fedpeer.peer.consensus.round_commit import RoundCommit
from fedpeer.peer.consensus.voting import (
    allow_voting,
    begins_anew,
    forgotten_promise,
    may_hold,
    note_others_ahead,
    unproven_vote,
)
from fedpeer.peer.state.algorithm_spec import AlgorithmSpec
from fedpeer.peer.state.consensus_state import ConsensusState, PendingUpdate, commit_state_changed
from fedpeer.peer.state.entries import ModelStored, TermChanged
from fedpeer.peer.state.events import AggregateUpdates, UpdatesAggregated
from fedpeer.peer.state.node_state import NodeState
from fedpeer.peer.state.voters import EVERYONE
from fedpeer.peer.wire.consensus_messages import (
    Accept,
    ApplyModel,
    CommitState,
    ConsensusEffect,
    CountUpdate,
    Fetch,
    HardState,
    Heartbeat,
    HeartbeatReply,
    LeaderChanged,
    PersistConsensus,
    Scope,
    SendConsensus,
    ShortHeartbeat,
    VoteRequest,
)
from fedpeer.peer.wire.leaf_bytes import content_of, split_leaves
from fedpeer.peer.wire.messages import Ack, ConsensusMessage, ModelReply, ModelRequest, RejectMessage, Update
from fedpeer.peer.wire.tails import content_digest
from fedpeer.peer.wire.versions import SHORT_HEARTBEATS
from fedpeer.rejection import Rejection

#: Ticks without a coordinator after which rounds count as paused: a new one takes at most 200 (promise P5), so there is
#: no majority.
PAUSED_TICKS = 240
#: Rejections that say nothing against an update: the peer is behind or no longer coordinates, has no room for a message
#: now, knows another incarnation of this peer, or another contract. The update is sent again.
_PASSING = {"stale_term", "round_gap", "too_many_requests", "stale_incarnation", "plan_mismatch"}


class CommittedModel(NamedTuple):
    """The committed state: the last round in which each client's update counted, and the server's state as bytes."""

    counted: Mapping[str, int]
    server: bytes


class RoundConsensus:
    """One peer's part in the coordinated rounds of a group.

    round_commit   the machine of its elections and committed rounds
    """

    def __init__(
        self,
        state: NodeState,
        group: str,
        spec: AlgorithmSpec,
        draws: np.random.Generator,
        sign: Sign,
        verify_by: VerifyBy,
    ) -> None:
        self.state, self.group, self.spec = state, group, spec
        consensus_state, self._keys = self.consensus_state, RosterKeys(state, group, verify_by)
        scope = Scope(state.peer_groups.roster.federation_id, group)
        election = Election(
            state.me,
            scope=scope,
            voter_sets=tuple(map(self._keys.named, consensus_state.voter_sets.values())),
            force=consensus_state.holding.roster,
            hard_state=consensus_state.hard_state,
            progress=consensus_state.holding.progress,
            patience=spec.patience,
            draws=draws,
            sign=sign,
            verify_under=self._keys.verify_under,
            reads_short=lambda peer: state.others.can(peer, SHORT_HEARTBEATS),
        )
        verify_under, late = self._keys.verify_under, spec.goal is not None
        self.round_commit = RoundCommit(election, consensus_state.holding, sign, verify_under, late=late)
        for digest in consensus_state.models:
            self.round_commit.holds(digest)
        self._gathering = CollectedUpdates()
        self._closing: tuple[str, ...] = ()  # clients whose updates are in the round that is being closed
        self._void = 0  # round of this peer's last update that a coordinator refused
        self._sent, self._wanted = RetryTimer(), dict[bytes, RetryTimer]()
        self._led_at: int | None = None  # tick at which there was a coordinator last
        self._heard_at = state.ran  # tick of running time of its last heartbeat
        self._paused = False
        self._noted = dict[str, int]()
        self._part: tuple[tuple[int, int], tuple[str, ...]] = ((0, 0), ())
        self._read = b"", CommittedModel({}, spec.server)  # the model in force, after its digest
        # This peer's update, its digest and its fault.
        self._known: tuple[PendingUpdate, bytes, Rejection | None] | None = None

    @property
    def consensus_state(self) -> ConsensusState:
        return self.state.durable.consensus_states[self.group]

    @property
    def applied(self) -> int:
        """Number of the round that is in force here."""
        return self.round_commit.holding.round

    def _votes(self, number: int) -> bool:
        """Return whether this peer may vote under the roster of this number."""
        consensus_state = self.consensus_state
        return consensus_state.votes and consensus_state.remembers(number) and self._keys.signs_under(number)

    @property
    def _accepts(self) -> bool:
        """True if this peer may accept the proposal that it holds."""
        consensus_state, holding = self.consensus_state, self.consensus_state.holding
        accepted = holding.accepted
        if accepted is None or not consensus_state.remembers(min(accepted.roster, holding.roster)):
            return False
        return consensus_state.votes and self._keys.signs_under(accepted.roster)

    @property
    def coordinator(self) -> str | None:
        """The peer that takes this peer's updates; None if no peer does."""
        followed = self.round_commit.election.followed
        return None if followed is None else followed[0]

    @property
    def _led(self) -> bool:
        """True while there is a coordinator that is heard: a peer that may not stand goes on following a silent one."""
        heard = self.state.ran - self._heard_at <= PAUSED_TICKS
        return self.round_commit.election.leading or (self.coordinator is not None and heard)

    @property
    def clients(self) -> tuple[str, ...]:
        """All clients of the round under way, in the order in which the algorithm counts them."""
        return tuple(sorted(self.round_commit.election.voter_set.members))

    @property
    def over(self) -> bool:
        """True once all rounds are in force; in groups that average, a round is an averaging."""
        every = self.state.peer_groups.gossip[self.group].every
        return self.applied >= self.state.setup.federation.learning.rounds // every

    @property
    def trains(self) -> bool:
        """True if this peer trains in the round under way."""
        if self.state.me not in self.clients:
            return False
        return self.spec.everyone(self.applied + 1) or self.state.me in self._takes_part()

    @property
    def paused(self) -> bool:
        """True while there has been no coordinator for `PAUSED_TICKS`."""
        return self._paused

    @property
    def update_waits(self) -> bool:
        """True while this peer's update may still count: in the round under way, or in any later one under a goal."""
        pending = self.consensus_state.pending
        if pending is None or self.over:
            return False
        if self.spec.goal is None:
            return pending.round == self.applied + 1
        return self.in_force.counted.get(self.state.me, 0) < pending.round != self._void

    @property
    def missing(self) -> tuple[str, ...]:
        """Clients whose updates this peer waits for, if it coordinates."""
        if not self.round_commit.gathering or self._gathering.closed or self.spec.goal is not None:
            return ()
        return tuple(self._gathering.awaited(self._takes_part(), self._there))

    @property
    def in_force(self) -> CommittedModel:
        """The committed state that is in force here."""
        applied = self.round_commit.holding.applied
        if applied is not None and applied.proposal.digest != self._read[0]:
            found = split_leaves(self.consensus_state.models[applied.proposal.digest], self.spec.server_bytes)
            assert found is not None, "what is taken over is looked at before"
            self._read = applied.proposal.digest, CommittedModel(*found)
        return self._read[1]

    @property
    def _under_way(self) -> tuple[int, int]:
        """The term and the round under way."""
        return self.round_commit.election.hard_state.term, self.applied + 1

    # ---------------------------------------------------------------------------------------------------- what happens

    def tick(self) -> None:
        """Let the election go on: vote, stand, lead; note when rounds pause and resume."""
        state = self.state
        allow_voting(self)
        note_others_ahead(self)
        if self._votes(self.round_commit.holding.roster):
            there = [peer for peer in state.others if state.others.present(peer)]
            self._do(self.round_commit.tick(state.now, there, stands=not begins_anew(self)))
        if self._led or self._led_at is None:
            self._led_at = state.now
            if self._paused:
                self._paused = False
                text = f"{self.coordinator} coordinates{self._named}; rounds go on"
                state.note("info", "rounds_resumed", text, group=self.group)
        elif state.now - self._led_at > PAUSED_TICKS and not self._paused and state.phase == "learning":
            self._paused = True
            wanted = "more than half of the voters must be reachable"
            if not self.consensus_state.voting_allowed:  # others know what it promised before its memory was lost
                wanted = "at its first start, or without memory, a peer meets most other voters before it votes"
            text = f"no coordinator{self._named}: {wanted}; rounds pause"
            state.note("warning", "rounds_paused", text, round=self.applied, group=self.group)

    def abstain(self) -> None:
        """Coordinate no more and stand no more while this peer has no vote, whatever took it.

        In the step that loses the vote nothing is signed before this: votes, acceptances and ticks test for the vote.
        """
        if not self.consensus_state.votes:
            self._do(self.round_commit.abstain())

    def on_consensus_message(self, peer: str, received: ConsensusMessage) -> None:
        """Handle a message of the election, or about a committed round."""
        message = received.message
        if (roster := forgotten_promise(self, message)) is not None:
            text = f"{peer} shows what this peer signed as a voter and does not remember: it gives up its vote"
            self.state.note("warning", "no_vote", text, peer=peer, number=roster)
            self.state.lose_vote(roster)
        outdated = self.round_commit.election.outdated  # such a request is refused by name, and nothing is signed
        if isinstance(message, VoteRequest) and not (self._votes(message.roster) or outdated(message.roster)):
            return
        if isinstance(message, VoteRequest) and not message.progress.applied:
            note_others_ahead(self)
            if begins_anew(self, peer):
                return
        # Where shares are exchanged, too, a peer may hold a mean before its round is over.
        if isinstance(message, Heartbeat | ShortHeartbeat | HeartbeatReply) and not self.state.peer_groups.groups:
            self.state.others[peer].seen_in(message.progress.applied + 1, self.state.now)
        outs = self.round_commit.received(peer, message)
        if any(map(unproven_vote, outs)) and may_hold(self, self._keys, message):
            # Its sender is not to blame. The next round, and the next coordinator, do without that signature.
            outs = [replace(out, code="round_gap") if unproven_vote(out) else out for out in outs]
        self._do(outs)
        if isinstance(message, Heartbeat | ShortHeartbeat) and peer == self.coordinator:
            self._heard_at = self.state.ran

    def on_update(self, peer: str, update: Update) -> None:
        """Take a client's update for the round that this peer closes, if it coordinates."""
        at, late = self._under_way, self.spec.goal is not None
        takes = self.round_commit.election.leading if late else self.round_commit.gathering
        if takes and update.term == at[0] and (update.round <= at[1] if late else update.round == at[1]):
            self._gather()
            if late and self.in_force.counted.get(peer, 0) >= update.round:
                self._take(peer, update, ())  # it came before, and counted
                return
            if self._gathering.closed and not late:
                self._gathering.refused.add(peer)  # else this peer would offer its own again in each step
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
        self._take(peer, update, self.round_commit.on_update(peer, update.term, update.round, update.digest))

    def _in_whose_name(self, peer: str, update: Update) -> Rejection | None:
        """Return what is wrong with the client number in an update, if it has one."""
        number, own = self.spec.number(update.content), self.clients.index(peer)
        if number in (None, own):
            return None
        return Rejection("wrong_client", f"the update is client {number}'s, and {peer} is client {own}")

    def on_ack(self, peer: str, ack: Ack) -> None:
        """Note that the coordinator of a term (`taken`) has this peer's update of a round."""
        self._sent.answered((peer, ack.taken, ack.round))

    def on_rejected(self, peer: str, refused: RejectMessage) -> None:
        """Stop sending this peer's update to a coordinator that rejects it."""
        pending, followed = self.consensus_state.pending, self.round_commit.election.followed
        if pending is not None and followed is not None and refused.code not in _PASSING:
            self._sent.answered((peer, followed[1], pending.round))
            if peer == followed[0]:  # anybody else could make this client drop its work
                self._void = pending.round

    def on_model_request(self, peer: str, wanted: ModelRequest) -> None:
        """Send a model to a peer that asks for it."""
        content = self.consensus_state.models.get(wanted.digest)
        if content is not None:
            self.state.send(peer, ModelReply(group=self.group, digest=wanted.digest, content=content))

    def on_model_reply(self, model: ModelReply) -> None:
        """Store a model that was asked for; the admission policy has checked its content."""
        if self._wanted.pop(model.digest, None) is not None:
            self._store(model.digest, model.content)

    # -------------------------------------------------------------------------------------------------- what work gave

    def offers(self, digest: bytes, fault: Rejection | None) -> None:
        """Note the digest of the update that this peer's client has made, and its fault, if any."""
        if self.consensus_state.pending is not None:
            self._known = self.consensus_state.pending, digest, fault

    def aggregated(self, done: UpdatesAggregated) -> None:
        """Propose the result of a round, if this peer still coordinates that round."""
        if not self.round_commit.gathering or (done.term, done.round) != self._under_way:
            return
        for peer, why in done.out.items():
            self._refuse(peer, why.code, why.text)
        self._gathering.drop(done.out)  # under a goal they would be looked at again in the next round
        if done.content is not None:
            self._propose(done.content, done.digest)
        else:
            text = f"round {done.round}{self._named} produced NaN or infinite values and was discarded"
            text += "; lower the learning rate"
            self.state.note("warning", "round_void", text, round=done.round)
            if self.spec.goal is not None:  # or they would count in the next round
                for peer in self._closing:
                    self._refuse(peer, "not_finite", f"the result of round {done.round} is NaN or infinite with it")
                self._gathering.drop(self._closing)
            self._propose_again()

    # ------------------------------------------------------------------------------------------------------- proceeding

    def go_on(self) -> None:
        """Go as far as possible: send the update of the round under way, close the round."""
        self._offer()
        if not self.over and self.round_commit.gathering:
            self._close()

    def _gather(self) -> None:
        """Begin to collect updates for the round under way; under a goal, waiting updates are carried over."""
        counted = None if self.spec.goal is None else self.in_force.counted
        self._gathering.at(self._under_way, self.state.now, counted)

    def _takes_part(self) -> tuple[str, ...]:
        """Return the participants of the round under way; kept, since every message asks for them."""
        key = (self.applied + 1, self.round_commit.holding.roster)
        if key != self._part[0]:
            self._part = key, self.spec.takes_part(key[0], self.clients)
        return self._part[1]

    def _there(self, peer: str) -> bool:
        """Return whether a peer may still send its update.

        It answers this coordinator's heartbeats, or this process has not met it yet. Membership is not asked about
        deaths: it learns of them later, and sometimes takes them back.
        """
        others = self.state.others
        if peer not in others:
            return peer == self.state.me
        status = others.status(peer, self.group)
        if status == "unmet":
            return others.unfinished(peer) and others.listens(peer)
        return status in ("active", "doubted", "dead") and not self.round_commit.election.silent(peer)

    def _offer(self) -> None:
        """Send the update of the round under way to its coordinator."""
        pending, followed = self.consensus_state.pending, self.round_commit.election.followed
        if pending is None or not self.update_waits or followed is None:
            return
        if self.state.me not in self._takes_part():
            return
        coordinator, term = followed
        if coordinator != self.state.me:
            key = (coordinator, term, pending.round)
            if self._sent.due(key, self.state.now):
                self.state.send(coordinator, self._update(term))
        elif self.round_commit.gathering:
            self._gather()
            if self.state.me not in self._gathering.updates.keys() | self._gathering.refused:
                self.on_update(self.state.me, self._update(term))

    def _update(self, term: int) -> Update:
        pending, known = self.consensus_state.pending, self._known
        assert pending is not None, "there is an update"
        if known is None or known[0] is not pending:
            known = self._known = pending, content_digest(pending.update), self.spec.fault(pending.update)
        _, digest, fault = known
        return Update(
            group=self.group, term=term, round=pending.round, digest=digest, content=pending.update, fault=fault
        )

    def _close(self) -> None:
        """Close the round if all reachable participants have sent, or at the deadline."""
        state, (term, round) = self.state, self._under_way
        gathering, goal = self._gathering, self.spec.goal
        self._gather()
        gathering.drop(gathering.updates.keys() - set(self.clients))  # clients revoked while their update waited
        awaited = gathering.awaited(self._takes_part(), self._there)
        enough = not awaited or (goal is not None and len(gathering.updates) >= goal)
        since = gathering.since if self.spec.trains_at_once or gathering.first is None else gathering.first
        over = state.now - since >= state.deadline(self.group)
        if gathering.closed or not (enough or (over and gathering.updates)) or not (over or gathering.updates):
            return
        gathering.closed = True
        late = [peer for peer in self._takes_part() if peer not in gathering.updates]
        if late and goal is None:
            text = f"round {round}{self._named} goes on without {', '.join(late)}"
            state.note("info", "went_on_without", text, group=self.group, without=late, round=round)
        self._note_first("closed", term, round)
        if not gathering.updates:
            self._propose_again()  # no participant is reachable; the next round has others
            return
        model, members = self.in_force, set(self.clients)
        counted = {peer: last for peer, last in model.counted.items() if peer in members}
        updates, rounds = dict(sorted(gathering.updates.items())), dict(gathering.rounds)
        self._closing = tuple(updates)
        job = AggregateUpdates(term, round, model.server, counted, updates, self.clients, self.group, rounds)
        state.effects.append(job)

    def _propose_again(self) -> None:
        """Propose that the model in force stays in force after this round."""
        applied = self.round_commit.holding.applied
        if applied is None:
            content = content_of({}, self.spec.server)
            self._propose(content, content_digest(content))
        else:
            self._propose(self.consensus_state.models[applied.proposal.digest], applied.proposal.digest)

    def _propose(self, content: bytes, digest: bytes) -> None:
        place = self._under_way
        self._store(digest, content)
        if place == self._under_way:  # else a later coordinator had committed the same model, which was missing here
            self._do(self.round_commit.propose(digest))

    def _store(self, digest: bytes, content: bytes) -> None:
        """Store a model, and go on with the message that waits for it."""
        self.state.write(ModelStored(group=self.group, digest=digest, content=content))
        self._do(self.round_commit.holds(digest))

    # ---------------------------------------------------------------------------------------------- the machine's words

    def _do(self, outs: Iterable[ConsensusEffect]) -> None:
        """Turn the machine's outputs into effects, in their order."""
        state = self.state
        for out in outs:
            match out:
                case PersistConsensus(HardState() as hard_state):
                    state.write(TermChanged(group=self.group, term=hard_state.term, voted=hard_state.voted))
                case PersistConsensus(CommitState() as holding):
                    state.write(commit_state_changed(self.group, holding))
                case SendConsensus(_, Accept()) if not self._accepts:
                    pass
                case SendConsensus(_, Heartbeat() | ShortHeartbeat() | HeartbeatReply() as message):
                    # This peer is alive, whatever its disk does.
                    term = message.leader_certificate.term if isinstance(message, Heartbeat) else message.term
                    here = (self.group, "follow" if isinstance(message, HeartbeatReply) else "lead", term)
                    state.send(out.to, ConsensusMessage(group=self.group, message=message), here)
                case SendConsensus():
                    state.send(out.to, ConsensusMessage(group=self.group, message=out.message))
                case LeaderChanged():
                    who = "no coordinator" if out.coordinator is None else f"{out.coordinator} coordinates"
                    fields = {"term": out.term, "coordinator": out.coordinator, "group": self.group}
                    state.note("info", "coordinator", f"{who}{self._named} in term {out.term}", **fields)
                case Fetch():
                    key, awaited = (out.holder, out.digest), self.round_commit.awaited
                    self._wanted = {digest: timer for digest, timer in self._wanted.items() if digest in awaited}
                    if self._wanted.setdefault(out.digest, RetryTimer()).due(key, state.now):
                        state.send(out.holder, ModelRequest(group=self.group, digest=out.digest))
                case ApplyModel(proposal):
                    self._wanted.clear()
                    self._note_first("in_force", proposal.term, proposal.round)
                case CountUpdate():
                    raise AssertionError("updates are taken where they arrive")
                case Rejection():
                    state.count(out.code, out.sender, out.text)

    def _note_first(self, what: str, term: int, round: int) -> None:
        """Note the first round of each term that is closed or in force: it shows what a change of coordinator cost."""
        if term != self._noted.get(what):
            self._noted[what] = term
            text = f"round {round}{self._named} is the first that is {what.replace('_', ' ')} in term {term}"
            self.state.note("debug", what, text, round=round, term=term, group=self.group)

    @property
    def _named(self) -> str:
        """The group's name in a sentence; empty for the consensus group of all peers."""
        return "" if self.group == EVERYONE else f' "{self.group}"'

    def _refuse(self, peer: str, code: str, text: str) -> None:
        """Reject an update of a peer, or this peer's own."""
        if peer == self.state.me:
            self._void = 0 if self.consensus_state.pending is None else self.consensus_state.pending.round
            self.state.note("warning", "update_void", f"this peer's own update does not count: {text}", code=code)
        else:
            self.state.refuse(code, peer, text, group=self.group)

    def _take(self, peer: str, update: Update, outs: Iterable[ConsensusEffect]) -> None:
        """Count an update or reject it, as the machine says, and answer its sender."""
        state, refused = self.state, False
        for out in outs:
            match out:
                case CountUpdate():
                    self._gathering.take(peer, update.round, update.content, state.now)
                case Rejection():
                    refused = True
                    self._refuse(peer, out.code, out.text)
                case _:
                    self._do([out])
        if peer != state.me and not refused:
            state.send(peer, Ack(group=self.group, taken=update.term, round=update.round))
