"""`fedpeer experiment list / run / report`: the papers' experiments, one command each."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpeer.cli.files import runs_folder
from fedpeer.exit_codes import EXIT_STOPPED

if TYPE_CHECKING:
    from fedpeer.config.problems import ConfigProblem
    from fedpeer.experiments.experiment import Experiment, SizeName

app = typer.Typer(help="Reproduce the papers' experiments and check their claims.", no_args_is_help=True)

_Out = Annotated[
    Path | None, typer.Option(help="Folder of runs; default $FEDPEER_RUNS or fedpeer-runs.", show_default=False)
]
_Quick = Annotated[bool, typer.Option("--quick", metavar="", help="The small size, for a quick look.")]
_Full = Annotated[bool, typer.Option("--full", metavar="", help="The paper's own size.")]


@app.command("list")
def list_experiments() -> None:
    """List the experiments, the data they need, and roughly how long each takes on two cores."""
    from itertools import groupby

    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from fedpeer.data.registry import describe_dataset
    from fedpeer.experiments.registry import EXPERIMENTS, experiment

    console, missing, readers = Console(), False, [each for each in map(experiment, EXPERIMENTS) if each.reads]
    for paper, each_of in groupby(map(experiment, EXPERIMENTS), key=lambda each: each.source.partition(", ")[0]):
        table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True, title=paper, title_justify="left")
        for column, width in (("name", 16), ("what", 9), ("data", 15)):
            table.add_column(column, no_wrap=column != "what", min_width=width)
        for column, width in (("quick", 6), ("default", 8), ("full", 12)):
            table.add_column(column, justify="right", no_wrap=True, min_width=width)
        for each in each_of:
            here = {one: describe_dataset(one).here for one in each.data}
            missing = missing or not all(here.values())
            data = "\n".join(f"[green]{one}" if found else f"[yellow]{one}*" for one, found in here.items())
            times = [_estimate(size.minutes) for size in each.sizes.values()]
            table.add_row(each.name, each.source.rpartition(", ")[2], data, *times)
        console.print(table)
    for each in readers:
        behind = ", ".join(each.reads)
        console.print(f"{each.name} uses the runs of {behind} and adds those that are missing.", highlight=False)
    if missing:
        console.print("* not on this machine; see fedpeer data prepare NAME")
    console.print("Times are estimates for two cores. To run one: fedpeer experiment run NAME, with --quick or --full.")


def _estimate(minutes: float) -> str:
    """Return a rough time; from two hours on in hours alone."""
    from fedpeer.runs.units import duration_text

    text = duration_text(60 * minutes if minutes < 120 else 3600 * round(minutes / 60))
    return text.removesuffix(" 0 s").removesuffix(" 0 min")


@app.command("run")
def run_command(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="One of fedpeer experiment list.")],
    quick: _Quick = False,
    full: _Full = False,
    seeds: Annotated[
        int | None,
        typer.Option(
            "--seeds",
            "--runs",
            metavar="N",
            min=1,
            max=1000,
            help="Number of seeds; default: the size's own.",
            show_default=False,
        ),
    ] = None,
    no_search: Annotated[
        bool, typer.Option("--no-search", metavar="", help="Do not search settings, even where the size would.")
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="CELL", help="Run only this line of the table; repeatable.", show_default=False),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Another loss, if the paper leaves it open.", show_default=False),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Other initial weights, if the paper leaves them open.", show_default=False),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...",
            help="Other settings of the data set, if the paper leaves them open.",
            show_default=False,
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(metavar="RULE", help="Another division of the data, likewise.", show_default=False),
    ] = None,
    normalise: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Another scaling of the inputs, likewise.", show_default=False),
    ] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda or mps.")] = "auto",
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="ray: distribute the runs over a cluster; default: this machine.", show_default=False
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Ray cluster: HOST:PORT or auto; default: this machine.", show_default=False
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=1024,
            help="Training processes per run; default: one per core, or one with --engine ray.",
            show_default=False,
        ),
    ] = None,
    out: _Out = None,
    quiet: Annotated[bool, typer.Option("--quiet", metavar="", help="Show warnings only, no progress.")] = False,
) -> int:
    """Run an experiment, or the part that is not finished, and show its table.

    Ctrl-C pauses it: the same command resumes. Finished lines are kept, whatever is run next.

    --engine ray distributes the runs over a Ray cluster, as many at once as it has CPUs; the results are the same.
    """
    import threading

    from rich.console import Console

    from fedpeer.cli.experiment_progress import experiment_display
    from fedpeer.cli.running import stopping
    from fedpeer.experiments.registry import experiment
    from fedpeer.experiments.runner import ExperimentOptions, kept_page, run_experiment

    size = _size(quick, full) or "default"
    chosen = {"loss": loss, "start": start, "dataset": dataset, "split": split, "normalise": normalise}
    overrides = _overrides(experiment(name), chosen)
    words = ["fedpeer", "experiment", "run", name, *([] if size == "default" else [f"--{size}"])]
    words += ["--no-search"] if no_search else []
    words += [word for key, value in overrides.items() for word in (f"--{key}", value)]
    options = ExperimentOptions(
        experiment=experiment(name),
        size_name=size,
        root=runs_folder(out),
        seeds=seeds,
        search=not no_search,
        only=tuple(only or ()),
        overrides=overrides,
        device=device,
        workers=workers,
        cluster=_cluster(engine, address),
        command=shlex.join(words + ([] if seeds is None else ["--seeds", str(seeds)])),
    )
    console, stop = Console(stderr=True), threading.Event()
    with stopping(stop, console), experiment_display(console, quiet) as display:
        finished = run_experiment(options, display, stop)
    if not finished:
        typed = shlex.join(["fedpeer", *context.obj])
        text = f"\nPaused; finished runs are kept. To resume:\n\n  {typed}"
        console.print(text, highlight=False, markup=False, soft_wrap=True)
        return EXIT_STOPPED
    _show([kept_page(options.folder)], None, [options.folder])
    return 0


@app.command("report")
def experiment_report_command(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Default: all experiments that were run.", show_default=False)
    ] = None,
    quick: _Quick = False,
    full: _Full = False,
    to: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the pages and their numbers to this folder.", show_default=False),
    ] = None,
    pages: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="DIR", help="Read pages that --to wrote there, instead of runs.", show_default=False
        ),
    ] = None,
    out: _Out = None,
) -> None:
    """Show the tables of finished experiments: published beside measured values, and which claims hold."""
    from fedpeer.config.problems import ConfigError, ConfigProblem
    from fedpeer.experiments.registry import EXPERIMENTS, experiment
    from fedpeer.experiments.runner import kept_page, played, refresh
    from fedpeer.experiments.saved import saved

    size, root = _size(quick, full), runs_folder(out)
    names = list(EXPERIMENTS) if name is None else [experiment(name).name]
    sizes: tuple[SizeName, ...] = ("quick", "default", "full") if size is None else (size,)
    if pages is not None:
        if not (found := saved(pages, names, sizes)):
            text = (
                f"there is no such page in {pages}; fedpeer experiment report --to {pages} writes finished runs there"
            )
            raise ConfigError("the command line", [ConfigProblem((), text, "--from")])
        _show(found, pages if to is None else to)
        return
    for each in names:
        refresh(experiment(each), root, sizes)
    folders = [folder for each in names for one in sizes for folder in played(root, each, one)]
    if not folders:
        text = (
            f"{root} has no runs of {name or 'any experiment'} yet; begin with fedpeer experiment run {name or 'NAME'}"
        )
        raise ConfigError("the command line", [ConfigProblem((), text, "NAME")])
    _show(list(map(kept_page, folders)), to, folders)


def _size(quick: bool, full: bool) -> SizeName | None:
    """Return the size that the options name, or None."""
    from fedpeer.config.problems import ConfigError, ConfigProblem

    if quick and full:
        raise ConfigError(
            "the command line", [ConfigProblem((), "--quick and --full exclude each other; leave one out", "--full")]
        )
    return "quick" if quick else "full" if full else None


def _overrides(experiment: Experiment, options: Mapping[str, str | None]) -> dict[str, str]:
    """Return the options that override the experiment's choices where its paper leaves them open."""
    from fedpeer.cli.config import ConfigSource, refuse
    from fedpeer.cli.simulate_options import NOTHING_STARTED
    from fedpeer.config.federation import Federation
    from fedpeer.config.problems import ConfigProblem
    from fedpeer.config.reading import typed
    from fedpeer.config.registries import choices_in

    source, found = ConfigSource(), {name: value for name, value in options.items() if value is not None}
    paths = {name: ("learning" if name in ("loss", "start") else "simulation", name) for name in found}
    for name, value in found.items():
        source.lay(f"--{name}", paths[name], value)
    problems = [
        ConfigProblem(paths[name], f"{experiment.name} fixes this setting; leave the option out")
        for name in found
        if name not in experiment.open
    ]
    federation, mistakes = typed(Federation, source.data)
    if not problems and federation is not None:
        problems = choices_in(federation)
        if "dataset" in found:
            problems += _another_data_set(experiment, federation.simulation.dataset.name)
    refuse(source, problems or mistakes, NOTHING_STARTED)
    return found


def _another_data_set(experiment: Experiment, name: str) -> list[ConfigProblem]:
    """Return the mistake of naming another data set than the experiment's, if it is one."""
    from fedpeer.config.problems import ConfigProblem

    if name in experiment.data:
        return []
    text = f"{experiment.name} is about {' or '.join(experiment.data)}; write other settings of it"
    return [ConfigProblem(("simulation", "dataset"), text)]


def _cluster(engine: str | None, address: str | None) -> str | None:
    """Return the address of the cluster that the options name, "" for one on this machine, None for no cluster."""
    from fedpeer.config.problems import ConfigError, ConfigProblem, found_text

    if engine not in (None, "ray"):
        text = (
            f'"{found_text(engine)}" does not distribute runs; write ray, or leave it out (runs name their own engine)'
        )
        raise ConfigError("the command line", [ConfigProblem((), text, "--engine")])
    if engine is None and address is not None:
        raise ConfigError(
            "the command line", [ConfigProblem((), "it names a Ray cluster; add --engine ray", "--address")]
        )
    return None if engine is None else address or ""


def _show(pages: Sequence[Mapping[str, Any]], to: Path | None, beside: Sequence[Path] = ()) -> None:
    """Print the pages and write each into the folder `to`, with its numbers, or else beside its runs.

    Several pages also get a common HTML page, and an index in `to`.
    """
    from fedpeer.cli.files import writable, write_new_text
    from fedpeer.experiments.table import stem_of, table_page
    from fedpeer.runs.disk import dumps

    option = "--to" if to is not None else "--out"
    if to is not None:
        with writable(to, option=option):
            to.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(pages):
        text, stem = table_page(data), stem_of(data)
        target = beside[number] / "page.md" if to is None else to / f"{stem}.md"
        if to is not None:
            write_new_text(target.with_suffix(".json"), dumps(data, indent=1) + "\n", option=option)
        write_new_text(target, text, option=option)
        if data.get("figure") is not None and data["measured"]:
            from fedpeer.experiments.pictures import figure_picture
            from fedpeer.runs.canvas import standalone

            write_new_text(target.parent / f"{stem}.svg", standalone(figure_picture(data)), option=option)
        print(text)
        print(f"Page: {target}")
    if len(pages) > 1:
        from fedpeer.experiments.book import book, index

        folder = beside[0].parent if to is None else to
        write_new_text(folder / "experiments.html", book(pages), option=option)
        print(f"All on one page: {folder / 'experiments.html'}")
        if to is not None:
            write_new_text(to / "experiments.md", index(pages), option=option)
            print(f"Index: {to / 'experiments.md'}")
