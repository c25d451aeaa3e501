"""Members that lie about a living peer: they send forged verdicts in every message, on every tick, at full rate.

A liar signs with its own key and has the information that every member has. Apart from its lies it follows the
protocol, or not even that. The status that the other honest peers give the victim is sampled on every tick.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from fedpeer.gossip.claims import Claim
from fedpeer.gossip.membership import MembershipEffect, SendProbe
from tests.gossip.swim import World, a_claim

#: dead, suspect: sends verdicts about the victim's newest statement to all honest peers, the victim included, on every
#: tick. silent: never answers a ping or a request to ping another peer. denying: answers each such request by stating
#: that it received nothing. replaying: sends again what the victim, and others about it, ever signed.
LIES = ("dead", "suspect", "silent", "denying", "replaying")
#: Number of old claims that a liar keeps for replaying.
KEPT = 200


@dataclass
class Liars(World):
    """A world in which the last few peers lie about the first.

    liars   number of liars
    lies    their lies, of `LIES`

    `thought` counts the statuses that the other honest peers give the victim: one sample per peer and tick.
    """

    liars: int = 1
    lies: tuple[str, ...] = ("dead",)
    thought: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.received: list[Claim] = []
        self.lying = False
        super().__post_init__()

    @property
    def victim(self) -> str:
        return self.roster[0]

    @property
    def false(self) -> tuple[str, ...]:
        return self.roster[-self.liars :]

    @property
    def honest(self) -> tuple[str, ...]:
        return self.roster[: -self.liars]

    def lie(self, ticks: int) -> None:
        """Run for this many ticks while the liars lie."""
        self.lying = True
        for _ in range(ticks):
            self.run(1)
            for liar in self.false:
                self._forge(liar)
            for peer in self.honest[1:]:
                self.thought[self.peers[peer].status(self.victim)] += 1

    def share(self, status: str) -> float:
        """Return the share of the samples that have this status."""
        return self.thought[status] / self.thought.total()

    def _forge(self, liar: str) -> None:
        statement = self.peers[liar].last_statement(self.victim)
        assert statement is not None, "it knows whom it lies about"
        states = [state for state in ("suspect", "dead") if state in self.lies]
        claims = [
            a_claim(self.victim, state, author=liar, version=statement.version, incarnation=statement.incarnation)
            for state in states
        ]
        if "replaying" in self.lies:
            self.received = [*self.received[-KEPT:], statement]
            claims += [self.received[int(i)] for i in self.draws.integers(len(self.received), size=4)]
        for peer in self.honest:
            self.send(liar, SendProbe(peer, "ping", self.now, peer, True, (statement, *claims)))

    def take(self, peer: str, out: list[MembershipEffect]) -> None:
        if self.lying and peer in self.false:
            out = list(self._changed(out))
        super().take(peer, out)

    def _changed(self, out: Iterable[MembershipEffect]) -> Iterable[MembershipEffect]:
        for each in out:
            if isinstance(each, SendProbe) and each.kind == "pong" and "silent" in self.lies:
                continue
            if (
                isinstance(each, SendProbe)
                and each.kind == "pong"
                and each.target != each.to
                and "denying" in self.lies
            ):
                yield replace(each, received=False)
                continue
            if isinstance(each, SendProbe):
                self.received = [*self.received[-KEPT:], *each.claims] if "replaying" in self.lies else self.received
            yield each


def lied_about(
    count: int, liars: int, lies: tuple[str, ...], *, seed: int, loss: float, ticks: int, **settings: Any
) -> Liars:
    """Return a world in which all peers have found one another, after this many ticks of lies."""
    world = Liars(count, seed, liars=liars, lies=lies, loss=loss, **settings)
    assert world.run(1_000, world.all_alive), f"replay with seed={seed}"
    world.run(200)
    world.sent.clear()
    world.lie(ticks)
    return world
