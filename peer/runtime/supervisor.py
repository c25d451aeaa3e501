"""Several peers of one machine from one command: each is a process of its own, and this one only watches over them.

Where there is `fork`, the libraries are imported once, here, and shared by all: sixteen peers start in the time of a
few, and what they imported is in memory once. Forking is safe because nothing but importing and reading files happened
before: no thread of ours runs, no tensor was touched, no lock is held. (After torch has used its threads a forked child
hangs; those that linear algebra libraries start when they are imported are taken down and made anew by the libraries
themselves.) Elsewhere each child starts from nothing.

A child that ended for want of something that may come (`EXIT_TEMPORARY`) is started again, after growing pauses.

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
from multiprocessing.connection import Connection, wait
from typing import Any

from fedpeer.peer.runtime.transient import EXIT_TEMPORARY, pauses

#: Seconds before a child is started again, doubled each time up to the second number: a start costs seconds of a core.
RESTART_SECONDS, RESTART_SECONDS_MAX = 5.0, 120.0
#: What a process that was ended by signal n is said to have returned, as shells have it.
_SIGNALLED = 128

Start = Callable[[], int]


def watch_over(
    starts: Mapping[str, Start],
    ended: Callable[[str, int], None],
    *,
    attached: bool = False,
    restart_seconds: float = RESTART_SECONDS,
) -> int:
    """Start these peers and wait until the last one has ended for good; the largest of their exit codes.

    Args:
        starts: what each peer's process does, by its id; the result is its exit code.
        ended: told each end: the id and the exit code, or minus the number of the signal.
        restart_seconds: before a child that ended with `EXIT_TEMPORARY` is started again the first time.
        attached: stop them when standard input ends.
    """
    gc.collect()
    gc.freeze()  # collecting would copy the pages that children share
    context: Any = multiprocessing.get_context("fork" if hasattr(os, "fork") else "spawn")
    reader, writer = context.Pipe(duplex=False)
    children: dict[str, Any] = {}

    def begin(peer: str) -> None:
        children[peer] = context.Process(target=_live, args=(starts[peer], reader, writer), name=peer)
        children[peer].start()

    for peer in starts:
        begin(peer)
    later = {peer: pauses(restart_seconds, RESTART_SECONDS_MAX) for peer in starts}
    due: dict[str, float] = {}  # who is to be started again, and when
    codes: dict[str, int] = {}
    with _signals() as received:
        if attached:  # not before signals are heard: input that ended already would end this process only
            stop_after(end_of_input)
        while len(codes) < len(starts):
            now = time.monotonic()
            for peer in [peer for peer, at in due.items() if at <= now]:
                del due[peer]
                begin(peer)
            living = {children[peer].sentinel: peer for peer in starts if peer not in codes and peer not in due}
            for ready in wait([received, *living], min(due.values()) - now if due else None):
                if ready is received:
                    for number in received.recv(64):
                        _pass_on(number, [children[peer].pid for peer in living.values()])
                    codes |= dict.fromkeys(due, 0)  # they are not there, and are not to come
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
    reader.close()
    writer.close()
    return max(code if code >= 0 else _SIGNALLED - code for code in codes.values())


def stop_after(over: Callable[[], object]) -> None:
    """Let this process be told to pause as soon as this returns, or finds its pipe broken."""

    def follow() -> None:
        with contextlib.suppress(EOFError, OSError):
            over()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow, name="fedpeer-lifeline", daemon=True).start()


def end_of_input() -> None:
    """Wait until standard input ends; what comes before that is nobody's."""
    while os.read(0, 1024):
        pass


def _live(start: Start, reader: Connection, writer: Connection) -> None:
    """One child. What hears signals for its parent is not its own."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    writer.close()
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)
    stop_after(reader.recv_bytes)
    sys.exit(start())


@contextlib.contextmanager
def _signals() -> Iterator[socket.socket]:
    """A socket on which the numbers of SIGINT and SIGTERM arrive."""
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
