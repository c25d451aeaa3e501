"""The volatile state of one other peer at a running node; after a restart, Hellos bring it again."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

from fedpeer.gossip.proofs import GenerationProof
from fedpeer.peer.wire.versions import NEWEST, OLDEST

#: Ticks between two Hellos to a peer that has not answered: at first often enough for a person who starts two machines
#: one after the other, later as rarely as a peer that is switched off needs (10 s at 25 ms).
HELLO_MIN, HELLO_MAX = 20, 400


@dataclass
class Neighbor:
    """One other peer.

    version, older_at     version of the wire in which messages to it are written, and tick of the last step to an older
                          one
    capabilities          as its last Hello stated them; none in an older version of the wire
    met                   each has received the other's Hello with the present incarnations and generations
    compare               there is reason to send another Hello, though the two have met
    generation, nonce     of its process, as it stated last
    proof                 the last of its starts that it signed and this process received
    agreed                groups in which both see the same scalars under the same contract
    giving                groups in which it stated that it has made a transfer to us: that may come along an edge that
                          it added when it believed another peer dead, and must not be refused forever
    round, round_at       furthest round in which it was seen, and tick at which that was first seen
    received_at           tick at which anything last came from it; `received_ran`: tick of running time
    knows_us              it has met this very process
    reminded              it has to be shown an earlier start of its own
    shown                 its incarnation that showed us an earlier start of ours that our disk knows; 0: none did
    before                by group, weight that it states to have got from our earlier incarnations in excess of what it
                          gave them
    unstated              groups for whose weight of this kind, from its earlier incarnations, our last Hello to it had
                          no room
    begun                 it has begun to learn
    roster                number of the roster that it uses; `later_since`: tick since which it states a later one than
                          ours
    made_before           (roster, incarnation) that it stated, and by group the number of the last transfer that it may
                          have made under an earlier roster
    hello_at, hello_wait  tick of the next Hello to it, and ticks until the one after that
    announced             digest of its contract, and the digests of its groups, as in its last Hello
    contract              text of the last contract that arrived from it, if that differs from ours
    differs               digest of its contract whose differences from ours were already reported
    buried_at             tick at which it was thought dead; None: it is not, or that is long ago
    away_since            tick of running time at which it was last thought dead, or this process began
    """

    version: int = NEWEST
    older_at: int = 0
    capabilities: frozenset[str] = frozenset()
    met: bool = False
    compare: bool = False
    generation: int = 0
    nonce: int = 0
    proof: GenerationProof | None = None
    agreed: set[str] = field(default_factory=set)
    giving: set[str] = field(default_factory=set)
    round: int = 0
    round_at: int = 0
    received_at: int = -1
    received_ran: int = -1
    knows_us: bool = False
    reminded: bool = False
    shown: int = 0
    before: dict[str, float] = field(default_factory=dict)
    unstated: Set[str] = frozenset()
    begun: bool = False
    roster: int = 0
    later_since: int | None = None
    made_before: tuple[tuple[int, int], dict[str, int]] = field(default_factory=lambda: ((0, 0), {}))
    hello_at: int = 0
    hello_wait: int = HELLO_MIN
    announced: tuple[bytes, dict[str, bytes]] = (b"", {})
    contract: bytes = b""
    differs: bytes = b""
    buried_at: int | None = None
    away_since: int = 0

    def spoke(self, version: int) -> bool:
        """Note the version of a frame from this peer (0: not known); return whether it now gets newer frames."""
        newer = version > self.version
        self.version = max(self.version, version)
        return newer

    def speak_older(self, now: int) -> bool:
        """Write to this peer in the next older version, since it rejected this one; return False if there is none."""
        if self.version == OLDEST:
            return False
        self.version, self.older_at, self.capabilities = self.version - 1, now, frozenset()
        return True

    def seen_in(self, round: int, now: int) -> None:
        """Note that this peer is in this round."""
        if round > self.round:
            self.round, self.round_at = round, now

    def greeted(self, now: int) -> None:
        """Note that a Hello is sent; the next follows after a growing wait."""
        self.hello_at, self.hello_wait = now + self.hello_wait, min(2 * self.hello_wait, HELLO_MAX)

    def greet_soon(self, now: int) -> None:
        """Send a Hello soon, since there is reason to compare memories; not more often than Hellos are sent at all."""
        if not self.compare:
            self.compare, self.hello_wait = True, HELLO_MIN
            self.hello_at = max(now, min(self.hello_at, now + HELLO_MIN))
