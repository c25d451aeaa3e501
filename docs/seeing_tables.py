"""Writes the tables of metrics and of rejections in seeing.md from the code.

`python docs/seeing_tables.py` rewrites the rows under the two headings; a test fails while page and code differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fedpeer.peer.runtime.metrics import METRICS
from fedpeer.peer.wire.rejections import REJECTIONS

PAGE = Path(__file__).parent / "seeing.md"
_KINDS = {"h": "harmless", "s": "suspicious", "x": "closes the edge", "o": "this machine"}
_TYPES = {"CounterMetricFamily": "counter", "GaugeMetricFamily": "gauge", "SummaryMetricFamily": "summary"}


def metric_rows() -> Iterator[tuple[str, ...]]:
    """Yield the cells of each metric's row: name, type, labels, meaning."""
    for name, metric in METRICS.items():
        kind = _TYPES[metric.family.__name__]
        total = "_total" if kind == "counter" else ""
        yield f"`{name}{total}`", kind, ", ".join(metric.labels) or "–", metric.meaning


def rejection_rows() -> Iterator[tuple[str, ...]]:
    """Yield the cells of each rejection's row: code, rows of the table of bad inputs, kind, log line, advice."""
    for code, rejection in REJECTIONS.items():
        yield f"`{code}`", ", ".join(rejection.ids), _KINDS[rejection.kind], rejection.log, rejection.advice


def page() -> str:
    """Return the whole page as it should be."""
    text = PAGE.read_text(encoding="utf-8")
    for heading, rows in (("Metrics", metric_rows()), ("Rejections", rejection_rows())):
        before, mark, rest = text.partition(f"\n## {heading}\n")
        section, after = (f"{rest}\n## ").split("\n## ", 1)
        head, line, foot = section.partition("\n| --- ")
        columns, _, below = foot.partition("\n")
        rest_of_section = below.partition("\n\n")[2]
        table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        section = f"{head}{line}{columns}\n{table}\n" + (f"\n{rest_of_section}" if rest_of_section else "")
        text = before + mark + (section + "\n## " + after).removesuffix("\n## ")
    return text


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
