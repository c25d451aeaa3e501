"""`python -m benchmarks.run [--only NAME ...] [--quick]`: measure, print each row beside its floor, write RESULTS.md.

A quick run (`--quick`: few pairs) only prints. `--only` leaves the other sections of the file as they are.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

NAMES = (
    "common_job",
    "common_peers",
    "autograd",
    "single_sample",
    "served",
    "growth",
    "startup",
    "wire",
    "processes",
    "peer_memory",
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--only", choices=NAMES, action="append", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--quick", action="store_true", help="few pairs: wide intervals")
    options = parser.parse_args()
    import torch
    from rich.console import Console

    from benchmarks.rows import write

    torch.set_num_threads(1)  # this process leads the workers; floors that run in it have one thread, like a worker
    names, sections = options.only or NAMES, []
    for name in names:
        sections.append(importlib.import_module(f"benchmarks.{name}").measure(options.quick))
        Console(width=None if sys.stdout.isatty() else 120).print(sections[-1].table(), "")
        if not options.quick:
            write(Path(__file__).with_name("RESULTS.md"), sections, whole=len(sections) == len(NAMES))


if __name__ == "__main__":
    main()
