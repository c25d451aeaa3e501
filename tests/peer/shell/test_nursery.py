"""Several processes from one: their ends are told, signals are passed on once, and none is left behind.

Forking a process that has used torch, as that of the tests has, is what the nursery must never do. So each test has a
process of its own in which nothing has happened yet.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

#: Seconds in which everything happens, on a machine that does much else.
PATIENCE = 60.0

PARENT = """
import os, signal, sys, time
from fedpeer.peer.shell.nursery import watch_over

def said(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def returns():
    return 3

def fails():
    raise RuntimeError("no such luck")

def waits():
    heard = []
    signal.signal(signal.SIGINT, lambda number, frame: heard.append("INT"))
    signal.signal(signal.SIGTERM, lambda number, frame: heard.append("TERM"))
    said("ready", os.getpid(), os.getpgid(0) == os.getpid())
    while not heard:
        signal.pause()
    said("heard", *heard)
    return 0

if __name__ == "__main__":
    kinds = {name: globals()[name.rstrip("12")] for name in sys.argv[2:]}
    code = watch_over(kinds, lambda peer, code: said("ended", peer, code), attached=sys.argv[1] == "attached")
    said("code", code)
"""


@contextmanager
def parent(*kinds: str, attached: bool = False) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", PARENT, "attached" if attached else "alone", *kinds]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def ready(process: subprocess.Popen[str], count: int) -> list[psutil.Process]:
    """The children, once so many wait for a signal."""
    assert process.stdout is not None
    found = []
    for _ in range(count):
        word, number, own_group = process.stdout.readline().split()
        assert (word, own_group) == ("ready", "True"), "Ctrl-C on a terminal would reach it twice"
        found.append(psutil.Process(int(number)))
    return found


def rest(process: subprocess.Popen[str]) -> set[str]:
    return set(process.communicate(timeout=PATIENCE)[0].splitlines())


def test_every_end_is_told_and_the_worst_is_the_end_of_all() -> None:
    with parent("waits1", "waits2") as process:
        ready(process, 2)[0].kill()
        process.send_signal(signal.SIGTERM)
        lines = rest(process)
    assert len([line for line in lines if line.startswith("ended") and line.endswith(" -9")]) == 1
    assert lines >= {"heard TERM", "code 137"}
    with parent("returns", "fails") as process:
        assert rest(process) == {"ended returns 3", "ended fails 1", "code 3"}


@pytest.mark.parametrize(("number", "word"), [(signal.SIGINT, "INT"), (signal.SIGTERM, "TERM")])
def test_a_signal_is_passed_on_once(number: signal.Signals, word: str) -> None:
    with parent("waits1", "waits2") as process:
        ready(process, 2)
        process.send_signal(number)
        assert rest(process) == {f"heard {word}", "ended waits1 0", "ended waits2 0", "code 0"}


@pytest.mark.slow
def test_children_notice_that_their_parent_was_killed() -> None:
    with parent("waits1", "waits2") as process:
        children = ready(process, 2)
        process.kill()
        _, alive = psutil.wait_procs(children, timeout=PATIENCE)
        assert not alive


def test_attached_it_stops_when_its_input_ends() -> None:
    with parent("waits1", "waits2", attached=True) as process:
        ready(process, 2)
        assert process.stdin is not None
        process.stdin.write("what comes before is nobody's\n")
        process.stdin.close()
        process.stdin = None
        assert "code 0" in rest(process)
