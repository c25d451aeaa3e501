"""An extension of griffe for the site: columns of names and what they mean, in docstrings, become lists.

    x            (N, *F) float32
    y            (N,) int64 class numbers, or what follows in the lines
                 below it

Markdown would run such lines together.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_ENTRY = re.compile(r"([A-Za-z_]\w*(?:, \w+)*)( {2,})(\S.*)")


class ColumnsAsLists(griffe.Extension):
    """Rewrite the docstring of each object that is documented."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = listed(obj.docstring.value)


def listed(text: str) -> str:
    """Return a docstring in which each column of names and meanings is a list of Markdown."""
    lines: list[str] = []
    column = 0  # where meanings begin, inside a list; else 0
    for line in text.splitlines():
        entry = _ENTRY.fullmatch(line)
        if entry is not None:
            lines += [""] if not column else []
            column = len(entry[1]) + len(entry[2])
            lines.append(f"- {', '.join(f'`{name}`' for name in entry[1].split(', '))}: {entry[3]}")
        elif column and line.startswith(" " * column):
            lines.append("    " + line.strip())
        else:
            column = 0
            lines.append(line)
    return "\n".join(lines)
