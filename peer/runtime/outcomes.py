"""Outcomes of messages to other peers: delivered, rejected, or the link is down."""

from __future__ import annotations

from dataclasses import dataclass

from fedpeer.peer.wire.messages import RejectMessage, RosterNews


@dataclass(frozen=True, slots=True)
class DeliveryReceipt:
    """The other side has the message: its bytes on the wire, and seconds until the answer."""

    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class LinkDown:
    """It is not known whether the message arrived. `reason` is a sentence; `refused`: nobody listens there."""

    reason: str
    refused: bool = False


#: A peer that was revoked gets as its answer the roster that revoked it.
Outcome = DeliveryReceipt | RejectMessage | RosterNews | LinkDown
