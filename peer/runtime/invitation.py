"""An invitation, without any network: the token that is handed over, what the authority answers, what a joiner checks.

The token carries a secret, the authority's public key and where it listens. `Invitation` takes the secret once, within
its time, however many wrong ones came before; it then signs the certificate and the next roster. `read_admission` holds
the answer against the token and one's own key.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedpeer.config.peer_file import endpoint
from fedpeer.config.peer_id import is_id
from fedpeer.peer.runtime.authority import Authority, EnrolmentError, change_roster
from fedpeer.peer.runtime.certificates import peer_certificate, pem
from fedpeer.peer.runtime.contract_file import contract_file, read_contract
from fedpeer.peer.wire.json_text import parse_json
from fedpeer.peer.wire.roster import Entry, Roster, RosterError, admit, from_bytes, to_bytes
from fedpeer.peer.wire.signed_contract import SignedContract, contract_bytes, contract_from

#: Seconds that the answer to a wrong secret is kept back: the first, the longest, and wrong ones of all addresses after
#: which everybody's are kept back for twice as long. Guessing 128 bits takes forever anyway, and a person who mistypes
#: does not notice; what is kept back takes a place of ours, and answers come no faster than these.
DELAY_S, DELAY_MAX_S, ALL_DOUBLE = 0.5, 8.0, 16
#: Addresses whose wrong secrets are remembered.
ADDRESSES_MAX = 256
SECRET_BYTES, KEY_BYTES, CHECK_BYTES = 16, 32, 4
_PREFIX = "fedpeer-"


@dataclass(frozen=True, slots=True)
class Token:
    """What the inviter hands to the one who joins, as one word."""

    secret: bytes
    authority: bytes
    peer: str
    listener: str

    def __str__(self) -> str:
        body = self.secret + self.authority + f"{self.peer}@{self.listener}".encode()
        return _PREFIX + base64.urlsafe_b64encode(body + _check(body)).decode().rstrip("=")

    @classmethod
    def read(cls, text: str) -> Token:
        """The token in this word. Raises EnrolmentError if a letter is missing or wrong."""
        wrong = EnrolmentError("This is not a whole token; copy all of what fedpeer invite printed, on one line.")
        word = "".join(text.split()).removeprefix(_PREFIX)
        try:
            content = base64.b64decode(word + "=" * (-len(word) % 4), altchars=b"-_", validate=True)
            body, check = content[:-CHECK_BYTES], content[-CHECK_BYTES:]
            peer, _, listener = body[SECRET_BYTES + KEY_BYTES :].decode().partition("@")
            endpoint(listener)
        except ValueError:
            raise wrong from None
        if check != _check(body) or not is_id(peer):
            raise wrong
        return cls(body[:SECRET_BYTES], body[SECRET_BYTES : SECRET_BYTES + KEY_BYTES], peer, listener)


def _check(body: bytes) -> bytes:
    """Against slips of the hand only; who may join is decided by the secret."""
    return hashlib.blake2b(body).digest()[:CHECK_BYTES]


@dataclass(frozen=True, slots=True)
class Denied:
    """Why somebody was not let in: an HTTP status, a sentence for them, and seconds before they are told."""

    status: int
    text: str
    after: float = 0.0


@dataclass(frozen=True, slots=True)
class Admission:
    """An admission as the joining peer receives it; `contract`: the newest that the authority signed, if any."""

    certificate: x509.Certificate
    authority: x509.Certificate
    roster: Roster
    federation: str
    contract: SignedContract | None = None


class WrongSecrets:
    """Wrong secrets, and how long the answer to the next one is kept back: for longer after each from an address, and
    for everybody when there are many."""

    def __init__(self) -> None:
        self.count = 0
        self._of: dict[str, int] = {}  # by address; the one that was wrong longest ago is forgotten first

    def once_more(self, address: str) -> float:
        """Seconds for one more from this address."""
        self.count += 1
        tried = self._of.pop(address, 0)
        self._of[address] = tried + 1
        if len(self._of) > ADDRESSES_MAX:
            del self._of[next(iter(self._of))]
        return min(DELAY_S * 2.0 ** min(tried + self.count // ALL_DOUBLE, 32), DELAY_MAX_S)


class Invitation:
    """One place for one peer, until it is taken or its time is over. Wrong secrets do not end it: else anybody could.

    The right one is compared and taken at once, whoever was wrong before; the comparison takes as long whatever is
    equal, and every wrong one gets the same answer. `expires` and each `now` are seconds by one clock that never goes
    back; `taken` is the roster with the new peer, `start` the file of the model that the federation starts from.
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

    def answer(self, body: bytes, now: float, address: str = "") -> bytes | Denied:
        """The admission as bytes, once, for who asks from this address; else why not."""
        if self.taken is not None:
            return Denied(410, "This invitation was used already; ask for another one.")
        if now >= self.expires:
            return Denied(410, "This invitation has expired; ask for another one.")
        try:
            options = parse_json(body)
            secret, wanted = bytes.fromhex(options["secret"]), str(options["request"])
        except (ValueError, TypeError, KeyError):
            return Denied(400, "This is not a request to join.")
        return self._unknown(secret, address) or self._admit(wanted)

    def model(self, body: bytes, now: float, address: str = "") -> Path | Denied | None:
        """The file of the model that the federation starts from, for who will join; None: it starts from none."""
        if self.taken is not None or now >= self.expires:
            return Denied(410, "This invitation is over; ask for another one.")
        try:
            secret = bytes.fromhex(parse_json(body)["secret"])
        except (ValueError, TypeError, KeyError):
            return Denied(400, "This is not a request to join.")
        return self._unknown(secret, address) or self.start

    def _unknown(self, secret: bytes, address: str) -> Denied | None:
        if hmac.compare_digest(secret, self.secret):
            return None
        text = "This token is not the one of this invitation; copy it again."
        return Denied(403, text, self.wrong.once_more(address))

    def _admit(self, wanted: str) -> bytes | Denied:
        key = _requested(wanted)
        if key is None:
            return Denied(400, "The request is not signed by the Ed25519 key that it names.")
        host = urlsplit(self.address).hostname or ""
        signer = self.authority.identity.key
        certificate = peer_certificate(self.authority.certificate, signer, self.peer, key, host)
        entry = Entry(id=self.peer, key=key.public_bytes_raw(), address=self.address, models=self.models)
        try:
            federation = (self.authority.folder / "federation.yaml").read_text(encoding="utf-8")
            roster = self.authority.folder / "roster.json"
            contract = read_contract(contract_file(roster), self.authority.roster.authority)
            self.taken = change_roster(self.authority, lambda roster, by: admit(roster, entry, by))
        except (RosterError, EnrolmentError, OSError) as error:
            return Denied(409, f"The authority could not let {self.peer} in: {error}")
        admission = Admission(certificate, self.authority.certificate, self.taken, federation, contract)
        return _admission_bytes(admission)


def _requested(text: str) -> Ed25519PublicKey | None:
    """The key for which a certificate is requested (PEM), if whoever asks holds it."""
    try:
        wanted = x509.load_pem_x509_csr(text.encode())
        key = wanted.public_key()
        return key if isinstance(key, Ed25519PublicKey) and wanted.is_signature_valid else None
    except (ValueError, x509.InvalidVersion, UnsupportedAlgorithm):
        return None


def _admission_bytes(admission: Admission) -> bytes:
    signed = admission.contract
    said = {
        "certificate": pem(admission.certificate).decode(),
        "authority": pem(admission.authority).decode(),
        "roster": to_bytes(admission.roster).decode(),
        "federation": admission.federation,
    }
    return json.dumps(said | ({"contract": contract_bytes(signed).decode()} if signed else {})).encode()


def read_admission(answer: bytes, token: Token, key: Ed25519PrivateKey) -> Admission:
    """The admission in an authority's answer, everything in it held against the token and our key.

    Raises EnrolmentError: whoever answered holds the authority's key, so what is wrong is not an attack but a mistake.
    """
    try:
        found = parse_json(answer)
        certificate = x509.load_pem_x509_certificate(found["certificate"].encode())
        authority = x509.load_pem_x509_certificate(found["authority"].encode())
        roster = from_bytes(found["roster"].encode(), token.authority)
        federation, text = found["federation"], found.get("contract")
        contract = None if text is None else contract_from(text.encode(), token.authority)
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
            f"There:  fedpeer revoke {token.peer}, and invite it again."
        ) from None
    return Admission(certificate, authority, roster, federation, contract)
