"""Time that a user waits: from the typed command to its first finished round, and for the help."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.rows import Row, Section

COMMAND = str(Path(sys.executable).with_name("fedpeer"))
FIRST_ROUND_TARGET, HELP_TARGET = 10.0, 0.5
#: Seconds after which a command that shows nothing counts as failed.
PATIENCE = 120.0


def measure(quick: bool) -> Section:
    """Measure second and later calls; the first call warms the file cache and compiles."""
    calls = 2 if quick else 6
    first_round = [_first_round() for _ in range(calls)][1:]
    help_page = [_help() for _ in range(calls)][1:]
    return Section(
        "Start-up",
        "By the clock, second and later calls: to the first round in the run's metrics, and to the end of the help.",
        [
            Row(name="fedpeer simulate --peers 16", unit="s", ours=median(first_round), target=FIRST_ROUND_TARGET),
            Row(name="fedpeer --help", unit="s", ours=median(help_page), target=HELP_TARGET),
        ],
    )


def _first_round() -> float:
    with tempfile.TemporaryDirectory(prefix="fedpeer-bench-") as folder:
        began = time.perf_counter()
        command = [COMMAND, "simulate", "--peers", "16", "--out", folder]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            while not any(path.stat().st_size for path in Path(folder).glob("*/metrics.jsonl")):
                late = time.perf_counter() - began > PATIENCE
                if late or process.poll() is not None:
                    process.kill()
                    raise RuntimeError(f"no round was finished: {process.stderr.read() if process.stderr else ''}")
                time.sleep(0.01)
            took = time.perf_counter() - began
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=PATIENCE)
        return took


def _help() -> float:
    began = time.perf_counter()
    subprocess.run([COMMAND, "--help"], stdout=subprocess.DEVNULL, check=True, timeout=PATIENCE)
    return time.perf_counter() - began
