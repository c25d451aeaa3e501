"""Settings as written in a file or as options, and problems with the place where each was written.

Options are settings too: `--rounds 5` is `learning.rounds: 5`, read as the same YAML scalar and laid over the file's
value. So both pass the same checks with the same messages, and only the place differs ("line 5:3" or "--rounds").

The steps are YAML (`yaml_marks`), types and ranges (`config/reading.py`), and the rule book (`config/rules.py`). Each
adds its problems to one list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import Any

from fedpeer.cli.yaml_marks import YamlMarks, read_yaml
from fedpeer.config.federation import Federation
from fedpeer.config.problems import ConfigError, ConfigProblem, Path
from fedpeer.config.reading import typed
from fedpeer.config.rules import PEERS, Combination, problems_of


@dataclass
class ConfigSource:
    """Settings as written: plain values, and the place of each.

    data        plain values, as nested mappings
    marks       lines of the file's settings
    options     path -> the option that set it, such as "--rounds"
    file        the file's name, or "" if there is none
    """

    data: dict[str, Any] = field(default_factory=dict)
    marks: YamlMarks = field(default_factory=YamlMarks)
    options: dict[Path, str] = field(default_factory=dict)
    file: str = ""

    @classmethod
    def of_file(cls, file: FilePath) -> ConfigSource:
        data, marks = read_yaml(file)
        return cls(data, marks, {}, str(file))

    def lay(self, option: str, path: Path, value: Any) -> None:
        """Set one path from an option, replacing the file's value."""
        inside: Any = self.data
        for key in path[:-1]:
            if not isinstance(inside.get(key), dict):
                inside[key] = {}
            inside = inside[key]
        inside[path[-1]] = value
        self.options[path] = option

    def placed(self, problem: ConfigProblem) -> ConfigProblem:
        """Return the problem with its place: the option, whose name then replaces the path, or the line."""
        if problem.place:
            return problem
        for length in range(len(problem.path), 0, -1):
            if problem.path[:length] in self.options:
                return replace(problem, path=(), place=self.options[problem.path[:length]])
        key = problem.text.startswith("unknown setting")
        return replace(problem, place=self.marks.of(problem.path, key=key))

    @property
    def subject(self) -> str:
        """The subject of a report: the file, the command line, or both."""
        if not self.file:
            return "the command line"
        return f"{self.file} with the options given" if self.options else self.file


def load(source: ConfigSource, consequence: str = "", *, roster: bool = False) -> Federation:
    """Return the federation of the source, checked for real peers.

    Args:
        roster: whether the peers are those of a roster; else they are those of its simulation.

    Raises:
        ConfigError: all problems of the source, in the order of the file.
    """
    federation, problems = typed(Federation, source.data)
    if federation is not None:
        problems += problems_of(Combination.of(federation, PEERS, roster=roster))
    refuse(source, [*source.marks.problems, *problems], consequence)
    assert federation is not None
    return federation


def refuse(source: ConfigSource, problems: Sequence[ConfigProblem], consequence: str = "") -> None:
    """Raise one ConfigError with all problems, each with its place, if there are any."""
    if problems:
        placed = sorted((source.placed(problem) for problem in problems), key=_line)
        raise ConfigError(source.subject, placed, consequence)


def _line(problem: ConfigProblem) -> tuple[int, ...]:
    if not problem.place.startswith("line "):
        return (0,)
    return tuple(int(number) for number in problem.place.removeprefix("line ").split(":"))
