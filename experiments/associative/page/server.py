"""The HTTP server of the demonstration's page and its questions, on this machine's loopback only.

It changes nothing and has no secrets, as it shows patterns made for a demonstration, so it needs no token. It shares
its look and its guard with the dashboard: the response headers, and the check that the Host header names this machine.
A question is a bounded POST of JSON; an invalid one gets 4xx, a name and a sentence.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

from aiohttp import web

from fedpeer.peer.runtime import dashboard
from fedpeer.peer.runtime.dashboard.access import DashboardError
from fedpeer.peer.runtime.dashboard.pages import Handler, from_loopback, hardened, text_file
from fedpeer.peer.runtime.visitors import Visitors

#: Returns the JSON answer to a question's body; raises `QuestionError`.
Answer = Callable[[bytes], Mapping[str, Any]]

HOST = "127.0.0.1"
#: Most bytes of a question, which has a few names and some hundred cells.
QUESTION_BYTES_MAX = 4096
#: Seconds that open requests get at shutdown, and that an idle connection is kept.
SHUTDOWN_S, IDLE_S = 0.1, 15.0

_JSON = "application/json"
#: URL path -> file and content type: the page's own files, and those shared with the dashboard.
_OWN = {
    "/": ("page.html", "text/html"),
    "/play.css": ("play.css", "text/css"),
    "/play.js": ("play.js", "text/javascript"),
}
_SHARED = {"/page.css": ("page.css", "text/css"), "/draw.js": ("draw.js", "text/javascript")}


class QuestionError(Exception):
    """An invalid question: a name for programs, a sentence for people."""

    def __init__(self, name: str, sentence: str) -> None:
        super().__init__(sentence)
        self.name = name


def bind_page(port: int) -> socket.socket:
    """Return a listening socket, so that a port in use is reported before anything is trained; port 0: a free one.

    Raises:
        DashboardError: the port cannot be used.
    """
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        raise DashboardError(
            f"--port: {HOST}:{port} cannot be listened on ({error.strerror or error}); "
            "choose another port, or leave --port out for a free one."
        ) from None


def address(listening: socket.socket) -> str:
    """Return the URL of the page."""
    return f"http://{HOST}:{listening.getsockname()[1]}/"


def application(facts: Mapping[str, Any], answer: Answer) -> web.Application:
    """Return the web application: the page, its initial data `told`, and answers to its questions."""
    app = web.Application(client_max_size=QUESTION_BYTES_MAX, middlewares=[_guard])
    app.on_response_prepare.append(hardened)

    async def send_facts(_request: web.Request) -> web.StreamResponse:
        return web.json_response(facts)

    async def ask(request: web.Request) -> web.StreamResponse:
        if request.content_type != _JSON:
            return _refused(415, "not_json", f"Send the question as {_JSON}.")
        try:
            return web.json_response(answer(await request.read()))
        except QuestionError as error:
            return _refused(400, error.name, str(error))
        except web.HTTPRequestEntityTooLarge:
            return _refused(413, "too_long", f"A question has at most {QUESTION_BYTES_MAX} bytes.")

    app.add_routes([web.get("/demo.json", send_facts), web.post("/ask", ask)])
    for served, package in ((_OWN, __package__), (_SHARED, dashboard.__name__)):
        for path, (name, kind) in served.items():
            app.add_routes([web.get(path, text_file(kind, (files(package) / name).read_text("utf-8")))])
    return app


async def serve_page(
    facts: Mapping[str, Any], answer: Answer, listening: socket.socket, ready: Callable[[], None]
) -> None:
    """Serve until the first SIGINT or SIGTERM; `ready` is called once the server answers."""
    visitors = Visitors()
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        loop.add_signal_handler(number, stop.set)
    try:
        page = application(facts, answer)
        await visitors.start(page, listening, None, keepalive_timeout=IDLE_S, shutdown_timeout=SHUTDOWN_S)
        ready()
        await stop.wait()
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)  # this restores Python's default, not the former handler
            if handler is not None:
                signal.signal(number, handler)
        await visitors.stop()


@web.middleware
async def _guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    if not from_loopback(request.headers.get("Host", "")):
        raise web.HTTPMisdirectedRequest(text="This page answers to localhost and 127.0.0.1 only.\n")
    return await handler(request)


def _refused(status: int, name: str, sentence: str) -> web.Response:
    return web.json_response({"error": name, "says": sentence}, status=status)
