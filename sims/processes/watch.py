"""What a peer's state folder tells from outside: the rows of its rounds, and what its log warns of."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from fedpeer.sims.vector.engine import RoundTimes

#: Lines of a log that are passed on: what is wrong with a run shows in the first ones.
WARNINGS_MAX = 5
#: Lines below a warning that say that the result is another than it would have been.
_TELLING = {"went_on_without", "caught_up", "joined"}


class JsonLinesReader:
    """The lines that were added to a file since the last look; the file may not be there yet."""

    def __init__(self, path: Path) -> None:
        self._path, self._read, self._rest = path, 0, b""

    def new(self) -> list[dict[str, Any]]:
        try:
            with self._path.open("rb") as file:
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
            except ValueError:  # a process was killed in the middle of it
                continue
        return [each for each in found if isinstance(each, dict)]


class Watched:
    """One peer, seen through its files.

    Attributes:
        rows       the row of each round so far; of a round that was done again the later one
        listening  whether it has said that it is reachable
    """

    def __init__(self, peer: str, state: Path) -> None:
        self.peer, self.state = peer, state
        self.rows: dict[int, dict[str, Any]] = {}
        self.listening = False
        self._metrics, self._log = JsonLinesReader(state / "metrics.jsonl"), JsonLinesReader(state / "log.jsonl")
        self._warnings = 0

    @property
    def done(self) -> int:
        """The last round with a row."""
        return max(self.rows, default=0)

    def row(self, round: int) -> dict[str, Any]:
        """That of this round; of the last one before it, where the peer skipped it; or of its first one."""
        before = [each for each in self.rows if each <= round]
        return self.rows[max(before) if before else min(self.rows)]

    def results(self, round: int) -> tuple[float, float]:
        """(score, loss) as of its last evaluation up to this round; JSON has null for what is no number."""
        return self._scored(round, "") or (math.nan, math.nan)

    def server_results(self, round: int) -> tuple[float, float] | None:
        """The same of the server's model; None where there is none."""
        return self._scored(round, "server_")

    def _scored(self, round: int, prefix: str) -> tuple[float, float] | None:
        for number in sorted((each for each in self.rows if each <= round), reverse=True):
            row = self.rows[number]
            found = row.get(f"{prefix}{'accuracy' if 'accuracy' in row else 'error'}"), row.get(f"{prefix}loss")
            if found != (None, None):
                return math.nan if found[0] is None else found[0], math.nan if found[1] is None else found[1]
        return None

    def look(self) -> list[str]:
        """Take up what is new; lines of the log that matter to the result."""
        for row in self._metrics.new():
            self.rows[row["round"]] = row
        lines = self._log.new()
        self.listening |= any(line["what"] == "started" for line in lines)
        told = [
            line
            for line in lines
            if line["level"] in ("warning", "error") or (line["level"] == "info" and line["what"] in _TELLING)
        ]
        room = max(0, WARNINGS_MAX - self._warnings)
        self._warnings += len(told)
        return [f"{self.peer}: {line['text']}" for line in told[:room]]


def slowest(watched: list[Watched], round: int) -> RoundTimes:
    """Wall seconds of a round, of the peer that took longest; training and averaging overlap and are not told apart."""
    return RoundTimes(0.0, max((float(each.row(round)["seconds"]) for each in watched), default=0.0))
