"""The log of a running peer: one line a thing that happened, for a person on a terminal, as JSON anywhere else.

`line_of` makes a `LogLine` of a `Note` or `RejectEffect` of the core. `Log` hands lines on to its sinks (the terminal,
the file `log.jsonl` of the state folder, the dashboard) and holds back what repeats: the same line again, or too many
of one name, are counted and told in one line when their time is over. So a flood of refusals fills neither disk nor
screen. Whatever is written here may have been said by a stranger: control characters never get through.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TextIO

from rich.console import Console
from rich.text import Text

from fedpeer.peer.state.events import Note, RejectEffect
from fedpeer.peer.wire.rejections import REJECTIONS
from fedpeer.rejection import Rejection
from fedpeer.runs.disk import dumps, json_value

#: Seconds over which repeats are gathered: long enough to thin a flood, short enough to be news when told.
WINDOW_S = 10.0
#: Different lines of one name that are told at once in such a time; one a second is what a person can follow.
LINES_MAX = 10
#: Names of lines that come in every round; one at once and one at the end of such a time say how it goes.
_ROUTINE = {"evaluated", "round"}
#: Characters of one line's text: more than any sentence of ours, less than a stranger would like to write.
TEXT_MAX = 400
#: Letters of a name that somebody gives himself; ids of a roster have at most 63.
NAME_MAX = 100
#: Bytes of `log.jsonl` before it becomes `log.jsonl.1`: weeks of an ordinary run; with the file before, 8 MiB at most.
_FILE_BYTES_MAX = 4 * 1024 * 1024

Level = Literal["debug", "info", "warning", "error"]
_LEVELS: tuple[Level, ...] = ("debug", "info", "warning", "error")
_COLOURS = {"debug": "dim", "info": "cyan", "warning": "yellow", "error": "bold red"}
#: How much a refusal matters, by its kind: harmless, the person's to see, suspicious, the edge is closed.
_LEVEL_OF: Mapping[str, Level] = {"h": "debug", "o": "warning", "s": "warning", "x": "error"}


def printable(text: str, most: int = TEXT_MAX) -> str:
    """The text on one line, without control characters, and no longer than `most`."""
    clean = "".join(letter if letter.isprintable() else "?" for letter in text[: most + 1])
    return clean if len(clean) <= most else f"{clean[: most - 3]}..."


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """What happened: `t` in seconds since 1970, `what` a fixed name, `text` a sentence; `more`: so many others like
    this one stand behind it and are not told one by one."""

    t: float
    level: Level
    what: str
    text: str
    fields: Mapping[str, object] = field(default_factory=dict)
    more: int = 0

    def as_json(self) -> dict[str, Any]:
        line: dict[str, Any] = {"t": round(self.t, 3), "level": self.level, "what": self.what, "text": self.text}
        if self.more:
            line["more"] = self.more
        return {**line, **({"fields": json_value(self.fields)} if self.fields else {})}


def line_of(effect: Note | RejectEffect, t: float) -> LogLine:
    """The line that tells an effect."""
    match effect:
        case Note(level, what, text, fields):
            return LogLine(t=t, level=level, what=what, text=printable(text), fields=fields)
        case RejectEffect(Rejection(code, text, sender)):
            refusal = REJECTIONS[code]
            who = printable(sender, NAME_MAX) or ("this machine" if refusal.kind == "o" else "a stranger")
            sentence = f"{who}: {refusal.log} ({code}){f': {text}' if text else ''}"
            return LogLine(
                t=t, level=_LEVEL_OF[refusal.kind], what=code, text=printable(sentence), fields={"sender": who}
            )


@dataclass(slots=True)
class _Window:
    """Of one name: when it began, the lines told since, how often each came again, and how many found no room."""

    began: float
    told: dict[str, LogLine]
    again: dict[str, int]
    crowded: LogLine | None = None


class Log:
    """Lines in, fewer lines out. `tick` has to be called now and then (each second), and `close` at the end.

    Args:
        sinks: each is given every line that is told.
        level: what matters less is not told.
        clock: seconds since 1970.
        ticking: seconds by a clock that never goes back.
    """

    def __init__(
        self,
        sinks: Iterable[Callable[[LogLine], None]],
        level: Level = "info",
        clock: Callable[[], float] = time.time,
        ticking: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sinks = list(sinks)
        self._least = _LEVELS.index(level)
        self._clock, self._ticking = clock, ticking
        self._windows: dict[str, _Window] = {}  # by name: bounded, since names are fixed

    def tell(self, effect: Note | RejectEffect) -> None:
        """Tell what the core has noted or refused."""
        self.say(line_of(effect, self._clock()))

    def say(self, line: LogLine) -> None:
        """Tell a line, now or as one of many at the end of its window."""
        if _LEVELS.index(line.level) < self._least:
            return
        window = self._windows.get(line.what)
        if window is None or self._over(window):
            self._end(line.what)
            window = self._windows[line.what] = _Window(self._ticking(), {}, {})
        if line.text in window.told:
            window.again[line.text] = window.again.get(line.text, 0) + 1
        elif len(window.told) < (1 if line.what in _ROUTINE else LINES_MAX):
            window.told[line.text] = line
            self._out(line)
        else:
            window.crowded = replace(line, more=window.crowded.more + 1 if window.crowded else 0)

    def tick(self) -> None:
        """Tell what was held back long enough."""
        for what in [what for what, window in self._windows.items() if self._over(window)]:
            self._end(what)

    def close(self) -> None:
        """Tell everything that was held back."""
        for what in list(self._windows):
            self._end(what)

    def _over(self, window: _Window) -> bool:
        return self._ticking() - window.began >= WINDOW_S

    def _end(self, what: str) -> None:
        window = self._windows.pop(what, None)
        if window is None:
            return
        for text, count in window.again.items():
            self._out(replace(window.told[text], t=self._clock(), more=count - 1))
        if window.crowded:
            self._out(window.crowded)

    def _out(self, line: LogLine) -> None:
        for sink in self.sinks:
            sink(line)


def at_least(level: Level, sink: Callable[[LogLine], None]) -> Callable[[LogLine], None]:
    """The sink without the lines that matter less."""
    least = _LEVELS.index(level)

    def told(line: LogLine) -> None:
        if _LEVELS.index(line.level) >= least:
            sink(line)

    return told


class Terminal:
    """Lines for a person: time, level in its colour, peer, sentence."""

    def __init__(self, peer: str, console: Console) -> None:
        self.peer, self.console = peer, console

    def __call__(self, line: LogLine) -> None:
        clock = time.strftime("%H:%M:%S", time.localtime(line.t))
        words = Text.assemble(
            (clock, "dim"), " ", (f"{line.level:<7}", _COLOURS[line.level]), f" {self.peer}  {line.text}"
        )
        if line.more:
            words.append(f" (and {line.more:,} more like it)", "dim")
        self.console.print(words, soft_wrap=True)


class JsonLinesLog:
    """Lines for machines, on a stream that is not a terminal."""

    def __init__(self, peer: str, stream: TextIO) -> None:
        self.peer, self.stream = peer, stream

    def __call__(self, line: LogLine) -> None:
        self.stream.write(dumps({"peer": self.peer, **line.as_json()}) + "\n")  # in one: others may share the stream
        self.stream.flush()


class LogFile:
    """`log.jsonl` in the state folder, at most `_FILE_BYTES_MAX` long, and the one before it as `log.jsonl.1`.

    A full disk must not end a peer: a line that cannot be written is counted in `lost`, and nothing else happens.
    """

    def __init__(self, path: Path, bytes_max: int = _FILE_BYTES_MAX) -> None:
        self.path, self.bytes_max, self.lost = path, bytes_max, 0
        self._file: io.BufferedIOBase | None = None

    def __call__(self, line: LogLine) -> None:
        data = dumps(line.as_json()).encode("utf-8", "replace") + b"\n"
        try:
            self._room_for(len(data)).write(data)
        except OSError:
            self.lost += 1
            self.close()

    def _room_for(self, size: int) -> io.BufferedIOBase:
        if self._file is not None and self._file.tell() + size > self.bytes_max:
            self.close()
            os.replace(self.path, self.path.with_name(f"{self.path.name}.1"))
        if self._file is None:
            self._file = self.path.open("ab", buffering=0)  # type: ignore[assignment]  # raw: each line is one write
        assert self._file is not None
        return self._file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def for_stream(peer: str, stream: TextIO) -> Terminal | JsonLinesLog:
    """The sink that suits where standard error goes."""
    if stream.isatty():
        return Terminal(peer, Console(file=stream, highlight=False, markup=False, emoji=False))
    return JsonLinesLog(peer, stream)
