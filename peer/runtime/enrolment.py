"""Admission of one more peer over HTTPS: the authority's machine listens, the new machine asks.

The joining peer accepts only a server that holds the key in its token, so nobody in between can answer. It makes its
own key and sends a request signed by it; the private key never leaves its machine. `invitation.py` makes all decisions.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedpeer.config.address import Endpoint
from fedpeer.peer.runtime.authority import Authority, EnrolmentError
from fedpeer.peer.runtime.certificates import pem, request
from fedpeer.peer.runtime.identity import invitation_context, joining_context
from fedpeer.peer.runtime.invitation import SECRET_BYTES, Admission, Denied, Invitation, Token, read_admission
from fedpeer.peer.runtime.limits import Limits
from fedpeer.peer.runtime.listener import listening_socket, looked_up
from fedpeer.peer.runtime.reasons import link_reason
from fedpeer.peer.runtime.visitors import Visitors
from fedpeer.peer.wire.json_text import parse_json
from fedpeer.peer.wire.messages import CONTRACT_BYTES_MAX
from fedpeer.peer.wire.roster import ROSTER_BYTES_MAX, Roster

#: Default port of an invitation's listener; `fedpeer init` gives peers 7401 and up.
INVITATION_PORT = 7400
#: Most bytes of a request to join; a certificate request has 300.
_REQUEST_BYTES_MAX = 16 * 1024
#: Most bytes of a federation file, the limit of the YAML reader.
_FEDERATION_BYTES_MAX = 1 << 20
#: Most bytes of an answer: a roster, the earlier ones, a federation file and a contract as JSON strings (at worst
#: doubled), and certificates.
_ANSWER_BYTES_MAX = 2 * (2 * ROSTER_BYTES_MAX + _FEDERATION_BYTES_MAX + CONTRACT_BYTES_MAX) + 64 * 1024
#: Statuses that mean "no initial model"; the second comes from a release without this route.
_NO_MODEL = (204, 404)
#: Seconds to connect, and then for one request to its last byte: a signature and some kilobytes, over a slow link.
_REQUEST_SECONDS = _CONNECTION_SECONDS = 30.0
#: Limits of the listener: one person joins, and anybody else gets few connections from one address.
INVITED = Limits(connections=64, connections_per_peer=16)
#: Most answers to wrong tokens that are delayed at once, and seconds after which a silent connection is closed.
LATE_MAX, IDLE_SECONDS = 32, 15.0
#: Seconds for the last answer to leave when the listener closes.
_GOODBYE_SECONDS = 5.0
#: Attempts of a joining peer if its answer is lost on the way.
_ATTEMPTS = 3
#: Seconds after an answer until the listener waits no longer for the confirmation, or for the next attempt; and seconds
#: for which the joining peer tries to confirm.
_CONFIRM_SECONDS, _CONFIRMING_SECONDS = _ATTEMPTS * 2 * _REQUEST_SECONDS, 10.0
#: Errors that are raised if no connection was made, so that the request cannot have arrived.
_NOT_CONNECTED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
#: Most characters of another machine's sentence that are shown.
_TEXT_MAX = 400


@asynccontextmanager
async def listening(
    invitation: Invitation, where: str, clock: Callable[[], float]
) -> AsyncIterator[tuple[int, asyncio.Event]]:
    """Listen for the joining peer; yield the port and an event that is set once a peer was admitted and asks no more.

    Raises EnrolmentError if it is not possible to listen there.
    """
    over, late = asyncio.Event(), DelayedAnswers()

    async def body_of(asking: web.Request) -> bytes:
        try:
            async with asyncio.timeout(_REQUEST_SECONDS):
                return await asking.read()
        except TimeoutError:
            raise web.HTTPRequestTimeout from None

    async def deny(denied: Denied) -> web.Response:
        await late.wait(denied.after)
        return web.json_response({"text": denied.text}, status=denied.status)

    async def join(asking: web.Request) -> web.Response:
        answer = invitation.answer(await body_of(asking), clock(), asking.remote or "")
        if isinstance(answer, Denied):
            return await deny(answer)
        response = web.Response(body=answer, content_type="application/json")
        asyncio.get_running_loop().call_later(_CONFIRM_SECONDS, over.set)
        with contextlib.suppress(ConnectionError):  # the client has gone, and asks again
            await response.prepare(asking)
            await response.write_eof()
            if not invitation.confirms:  # an answer that was written may not have arrived, but no more can be known
                over.set()
        return response

    async def joined(asking: web.Request) -> web.Response:
        denied = invitation.confirm(await body_of(asking), asking.remote or "")
        if denied is not None:
            return await deny(denied)
        if invitation.confirmed:
            over.set()
        return web.Response(status=204)

    async def model(asking: web.Request) -> web.StreamResponse:
        answer = invitation.model(await body_of(asking), clock(), asking.remote or "")
        if isinstance(answer, Denied):
            return await deny(answer)
        return web.Response(status=204) if answer is None else web.FileResponse(answer)

    app = web.Application(client_max_size=_REQUEST_BYTES_MAX)
    app.router.add_post("/v1/join", join)
    app.router.add_post("/v1/joined", joined)
    app.router.add_post("/v1/model", model)
    visitors = Visitors(INVITED)
    try:
        listening = listening_socket(*Endpoint.read(where))
    except OSError as error:
        raise EnrolmentError(f"Cannot listen on {where} ({error.strerror}); choose another --listen.") from None
    context = invitation_context(invitation.authority.identity)
    await visitors.start(app, listening, context, shutdown_timeout=_GOODBYE_SECONDS, keepalive_timeout=IDLE_SECONDS)
    try:
        yield int(listening.getsockname()[1]), over
    finally:
        late.let_go()
        await visitors.stop()


class NotAdmittedError(EnrolmentError):
    """The authority refuses to admit this key."""


class _AnswerLostError(EnrolmentError):
    """The request may have arrived, and the answer has not."""


class DelayedAnswers:
    """Answers that are delayed: at most `LATE_MAX`; one more lets the oldest go at once."""

    def __init__(self) -> None:
        self._kept: dict[asyncio.Event, None] = {}

    async def wait(self, seconds: float) -> None:
        """Wait so many seconds, or until the answer has to go."""
        if seconds <= 0:
            return
        go = asyncio.Event()
        self._kept[go] = None
        if len(self._kept) > LATE_MAX:
            next(iter(self._kept)).set()
        try:
            async with asyncio.timeout(seconds):
                await go.wait()
        except TimeoutError:
            pass
        finally:
            self._kept.pop(go, None)

    def let_go(self) -> None:
        """Let all answers go now, since the listener closes."""
        for go in self._kept:
            go.set()


async def invite(
    authority: Authority,
    peer: str,
    address: str,
    models: tuple[str, ...] | None,
    listen: str,
    reached_at: str,
    seconds: float,
    show: Callable[[Token], None],
    start: Path | None = None,
) -> tuple[Roster, bool]:
    """Admit one peer: show its token, wait at most `seconds` for it; return the new roster, and whether it has arrived.

    `reached_at` is the host by which the new machine reaches this one, `start` the file of the federation's initial
    model. Raises EnrolmentError if nobody came.
    """
    clock = time.monotonic
    secret = secrets.token_bytes(SECRET_BYTES)
    invitation = Invitation(authority, peer, address, models, secret, clock() + seconds, start)
    async with listening(invitation, listen, clock) as (port, over):
        show(Token(secret, authority.roster.authority, peer, str(Endpoint(reached_at, port))))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), seconds)
        if invitation.taken is not None:
            await over.wait()
    if invitation.taken is None:
        wrong = f" ({invitation.wrong.count} wrong tokens were tried)" if invitation.wrong.count else ""
        raise EnrolmentError(
            f"Nobody joined in time{wrong}; the token is no longer valid. Run fedpeer invite again to make a new one."
        )
    return invitation.taken, invitation.confirmed or not invitation.confirms


async def join_federation(token: Token, key: Ed25519PrivateKey) -> Admission:
    """Ask for admission with a key made here, and return the authority's answer. Raises EnrolmentError.

    If the answer is lost on its way, it is asked for again. The same key makes the same request, which gets the same
    answer until that is confirmed.
    """
    body = {"secret": token.secret.hex(), "request": pem(request(key, token.peer)).decode(), "confirms": True}
    status, text = await _joined(token, body)
    if status != 200:
        raise NotAdmittedError(_denial(text))
    return read_admission(text, token, key)


async def confirm(token: Token) -> None:
    """Let the inviting machine know that the peer's folder is written; without that it waits for a while."""
    limit = aiohttp.ClientTimeout(total=_CONFIRMING_SECONDS)
    with contextlib.suppress(EnrolmentError):
        async with _asking(token, "joined", {"secret": token.secret.hex()}, limit):
            pass


async def _joined(token: Token, body: Mapping[str, object]) -> tuple[int, bytes]:
    """Return status and text of the answer to a request to join, which is repeated while its answer is lost."""
    limit = aiohttp.ClientTimeout(connect=_CONNECTION_SECONDS, total=2 * _REQUEST_SECONDS)
    lost: EnrolmentError | None = None
    for _ in range(_ATTEMPTS):
        try:
            async with _asking(token, "join", body, limit) as answer:
                return answer.status, await _bounded(answer)
        except _AnswerLostError as error:
            lost = error
        except EnrolmentError as error:
            raise lost or error from None  # an earlier request may have arrived
    assert lost is not None, "there are attempts"
    raise lost


async def fetch_model(token: Token, place: Path) -> bool:
    """Write the federation's initial model to a file; return whether there is one. Raises EnrolmentError.

    To be called before joining, since a token is valid only once.
    """
    limit = aiohttp.ClientTimeout(connect=_CONNECTION_SECONDS, sock_read=_REQUEST_SECONDS)
    async with _asking(token, "model", {"secret": token.secret.hex()}, limit) as answer:
        if answer.status in _NO_MODEL:
            return False
        if answer.status != 200:
            raise EnrolmentError(_denial(await _bounded(answer)))
        with place.open("wb") as file:
            async for piece in answer.content.iter_any():
                file.write(piece)
    return True


@asynccontextmanager
async def _asking(
    token: Token, what: str, body: Mapping[str, object], limit: aiohttp.ClientTimeout
) -> AsyncIterator[aiohttp.ClientResponse]:
    """Yield the answer of the inviting machine, which holds the key in the token. Raises EnrolmentError without one."""
    try:
        async with (
            aiohttp.ClientSession(timeout=limit, auto_decompress=False) as session,
            session.post(
                f"https://{token.listener}/v1/{what}",
                json=body,
                ssl=joining_context(token.authority),
                allow_redirects=False,
            ) as answer,
        ):
            yield answer
    except (aiohttp.ClientError, TimeoutError) as error:
        why = f"at {token.listener}: {link_reason(error)}. "
        if not isinstance(error, _NOT_CONNECTED):
            raise _AnswerLostError(
                f"The inviting machine gave no answer {why}Run the same line again. If {token.peer} has joined and "
                f"nobody waits there any more, run there  fedpeer revoke {token.peer}  and invite it again."
            ) from None
        raise EnrolmentError(
            f"The inviting machine cannot be reached {why}"
            "Check that fedpeer invite still waits there and that no firewall blocks the port."
        ) from None


async def _bounded(answer: aiohttp.ClientResponse) -> bytes:
    text = bytearray()
    async for piece in answer.content.iter_any():
        text += piece
        if len(text) > _ANSWER_BYTES_MAX:
            raise EnrolmentError(
                "The answer is longer than any roster and federation file; check that fedpeer invite runs there."
            )
    return bytes(text)


def _denial(text: bytes) -> str:
    try:
        words = str(parse_json(text)["text"])
    except (ValueError, TypeError, KeyError):
        words = "no reason was given"
    return "Not admitted: " + "".join(letter for letter in words if letter.isprintable())[:_TEXT_MAX]


def route_to(host: str) -> str | None:
    """Return this machine's address on the route to `host`; None if that is not known. Nothing is sent."""
    try:
        family, address = looked_up(host, INVITATION_PORT, socket.SOCK_DGRAM)
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return None
