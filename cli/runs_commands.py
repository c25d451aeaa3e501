"""`fedpeer runs list / show / compare / report`: the folder of all runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpeer.cli.files import out_option, runs_folder

if TYPE_CHECKING:
    from fedpeer.runs.folder import RunFolder

app = typer.Typer(help="List, show and compare runs; rewrite a report.", no_args_is_help=True)

_Out = Annotated[
    Path | None, typer.Option(help="Folder of runs; default $FEDPEER_RUNS or fedpeer-runs.", show_default=False)
]
_RUN_HELP = "A run's id, its beginning, its folder, or last."

#: Columns of a terminal that has room for sizes.
_WIDE = 100

_COLOURS = {"running": "cyan", "finished": "green", "interrupted": "yellow", "failed": "red"}


@app.command("list")
def list_runs(out: _Out = None) -> None:
    """List finished and running runs, the newest last."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from fedpeer.cli.results import Prose
    from fedpeer.runs.index import Index
    from fedpeer.runs.summary import score_text, spoken
    from fedpeer.runs.units import duration_text

    rows = Index(runs_folder(out)).rows() if runs_folder(out).is_dir() else []
    if not rows:
        print(f"There are no runs in {runs_folder(out)} yet; fedpeer simulate makes one.")
        return
    console = Console()
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("run", no_wrap=True)
    table.add_column("state", no_wrap=True)
    wide = console.width >= _WIDE
    for column in ("peers", "rounds", "seeds", "took") if wide else ("took",):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("reached")
    for row in sorted(rows, key=lambda each: each.started):
        measure: Any = row.measure
        reached = [f"{spoken(method)} {score_text(score, measure)}" for method, score in row.scores.items()]
        sizes = [str(row.peers or ""), str(row.rounds), str(len(row.seeds))] if wide else []
        took = "" if row.seconds is None else duration_text(row.seconds)
        table.add_row(row.id, f"[{_COLOURS[row.status]}]{row.status}", *sizes, took, Prose(", ".join(reached)))
    console.print(table)


@app.command()
def show(run: Annotated[str, typer.Argument(help=_RUN_HELP)] = "last", out: _Out = None) -> None:
    """Show one run: its command, its results, and where its files are."""
    from rich.console import Console

    from fedpeer.cli.results import print_results
    from fedpeer.runs.folder import RunFolder

    folder = RunFolder.open(runs_folder(out), run)
    settings: dict[str, Any] = folder.read("settings") or {}
    console = Console()
    console.print(f"[bold]{folder.id}[/]  [{_COLOURS[folder.status]}]{folder.status}", highlight=False)
    if "command" in settings:
        console.print(f"$ {settings['command']}", highlight=False, markup=False, soft_wrap=True)
    print_results(console, folder.read("summary") or _so_far(folder, settings))
    console.print(f"Folder: {folder.path}", highlight=False, markup=False, soft_wrap=True)
    if (folder.path / "report.html").exists():
        console.print(f"Report: {folder.path / 'report.html'}", highlight=False, markup=False, soft_wrap=True)
    if folder.status == "interrupted":
        way = f"fedpeer simulate --resume {folder.id}{out_option(folder.path.parent)}"
        if settings.get("objects"):
            way = f'the same call of fedpeer.simulate with resume="{folder.id}"'
        console.print(f"To resume: {way}", highlight=False, markup=False, soft_wrap=True)


def _so_far(run: RunFolder, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary of a run that has none yet, since it is running or was killed."""
    from fedpeer.runs.summary import summarise

    peers = settings.get("simulation", {}).get("peers")
    return {"methods": summarise(run.rows()), "seeds": settings.get("seeds", [0]), "peers": peers}


@app.command("compare")
def compare_command(
    runs: Annotated[list[str], typer.Argument(metavar="RUN RUN...", help=_RUN_HELP)], out: _Out = None
) -> None:
    """Compare runs side by side: the settings that differ, and the results."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from fedpeer.config.problems import ConfigError, ConfigProblem
    from fedpeer.runs.compare import compare as compared
    from fedpeer.runs.folder import RunFolder
    from fedpeer.runs.summary import spoken

    if len(runs) < 2:
        raise ConfigError(
            "the command line", [ConfigProblem((), "name two runs or more; fedpeer runs list shows them", "RUN")]
        )
    found = compared([RunFolder.open(runs_folder(out), run) for run in runs])
    console = Console()
    differing = [(escape(key), *(escape(value or "–") for value in values)) for key, values in found.settings.items()]
    results: list[tuple[str, ...]] = []
    for (method, measure), values in found.results.items():
        if (heading := f"[bold]{escape(spoken(method))}[/]") not in [row[0] for row in results]:
            results.append((heading,))
        results.append((f"  {measure.replace('_', ' ')}", *(_cell(measure, value) for value in values)))
    for title, rows in (("settings that differ", differing), ("results", results)):
        table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        table.add_column("")
        for run in found.runs:
            table.add_column(run, overflow="fold", justify="right" if rows is results else "left")
        for row in rows:
            table.add_row(*row)
        console.print(table if rows else f"{title}: none")


@app.command("report")
def report_command(run: Annotated[str, typer.Argument(help=_RUN_HELP)] = "last", out: _Out = None) -> None:
    """Write a run's HTML report again from its measurements."""
    from fedpeer.runs.folder import RunFolder
    from fedpeer.runs.report import write_report

    print(write_report(RunFolder.open(runs_folder(out), run)))


def _cell(measure: str, value: float | None) -> str:
    from fedpeer.runs.summary import count_text, percent
    from fedpeer.runs.units import apart, duration_text

    if value is None:
        return "–"
    if measure in ("accuracy_mean", "accuracy_worst"):
        return percent(value)
    if measure in ("accuracy_sem", "accuracy_spread"):
        return apart(value, "accuracy")
    if measure in ("bytes_sent", "messages_sent"):
        return count_text(value, "B" if measure == "bytes_sent" else "")
    if measure == "rounds":
        return f"{value:,.0f}"
    return duration_text(value) if measure == "seconds_per_round" else f"{value:.4g}"
