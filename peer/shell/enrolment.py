"""Letting one more peer in: an invitation on the authority's machine, a join on the new one, one TLS connection.

The token carries a secret, the authority's public key and where it listens. The one who joins accepts only a server
that holds that very key, so nobody in between can answer; it makes its own key and sends a request signed by it, and
the private key never leaves its machine. The authority takes the secret once, within its time, after at most a few
wrong ones; it then signs the certificate and the next roster, and sends both with the federation file.

`Invitation` decides and knows no network; `invite` and `join` carry it over HTTPS.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedpeer.peer.core.peer_file import endpoint
from fedpeer.peer.core.roster import ROSTER_BYTES_MAX, Entry, Roster, RosterError, admit, from_bytes, is_id, to_bytes
from fedpeer.peer.shell.authority import Authority, EnrolmentError, change_roster
from fedpeer.peer.shell.certificates import peer_certificate, pem, request
from fedpeer.peer.shell.identity import invitation_context, joining_context
from fedpeer.peer.shell.reasons import link_reason

#: Wrong secrets before an invitation is withdrawn. A person mistypes once or twice; guessing 128 bits takes forever
#: anyway, so this only ends a nuisance.
WRONG_MAX = 5
#: Port on which an invitation is listened for; `fedpeer init` gives peers 7401 and up.
INVITATION_PORT = 7400
#: Bytes of a request to join: a certificate request has 300, the rest is air.
REQUEST_BYTES_MAX = 16 * 1024
#: Bytes of a federation file, as the reader of YAML allows it.
FEDERATION_BYTES_MAX = 1 << 20
#: Bytes of an answer: a roster and a federation file, spelled in JSON once more (at worst doubled), certificates.
ANSWER_BYTES_MAX = 2 * (ROSTER_BYTES_MAX + FEDERATION_BYTES_MAX) + 64 * 1024
#: Seconds for one request, from the first byte to the last: a signature and some kilobytes, over a slow link.
REQUEST_SECONDS = 30.0
#: Connections that may wait to be taken: one person joins.
BACKLOG = 16
#: Seconds for the last answer to leave when the listener closes.
GOODBYE_SECONDS = 5.0
#: Letters of another machine's sentence that are shown.
TEXT_MAX = 400
SECRET_BYTES, KEY_BYTES, CHECK_BYTES = 16, 32, 4
PREFIX = "fedpeer-"


@dataclass(frozen=True, slots=True)
class Token:
    """What the inviter hands to the one who joins, as one word."""

    secret: bytes
    authority: bytes
    peer: str
    listener: str

    def __str__(self) -> str:
        body = self.secret + self.authority + f"{self.peer}@{self.listener}".encode()
        return PREFIX + base64.urlsafe_b64encode(body + _check(body)).decode().rstrip("=")

    @classmethod
    def read(cls, text: str) -> Token:
        """The token in this word. Raises EnrolmentError if a letter is missing or wrong."""
        wrong = EnrolmentError("This is not a whole token; copy all of what fedpeer invite printed, on one line.")
        word = "".join(text.split()).removeprefix(PREFIX)
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
    """Why somebody was not let in: an HTTP status and a sentence for them."""

    status: int
    text: str


@dataclass(frozen=True, slots=True)
class Admission:
    """What a peer gets that was let in."""

    certificate: x509.Certificate
    authority: x509.Certificate
    roster: Roster
    federation: str


class Invitation:
    """One place for one peer, until it is taken or its time is over.

    `expires` and each `now` are seconds by one clock that never goes back; `taken` is the roster with the new peer.
    """

    def __init__(
        self,
        authority: Authority,
        peer: str,
        address: str,
        models: tuple[str, ...] | None,
        secret: bytes,
        expires: float,
    ) -> None:
        self.authority, self.secret, self.expires = authority, secret, expires
        self.peer, self.address, self.models = peer, address, models
        self.wrong = 0
        self.taken: Roster | None = None

    def answer(self, body: bytes, now: float) -> bytes | Denied:
        """The admission as bytes, once; else why not."""
        if self.taken is not None:
            return Denied(410, "This invitation was used already; ask for another one.")
        if self.wrong >= WRONG_MAX:
            return Denied(410, "This invitation was withdrawn after too many wrong tokens; ask for another one.")
        if now >= self.expires:
            return Denied(410, "This invitation has expired; ask for another one.")
        try:
            asked = json.loads(body)
            secret, wanted = bytes.fromhex(asked["secret"]), x509.load_pem_x509_csr(asked["request"].encode())
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return Denied(400, "This is not a request to join.")
        if not hmac.compare_digest(secret, self.secret):
            self.wrong += 1
            return Denied(403, "This token is not the one of this invitation; copy it again.")
        return self._admit(wanted)

    def _admit(self, wanted: x509.CertificateSigningRequest) -> bytes | Denied:
        key = wanted.public_key()
        if not isinstance(key, Ed25519PublicKey) or not wanted.is_signature_valid:
            return Denied(400, "The request is not signed by the Ed25519 key that it names.")
        host = urlsplit(self.address).hostname or ""
        signer = self.authority.identity.key
        certificate = peer_certificate(self.authority.certificate, signer, self.peer, key, host)
        entry = Entry(id=self.peer, key=key.public_bytes_raw(), address=self.address, models=self.models)
        try:
            federation = (self.authority.folder / "federation.yaml").read_text(encoding="utf-8")
            self.taken = change_roster(self.authority, lambda roster, by: admit(roster, entry, by))
        except (RosterError, EnrolmentError, OSError) as error:
            return Denied(409, f"The authority could not let {self.peer} in: {error}")
        admission = Admission(certificate, self.authority.certificate, self.taken, federation)
        return _admission_bytes(admission)


def _admission_bytes(admission: Admission) -> bytes:
    return json.dumps(
        {
            "certificate": pem(admission.certificate).decode(),
            "authority": pem(admission.authority).decode(),
            "roster": to_bytes(admission.roster).decode(),
            "federation": admission.federation,
        }
    ).encode()


def read_admission(answer: bytes, token: Token, key: Ed25519PrivateKey) -> Admission:
    """The admission in an authority's answer, everything in it held against the token and our key.

    Raises EnrolmentError: whoever answered holds the authority's key, so what is wrong is not an attack but a mistake.
    """
    try:
        found = json.loads(answer)
        certificate = x509.load_pem_x509_certificate(found["certificate"].encode())
        authority = x509.load_pem_x509_certificate(found["authority"].encode())
        roster = from_bytes(found["roster"].encode())
        federation = found["federation"]
        certificate.verify_directly_issued_by(authority)
        ours = key.public_key()
        entry = roster.by_id[token.peer]
        same = certificate.public_key() == ours and entry.key == ours.public_bytes_raw()
        if not same or roster.authority != token.authority or not isinstance(federation, str):
            raise ValueError("not what the token promised")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, InvalidSignature, RosterError):
        raise EnrolmentError(
            "The authority's answer cannot be used; both machines need the same version of fedpeer. "
            f"There:  fedpeer revoke {token.peer}, and invite it again."
        ) from None
    return Admission(certificate, authority, roster, federation)


# --------------------------------------------------------------------------------------------------------- over HTTPS


@asynccontextmanager
async def listening(
    invitation: Invitation, listen: str, clock: Callable[[], float]
) -> AsyncIterator[tuple[int, asyncio.Event]]:
    """Listen for the one who joins; yields the port and an event that is set once somebody was let in or none can be.

    Raises EnrolmentError if nobody can listen there.
    """
    over = asyncio.Event()

    async def join(asking: web.Request) -> web.Response:
        async with asyncio.timeout(REQUEST_SECONDS):
            answer = invitation.answer(await asking.read(), clock())
        if invitation.taken is not None or invitation.wrong >= WRONG_MAX:
            over.set()
        if isinstance(answer, Denied):
            return web.json_response({"text": answer.text}, status=answer.status)
        return web.Response(body=answer, content_type="application/json")

    app = web.Application(client_max_size=REQUEST_BYTES_MAX)
    app.router.add_post("/v1/join", join)
    runner = web.AppRunner(app, handle_signals=False, access_log=None, auto_decompress=False, lingering_time=0)
    await runner.setup()
    host, port = endpoint(listen)
    context = invitation_context(invitation.authority.identity)
    site = web.TCPSite(runner, host, port, ssl_context=context, backlog=BACKLOG, shutdown_timeout=GOODBYE_SECONDS)
    try:
        try:
            await site.start()
        except OSError as error:
            raise EnrolmentError(
                f"Nobody can listen on {listen} ({error.strerror}); choose another --listen."
            ) from None
        yield runner.addresses[0][1], over
    finally:
        await runner.cleanup()


async def invite(
    authority: Authority,
    peer: str,
    address: str,
    models: tuple[str, ...] | None,
    listen: str,
    reached_at: str,
    seconds: float,
    show: Callable[[Token], None],
) -> Roster:
    """Let one peer in: show its token and wait at most `seconds` for it. Returns the new roster.

    `reached_at` is the host by which the new machine reaches this one. Raises EnrolmentError if nobody came.
    """
    clock = time.monotonic
    secret = secrets.token_bytes(SECRET_BYTES)
    invitation = Invitation(authority, peer, address, models, secret, clock() + seconds)
    async with listening(invitation, listen, clock) as (port, over):
        host = f"[{reached_at}]" if ":" in reached_at else reached_at
        show(Token(secret, authority.roster.authority, peer, f"{host}:{port}"))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), seconds)
    if invitation.taken is None:
        why = "Nobody came with it in time" if invitation.wrong < WRONG_MAX else f"{WRONG_MAX} wrong tokens were tried"
        raise EnrolmentError(f"{why}; the token is worth nothing any more. To try again, say fedpeer invite once more.")
    return invitation.taken


async def join(token: Token, key: Ed25519PrivateKey) -> Admission:
    """Ask to be let in, with a key made here. Raises EnrolmentError."""
    body = {"secret": token.secret.hex(), "request": pem(request(key, token.peer)).decode()}
    limit = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=limit, auto_decompress=False) as session,
            session.post(
                f"https://{token.listener}/v1/join", json=body, ssl=joining_context(token.authority)
            ) as answer,
        ):
            text = await _bounded(answer)
            if answer.status != 200:
                raise EnrolmentError(_denial(text))
    except (aiohttp.ClientError, TimeoutError) as error:
        why = link_reason(error)
        raise EnrolmentError(
            f"The one who invites cannot be reached at {token.listener}: {why}. Does fedpeer invite still wait there, "
            "and does a firewall let that port through?"
        ) from None
    return read_admission(text, token, key)


async def _bounded(answer: aiohttp.ClientResponse) -> bytes:
    text = bytearray()
    async for piece in answer.content.iter_any():
        text += piece
        if len(text) > ANSWER_BYTES_MAX:
            raise EnrolmentError(
                "The answer is longer than any roster and federation file; this is not fedpeer invite."
            )
    return bytes(text)


def _denial(text: bytes) -> str:
    try:
        words = str(json.loads(text)["text"])
    except (ValueError, TypeError, KeyError, RecursionError):
        words = "it was refused without a reason"
    return "Not let in: " + "".join(letter for letter in words if letter.isprintable())[:TEXT_MAX]


def route_to(host: str) -> str | None:
    """The address of this machine on the way to another one, or None if that one is not known. Nothing is sent."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, INVITATION_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return None
