"""Signed proofs of a peer's own state, which others show to it when it has lost its memory.

No peer can claim for another which process and incarnation that is, or how many transfers it has made or taken: a peer
that remembers more of another than the other itself shows it the other's own signature. Each kind of text has its own
tag, so that none passes for another, and names both ends and both incarnations.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import pack
from typing import Literal

from fedpeer.gossip.claims import joined_fields, whole

#: First bytes of the signed texts; the number is the version of the format.
_GENERATION_TAG, _CHANNEL_TAG = b"fedpeer life 1", b"fedpeer lane 1"
#: Which end of a channel signed: its sender ("made") or its receiver ("taken").
ChannelEnd = Literal["made", "taken"]
#: How far a generation may be ahead of the one that a peer knows of itself: generations drawn for empty disks are below
#: 2^31.
GENERATION_AHEAD_MAX = 2**32


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationProof:
    """Proof that a peer runs, or ran, as this incarnation in this process; `signature` (64 bytes) is by its own key."""

    incarnation: int
    generation: int
    nonce: int
    signature: bytes


@dataclass(frozen=True, slots=True)
class Signed:
    """Progress of one end of a channel under its own signature.

    number   highest number made or taken
    weight   sum of the weights of all transfers up to it
    """

    number: int
    weight: float
    signature: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelProof:
    """Proof that this message's recipient made or took so many transfers on a channel with this message's sender.

    The signature is the recipient's own.
    """

    group: str
    way: ChannelEnd
    number: int
    weight: float
    signature: bytes


def generation_text(federation: bytes, peer: str, incarnation: int, generation: int, nonce: int) -> bytes:
    """Return the text that a peer signs at its start and whenever its incarnation or generation changes."""
    return joined_fields(_GENERATION_TAG, federation, peer.encode(), *map(whole, (incarnation, generation, nonce)))


def channel_text(
    federation: bytes,
    group: str,
    author: tuple[str, int],
    other: tuple[str, int],
    way: ChannelEnd,
    number: int,
    weight: float,
) -> bytes:
    """Return the text that the author (id, incarnation) signs with each transfer to the other and each acknowledgement.

    It covers numbers and weights but no values, which would have to be hashed.
    """
    ends = (part for peer, incarnation in (author, other) for part in (peer.encode(), whole(incarnation)))
    return joined_fields(
        _CHANNEL_TAG, federation, group.encode(), *ends, way.encode(), whole(number), pack("<d", weight)
    )
