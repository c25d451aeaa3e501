"""Common parts of the pages that fedpeer serves: their headers, their files, the hosts that they answer to.

No page loads anything from elsewhere, runs a script that is not a file of its own, can be framed, or is cached.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from fedpeer.config.address import Endpoint, loopback

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # an address may contain a token
    "Server": "fedpeer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


async def hardened(_request: web.Request, response: web.StreamResponse) -> None:
    """Set the headers of every answer; a signal handler for `on_response_prepare`."""
    response.headers.update(_HEADERS)


def text_file(kind: str, text: str) -> Handler:
    """Return a handler that serves this text with the content type `kind`."""

    async def handler(_request: web.Request) -> web.StreamResponse:
        return web.Response(text=text, content_type=kind)

    return handler


def from_loopback(host: str) -> bool:
    """Return whether a Host header names this machine's loopback, with any port, since ssh may forward another.

    Otherwise a foreign page could get access by pointing its own name here (DNS rebinding).
    """
    try:
        return loopback(Endpoint.read(host, port=0).host)
    except ValueError:
        return False
