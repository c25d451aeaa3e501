"""Pictures as SVG text, with one axes or a column of axes.

They are drawn through matplotlib's object interface, without windows or global figures. The page chooses the colours:
each is drawn in a placeholder colour, which is then replaced by a CSS variable of the page (`--m0`, `--m1`, ... for
methods, `--line`) or by `currentColor`, so that one picture fits a light page, a dark page and paper. Every picture is
400 units wide, which a phone shows at nearly its size; titles, legends and captions are HTML of the page, where they
wrap. `standalone` turns a picture into a separate file.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

#: Width of the view box and size of its text, in units.
WIDTH, TEXT = 400.0, 11.0
#: Number of colours, and marker shapes, before they repeat.
PALETTE = 8
MARKERS = "osD^vPX*"
INK, LINE = "#00010a", "#00010b"
_STYLE: Any = {
    "text.parse_math": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "fedpeer",
    "font.size": TEXT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.edgecolor": LINE,
    "axes.labelcolor": INK,
    "axes.grid": True,
    "axes.formatter.useoffset": False,
    "axes.axisbelow": True,
    "grid.color": LINE,
    "grid.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
    "lines.linewidth": 1.8,
}


def method_colour(index: int) -> str:
    return f"#0002{index % PALETTE:02x}"


def draw_axes(
    draw: Callable[[Axes], None], height: float, label: str, *, left: float = 46, right: float = 46, bottom: float = 38
) -> str:
    """Return the SVG of one axes; margins in units. `label`: text for screen readers."""
    return panels([draw], height, label, left=left, right=right, bottom=bottom)


def panels(
    draws: Sequence[Callable[[Axes], None]],
    height: float,
    label: str,
    *,
    left: float = 46,
    right: float = 46,
    bottom: float = 38,
    above: float = 0,
) -> str:
    """Return the SVG of several axes below one another, each `height` units high, with `above` units for a legend."""
    whole = height * len(draws) + above
    with style.context(["default", _STYLE]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the browser draws the text, and has the fonts
        figure = Figure(figsize=(WIDTH / 72, whole / 72), dpi=72)
        figure.patch.set_alpha(0)
        for place, draw in enumerate(reversed(draws)):
            low = (place * height + bottom) / whole
            box = (left / WIDTH, low, 1 - (left + right) / WIDTH, (height - bottom - 10) / whole)
            draw(figure.add_axes(box, facecolor="none"))
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _inline(file.getvalue(), label)


def _inline(svg: str, label: str) -> str:
    """Return a picture as part of a page: without prolog, metadata and size, with placeholder colours replaced."""
    body = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    box = re.search(r'viewBox="([^"]*)"', body)
    assert box is not None, "matplotlib writes a viewBox"
    opening = f'<svg viewBox="{box[1]}" role="img" aria-label="{escape(label)}">'
    body = opening + body[body.index(">") + 1 :]
    body = body.replace(INK, "currentColor").replace(LINE, "var(--line)")
    return re.sub(r"#0002([0-9a-f]{2})", lambda found: f"var(--m{int(found[1], 16)})", body).strip()


def end_labels(axes: Axes, labels: Sequence[tuple[float, str, str]]) -> None:
    """Draw labels (height in data units, text, colour) at the right edge, moved apart so that they do not overlap."""
    finite = [label for label in labels if np.isfinite(label[0])]
    bottom, top = (float(edge) for edge in axes.transData.transform([(0, y) for y in axes.get_ylim()])[:, 1])
    above = 0.0
    for value, text, colour in sorted(finite):
        wanted = float(axes.transData.transform((0, value))[1])
        above = max(wanted, above + TEXT)
        axes.text(1.02, (above - bottom) / (top - bottom), text, color=colour, transform=axes.transAxes, va="center")


#: The colours of the report on paper (`report.css`), for a picture in a separate file.
_COLOURS = ("#5f6873", "#0068a8", "#b64a00", "#00755a", "#9a4380", "#3f3000", "#3b4cc0", "#a3242b")


def standalone(svg: str) -> str:
    """Return the picture as a separate file, with its own colours on white."""
    found = "".join(f"--m{number}:{colour};" for number, colour in enumerate(_COLOURS))
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    own = f'{names} width="640" style="font-family:sans-serif;color:#1c2126;background:#fff;--line:#d9dde1;{found}"'
    return svg.replace("<svg ", f"<svg {own} ", 1) + "\n"
