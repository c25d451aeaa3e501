"""Rows of a benchmark: figures, floors and targets, drawn as a table and stored in RESULTS.md."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.measure import Ratio, ratio_of_medians


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement.

    ours, floor   medians in `unit`; no floor if the target is for `ours` itself
    ratio         ours to floor; with a ratio, the target is for the ratio
    """

    name: str
    unit: str
    ours: float
    floor: float | None = None
    ratio: Ratio | None = None
    target: float | None = None

    @property
    def verdict(self) -> str:
        """Verdict of the row: a ratio misses its target only if its whole interval is above."""
        if self.target is None:
            return ""
        least = self.ours if self.ratio is None else self.ratio.low
        return "missed" if least > self.target else "met"

    def cells(self) -> tuple[str, ...]:
        ratio = "" if self.ratio is None else f"{self.ratio.middle:.2f} ({self.ratio.low:.2f}-{self.ratio.high:.2f})"
        target = "" if self.target is None else f"{self.target:g}{' x' if self.ratio else ''}"
        floor = "" if self.floor is None else f"{self.floor:.3g}"
        return self.name, self.unit, f"{self.ours:.3g}", floor, ratio, target, self.verdict


#: The text above all sections of RESULTS.md.
HEAD_TEXT = """# Speed

Measured by `make bench`, on machines on which nothing else ran; `python -m benchmarks.run --only NAME` measures a part.

CPU seconds of all processes of each program, medians over interleaved pairs (A B B A ...) with both programs alive, and
the ratio of the medians with its 95 % bootstrap interval. A target is missed only if the interval lies above it. The
floors are hand-written programs for one job each ([floors.py](floors.py)), measured in the same run.
"""

HEAD = ("", "unit", "fedpeer", "floor", "ratio (95 %)", "at most", "")


def compared(name: str, unit: str, ours: Sequence[float], floor: Sequence[float], target: float | None = None) -> Row:
    """Return a row from values that were measured in pairs."""
    ratio = ratio_of_medians(ours, floor)
    return Row(name=name, unit=unit, ours=median(ours), floor=median(floor), ratio=ratio, target=target)


@dataclass(frozen=True)
class Section:
    """The rows of one benchmark, and notes for their reader."""

    title: str
    notes: str
    rows: Sequence[Row]

    def table(self) -> Table:
        table = Table(title=self.title, caption=self.notes, title_justify="left", caption_justify="left")
        for place, word in enumerate(HEAD):
            table.add_column(word, justify="right" if 2 <= place <= 5 else "left", no_wrap=place > 0)
        for row in self.rows:
            style = {"met": "green", "missed": "bold red"}.get(row.verdict)
            table.add_row(*row.cells(), style=style)
        return table

    def markdown(self, told: str) -> str:
        """Return the section as Markdown; `told` names date and machine."""
        lines = [HEAD, ("---", "---", "---:", "---:", "---:", "---:", "---"), *(row.cells() for row in self.rows)]
        table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        return f"## {self.title}\n\n{told}\n\n{self.notes}\n\n{table}\n"


def write(path: Path, sections: Sequence[Section], *, whole: bool) -> None:
    """Write these sections into RESULTS.md, each with its date and machine.

    Args:
        whole: whether these are all sections; else the other sections of the file stay as they are.
    """
    told = f"Measured on {date.today().isoformat()}: {machine()}."
    found = {} if whole or not path.is_file() else _sections(path.read_text(encoding="utf-8"))
    found |= {section.title: section.markdown(told) for section in sections}
    path.write_text("\n".join([HEAD_TEXT, *found.values()]), encoding="utf-8")


def _sections(text: str) -> dict[str, str]:
    """Return the sections of a page by title."""
    parts = ("\n" + text).split("\n## ")[1:]
    return {part.partition("\n")[0]: f"## {part.rstrip()}\n" for part in parts}


def show(name: str, about: str | None, measure: Callable[[bool], Section]) -> None:
    """Run one benchmark from the command line, and print its table."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=about)
    parser.add_argument("--quick", action="store_true", help="few pairs: wide intervals")
    Console(width=120).print(measure(parser.parse_args().quick).table())


def machine() -> str:
    """Return cores, processor, Python and torch; nothing that identifies the machine."""
    from fedpeer.sims.request import cores

    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "numpy", "numba"))
    return f"{cores()} cores of {_processor()}, {platform.system()}, Python {platform.python_version()}, {packages}"


def _processor() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        found = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return found or platform.machine()
