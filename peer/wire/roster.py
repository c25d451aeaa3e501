"""Rosters: the numbered list of a federation's peers and their keys, signed by the federation's authority.

A roster is passed on from peer to peer and from disk to disk, so it carries its own proof: whichever peer sends it, the
signature shows that the authority wrote it, and the highest number wins. A roster has exactly one encoding in bytes;
any other is rejected, so an accepted roster has the same bits everywhere. The same form of signature (`statement`) is
used for everything else that is relayed about third parties.

Pure: keys and bytes come in as arguments; files and certificates are in `peer/runtime/identity.py`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedpeer.config.address import PeerUrl
from fedpeer.config.capacity import NAME_LETTERS_MAX
from fedpeer.config.peer_id import is_id
from fedpeer.peer.wire.json_text import parse_json
from fedpeer.peer.wire.wire_types import NUMBER_MAX

#: Most bytes of a roster. An entry takes 200 to 300, so there is room for some 4,000 peers; an untrusted megabyte is
#: parsed in a few milliseconds, and only after its length was checked.
ROSTER_BYTES_MAX = 1 << 20
KEY_BYTES, SIGNATURE_BYTES = 32, 64
#: First lines of a roster's encoding, with its authority, and the last line, with the signature.
_HEAD = re.compile(rb'\{\n "federation": "(?:[^"\\\n]|\\.){1,1200}",\n "authority": "([0-9a-f]{64})",\n')
_TAIL = re.compile(rb',\n "signature": "([0-9a-f]{128})"\n\}\n\Z')
_TAIL_BYTES = 200
#: Sender that speaks with the authority's own key: it may bring a roster or a contract only. No peer has this id.
AUTHORITY = "authority"


class RosterError(Exception):
    """A roster is rejected. `code` is the rejection if it came from a peer; the message is a sentence for the user."""

    def __init__(self, code: str, text: str) -> None:
        self.code = code
        super().__init__(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class RosterEntry:
    """One peer of a roster.

    id        its id
    key       its Ed25519 public key (32 bytes)
    address   URL at which others reach it
    models    ids of the partial models that it implements; None: those that the federation file gives it
    voter     whether it counts for majorities in coordinated rounds
    """

    id: str
    key: bytes
    address: str
    models: tuple[str, ...] | None = None
    voter: bool = True


@dataclass(frozen=True, kw_only=True)
class Roster:
    """The peers of a federation, and the keys that were revoked.

    federation    name for people; on the wire a federation is named by `federation_id`
    authority     the authority's Ed25519 public key (32 bytes)
    number        1, 2, 3, ...; the highest wins
    entries       in the order of admission
    revoked       revoked keys (32 bytes each), so that their owners get a better answer than "unknown"
    signature     (64 bytes) by the authority, of everything else
    """

    federation: str
    authority: bytes
    number: int
    entries: tuple[RosterEntry, ...]
    revoked: tuple[bytes, ...] = ()
    signature: bytes = bytes(SIGNATURE_BYTES)

    @cached_property
    def federation_id(self) -> bytes:
        return federation_id(self.authority)

    @cached_property
    def by_id(self) -> Mapping[str, RosterEntry]:
        return {entry.id: entry for entry in self.entries}

    @cached_property
    def by_key(self) -> Mapping[bytes, RosterEntry]:
        return {entry.key: entry for entry in self.entries}


def federation_id(authority: bytes) -> bytes:
    """Return the 16 bytes, from its authority's public key, that name a federation in envelopes and statements."""
    return hashlib.blake2b(authority).digest()[:16]


# ------------------------------------------------------------------------------------------------------- statements


def statement(domain: str, federation: bytes, text: bytes) -> bytes:
    """Return the bytes to sign. The domain keeps a signature of one kind of statement from passing as another's."""
    assert re.fullmatch(r"[a-z-]+", domain), "a domain is a word, so that nothing can be read in two ways"
    assert len(federation) == 16, "see federation_id"
    return b"fedpeer 1 " + domain.encode() + b"\0" + federation + text


def sign_statement(key: Ed25519PrivateKey, domain: str, federation: bytes, text: bytes) -> bytes:
    """Return the Ed25519 signature (RFC 8032, 64 bytes) of a statement by its author's key."""
    return key.sign(statement(domain, federation, text))


def verify_statement(domain: str, federation: bytes, text: bytes, key: bytes, signature: bytes) -> bool:
    """Return whether the owner of the public `key` (32 bytes) signed exactly this. Never raises, whatever the bytes."""
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, statement(domain, federation, text))
    except (InvalidSignature, ValueError):
        return False
    return True


# ---------------------------------------------------------------------------------------------------- making rosters


def sign(roster: Roster, key: Ed25519PrivateKey) -> Roster:
    """Return the roster with the authority's signature.

    Raises RosterError if it is inconsistent (two equal ids), or has more bytes than peers read.
    """
    assert key.public_key().public_bytes_raw() == roster.authority, "signed by another key than the roster names"
    _check(roster)
    signed = replace(roster, signature=sign_statement(key, "roster", roster.federation_id, _text(_body(roster))))
    if (size := len(to_bytes(signed))) > ROSTER_BYTES_MAX:
        peers = f"a roster with {len(roster.entries):,} peers and {len(roster.revoked):,} revoked keys"
        text = f"{peers} has {size:,} bytes, and peers read {ROSTER_BYTES_MAX:,} at most; split the federation"
        raise RosterError("bad_metadata", text)
    return signed


def admit(roster: Roster, entry: RosterEntry, key: Ed25519PrivateKey) -> Roster:
    """Return the next roster, with one more peer."""
    if entry.id in roster.by_id:
        raise RosterError("bad_metadata", f"{entry.id} is in the roster already; choose another id, or revoke it first")
    return sign(replace(roster, number=roster.number + 1, entries=(*roster.entries, entry)), key)


def expel(roster: Roster, peer: str, key: Ed25519PrivateKey) -> Roster:
    """Return the next roster, without one peer, whose key is revoked for good."""
    if peer not in roster.by_id:
        raise RosterError(
            "unknown_peer", f"{peer} is not in the roster, which lists {', '.join(roster.by_id) or 'no peers'}"
        )
    rest = tuple(entry for entry in roster.entries if entry.id != peer)
    revoked = (*roster.revoked, roster.by_id[peer].key)
    return sign(replace(roster, number=roster.number + 1, entries=rest, revoked=revoked), key)


def newer(old: Roster, new: Roster) -> Roster:
    """Return `new` if it may replace `old`. Its signature was checked when it was read (`from_bytes`).

    Raises RosterError with the code wrong_federation (another authority), or repeated (not a higher number).
    """
    if new.authority != old.authority:
        raise RosterError("wrong_federation", f'the roster belongs to another federation, "{new.federation}"')
    if new.number <= old.number:
        same = "; it differs from ours, so two were made with the same number" if _forks(old, new) else ""
        raise RosterError("repeated", f"roster {new.number} is not newer than roster {old.number}{same}")
    return new


def _forks(old: Roster, new: Roster) -> bool:
    return new.number == old.number and new != old


# ------------------------------------------------------------------------------------------------------------- bytes


def to_bytes(roster: Roster) -> bytes:
    """Return a signed roster's only valid encoding: JSON that a person can read."""
    return _text({**_body(roster), "signature": roster.signature.hex()})


def from_bytes(text: bytes, authority: bytes | None = None) -> Roster:
    """Return the roster in these bytes, signed by the authority that it names.

    Cheap checks come first: the authority is named at the beginning, and the signature, of these very bytes, is checked
    before anything in between is read. So an untrusted megabyte costs nothing, and only an authority's text is parsed.

    authority   (32 bytes) authority that must have signed it; None: the caller checks that (`newer`)

    Raises RosterError with the code bad_metadata (too long, not a roster, inconsistent, encoded another way),
    foreign_roster (another authority's) or bad_signature.
    """
    if len(text) > ROSTER_BYTES_MAX:
        raise RosterError(
            "bad_metadata", f"a roster has at most {ROSTER_BYTES_MAX} bytes, and this one has {len(text)}"
        )
    signed_by, body, signature = _cover(text)
    if authority is not None and signed_by != authority:
        raise RosterError("foreign_roster", f"the roster is by another authority ({signed_by.hex()[:16]}...)")
    if not verify_statement("roster", federation_id(signed_by), body, signed_by, signature):
        raise RosterError(
            "bad_signature", "the roster's signature is not its authority's; the roster was changed or forged"
        )
    try:
        roster = _parsed(parse_json(text))
        spelled = to_bytes(roster)
    except (ValueError, TypeError, KeyError):
        raise _no_roster() from None
    _check(roster)
    if spelled != text:
        raise _no_roster()
    return roster


def _cover(text: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the authority in the roster's first lines, the signed bytes, and the signature in its last line."""
    head, tail = _HEAD.match(text), _TAIL.search(text, max(0, len(text) - _TAIL_BYTES))
    if head is None or tail is None:
        raise _no_roster()
    body = text[: tail.start()] + b"\n}\n"
    return bytes.fromhex(head[1].decode()), body, bytes.fromhex(tail[1].decode())


def _no_roster() -> RosterError:
    return RosterError("bad_metadata", "this is not a roster as it was signed; copy it again from a running peer")


def _text(data: object) -> bytes:
    return json.dumps(data, indent=1, ensure_ascii=False).encode() + b"\n"


def _body(roster: Roster) -> dict[str, object]:
    return {
        "federation": roster.federation,
        "authority": roster.authority.hex(),
        "number": roster.number,
        "entries": [
            {
                "id": entry.id,
                "key": entry.key.hex(),
                "address": entry.address,
                "models": None if entry.models is None else list(entry.models),
                "voter": entry.voter,
            }
            for entry in roster.entries
        ],
        "revoked": [key.hex() for key in roster.revoked],
    }


def _parsed(data: Any) -> Roster:
    """Return the roster in parsed JSON; wrong types raise ValueError, TypeError or KeyError.

    The caller's comparison finds another encoding of the same roster.
    """
    entries = tuple(
        RosterEntry(
            id=_typed(each["id"], str),
            key=bytes.fromhex(each["key"]),
            address=_typed(each["address"], str),
            models=None if each["models"] is None else tuple(_typed(name, str) for name in each["models"]),
            voter=_typed(each["voter"], bool),
        )
        for each in data["entries"]
    )
    return Roster(
        federation=_typed(data["federation"], str),
        authority=bytes.fromhex(data["authority"]),
        number=_typed(data["number"], int),
        entries=entries,
        revoked=tuple(bytes.fromhex(key) for key in data["revoked"]),
        signature=bytes.fromhex(data["signature"]),
    )


def _typed(value: Any, kind: type) -> Any:
    if type(value) is not kind:  # a bool is no number here
        raise TypeError(kind.__name__)
    return value


def _check(roster: Roster) -> None:
    """Raise RosterError if a roster, signed or not, is inconsistent (C06: two peers with one id, key or address)."""
    entries, keys = roster.entries, [entry.key for entry in roster.entries]
    names = [roster.federation, *(name for entry in entries for name in entry.models or ())]
    wrong = [f'"{name[:40]}" is not a name of 1 to {NAME_LETTERS_MAX} letters' for name in names if not _is_name(name)]
    wrong += [
        f'"{entry.id[:40]}" is not an id: letters, digits, - _ and .'
        for entry in entries
        if not is_id(entry.id) or entry.id == AUTHORITY
    ]
    wrong += [f'"{entry.address[:60]}" is not like https://host:7401' for entry in entries if not is_url(entry.address)]
    if not 1 <= roster.number <= NUMBER_MAX:
        wrong.append(f"number {roster.number} is out of range")
    if any(len(key) != KEY_BYTES for key in (roster.authority, *keys, *roster.revoked)):
        wrong.append(f"a key does not have {KEY_BYTES} bytes")
    if len(roster.signature) != SIGNATURE_BYTES:
        wrong.append(f"the signature does not have {SIGNATURE_BYTES} bytes")
    for what, values in (
        ("id", [entry.id for entry in entries]),
        ("key", [*keys, *roster.revoked]),
        ("address", [entry.address for entry in entries]),
    ):
        if len(set(values)) < len(values):
            wrong.append(f"two peers have the same {what}")
    if wrong:
        raise RosterError("bad_metadata", f"the roster is invalid: {wrong[0]}")


def _is_name(name: str) -> bool:
    return 1 <= len(name) <= NAME_LETTERS_MAX and name.isprintable()


def is_url(text: str) -> bool:
    """Return whether this is an address of a peer: scheme, host and port, and nothing else."""
    try:
        PeerUrl.read(text)
    except ValueError:
        return False
    return True
