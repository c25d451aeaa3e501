"""Invitations, without the network: the token, the authority's answer, and the joining peer's checks.

The token contains a secret, the authority's public key and the address where it listens. `Invitation` accepts the
secret once, until it expires, however many wrong ones came before; it then signs the certificate and the next roster.
`read_admission` checks the answer against the token and the joining peer's key.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedpeer.config.address import Endpoint, PeerUrl
from fedpeer.config.peer_id import is_id
from fedpeer.peer.runtime.authority import Authority, EnrolmentError, change_roster
from fedpeer.peer.runtime.certificates import peer_certificate, pem
from fedpeer.peer.runtime.contract_file import contract_file, read_contract
from fedpeer.peer.runtime.roster_history import history_file, read_history, rosters_in, texts_of
from fedpeer.peer.wire.json_text import parse_json
from fedpeer.peer.wire.roster import Roster, RosterEntry, RosterError, admit, from_bytes, to_bytes
from fedpeer.peer.wire.signed_contract import SignedContract, contract_bytes, contract_from

#: Delay in seconds of the answer to a wrong secret, the first and the longest, and the number of wrong secrets from all
#: addresses after which every delay doubles. Guessing 128 bits is hopeless anyway, and a person who mistypes does not
#: notice; but each delayed answer occupies a slot.
DELAY_S, DELAY_MAX_S, ALL_DOUBLE = 0.5, 8.0, 16
#: Addresses whose wrong secrets are remembered.
ADDRESSES_MAX = 256
SECRET_BYTES, KEY_BYTES, CHECK_BYTES = 16, 32, 4
_PREFIX = "fedpeer-"


@dataclass(frozen=True, slots=True)
class Token:
    """Invitation that the inviter hands to the joining peer, as one word.

    secret      (16 bytes) proves that its owner was invited
    authority   (32 bytes) public key of the federation's authority
    peer        id of the new peer
    listener    host and port where the authority listens
    """

    secret: bytes
    authority: bytes
    peer: str
    listener: str

    def __str__(self) -> str:
        body = self.secret + self.authority + f"{self.peer}@{self.listener}".encode()
        return _PREFIX + base64.urlsafe_b64encode(body + _check(body)).decode().rstrip("=")

    @classmethod
    def read(cls, text: str) -> Token:
        """Return the token in this word. Raises EnrolmentError if a character is missing or wrong."""
        wrong = EnrolmentError("This is not a whole token; copy all of what fedpeer invite printed, on one line.")
        word = "".join(text.split()).removeprefix(_PREFIX)
        try:
            content = base64.b64decode(word + "=" * (-len(word) % 4), altchars=b"-_", validate=True)
            body, check = content[:-CHECK_BYTES], content[-CHECK_BYTES:]
            peer, _, listener = body[SECRET_BYTES + KEY_BYTES :].decode().partition("@")
            Endpoint.read(listener)
        except ValueError:
            raise wrong from None
        if check != _check(body) or not is_id(peer):
            raise wrong
        return cls(body[:SECRET_BYTES], body[SECRET_BYTES : SECRET_BYTES + KEY_BYTES], peer, listener)


def _check(body: bytes) -> bytes:
    """Return a checksum against typing mistakes only; the secret decides who may join."""
    return hashlib.blake2b(body).digest()[:CHECK_BYTES]


@dataclass(frozen=True, slots=True)
class Denied:
    """A refused admission: an HTTP status, a sentence for the other side, and the seconds to delay the answer."""

    status: int
    text: str
    after: float = 0.0


@dataclass(frozen=True, slots=True)
class Admission:
    """Answer that a joining peer receives.

    contract   newest contract that the authority signed; None: none yet
    earlier    the rosters before, as far as they are kept; () from an earlier release
    """

    certificate: x509.Certificate
    authority: x509.Certificate
    roster: Roster
    federation: str
    contract: SignedContract | None = None
    earlier: tuple[Roster, ...] = ()


class WrongSecrets:
    """Counts wrong secrets; the delay of the answer grows with their number from one address, and from all."""

    def __init__(self) -> None:
        self.count = 0
        self._of: dict[str, int] = {}  # by address; the one whose last wrong secret is the oldest is dropped first

    def once_more(self, address: str) -> float:
        """Count one more from this address; return the seconds to delay its answer."""
        self.count += 1
        tried = self._of.pop(address, 0)
        self._of[address] = tried + 1
        if len(self._of) > ADDRESSES_MAX:
            del self._of[next(iter(self._of))]
        return min(DELAY_S * 2.0 ** min(tried + self.count // ALL_DOUBLE, 32), DELAY_MAX_S)


class Invitation:
    """The invitation of one peer, until it is used or expires. Wrong secrets do not end it: otherwise anybody could.

    The right secret is accepted at once, whatever came before. Secrets are compared in constant time, and every wrong
    one gets the same answer. `expires` and each `now` are seconds by one monotonic clock; `taken` is the roster with
    the new peer, `start` the file of the federation's initial model.
    """

    def __init__(
        self,
        authority: Authority,
        peer: str,
        address: str,
        models: tuple[str, ...] | None,
        secret: bytes,
        expires: float,
        start: Path | None = None,
    ) -> None:
        self.authority, self.secret, self.expires = authority, secret, expires
        self.peer, self.address, self.models, self.start = peer, address, models, start
        self.wrong = WrongSecrets()
        self.taken: Roster | None = None
        self.confirms = self.confirmed = False  # whether the new peer says that it has its folder; and has said so
        self._used = b"", b""  # the request that was admitted, and its answer

    def answer(self, body: bytes, now: float, address: str = "") -> bytes | Denied:
        """Return the admission as bytes, to one client, at this address; otherwise the reason for the refusal.

        The same request gets the same answer again: the first one may have been lost on its way.
        """
        if self.taken is not None:
            used = Denied(410, "This invitation has already been used; ask for another one.")
            return self._used[1] if hmac.compare_digest(body, self._used[0]) else used
        if now >= self.expires:
            return Denied(410, "This invitation has expired; ask for another one.")
        try:
            request = parse_json(body)
            secret, wanted = bytes.fromhex(request["secret"]), str(request["request"])
            confirms = request.get("confirms") is True  # earlier releases do not
        except (ValueError, TypeError, KeyError):
            return Denied(400, "This is not a request to join.")
        answer = self._unknown(secret, address) or self._admit(wanted)
        if isinstance(answer, bytes):
            self._used, self.confirms = (body, answer), confirms
        return answer

    def confirm(self, body: bytes, address: str = "") -> Denied | None:
        """Take note that the new peer has its folder, so it asks for no answer any more."""
        try:
            secret = bytes.fromhex(parse_json(body)["secret"])
        except (ValueError, TypeError, KeyError):
            return Denied(400, "This confirms nothing.")
        denied = self._unknown(secret, address)
        self.confirmed = denied is None and self.taken is not None
        return denied

    def model(self, body: bytes, now: float, address: str = "") -> Path | Denied | None:
        """Return the file of the federation's initial model to a client that will join; None if there is none.

        Whoever was admitted and has not confirmed that may ask again: it was stopped before it had its folder.
        """
        if self.confirmed or (self.taken is None and now >= self.expires):
            return Denied(410, "This invitation is over; ask for another one.")
        try:
            secret = bytes.fromhex(parse_json(body)["secret"])
        except (ValueError, TypeError, KeyError):
            return Denied(400, "This is not a request to join.")
        return self._unknown(secret, address) or self.start

    def _unknown(self, secret: bytes, address: str) -> Denied | None:
        if hmac.compare_digest(secret, self.secret):
            return None
        text = "This token does not match the invitation; copy it again."
        return Denied(403, text, self.wrong.once_more(address))

    def _admit(self, wanted: str) -> bytes | Denied:
        key = _requested(wanted)
        if key is None:
            return Denied(400, "The request is not signed by the Ed25519 key that it names.")
        host = PeerUrl.read(self.address).host
        signer = self.authority.identity.key
        certificate = peer_certificate(self.authority.certificate, signer, self.peer, key, host)
        entry = RosterEntry(id=self.peer, key=key.public_bytes_raw(), address=self.address, models=self.models)
        try:
            federation = (self.authority.folder / "federation.yaml").read_text(encoding="utf-8")
            roster = self.authority.folder / "roster.json"
            contract = read_contract(contract_file(roster), self.authority.roster.authority)
            self.taken = change_roster(self.authority, lambda roster, by: admit(roster, entry, by))
            earlier = read_history(history_file(roster), self.taken.authority)
        except (RosterError, EnrolmentError, OSError) as error:
            return Denied(409, f"The authority could not admit {self.peer}: {error}")
        admission = Admission(certificate, self.authority.certificate, self.taken, federation, contract, earlier)
        return _admission_bytes(admission)


def _requested(text: str) -> Ed25519PublicKey | None:
    """Return the key in a certificate request (PEM) if its signature proves that the client holds it, else None."""
    try:
        wanted = x509.load_pem_x509_csr(text.encode())
        key = wanted.public_key()
        return key if isinstance(key, Ed25519PublicKey) and wanted.is_signature_valid else None
    except (ValueError, x509.InvalidVersion, UnsupportedAlgorithm):
        return None


def _admission_bytes(admission: Admission) -> bytes:
    signed = admission.contract
    fields = {
        "certificate": pem(admission.certificate).decode(),
        "authority": pem(admission.authority).decode(),
        "roster": to_bytes(admission.roster).decode(),
        "federation": admission.federation,
        "earlier": texts_of(admission.earlier),
    }
    return json.dumps(fields | ({"contract": contract_bytes(signed).decode()} if signed else {})).encode()


def read_admission(answer: bytes, token: Token, key: Ed25519PrivateKey) -> Admission:
    """Return the admission in an authority's answer, checked against the token and our key.

    Raises EnrolmentError: the sender holds the authority's key, so a wrong answer is a mistake and not an attack.
    """
    try:
        found = parse_json(answer)
        certificate = x509.load_pem_x509_certificate(found["certificate"].encode())
        authority = x509.load_pem_x509_certificate(found["authority"].encode())
        roster = from_bytes(found["roster"].encode(), token.authority)
        federation, text = found["federation"], found.get("contract")
        contract = None if text is None else contract_from(text.encode(), token.authority)
        earlier = rosters_in(found.get("earlier", []), token.authority)
        certificate.verify_directly_issued_by(authority)
        ours = key.public_key()
        fits = (
            certificate.public_key() == ours,
            roster.by_id[token.peer].key == ours.public_bytes_raw(),
            authority.public_key() == Ed25519PublicKey.from_public_bytes(token.authority),
            isinstance(federation, str),
        )
        if not all(fits):
            raise ValueError("not what the token promised")
    except (ValueError, TypeError, KeyError, AttributeError, InvalidSignature, RosterError):
        raise EnrolmentError(
            "The authority's answer cannot be used; both machines need the same version of fedpeer. "
            f"On the inviting machine run  fedpeer revoke {token.peer}  and invite it again."
        ) from None
    return Admission(certificate, authority, roster, federation, contract, earlier)
