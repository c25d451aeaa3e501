"""A reader's terminal: it finds fedpeer and Python by their names, and ports that nobody uses."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import socket
from collections.abc import Sequence

from tests.forked import fedpeer_command, python

from .pages import ROOT


def in_shell(words: str) -> str:
    """Return a typed command for bash, with the path of the program that it begins with."""
    programs = {"fedpeer": fedpeer_command(), "python": python()}
    return re.sub(r"^(fedpeer|python)\b", lambda found: shlex.join(programs[found[1]]), words)


def environment() -> dict[str, str]:
    """Return the environment of a reader's terminal of 80 columns."""
    threads = {"OMP_NUM_THREADS": "1", "COLUMNS": "80", "PYTHONPATH": str(ROOT)}
    return {**{k: v for k, v in os.environ.items() if k != "FEDPEER_RUNS"}, **threads}


def free_ports(offsets: Sequence[int]) -> int:
    """Return the first of consecutive free ports; the ports a hundred higher are free as well."""
    for base in range(21400, 29400, 200):
        with contextlib.ExitStack() as held:
            try:
                for port in (base + each + board for each in offsets for board in (0, 100)):
                    held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return base
    raise AssertionError("no ports are free")
