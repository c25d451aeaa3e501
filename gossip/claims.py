"""What peers state about one another: small signed records that anyone may pass on. No machine and no clock here.

A peer makes *statements* about itself (alive, finished, left), each with a higher version; others give *verdicts*
about a statement (suspect, dead). A verdict names the incarnation and the version it is about, so that the peer
answers it with its next statement. The signed text begins with a tag, a version of this format and the federation,
so that a signature made for one purpose or federation is worth nothing in another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from struct import pack
from typing import Literal

State = Literal["alive", "suspect", "dead", "finished", "left"]

#: What a peer may say of itself, and what others may say of it.
STATEMENTS: frozenset[State] = frozenset({"alive", "finished", "left"})
VERDICTS: frozenset[State] = frozenset({"suspect", "dead"})

#: First bytes of every signed text; the number is the version of this format.
TAG = b"fedpeer claim 1"
#: Bytes of a statement in a message, so that a verdict and the statement it is about fit into one even with the longest
#: ids: enough for 60 partial models of 40 letters.
STATEMENT_BYTES_MAX = 2_800

#: Gives the signature (64 bytes) of a text by this peer's own key.
Sign = Callable[[bytes], bytes]
#: Whether (author's peer id, text, signature) fit together.
Verify = Callable[[str, bytes, bytes], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advert:
    """What a peer tells all others of itself.

    address       host:port of its peer listener
    roster        number of the roster that it goes by
    generation, nonce   number of this start of its process, and a number drawn at it: of two living processes with one
                  identity, the larger pair wins
    round         in which it is; `score`: of its last evaluation, finite, None before the first
    begun         whether it has begun to learn, so that its values are worth fetching
    models        the partial models that it implements
    """

    address: str
    roster: int
    generation: int
    nonce: int
    round: int
    score: float | None
    begun: bool
    models: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A statement of peer `about` (then `author` is the same, and `advert` there), or a verdict about one.

    incarnation   of `about`: one more whenever it lost memory
    version       of the statement; rises with each one (the incarnation number of SWIM)
    signature     (64 bytes) by the author's key, of `claim_text`
    """

    about: str
    incarnation: int
    version: int
    state: State
    author: str
    advert: Advert | None
    signature: bytes

    @property
    def number(self) -> tuple[int, int]:
        """(incarnation, version): the later statement is the one that counts."""
        return self.incarnation, self.version


def well_formed(claim: Claim) -> bool:
    """Whether author and advert fit the state: statements come from the peer itself, verdicts from others."""
    own = claim.state in STATEMENTS
    return (claim.author == claim.about) is own and (claim.advert is not None) is own


def claim_text(federation: bytes, claim: Claim) -> bytes:
    """What the author signs: every field, each behind its own length, so that no two claims share a text.

    Integers are 8 bytes little-endian, unsigned; the score is a float64, or nothing.
    """
    advert = claim.advert
    told = b""
    if advert is not None:
        told = joined_fields(
            advert.address.encode(),
            *map(whole, (advert.roster, advert.generation, advert.nonce, advert.round)),
            b"" if advert.score is None else pack("<d", advert.score),
            bytes([advert.begun]),
            *(name.encode() for name in advert.models),
        )
    return joined_fields(
        TAG,
        federation,
        claim.about.encode(),
        whole(claim.incarnation),
        whole(claim.version),
        claim.state.encode(),
        claim.author.encode(),
        told,
    )


def claim_bytes(claim: Claim) -> int:
    """What a claim takes in a message's msgpack, at most.

    95 bytes of numbers, state, signature and marks, 52 more with an advert, and each name with the 5 of its length.
    """
    names = [claim.about, claim.author]
    if claim.advert is not None:
        names += [claim.advert.address, *claim.advert.models]
    return 95 + 52 * (claim.advert is not None) + sum(5 + len(name.encode()) for name in names)


def whole(number: int) -> bytes:
    """An integer in a signed text."""
    return number.to_bytes(8, "little")


def joined_fields(*fields: bytes) -> bytes:
    """Fields in a signed text, each behind its own length."""
    return b"".join(pack("<I", len(field)) + field for field in fields)
