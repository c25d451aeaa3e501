"""Posts: a frame as the body of an HTTP request, on a connection of its own, for peers without a shared one."""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Callable

from aiohttp import ClientError, ClientSession, Payload, ServerDisconnectedError, StreamReader
from aiohttp.abc import AbstractStreamWriter

from fedpeer.peer.runtime.limits import CHUNK_BYTES, Limits, pace
from fedpeer.peer.runtime.outcomes import DeliveryReceipt, LinkDown, Outcome
from fedpeer.peer.runtime.reasons import link_reason
from fedpeer.peer.runtime.server import CONTENT_TYPE, ROUTE
from fedpeer.peer.wire import codec

#: Bytes that the kernel may still buffer when a body seems to have left: as much as it allows on a slow link.
_KERNEL_BYTES = 1 << 20


def slack_s(limits: Limits, size: int) -> float:
    """Return the seconds for an answer after so many bytes seem to have left."""
    return limits.answer_s + min(size, _KERNEL_BYTES) / limits.floor_bytes_per_s


class Frame(Payload):
    """A frame as an aiohttp request body: written in chunks, without a copy of the whole; `leaves` once it is sent."""

    def __init__(self, head: bytes, tail: memoryview) -> None:
        super().__init__(head, content_type=CONTENT_TYPE)
        self.head, self.tail, self.leaves = head, tail, False
        self.moved: Callable[[int], None] = lambda count: None

    @property
    def size(self) -> int:
        return len(self.head) + len(self.tail)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        raise TypeError("a frame is not text")

    async def write(self, writer: AbstractStreamWriter) -> None:
        self.leaves = True
        await writer.write(self.head)
        for start in range(0, len(self.tail), CHUNK_BYTES):
            chunk = self.tail[start : start + CHUNK_BYTES]
            await writer.write(chunk)
            self.moved(len(chunk))


class Posts:
    """Posts frames over the connections of a session."""

    def __init__(self, session: ClientSession, limits: Limits) -> None:
        self._session, self._limits = session, limits

    async def post(self, tls: ssl.SSLContext | None, address: str, frame: Frame) -> Outcome:
        """Post a frame to the peer at this URL, and wait for the answer."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        slack = slack_s(self._limits, frame.size)
        try:
            async with (
                pace(self._limits, slack) as frame.moved,
                self._session.post(f"{address}{ROUTE}", data=frame, ssl=tls or True, allow_redirects=False) as answer,
            ):
                if answer.status == 204:
                    return DeliveryReceipt(frame.size, loop.time() - began)
                answered = codec.decode_answer(await _at_most(answer.content, codec.ANSWER_BYTES_MAX))
                return answered or LinkDown(f"it answered {answer.status}, which no peer does")
        except TimeoutError:
            return LinkDown("it did not answer in time")
        except ServerDisconnectedError:
            return LinkDown("it closed the connection without an answer; its roster may not have this peer yet")
        except (ClientError, OSError, ValueError) as error:
            return LinkDown(link_reason(error), refused=getattr(error, "errno", None) == errno.ECONNREFUSED)


async def _at_most(content: StreamReader, most: int) -> bytes:
    """Return the body of an answer, up to `most` bytes of it."""
    body = b""
    while len(body) < most and (chunk := await content.read(most - len(body))):
        body += chunk
    return body
