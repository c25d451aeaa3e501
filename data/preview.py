"""A split as a table for the terminal: a row for each peer, its classes shaded. The caller prints it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from fedpeer.data.dataset import Dataset, Split
from fedpeer.data.splits.summary import summary

#: With more peers than this the middle ones are left out, so that the table stays on a screen.
ROWS_MAX = 24
_LAST_ROWS = 4
#: Columns of a note; longer notes are cut.
_NOTE_COLUMNS = 24
#: Count relative to the largest, in four steps; a blank is zero.
_SHADES = " ░▒▓█"


def preview_data(dataset: Dataset, split: Split, *, width: int = 80) -> Table:
    """Return the table of a split, at most `width` columns wide.

    Classes are shown as counts if there is room, else as one shaded character for each class or for several.
    """
    peers: list[dict[str, Any]] = summary(dataset, split)["peers"]
    notes = any(peer["note"] for peer in peers)
    note_columns = min(_NOTE_COLUMNS, max(len(peer["note"]) for peer in peers))
    named = [max(len(key), *(len(str(peer[key])) for peer in peers)) for key in ("id", "train", "test")]
    room = max(8, width - sum(named) - note_columns - 2 * 5 - 2)  # two blanks beside each column, one at each end
    holds, header = _held(dataset, peers, room)
    title, caption = Text(f"{dataset.name}, {split.rule}"), Text(_caption(peers, split))
    table = Table(box=box.SIMPLE_HEAD, width=width, title=title, caption=caption)
    table.add_column("peer", no_wrap=True)
    table.add_column("train", justify="right", no_wrap=True)
    table.add_column("test", justify="right", no_wrap=True)
    table.add_column(header, no_wrap=True, ratio=None if notes else 1)
    if notes:
        table.add_column("note", no_wrap=True, overflow="ellipsis", max_width=_NOTE_COLUMNS, ratio=1)
    for number in _shown(len(peers)):
        if number is None:
            table.add_row("...", "", "", f"{len(peers) - ROWS_MAX} more peers")
            continue
        peer = peers[number]
        cells = [peer["id"], str(peer["train"]), str(peer["test"]), holds[number]]
        table.add_row(*cells, *([Text(peer["note"])] if notes else []))
    return table


def _shown(peers: int) -> list[int | None]:
    if peers <= ROWS_MAX:
        return list(range(peers))
    return [*range(ROWS_MAX - _LAST_ROWS), None, *range(peers - _LAST_ROWS, peers)]


def _caption(peers: Sequence[dict[str, Any]], split: Split) -> str:
    lines = [f"{len(peers)} peers, {_spread([peer['train'] for peer in peers])} training examples each"]
    if split.validates:
        lines.append(f"{_spread([peer['held_out'] for peer in peers])} more are held out to choose the best round")
    return "\n".join([*lines, *split.remarks])


def _spread(counts: Sequence[int]) -> str:
    sizes = sorted(counts)
    return f"{sizes[0]} to {sizes[-1]} (median {sizes[len(sizes) // 2]})" if sizes[0] < sizes[-1] else f"{sizes[0]}"


def _held(dataset: Dataset, peers: Sequence[dict[str, Any]], room: int) -> tuple[list[Text], Text]:
    if "train_quantiles" in peers[0]:
        quantiles = [peer["train_quantiles"][0] for peer in peers]
        what = {"completion": "ones: ", "next-token": "tokens: ", "multi-label": "labels: "}.get(dataset.task, "")
        caption = f"{what}min, quartiles, max"
        return [Text("  ".join(f"{value:.3g}" for value in each)) for each in quantiles], Text(caption)
    count_PC = np.array([peer["train_counts"] for peer in peers])
    width_C = _widths(dataset.classes, count_PC, room)
    if width_C:
        header = Text("".join(f" {_cut(name, width)}" for name, width in zip(dataset.classes, width_C, strict=True)))
        return [_counts(count_C, count_PC.max(), width_C) for count_C in count_PC], header
    each = -(-len(dataset.classes) // room)
    starts = np.arange(0, len(dataset.classes), each)
    density_PB = np.add.reduceat(count_PC, starts, axis=1)
    caption = f"{len(dataset.classes)} classes" + (f", {each} per mark" if each > 1 else "")
    return [_shaded(density_B, density_PB.max()) for density_B in density_PB], Text(caption[:room])


def _widths(classes: Sequence[str], count_PC: np.ndarray[Any, Any], room: int) -> list[int]:
    """Return the width of each class's column: its name if there is room, else the same for all; []: too many."""
    digits = max(2, len(str(count_PC.max())))
    longest = max(map(len, classes))
    for most in range(longest, 0, -1):
        width_C = [max(digits, min(len(name), most)) for name in classes]
        if sum(width_C) + len(width_C) <= room:
            return width_C
    return []


def _cut(name: str, width: int) -> str:
    """Return a name, right-aligned in this many columns; a cut name ends in an ellipsis if two characters remain."""
    if len(name) <= width:
        return f"{name:>{width}}"
    return f"{name[: width - 1]}…" if width > 2 else name[:width]


def _counts(count_C: np.ndarray[Any, Any], largest: int, width_C: Sequence[int]) -> Text:
    text = Text()
    for count, width in zip(count_C.tolist(), width_C, strict=True):
        # Dark to bright blue: the white number on it is readable on light and dark terminals.
        strength = count / max(1, largest)
        style = f"white on rgb({int(20 + 20 * strength)},{int(40 + 70 * strength)},{int(70 + 120 * strength)})"
        text.append(f" {count or '.':>{width}}", style=style if count else "dim")
    return text


def _shaded(density_B: np.ndarray[Any, Any], largest: int) -> Text:
    steps = np.ceil(density_B / max(1, largest) * (len(_SHADES) - 1)).astype(int)
    return Text("".join(_SHADES[step] for step in steps))
