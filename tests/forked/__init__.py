"""A Python that starts at once: a server that has imported torch and fedpeer forks for each program of a test.

    subprocess.Popen([*python(), "-m", "fedpeer", "start", ...])    instead of [sys.executable, "-m", "fedpeer", ...]

The process that is started is a client: a real process, with the folder, environment, streams and namespaces that it
was given. It hands them to the server, whose fork runs the program; the client passes signals on, and ends as the
program ends. Programs are killed with their client and, on Linux, when the tests end in any way.

Importing torch takes three seconds of a core, a fork a hundredth of that. A test of what a program imports starts
`sys.executable`. Where several workers share the tests, they share one server, too (`share`).
"""

from __future__ import annotations

import atexit
import multiprocessing.spawn
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
#: Modules that programs use. The server may only import before it forks: no thread of ours runs, no tensor is touched.
PRELOADED: tuple[str, ...] = (
    "sklearn.datasets",
    "fedpeer.sims.vector.preload_autograd",
    "fedpeer.sims.simulate",
    "fedpeer.peer.runtime.process",
    "fedpeer.peer.runtime.prepared",
    "fedpeer.peer.runtime.dashboard.ask",
    "fedpeer.cli.main",
    "fedpeer.cli.peer_config",
    "fedpeer.data.tables",
    "tests.forked.commands",
)
#: Environment variable with the socket that tells where the server is that several processes share.
SHARED = "FEDPEER_TESTS_FORKED"
#: Signals to a client that kill and stop the program: a signal that the client cannot catch would leave the program
#: behind.
KILL, STOP = (getattr(signal, name, signal.SIGTERM) for name in ("SIGUSR1", "SIGUSR2"))


def python() -> list[str]:
    """Return the first words of a command that starts a Python program as `sys.executable` does."""
    if sys.platform == "win32":
        return [sys.executable]
    return [sys.executable, "-I", "-S", str(HERE / "client.py"), _server()]


def fedpeer_command(*words: str) -> list[str]:
    """Return a command line of fedpeer."""
    return [*python(), "-m", "fedpeer", *words]


def as_executable(folder: Path) -> Path:
    """Return a program in this folder that replaces `sys.executable` where our own code starts one."""
    words = python()  # before `sys.executable` is replaced
    assert os.fsdecode(multiprocessing.spawn.get_executable()) == sys.executable, "workers start as ever"
    file = folder / "python"
    file.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
    file.chmod(0o755)
    return file


def share() -> None:
    """Let all processes that this one starts use one server. It starts when one of them needs it, and ends with us."""
    if sys.platform == "win32" or SHARED in os.environ:
        return
    folder = tempfile.mkdtemp(prefix="forked-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    asked = socket.socket(socket.AF_UNIX)
    asked.bind(os.path.join(folder, "asked"))
    asked.listen(64)
    os.environ[SHARED] = os.path.join(folder, "asked")

    def answer() -> None:
        with asked:
            while True:
                line, _ = asked.accept()
                with line:
                    line.sendall(_started().encode())

    threading.Thread(target=answer, daemon=True).start()


def _server() -> str:
    """Return the path of the server's socket, once it is ready."""
    return _shared(os.environ[SHARED]) if SHARED in os.environ else _started()


@cache
def _shared(asked: str) -> str:
    with socket.socket(socket.AF_UNIX) as line, line.makefile() as answered:
        line.connect(asked)
        path = answered.read()
    assert path, "it was not started; why stands on standard error"
    return path


@cache
def _started() -> str:
    return started((str(ROOT), os.environ.get("PYTHONPATH", "")), PRELOADED, os.environ)


def started(paths: Sequence[str], preloaded: Sequence[str], environment: Mapping[str, str]) -> str:
    """Start a server that imports these modules from these paths; return the path of its socket, once it is ready."""
    path = os.path.join(tempfile.mkdtemp(prefix="forked-"), "socket")  # the server removes the folder
    server = subprocess.Popen(
        [sys.executable, "-P", str(HERE / "server.py"), path, *preloaded],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**environment, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    assert server.stdin is not None, "it was asked for"
    assert server.stdout is not None, "it was asked for"
    atexit.register(server.wait)
    atexit.register(server.stdin.close)  # runs before the one above
    with server.stdout as said:
        assert said.readline() == b"ready\n", "it says why on standard error"
    return path
