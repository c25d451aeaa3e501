"""Clocks, interleaved pairs, ratios with an interval, and memory: the measurements of all benchmarks.

Two programs that do the same work are both kept alive and take turns (A B B A A B ...), so that other work on the
machine affects both equally. The compared figure is the CPU seconds of all processes of a program, which hardly depend
on other work. Linux only.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

import numpy as np
from numpy.typing import NDArray


def cpu_seconds(pids: Sequence[int]) -> float:
    """Return user and system time of this process and of `pids`, over all threads, in nanosecond steps."""
    # A process's CPU clock is the number that clock_getcpuclockid(3) gives: ~pid in the upper bits, 2 in the lower.
    return time.process_time() + sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)


@dataclass(frozen=True)
class Spent:
    """Time of a piece of work, in seconds."""

    cpu: float
    wall: float

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.cpu + other.cpu, self.wall + other.wall)

    def __sub__(self, part: Spent) -> Spent:
        return Spent(self.cpu - part.cpu, self.wall - part.wall)


def clocked(work: Callable[[], object], pids: Sequence[int] = ()) -> Spent:
    """Do the work, and return its time in this process and in `pids`."""
    cpu, wall = cpu_seconds(pids), time.perf_counter()
    work()
    return Spent(cpu_seconds(pids) - cpu, time.perf_counter() - wall)


#: Phase ("round", "training", ...) -> its time.
Lap = dict[str, Spent]


def interleaved(a: Callable[[], Lap], b: Callable[[], Lap], pairs: int) -> tuple[list[Lap], list[Lap]]:
    """Return laps of both programs, run in the order A B, B A, A B, ..."""
    laps_a: list[Lap] = []
    laps_b: list[Lap] = []
    for pair in range(pairs):
        for work, laps in ((a, laps_a), (b, laps_b))[:: 1 if pair % 2 == 0 else -1]:
            laps.append(work())
    return laps_a, laps_b


def times(laps: Sequence[Lap], phase: str, *, clock: Literal["cpu", "wall"] = "cpu", per: float = 1.0) -> list[float]:
    """Return the seconds of one phase in each lap, divided by `per`."""
    return [getattr(lap[phase], clock) / per for lap in laps]


@dataclass(frozen=True)
class Ratio:
    """A ratio of medians and its 95 % interval."""

    middle: float
    low: float
    high: float


#: Enough for 50 resamples beyond each end of a 95 % interval.
_RESAMPLES = 2000


def ratio_of_medians(ours: Sequence[float], floor: Sequence[float]) -> Ratio:
    """Return median(ours) / median(floor), with an interval by resampling pairs (percentile bootstrap, Efron 1979)."""
    pairs: NDArray[np.float64] = np.array([ours, floor])
    chosen = np.random.default_rng(0).integers(len(ours), size=(_RESAMPLES, len(ours)))
    top, bottom = np.median(pairs[:, chosen], axis=2)
    low, high = np.quantile(top / bottom, (0.025, 0.975))
    return Ratio(median(ours) / median(floor), float(low), float(high))


def family(pid: int) -> list[int]:
    """Return the process and all its descendants."""
    children: list[int] = []
    with suppress(FileNotFoundError, ProcessLookupError):  # it has ended in the meantime
        for task in Path(f"/proc/{pid}/task").iterdir():
            children += map(int, (task / "children").read_text().split())
    return [pid, *(each for child in children for each in family(child))]


def proportional_bytes() -> int:
    """Return the memory of this process and its descendants (PSS): a page that several share counts once in the sum."""
    total = 0
    for pid in family(os.getpid()):
        total += sum(int(line.split()[1]) for line in memory_lines(pid) if line.startswith("Pss:"))
    return total * 1024


def memory_lines(pid: int) -> list[str]:
    """Return the kernel's lines on a process's memory; no lines if it has ended in the meantime."""
    try:
        return Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return []


@contextmanager
def peak_memory(every_seconds: float = 0.1) -> Iterator[Callable[[], int]]:
    """Sample `proportional_bytes`; the function returns the largest. Costs time: do not clock inside this context."""
    seen, over = [proportional_bytes()], threading.Event()

    def watch() -> None:
        while not over.wait(every_seconds):
            with suppress(FileNotFoundError, ProcessLookupError):  # a process ended during the sample
                seen.append(proportional_bytes())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield lambda: max(seen)
    finally:
        over.set()
        thread.join()


def memory_parts(folder: str = "work-") -> dict[str, int]:
    """Return the memory (PSS, bytes) of this process and its descendants by part, in all processes together.

    Parts are "leader", "others", and "file NAME" for each file that they map from a folder whose name begins with
    `folder`.
    """
    found = {"leader": 0, "others": 0}
    for pid in family(os.getpid()):
        part = who = "leader" if pid == os.getpid() else "others"
        for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
            words = line.split()
            if words[0] == "Pss:":
                found[part] = found.get(part, 0) + int(words[1]) * 1024
            elif not words[0].endswith(":"):  # the head of a mapping: addresses, rights, offset, device, inode, path
                path = Path(words[5]) if len(words) > 5 else Path()
                part = f"file {path.name}" if path.parent.name.startswith(folder) else who
    return found
