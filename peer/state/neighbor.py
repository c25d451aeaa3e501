"""What a running peer knows of each other peer beside what is durable: whether they have met in this process, on which
groups they agree, how far the other is. Forgotten at a restart, and learnt again by Hello.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fedpeer.gossip.proofs import GenerationProof
from fedpeer.peer.wire.versions import NEWEST, OLDEST

#: Ticks between two Hellos to a peer that has not answered: at first as often as a person watches two machines start
#: one after the other, later as rarely as a peer that is switched off deserves (10 s at 25 ms).
HELLO_MIN, HELLO_MAX = 20, 400


@dataclass
class Neighbor:
    """One other peer.

    version      of the wire, in which it is spoken to: the newest, or an older one if it has refused that
    older_at     tick at which that became an older one
    capabilities of it, as its last Hello said
    met          whether each has heard the other's Hello with the incarnations and lives that hold now
    compare      whether there is reason to say Hello again all the same
    generation, nonce  of its process, as it said last; `proof`: the last of its starts that it signed, heard in this
    process
    agreed       groups in which both see the same scalars under the same contract
    giving       groups in which it said that it has made a transfer to us: by then it may reach us along an edge that
                 it added when it believed somebody dead, and what it made must not be refused for ever
    round        the furthest in which it was seen, and `round_at` the tick at which it was
    heard_at     tick at which anything came from it last
    knows_us     whether it has heard of this very process; `reminded`: whether it has to be told of an earlier one of
                 its own
    shown        its incarnation that showed us an earlier start of ours, of which our disk knows; 0: none did
    before       by group, what it says to have got of earlier incarnations of ours, more than it gave them
    begun        whether it has begun to learn
    roster       number of the roster it goes by
    made_before  by group, the number of the last transfer that it may have made under an earlier one, and under which
                 roster and incarnation it said so
    hello_at     tick at which it is greeted next; `hello_wait`: ticks until the greeting after that
    said         digest of the contract that it goes by, and those of its groups, as in its last Hello
    contract     the text of that contract, where it is another than ours and was told
    differs      of which contract of it was said already where it differs from ours
    told         which process of it was told our contract last; `sent_signed`: and which signed contract, by its number
    buried_at    tick at which it was thought dead; None: it is not, or that is long ago
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
    knows_us: bool = False
    reminded: bool = False
    shown: int = 0
    before: dict[str, float] = field(default_factory=dict)
    begun: bool = False
    roster: int = 0
    made_before: tuple[tuple[int, int], dict[str, int]] = field(default_factory=lambda: ((0, 0), {}))
    hello_at: int = 0
    hello_wait: int = HELLO_MIN
    said: tuple[bytes, dict[str, bytes]] = (b"", {})
    contract: bytes = b""
    differs: bytes = b""
    told: tuple[int, int] = (0, 0)
    sent_signed: tuple[int, int, int] = (0, 0, 0)
    buried_at: int | None = None

    def spoke(self, version: int) -> bool:
        """A frame of this version came from it (0: not known of which); whether it is spoken to in another now."""
        newer = version > self.version
        self.version = max(self.version, version)
        return newer

    def speak_older(self, now: int) -> bool:
        """Take the next older version, since it refused this one; whether there is one."""
        if self.version == OLDEST:
            return False
        self.version, self.older_at = self.version - 1, now
        return True

    def seen_in(self, round: int, now: int) -> None:
        """It says that it is in this round."""
        if round > self.round:
            self.round, self.round_at = round, now

    def greeted(self, now: int) -> None:
        """A Hello is sent; the next only after a while."""
        self.hello_at, self.hello_wait = now + self.hello_wait, min(2 * self.hello_wait, HELLO_MAX)

    def greet_soon(self, now: int) -> None:
        """There is reason to compare again what both remember; not more often than Hellos are said at all."""
        if not self.compare:
            self.compare, self.hello_wait = True, HELLO_MIN
            self.hello_at = max(now, min(self.hello_at, now + HELLO_MIN))
