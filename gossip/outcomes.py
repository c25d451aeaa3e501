"""Effects of membership: the values that `membership.py` returns.

The driver of the machine turns them into messages, log lines and counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedpeer.gossip.claims import Claim
from fedpeer.gossip.dissemination import MemberStatus
from fedpeer.rejection import Rejection


@dataclass(frozen=True, slots=True)
class SendProbe:
    """Send Ping(number, claims), PingRequest(number, target, claims) or Pong(number, target, heard, claims)."""

    to: str
    kind: Literal["ping", "ping-request", "pong"]
    number: int
    target: str
    received: bool
    claims: tuple[Claim, ...]


@dataclass(frozen=True, slots=True)
class MemberChange:
    """A peer's status has changed; `reason` is the id of the claim's author, or "roster"."""

    peer: str
    before: MemberStatus
    after: MemberStatus
    reason: str


@dataclass(frozen=True, slots=True)
class ClaimRejection(Rejection):
    """A claim was rejected (bad_signature, unknown_peer, stale_incarnation, false_accuser).

    `sender` passed it on and need not be its author. `roster` is the highest roster number in the statements of the
    same message; 0 if there are none.
    """

    roster: int = 0


@dataclass(frozen=True, slots=True)
class OtherSelf:
    """A statement with this peer's signature that this process never made; reported once for each statement.

    duplicate   made by a later generation: another process has this identity and started later (or this peer's disk was
                lost, and the statement is from before)
    forgotten   made by an earlier generation with a higher incarnation: memory was lost unnoticed
    """

    what: Literal["duplicate", "forgotten"]
    claim: Claim


MembershipEffect = SendProbe | MemberChange | Rejection | OtherSelf
