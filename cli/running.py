"""One simulation: its display, Ctrl-C, and its results at the end.

The engine runs in this thread. The first Ctrl-C (or SIGTERM) asks it to stop and keep its measurements; the second one
ends the process. The run's folder is created once data and network are loaded, so that a mistake leaves none behind.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fedpeer.cli.files import out_option
from fedpeer.cli.results import print_results
from fedpeer.exit_codes import EXIT_STOPPED
from fedpeer.runs.folder import RunFolder
from fedpeer.sims.progress import progress_display
from fedpeer.sims.request import SimulationRequest

if TYPE_CHECKING:
    from fedpeer.sims.simulation import Simulation


def run_simulation(
    request: SimulationRequest, folder: Callable[[Simulation], RunFolder], *, as_json: bool, quiet: bool
) -> int:
    """Simulate, show progress and results, write the report, and return the exit code.

    `folder` makes or opens the run's folder; it is called after all checks for mistakes of the user.
    """
    console = Console(stderr=True)
    stop = threading.Event()
    if not quiet:
        console.print("loading data and network ...", style="dim", highlight=False)
    from fedpeer.sims.vector.fork_server import start_early

    start_early(request)
    from fedpeer.cli.simulate_options import OptionNames
    from fedpeer.sims.prepare import prepare_simulation  # imports torch, which takes a second
    from fedpeer.sims.simulate import run_prepared
    from fedpeer.sims.tracked import tracked

    with stopping(stop, console):
        simulation = prepare_simulation(request, words=OptionNames())
        run = folder(simulation)
        with progress_display(console, quiet) as display, tracked(simulation, run, display) as handle:
            summary = run_prepared(simulation, run, handle, stop)
    interrupted = run.status == "interrupted"
    if interrupted:
        summary["report"] = None  # a user who pressed Ctrl-C does not want to wait for it
    else:
        from fedpeer.runs.report import write_report

        write_report(run)
    if as_json:
        sys.stdout.write(json.dumps(summary, allow_nan=False) + "\n")
    else:
        _print_results(summary)
    if not interrupted:
        return 0
    elsewhere = out_option(run.path.parent)
    console.print(
        f"\nStopped; all measurements are kept. To resume, or to write a report so far:\n\n"
        f"  fedpeer simulate --resume {run.id}{elsewhere}\n  fedpeer runs report {run.id}{elsewhere}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    return EXIT_STOPPED


@contextmanager
def stopping(stop: threading.Event, console: Console) -> Iterator[None]:
    """Set `stop` at the first signal, and end the process at the second."""

    def handle(number: int, _frame: object) -> None:
        if stop.is_set():
            console.show_cursor()
            os._exit(EXIT_STOPPED)
        stop.set()

    signals = [signal.SIGINT, signal.SIGTERM]
    before = [signal.signal(each, handle) for each in signals]
    try:
        yield
    finally:
        for each, handler in zip(signals, before, strict=True):
            signal.signal(each, handler)


def _print_results(summary: dict[str, Any]) -> None:
    console = Console()
    print_results(console, summary)
    if summary.get("report"):
        console.print(f"Report: {summary['report']}", highlight=False, markup=False, soft_wrap=True)
