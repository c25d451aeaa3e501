"""Draws the pictures of README.md and docs/ from a finished run: `python docs/pictures/draw.py RUN_FOLDER`.

    accuracy.svg   the accuracy curves of the run's report, with its colours for light and dark and a legend
    slices.svg     what `fedpeer slices --config examples/federation.yaml` draws

A picture on a page of its own does not know the page's colours, so each brings its own ground.
"""

from __future__ import annotations

import re
import sys
from html import escape
from pathlib import Path

from fedpeer.cli.simulate_options import options_of
from fedpeer.cli.slices import planned
from fedpeer.runs import plots, report
from fedpeer.runs.facts import gather_facts
from fedpeer.runs.folder import RunFolder
from fedpeer.runs.summary import spoken
from fedpeer.slicing.describe import describe_slices as described
from fedpeer.slicing.describe import slices_svg

HERE = Path(__file__).parent
MARGIN = 12
#: Both colour schemes of the report, up to the rules that are about its own layout.
COLOURS = (Path(report.__file__).parent / "report.css").read_text(encoding="utf-8").split("* {")[0]
LOOKS = f"<style>{COLOURS} svg {{ color: var(--ink); font-family: system-ui, sans-serif; }}</style>"


def accuracy(run: RunFolder) -> str:
    """The curves under a line that names them."""
    facts = gather_facts(run)
    names = [method for method, history in facts.histories.items() if len(history.round_R)]
    legend = "".join(
        f'<text x="{46 + 118 * place}" y="-6" font-size="11" fill="var(--m{facts.colours[name]})">'
        f"{escape(spoken(name))}</text>"
        for place, name in enumerate(names)
    )
    return framed(plots.curves(facts.evaluated, "Accuracy by round"), legend, above=24)


def framed(svg: str, more: str = "", *, above: int = 0) -> str:
    """A drawing as a file of its own: name spaces, colours, a ground with a margin, and room `above` for `more`."""
    found = re.match(r'<svg[^>]*viewBox="0 0 ([\d.]+) ([\d.]+)"[^>]*>', svg)
    assert found is not None, "both pictures begin at 0 0"
    width, height = float(found[1]) + 2 * MARGIN, float(found[2]) + 2 * MARGIN + above
    corner = f'x="{-MARGIN}" y="{-MARGIN - above}"'
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="{-MARGIN} {-MARGIN - above} {width:g} {height:g}" fill="currentColor" font-size="13">{LOOKS}'
        f'<rect {corner} width="{width:g}" height="{height:g}" rx="6" fill="var(--card)"/>{more}{svg[found.end() :]}\n'
    )


def main(run: str) -> None:
    """Write both pictures beside this file."""
    slices = described(*planned(options_of({}, HERE.parents[1] / "examples" / "federation.yaml").federation))
    for name, picture in (("accuracy", accuracy(RunFolder(Path(run)))), ("slices", framed(slices_svg(slices)))):
        (HERE / f"{name}.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
