"""`fedpeer demo associative`: what peers answer that learnt alone, as one, or in part together, drawn as cells.

What is played is in `sims/associative.py`; here it is drawn, so that it reads on 80 columns and without colour.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from fedpeer.sims.associative import Cells, Scene, Shown

app = typer.Typer(help="Small demonstrations.", no_args_is_help=True)

#: From this width on a cell is two columns, so that it is about as wide as high.
WIDE = 120
#: How a cell is drawn (where the terminal is not UTF-8: the second), and its style.
RIGHT, MISSING, WRONG, OFF = ("■", "#", "green"), ("□", "o", "yellow"), ("×", "x", "bold red"), ("·", ".", "dim")
NAMES = {"local": "local only", "full-averaging": "full averaging", "partial-averaging": "partial averaging"}


@app.callback()
def demo() -> None:
    """Small demonstrations."""


@app.command()
def associative(
    peers: Annotated[int, typer.Option(metavar="N", help="Number of peers, 5 or more.")] = 15,
    seed: Annotated[int, typer.Option(metavar="S", min=0, help="Everything random follows from it.")] = 0,
    images: Annotated[bool, typer.Option("--images", metavar="", help="Digits in place of bits.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", metavar="", help="Show no progress.")] = False,
) -> int:
    """Peers complete patterns from their halves, some of which only others learnt, and two learnt otherwise."""
    from rich.console import Console

    from fedpeer.cli.progress import watcher
    from fedpeer.cli.running import EXIT_STOPPED, stopping
    from fedpeer.sims.associative import demonstrate

    progress, stop = Console(stderr=True), threading.Event()
    with stopping(stop, progress), watcher(progress, quiet) as display:
        shown = demonstrate(peers, seed, images=images, tell=display, stop=stop)
    if shown is None:
        return EXIT_STOPPED
    console = Console()
    ascii_only, wide = console.options.ascii_only, console.width >= WIDE
    for scene in shown.scenes:
        console.print()
        console.print(heading(scene, shown), highlight=False, style="bold")
        console.print(drawn(scene, ascii_only=ascii_only, wide=wide))
    console.print(legend(ascii_only=ascii_only))
    console.print(table(shown))
    console.print(lesson(shown), highlight=False)
    return 0


def heading(scene: Scene, shown: Shown) -> str:
    """Who is asked for what."""
    if scene.otherwise:
        return f"{scene.peer} learnt another completion of this half than most of the {shown.peers} peers."
    return f"{scene.peer} was never shown what goes with this half; most of the others were."


def drawn(scene: Scene, *, ascii_only: bool, wide: bool) -> Table:
    """What is given, what is expected, and each method's answer, side by side."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 3 if wide else 2, 0, 0))
    columns = {"given": scene.given, "expected": scene.expected, **scene.answers}
    for name in columns:
        table.add_column(NAMES.get(name, name), no_wrap=True, header_style="")
    pictures, verdicts = [], []
    for name, cells in columns.items():
        answers = name in scene.answers
        pictures.append(picture(cells, scene.expected if answers else cells, ascii_only=ascii_only, wide=wide))
        verdicts.append(Text(verdict(scene, name) if answers else "", style="dim"))
    table.add_row(*pictures)
    table.add_row(*verdicts)
    return table


def verdict(scene: Scene, method: str) -> str:
    """Whether an answer passes, and what is wrong with it."""
    answer, expected = scene.answers[method], scene.expected
    too_much, missing = int((answer & ~expected).sum()), int((expected & ~answer).sum())
    counts = [f"{count} {what}" for count, what in ((missing, "missing"), (too_much, "too much")) if count]
    return "\n".join(["passes" if scene.passes[method] else "fails", *counts]) if counts else "all right"


def picture(cells: Cells, expected: Cells, *, ascii_only: bool, wide: bool) -> Text:
    """A pattern, cell by cell, against what was expected."""
    from rich.text import Text

    text = Text()
    for number, (row, wanted) in enumerate(zip(cells.tolist(), expected.tolist(), strict=True)):
        text.append("\n" if number else "")
        for on, right in zip(row, wanted, strict=True):
            mark = (RIGHT if right else WRONG) if on else (MISSING if right else OFF)
            text.append(mark[1] if ascii_only else mark[0], style=mark[2])
            text.append(" " if wide else "")
    return text


def legend(*, ascii_only: bool) -> Text:
    """What the marks mean."""
    from rich.text import Text

    text = Text("\n")
    for mark, words in ((RIGHT, "right"), (MISSING, "missing"), (WRONG, "too much"), (OFF, "rightly off")):
        text.append(mark[1] if ascii_only else mark[0], style=mark[2])
        text.append(f" {words}   ")
    text.append("\nAn answer passes with at least as many ones right as missing and too much together.", style="dim")
    return text


def table(shown: Shown) -> Table:
    """How good the methods are over all peers and patterns."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from fedpeer.runs.summary import score_text
    from fedpeer.sims.associative import OTHERS

    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("method", no_wrap=True)
    for column in ("passed", f"by the {OTHERS} who learnt otherwise", "wrong units an answer"):
        table.add_column(column, justify="right")
    for method, accuracy in shown.accuracy.items():
        others, wrong = score_text(shown.of_others[method], "accuracy"), f"{shown.wrong[method]:.1f}"
        style = "bold" if method == shown.best else None
        table.add_row(NAMES[method], score_text(accuracy, "accuracy"), others, wrong, style=style)
    return table


def lesson(shown: Shown) -> str:
    """One line, and only what came out."""
    if shown.best == "partial-averaging":
        return (
            "Alone a peer makes up what it was never shown; after averaging everything it answers with the majority "
            "where it learnt otherwise; after averaging a part it does neither."
        )
    if shown.best is None:
        best = max(shown.accuracy.values())
        names = [NAMES[method] for method, accuracy in shown.accuracy.items() if accuracy == best]
        return f"With this seed {_joined(names)} pass as often; another seed may show a difference."
    return f"With this seed {NAMES[shown.best]} passes most often; another seed may come out otherwise."


def _joined(names: Sequence[str]) -> str:
    return " and ".join(names)
