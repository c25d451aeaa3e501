"""The client that replaces Python is a program like any other, and no program outlives it or the tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked import KILL, ROOT, SHARED, python

PATIENCE_S = 120.0
#: A program that prints that it runs, and goes on until something ends it.
ENDLESS = "import signal; print('ready', flush=True); signal.pause()"


@pytest.mark.parametrize(
    ("code", "ends"),
    [
        ("pass", 0),
        ("raise SystemExit(7)", 7),
        ("raise SystemExit('a sentence')", 1),
        ("1 / 0", 1),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
    ],
)
def test_it_ends_as_the_program_does(code: str, ends: int) -> None:
    assert subprocess.run([*python(), "-c", code], stderr=subprocess.DEVNULL, timeout=PATIENCE_S).returncode == ends


def test_the_program_has_its_folder_environment_words_and_streams(tmp_path: Path) -> None:
    code = "import os, sys; print(os.getcwd(), os.environ['GIVEN'], sys.argv[1:], sys.stdin.read())"
    done = subprocess.run(
        [*python(), "-W", "error", "-c", code, "a", "b c"],
        cwd=tmp_path, env={**os.environ, "GIVEN": "so"}, input="said", capture_output=True, text=True,
        timeout=PATIENCE_S,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == (f"{tmp_path} so ['a', 'b c'] said\n", "")


def test_what_the_program_wants_done_at_its_end_is_done() -> None:
    code = """
import atexit, weakref
class Held: pass
held = Held()
weakref.finalize(held, print, "finalized")
atexit.register(print, "at exit")
"""
    done = subprocess.run([*python(), "-c", code], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (set(done.stdout.splitlines()), done.stderr) == ({"finalized", "at exit"}, "")


@pytest.mark.parametrize(
    ("sent", "ends"), [(signal.SIGTERM, -signal.SIGTERM), (KILL, -signal.SIGKILL), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_a_signal_ends_both(sent: signal.Signals, ends: int) -> None:
    with subprocess.Popen([*python(), "-c", ENDLESS], stdout=subprocess.PIPE) as client:
        assert client.stdout is not None, "it was asked for"
        assert client.stdout.readline() == b"ready\n"
        client.send_signal(sent)
        assert client.stdout.read() == b"", "nobody is left who could write there"
    assert client.returncode == ends


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="a process is told of its parent's end by Linux only")
def test_no_program_outlives_tests_that_are_killed() -> None:
    code = f"""
import os, signal, subprocess
import tests.forked
tests.forked.PRELOADED = ()  # what it takes seconds to import does not matter here
with subprocess.Popen([*tests.forked.python(), "-c", {ENDLESS!r}], stdout=subprocess.PIPE) as client:
    assert client.stdout.readline() == b"ready\\n"
    os.kill(os.getpid(), signal.SIGKILL)
"""
    alone = {name: value for name, value in os.environ.items() if name != SHARED}
    tests = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=alone, stderr=subprocess.PIPE, timeout=PATIENCE_S
    )
    assert (tests.returncode, tests.stderr) == (-signal.SIGKILL, b""), "standard error ended: all who had it are gone"
