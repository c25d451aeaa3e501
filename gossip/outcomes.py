"""What membership wants done or known: the values that `membership.py` returns. Nothing is decided here.

Whoever drives the machine turns them into messages, log lines and counts.
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
    """A peer is something else to us than it was. `reason`: who said so, or "roster"."""

    peer: str
    before: MemberStatus
    after: MemberStatus
    reason: str


@dataclass(frozen=True, slots=True)
class ClaimRejection(Rejection):
    """A claim was not taken (bad_signature, unknown_peer, stale_incarnation, false_accuser).

    `sender` handed it to us, and need not have made it. `roster`: the latest by which somebody goes, as the claims say
    that came with it; 0: they do not say.
    """

    roster: int = 0


@dataclass(frozen=True, slots=True)
class OtherSelf:
    """A statement with our signature that this process never made; said once for each.

    duplicate   by a later generation: another process has our identity and began after us (or our disk was lost, and
                the statement is from before)
    forgotten   by an earlier generation with a higher incarnation: memory was lost and nobody noticed
    """

    what: Literal["duplicate", "forgotten"]
    claim: Claim


Out = SendProbe | MemberChange | Rejection | OtherSelf
