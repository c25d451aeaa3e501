"""What a peer signs of itself, so that others can show it to it when it has forgotten.

That somebody lives as a certain process and incarnation, has made so many transfers or taken so many, nobody says for
it: who remembers more of a peer than the peer itself shows what it signed. Texts have a tag each, so that none passes
for another, and name both ends and both incarnations of what they are about.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import pack
from typing import Literal

from fedpeer.gossip.claims import joined_fields, whole

#: First bytes of the signed texts; the number is the version of the format.
_GENERATION_TAG, _CHANNEL_TAG = b"fedpeer life 1", b"fedpeer lane 1"
#: Of a channel, what its maker says, and what its taker says.
Way = Literal["made", "taken"]
#: How far the number of a start may be ahead of the one that a peer knows of itself: numbers that are drawn for empty
#: disks are below 2^31.
LIFE_AHEAD_MAX = 2**32


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationProof:
    """That a peer lives, or lived, as this incarnation in this process; `signature` (64 bytes) by its own key."""

    incarnation: int
    generation: int
    nonce: int
    signature: bytes


@dataclass(frozen=True, slots=True)
class Signed:
    """How far one end of a channel was, as it signed it itself: the highest number made or taken, and the sum of the
    weights of all up to it."""

    number: int
    weight: float
    signature: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelProof:
    """That the recipient of this made, or took, so many transfers on a channel with its sender, by the recipient's own
    signature."""

    group: str
    way: Way
    number: int
    weight: float
    signature: bytes


def generation_text(federation: bytes, peer: str, incarnation: int, generation: int, nonce: int) -> bytes:
    """What a peer signs at its start, and whenever its numbers change."""
    return joined_fields(_GENERATION_TAG, federation, peer.encode(), *map(whole, (incarnation, generation, nonce)))


def channel_text(
    federation: bytes, group: str, author: tuple[str, int], other: tuple[str, int], way: Way, number: int, weight: float
) -> bytes:
    """What the author (id, incarnation) signs with each transfer to the other, and each acknowledgement: numbers, and
    no values, which would have to be hashed."""
    ends = (part for peer, incarnation in (author, other) for part in (peer.encode(), whole(incarnation)))
    return joined_fields(
        _CHANNEL_TAG, federation, group.encode(), *ends, way.encode(), whole(number), pack("<d", weight)
    )
