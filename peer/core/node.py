"""One whole peer as a machine: `Node.step(event)` gives the effects that follow, in a binding order.

No socket, file, clock or thread is in it, and no draw that was not handed in, so a real process, a simulated one and
a test run the same code. What must survive is in the `Ledger`; each change of it is persisted before anything that
follows from it is said. The rest may be forgotten and is in `Life` and beside it: who has been met (`meeting.py`), what
is open on the lanes and for how long (`lanes.py`), where the rounds stand (`rounds.py`), who is there (membership).

A step takes the event in and then goes on as far as it can.

    gathering -> learning -> finished -> stopped        the usual way
    gathering -> joining  -> learning                   the others have begun: take over their values first
    any       -> leaving  -> stopped                    hand everything over
    any       -> stopped                                pause: everything is kept
"""

from __future__ import annotations

from typing import Literal, assert_never

import numpy as np
import torch
from torch import Tensor

from fedpeer.gossip.claims import Sign, Verify
from fedpeer.gossip.membership import Advert, Change, Membership, OtherSelf, Refusal, Say
from fedpeer.gossip.reductions import FLOAT32
from fedpeer.gossip.transfers import Outgoing, resting
from fedpeer.peer.core.acquaintance import Acquaintance
from fedpeer.peer.core.entries import Adopted, Left, Opened, Started
from fedpeer.peer.core.events import (
    Asked,
    Effect,
    Evaluated,
    Event,
    Heard,
    NewRoster,
    RefusedAtDoor,
    Stop,
    Tick,
    Trained,
)
from fedpeer.peer.core.gate import Gate, GroupSpec
from fedpeer.peer.core.lanes import hear_ack, hear_transfer, say_again, say_all_open, ship
from fedpeer.peer.core.ledger import Ledger
from fedpeer.peer.core.life import Life, Phase, Setup
from fedpeer.peer.core.meeting import born_again, enrol, greet, hear_contract, hear_hello, hear_roster
from fedpeer.peer.core.messages import (
    Ack,
    Contract,
    Fetch,
    Hello,
    Message,
    Ping,
    PingRequest,
    Pong,
    Refused,
    RosterNews,
    Transfer,
    Value,
)
from fedpeer.peer.core.plausible import Gauge
from fedpeer.peer.core.repeats import Repeats
from fedpeer.peer.core.roster import AUTHORITY, Roster
from fedpeer.peer.core.rounds import Rounds, among_the_living, average, begin, push, train, trained

#: Seconds that `leave` may take before what is left is written off.
LEAVE_S = 5.0
#: Seconds in which a late joiner asks for values before it goes on with what it has.
JOIN_S = 10.0
#: Ticks for which only the seeds are greeted: they tell who else is there within that time.
SEEDS_FIRST_TICKS = 100
#: Examples of one peer, where they are its weight: more than any data set has, and exact in a float.
WEIGHT_MAX = 1e12
#: Refusals that come from different memories of lanes, lives and edges.
CLEARED_UP_BY_HELLO = {
    "stale_incarnation",
    "early",
    "sequence_reused",
    "sequence_jump",
    "duplicate_peer",
    "not_a_neighbour",
}
#: Seconds that a finished peer stays at least, so that the news of it gets about before it is gone.
LINGER_MIN_S = 2.0
#: Ticks for which a peer that has left still tells so, to some at least, who pass it on.
FAREWELL_TICKS = 12
#: Seconds that it waits for acknowledgements when all are done: who is gone by then has the share or will ask for it.
OWING_S = 5.0
#: A finished peer stays for the others until none of them has come further for so many deadlines.
LINGER_DEADLINES = 4
#: Members that a late joiner asks for each value: a second one shows if the first tells nonsense.
ASKED_FOR_VALUE = 2


class Node:
    """One peer.

    ledger   as it was recovered, or blank; `blank` says which
    forgot   whether something that was durable is known to be gone
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
    ) -> None:
        self.setup = setup
        self.blank, self._forgot = blank, forgot
        advert = Advert(
            address=setup.address,
            roster=setup.circle.roster.number,
            life=ledger.life + 1,
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
        self.life = Life(setup, ledger, membership, setup.circle, others)
        self.repeats = Repeats()
        self.rounds = Rounds()
        self.gauges = {group: Gauge() for group in ledger.groups}
        self.repeated = 0
        self._gone_at = 0
        self._since: int | None = None  # tick at which the phase began
        self._progress_at = 0
        self._all_done_at = 0
        self._furthest = 0
        self._values: dict[str, dict[str, Tensor]] = {}
        self._asked_at: dict[tuple[str, str], int] = {}
        self._awake = False
        self._reacquainted = False

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

    def gate(self, other: str | None) -> Gate:
        """What a message from this other peer (None: not known without certificates) is held against now."""
        if other not in self.life.gates:
            self.life.gates[other] = self._gate(other)
        return self.life.gates[other]

    def _gate(self, other: str | None) -> Gate:
        life = self.life
        neighbours = {group: self._neighbours(group) for group in life.circle.groups}
        form = self.ledger.rules.form
        forms = {each.name: each for each in (FLOAT32, form)}
        scale = 1.0 if self.setup.federation.learning.weights == "uniform" else WEIGHT_MAX
        groups = {
            id: GroupSpec(
                length=group.length,
                forms=forms,
                members=frozenset(group.members),
                neighbours=neighbours[id],
                weight_max=scale * len(group.members),
            )
            for id, group in life.circle.groups.items()
        } | {
            id: GroupSpec(
                length=group.length, forms={}, members=frozenset(group.members), neighbours=frozenset(), weight_max=0.0
            )
            for id, group in life.circle.elsewhere.items()
        }
        return Gate(
            federation=life.circle.roster.federation_id,
            me=life.me,
            incarnation=self.ledger.incarnation,
            other=other,
            peers=frozenset(life.circle.peers) | ({AUTHORITY} if other == AUTHORITY else set()),
            groups=groups,
        )

    def _neighbours(self, group: str) -> frozenset[str]:
        """Who may give us shares: along the overlay, or by an edge that it told us of; while somebody is missing, when
        peers may repair the overlay differently, any member."""
        policy = self.life.circle.averaging[group]
        members = policy.overlay.members
        if policy.exact or among_the_living(self.life, group) is not policy:
            return frozenset(members)
        union, me = policy.overlay.union, members.index(self.life.me)
        into = union.predecessors(me) if union.is_directed() else union.neighbors(me)
        giving = {peer for peer, other in self.life.others.items() if group in other.giving}
        return frozenset(giving | {members[i] for i in into})

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
                if any(not each.listens(life.now) or each.pauses for each in life.standing.values()):
                    life.changed()  # a pause may be over
                self._members(life.membership.tick(event.now))
            case Heard():
                self._hear(event)
            case Trained():
                trained(life, self.rounds, event)
            case Evaluated():
                life.advertise(event.score, self._stated)
                text = f"round {event.round}: score {event.score:.4f}, loss {event.loss:.4f}"
                life.note("info", "evaluated", text, round=event.round, score=event.score, loss=event.loss)
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

    def _wake(self) -> None:
        """The first step of this process."""
        self._awake = True
        life = self.life
        life.write(Started(life=life.ledger.life + 1))
        if life.ledger.left:
            born_again(life, life.ledger.incarnation + 1, "it had left, and comes back")
            self.blank = True
        elif self._forgot:
            born_again(life, life.ledger.incarnation + 1, "the disk has lost what was durable")
        if self.blank:
            life.snapshot()
        round, last = life.ledger.round, self.setup.federation.learning.rounds
        if round == 0 or self.blank:
            self._enter("gathering")
        elif round > last:
            self._enter("finished")
        else:
            life.note("info", "resumed", f"going on in round {round}", round=round)
            if not life.ledger.trained:
                train(life, self.rounds)

    def _enter(self, phase: Phase) -> None:
        self.life.phase = phase
        self._since = None

    def _waited(self) -> int:
        """Ticks since the phase was entered."""
        if self._since is None:
            self._since = self.life.now
        return self.life.now - self._since

    def _asked(self, what: str) -> None:
        life = self.life
        if what == "pause":
            life.snapshot()
            life.note("info", "paused", f"paused in round {life.ledger.round}; start again to go on")
            self._stop(0, "paused; everything is kept")
        elif life.phase != "leaving":
            self._enter("leaving")

    def _stop(self, code: int, text: str) -> None:
        self.life.phase = "stopped"
        self.life.effects.append(Stop(code, text))

    # ------------------------------------------------------------------------------------------------------- proceed

    def _proceed(self) -> None:
        life = self.life
        if life.phase == "stopped":
            return
        greet(life)
        again = say_again(life, self.repeats)
        self.repeated += again
        match life.phase:
            case "gathering":
                self._gather()
            case "joining":
                self._join()
            case "finished":
                self._linger()
            case "leaving":
                self._leave()
        if life.phase == "learning":
            self._learn()
        if life.phase in ("learning", "finished") and not life.synchronous:
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
            self._enter("finished")

    def _among_strangers(self) -> bool:
        """Whether this process has just started and has still to meet others: to average now would be to do so alone."""
        if not self._reacquainted:
            life = self.life
            strangers = [p for p in self._mates() if not life.others[p].met]
            expected = [p for p in strangers if life.membership.standing(p) not in ("dead", "left")]
            over = self._waited() >= self.setup.ticks(self.setup.federation.gossip.deadline)
            self._reacquainted = over or not expected
        return not self._reacquainted

    def _mates(self) -> frozenset[str]:
        """All others with whom this peer shares a group."""
        return self.life.circle.mates - {self.life.me}

    def _gather(self) -> None:
        """Wait for the others, for a while; then begin, or first take over the values of those who are further."""
        life = self.life
        absent = sorted(p for p in self._mates() if not life.others[p].met)
        patience = round(self.setup.federation.gossip.gather / self.setup.federation.gossip.tick)
        further = [other for other in life.others.values() if other.met and other.begun and other.round > 1]
        if absent and self._waited() < patience and not further:
            return
        if further:
            self._enter("joining")
            return
        if absent:
            text = f"beginning without {', '.join(absent)}, after {self.setup.federation.gossip.gather:g} s"
            life.note("info", "went_on_without", text, without=absent)
        self._enter("learning")
        begin(life, self.rounds, self.gauges, 1)
        life.advertise()

    def _join(self) -> None:
        """Ask two members of each group for its value; begin in their round when all are there, or the time is up."""
        life = self.life
        over = self._waited() >= self.setup.ticks(JOIN_S)
        complete = True
        for group in life.ledger.groups:
            givers = [
                p for p in life.circle.groups[group].members
                if p != life.me and life.available(p, group) and life.others[p].begun
            ][:ASKED_FOR_VALUE]  # fmt: skip
            got = self._values.setdefault(group, {})
            for peer in givers:
                asked = self._asked_at.get((group, peer))
                if peer not in got and (asked is None or life.now - asked >= self.repeats.wait(peer)):
                    self._asked_at[group, peer] = life.now
                    life.send(peer, Fetch(group=group))
            complete &= bool(givers) and all(peer in got for peer in givers)
        if not complete and not over:
            return
        for group, got in self._values.items():
            if got:
                life.write(Adopted(group=group, value_D=torch.stack(list(got.values())).mean(0)))
        taken = sorted(group for group, got in self._values.items() if got)
        round = max(1, life.furthest())
        life.note("info", "joined", f"joined in round {round} with the values of {', '.join(taken) or 'nobody'}")
        self._values.clear()
        self._enter("learning")
        begin(life, self.rounds, self.gauges, min(round, self.setup.federation.learning.rounds))
        life.advertise()

    def _linger(self) -> None:
        """Stay until the others are done too, or come no further, and everything said is acknowledged."""
        life, ledger = self.life, self.life.ledger
        waited = self._waited()
        if waited == 0:
            life.advertise(state="finished")
            self._progress_at = self._all_done_at = life.now
        unfinished = [p for p in self._mates() if life.membership.standing(p) in ("alive", "suspect")]
        furthest = sum(life.others[p].round for p in unfinished)
        if furthest != self._furthest:
            self._furthest, self._progress_at = furthest, life.now
        there = {p for p in self._mates() if life.membership.standing(p) not in ("dead", "left", "unknown")}
        owing = [p for h in ledger.groups.values() for p, lane in h.out.items() if lane.open and p in there]
        stuck = life.now - self._progress_at >= LINGER_DEADLINES * self.setup.ticks(
            self.setup.federation.gossip.deadline
        )
        if unfinished:
            self._all_done_at = life.now
        unpaid = owing and life.now - self._all_done_at < self.setup.ticks(OWING_S)
        if waited >= self.setup.ticks(LINGER_MIN_S) and ((not unfinished and not unpaid) or stuck):
            life.snapshot()
            self._stop(0, f"finished all {self.setup.federation.learning.rounds} rounds")

    def _leave(self) -> None:
        """Hand everything over, in equal parts to who is there; write off what nobody takes in time."""
        life, ledger = self.life, self.life.ledger
        if ledger.left:
            if life.now - self._gone_at >= FAREWELL_TICKS:
                self._stop(0, "left; what was held is handed over")
            return
        over = self._waited() >= self.setup.ticks(LEAVE_S)
        for group, holding in ledger.groups.items():
            there = [p for p in life.circle.groups[group].members if p != life.me and life.available(p, group)]
            free = tuple(p for p in there if not resting(holding.out.get(p, Outgoing())))
            if holding.weight > 0 and free and not over:
                round, exchange = holding.at
                opened = Opened(
                    group=group, round=max(round, ledger.round), exchange=exchange, to=free, expect=(),
                    fraction=1 / len(free), whole=True,
                )  # fmt: skip
                ship(life, self.repeats, group, life.write(opened))
        open_ = any(lane.open for holding in ledger.groups.values() for lane in holding.out.values())
        held = {group: holding.weight for group, holding in ledger.groups.items() if holding.weight > 1e-12}
        if (open_ or held) and not over:
            return
        for group, holding in ledger.groups.items():
            lost = holding.weight + sum(parcel.weight for lane in holding.out.values() for parcel in lane.open)
            if lost > 1e-12:
                text = f'{lost:.3g} of weight in "{group}" is written off: nobody took it in time'
                life.note("warning", "written_off", text, group=group, weight=lost)
        life.write(Left())
        life.snapshot()
        life.advertise(state="left")
        self._gone_at = life.now

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
        message = heard.message
        if isinstance(message, Hello):
            if hear_hello(life, heard, message):
                say_all_open(life, self.repeats, peer)
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
            case Ack():
                if message.group in life.ledger.groups:
                    hear_ack(life, self.repeats, peer, message)
            case Ping():
                self._members(life.membership.heard_ping(peer, message.number, message.claims))
            case PingRequest():
                self._members(life.membership.heard_ping_request(peer, message.number, message.target, message.claims))
            case Pong():
                self._members(
                    life.membership.heard_pong(peer, message.number, message.target, message.heard, message.claims)
                )
            case Fetch():
                self._give_value(peer, message.group)
            case Value():
                if life.phase == "joining" and message.group in self._values:
                    self._values[message.group][peer] = message.value_D.clone()
                    life.others[peer].round = max(life.others[peer].round, message.round)
            case Contract():
                hear_contract(life, peer, message)
            case RosterNews():
                self._news(peer, message)
            case Refused():
                self._refused(peer, message)
            case Hello():
                raise AssertionError("a Hello is heard before")
            case _:
                assert_never(message)

    def _news(self, peer: str, news: RosterNews) -> None:
        roster = hear_roster(self.life, peer, news)
        if roster is not None:
            self._enrol(roster)

    def _give_value(self, peer: str, group: str) -> None:
        life = self.life
        if group in life.ledger.groups and group in life.others[peer].agreed and life.ledger.round > 0:
            value_D = life.ledger.estimate_D(group).to(torch.float32)
            life.send(peer, Value(group=group, round=life.ledger.round, value_D=value_D))

    def _refused(self, peer: str, refused: Refused) -> None:
        """A neighbour did not take something. Whatever has to do with memory or lives is cleared up by a Hello."""
        life = self.life
        text = f"{peer} refused what this peer sent: {refused.code}. {refused.text}"
        life.note(
            "debug" if refused.code in ("early", "repeated") else "warning",
            "refused",
            text,
            peer=peer,
            code=refused.code,
        )
        if refused.code == "duplicate_peer" and life.young:
            life.write(Started(life=life.ledger.life + 1))  # they know a life of ours with the same number
            life.advertise()
        if refused.code in CLEARED_UP_BY_HELLO:
            life.others[peer].greet_soon(life.now)

    # ---------------------------------------------------------------------------------------------------- membership

    def _members(self, outs: list[Say | Change | Refusal | OtherSelf]) -> None:
        life = self.life
        for out in outs:
            match out:
                case Say(kind="ping"):
                    life.send(out.to, Ping(number=out.number, claims=out.claims))
                case Say(kind="ping-request"):
                    life.send(out.to, PingRequest(number=out.number, target=out.target, claims=out.claims))
                case Say():
                    life.send(out.to, Pong(number=out.number, target=out.target, heard=out.heard, claims=out.claims))
                case Change():
                    self._changed(out)
                case Refusal():
                    life.count(out.code, out.sender, out.text)
                case OtherSelf():
                    self._other_self(out)

    def _changed(self, change: Change) -> None:
        """Somebody came, went or is doubted."""
        life, other = self.life, self.life.others.get(change.peer)
        doubt = {change.before, change.after} == {"alive", "suspect"}
        text = f"{change.peer} is {change.after} ({change.reason})"
        life.note("debug" if doubt else "info", "membership", text, peer=change.peer, state=change.after)
        if other is None:
            return
        said = life.membership.last_statement(change.peer)
        if said is not None and said.advert is not None:
            other.begun = said.advert.begun
        if change.after == "alive" and not other.met:
            other.greet_soon(life.now)
        life.changed()

    def _other_self(self, out: OtherSelf) -> None:
        """A statement in this peer's name that this process did not make."""
        advert = out.claim.advert
        assert advert is not None, "a statement has an advert"
        life = self.life
        over = out.claim.incarnation < life.ledger.incarnation
        if advert.life >= life.ledger.life and (life.young or over):
            life.write(Started(life=advert.life + 1))  # this process has just started, and its memory is old or gone
            life.advertise()
        elif out.what == "duplicate" and not over:
            text = f"another process with the identity of {life.me} started after this one, so this one stops"
            life.note("error", "duplicate_peer", text)
            self._stop(2, f"{text}; start {life.me} on one machine only")
            return
        if out.claim.incarnation > life.ledger.incarnation:
            born_again(life, out.claim.incarnation + 1, "others remember a later incarnation of this peer")

    def _enrol(self, roster: Roster) -> None:
        life = self.life
        if roster.number <= life.circle.roster.number:
            return
        enrol(life, roster)
        for peer in life.circle.peers:
            if peer != life.me:
                life.others.setdefault(peer, Acquaintance())
        self.gauges = {group: self.gauges.get(group, Gauge()) for group in life.ledger.groups}
        life.changed()
