"""aiohttp's handler of one connection, of a peer or visitor: bytes that are not HTTP are freed with the connection."""

from __future__ import annotations

import logging

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

#: A log that is not enabled for any level that aiohttp uses. It replaces aiohttp's log of what strangers do: a peer's
#: host counts rejections and logs them with limits.
SILENT = logging.Logger("fedpeer.http", logging.CRITICAL)


class HttpConnection(web.RequestHandler):
    """Handles the requests of one connection."""

    __slots__ = ()

    def data_received(self, data: bytes) -> None:
        """Let aiohttp parse these bytes; free them if they are not HTTP.

        The error's traceback holds aiohttp's frame, which holds the bytes and the error: a megabyte for each such
        connection, until the next search for garbage among all objects, which is rare in a process with many.
        """
        super().data_received(data)
        for message, _ in self._messages:
            error = getattr(message, "exc", None)
            if isinstance(error, HttpProcessingError):
                error.__traceback__ = None

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Answer what is not HTTP without a line in the log, which strangers could fill; log errors of ours."""
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        answer = web.Response(status=status)
        answer.force_close()
        return answer
