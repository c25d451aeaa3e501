"""`metrics.jsonl` of a real peer: one line per round, with its scores and traffic.

A round is written when it ends; one with an evaluation, once its scores are known. After a restart the file is
continued. The last round before it keeps its row; if the process ended before its scores were known, it is written
again with them, and the later line of a round counts.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedpeer.peer.runtime.line_file import LineFile
from fedpeer.peer.state.events import Evaluated, Note
from fedpeer.runs.disk import dumps, finite

#: Most rounds that wait for their scores: an evaluation takes less than a round, or the trainer would fall behind.
WAITING_MAX = 16
#: Bytes at the end of the file in which the row of the last round is looked for; one has some hundred.
_TAIL_BYTES = 1 << 18


class Rows:
    """Writes a row for each round; one that cannot be written is left out, since nothing depends on it.

    Args:
        path: the file.
        score: name of the score, "accuracy" or "error".
        round: round that the peer is in; earlier rounds are done.
        due: whether the model is evaluated after a round.
        on_row: gets each row, too.
    """

    def __init__(
        self,
        path: Path,
        score: str,
        round: int,
        due: Callable[[int], bool],
        on_row: Callable[[dict[str, Any]], None] = lambda row: None,
    ) -> None:
        self._score = score
        self._due, self._on_row = due, on_row
        self._file = LineFile(path)
        self._kept = _row_of(path, round - 1)
        self._waiting: dict[int, dict[str, Any]] = {} if self._kept is None else {round - 1: dict(self._kept)}
        self._scores: dict[int, Evaluated] = {}
        self._messages = self._bytes = 0
        self._began = time.monotonic()

    def sent(self, size: int, *, counts: bool) -> None:
        """Count a sent message of `size` bytes if it `counts` as learning."""
        if counts:
            self._messages += 1
            self._bytes += size

    def round(self, note: Note) -> None:
        """Add the row of a finished round."""
        now = time.monotonic()
        row = {
            "round": note.fields["round"],
            "seconds": now - self._began,
            self._score: None,
            "loss": None,
            "messages_sent": self._messages,
            "bytes_sent": self._bytes,
            "disagreement": note.fields["disagreement"],
            "weight": note.fields["weights"],
        }
        self._began, self._messages, self._bytes = now, 0, 0
        number = int(str(row["round"]))
        if self._kept is None or number != self._kept["round"]:  # its exchanges were counted before the restart
            self._waiting[number] = row
        while len(self._waiting) > WAITING_MAX:
            self._write(self._waiting.pop(next(iter(self._waiting))))
        self._flush()

    def evaluated(self, event: Evaluated) -> None:
        """Add the scores of a round."""
        self._scores[event.round] = event
        self._flush()

    def _flush(self) -> None:
        """Write the complete rows in the order of rounds; a round before one with scores gets none any more."""
        last = max((number for number in self._waiting if number in self._scores), default=0)
        for number in list(self._waiting):
            if number > last and self._kept is not None and number == self._kept["round"]:
                continue  # it is in the file already, and nothing waits for it
            if number > last and self._due(number):
                break
            row, event = self._waiting.pop(number), self._scores.pop(number, None)
            if event is not None:
                row |= {self._score: event.score, "loss": event.loss}
                if event.metrics:
                    row |= {"metrics": {name: finite(value) for name, value in event.metrics.items()}}
                further = {
                    "validation_": event.validation,
                    "server_": event.server,
                    "validation_server_": event.server_validation,
                }
                for prefix, found in further.items():
                    if found is not None:
                        row |= {f"{prefix}{self._score}": found[0], f"{prefix}loss": found[1]}
            self._write(row)

    def _write(self, row: dict[str, Any]) -> None:
        if row == self._kept:
            return
        self._on_row(row)
        self._file.append((dumps(row) + "\n").encode("utf-8"))
        self._file.close()  # a person may move it away

    def close(self) -> None:
        """Write the rows that wait."""
        for row in self._waiting.values():
            self._write(row)


def _row_of(path: Path, round: int) -> dict[str, Any] | None:
    """Return the last row of this round that is in the file; None if there is none near its end."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        try:
            row = json.loads(line)
        except ValueError:  # cut short, or begun before the part that was read
            continue
        if isinstance(row, dict) and row.get("round") == round:
            return row
    return None
