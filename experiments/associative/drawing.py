"""The answers of `fedpeer demo associative` drawn as cells, so that they read on 80 columns and without colour."""

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

#: From this width on a cell of bits is two columns, so that it is about as wide as high.
_WIDE = 120
#: What a mark may mean, and its style; marks are told apart without it.
_STYLES = {"right": "green", "missing": "yellow", "too much": "bold red", "rightly off": "dim"}
#: What marks become where the terminal is not UTF-8.
_PLAIN = str.maketrans("■□×·█░", "#ox.#o")


@dataclass(frozen=True)
class DrawingMarks:
    """How cells are drawn: the marks in the order of `_STYLES`, what stands after each, columns between pictures."""

    cells: tuple[str, str, str, str]
    after: str
    apart: int

    @classmethod
    def suited(cls, width: int, *, images: bool, ascii_only: bool) -> DrawingMarks:
        """Pixels are two columns on any terminal: what they draw has a shape."""
        if images:
            marks, after, apart = ("██", "░░", "××", "· "), "", 2
        else:
            marks, after, apart = ("■", "□", "×", "·"), " " if width >= _WIDE else "", 3 if width >= _WIDE else 2
        if ascii_only:
            right, missing, too_much, off = (mark.translate(_PLAIN) for mark in marks)
            marks = (right, missing, too_much, off)
        return cls(marks, after, apart)


def draw_marks(scene: Scene, marks: DrawingMarks, *, images: bool) -> Table:
    """What is given, what is expected, and each method's answer, side by side.

    Of an image, in which there is no noise, the given half and the rest that is missing are one picture.
    """
    given, expected = scene.given, scene.expected
    options = {"half and rest": (given, expected)}
    if not images:
        options = {"given": (given, given), "expected": (expected, expected)}
    columns = {**options, **{NAMES[name]: (answer, expected) for name, answer in scene.answers.items()}}
    table = Table(box=None, pad_edge=False, padding=(0, marks.apart, 0, 0))
    for name in columns:
        table.add_column(name, no_wrap=True, header_style="")
    table.add_row(*(draw_picture(*pair, marks) for pair in columns.values()))
    table.add_row(*[""] * len(options), *(Text(_verdict(scene, name), style="dim") for name in scene.answers))
    return table


def _verdict(scene: Scene, method: str) -> str:
    answer, expected = scene.answers[method], scene.expected
    missing, too_much = int((expected & ~answer).sum()), int((answer & ~expected).sum())
    return "\n".join(verdict(scene.passes[method], missing, too_much))


def draw_picture(cells: Cells, expected: Cells, marks: DrawingMarks) -> Text:
    """A pattern, cell by cell, against what was expected."""
    text, styles = Text(), tuple(_STYLES.values())
    for number, (row, wanted) in enumerate(zip(cells.tolist(), expected.tolist(), strict=True)):
        text.append("\n" if number else "")
        for on, right in zip(row, wanted, strict=True):
            kind = (0 if right else 2) if on else (1 if right else 3)
            text.append(marks.cells[kind], style=styles[kind])
            text.append(marks.after)
    return text


def legend(marks: DrawingMarks) -> Text:
    """What the marks mean."""
    text = Text("\n")
    for mark, (words, style) in zip(marks.cells, _STYLES.items(), strict=True):
        text.append(mark.strip(), style=style)
        text.append(f" {words}   ")
    text.append(f"\n{RULE}", style="dim")
    return text


def recall_table(shown: Shown) -> Table:
    """How good the methods are over all peers and patterns."""
    headings, rows = recall_scores(shown)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column(headings[0], no_wrap=True)
    for heading in headings[1:]:
        table.add_column(heading, justify="right")
    for method, row in zip(shown.accuracy, rows, strict=True):
        table.add_row(*row, style="bold" if method == shown.best else None)
    return table
