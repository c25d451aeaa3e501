"""The picture of a figure: a point is the median of a cell's runs, its bar goes from 40 % to 60 % of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

from fedpeer.runs.canvas import INK, MARKERS, PALETTE, drawn, method_colour
from fedpeer.sims.experiments.figure_lines import Line, lines_of


def picture(data: Mapping[str, Any]) -> str:
    """The figure as inline SVG (`runs/canvas.py`)."""
    lines, figure = lines_of(data), data["figure"]

    def draw(axes: Axes) -> None:
        for number, line in enumerate(lines):
            _line(axes, line, number)
        places = sorted({x for line in lines for x, _ in line.points})
        if figure["log"]:
            axes.set_xscale("log")
        if len(places) <= 8:
            axes.xaxis.set_major_locator(FixedLocator(places))
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.set_xlabel(figure["x"])
        axes.set_ylabel("accuracy, %")
        axes.legend(title=figure["lines"], title_fontsize=9, fontsize=9, frameon=False, labelcolor=INK, ncols=2)

    said = "; ".join(
        f"{line.name}: {line.points[0][1].median:.1f} to {line.points[-1][1].median:.1f}" for line in lines
    )
    return drawn(draw, 280, f"{data['title']}. {said}", right=10)


def _line(axes: Axes, line: Line, number: int) -> None:
    colour, marker = method_colour(number), MARKERS[number % PALETTE]
    x = [place for place, _ in line.points]
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
        linewidth=1.6,
        label=line.name,
    )
