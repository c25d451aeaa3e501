"""A complete peer in its own thread: node, disk, port, everything of `fedpeer start` except the process.

A test sends to it over the network, reads its status and the lines of its log, and inspects its state between two of
its steps. Nothing is polled: `line` waits for a line of the log, and `inside` waits until all earlier decisions are
saved and carried out.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

from fedpeer.peer.runtime import process
from fedpeer.peer.runtime.admission import Host
from fedpeer.peer.runtime.buffers import BufferPool
from fedpeer.peer.runtime.limits import Limits
from fedpeer.peer.runtime.logs import LogFile, LogLine
from fedpeer.peer.runtime.prepared import Prepared
from fedpeer.peer.runtime.process import PeerProcess
from fedpeer.peer.runtime.server import PeerServer
from fedpeer.peer.state.durable_state import DurableState
from fedpeer.peer.state.events import OperatorCommand
from fedpeer.peer.state.journal import snapshot_bytes
from fedpeer.peer.state.node_state import NodeState

#: Seconds after which something counts as hanging.
PATIENCE = 20.0
T = TypeVar("T")


@dataclass
class Whole:
    """One running peer, and its server once it listens."""

    process: PeerProcess
    loop: asyncio.AbstractEventLoop
    server: PeerServer = field(init=False)
    lines: list[LogLine] = field(default_factory=list)
    told: threading.Condition = field(default_factory=threading.Condition)

    @property
    def state(self) -> NodeState:
        return self.process._node.state

    def wait(self, done: Awaitable[T]) -> T:
        """Wait for something in the peer's own loop and return its result."""

        async def patient() -> T:
            async with asyncio.timeout(PATIENCE):
                return await done

        return asyncio.run_coroutine_threadsafe(patient(), self.loop).result()

    def inside(self, do: Callable[[], T]) -> T:
        """Call `do` in the peer's own thread, once all earlier decisions are saved and carried out."""

        async def settled() -> T:
            await self.process._pipeline.settled()
            return do()

        return self.wait(settled())

    def on_event(self, line: LogLine) -> None:
        """Record a line, as a sink of the peer's log."""
        with self.told:
            self.lines.append(line)
            self.told.notify_all()

    def line(self, what: str, since: int = 0) -> LogLine:
        """Wait for the first log line of this name, from line number `since` on, and return it."""

        def found() -> LogLine | None:
            return next((line for line in self.lines[since:] if line.what == what), None)

        with self.told:
            line = self.told.wait_for(found, PATIENCE)
            assert line is not None, f"no {what} among {[line.text for line in self.lines[since:]]}"
            return line

    def counted(self, code: str) -> int:
        """Return how many rejections with this code the peer has counted."""
        rows = self.inside(lambda: self.process.status.as_json()["refusals"])
        return sum(row["count"] for row in rows if row["code"] == code)

    def afresh(self) -> None:
        """Let the log write the next line of each name at once, as after a pause without such lines."""
        self.inside(self.process._log.close)

    def durable(self, **changed: Any) -> bytes:
        """Return the durable state's bytes, with the values in `changed` in place of its own."""

        def taken() -> bytes:
            durable: DurableState = self.state.durable.copy()
            for name, value in changed.items():
                setattr(durable, name, value)
            return snapshot_bytes(durable, {})

        return self.inside(taken)


@contextmanager
def whole(prepared: Prepared, also: Callable[[AsyncExitStack], Awaitable[object]] | None = None) -> Iterator[Whole]:
    """Run the peer; yield it once it listens, and pause it at the end. `also` is entered first, on the same loop."""
    made = queue.SimpleQueue[Whole]()
    listening = pytest.MonkeyPatch()

    async def live() -> None:
        async with AsyncExitStack() as stack:
            if also is not None:
                await also(stack)
            running = Whole(PeerProcess(prepared, quiet=True), asyncio.get_running_loop())
            _overhear(listening, running)
            made.put(running)
            await running.process.run()

    thread = threading.Thread(target=lambda: asyncio.run(live()), name=prepared.file.id)
    thread.start()
    try:
        running = made.get(timeout=PATIENCE)
        try:
            running.line("started")
            listening.undo()
            yield running
        finally:
            with contextlib.suppress(RuntimeError):  # a closed loop means that the peer has ended by itself
                running.loop.call_soon_threadsafe(running.process.feed, OperatorCommand("pause"))
    finally:
        listening.undo()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def _overhear(listening: pytest.MonkeyPatch, running: Whole) -> None:
    """Record the server that the peer is about to make, and every line that it writes into its log file."""

    class Overheard(LogFile):
        def __call__(self, line: LogLine) -> None:
            super().__call__(line)
            running.on_event(line)

    def kept(host: Host, pool: BufferPool, limits: Limits) -> PeerServer:
        running.server = PeerServer(host, pool, limits)
        return running.server

    listening.setattr(process, "LogFile", Overheard)
    listening.setattr(process, "PeerServer", kept)
