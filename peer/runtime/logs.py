"""The log of a running peer: one line per event, for a person on a terminal, and as JSON anywhere else.

`line_of` makes a `LogLine` from a `Note` or `RejectEffect` of the node. `Log` passes lines on to its sinks (the
terminal, the file `log.jsonl` of the state folder, the dashboard) and throttles repeats: the same line again, or too
many of one name, are counted and reported in one line at the end of a time window. So a flood of rejections fills
neither disk nor screen. Any text here may come from a stranger: control characters never get through.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TextIO

from rich.console import Console
from rich.text import Text

from fedpeer.peer.runtime.line_file import LineFile
from fedpeer.peer.runtime.lossy_stream import LossyStream
from fedpeer.peer.state.events import Note, RejectEffect
from fedpeer.peer.wire.rejections import REJECTIONS
from fedpeer.rejection import Rejection
from fedpeer.runs.disk import dumps, json_value

#: Seconds over which repeats are collected: long enough to thin a flood, short enough to be current when reported.
WINDOW_S = 10.0
#: Different lines of one name that are logged at once in such a window; a person can follow one a second.
LINES_MAX = 10
#: Names of lines that come in every round; one of them is logged at once, and one at the end of a window.
_ROUTINE = {"round"}
#: Names of lines that state a condition, each with what has it: such a line about a peer or group is logged again if
#: another came in between; otherwise a reader of "peer2 is dead" would believe it until the window ends.
_STATES: Mapping[str, str] = {
    "membership": "membership",
    "link_down": "link",
    "link_up": "link",
    "coordinator": "coordinator",
    "rounds_paused": "rounds",
    "rounds_resumed": "rounds",
    "persist_failed": "disk",
    "saving_again": "disk",
}
#: Most characters of one line's text: more than any sentence of ours, and a bound for a stranger's.
TEXT_MAX = 400
#: Most characters of a name that a sender claims for itself; ids of a roster have at most 63.
NAME_MAX = 100
#: Bytes of `log.jsonl` before it becomes `log.jsonl.1`: weeks of an ordinary run; both files have 8 MiB at most.
_FILE_BYTES_MAX = 4 * 1024 * 1024

Level = Literal["debug", "info", "warning", "error"]
_LEVELS: tuple[Level, ...] = ("debug", "info", "warning", "error")
_COLOURS = {"debug": "dim", "info": "cyan", "warning": "yellow", "error": "bold red"}
#: Level of a rejection by its kind: harmless, operational, suspicious, edge closed.
_LEVEL_OF: Mapping[str, Level] = {"h": "debug", "o": "warning", "s": "warning", "x": "error"}


def printable(text: str, most: int = TEXT_MAX) -> str:
    """Return the text on one line, without control characters and at most `most` characters long."""
    clean = "".join(letter if letter.isprintable() else "?" for letter in text[: most + 1])
    return clean if len(clean) <= most else f"{clean[: most - 3]}..."


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One event.

    t       seconds since 1970
    level   its importance
    what    its name, a fixed word
    text    a sentence
    fields  values for machines
    more    number of further events like this one that were not logged one by one
    """

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
    """Return the log line of an effect."""
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
    """Lines of one name, or about one state, in one time window.

    began     its start
    lines     lines logged since, by text
    again     how often each of these came again without being logged
    logged    number of lines logged since
    newest    text of the line that came last
    crowded   by level, the last line that was held back because there were too many, with the number of lines before
              it: a sink may take the lines of some levels only
    """

    began: float
    lines: dict[str, LogLine] = field(default_factory=dict)
    again: dict[str, int] = field(default_factory=dict)
    logged: int = 0
    newest: str = ""
    crowded: dict[Level, LogLine] = field(default_factory=dict)


class Log:
    """Throttles lines and passes them on. `tick` has to be called regularly (each second), and `close` at the end.

    Args:
        sinks: each receives every line that is passed on.
        level: lowest level that is passed on.
        clock: returns seconds since 1970.
        ticking: returns seconds by a monotonic clock.
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
        self._windows: dict[tuple[str, ...], _Window] = {}  # bounded: names are fixed, peers are those of the roster

    def on_effect(self, effect: Note | RejectEffect) -> None:
        """Log a note or a rejection of the node."""
        self.say(line_of(effect, self._clock()))

    def say(self, line: LogLine) -> None:
        """Log a line, now or as one of many at the end of its window."""
        if _LEVELS.index(line.level) < self._least:
            return
        key = _window_of(line)
        window = self._windows.get(key)
        if window is None or self._over(window):
            self._end(key)
            window = self._windows[key] = _Window(self._ticking())
        changed = line.what in _STATES and line.text != window.newest
        window.newest = line.text
        if changed:
            self._say_repeats(window)  # later they would state the earlier condition as the present one
        if line.text in window.lines and not changed:
            window.again[line.text] = window.again.get(line.text, 0) + 1
        elif window.logged < (1 if line.what in _ROUTINE else LINES_MAX):
            window.lines[line.text] = line
            window.logged += 1
            self._out(line)
        else:
            before = window.crowded.get(line.level)
            window.crowded[line.level] = replace(line, more=before.more + 1 if before else 0)

    def tick(self) -> None:
        """Log the lines of all windows that are over."""
        for key in [key for key, window in self._windows.items() if self._over(window)]:
            self._end(key)

    def close(self) -> None:
        """Log everything that was held back."""
        for key in list(self._windows):
            self._end(key)

    def _over(self, window: _Window) -> bool:
        return self._ticking() - window.began >= WINDOW_S

    def _end(self, key: tuple[str, ...]) -> None:
        window = self._windows.pop(key, None)
        if window is None:
            return
        self._say_repeats(window)
        for line in sorted(window.crowded.values(), key=lambda line: line.t):
            self._out(line)

    def _say_repeats(self, window: _Window) -> None:
        for text, count in window.again.items():
            self._out(replace(window.lines[text], t=self._clock(), more=count - 1))
        window.again.clear()

    def _out(self, line: LogLine) -> None:
        for sink in self.sinks:
            sink(line)


def _window_of(line: LogLine) -> tuple[str, ...]:
    """Return the key of the window that a line shares with others."""
    if line.what not in _STATES:
        return (line.what,)
    return _STATES[line.what], str(line.fields.get("peer") or line.fields.get("group") or "")


def at_least(level: Level, sink: Callable[[LogLine], None]) -> Callable[[LogLine], None]:
    """Return a sink that passes on lines of this level and above."""
    least = _LEVELS.index(level)

    def filtered(line: LogLine) -> None:
        if _LEVELS.index(line.level) >= least:
            sink(line)

    return filtered


class StreamLog:
    """Sink to a stream such as standard error, in the form that `shown` gives a line.

    Lines that the stream does not take are counted in `lost`; their number comes before the next line that it takes.
    """

    def __init__(self, stream: LossyStream, shown: Callable[[LogLine], str]) -> None:
        self._stream, self._shown, self.lost = stream, shown, 0

    def __call__(self, line: LogLine) -> None:
        before = self._shown(_lines_lost(self.lost, line.t)) if self.lost else ""
        self.lost = 0 if self._stream.write(before + self._shown(line)) else self.lost + 1


def _lines_lost(count: int, t: float) -> LogLine:
    text = f"{count:,} {'lines are' if count > 1 else 'line is'} missing here: nothing could be written"
    return LogLine(t=t, level="warning", what="lines_lost", text=text, fields={"lines": count})


class TerminalForm:
    """Form of a line for a person: time, level in its color, peer, sentence."""

    def __init__(self, peer: str, console: Console) -> None:
        self.peer, self.console = peer, console

    def __call__(self, line: LogLine) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(line.t))
        words = Text.assemble(
            (clock, "dim"), " ", (f"{line.level:<7}", _COLOURS[line.level]), f" {self.peer}  {line.text}"
        )
        if line.more:
            words.append(f" (and {line.more:,} more like it)", "dim")
        with self.console.capture() as shown:
            self.console.print(words, soft_wrap=True)
        return shown.get()


class LogFile:
    """Sink to `log.jsonl` in the state folder, at most `_FILE_BYTES_MAX` long; the file before it is `log.jsonl.1`.

    A full disk must not end a peer: lines that cannot be written are counted in `lost`, and their number comes before
    the next one.
    """

    def __init__(self, path: Path, bytes_max: int = _FILE_BYTES_MAX) -> None:
        self._file, self.lost = LineFile(path, bytes_max), 0

    def __call__(self, line: LogLine) -> None:
        lines = [_lines_lost(self.lost, line.t), line] if self.lost else [line]
        data = b"".join(dumps(each.as_json()).encode("utf-8", "replace") + b"\n" for each in lines)
        self.lost = 0 if self._file.append(data) else self.lost + 1

    def close(self) -> None:
        self._file.close()


def for_stream(peer: str, stream: TextIO | None) -> StreamLog:
    """Return the sink to this stream: for a person if it is a terminal, else JSON lines."""
    lossy = LossyStream(stream)
    if lossy.is_terminal:
        return StreamLog(lossy, TerminalForm(peer, Console(file=stream, highlight=False, markup=False, emoji=False)))
    return StreamLog(lossy, lambda line: dumps({"peer": peer, **line.as_json()}) + "\n")
