"""A small network of `Membership` state machines: virtual ticks, lost, late, repeated messages, cuts, kills, pauses.

One seed draws everything. The state machines share nothing except frozen messages. `World.history` keeps every change
that any of them reported.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np

from fedpeer.gossip.awareness import ProbeTiming
from fedpeer.gossip.membership import (
    Advert,
    Claim,
    MemberChange,
    Membership,
    MembershipEffect,
    OtherSelf,
    SendProbe,
    claim_text,
)
from fedpeer.rejection import Rejection

FEDERATION = bytes(range(16))


#: Ticks after which a kernel sends a lost message again: TCP waits at least 200 ms.
RESENT = 8


def signature(peer: str, text: bytes) -> bytes:
    """Return a keyed hash in place of an Ed25519 signature: 64 bytes that fit only this peer and text."""
    return blake2b(text, key=peer.encode(), digest_size=64).digest()


def verify(peer: str, text: bytes, given: bytes) -> bool:
    return signature(peer, text) == given


def ids(count: int) -> tuple[str, ...]:
    return tuple(f"peer{i + 1:03d}" for i in range(count))


def advert(peer: str, generation: int = 1, **other: Any) -> Advert:
    told: dict[str, Any] = {
        "address": f"{peer}:7502",
        "roster": 1,
        "generation": generation,
        "nonce": 5,
        "round": 0,
        "score": None,
        "begun": True,
        "models": ("everyone",),
    }
    return Advert(**{**told, **other})


@dataclass
class World:
    """Peers and the links between them.

    loss, repeat   chance of each message to be lost, or to arrive twice
    delay          ticks one way, drawn uniformly from 1 to this many; so messages overtake one another
    again          chance of each message to be lost and sent again by the kernel, RESENT ticks later, and of each
                   repetition too; unless it is 0, no message overtakes another of the same link
    slow           extra ticks for every message to and from a peer
    cut            whether a message from one peer to another is always lost
    """

    count: int
    seed: int
    loss: float = 0.0
    repeat: float = 0.0
    delay: int = 4
    again: float = 0.0
    timing: ProbeTiming = field(default_factory=ProbeTiming)
    slow: dict[str, int] = field(default_factory=dict)
    cut: Callable[[str, str], bool] = lambda a, b: False

    def __post_init__(self) -> None:
        self.draws = np.random.default_rng(self.seed)
        self.roster = ids(self.count)
        self.now = self.made = 0
        self.peers: dict[str, Membership] = {}
        self.offset: dict[str, int] = {}
        self.lives: Counter[str] = Counter()
        self.paused: set[str] = set()
        self.held_back: dict[str, list[tuple[str, SendProbe]]] = {}
        self.under_way: list[tuple[int, int, str, str, SendProbe]] = []
        self.sent: Counter[str] = Counter()
        self.last: dict[tuple[str, str], int] = {}
        self.history: list[tuple[int, str, MemberChange]] = []
        self.refusals: list[tuple[int, str, Rejection]] = []
        self.others: list[tuple[str, OtherSelf]] = []
        for peer in self.roster:
            self.start(peer)

    def start(self, peer: str, incarnation: int = 1) -> Membership:
        """Start or restart a peer: a new generation, with nothing in memory except the incarnation."""
        self.lives[peer] += 1
        self.offset[peer] = int(self.draws.integers(1_000))  # so that the peers' ticks do not begin together
        machine = Membership(
            peer,
            federation=FEDERATION,
            roster=self.roster,
            incarnation=incarnation,
            advert=advert(peer, self.lives[peer]),
            draws=np.random.default_rng(int(self.draws.integers(2**62))),
            sign=lambda text: signature(peer, text),
            verify=lru_cache(maxsize=4096)(verify),
            timing=self.timing,
        )
        self.peers[peer] = machine
        return machine

    def kill(self, *peers: str) -> None:
        for peer in peers:
            del self.peers[peer]

    def run(self, ticks: int, until: Callable[[], bool] = lambda: False) -> bool:
        """Run for at most this many ticks; return whether `until` became true."""
        for _ in range(ticks):
            self.now += 1
            while self.under_way and self.under_way[0][0] <= self.now:
                _, _, sender, to, say = heapq.heappop(self.under_way)
                if to in self.paused:
                    self.held_back.setdefault(to, []).append((sender, say))
                else:
                    self.deliver(sender, to, say)
            for peer, machine in list(self.peers.items()):
                if peer not in self.paused:
                    self.take(peer, machine.tick(self.now - self.offset[peer]))
            if until():
                return True
        return False

    def resume(self, peer: str) -> None:
        """Resume a paused peer: it reads the messages that wait in its sockets before it reads its clock."""
        self.paused.discard(peer)
        for sender, say in self.held_back.pop(peer, []):
            self.deliver(sender, peer, say)

    def deliver(self, sender: str, to: str, say: SendProbe) -> None:
        machine = self.peers.get(to)
        if machine is None:
            return
        match say.kind:
            case "ping":
                out = machine.on_ping(sender, say.number, say.claims)
            case "ping-request":
                out = machine.on_ping_request(sender, say.number, say.target, say.claims)
            case "pong":
                out = machine.on_pong(sender, say.number, say.target, say.received, say.claims)
        self.take(to, out)

    def take(self, peer: str, out: list[MembershipEffect]) -> None:
        for item in out:
            match item:
                case SendProbe():
                    self.sent[peer] += 1
                    for _ in range(1 + (self.draws.random() < self.repeat)):
                        self.send(peer, item)
                case MemberChange():
                    self.history.append((self.now, peer, item))
                case Rejection():
                    self.refusals.append((self.now, peer, item))
                case OtherSelf():
                    self.others.append((peer, item))

    def send(self, sender: str, say: SendProbe) -> None:
        assert say.to != sender, "nobody talks to itself"
        assert len(say.claims) <= 8
        late = int(self.draws.integers(1, self.delay + 1)) + self.slow.get(sender, 0) + self.slow.get(say.to, 0)
        if self.draws.random() >= self.loss and not self.cut(sender, say.to):
            self.made += 1  # of two messages that are due together, the first made arrives first
            due = self.now + late
            if self.again:
                while self.draws.random() < self.again:
                    due += RESENT
                due = self.last[sender, say.to] = max(due, self.last.get((sender, say.to), 0))
            heapq.heappush(self.under_way, (due, self.made, sender, say.to, say))

    # ----------------------------------------------------------------------------------------------- what to look at

    def all_hold(self, about: str, *standings: str) -> bool:
        """Return whether every other running peer gives the peer one of these statuses."""
        return all(m.status(about) in standings for peer, m in self.peers.items() if peer != about)

    def all_alive(self) -> bool:
        return all(self.all_hold(peer, "alive") for peer in self.peers)


def settled(count: int, seed: int, **settings: Any) -> World:
    """Return a world in which all peers have found one another."""
    world = World(count, seed, **settings)
    assert world.run(1_000, world.all_alive), f"replay with seed={seed}"
    return world


def burials(world: World, but: Collection[str] = ()) -> list[int]:
    """Return the ticks for which each false verdict of death on a living peer lasted, at each peer that held it.

    A verdict that has not ended yet counts until now. The verdicts of the peers in `but` are left out.
    """
    begun: dict[tuple[str, str], int] = {}
    lasted = []
    for when, by, change in world.history:
        if by in but:
            continue
        if change.after == "dead":
            begun[by, change.peer] = when
        elif change.before == "dead":
            lasted.append(when - begun.pop((by, change.peer)))
    return [*lasted, *(world.now - when for when in begun.values())]


def detection(count: int, seed: int, loss: float) -> int:
    """Return the ticks from a kill at a random moment until all other peers have declared the peer dead."""
    world = settled(count, seed, loss=loss)
    world.run(int(world.draws.integers(200, 400)))
    victim = world.roster[int(world.draws.integers(count))]
    world.kill(victim)
    start = world.now
    assert world.run(2_000, lambda: world.all_hold(victim, "dead")), f"replay with seed={seed}"
    return world.now - start


def a_claim(about: str, state: str, *, author: str, version: int = 1, incarnation: int = 1, **other: Any) -> Claim:
    """Return a claim with a valid signature of its author."""
    own = advert(about, **other) if author == about else None
    claim = Claim(
        about=about,
        incarnation=incarnation,
        version=version,
        state=state,  # type: ignore[arg-type]
        author=author,
        advert=own,
        signature=b"",
    )
    return replace(claim, signature=signature(author, claim_text(FEDERATION, claim)))
