"""Reading of a peer's state folder from outside: the rows of its rounds, and the warnings of its log."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from fedpeer.sims.engine import RoundTimes

#: Most lines of a log that are passed on: what is wrong with a run shows in the first ones.
WARNINGS_MAX = 5
#: Log codes of level info that mean that the result differs from an undisturbed run.
_AFFECTS_RESULT = {"went_on_without", "caught_up", "joined"}


class JsonLinesReader:
    """Reader of the lines that are appended to a file, which may not exist yet, or may begin anew as a log does."""

    def __init__(self, path: Path) -> None:
        self._path, self._read, self._rest = path, 0, b""

    def new(self) -> list[dict[str, Any]]:
        try:
            with self._path.open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._read:
                    self._read, self._rest = 0, b""
                file.seek(self._read)
                added = file.read()
        except FileNotFoundError:
            return []
        self._read += len(added)
        *lines, self._rest = (self._rest + added).split(b"\n")
        found = []
        for line in lines:
            try:
                found.append(json.loads(line))
            except ValueError:  # a process was killed while it wrote the line
                continue
        return [each for each in found if isinstance(each, dict)]


class Watched:
    """One peer, watched through its files.

    Attributes:
        rows        the row of each round so far; the later one if a round was repeated
        listening   whether the peer has reported that it is reachable
    """

    def __init__(self, peer: str, state: Path) -> None:
        self.peer, self.state = peer, state
        self.rows: dict[int, dict[str, Any]] = {}
        self.listening = False
        self._metrics, self._log = JsonLinesReader(state / "metrics.jsonl"), JsonLinesReader(state / "log.jsonl")
        self._warnings = 0

    @property
    def done(self) -> int:
        """Number of the last round with a row; 0 if there is none."""
        return max(self.rows, default=0)

    def row(self, round: int) -> dict[str, Any]:
        """Return the row of this round, or of the last one before it if the peer skipped it, or else its first row."""
        before = [each for each in self.rows if each <= round]
        return self.rows[max(before) if before else min(self.rows)]

    def sent(self, round: int) -> tuple[int, int]:
        """Return the messages and bytes of this round; 0 if the peer skipped it: its next row has them all."""
        row = self.rows.get(round)
        return (0, 0) if row is None else (row["messages_sent"], row["bytes_sent"])

    def results(self, round: int, *, validation: bool = False) -> tuple[float, float]:
        """Return (score, loss) of the last evaluation up to this round, or else of the first one; null becomes NaN.

        Args:
            validation: on the examples held out, of which a peer may have none, instead of the test part.
        """
        return self._scored(round, "validation_" if validation else "") or (math.nan, math.nan)

    def server_results(self, round: int, *, validation: bool = False) -> tuple[float, float] | None:
        """Return (score, loss) of the server's model in that evaluation; None without a server."""
        found = self._scored(round, "validation_server_" if validation else "server_")
        if found is None and validation and self._scored(round, "server_") is not None:
            return math.nan, math.nan  # this peer holds out no example
        return found

    def _scored(self, round: int, prefix: str) -> tuple[float, float] | None:
        # A peer whose first update counted in a later round has no earlier evaluation.
        for number in sorted(self.rows, key=lambda each: (each > round, abs(each - round))):
            row = self.rows[number]
            found = row.get(f"{prefix}{'accuracy' if 'accuracy' in row else 'error'}"), row.get(f"{prefix}loss")
            if found != (None, None):
                return math.nan if found[0] is None else found[0], math.nan if found[1] is None else found[1]
        return None

    def look(self) -> list[str]:
        """Read new lines of the peer's files; return lines of the log that matter to the result."""
        for row in self._metrics.new():
            self.rows[row["round"]] = row
        lines = self._log.new()
        self.listening |= any(line["what"] == "started" for line in lines)
        warnings = [
            line
            for line in lines
            if line["level"] in ("warning", "error") or (line["level"] == "info" and line["what"] in _AFFECTS_RESULT)
        ]
        left = max(0, WARNINGS_MAX - self._warnings)
        self._warnings += len(warnings)
        return [f"{self.peer}: {line['text']}" for line in warnings[:left]]


def slowest(watched: list[Watched], round: int) -> RoundTimes:
    """Return the wall time of a round of the slowest peer; training and averaging overlap and are not separated."""
    rows = (each.rows.get(round) for each in watched)
    return RoundTimes(0.0, max((float(row["seconds"]) for row in rows if row is not None), default=0.0))
