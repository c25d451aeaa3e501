"""One whole peer as a machine: `Node.step(event)` gives the effects that follow, in a binding order.

No socket, file, clock or thread is in it, and no draw that was not handed in, so a real process, a simulated one and
a test run the same code. What must survive is in the `Ledger`; each change of it is persisted before anything that
follows from it is said. The rest may be forgotten and is in `Life` and beside it: who has been met (`meeting.py`), what
is open on the lanes and for how long (`lanes.py`), where the rounds stand (`rounds.py`), who is there (`company.py`),
how the peer comes and goes (`passages.py`).

A step takes the event in and then goes on as far as it can.

    gathering -> learning -> finished -> stopped        the usual way
    gathering -> joining  -> learning                   the others have begun: take over their values first
    any       -> leaving  -> stopped                    hand everything over
    any       -> stopped                                pause: everything is kept
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, assert_never

import numpy as np
import torch

from fedpeer.gossip.claims import Sign, Verify
from fedpeer.gossip.membership import Advert, Membership
from fedpeer.peer.core import electors
from fedpeer.peer.core.acquaintance import Acquaintance
from fedpeer.peer.core.client import Client
from fedpeer.peer.core.company import attend
from fedpeer.peer.core.council import Council
from fedpeer.peer.core.course import Course
from fedpeer.peer.core.doors import gate_of
from fedpeer.peer.core.entries import Started
from fedpeer.peer.core.events import (
    Asked,
    Concluded,
    Effect,
    Evaluated,
    Event,
    Heard,
    NewRoster,
    Practised,
    RefusedAtDoor,
    Settled,
    Tick,
    Trained,
)
from fedpeer.peer.core.fellow import Fellow
from fedpeer.peer.core.gate import Gate
from fedpeer.peer.core.lanes import hear_ack, hear_transfer, say_again, say_all_open
from fedpeer.peer.core.ledger import Ledger
from fedpeer.peer.core.life import Life, Phase, Setup
from fedpeer.peer.core.meeting import born_again, enrol, greet, hear_contract, hear_hello, hear_roster
from fedpeer.peer.core.messages import (
    Ack,
    Ballot,
    Contract,
    Fetch,
    Hello,
    Message,
    Model,
    Ping,
    PingRequest,
    Pong,
    Refused,
    RosterNews,
    Transfer,
    Update,
    Value,
    Wanted,
)
from fedpeer.peer.core.passages import Passage, Work, gather, join, leave, linger
from fedpeer.peer.core.plausible import Gauge
from fedpeer.peer.core.repeats import Repeats
from fedpeer.peer.core.roster import AUTHORITY, Roster
from fedpeer.peer.core.rounds import Rounds, average, begin, push, train, trained
from fedpeer.peer.core.voters import EVERYONE, PeerCouncil

#: Peers that have to say that a later process has our identity before we believe it: one alone might lie.
OUTLIVED_MIN = 2
#: Ticks for which only the seeds are greeted: they tell who else is there within that time.
SEEDS_FIRST_TICKS = 100
#: Refusals that say no more than that somebody is a little ahead or behind.
USUAL = {"early", "repeated", "round_closed", "round_gap", "stale_term"}
#: A process that finds an empty disk takes its number from below this one, drawn; a second one does not get the same.
LIFE_LEAP = 2**31
#: Refusals that come from different memories of lanes, lives and edges.
CLEARED_UP_BY_HELLO = {
    "stale_incarnation",
    "early",
    "sequence_reused",
    "sequence_jump",
    "duplicate_peer",
    "not_a_neighbour",
}


class Node:
    """One peer.

    ledger   as it was recovered, or blank; `blank` says which
    forgot   whether something that was durable is known to be gone
    course_of   what must be known of each of its councils, by group, where there are any

    `councils` are those that it sits in, by group; `part` is what it does in them: as a client of a server, or as one
    of the equals of their groups.
    """

    def __init__(
        self,
        setup: Setup,
        ledger: Ledger,
        *,
        blank: bool,
        draws: np.random.Generator,
        sign: Sign,
        verify: Verify,
        forgot: bool = False,
        course_of: Callable[[str, PeerCouncil], Course],
    ) -> None:
        self.setup = setup
        self._course_of, self._draws, self._sign, self._verify = course_of, draws, sign, verify
        self.blank, self._forgot = blank, forgot
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
            peer: Acquaintance(hello_at=0 if peer in setup.seeds else late)
            for peer in setup.circle.peers
            if peer != setup.me
        }
        self.life = Life(setup, ledger, membership, setup.circle, others, new=ledger.life == 0)
        self.repeats = Repeats()
        self.rounds = Rounds()
        self.gauges = {group: Gauge() for group in ledger.groups}
        self.work = Work(self.life, self.rounds, self.repeats, self.gauges, Passage(), self._begin)
        self.councils: dict[str, Council] = {}
        self._seat()
        self.part: Client | Fellow | None = None
        if setup.part is not None:
            fellow = setup.part == "fellow"
            self.part = Fellow(self.life, self.councils) if fellow else Client(self.life, self.councils[EVERYONE])
        self._awake = False
        self._reacquainted = False
        self._outlived_by: set[str] = set()  # those who say that a later process has our identity

    @property
    def _stated(self) -> Literal["alive", "finished", "left"]:
        """What this peer says it is."""
        return "left" if self.ledger.left else "finished" if self.phase == "finished" else "alive"

    @property
    def phase(self) -> Phase:
        return self.life.phase

    @property
    def ledger(self) -> Ledger:
        return self.life.ledger

    def outlived(self, sender: str, message: Message) -> bool:
        """Whether this comes from a process whose identity a later one has taken over (E15): its own claim says so."""
        if not isinstance(message, Ping | PingRequest | Pong) or sender not in self.life.others:
            return False
        said = self.life.membership.last_statement(sender)
        if said is None or said.advert is None:
            return False
        own = [claim.advert for claim in message.claims if claim.about == claim.author == sender and claim.advert]
        known = (said.advert.life, said.advert.nonce)
        return any((advert.life, advert.nonce) < known for advert in own)

    def gate(self, other: str | None) -> Gate:
        """What a message from this other peer (None: not known without certificates) is held against now."""
        if other not in self.life.gates:
            self.life.gates[other] = gate_of(self.life, other)
        return self.life.gates[other]

    def step(self, event: Event) -> list[Effect]:
        """Take one event in and go on as far as possible."""
        life = self.life
        if life.phase == "stopped":
            return []
        if not self._awake:
            self._wake()
        match event:
            case Tick():
                life.now = event.now
                life.reconsider()
                attend(life, life.membership.tick(event.now))
                if life.phase in ("learning", "finished"):
                    for council in self.councils.values():
                        council.tick()
            case Heard():
                self._hear(event)
            case Trained() if isinstance(self.part, Fellow):
                self.part.trained(event)
            case Trained():
                trained(life, self.rounds, event)
            case Evaluated():
                life.advertise(event.score, self._stated)
                text = f"round {event.round}: score {event.score:.4f}, loss {event.loss:.4f}"
                fields: dict[str, object] = {"round": event.round, "score": event.score, "loss": event.loss}
                if event.server is not None:
                    text += f"; the server's model: score {event.server[0]:.4f}, loss {event.server[1]:.4f}"
                    fields |= {"server_score": event.server[0], "server_loss": event.server[1]}
                life.note("info", "evaluated", text, **fields)
            case Practised() | Concluded() | Settled():
                self._studied(event)
            case RefusedAtDoor():
                life.charge(event.code, event.sender)
            case NewRoster():
                self._enrol(event.roster)
            case Asked():
                self._asked(event.what)
            case _:
                assert_never(event)
        self._proceed()
        effects, life.effects = life.effects, []
        return effects

    # ------------------------------------------------------------------------------------------------- begin and end

    def _number(self, ledger: Ledger) -> int:
        """Of this life. Where promises are made a peer that finds an empty disk begins with a drawn number, so that who
        answers its Hello tells whether it heard from this process or from an earlier one."""
        leap = self.setup.nonce % LIFE_LEAP if ledger.life == 0 and self.setup.circle.councils else 0
        return ledger.life + 1 + leap

    def _wake(self) -> None:
        """The first step of this process."""
        self._awake = True
        life = self.life
        life.write(Started(life=self._number(life.ledger)))
        life.amnesia = self._forgot
        for council in self.councils.values():
            electors.enrol(council, life.circle.roster)
        if life.phase == "stopped":
            return
        if life.ledger.left:
            born_again(life, life.ledger.incarnation + 1, "it had left, and comes back")
            self.blank = True
        elif self._forgot:
            born_again(life, life.ledger.incarnation + 1, "the disk has lost what was durable")
        if self.blank:
            life.snapshot()
        round, last = life.ledger.round, self.setup.federation.learning.rounds
        if round == 0 or self.blank:
            life.enter("gathering")
        elif round > last:
            life.enter("finished")
        else:
            life.note("info", "resumed", f"going on in round {round}", round=round)
            if self.part is None and not life.ledger.trained:
                train(life, self.rounds)

    def _begin(self, round: int) -> None:
        """This round is the first of this process."""
        if self.part is not None:
            self.part.begin()
        else:
            begin(self.life, self.rounds, self.gauges, round)

    def _asked(self, what: str) -> None:
        life = self.life
        if what == "pause":
            life.snapshot()
            life.note("info", "paused", f"paused in round {life.ledger.round}; start again to go on")
            life.stop(0, "paused; everything is kept")
        elif life.phase != "leaving":
            life.enter("leaving")

    # ------------------------------------------------------------------------------------------------------- proceed

    def _proceed(self) -> None:
        life = self.life
        if life.phase == "stopped":
            return
        greet(life)
        say_again(life, self.repeats)
        match life.phase:
            case "gathering":
                gather(self.work)
            case "joining":
                join(self.work)
            case "finished":
                linger(self.work)
            case "leaving":
                leave(self.work)
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
            if not ledger.trained:
                train(life, self.rounds)
                return
            if life.synchronous and (self._among_strangers() or not average(life, self.rounds, self.repeats)):
                return
            begin(life, self.rounds, self.gauges, ledger.round + 1)
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

    # ---------------------------------------------------------------------------------------------------------- hear

    def _hear(self, heard: Heard) -> None:
        life, peer = self.life, heard.sender
        if peer == AUTHORITY and isinstance(heard.message, RosterNews):
            self._news(peer, heard.message)
            return
        if peer not in life.others:
            life.count("unknown_peer", peer)
            return
        if not life.listens(peer):
            return
        life.others[peer].heard_at = life.now
        message = heard.message
        if isinstance(message, Hello):
            if hear_hello(life, heard, message):
                say_all_open(life, self.repeats, peer)
                for council in self.councils.values():
                    if peer in life.circle.councils[council.group].members:
                        electors.introduce(council, peer)
            life.changed()
            return
        known = life.ledger.met.get(peer)
        if known is not None and heard.incarnation < known:
            life.refuse("stale_incarnation", peer, f"incarnation {heard.incarnation}, and {known} is known")
            return
        if heard.incarnation != known:
            life.others[peer].greet_soon(life.now)
            if not isinstance(message, Ping | PingRequest | Pong | Refused | RosterNews):
                return
        self._dispatch(peer, message)

    def _dispatch(self, peer: str, message: Message) -> None:
        life = self.life
        match message:
            case Transfer():
                if message.group in life.ledger.groups and hear_transfer(life, peer, message, self.gauges):
                    self.rounds.news.add(message.group)
            case Ack() if message.group in self.councils:
                self.councils[message.group].hear_ack(peer, message)
            case Ack():
                if message.group in life.ledger.groups:
                    hear_ack(life, self.repeats, peer, message)
            case Ping():
                attend(life, life.membership.heard_ping(peer, message.number, message.claims))
            case PingRequest():
                attend(life, life.membership.heard_ping_request(peer, message.number, message.target, message.claims))
            case Pong():
                attend(
                    life,
                    life.membership.heard_pong(peer, message.number, message.target, message.heard, message.claims),
                )
            case Fetch():
                self._give_value(peer, message.group)
            case Value():
                if life.phase == "joining" and message.group in self.work.passage.values:
                    self.work.passage.values[message.group][peer] = message.value_D.clone()
                    life.others[peer].seen_in(message.round, life.now)
            case Contract():
                hear_contract(life, peer, message)
            case RosterNews():
                self._news(peer, message)
            case Refused():
                self._refused(peer, message)
            case Ballot() | Update() | Wanted() | Model():
                self._sit(peer, message)
            case Hello():
                raise AssertionError("a Hello is heard before")
            case _:
                assert_never(message)

    def _sit(self, peer: str, message: Ballot | Update | Wanted | Model) -> None:
        """Something about coordinated rounds, by somebody who learns the same."""
        council = self.councils.get(message.group)
        if council is None or message.group not in self.life.others[peer].agreed:
            return
        match message:
            case Ballot():
                council.hear_ballot(peer, message)
            case Update():
                council.hear_update(peer, message)
            case Wanted():
                council.hear_wanted(peer, message)
            case Model():
                council.hear_model(message)

    def _studied(self, event: Practised | Concluded | Settled) -> None:
        if isinstance(event, Concluded):
            if event.group in self.councils:
                self.councils[event.group].concluded(event)
            return
        assert isinstance(self.part, Client), "who is no client asks for no such work"
        if isinstance(event, Practised):
            self.part.practised(event)
        else:
            self.part.settled(event)

    def _news(self, peer: str, news: RosterNews) -> None:
        if self.councils and news.number < self.life.circle.roster.number:
            for council in self.councils.values():
                electors.hear_earlier(council, peer, news)
            return
        roster = hear_roster(self.life, peer, news)
        if roster is not None:
            self._enrol(roster)

    def _give_value(self, peer: str, group: str) -> None:
        life = self.life
        if group in life.ledger.groups and group in life.others[peer].agreed and life.ledger.round > 0:
            value_D = life.shown(group)
            if value_D is not None:
                life.send(peer, Value(group=group, round=life.ledger.round, value_D=value_D.to(torch.float32)))

    def _refused(self, peer: str, refused: Refused) -> None:
        """A neighbour did not take something. Whatever has to do with memory or lives is cleared up by a Hello."""
        life = self.life
        if refused.group in self.councils:
            self.councils[refused.group].hear_refused(peer, refused)
        text = f"{peer} refused what this peer sent: {refused.code}. {refused.text}"
        life.note(
            "debug" if refused.code in USUAL else "warning",
            "refused",
            text,
            peer=peer,
            code=refused.code,
        )
        if refused.code == "duplicate_peer" and life.young:
            life.outdone(life.ledger.life + 1)  # they know a life of ours with the same number
            life.advertise()
        elif refused.code == "duplicate_peer":
            self._outlived_by.add(peer)
            if len(self._outlived_by) >= min(OUTLIVED_MIN, len(life.mates)):
                text = f"another process with the identity of {life.me} started after this one, so this one stops"
                life.note("error", "duplicate_peer", text)
                life.stop(2, f"{text}; start {life.me} on one machine only")
        if refused.code == "early":
            self.repeats.missed(peer, refused.group, refused.seq)
        if refused.code in CLEARED_UP_BY_HELLO:
            life.others[peer].greet_soon(life.now)

    def _enrol(self, roster: Roster) -> None:
        life = self.life
        if roster.number <= life.circle.roster.number:
            return
        enrol(life, roster)
        for peer in life.circle.peers:
            if peer != life.me:
                life.others.setdefault(peer, Acquaintance())
        gauges = {group: self.gauges.get(group, Gauge()) for group in life.ledger.groups}
        self.gauges.clear()
        self.gauges.update(gauges)
        self._seat()
        for council in self.councils.values():
            electors.enrol(council, roster)
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
                self.councils[group] = Council(life, group, course, self._draws, self._sign, self._verify)
