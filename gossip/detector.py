"""The failure detector: probes, pings on others' behalf, suspicions. It knows ids and ticks, and no claims.

A probe has three stages: a ping; helpers are asked and the ping is repeated; it has failed. Probes go alternately to
the successor in the ring of living ids and to a random peer: the former bounds the time until a death is detected, the
latter detects what the single predecessor misses. Each peer checks every suspicion, its own or not, by its own pings.
It ends with the verdict *dead* only if the suspect has answered none of them, and sent nothing else, for the whole
wait. Others' findings make a peer ping sooner and shorten its wait, but never suffice for the verdict. A suspicion ends
without a verdict when `changed` reports a new statement of the suspect.

`Ask` is a message to which `membership.py` adds claims; `Accuse` is a verdict that it signs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from fedpeer.gossip.awareness import Awareness, ProbeTiming, suspicion_wait
from fedpeer.gossip.round_trips import RoundTrips

#: Pings on others' behalf that wait for an answer. Each lasts `answer` ticks, and at 30 % loss a peer is asked for one
#: about every two ticks; any more are a flood, and are not answered.
RELAYS_MAX = 64
#: Peers that check a suspicion in the same `check` ticks; if there are more, each checks more rarely, so that a suspect
#: among hundreds is not flooded.
_CHECKERS = 16


#: Number of full cycles of probes through all other peers, after which one helper's word for a target is not enough:
#: twice as many as any two peers usually need to exchange a message.
_VOUCHED_PROBES = 4


@dataclass(frozen=True, slots=True)
class Ask:
    """A message to be sent; `received` only has a meaning in a pong."""

    to: str
    kind: Literal["ping", "ping-request", "pong"]
    number: int
    target: str
    received: bool = True


@dataclass(frozen=True, slots=True)
class Accuse:
    """This peer's finding that another one is suspect or dead."""

    peer: str
    verdict: Literal["suspect", "dead"]


@dataclass(slots=True)
class _Probe:
    """One probe under way.

    number      number of its first ping and of the requests to helpers
    begun       tick of its first ping
    helpers     None until they are asked
    next_ping   tick of the next ping to the target, once helpers are asked
    nacks       helpers that reported no answer, which shows that their links to this peer work
    vouched     helpers that reported an answer of the target
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
    """A ping on another peer's behalf that waits for an answer."""

    asker: str
    number: int
    target: str
    until: int


@dataclass(slots=True)
class _Suspicion:
    """One suspicion and the pings that check it.

    next_ask    tick of the next ping to the suspect
    asked       tick of the first ping since the suspect's last message; None: no ping since then
    confirmed   how many others suspect the same peer, beyond the first
    ours        whether this peer suspects it as well
    """

    next_ask: int
    asked: int | None = None
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
        self._unsure: set[str] = set()  # peers whose probe failed, until it is known whether they live
        self._received: dict[str, int] = {}  # tick of the last message from each peer itself
        self.round_trips = RoundTrips()
        self._living = 0

    # -------------------------------------------------------------------------------------------------- what happens

    def tick(self, clock: int, living: Collection[str]) -> list[Ask | Accuse]:
        """Return the messages and findings of this tick; `living` are the other peers that are alive or suspect."""
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
        """Ping a target on another peer's behalf, unless too many such pings are under way."""
        if len(self._relays) >= RELAYS_MAX:
            return []
        ping = self.ping(target, clock)
        self._relays[ping.number] = _Relay(asker, number, target, clock + round(self._answer(target)))
        return [ping]

    def answered(self, sender: str, number: int, target: str, received: bool, clock: int) -> list[Ask]:
        """Handle a pong."""
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
        """Return whether to believe the helpers that the target answered them.

        One helper suffices while the target's own last message is recent. After that a majority of those asked is
        needed, or a single lying helper could hide a death forever.
        """
        lately = _VOUCHED_PROBES * self._timing.probe * max(self._living, 4)
        most = 2 * len(probe.vouched) > len(probe.helpers or ())
        return most or clock - self._received.get(probe.target, 0) <= lately

    def received(self, peer: str, clock: int) -> None:
        """Record that a message, whatever its content, came from `peer` itself: it is alive."""
        self._received[peer] = clock
        if peer in self._suspicions:
            self._suspicions[peer].asked = None

    def changed(self, peer: str, status: str, confirmed: int, ours: bool, clock: int) -> None:
        """Note a change of a peer's status or of the number of others that suspect it."""
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
        """Note that this peer had to refute a suspicion: it may be slow itself."""
        self.awareness = self.awareness.worse(1)

    def ping(self, to: str, clock: int) -> Ask:
        """Make a ping whose answer no probe waits for."""
        self._number += 1
        self.round_trips.sent(self._number, to, clock)
        return Ask(to, "ping", self._number, to)

    def _answer(self, peer: str) -> float:
        """Return after how many ticks an answer of this peer is late, judging by its earlier answers."""
        return self._timing.answer * self._slowness(peer)

    def _slowness(self, peer: str) -> float:
        return self.round_trips.slowness(peer, self._timing.answer)

    def some(self, peers: Collection[str], count: int) -> list[str]:
        """Draw up to `count` of these peers."""
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
        """Return the next living peer of a random order, which is drawn anew after a full pass (SWIM, section 4.3)."""
        while self._order:
            peer = self._order.pop()
            if peer in living:
                return peer
        self._order = self.some(living, len(living))
        return self._order.pop() if self._order else None

    def _later(self, probe: _Probe, clock: int, living: Collection[str]) -> Iterator[Ask | Accuse]:
        """Advance a probe that has no answer yet."""
        patience, stretch = self.awareness.patience, self.awareness.stretch
        slowness = self._slowness(probe.target)
        waited, first = clock - probe.begun, self._timing.answer * slowness * patience
        if waited >= first and self._received.get(probe.target, -1) >= probe.begun:
            self._probes.remove(probe)  # the target is alive: another message of its came
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
            suspicion.asked = clock if suspicion.asked is None else suspicion.asked
            yield self.ping(peer, clock)
        unanswered = 0 if suspicion.asked is None else clock - suspicion.asked
        if not suspicion.ours and unanswered >= self._timing.answer * slowness * self.awareness.patience * stretch:
            yield Accuse(peer, "suspect")
        elif unanswered >= slowness * suspicion_wait(self._timing, stretch, suspicion.confirmed, living - 1):
            yield Accuse(peer, "dead")
