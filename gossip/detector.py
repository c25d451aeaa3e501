"""Which peers do not answer: probes, pings in others' stead, suspicions. It knows ids and ticks, and no claims.

A probe goes through three stages: a ping; helpers asked, and the ping repeated; failed. Probes go to the successor in
the ring of living ids and to a random peer in turn: the first bounds the time until a death is seen, the second sees
what the one predecessor cannot. A suspicion, whoever began it, is checked by pings of our own. It ends with the verdict
*dead* only when the suspect has answered none of them, and said nothing else to us, for the whole wait; what others
find makes us ask sooner and wait less long, and never buries by itself. It ends without one when `changed` says that
the suspect made a new statement.

`Ask` is a message to be filled with claims; `Accuse` a verdict to be signed. Both are `membership.py`'s to carry out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from fedpeer.gossip.awareness import Awareness, ProbeTiming, suspicion_wait
from fedpeer.gossip.round_trips import RoundTrips

#: Pings in others' stead that wait for an answer. Each lasts `answer` ticks, and at 30 % loss a peer is asked for about
#: one in two ticks; beyond this somebody floods us, and is not answered.
RELAYS_MAX = 64
#: Peers that check a suspicion in the same `check` ticks; of more, each checks more rarely, so that a suspect among
#: hundreds is not flooded.
_CHECKERS = 16


#: Probes of all others, one after another, after which one helper's word for somebody is not enough: twice as many as
#: any two peers usually speak to each other in.
_VOUCHED_PROBES = 4


@dataclass(frozen=True, slots=True)
class Ask:
    """Say this to a peer; `received` only counts in a pong."""

    to: str
    kind: Literal["ping", "ping-request", "pong"]
    number: int
    target: str
    received: bool = True


@dataclass(frozen=True, slots=True)
class Accuse:
    """This peer finds another one suspect or dead."""

    peer: str
    verdict: Literal["suspect", "dead"]


@dataclass(slots=True)
class _Probe:
    """One probe under way; `number` is that of its first ping, and of what helpers are asked.

    helpers     None until they are asked; `next_ping`: when to ping again ourselves, from then on
    nacks       who of them said that it heard nothing, and so is well itself
    vouched     who of them said that it heard the target
    """

    target: str
    number: int
    begun: int
    helpers: Sequence[str] | None = None
    next_ping: int = 0
    nacks: set[str] = field(default_factory=set)
    vouched: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Relay:
    """A ping in somebody's stead, waiting for an answer."""

    asker: str
    number: int
    target: str
    until: int


@dataclass(slots=True)
class _Suspicion:
    """When to ask the suspect next, and since when it owes us an answer (None: not asked since it was heard last).

    confirmed   how many others found the same, beyond the first
    ours        whether we are among those who found it
    """

    next_ask: int
    options: int | None = None
    confirmed: int = 0
    ours: bool = False


class Detector:
    """One peer's failure detector."""

    def __init__(self, me: str, timing: ProbeTiming, draws: np.random.Generator) -> None:
        self.me = me
        self.awareness = Awareness()
        self._timing = timing
        self._draws = draws
        self._number = 0
        self._next_probe = int(draws.integers(timing.probe))  # peers that start together do not probe together
        self._ring_next = False
        self._order: list[str] = []
        self._probes: list[_Probe] = []
        self._relays: dict[int, _Relay] = {}
        self._suspicions: dict[str, _Suspicion] = {}
        self._unsure: set[str] = set()  # a probe of ours failed, and whether they live is not known yet
        self._received: dict[str, int] = {}  # tick at which each peer itself was heard last
        self.round_trips = RoundTrips()
        self._living = 0

    # -------------------------------------------------------------------------------------------------- what happens

    def tick(self, clock: int, living: Collection[str]) -> list[Ask | Accuse]:
        """`living`: the others who are alive or suspect."""
        self._living = len(living)
        self._relays, over = (
            {n: relay for n, relay in self._relays.items() if relay.until > clock},
            [relay for relay in self._relays.values() if relay.until <= clock],
        )
        out: list[Ask | Accuse] = [Ask(r.asker, "pong", r.number, r.target, received=False) for r in over]
        for probe in list(self._probes):
            out += self._later(probe, clock, living)
        if clock >= self._next_probe:
            self._next_probe = clock + self._timing.probe * self.awareness.patience
            out += self._probe(clock, living)
        for peer, suspicion in list(self._suspicions.items()):
            out += self._check(peer, suspicion, clock, len(living))
        return out

    def relay(self, asker: str, number: int, target: str, clock: int) -> list[Ask]:
        """Ping a target in somebody's stead; nothing where too many of these are under way."""
        if len(self._relays) >= RELAYS_MAX:
            return []
        ping = self.ping(target, clock)
        self._relays[ping.number] = _Relay(asker, number, target, clock + round(self._answer(target)))
        return [ping]

    def answered(self, sender: str, number: int, target: str, received: bool, clock: int) -> list[Ask]:
        """A pong came in."""
        itself = sender == target and self.round_trips.answered(number, sender, clock)
        relay = self._relays.get(number)
        if relay is not None and sender == target == relay.target:
            del self._relays[number]
            return [Ask(relay.asker, "pong", relay.number, target)]
        for probe in self._probes:
            if probe.target != target:
                continue
            if itself or (probe.number == number and sender in (probe.helpers or ())):
                if received and not itself:
                    probe.vouched.add(sender)
                if itself or (received and self._vouched(probe, clock)):
                    self._probes.remove(probe)
                    self.awareness = self.awareness.worse(-1).sampled(lost=probe.helpers is not None)
                elif not received:
                    probe.nacks.add(sender)
                break
        return []

    def _vouched(self, probe: _Probe, clock: int) -> bool:
        """Whether helpers' word that the target answered them is taken: one's as long as it was heard itself lately,
        later only that of most who were asked, since one that lies would else hide a death for good."""
        lately = _VOUCHED_PROBES * self._timing.probe * max(self._living, 4)
        most = 2 * len(probe.vouched) > len(probe.helpers or ())
        return most or clock - self._received.get(probe.target, 0) <= lately

    def received(self, peer: str, clock: int) -> None:
        """Something came from this peer itself, whatever it was: it lives."""
        self._received[peer] = clock
        if peer in self._suspicions:
            self._suspicions[peer].options = None

    def changed(self, peer: str, status: str, confirmed: int, ours: bool, clock: int) -> None:
        """What a peer is to us, when that or the number of others that suspect it changes."""
        if status == "suspect":
            suspicion = self._suspicions.get(peer)
            if suspicion is None:
                suspicion = self._suspicions[peer] = _Suspicion(clock)
            suspicion.confirmed, suspicion.ours = confirmed, ours
            return
        self._suspicions.pop(peer, None)
        if peer in self._unsure and status == "alive":
            self.awareness = self.awareness.sampled(lost=True)
        self._unsure.discard(peer)
        if status != "alive":
            self._probes = [probe for probe in self._probes if probe.target != peer]
        if status == "unknown":
            self._relays = {n: r for n, r in self._relays.items() if peer not in (r.asker, r.target)}
            self._received.pop(peer, None)
            self.round_trips.forget(peer)

    def refuted(self) -> None:
        """We had to defend ourselves: perhaps we are slow."""
        self.awareness = self.awareness.worse(1)

    def ping(self, to: str, clock: int) -> Ask:
        """A ping that nobody here waits for."""
        self._number += 1
        self.round_trips.sent(self._number, to, clock)
        return Ask(to, "ping", self._number, to)

    def _answer(self, peer: str) -> float:
        """Ticks after which an answer of this peer is late, by how long its answers took."""
        return self._timing.answer * self._slowness(peer)

    def _slowness(self, peer: str) -> float:
        return self.round_trips.slowness(peer, self._timing.answer)

    def some(self, peers: Collection[str], count: int) -> list[str]:
        """Up to so many of them, at random."""
        ordered = sorted(peers)
        return [ordered[i] for i in self._draws.permutation(len(ordered))[:count].tolist()]

    # --------------------------------------------------------------------------------------------------------- probes

    def _probe(self, clock: int, living: Collection[str]) -> Iterator[Ask]:
        self._ring_next = not self._ring_next
        target = self._successor(living) if self._ring_next else self._random(living)
        if target is not None and all(probe.target != target for probe in self._probes):
            ping = self.ping(target, clock)
            self._probes.append(_Probe(target, ping.number, clock))
            yield ping

    def _successor(self, living: Collection[str]) -> str | None:
        return min(living, key=lambda peer: (peer < self.me, peer), default=None)

    def _random(self, living: Collection[str]) -> str | None:
        """Every living peer once, in a random order, then over again (SWIM, section 4.3)."""
        while self._order:
            peer = self._order.pop()
            if peer in living:
                return peer
        self._order = self.some(living, len(living))
        return self._order.pop() if self._order else None

    def _later(self, probe: _Probe, clock: int, living: Collection[str]) -> Iterator[Ask | Accuse]:
        """What a probe without an answer does as time passes."""
        patience, stretch = self.awareness.patience, self.awareness.stretch
        slowness = self._slowness(probe.target)
        waited, first = clock - probe.begun, self._timing.answer * slowness * patience
        if waited >= first and self._received.get(probe.target, -1) >= probe.begun:
            self._probes.remove(probe)  # it lives: it has said something else
            self.awareness = self.awareness.sampled(lost=True)
            return
        if waited >= first and probe.helpers is None:
            probe.helpers = self.some(set(living) - {probe.target}, round(self._timing.helpers * stretch))
            probe.next_ping = clock
            yield from (Ask(helper, "ping-request", probe.number, probe.target) for helper in probe.helpers)
        if probe.helpers is None:
            return
        if waited >= first + self._timing.helped * slowness * patience * stretch:
            self._probes.remove(probe)
            self._unsure.add(probe.target)
            self.awareness = self.awareness.worse(len(probe.helpers) - len(probe.nacks | probe.vouched))
            yield Accuse(probe.target, "suspect")
        elif clock >= probe.next_ping:
            probe.next_ping = clock + round(self._answer(probe.target))
            yield self.ping(probe.target, clock)

    # ----------------------------------------------------------------------------------------------------- suspicions

    def _check(self, peer: str, suspicion: _Suspicion, clock: int, living: int) -> Iterator[Ask | Accuse]:
        stretch, slowness = self.awareness.stretch, self._slowness(peer)
        if clock >= suspicion.next_ask:
            suspicion.next_ask = clock + round(self._timing.check * slowness) * max(1, living // _CHECKERS)
            suspicion.options = clock if suspicion.options is None else suspicion.options
            yield self.ping(peer, clock)
        unanswered = 0 if suspicion.options is None else clock - suspicion.options
        if not suspicion.ours and unanswered >= self._timing.answer * slowness * self.awareness.patience * stretch:
            yield Accuse(peer, "suspect")
        elif unanswered >= slowness * suspicion_wait(self._timing, stretch, suspicion.confirmed, living - 1):
            yield Accuse(peer, "dead")
