"""One whole peer as a machine: `Node.step(event)` gives the effects that follow, in a binding order.

No socket, file, clock or thread is in it, and no draw that was not handed in, so a real process, a simulated one and
a test run the same code. What must survive is in the `DurableState`; each change of it is persisted before anything
that follows from it is said. The rest may be forgotten and is in `NodeState` and beside it: what others say
(`dispatch.py`), who has been met (`handshake.py`), what is open on the lanes and for how long (`channels.py`), where
the rounds stand (`rounds.py`), who is there (`membership_effects.py`), how the peer comes and goes (`lifecycle.py`).

A step takes the event in and then goes on as far as it can.

    gathering -> learning -> finished -> stopped        the usual way
    gathering -> joining  -> learning                   the others have begun: take over their values first
    learning  -> joining  -> finished                   the others have finished without it: take over their result
    any       -> leaving  -> stopped                    hand everything over
    any       -> stopped                                pause: everything is kept
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import assert_never

import numpy as np

from fedpeer.gossip.claims import Sign, Verify
from fedpeer.gossip.membership import Advert, Claim, Membership
from fedpeer.peer.consensus import voting
from fedpeer.peer.consensus.round_consensus import RoundConsensus
from fedpeer.peer.node.admission import policy_of
from fedpeer.peer.node.amending import goes_over, gone_over, take_over
from fedpeer.peer.node.channels import say_again
from fedpeer.peer.node.client import RoundClient
from fedpeer.peer.node.dispatch import Dispatch
from fedpeer.peer.node.fellow import GroupAverager
from fedpeer.peer.node.handshake import adopt_roster, close_books, greet
from fedpeer.peer.node.lifecycle import Lifecycle, NodeParts, await_others, join_late, leave_federation, linger
from fedpeer.peer.node.membership_effects import attend
from fedpeer.peer.node.reminders import born_again
from fedpeer.peer.node.retransmission import Retransmissions
from fedpeer.peer.node.rounds import Rounds, average, begin_round, push, round_trained, stay, train_round, watch_rounds
from fedpeer.peer.node.skew import finished_without
from fedpeer.peer.state.algorithm_spec import AlgorithmSpec
from fedpeer.peer.state.durable_state import DurableState
from fedpeer.peer.state.events import (
    ClientTrained,
    Effect,
    Evaluated,
    Event,
    Heard,
    NewContract,
    NewRoster,
    NobodyListens,
    OperatorCommand,
    RoundFinished,
    Tick,
    Trained,
    UpdatesAggregated,
)
from fedpeer.peer.state.neighbor import Neighbor
from fedpeer.peer.state.node_state import NodeState, PeerGroups, Phase, Setup
from fedpeer.peer.state.voters import EVERYONE, ConsensusGroup
from fedpeer.peer.wire.message_policy import MessagePolicy
from fedpeer.peer.wire.messages import Message, Ping, PingRequest, Pong
from fedpeer.peer.wire.roster import Roster
from fedpeer.rejection import Rejection

#: Ticks for which only the seeds are greeted: they tell who else is there within that time.
SEEDS_FIRST_TICKS = 100
#: A process that finds an empty disk takes its number from below this one, drawn; a second one does not get the same.
LIFE_LEAP = 2**31


@dataclass(frozen=True)
class Moment:
    """What a node goes on from (`Node.again`): its ledger and circle, and whether it had begun."""

    ledger: DurableState
    circle: PeerGroups
    awake: bool


class Node:
    """One peer.

    ledger   as it was recovered, or blank; `blank` says which
    forgot   whether something that was durable is known to be gone
    renews   whether a whole state is to be saved at once, since none stands behind the one that was read
    course_of   what must be known of each of its councils, by group, where there are any

    `councils` are those that it sits in, by group; `part` is what it does in them: as a client of a server, or as one
    of the equals of their groups.
    """

    def __init__(
        self,
        setup: Setup,
        ledger: DurableState,
        *,
        blank: bool,
        draws: np.random.Generator,
        sign: Sign,
        verify: Verify,
        forgot: bool = False,
        renews: bool = False,
        course_of: Callable[[str, ConsensusGroup], AlgorithmSpec],
    ) -> None:
        self.setup = setup
        self._course_of, self._draws, self._sign, self._verify = course_of, draws, sign, verify
        self.blank, self._forgot, self._renews = blank, forgot, renews
        advert = Advert(
            address=setup.address,
            roster=setup.circle.roster.number,
            life=self._number(ledger),
            nonce=setup.nonce,
            round=ledger.round,
            score=None,
            begun=ledger.round > 0,
            models=setup.models,
        )
        membership = Membership(
            setup.me,
            federation=setup.circle.roster.federation_id,
            roster=setup.circle.peers,
            incarnation=ledger.incarnation,
            advert=advert,
            draws=draws,
            sign=sign,
            verify=verify,
        )
        late = 0 if not setup.seeds else SEEDS_FIRST_TICKS
        others = {
            peer: Neighbor(hello_at=0 if peer in setup.seeds else late)
            for peer in setup.circle.peers
            if peer != setup.me
        }
        self.life = NodeState(
            setup, ledger, membership, setup.circle, others, sign, verify, new=ledger.life == 0, signed=setup.signed
        )
        self.repeats = Retransmissions()
        self.rounds = Rounds()
        self.work = NodeParts(self.life, self.rounds, self.repeats, Lifecycle(), self._begin)
        self.councils: dict[str, RoundConsensus] = {}
        self._seat()
        self.part: RoundClient | GroupAverager | None = None
        if setup.part is not None:
            fellow = setup.part == "fellow"
            self.part = (
                GroupAverager(self.life, self.councils) if fellow else RoundClient(self.life, self.councils[EVERYONE])
            )
        self._dispatch = Dispatch(self.work, self.councils, self._enrol)
        self._awake = False
        self._reacquainted = False

    @property
    def phase(self) -> Phase:
        return self.life.phase

    @property
    def ledger(self) -> DurableState:
        return self.life.ledger

    def outlived(self, sender: str, message: Message) -> tuple[Claim, ...]:
        """What a later process says that has taken over the identity of the one from whom this comes (E15), as its own
        claim shows; () where there is none."""
        if not isinstance(message, Ping | PingRequest | Pong) or sender not in self.life.others:
            return ()
        said = self.life.membership.last_statement(sender)
        if said is None or said.advert is None:
            return ()
        own = [claim.advert for claim in message.claims if claim.about == claim.author == sender and claim.advert]
        known = (said.advert.life, said.advert.nonce)
        return (said,) if any((advert.life, advert.nonce) < known for advert in own) else ()

    def policy(self, other: str | None) -> MessagePolicy:
        """What a message from this other peer (None: not known without certificates) is held against now."""
        if other not in self.life.policies:
            self.life.policies[other] = policy_of(self.life, other)
        return self.life.policies[other]

    def moment(self) -> Moment:
        """All that must survive, as it is now; later steps do not change it."""
        return Moment(self.ledger.copy(), self.life.circle, self._awake)

    def again(self, moment: Moment) -> Node:
        """This peer as if its process had been killed at that moment and started again. This node is not to be used
        any more."""
        return Node(
            replace(self.setup, circle=moment.circle),
            moment.ledger,
            blank=self.blank and not moment.awake,
            draws=self._draws,
            sign=self._sign,
            verify=self._verify,
            forgot=self._forgot and not moment.awake,
            course_of=self._course_of,
        )

    def step(self, event: Event) -> list[Effect]:
        """Take one event in and go on as far as possible."""
        life = self.life
        if life.phase == "stopped":
            return []
        if not self._awake:
            self._wake()
        match event:
            case Tick():
                life.passes(event.now)
                life.reconsider()
                attend(life, life.membership.tick(event.now))
                if life.phase == "learning" and self.part is None:
                    watch_rounds(life, self.rounds)
                if life.phase in ("learning", "finished"):
                    for council in self.councils.values():
                        council.tick()
            case Heard():
                self._dispatch.hear(event)
            case Trained() if isinstance(self.part, GroupAverager):
                self.part.trained(event)
            case Trained():
                round_trained(life, self.rounds, event)
            case Evaluated():
                life.advertise(event.score)
                text = f"round {event.round}: score {event.score:.4f}, loss {event.loss:.4f}"
                fields: dict[str, object] = {"round": event.round, "score": event.score, "loss": event.loss}
                if event.server is not None:
                    text += f"; the server's model: score {event.server[0]:.4f}, loss {event.server[1]:.4f}"
                    fields |= {"server_score": event.server[0], "server_loss": event.server[1]}
                life.note("info", "evaluated", text, **fields)
            case ClientTrained() | UpdatesAggregated() | RoundFinished():
                self._studied(event)
            case Rejection():
                life.charge(event.code, event.sender)
            case NobodyListens():
                for council in self.councils.values():
                    council.decrees.election.nobody_listens(event.peer)
            case NewRoster():
                self._enrol(event.roster)
            case NewContract():
                take_over(life, event.contract)
            case OperatorCommand():
                self._asked(event.what)
            case _:
                assert_never(event)
        self._proceed()
        return self.told()

    def told(self) -> list[Effect]:
        """The effects that nobody has taken yet."""
        effects, self.life.effects = self.life.effects, []
        return effects

    # ------------------------------------------------------------------------------------------------- begin and end

    def _number(self, ledger: DurableState) -> int:
        """Of this life. Where promises are made a peer that finds an empty disk begins with a drawn number, so that who
        answers its Hello tells whether it heard from this process or from an earlier one."""
        leap = self.setup.nonce % LIFE_LEAP if ledger.life == 0 and self.setup.circle.councils else 0
        return ledger.life + 1 + leap

    def _wake(self) -> None:
        """The first step of this process."""
        self._awake = True
        life = self.life
        life.starts(self._number(life.ledger))
        life.amnesia = self._forgot or life.ledger.rekeyed
        close_books(life)  # by a roster that was there when it started
        for council in self.councils.values():
            voting.learn_roster(council, life.circle.roster)
        if life.phase == "stopped":
            return
        if life.ledger.left:
            born_again(life, life.ledger.incarnation + 1, "it had left, and comes back")
            self.blank = True
        elif life.ledger.rekeyed:
            born_again(life, life.ledger.incarnation + 1, "it was put out, and is let in again with another key")
            self.blank = True
        elif self._forgot:
            born_again(life, life.ledger.incarnation + 1, "the disk has lost what was durable")
        if self.blank or self._renews:
            life.snapshot()
        gone_over(life)
        round, last = life.ledger.round, self.setup.federation.learning.rounds
        if round == 0 or self.blank:
            life.enter("gathering")
        elif round > last:
            life.enter("finished")
        else:
            life.note("info", "resumed", f"going on in round {round}", round=round)
            if self.part is None and not life.ledger.trained:
                train_round(life, self.rounds)

    def _begin(self, round: int) -> None:
        """This round is the first of this process."""
        if self.part is not None:
            self.part.begin()
        else:
            begin_round(self.life, self.rounds, round)

    def _asked(self, what: str) -> None:
        life = self.life
        if what == "pause":
            life.snapshot()
            life.note("info", "paused", f"paused in round {life.ledger.round}; start again to go on")
            life.stop(0, "paused; everything is kept")
        elif life.phase != "leaving":
            life.enter("leaving")
            life.advertise()

    # ------------------------------------------------------------------------------------------------------- proceed

    def _proceed(self) -> None:
        life = self.life
        if life.phase == "stopped":
            return
        greet(life)
        say_again(life, self.repeats)
        if life.phase in ("gathering", "joining") and goes_over(life):
            return
        match life.phase:
            case "gathering":
                await_others(self.work)
            case "joining":
                join_late(self.work)
            case "finished":
                if not goes_over(life):
                    linger(self.work)
            case "leaving":
                leave_federation(self.work)
        if life.phase == "learning":
            if self.part is not None:
                self.part.go_on()
            else:
                self._learn()
        if life.phase in ("learning", "finished"):
            for council in self.councils.values():
                council.go_on()
        if self.part is None and life.phase in ("learning", "finished") and not life.synchronous:
            push(life, self.rounds, self.repeats)

    def _learn(self) -> None:
        life, ledger = self.life, self.life.ledger
        while life.phase == "learning" and not self.rounds.training:
            if finished_without(life):
                life.enter("joining")
                return
            if not ledger.trained:
                train_round(life, self.rounds)
                return
            if life.synchronous and (self._among_strangers() or not average(life, self.rounds, self.repeats)):
                return
            if stay(life, self.rounds):
                return
            begin_round(life, self.rounds, ledger.round + 1)
            life.advertise()
        if life.phase == "finished":
            life.enter("finished")

    def _among_strangers(self) -> bool:
        """Whether this process has just started and has still to meet others, so that it would average alone."""
        life = self.life
        if not self._reacquainted:
            strangers = [p for p in life.mates if not life.others[p].met]
            expected = [p for p in strangers if life.membership.standing(p) not in ("dead", "left")]
            over = life.waited() >= self.setup.ticks(self.setup.federation.gossip.deadline)
            self._reacquainted = over or not expected
        return not self._reacquainted

    def _studied(self, event: ClientTrained | UpdatesAggregated | RoundFinished) -> None:
        if isinstance(event, UpdatesAggregated):
            if event.group in self.councils:
                self.councils[event.group].concluded(event)
            return
        assert isinstance(self.part, RoundClient), "who is no client asks for no such work"
        if isinstance(event, ClientTrained):
            self.part.practised(event)
        else:
            self.part.settled(event)

    # ------------------------------------------------------------------------------------------------------- the roster

    def _enrol(self, roster: Roster) -> None:
        life = self.life
        if roster.number <= life.circle.roster.number:
            return
        adopt_roster(life, roster)
        for peer in life.circle.peers:
            if peer != life.me:
                life.others.setdefault(peer, Neighbor())
        self._seat()
        for council in self.councils.values():
            voting.learn_roster(council, roster)
        life.changed()

    def _seat(self) -> None:
        """Sit in the councils of the circle, and in no others."""
        life = self.life
        gone = self.councils.keys() - life.circle.councils.keys()
        for group in gone:
            del self.councils[group], life.courses[group]
        for group, peer_council in life.circle.councils.items():
            if group not in self.councils:
                course = life.courses[group] = self._course_of(group, peer_council)
                self.councils[group] = RoundConsensus(life, group, course, self._draws, self._sign, self._verify)
