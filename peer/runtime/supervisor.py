"""Supervisor of several peers on one machine: each is a process of its own, and this one only watches over them.

Where `fork` exists, the libraries are imported once, here, and shared by all: sixteen peers start in the time of a few,
and the imported libraries are in memory once. Forking is safe because nothing but importing, reading files and tracing
networks in one thread happened before: no thread of ours runs, torch has used none of its own, no lock is held. (After
torch has used its threads a forked child hangs. Linear algebra libraries stop and restart the threads that they start
on import themselves.) Elsewhere each child starts from nothing.

A child that ended because of a problem that may pass (`EXIT_TEMPORARY`) is started again, after growing pauses; so is a
child that then cannot be started.

No child outlives this process: each holds the reading end of a pipe on which nothing is ever written, and pauses when
the pipe ends, however this process ended. On a terminal Ctrl-C reaches this process alone, which passes it on.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection, wait
from typing import Any

from fedpeer.exit_codes import EXIT_TEMPORARY
from fedpeer.peer.runtime.freed_memory import give_back_freed_memory, keep_one_heap
from fedpeer.peer.runtime.transient import pauses
from fedpeer.peer.runtime.turns import TrainingTurn, TrainingTurns

#: Seconds before a child is started again, doubled each time up to the second number; a start costs seconds of a core.
RESTART_SECONDS, RESTART_SECONDS_MAX = 5.0, 120.0
#: Added to n for the exit code of a process that was ended by signal n, as in shells.
_SIGNALLED = 128

Start = Callable[[AbstractContextManager[None]], int]


def watch_over(
    starts: Mapping[str, Start],
    ended: Callable[[str, int], None],
    *,
    places: int,
    attached: bool = False,
    restart_seconds: float = RESTART_SECONDS,
) -> int:
    """Start these peers, wait until all have ended for good, and return the largest of their exit codes.

    Args:
        starts: by id the function that each peer's process runs; it gets the peer's turn at training, and returns the
            exit code.
        ended: called at each end with the id and the exit code, or minus the number of the signal.
        places: number of peers that train at once.
        attached: whether to stop them when standard input ends.
        restart_seconds: pause before a child that ended with `EXIT_TEMPORARY` is first started again.
    """
    gc.collect()
    give_back_freed_memory()
    gc.freeze()  # garbage collection would copy the pages that children share
    context: Any = multiprocessing.get_context("fork" if hasattr(os, "fork") else "spawn")
    reader, writer = context.Pipe(duplex=False)
    children: dict[str, Any] = {}
    turns = TrainingTurns(places)

    def begin(peer: str) -> None:
        with turns.seat() as seat:
            children[peer] = context.Process(target=_live, args=(starts[peer], reader, writer, seat), name=peer)
            children[peer].start()

    later = {peer: pauses(restart_seconds, RESTART_SECONDS_MAX) for peer in starts}
    due: dict[str, float] = {}  # peers to start again, and when
    codes: dict[str, int] = {}
    with reader, writer, _signals() as received:  # the children notice the end of it, however it comes
        for peer in starts:
            begin(peer)
        if attached:  # after the handlers are set: input that has already ended would otherwise end this process only
            stop_after(end_of_input)
        while len(codes) < len(starts):
            now = time.monotonic()
            for peer in [peer for peer, at in due.items() if at <= now]:
                del due[peer]
                try:
                    begin(peer)
                except OSError:  # the machine lacks what a process needs, as it often did when this one ended
                    ended(peer, EXIT_TEMPORARY)
                    due[peer] = now + next(later[peer])
            living = {children[peer].sentinel: peer for peer in starts if peer not in codes and peer not in due}
            seats, patience = turns.connections, [turns.give(now), *(at - now for at in due.values())]
            waits = min((seconds for seconds in patience if seconds is not None), default=None)
            for ready in wait([received, *seats, *living], waits):
                if ready in seats:
                    turns.heed(ready, time.monotonic())
                    continue
                if ready is received:
                    for number in received.recv(64):
                        _pass_on(number, [children[peer].pid for peer in living.values()])
                    codes |= dict.fromkeys(due, 0)  # they have ended and are not to be started again
                    due.clear()
                    later.clear()
                    continue
                peer = living[ready]
                children[peer].join()
                code = children[peer].exitcode
                ended(peer, code)
                if code == EXIT_TEMPORARY and peer in later:
                    due[peer] = time.monotonic() + next(later[peer])
                else:
                    codes[peer] = code
    return max(code if code >= 0 else _SIGNALLED - code for code in codes.values())


def stop_after(over: Callable[[], object]) -> None:
    """Send SIGTERM to this process as soon as `over` returns or finds its pipe broken."""

    def follow() -> None:
        with contextlib.suppress(EOFError, OSError):
            over()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow, name="fedpeer-lifeline", daemon=True).start()


def end_of_input() -> None:
    """Wait until standard input ends; anything before its end is ignored."""
    while os.read(0, 1024):
        pass


def _live(start: Start, reader: Connection, writer: Connection, seat: Connection) -> None:
    """Run one child, without the signal handling that it inherits from its parent."""
    keep_one_heap()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    writer.close()
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)
    stop_after(reader.recv_bytes)
    sys.exit(start(TrainingTurn(seat)))


@contextlib.contextmanager
def _signals() -> Iterator[socket.socket]:
    """Yield a socket that receives the numbers of SIGINT and SIGTERM."""
    received, heard_of = socket.socketpair()
    heard_of.setblocking(False)
    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(each, lambda number, frame: None) for each in signals]
    waking = signal.set_wakeup_fd(heard_of.fileno())
    try:
        yield received
    finally:
        signal.set_wakeup_fd(waking)
        for each, handler in zip(signals, before, strict=True):
            signal.signal(each, handler)
        received.close()
        heard_of.close()


def _pass_on(number: int, processes: list[int]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)
