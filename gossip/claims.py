"""Claims that peers make about one another: small signed records that any peer may pass on.

A peer makes *statements* about itself (alive, finished, left), each with a higher version; others give *verdicts* on a
statement (suspect, dead). A verdict names the incarnation and the version of its statement, so that the peer refutes it
with its next statement. The signed text begins with a tag, the version of this format and the federation, so that a
signature made for one purpose or federation is worth nothing in another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from struct import pack
from typing import Literal

ClaimedState = Literal["alive", "suspect", "dead", "finished", "left"]

#: States that a peer claims of itself, and states that others claim of it.
STATEMENTS: frozenset[ClaimedState] = frozenset({"alive", "finished", "left"})
VERDICTS: frozenset[ClaimedState] = frozenset({"suspect", "dead"})

#: First bytes of every signed text; the number is the version of this format.
TAG = b"fedpeer claim 1"
#: Bytes of a statement in a message, so that one message has room for a verdict and its statement even with the longest
#: ids: enough for 60 partial models of 40 letters.
STATEMENT_BYTES_MAX = 2_800
#: Claims in one message; memberlist fills an UDP packet, we the 4 KiB of metadata.
CLAIMS_MAX = 8

#: Returns the signature (64 bytes) of a text by this peer's own key.
Sign = Callable[[bytes], bytes]
#: Returns whether (author's peer id, text, signature) fit together.
Verify = Callable[[str, bytes, bytes], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advert:
    """The description of itself that a peer sends to all others.

    address       host:port of its peer listener
    roster        number of the roster that it uses
    generation    number of this start of its process
    nonce         random number drawn at the start: of two running processes with one identity, the one with the larger
                  (generation, nonce) wins
    round         current round
    score         score of its last evaluation, finite; None before the first
    begun         whether it has begun to learn, so that its values are worth fetching
    models        names of the partial models that it implements
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
    """A statement by peer `about`, or another peer's verdict on one.

    incarnation   incarnation of `about`; it rises by one each time that peer loses its memory
    version       version of the statement; it rises with each one (SWIM's incarnation number)
    author        the peer that signed; `about` itself if this is a statement
    advert        present in statements, None in verdicts
    signature     (64 bytes) of `claim_text` by the author's key
    """

    about: str
    incarnation: int
    version: int
    state: ClaimedState
    author: str
    advert: Advert | None
    signature: bytes

    def __hash__(self) -> int:
        """Return a hash of the signature, which covers all other fields: tables of news need it often."""
        return hash((self.author, self.signature))

    @property
    def number(self) -> tuple[int, int]:
        """(incarnation, version); the latest statement counts."""
        return self.incarnation, self.version


def well_formed(claim: Claim) -> bool:
    """Return whether author and advert fit the state: statements come from the peer itself, verdicts from others."""
    own = claim.state in STATEMENTS
    return (claim.author == claim.about) is own and (claim.advert is not None) is own


def claim_text(federation: bytes, claim: Claim) -> bytes:
    """Return the text that the author signs: all fields, each after its length, so that no two claims share a text.

    Integers are 8 bytes little-endian, unsigned; the score is a float64, or empty.
    """
    advert = claim.advert
    described = b""
    if advert is not None:
        described = joined_fields(
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
        described,
    )


def claim_bytes(claim: Claim) -> int:
    """Return the most bytes that a claim takes in a message's msgpack.

    95 bytes for numbers, state, signature and markers, 52 more with an advert, and each name with 5 for its length.
    """
    names = [claim.about, claim.author]
    if claim.advert is not None:
        names += [claim.advert.address, *claim.advert.models]
    return 95 + 52 * (claim.advert is not None) + sum(5 + len(name.encode()) for name in names)


def whole(number: int) -> bytes:
    """Encode an integer for a signed text."""
    return number.to_bytes(8, "little")


def joined_fields(*fields: bytes) -> bytes:
    """Join the fields of a signed text, each after its own length."""
    return b"".join(pack("<I", len(field)) + field for field in fields)
