"""One whole peer as a machine: `Node.step(event)` returns the effects that follow, in a binding order.

It has no socket, file, clock or thread, and draws random numbers only from a generator that is passed in, so a real
process, a simulated one and a test run the same code. What must survive is in the `DurableState`; each change of it is
persisted before any message that follows from it is sent. The rest may be forgotten: `NodeState`, and the parts beside
it for messages (`dispatch.py`), handshakes (`handshake.py`), transfers (`channels.py`), rounds (`rounds.py`),
membership (`membership_effects.py`), later rosters (`roster_changes.py`), and arrival and departure (`lifecycle.py`).

A step takes the event in and then goes on as far as it can. The phases of a node and their transitions are one table:
`peer/state/phases.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import assert_never

import numpy as np

from fedpeer.gossip.claims import Sign, Verify
from fedpeer.gossip.membership import Advert, Claim, Membership
from fedpeer.peer.consensus import voting
from fedpeer.peer.consensus.roster_keys import VerifyBy
from fedpeer.peer.consensus.round_consensus import RoundConsensus
from fedpeer.peer.node.admission import policy_of
from fedpeer.peer.node.amending import goes_over, gone_over, look_at_found, take_over
from fedpeer.peer.node.channels import retransmit
from fedpeer.peer.node.client import RoundClient
from fedpeer.peer.node.dispatch import Dispatch
from fedpeer.peer.node.group_averager import GroupAverager
from fedpeer.peer.node.handshake import greet
from fedpeer.peer.node.lifecycle import Lifecycle, NodeParts, await_others, join_late, leave_federation, linger
from fedpeer.peer.node.membership_effects import attend
from fedpeer.peer.node.reminders import begin_incarnation
from fedpeer.peer.node.retransmission import Retransmissions
from fedpeer.peer.node.roster_changes import adopt_roster, close_books, note_gone
from fedpeer.peer.node.rounds import (
    RoundProgress,
    average,
    begin_round,
    push,
    round_trained,
    stay,
    train_round,
    watch_rounds,
)
from fedpeer.peer.node.skew import accompanied, finished_without
from fedpeer.peer.state.algorithm_spec import AlgorithmSpec
from fedpeer.peer.state.durable_state import DurableState
from fedpeer.peer.state.events import (
    ClientTrained,
    Effect,
    Evaluated,
    Event,
    MessageReceived,
    NewContract,
    NewRoster,
    NobodyListens,
    OperatorCommand,
    Reachability,
    RoundFinished,
    Tick,
    Trained,
    UpdatesAggregated,
)
from fedpeer.peer.state.neighbor import Neighbor
from fedpeer.peer.state.neighbors import Clock, Neighbors
from fedpeer.peer.state.node_state import NodeState
from fedpeer.peer.state.own_process import Contracts, OwnStarts
from fedpeer.peer.state.phases import TRANSITIONS, Phase
from fedpeer.peer.state.setup import PeerGroups, Setup
from fedpeer.peer.state.voters import EVERYONE, ConsensusGroup
from fedpeer.peer.wire.message_policy import MessagePolicy
from fedpeer.peer.wire.messages import Message, Ping, PingRequest, Pong
from fedpeer.peer.wire.roster import Roster
from fedpeer.rejection import Rejection

#: Ticks for which only the seeds are greeted: within that time they say which other peers are alive.
_SEEDS_FIRST_TICKS = 100
#: Ticks for which a process that has just started and has met some of the other peers waits for the rest before it
#: gives shares.
_STRANGERS_TICKS = 200
#: A process that finds an empty disk starts from a random generation below this one, so that a second such process
#: gets another.
_GENERATION_LEAP = 2**31
_NOTHING_GONE: Mapping[str, float] = {}


@dataclass(frozen=True)
class RestorePoint:
    """Durable state and groups from which a node goes on (`Node.again`); `started`: it had taken its first step."""

    durable: DurableState
    peer_groups: PeerGroups
    started: bool


class Node:
    """One peer as a pure state machine.

    durable   recovered state, or a blank one if `blank`
    forgot    something that was durable is known to be lost
    renews    save a whole snapshot at once: no older one is left behind the one that was read, or it has other groups
    gone      weights written off in groups that the state has and this peer no longer has
    spec_of   returns the spec of a consensus group

    `consensus_by_group` has the peer's consensus groups. `client` is the peer's client if the algorithm has a server;
    otherwise it is None, `rounds` is the progress of the peer's rounds, and `averager` averages through coordinators.
    """

    def __init__(
        self,
        setup: Setup,
        durable: DurableState,
        *,
        blank: bool,
        draws: np.random.Generator,
        sign: Sign,
        verify: Verify,
        verify_by: VerifyBy,
        forgot: bool = False,
        renews: bool = False,
        gone: Mapping[str, float] = _NOTHING_GONE,
        spec_of: Callable[[str, ConsensusGroup], AlgorithmSpec],
    ) -> None:
        self.setup = setup
        self._spec_of, self._draws, self._sign = spec_of, draws, sign
        self._verify, self._verify_by = verify, verify_by
        self.blank, self._forgot, self._renews, self._gone = blank, forgot, renews, gone
        advert = Advert(
            address=setup.address,
            roster=setup.peer_groups.roster.number,
            generation=self._number(durable),
            nonce=setup.nonce,
            round=durable.round,
            score=None,
            begun=durable.round > 0,
            models=setup.models,
        )
        membership = Membership(
            setup.me,
            federation=setup.peer_groups.roster.federation_id,
            roster=setup.peer_groups.peers,
            incarnation=durable.incarnation,
            advert=advert,
            draws=draws,
            sign=sign,
            verify=verify,
        )
        late = 0 if not setup.seeds else _SEEDS_FIRST_TICKS
        clock = Clock()
        others = Neighbors(membership, clock)
        for peer in setup.peer_groups.peers:
            if peer != setup.me:
                others[peer] = Neighbor(hello_at=0 if peer in setup.seeds else late)
        self.state = NodeState(
            setup,
            durable,
            membership,
            setup.peer_groups,
            others,
            sign,
            verify,
            clock,
            OwnStarts(self._before(durable)),
            Contracts(setup.held, setup.signed),
        )
        self.repeats = Retransmissions()
        self.rounds = RoundProgress()
        self.work = NodeParts(self.state, self.rounds, self.repeats, Lifecycle(), self._begin)
        self.consensus_by_group: dict[str, RoundConsensus] = {}
        self._reachable = True
        self._update_consensus_groups()
        self.client = RoundClient(self.state, self.consensus_by_group[EVERYONE]) if setup.has_server else None
        self.averager = GroupAverager(self.state, self.consensus_by_group)
        self._dispatch = Dispatch(self.work, self.consensus_by_group, self._enrol)
        self._reacquainted = False

    @property
    def phase(self) -> Phase:
        return self.state.phase

    @property
    def durable(self) -> DurableState:
        return self.state.durable

    def outlived(self, sender: str, message: Message) -> tuple[Claim, ...]:
        """Return a later process's statement under the sender's identity (E15), if the message's own claim is older.

        Otherwise return ().
        """
        if not isinstance(message, Ping | PingRequest | Pong) or sender not in self.state.others:
            return ()
        statement = self.state.membership.last_statement(sender)
        if statement is None or statement.advert is None:
            return ()
        own = [claim.advert for claim in message.claims if claim.about == claim.author == sender and claim.advert]
        known = (statement.advert.generation, statement.advert.nonce)
        return (statement,) if any((advert.generation, advert.nonce) < known for advert in own) else ()

    def policy(self, other: str | None) -> MessagePolicy:
        """Return the current policy for messages from this peer; None: an unknown sender, without certificates."""
        if other not in self.state.others.policies:
            self.state.others.policies[other] = policy_of(self.state, other)
        return self.state.others.policies[other]

    def restore_point(self) -> RestorePoint:
        """Return a copy of all that must survive; later steps do not change it."""
        return RestorePoint(self.durable.copy(), self.state.peer_groups, self.phase != "starting")

    def again(self, point: RestorePoint) -> Node:
        """Return this peer as if its process had been killed at that moment and started again.

        This node must not be used any more.
        """
        node = Node(
            replace(self.setup, peer_groups=point.peer_groups),
            point.durable,
            blank=self.blank and not point.started,
            draws=self._draws,
            sign=self._sign,
            verify=self._verify,
            verify_by=self._verify_by,
            forgot=self._forgot and not point.started,
            spec_of=self._spec_of,
        )
        node._be_reachable(self._reachable)
        return node

    def step(self, event: Event) -> list[Effect]:
        """Take one event in and go on as far as possible; return the effects, in a binding order."""
        state = self.state
        if state.phase == "stopped":
            return []
        if state.phase == "starting":
            self._wake()
            if self.phase == "stopped":
                return self.take_effects()
        match event:
            case Tick():
                state.clock.advance(event.now)
                state.others.reconsider()
                attend(state, state.membership.tick(event.now))
                if state.phase == "learning" and self.client is None:
                    watch_rounds(state, self.rounds)
                if state.phase in ("learning", "finished"):
                    for consensus in self.consensus_by_group.values():
                        consensus.tick()
            case MessageReceived():
                self._dispatch.on_event(event)
            case Trained():
                if round_trained(state, self.rounds, event):
                    self.averager.keep_means()
            case Evaluated():
                self._on_evaluated(event)
            case ClientTrained() | UpdatesAggregated() | RoundFinished():
                self._on_round_work(event)
            case Rejection():
                state.charge(event.code, event.sender)
            case NobodyListens():
                for consensus in self.consensus_by_group.values():
                    consensus.round_commit.election.nobody_listens(event.peer)
            case Reachability(reachable):
                self._be_reachable(reachable)
            case NewRoster():
                self._enrol(event.roster)
            case NewContract():
                take_over(state, event.contract)
            case OperatorCommand():
                self._on_command(event.what)
            case _:
                assert_never(event)
        self._proceed()
        return self.take_effects()

    def take_effects(self) -> list[Effect]:
        """Return the effects that nobody has taken yet."""
        effects, self.state.effects = self.state.effects, []
        return effects

    # ------------------------------------------------------------------------------------------------- begin and end

    def _number(self, durable: DurableState) -> int:
        """Return the generation of this start.

        In groups with a coordinator, a peer with an empty disk starts from a random number, so that each answer to its
        Hello shows which process the answering peer has met.
        """
        leap = (
            self.setup.nonce % _GENERATION_LEAP
            if durable.generation == 0 and self.setup.peer_groups.consensus_by_group
            else 0
        )
        return durable.generation + 1 + leap

    def _before(self, durable: DurableState) -> range:
        """Return the generations of the earlier processes on this disk that had this peer's present key."""
        number = self._number(durable)
        return range(durable.first, number) if durable.generation and not durable.rekeyed else range(number, number)

    def _wake(self) -> None:
        """Start this process on its durable state, and enter its first phase."""
        state = self.state
        # Before any entry of a group that the last snapshot lacks. A snapshot hides that memory was lost and that the
        # key is another one, so it then waits for the new incarnation.
        if self._renews and not (self._forgot or state.durable.rekeyed):
            state.snapshot()
        state.start(self._number(state.durable))
        if self._forgot:  # a peer with another key has forgotten nothing: it is another voter (`roster_keys.py`)
            state.lose_vote()
        note_gone(state, self._gone)
        close_books(state)  # by the roster found at the start
        look_at_found(state)
        for consensus in self.consensus_by_group.values():
            for roster in (*self.setup.earlier, state.peer_groups.roster):
                voting.learn_roster(consensus, roster)
        if state.phase == "stopped":
            return
        if state.durable.left:
            begin_incarnation(state, state.durable.incarnation + 1, "it had left, and comes back")
            self.blank = True
        elif state.durable.rekeyed:
            begin_incarnation(
                state, state.durable.incarnation + 1, "it was revoked, and is admitted again with another key"
            )
            self.blank = True
        elif self._forgot:
            begin_incarnation(state, state.durable.incarnation + 1, "the disk lost durable state")
        if self.blank or self._forgot:
            state.snapshot()
        models = state.models if self.client is None else self.client.models
        gone_over(state, models)
        round, last = state.durable.round, self.setup.federation.learning.rounds
        if round == 0 or self.blank:
            state.enter("gathering")
        elif round > last:
            state.enter("finished")
            state.evaluate(last, *models())  # the process before may have ended before it
        else:
            state.enter("learning")
            state.note("info", "resumed", f"going on in round {round}", round=round)

    def _begin(self, round: int) -> None:
        """Begin this round, or a later one, as the first of this process."""
        for consensus in self.consensus_by_group.values():
            voting.note_others_ahead(consensus)  # afterwards this peer may be as far as they are
        if self.client is not None:
            self.client.begin()
            return
        self.averager.take_over()
        begin_round(self.state, self.rounds, self.averager.first_round(round))

    def _be_reachable(self, reachable: bool) -> None:
        """Stand for coordinator in turn, or after all others while nobody can connect to this peer."""
        self._reachable = reachable
        for consensus in self.consensus_by_group.values():
            consensus.round_commit.election.stand_last(not reachable)

    def _on_command(self, what: str) -> None:
        state = self.state
        if what == "pause":
            state.snapshot()
            state.note("info", "paused", f"paused in round {state.durable.round}; start again to go on")
            state.stop(0, "paused; everything is kept")
        elif "leaving" in TRANSITIONS[state.phase]:
            state.enter("leaving")
            state.advertise()

    # ------------------------------------------------------------------------------------------------------- proceed

    def _proceed(self) -> None:
        state = self.state
        if state.phase == "stopped":
            return
        for consensus in self.consensus_by_group.values():
            consensus.abstain()
        greet(state)
        retransmit(state, self.repeats)
        if state.phase in ("gathering", "joining") and goes_over(state):
            return
        match state.phase:
            case "gathering":
                await_others(self.work)
            case "joining":
                join_late(self.work)
            case "finished":
                if not goes_over(state):
                    linger(self.work)
            case "leaving":
                leave_federation(self.work)
        if state.phase == "learning":
            if self.client is not None:
                self.client.go_on()
            else:
                self._learn()
        if state.phase in ("learning", "finished"):
            for consensus in self.consensus_by_group.values():
                consensus.go_on()
        if state.phase in ("learning", "finished"):
            push(state, self.rounds, self.repeats)

    def _learn(self) -> None:
        state, durable = self.state, self.state.durable
        if self.rounds.training or (self.consensus_by_group and goes_over(state)):
            return
        self.averager.take_over()
        while state.phase == "learning" and not self.rounds.training:
            if finished_without(state):
                state.enter("joining")
                return
            if not durable.trained:
                train_round(state, self.rounds)
                return
            if not self._averaged() or stay(state, self.rounds):
                return
            begin_round(state, self.rounds, self.averager.next_round())
            state.advertise()

    def _averaged(self) -> bool:
        """Take the averaging of this round as far as it can go; return whether it is over in all groups."""
        state, rounds = self.state, self.rounds
        rounds.trained_at = state.ran if rounds.trained_at is None else rounds.trained_at  # None after a restart
        self.averager.store_updates()
        shares = bool(state.in_rounds)
        if shares and (self._among_strangers() or not average(state, self.rounds, self.repeats)):
            self.averager.over(goes_on=False)
            return False
        return self.averager.over(goes_on=shares or accompanied(state))

    def _among_strangers(self) -> bool:
        """Return whether this process has just started and has not met the other peers, so that it would average alone.

        Once it has met one of them, it waits only briefly for the rest, which it may never meet.
        """
        state = self.state
        if not self._reacquainted:
            strangers = [p for p in state.round_peers if not state.others[p].met]
            expected = [p for p in strangers if not state.others.gone(p)]
            patience = state.longest_deadline
            if len(strangers) < len(state.round_peers):
                patience = min(patience, _STRANGERS_TICKS)
            over = state.waited() >= patience
            self._reacquainted = over or not expected
        return not self._reacquainted

    def _on_evaluated(self, event: Evaluated) -> None:
        """State this peer's newest score to the others, and note all results."""
        state = self.state
        state.evaluating = max(0, state.evaluating - 1)
        state.advertise(event.score)
        text = f"round {event.round}: score {event.score:.4f}, loss {event.loss:.4f}"
        fields: dict[str, object] = {"round": event.round, "score": event.score, "loss": event.loss}
        if event.server is not None:
            text += f"; the server's model: score {event.server[0]:.4f}, loss {event.server[1]:.4f}"
            fields |= {"server_score": event.server[0], "server_loss": event.server[1]}
        if event.validation is not None:
            text += f"; validation: score {event.validation[0]:.4f}, loss {event.validation[1]:.4f}"
            fields |= {"validation_score": event.validation[0], "validation_loss": event.validation[1]}
        if event.metrics:
            text += "".join(f", {name} {value:.4f}" for name, value in event.metrics.items())
            fields["metrics"] = dict(event.metrics)
        state.note("info", "evaluated", text, **fields)

    def _on_round_work(self, event: ClientTrained | UpdatesAggregated | RoundFinished) -> None:
        if isinstance(event, UpdatesAggregated):
            if event.group in self.consensus_by_group:
                self.consensus_by_group[event.group].aggregated(event)
            return
        assert self.client is not None, "only clients ask for such work"
        if isinstance(event, ClientTrained):
            self.client.trained(event)
        else:
            self.client.settled(event)

    # ------------------------------------------------------------------------------------------------------- the roster

    def _enrol(self, roster: Roster) -> None:
        state = self.state
        if roster.number <= state.peer_groups.roster.number:
            return
        adopt_roster(state, roster)
        for peer in state.peer_groups.peers:
            if peer != state.me:
                state.others.setdefault(peer, Neighbor(away_since=state.ran))
        self._update_consensus_groups()
        for consensus in self.consensus_by_group.values():
            voting.learn_roster(consensus, roster)
        state.others.changed()

    def _update_consensus_groups(self) -> None:
        """Take part in the consensus groups of the roster, and in no others."""
        state = self.state
        gone = self.consensus_by_group.keys() - state.peer_groups.consensus_by_group.keys()
        for group in gone:
            del self.consensus_by_group[group], state.specs[group]
        for group, consensus_group in state.peer_groups.consensus_by_group.items():
            if group not in self.consensus_by_group:
                spec = state.specs[group] = self._spec_of(group, consensus_group)
                self.consensus_by_group[group] = RoundConsensus(
                    state, group, spec, self._draws, self._sign, self._verify_by
                )
                self.consensus_by_group[group].round_commit.election.stand_last(not self._reachable)
