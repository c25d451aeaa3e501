"""A float32 slice from tensor to tensor between two processes on loopback, beside other transports.

`python -m benchmarks.wire [--quick]` prints this table alone.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.measure import Lap, clocked, interleaved, times
from benchmarks.rows import Row, Section, compared
from benchmarks.transports import Fedpeer, Grpc, Job, Keys, Naive, Sockets, Transport

SIZES = {"10 MB": 2_500_000, "100 MB": 25_000_000}
#: Most time relative to the floor: the inverse of the least share of its speed.
MOVED_TARGET = {"10 MB": 2.0, "100 MB": 1.67}
MERGED_TARGET = TLS_TARGET = 1.67
GRPC_TARGET = 0.2
MEMORY_TARGET = 2.2


def measure(quick: bool) -> Section:
    """Measure pairs by wall time: 21 of 10 MB and 9 of 100 MB; quick: 7 and 5."""
    rows = []
    keys = Keys()
    for size, length in SIZES.items():
        pairs = (7, 5) if quick else (21, 9)
        run = _Bench(size, torch.randn(length), pairs[length > 10_000_000])
        rows += [
            run.row("moved, raw sockets", Fedpeer, Sockets, "moved", MOVED_TARGET[size]),
            run.row("merged, raw sockets", Fedpeer, Sockets, "merged", MERGED_TARGET),
            run.row("saved, raw sockets", Fedpeer, Sockets, "saved"),
            run.row("moved by TLS, raw ssl sockets", _tls(Fedpeer, keys), _tls(Sockets, keys), "moved", TLS_TARGET),
            run.row("moved, gRPC", Fedpeer, Grpc, "moved", GRPC_TARGET if size == "100 MB" else None),
            run.row("moved, naive aiohttp", Fedpeer, Naive, "moved"),
            *run.memory(),
        ]
    keys.close()
    return Section(
        "The wire: a float32 slice from tensor to tensor, two processes on loopback",
        "By the clock, until the receiver says that it is done, beside what the floor names: a ratio of 1.67 "
        "is 0.6 of its speed, 0.2 five times its speed. fedpeer checks in every row that all numbers are finite; in "
        "the rows merged (added to float64 as well) and saved (and written with fsync) the sockets do the same with "
        "the same functions. Raw sockets read 128 KiB at a time into a kept buffer. gRPC sends a protobuf bytes field; "
        "naive aiohttp packs, reads and unpacks bodies whole. Memory: peak above what each side held before, as a "
        "multiple of the slice; the receiver's buffer is part of it.",
        rows,
    )


def _tls(transport: Callable[[Job, int, Keys], Transport], keys: Keys) -> Callable[[Job, int], Transport]:
    return lambda job, length: transport(job, length, keys)


class _Bench:
    """All rows for one size of slices."""

    def __init__(self, size: str, value_D: Tensor, pairs: int) -> None:
        self._size, self._value_D, self._pairs = size, value_D, pairs

    def row(
        self,
        name: str,
        ours: Callable[[Job, int], Transport],
        floor: Callable[[Job, int], Transport],
        job: Job,
        target: float | None = None,
    ) -> Row:
        with ExitStack() as stack:
            transports = [make(job, len(self._value_D)) for make in (ours, floor)]
            for each in transports:
                stack.callback(each.close)
            laps = [self._lap_of(each) for each in transports]
            interleaved(laps[0], laps[1], 2)  # opens connections, and touches memory for the first time
            a, b = interleaved(laps[0], laps[1], self._pairs)
        return compared(
            f"{self._size} {name}",
            "ms",
            times(a, "sent", clock="wall", per=1e-3),
            times(b, "sent", clock="wall", per=1e-3),
            target,
        )

    def _lap_of(self, transport: Transport) -> Callable[[], Lap]:
        return lambda: {"sent": clocked(lambda: transport.send(self._value_D))}

    def memory(self) -> list[Row]:
        """Return the peak memory of the first slices, before the receiver has a kept buffer."""
        payload = 4 * len(self._value_D)
        with ExitStack() as stack:
            transport = Fedpeer("cold", len(self._value_D))
            stack.callback(transport.close)
            sides = {"receiver": transport.receiver.pid, "sender": os.getpid()}
            base = {side: _reset_peak(pid) for side, pid in sides.items()}
            for _ in range(3):
                transport.send(self._value_D)
            peak = {side: _status(pid, "VmHWM") - base[side] for side, pid in sides.items()}
        return [
            Row(
                name=f"{self._size} memory of the {side}",
                unit="x slice",
                ours=peak[side] / payload,
                target=MEMORY_TARGET,
            )
            for side in sides
        ]


def _reset_peak(pid: int) -> int:
    """Reset the peak so far; return the bytes that the process has now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # see proc(5): resets VmHWM
    return _status(pid, "VmRSS")


def _status(pid: int, field: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def main() -> None:
    from rich.console import Console

    parser = argparse.ArgumentParser(prog="python -m benchmarks.wire", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few pairs: wide intervals")
    options = parser.parse_args()
    torch.set_num_threads(1)
    Console(width=None if sys.stdout.isatty() else 120).print(measure(options.quick).table())


if __name__ == "__main__":
    main()
