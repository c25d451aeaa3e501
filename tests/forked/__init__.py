"""A Python that starts at once: a server that has imported torch and fedpeer forks for each program of a test.

    subprocess.Popen([*python(), "-m", "fedpeer", "start", ...])    instead of [sys.executable, "-m", "fedpeer", ...]

The process that is started is a client: a real process, with the folder, environment, streams and namespaces that it
was given. It hands them to the server, whose fork runs the program; the client passes signals on, and ends as the
program ends. Programs are killed with their client and, on Linux, when the tests end in any way.

Importing torch takes three seconds of a core, a fork a hundredth of that. A test of what a program imports starts
`sys.executable`.
"""

from __future__ import annotations

import atexit
import multiprocessing.spawn
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
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


@cache
def _server() -> str:
    """Start the server, once in each process that tests; return the path of its socket."""
    path = os.path.join(tempfile.mkdtemp(prefix="forked-"), "socket")
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    server = subprocess.Popen(
        [sys.executable, "-P", str(HERE / "server.py"), path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    assert server.stdin is not None, "it was asked for"
    assert server.stdout is not None, "it was asked for"
    atexit.register(server.wait)
    atexit.register(server.stdin.close)  # what is registered last comes first
    with server.stdout as said:
        assert said.readline() == b"ready\n", "it says why on standard error"
    return path
