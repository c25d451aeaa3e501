"""Several processes from one: their ends are reported, signals are passed on once, and none is left behind.

The supervisor must never fork a process that has used torch, and the tests' own process has. So each test has a process
of its own in which nothing has happened yet.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

#: Seconds in which everything happens, on a busy machine.
PATIENCE = 60.0

PARENT = """
import ctypes, errno, fcntl, functools, os, signal, socket, sys, threading, time
from fedpeer.peer.runtime.supervisor import watch_over

def said(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def returns(turn):
    return 3

def fails(turn):
    raise RuntimeError("no such luck")

def waits(turn):
    received, wakes = socket.socketpair()
    wakes.setblocking(False)
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda number, frame: None)
    signal.set_wakeup_fd(wakes.fileno())
    said("ready", os.getpid(), os.getpgid(0) == os.getpid())
    # A signal that comes before we wait is not lost, as it would be with signal.pause().
    said("heard", *(signal.Signals(number).name.removeprefix("SIG") for number in received.recv(64)))
    return 0

def later(turn):
    if os.path.exists(sys.argv[2]):
        said("there")
        return 0
    open(sys.argv[2], "x").close()
    return 75

def never(turn):
    return 75

def trains(turn):
    os.makedirs(f"{sys.argv[2]}s/{os.getpid()}")
    while len(os.listdir(f"{sys.argv[2]}s")) < 2:  # both are there
        time.sleep(0.001)
    for _ in range(100):
        with turn, open(sys.argv[2], "a+") as found:
            fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
            sum(range(50_000))
    return 0

def allocates(turn):
    library, found = ctypes.CDLL(None), []
    library.malloc.restype = ctypes.c_void_p
    thread = threading.Thread(target=lambda: found.append(library.malloc(64_000)))
    thread.start()
    thread.join()
    heaps = [line.split()[0].split("-") for line in open("/proc/self/maps") if "[heap]" in line]
    said("in the heap", any(int(low, 16) <= found[0] < int(high, 16) for low, high in heaps))
    return 0

def scarce(fork, forks=iter(range(9))):
    if next(forks) == int(sys.argv[4]):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")
    return fork()

if __name__ == "__main__":
    os.fork = functools.partial(scarce, os.fork)
    kinds = {name: globals()[name.rstrip("12")] for name in sys.argv[5:]}
    code = watch_over(
        kinds,
        lambda peer, code: said("ended", peer, code),
        attached=sys.argv[1] == "attached",
        places=1,
        restart_seconds=float(sys.argv[3]),
    )
    said("code", code)
"""


@contextmanager
def parent(
    *kinds: str, attached: bool = False, marker: str = "", restart_seconds: float = 0.01, fails: int = -1
) -> Iterator[subprocess.Popen[str]]:
    """Run a supervisor; the fork number `fails` finds too little memory."""
    how = "attached" if attached else "alone"
    command = [sys.executable, "-c", PARENT, how, marker, str(restart_seconds), str(fails), *kinds]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def ready(process: subprocess.Popen[str], count: int) -> list[psutil.Process]:
    """Return the children, once so many wait for a signal."""
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


def test_peers_train_in_turns(tmp_path: Path) -> None:
    """Each locks a file within its turn, and fails if another one has it."""
    with parent("trains1", "trains2", marker=str(tmp_path / "lock")) as process:
        assert rest(process) == {"ended trains1 0", "ended trains2 0", "code 0"}


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and glibc")
def test_threads_of_a_peer_take_memory_from_one_heap() -> None:
    with parent("allocates") as process:
        assert rest(process) == {"in the heap True", "ended allocates 0", "code 0"}


def test_who_ended_for_what_may_pass_is_started_again(tmp_path: Path) -> None:
    with parent("later", "waits", marker=str(tmp_path / "there")) as process:
        assert process.stdout is not None
        lines = {process.stdout.readline().strip() for _ in range(4)}
        assert {"ended later 75", "there", "ended later 0"} <= lines, "while the other one goes on"
        process.send_signal(signal.SIGTERM)
        assert rest(process) == {"heard TERM", "ended waits 0", "code 0"}


def test_who_cannot_be_started_again_is_tried_later(tmp_path: Path) -> None:
    """Too little memory for another process used to end all peers, though it is a reason to start again later."""
    with parent("later", "waits", marker=str(tmp_path / "there"), fails=2) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().strip() for _ in range(5)]
        assert lines.count("ended later 75") == 2
        assert {"there", "ended later 0"} <= set(lines)
        process.send_signal(signal.SIGTERM)
        assert rest(process) == {"heard TERM", "ended waits 0", "code 0"}


def test_nobody_is_left_behind_if_not_all_could_be_started() -> None:
    """The first child used to wait forever for its parent's end, and the parent for the child's."""
    with parent("waits1", "waits2", fails=1) as process:
        lines = rest(process)
        assert not [line for line in lines if line.startswith("code")]
        assert process.returncode == 1


def test_who_is_to_be_started_again_is_not_when_all_are_told_to_stop() -> None:
    with parent("never", restart_seconds=3600.0) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ended never 75"
        process.send_signal(signal.SIGTERM)
        assert rest(process) == {"code 0"}


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
