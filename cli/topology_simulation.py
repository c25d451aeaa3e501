"""`fedpeer topology simulate` and `sweep`: averaging among up to ten million peers, compared with theory.

`simulate` runs one large-scale simulation; `sweep` runs many, from a hundred peers to a million, and writes a page with
pictures. The table goes to standard output, progress to standard error. The first Ctrl-C ends the exchanges and shows
the result so far.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpeer.exit_codes import EXIT_STOPPED

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console
    from rich.table import Table

    from fedpeer.experiments.scalar_gossip.simulation import ScalarGossipOutcome


class _Protocol(StrEnum):
    """Averaging protocol of a large-scale simulation."""

    PUSH_SUM = "push-sum"
    PUSH_PULL = "push-pull"


def topology_simulate_command(
    graph: Annotated[str, typer.Option(metavar="NAME", help="A graph, such as ring or k-regular:4.")] = "k-regular:4",
    peers: Annotated[int, typer.Option(metavar="N", help="Number of peers, up to ten million.")] = 100_000,
    protocol: Annotated[_Protocol, typer.Option(help="Averaging protocol.")] = _Protocol.PUSH_SUM,
    loss: Annotated[float, typer.Option(metavar="R", help="Probability that a message is lost.")] = 0.0,
    no_channels: Annotated[
        bool, typer.Option("--no-lanes", metavar="", help="Do not repeat lost shares, as in textbook push-sum.")
    ] = False,
    churn: Annotated[
        float,
        typer.Option(metavar="R", help="Fraction of the peers that newcomers replace before each exchange."),
    ] = 0.0,
    gone: Annotated[
        float, typer.Option(metavar="R", help="The same, for peers that lose their disks and hand nothing over.")
    ] = 0.0,
    to: Annotated[float, typer.Option(metavar="E", help="Relative disagreement at which to stop.")] = 1e-6,
    exchanges_max: Annotated[int, typer.Option(metavar="N", help="Maximum number of exchanges.")] = 10_000,
    numbers: Annotated[
        int, typer.Option(metavar="D", min=1, help="Numbers that a peer averages, to count bytes.")
    ] = 10_000,
    seed: Annotated[int, typer.Option(metavar="S", min=0, help="Seed of everything random.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="Print the result as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", metavar="", help="Show no progress.")] = False,
) -> int:
    """Average one number per peer by gossip in a large simulation: exchanges, time, memory and bytes beside theory."""
    import sys
    import threading

    from rich.console import Console

    from fedpeer.cli.running import stopping
    from fedpeer.config.choice import parse_choice
    from fedpeer.experiments.scalar_gossip.simulation import ScalarGossipOptions, simulate_scalar
    from fedpeer.runs.disk import dumps

    options = ScalarGossipOptions(
        graph=parse_choice(graph), peers=peers, protocol=protocol.value, loss=loss, channels=not no_channels,
        churn=churn, gone=gone,
        to=to, seed=seed, exchanges_max=exchanges_max,
    )  # fmt: skip
    console, stop = Console(stderr=True), threading.Event()
    with stopping(stop, console), _progress(console, to, quiet) as on_progress:
        outcome = simulate_scalar(options, on_progress, stop)
    if as_json:
        sys.stdout.write(json.dumps(json.loads(dumps(_to_json(outcome)))) + "\n")
    else:
        Console().print(_sweep_table(outcome, numbers))
    return EXIT_STOPPED if stop.is_set() else 0


def sweep(
    to: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for the page, its pictures and its numbers.")
    ] = Path(),
    most: Annotated[
        int, typer.Option(metavar="N", min=100, max=1_000_000, help="Peers of the largest simulation.")
    ] = 1_000_000,
    seed: Annotated[int, typer.Option(metavar="S", min=0, help="Seed of everything random.")] = 0,
) -> int:
    """Simulate a hundred to a million peers by graph, loss and churn, and write the page scale.md. Ctrl-C pauses."""
    import shlex
    import threading

    from rich.console import Console

    from fedpeer.cli.files import writable, write_new_text
    from fedpeer.cli.running import stopping
    from fedpeer.experiments.scalar_gossip import scale
    from fedpeer.experiments.scalar_gossip.simulation import simulate_scalar
    from fedpeer.runs.canvas import standalone
    from fedpeer.runs.disk import dumps, read_json
    from fedpeer.runs.environment import environment
    from fedpeer.runs.units import duration_text

    with writable(to, option="--to"):
        to.mkdir(parents=True, exist_ok=True)
    store, console, stop = to / "scale.json", Console(stderr=True), threading.Event()
    before = {each["key"]: each for each in read_json(store)["cells"]} if store.exists() else {}
    wanted, rows = scale.cells(most, seed), []
    with stopping(stop, console):
        for number, (line, options) in enumerate(wanted, start=1):
            found = before.get(scale.key(options))
            if found is None:
                outcome = simulate_scalar(options, stop=stop)
                if stop.is_set():
                    break
                found = scale.scale_row(line, outcome)
                title = f"{number} of {len(wanted)}: {line.label}, {line.trouble}, {options.peers:,} peers"
                console.print(
                    f"{title}: {outcome.exchanges:,} exchanges, {duration_text(outcome.seconds)}", highlight=False
                )
            rows.append(found)
            write_new_text(store, dumps({"cells": rows}, indent=1) + "\n", option="--to")
    if stop.is_set():
        console.print("Paused; finished simulations are kept, and the same command resumes.", highlight=False)
        return EXIT_STOPPED
    here = environment("cpu")
    packages = ", ".join(f"{name} {here['packages'][name]}" for name in ("numpy", "scipy"))
    command = ["fedpeer", "topology", "sweep", *(["--most", str(most)] if most < 1_000_000 else [])]
    command += ["--seed", str(seed)] if seed else []
    facts = f"a machine of {here['processors']} cores, {here['python']}, {packages}."
    made = {"command": shlex.join(command), "facts": facts, "cells": rows}
    write_new_text(store, dumps(made, indent=1) + "\n", option="--to")
    write_new_text(to / "scale.md", scale.scale_page(rows, shlex.join(command), facts), option="--to")
    for name, picture in (("scale-graphs", scale.by_graph), ("scale-loss", scale.by_loss)):
        write_new_text(to / f"{name}.svg", standalone(picture(rows)), option="--to")
    print(f"Page: {to / 'scale.md'}")
    return 0


def _to_json(outcome: ScalarGossipOutcome) -> dict[str, object]:
    """Return a large-scale simulation's options and outcome in plain types."""
    from dataclasses import asdict

    return {**asdict(outcome), "asked": {**asdict(outcome.options), "graph": str(outcome.options.graph)}}


def _sweep_table(outcome: ScalarGossipOutcome, numbers: int) -> Table:
    """Return the outcome of a large-scale simulation as a table for 80 columns."""
    from rich.box import SIMPLE
    from rich.table import Table

    from fedpeer.runs.summary import count_text
    from fedpeer.runs.units import duration_text

    options, known = outcome.options, outcome.theory
    shown = Table(box=SIMPLE, show_header=False, pad_edge=False)
    shown.add_column(style="bold", no_wrap=True)
    shown.add_column()
    phases = f" in {outcome.phases} phases" if outcome.phases > 1 else ""
    shown.add_row("graph", f"{options.graph}, {options.peers:,} peers, {outcome.channels:,} directed edges{phases}")
    for remark in outcome.remarks:
        shown.add_row("", remark)
    shown.add_row("protocol", ", ".join([options.protocol, *_troubles(outcome)]))
    left = outcome.left[-1]
    short = f"[bold]{options.to:g} not reached[/] within {outcome.exchanges:,}: {left:.2g} is left"
    shown.add_row("exchanges", f"[bold]{outcome.exchanges:,}[/] to {left:.2g}" if outcome.agreed else short)
    undisturbed = ", without losses" if options.loss or options.churn or options.gone else ""
    foretold = f"{_count(known.usual)} from a random start, {_count(known.worst)} from the worst{undisturbed}"
    shown.add_row("in theory", foretold)
    gap = "" if known.gap is None else f"spectral gap {known.gap:.3g}; "
    shown.add_row("", f"{gap}{known.source}; log2 of the peers is {math.log2(options.peers):.1f}")
    shown.add_row("true mean", _truth(outcome))
    shown.add_row(
        "time",
        f"{duration_text(outcome.seconds)} of processor time, {duration_text(outcome.exchange_seconds)} an exchange",
    )
    shown.add_row("memory", count_text(outcome.peak_bytes, "B") + " in arrays at most")
    repeats = f", {outcome.traffic.repeats / options.peers:,.1f} of them repeats" if outcome.traffic.repeats else ""
    shown.add_row("a peer sends", f"{outcome.messages():,.1f} shares{repeats}")
    shown.add_row("", count_text(outcome.bytes_sent(numbers), "B") + f", if it averages {numbers:,} numbers")
    return shown


def _troubles(outcome: ScalarGossipOutcome) -> Iterator[str]:
    options = outcome.options
    if options.loss:
        yield f"{100 * options.loss:.3g}% of messages lost, " + ("and repeated" if options.channels else "for good")
    if options.churn:
        yield f"{100 * options.churn:.3g}% of peers leave each time"
    if options.gone:
        yield f"{100 * options.gone:.3g}% of disks lost each time"
    if outcome.newcomers:
        yield f"{outcome.newcomers:,} newcomers"


def _truth(outcome: ScalarGossipOutcome) -> str:
    """Return how far the agreed value is from the mean of the initial values, in words."""
    moved = outcome.drift > 1e-9
    words = f"off by {outcome.drift:.2g} standard deviations" if moved else "the peers agree on the mean of the start"
    return words if abs(outcome.weight - 1) < 1e-9 else f"{words}; weight a peer {outcome.weight:.3g}"


def _count(exchanges: float | None) -> str:
    if exchanges is None:
        return "unknown"
    return (
        "too many to count" if math.isinf(exchanges) else f"{exchanges:,.0f}" if exchanges < 1e6 else f"{exchanges:.1e}"
    )


#: Seconds between two lines of progress where there is no terminal.
_LINE_EVERY = 10.0


@contextmanager
def _progress(console: Console, to: float, quiet: bool) -> Iterator[Callable[[float], None]]:
    """Yield a function that shows progress for the disagreement left: a bar on a terminal, or a line every 10 s.

    The bar's length is the logarithm of the disagreement left, relative to that of the goal `to`.
    """
    if quiet:
        yield lambda left: None
        return
    seen, last = 0, time.monotonic()
    if not console.is_terminal:

        def line(left: float) -> None:
            nonlocal seen, last
            seen += 1
            if time.monotonic() - last >= _LINE_EVERY:
                last = time.monotonic()
                console.print(f"exchange {seen:,}: {left:.2g} is left", highlight=False)

        yield line
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=None), TimeElapsedColumn())
    with Progress(*columns, console=console, expand=True, transient=True) as bar:
        task = bar.add_task("making the graph", total=1.0)

        def advance(left: float) -> None:
            nonlocal seen
            seen += 1
            part = math.log(max(left, 1e-300)) / math.log(to)
            bar.update(task, description=f"exchange {seen:,}, {left:.2g} is left", completed=min(max(part, 0.0), 1.0))

        yield advance
