"""The user's mistakes: each with its setting, the sentence (problem, then way out), and where it was written.

Other rooms raise exceptions of their own (`SlicingError`, `DataError`, ...) whose message is already a sentence for
the user. Everything that is wrong with settings is found in one go and is one `ConfigError`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

#: Columns that words need beside their place to read well.
_WORDS_MIN = 48
#: Columns and lines of a report that is no terminal's.
WIDTH, LINES_MAX = 120, 1_000
#: Characters of a found value in a message: enough to know it again, and a message stays on two lines.
SHOWN_MAX = 60

#: Where a setting stands: its keys from the top.
Path = tuple[str | int, ...]


@dataclass(frozen=True)
class ConfigProblem:
    """One mistake.

    path    the setting's keys
    text    the problem, then the way out
    place   where it was written, filled in by whoever knows the file's lines or the options: "line 5:13" or "--peers"
    rule    the name of the rule of `rules.py` that is broken, if it is one of them
    """

    path: Path
    text: str
    place: str = ""
    rule: str = ""

    @property
    def dotted(self) -> str:
        return ".".join(str(key) for key in self.path)


class ConfigError(Exception):
    """Everything that is wrong with a file, a command line or a call, found in one go."""

    def __init__(self, subject: str, problems: Sequence[ConfigProblem], consequence: str = "") -> None:
        self.subject, self.problems, self.consequence = subject, list(problems), consequence
        super().__init__(laid_out(self, WIDTH, LINES_MAX))


def found_text(text: object) -> str:
    """Return found text as it goes into a message: on one line, printable, and never longer than a person reads."""
    line = "".join(letter if letter.isprintable() else "?" for letter in str(text))
    return line if len(line) <= SHOWN_MAX else f"{line[: SHOWN_MAX - 3]}..."


def laid_out(error: ConfigError, width: int, lines_max: int) -> str:
    """Return the whole report as plain text of `width` columns and at most `lines_max` lines.

    The words stand beside the place where there is room for them, else under it.
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
            return "\n".join([*lines, f"  ... and {count - done} more"])
        lines += block
    return "\n".join(lines)


def _folded(place: str, width: int) -> list[str]:
    return [place.rstrip()[first : first + width] for first in range(0, len(place.rstrip()), width)]


def _columns(pairs: list[tuple[str, str]]) -> list[str]:
    """Place and dotted path in two aligned columns; the line numbers end under one another."""
    numbers = max((len(place.removeprefix("line ")) for place, _ in pairs if place.startswith("line ")), default=0)
    places = [
        f"line {place.removeprefix('line '):>{numbers}}" if place.startswith("line ") else place for place, _ in pairs
    ]
    width = max(map(len, places))
    dotted_width = max(len(dotted) for _, dotted in pairs)
    gap = "  " if width and dotted_width else ""
    return [f"{place:<{width}}{gap}{dotted:<{dotted_width}}" for place, (_, dotted) in zip(places, pairs, strict=True)]
