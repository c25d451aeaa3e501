"""The user's mistakes in settings: each with its keys, a sentence (the problem, then the way out) and its place.

Other packages raise exceptions of their own (`SlicingError`, `DataError`, ...) whose message is already a sentence for
the user. All mistakes in settings are found at once and are one `ConfigError`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

#: Columns that the text beside a place needs to be readable.
_WORDS_MIN = 48
#: Columns and lines of a report that is not for a terminal.
WIDTH, LINES_MAX = 120, 1_000
#: Characters of a found value in a message: enough to recognise it, and the message stays on two lines.
SHOWN_MAX = 60

#: The keys of a setting, from the top.
Path = tuple[str | int, ...]


@dataclass(frozen=True)
class ConfigProblem:
    """One mistake.

    path    the setting's keys
    text    the problem, then the way out
    place   where it was written, such as "line 5:13" or "--peers"; filled in by the reader of the file or the options
    rule    name of the broken rule of `rules.py`; "" for another mistake
    """

    path: Path
    text: str
    place: str = ""
    rule: str = ""

    @property
    def dotted(self) -> str:
        return ".".join(str(key) for key in self.path)


class ConfigError(Exception):
    """All mistakes in a file, a command line or a call, found at once."""

    def __init__(self, subject: str, problems: Sequence[ConfigProblem], consequence: str = "") -> None:
        self.subject, self.problems, self.consequence = subject, list(problems), consequence
        super().__init__(laid_out(self, WIDTH, LINES_MAX))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, list[ConfigProblem], str]]:
        """Return the arguments that make the same error again, in another process."""
        return type(self), (self.subject, self.problems, self.consequence)


def found_text(text: object) -> str:
    """Return found text for a message: on one line, printable, and at most SHOWN_MAX characters."""
    line = "".join(letter if letter.isprintable() else "?" for letter in str(text))
    return line if len(line) <= SHOWN_MAX else f"{line[: SHOWN_MAX - 3]}..."


def laid_out(error: ConfigError, width: int, lines_max: int) -> str:
    """Return the whole report as plain text of `width` columns and at most `lines_max` lines.

    The text is beside its place if there is room, else under it.
    """
    count = len(error.problems)
    head = f"{error.subject} has {count} problem{'s' if count > 1 else ''}{error.consequence}."
    places = [f"  {place}" for place in _columns([(problem.place, problem.dotted) for problem in error.problems])]
    indent = len(places[0]) + 2
    beside = width - indent >= _WORDS_MIN
    if not beside:
        indent = 6
    lines = [*textwrap.wrap(head, width), ""]
    for done, (place, problem) in enumerate(zip(places, error.problems, strict=True)):
        words = textwrap.wrap(problem.text, width - indent, break_on_hyphens=False)
        first = [f"{place}  {words[0]}"] if beside else [*_folded(place, width), " " * indent + words[0]]
        block = [*first, *(" " * indent + line for line in words[1:])]
        if done and len(lines) + len(block) > lines_max - 1:
            return "\n".join([*lines, f"  ... and {count - done} more (2>&1 | less)"])
        lines += block
    return "\n".join(lines)


def _folded(place: str, width: int) -> list[str]:
    return [place.rstrip()[first : first + width] for first in range(0, len(place.rstrip()), width)]


def _columns(pairs: list[tuple[str, str]]) -> list[str]:
    """Return place and dotted path in two aligned columns; the line numbers are aligned on the right."""
    numbers = max((len(place.removeprefix("line ")) for place, _ in pairs if place.startswith("line ")), default=0)
    places = [
        f"line {place.removeprefix('line '):>{numbers}}" if place.startswith("line ") else place for place, _ in pairs
    ]
    width = max(map(len, places))
    dotted_width = max(len(dotted) for _, dotted in pairs)
    gap = "  " if width and dotted_width else ""
    return [f"{place:<{width}}{gap}{dotted:<{dotted_width}}" for place, (_, dotted) in zip(places, pairs, strict=True)]
