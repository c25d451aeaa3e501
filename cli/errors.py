"""The user's mistakes as one screen: each with its place, what is wrong and the way out.

A `Problem` knows the dotted path of a setting; where that setting was written (a line of a file, an option) is its
`place`. Other rooms raise exceptions of their own (`SlicingError`, `DataError`, ...) whose message is already a
sentence for the user; `is_users_mistake` tells them from our own mistakes, which end in a traceback file.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

#: Lines of one report on the smallest terminal, 24 lines: with the command above and the prompt below it.
LINES_MIN = 21
#: Columns that words need beside their place to read well.
WORDS_MIN = 48
#: Characters of a found value in a message: enough to know it again, and a message stays on two lines.
SHOWN_MAX = 60

#: The other rooms' exceptions for the user, by name: what is not imported cannot have been raised.
_USERS_MISTAKES = {
    "fedpeer.algorithms.coordinated.AlgorithmError",
    "fedpeer.algorithms.optimizers.OptimizerError",
    "fedpeer.algorithms.privacy.PrivacyError",
    "fedpeer.algorithms.byzantine.RobustError",
    "fedpeer.algorithms.assignment.AssignmentError",
    "fedpeer.data.dataset.DataError",
    "fedpeer.gossip.drift.DriftError",
    "fedpeer.gossip.noise.NoiseError",
    "fedpeer.gossip.reductions.FormError",
    "fedpeer.networks.registry.NetworkError",
    "fedpeer.config.choice.ChoiceError",
    "fedpeer.peer.state.journal.SnapshotForeignError",
    "fedpeer.peer.wire.roster.RosterError",
    "fedpeer.learning.device.DeviceError",
    "fedpeer.learning.models.ModelError",
    "fedpeer.learning.program.ExportError",
    "fedpeer.peer.runtime.authority.EnrolmentError",
    "fedpeer.peer.runtime.dashboard.access.DashboardError",
    "fedpeer.peer.runtime.discovery.DiscoveryError",
    "fedpeer.peer.runtime.identity.IdentityError",
    "fedpeer.peer.runtime.listener.ListenError",
    "fedpeer.peer.runtime.store.DuplicatePeerError",
    "fedpeer.peer.runtime.store.StateError",
    "fedpeer.runs.disk.RunError",
    "fedpeer.slicing.models.SlicingError",
    "fedpeer.topology.graphs.TopologyError",
}

#: Those after which another start may find things as they should be.
_TEMPORARY = {
    "fedpeer.peer.runtime.transient.NoAddressError",
    "fedpeer.peer.runtime.transient.PortInUseError",
}

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    """One mistake: the setting's path, the words (problem, then way out), and where it was written.

    `place` is filled in by whoever knows the file's lines or the options: "line 5:13" or "--peers".
    """

    path: Path
    text: str
    place: str = ""

    @property
    def dotted(self) -> str:
        return ".".join(str(key) for key in self.path)


class ConfigError(Exception):
    """Everything that is wrong with a file or a command line, found in one go."""

    def __init__(self, subject: str, problems: Sequence[Problem], consequence: str = "") -> None:
        self.subject, self.problems, self.consequence = subject, list(problems), consequence
        super().__init__(report(self, width=120))


def is_users_mistake(error: BaseException) -> bool:
    """Whether the message of this exception is a finished sentence for the user."""
    return isinstance(error, ConfigError) or bool(_names(error) & _USERS_MISTAKES)


def temporary(error: BaseException) -> str:
    """What another start may find otherwise, as a sentence: a port in use, too little memory; "" for other errors."""
    from fedpeer.peer.runtime.transient import short_of_memory

    if _names(error) & _TEMPORARY:
        return str(error)
    if short_of_memory(error):
        said = (str(error).splitlines() or [type(error).__name__])[0]
        return f"there is too little memory ({said}); make room, or allow this process more, and start again"
    return ""


def _names(error: BaseException) -> set[str]:
    return {f"{each.__module__}.{each.__qualname__}" for each in type(error).__mro__}


def shown(text: object) -> str:
    """Found text as it goes into a message: on one line, printable, and never longer than a person reads."""
    line = "".join(letter if letter.isprintable() else "?" for letter in str(text))
    return line if len(line) <= SHOWN_MAX else f"{line[: SHOWN_MAX - 3]}..."


def wrapped(text: str) -> str:
    """Finished sentences, each line of the text wrapped to the terminal; at most one screen."""
    terminal = shutil.get_terminal_size()
    lines = []
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        lines += textwrap.wrap(line, terminal.columns, subsequent_indent=indent, break_on_hyphens=False) or [""]
    most = max(LINES_MIN, terminal.lines - 3)
    return "\n".join(lines if len(lines) <= most else [*lines[: most - 1], "  ..."])


def report(error: ConfigError, width: int | None = None) -> str:
    """The whole report as plain text of `width` columns, at most one screen long.

    The words stand beside the place where there is room for them, else under it.
    """
    terminal = shutil.get_terminal_size()
    width, lines_max = width or terminal.columns, max(LINES_MIN, terminal.lines - 3)
    count = len(error.problems)
    head = f"{error.subject} has {count} problem{'s' if count > 1 else ''}{error.consequence}."
    places = [f"  {place}" for place in _columns([(problem.place, problem.dotted) for problem in error.problems])]
    indent = len(places[0]) + 2
    beside = width - indent >= WORDS_MIN
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
