"""`fedpeer data list / prepare / preview / split`: data sets, their files, and their splits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fedpeer.cli.setting_options import number

if TYPE_CHECKING:
    from fedpeer.data.dataset import Dataset, Split

app = typer.Typer(help="List data sets, fetch their files, and preview splits among peers.", no_args_is_help=True)

#: Columns of a terminal that has room for sizes.
_WIDE = 120

_DatasetOption = Annotated[str, typer.Option(metavar="NAME", help="A data set, or a file: csv:FILE,label=NAME.")]
_SplitOption = Annotated[
    str | None,
    typer.Option(metavar="RULE", help="How the data are divided; default: as the data set is.", show_default=False),
]
_PeersOption = Annotated[
    int | None, number("Number of peers; default: as many as the split makes.", show_default=False)
]
_SeedOption = Annotated[int, number("Seed of the split.", "S")]


@app.command("list")
def list_datasets() -> None:
    """List the data sets that fedpeer knows, and which of them are on this machine."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from fedpeer.data.registry import DATASETS, describe_dataset

    console = Console()
    wide = console.width >= _WIDE
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in ("name", "here", *(["size"] if wide else []), "what it is"):
        table.add_column(column, no_wrap=column == "name")
    for name in DATASETS:
        found = describe_dataset(name)
        here = "[green]yes" if found.here else f"[yellow]{found.obtained}"
        table.add_row(name, here, *([escape(found.size)] if wide else []), escape(found.summary))
    console.print(table)
    console.print(
        "Your own: csv:FILE, parquet:FILE, npz:FILE, images:FOLDER or python:module:function.", highlight=False
    )


@app.command("prepare")
def prepare_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="One of fedpeer data list.")],
) -> None:
    """Make sure that a data set's files are on this machine; download them if they are missing."""
    from fedpeer.config.choice import Choice, lookup
    from fedpeer.data import registry

    lookup(Choice(name), registry.DATASETS, "data set")
    for path in registry.prepare_dataset(name):
        print(path)


@app.command("preview")
def preview_command(
    dataset: _DatasetOption = "digits", split: _SplitOption = None, peers: _PeersOption = None, seed: _SeedOption = 0
) -> None:
    """Draw how the data would be divided: each peer's share of each class, and how its task differs."""
    from rich.console import Console

    from fedpeer.data.preview import preview_data as drawn

    console = Console()
    console.print(drawn(*_divided(dataset, split, peers, seed), width=console.width))


@app.command("split")
def print_split(
    dataset: _DatasetOption = "digits", split: _SplitOption = None, peers: _PeersOption = None, seed: _SeedOption = 0
) -> None:
    """Print as JSON how the data would be divided: each peer's counts, classes and differences."""
    import json

    from fedpeer.data.splits import summary

    print(json.dumps(summary(*_divided(dataset, split, peers, seed)), indent=2))


def _divided(dataset: str, split: str | None, peers: int | None, seed: int) -> tuple[Dataset, Split]:
    """Return the data set and its split, by the checks and the seed that `simulate` uses."""
    from fedpeer.cli.simulate_options import options_of
    from fedpeer.learning.holdings import dataset_split, load_dataset

    given = {"dataset": dataset, "split": split, "peers": peers, "seed": seed}
    federation = options_of(
        {name: value for name, value in given.items() if value is not None}, consequence=""
    ).federation
    data = load_dataset(federation.simulation.dataset)
    return data, dataset_split(data, federation, federation.seed)
