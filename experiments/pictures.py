"""The picture of a figure: a point is the median of a cell's runs, its bar spans 40 % to 60 % of them.

Each column of the figure has a panel of its own, one below the other, over the same axis.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

from fedpeer.experiments.columns import COLUMNS
from fedpeer.experiments.figure_lines import FigureLine, lines_of
from fedpeer.runs.canvas import INK, MARKERS, PALETTE, method_colour, panels

#: Units of one panel's height, and of a row of the legend.
HEIGHT, ROW = 280.0, 15.0
#: Room for the numbers of an axis, with up to two decimals, and for its title.
LEFT = 60.0
#: Longest name, in characters, with which a legend has four columns.
_SHORT = 12


def figure_picture(data: Mapping[str, Any]) -> str:
    """Return the figure as inline SVG (`runs/canvas.py`); a panel is empty if no line has its number."""
    columns, figure = data["columns"], data["figure"]
    lines_in = {name: lines_of(data, name) for name in columns}
    lines = lines_in[columns[0]]
    names = dict.fromkeys(line.name for found in lines_in.values() for line in found)
    number_of = {name: number for number, name in enumerate(names)}
    ticks = figure.get("ticks") or ()
    joined = not ticks
    beside = 2 if max(map(len, names), default=0) > _SHORT else 4
    above = ROW * (1 + math.ceil(len(names) / beside))

    def draw(axes: Axes, name: str) -> None:
        for line in lines_in[name]:
            number = number_of[line.name]
            _line(axes, line, number, 0.0 if joined else 0.2 * (number - (len(names) - 1) / 2), joined)
        places = sorted({x for line in lines_in[name] for x, _ in line.points})
        if figure["log"]:
            axes.set_xscale("log")
        if ticks:
            axes.set_xticks(range(len(ticks)), ticks)
            axes.set_xlim(-0.5, len(ticks) - 0.5)
        elif len(places) <= 8:
            axes.xaxis.set_major_locator(FixedLocator(places))
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.set_xlabel(figure["x"])
        axes.set_ylabel(COLUMNS[name].axis or COLUMNS[name].title)
        if name == columns[0] and lines:
            _legend(axes, figure["lines"], beside)
        if COLUMNS[name].log:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        if (most := COLUMNS[name].most) is not None:
            axes.set_ylim(0, 1.05 * most)

    summary = "; ".join(
        f"{line.name}: {line.points[0][1].median:.1f} to {line.points[-1][1].median:.1f}" for line in lines
    )
    return panels(
        [partial(draw, name=name) for name in columns],
        HEIGHT,
        f"{data['title']}. {summary}",
        left=LEFT,
        right=10,
        above=above,
    )


def _legend(axes: Axes, title: str, beside: int) -> None:
    """Draw the legend above the axes, where it hides no point, in `beside` columns."""
    axes.legend(
        title=title,
        title_fontsize=9,
        fontsize=9,
        frameon=False,
        labelcolor=INK,
        ncols=beside,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        alignment="left",
        borderpad=0,
        borderaxespad=0.6,
    )


def _line(axes: Axes, line: FigureLine, number: int, aside: float, joined: bool) -> None:
    """Draw a line; `aside` shifts its points so that they do not hide those of other lines."""
    colour, marker = method_colour(number % PALETTE), MARKERS[number % PALETTE]
    again = number >= PALETTE  # colours and markers repeat, dashed and hollow
    x = [place + aside for place, _ in line.points]
    middle = [each for _, each in line.points]
    around = [[each.median - each.low for each in middle], [each.high - each.median for each in middle]]
    axes.errorbar(
        x,
        [each.median for each in middle],
        around,
        color=colour,
        marker=marker,
        markersize=5,
        capsize=2.5,
        markerfacecolor="none" if again else colour,
        linestyle=("--" if again else "-") if joined else "none",
        linewidth=1.6,
        label=line.name,
    )
