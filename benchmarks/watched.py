"""`python -m benchmarks.watched [--private GIB] COMMAND ...`: run a command, and print its peak memory.

The memory of all its processes together is sampled every second; a page that several processes share counts once (PSS).
There are pages of files, which the kernel can take back, and the processes' own pages. `--private` limits the own
memory of each process (RLIMIT_DATA); pages of files that are shared with other processes are not in it, and a cache
that no process maps is in neither. Linux only.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass

from benchmarks.measure import family, memory_lines


@dataclass(frozen=True)
class Watched:
    """Exit status, seconds, most processes at once; peak bytes of all memory, of the processes' own, and of files."""

    status: int
    seconds: float
    processes: int
    peak: int
    own: int
    files: int


def watched(command: list[str], *, private: float | None = None, every_seconds: float = 1.0) -> Watched:
    """Run the command to its end; `private`: most GiB of own memory for each of its processes."""

    def limit() -> None:
        if private is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (int(private * 2**30),) * 2)

    began, seen = time.monotonic(), [(1, 0, 0, 0)]
    with subprocess.Popen(command, preexec_fn=limit) as process:
        while process.poll() is None:
            with suppress(FileNotFoundError, ProcessLookupError):  # a process ended during the sample
                seen.append(_now(process.pid))
            time.sleep(every_seconds)
    processes, peak, own, files = (max(column) for column in zip(*seen, strict=True))
    return Watched(process.returncode, time.monotonic() - began, processes, peak, own, files)


def _now(pid: int) -> tuple[int, int, int, int]:
    pids = family(pid)
    found = {"Pss:": 0, "Pss_Anon:": 0, "Pss_File:": 0}
    for each in pids:
        for line in memory_lines(each):
            words = line.split()
            if words[0] in found:
                found[words[0]] += int(words[1]) * 1024
    return len(pids), *found.values()  # type: ignore[return-value]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.watched", description=__doc__)
    parser.add_argument("--private", type=float, metavar="GIB")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    found = watched(options.command, private=options.private)
    print(
        f"{found.peak / 1e9:.2f} GB at the peak of up to {found.processes} processes: at most {found.own / 1e9:.2f} GB "
        f"of their own, {found.files / 1e9:.2f} GB of files; {found.seconds:.0f} s",
        file=sys.stderr,
    )
    sys.exit(found.status)


if __name__ == "__main__":
    main()
