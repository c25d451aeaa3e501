"""A whole peer in a thread of its own: node, disk, port, everything of `fedpeer start` but the process.

A test speaks to it from outside, reads its status and the lines of its log, and looks inside between two of its steps.
Nothing is polled: `line` waits for a line of the log, `inside` until everything that was decided is saved and said.
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
from fedpeer.peer.runtime.buffers import BufferPool
from fedpeer.peer.runtime.limits import Limits
from fedpeer.peer.runtime.logs import LogFile, LogLine
from fedpeer.peer.runtime.prepared import Prepared
from fedpeer.peer.runtime.process import PeerProcess
from fedpeer.peer.runtime.server import Host, PeerServer
from fedpeer.peer.state.durable_state import DurableState
from fedpeer.peer.state.events import OperatorCommand
from fedpeer.peer.state.journal import snapshot_bytes
from fedpeer.peer.state.node_state import NodeState

#: Seconds after which something hangs.
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
        """For something of the peer's own loop."""

        async def patient() -> T:
            async with asyncio.timeout(PATIENCE):
                return await done

        return asyncio.run_coroutine_threadsafe(patient(), self.loop).result()

    def inside(self, do: Callable[[], T]) -> T:
        """In the peer's own thread, when all that was decided before is saved and carried out."""

        async def settled() -> T:
            await self.process._pipeline.settled()
            return do()

        return self.wait(settled())

    def on_event(self, line: LogLine) -> None:
        """A sink of its log."""
        with self.told:
            self.lines.append(line)
            self.told.notify_all()

    def line(self, what: str, since: int = 0) -> LogLine:
        """The first line of this name in the log, from the line number `since` on; waits for it."""

        def found() -> LogLine | None:
            return next((line for line in self.lines[since:] if line.what == what), None)

        with self.told:
            line = self.told.wait_for(found, PATIENCE)
            assert line is not None, f"no {what} among {[line.text for line in self.lines[since:]]}"
            return line

    def counted(self, code: str) -> int:
        """How often it has refused something by this name."""
        rows = self.inside(lambda: self.process.status.as_json()["refusals"])
        return sum(row["count"] for row in rows if row["code"] == code)

    def afresh(self) -> None:
        """The next line of each name is told at once, as if this were the first for a while."""
        self.inside(self.process._log.close)

    def durable(self, **changed: Any) -> bytes:
        """The durable state's bytes; other values may stand in for some of it."""

        def taken() -> bytes:
            durable: DurableState = self.state.durable.copy()
            for name, value in changed.items():
                setattr(durable, name, value)
            return snapshot_bytes(durable, {})

        return self.inside(taken)


@contextmanager
def whole(prepared: Prepared, also: Callable[[AsyncExitStack], Awaitable[object]] | None = None) -> Iterator[Whole]:
    """The peer, from when it listens until it has paused. `also` is entered first, on the same loop."""
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
            with contextlib.suppress(RuntimeError):  # the loop is closed: it has ended by itself
                running.loop.call_soon_threadsafe(running.process.feed, OperatorCommand("pause"))
    finally:
        listening.undo()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def _overhear(listening: pytest.MonkeyPatch, running: Whole) -> None:
    """Keep the server that it is about to make, and every line that it will write into its log file."""

    class Overheard(LogFile):
        def __call__(self, line: LogLine) -> None:
            super().__call__(line)
            running.on_event(line)

    def kept(host: Host, pool: BufferPool, limits: Limits) -> PeerServer:
        running.server = PeerServer(host, pool, limits)
        return running.server

    listening.setattr(process, "LogFile", Overheard)
    listening.setattr(process, "PeerServer", kept)
