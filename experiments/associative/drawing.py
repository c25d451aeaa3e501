"""Answers of `fedpeer demo associative` drawn as cells, readable on 80 columns and without colour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fedpeer.experiments.associative.words import NAMES, RULE, recall_scores, verdict

if TYPE_CHECKING:
    from fedpeer.experiments.associative.recall import Cells
    from fedpeer.experiments.associative.shown import Scene, Shown

#: Width from which a cell of bits takes two columns, so that it is about as wide as high.
_WIDE = 120
#: Meaning of each mark -> its style; marks differ without colours too.
_STYLES = {"right": "green", "missing": "yellow", "too much": "bold red", "rightly off": "dim"}
#: Replacements of marks on a terminal that is not UTF-8.
_PLAIN = str.maketrans("■□×·█░", "#ox.#o")


@dataclass(frozen=True)
class DrawingMarks:
    """Marks that draw cells.

    cells   the marks in the order of `_STYLES`
    after   text after each mark
    apart   columns between pictures
    """

    cells: tuple[str, str, str, str]
    after: str
    apart: int

    @classmethod
    def suited(cls, width: int, *, images: bool, ascii_only: bool) -> DrawingMarks:
        """Return the marks for a terminal of `width` columns; pixels always take two, to keep their shape."""
        if images:
            marks, after, apart = ("██", "░░", "××", "· "), "", 2
        else:
            marks, after, apart = ("■", "□", "×", "·"), " " if width >= _WIDE else "", 3 if width >= _WIDE else 2
        if ascii_only:
            right, missing, too_much, off = (mark.translate(_PLAIN) for mark in marks)
            marks = (right, missing, too_much, off)
        return cls(marks, after, apart)


def draw_marks(scene: Scene, marks: DrawingMarks, *, images: bool) -> Table:
    """Return the given and the expected cells and each method's answer, side by side.

    An image has no noise, so one picture shows its given half and the missing rest.
    """
    given, expected = scene.given, scene.expected
    asked = {"half and rest": (given, expected)}
    if not images:
        asked = {"given": (given, given), "expected": (expected, expected)}
    columns = {**asked, **{NAMES[name]: (answer, expected) for name, answer in scene.answers.items()}}
    table = Table(box=None, pad_edge=False, padding=(0, marks.apart, 0, 0))
    for name in columns:
        table.add_column(name, no_wrap=True, header_style="")
    table.add_row(*(draw_picture(*pair, marks) for pair in columns.values()))
    table.add_row(*[""] * len(asked), *(Text(_verdict(scene, name), style="dim") for name in scene.answers))
    return table


def _verdict(scene: Scene, method: str) -> str:
    answer, expected = scene.answers[method], scene.expected
    missing, too_much = int((expected & ~answer).sum()), int((answer & ~expected).sum())
    return "\n".join(verdict(scene.passes[method], missing, too_much))


def draw_picture(cells: Cells, expected: Cells, marks: DrawingMarks) -> Text:
    """Return a pattern as marks that compare each cell with the expected one."""
    text, styles = Text(), tuple(_STYLES.values())
    for number, (row, wanted) in enumerate(zip(cells.tolist(), expected.tolist(), strict=True)):
        text.append("\n" if number else "")
        for on, right in zip(row, wanted, strict=True):
            kind = (0 if right else 2) if on else (1 if right else 3)
            text.append(marks.cells[kind], style=styles[kind])
            text.append(marks.after)
    return text


def legend(marks: DrawingMarks) -> Text:
    """Return the meaning of the marks."""
    text = Text("\n")
    for mark, (words, style) in zip(marks.cells, _STYLES.items(), strict=True):
        text.append(mark.strip(), style=style)
        text.append(f" {words}   ")
    text.append(f"\n{RULE}", style="dim")
    return text


def recall_table(shown: Shown) -> Table:
    """Return a table of the methods' scores over all peers and patterns."""
    headings, rows = recall_scores(shown)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column(headings[0], no_wrap=True)
    for heading in headings[1:]:
        table.add_column(heading, justify="right")
    for method, row in zip(shown.accuracy, rows, strict=True):
        table.add_row(*row, style="bold" if method == shown.best else None)
    return table
