"""The log: it reports every kind of event, a flood in few lines with its number, and no terminal control characters."""

from __future__ import annotations

import io
import json
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from fedpeer.peer.runtime.logs import (
    LINES_MAX,
    TEXT_MAX,
    WINDOW_S,
    Log,
    LogFile,
    LogLine,
    TerminalForm,
    at_least,
    for_stream,
    line_of,
    printable,
)
from fedpeer.peer.state.events import Note, RejectEffect
from fedpeer.peer.wire.rejections import REJECTIONS
from fedpeer.rejection import Rejection
from tests.peer.runtime.short_disk import file_bytes_at_most

needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, as Linux has it")


class Told:
    """A log whose lines are kept and whose clock stands still unless the test moves it."""

    def __init__(self, level: str = "info") -> None:
        self.now, self.lines = 100.0, list[LogLine]()
        self.log = Log([self.lines.append], level, lambda: self.now, lambda: self.now)  # type: ignore[arg-type]

    def note(self, text: str, what: str = "started", level: str = "info", **fields: object) -> None:
        self.log.on_effect(Note(level, what, text, fields))  # type: ignore[arg-type]


def test_each_refusal_is_one_line_with_who_and_why() -> None:
    for code, row in REJECTIONS.items():
        line = line_of(RejectEffect(Rejection(code, "transfer 7 of everyone, round 12", "peer2")), 1.0)
        assert (line.what, line.fields) == (code, {"sender": "peer2"})
        for word in ("peer2", code, row.log, "round 12"):
            assert word in line.text
        assert line.level == {"h": "debug", "s": "warning", "x": "error", "o": "warning"}[row.kind], code


def test_repeats_are_told_once_and_then_by_their_number() -> None:
    told = Told()
    for _ in range(1000):
        told.note("the same")
    assert len(told.lines) == 1
    told.log.tick()
    assert len(told.lines) == 1
    told.now += WINDOW_S
    told.log.tick()
    assert [(line.text, line.more, line.t) for line in told.lines] == [("the same", 0, 100.0), ("the same", 998, 110.0)]


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from("abcdefghijklmnopqrstuvwxyz"), st.floats(0, 3)), max_size=300))
def test_every_line_is_told_or_counted_and_the_rate_is_bounded(said: list[tuple[str, float]]) -> None:
    told = Told()
    for text, wait in said:
        told.now += wait
        told.note(text)
    told.log.close()
    assert sum(1 + line.more for line in told.lines) == len(said)
    times = sorted(line.t for line in told.lines)
    most = max((sum(t <= other < t + WINDOW_S for other in times) for t in times), default=0)
    assert most <= 2 * (2 * LINES_MAX + 1)


def test_a_state_that_comes_back_is_told_at_once() -> None:
    told = Told()
    for text in ("peer2 is alive", "peer2 is dead", "peer2 is alive", "peer2 is alive"):
        told.note(text, what="membership")
        told.now += 0.1
    assert [line.text for line in told.lines] == ["peer2 is alive", "peer2 is dead", "peer2 is alive"]
    told.log.close()
    assert [(line.text, line.more) for line in told.lines[3:]] == [("peer2 is alive", 0)], "the last one came twice"
    for number in range(500):
        told.note(f"peer2 is {number % 2}", what="membership")
    told.log.close()
    assert len(told.lines) == 4 + LINES_MAX + 1
    assert sum(1 + line.more for line in told.lines) == 4 + 500


def test_a_repeat_is_not_told_after_the_state_that_followed_it() -> None:
    told = Told()
    for text in ("alive", "alive", "alive", "dead"):
        told.note(f"peer2 is {text}", what="membership", peer="peer2")
        told.now += 0.1
    told.log.close()
    assert [(line.text, line.more) for line in told.lines] == [
        ("peer2 is alive", 0), ("peer2 is alive", 1), ("peer2 is dead", 0)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("worse", "better"),
    [("link_down", "link_up"), ("persist_failed", "saving_again"), ("rounds_paused", "rounds_resumed")],
)
def test_a_state_with_two_names_is_told_whenever_it_changes(worse: str, better: str) -> None:
    told = Told()
    for name in (worse, better, worse, better):
        told.note(name, what=name, peer="peer2")
        told.now += 0.1
    assert [line.text for line in told.lines] == [worse, better, worse, better]


def test_many_states_of_one_peer_hide_none_of_another() -> None:
    told = Told()
    for number in range(100):
        told.note(f"peer2 is {number % 2}", what="membership", peer="peer2")
    told.note("peer3 is dead", what="membership", peer="peer3")
    assert told.lines[-1].text == "peer3 is dead"


def test_a_line_is_not_held_back_behind_others_that_a_sink_does_not_want() -> None:
    told, shown = Told("debug"), list[LogLine]()
    told.log.sinks.append(at_least("warning", shown.append))
    for number in range(LINES_MAX):
        told.note(f"line {number}", what="roster", level="debug")
    told.note("it could not be saved", what="roster", level="warning")
    told.note("one more", what="roster", level="debug")
    told.log.close()
    assert [line.text for line in shown] == ["it could not be saved"]
    assert sum(1 + line.more for line in told.lines) == LINES_MAX + 2


def test_other_lines_that_take_turns_are_counted() -> None:
    told = Told()
    for number in range(6):
        told.note(f"peer{number % 2} repeats itself", what="repeated")
    assert len(told.lines) == 2
    told.log.close()
    assert [line.more for line in told.lines] == [0, 0, 1, 1]


def test_many_different_lines_of_one_name_end_in_one_with_their_number() -> None:
    told = Told()
    for number in range(500):
        told.note(f"line {number}", what="not_fedpeer")
    told.note("something else", what="started")
    told.log.close()
    assert [line.text for line in told.lines[:LINES_MAX]] == [f"line {number}" for number in range(LINES_MAX)]
    assert told.lines[LINES_MAX].text == "something else"
    assert (told.lines[-1].text, told.lines[-1].more) == ("line 499", 500 - LINES_MAX - 1)


def test_each_evaluation_is_told_and_of_rounds_the_first() -> None:
    told = Told()
    for number in range(5):
        told.note(f"round {number}: 90 %", what="evaluated")
        told.note(f"round {number}", what="round")
    assert [line.text for line in told.lines if line.what == "evaluated"] == [f"round {n}: 90 %" for n in range(5)]
    assert [line.text for line in told.lines if line.what == "round"] == ["round 0"]


def test_a_new_window_tells_at_once() -> None:
    told = Told()
    for _ in range(2):
        told.note("the same")
        told.now += WINDOW_S
    assert [(line.text, line.more) for line in told.lines] == [("the same", 0), ("the same", 0)]


def test_what_matters_less_is_left_out() -> None:
    told = Told("warning")
    for level in ("debug", "info", "warning", "error"):
        told.note(level, what=level, level=level)
    assert [line.text for line in told.lines] == ["warning", "error"]


@given(st.text())
def test_nothing_that_a_terminal_obeys_gets_through(text: str) -> None:
    line = line_of(Note("info", "round", text), 0.0)
    assert line.text.isprintable()
    assert len(line.text) <= TEXT_MAX
    assert printable(line.text) == line.text


def terminal(line: LogLine, width: int = 80, colour: bool = False) -> str:
    system = "standard" if colour else None
    console = Console(file=io.StringIO(), force_terminal=colour, width=width, color_system=system)  # type: ignore[arg-type]
    return TerminalForm("peer3", console)(line)


def test_a_person_reads_time_level_peer_and_sentence() -> None:
    line = LogLine(t=0.0, level="warning", what="late", text="round 20 went on without [peer2] :bug:", more=1200)
    shown = terminal(line)
    assert shown.endswith("warning peer3  round 20 went on without [peer2] :bug: (and 1,200 more like it)\n")
    assert shown[2] == shown[5] == ":"
    assert "\x1b[33mwarning" in terminal(line, colour=True)


def test_elsewhere_lines_are_json() -> None:
    stream = io.StringIO()
    sink = for_stream("peer3", stream)
    sink(LogLine(t=1.23456, level="info", what="round", text='a "quote"\u2028', fields={"loss": float("nan")}))
    assert stream.getvalue().count("\n") == 1
    assert json.loads(stream.getvalue()) == {
        "peer": "peer3", "t": 1.235, "level": "info", "what": "round", "text": 'a "quote"\u2028',
        "fields": {"loss": None},
    }  # fmt: skip


def test_a_terminal_is_for_a_person(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    for_stream("peer3", stream)(LogLine(t=0.0, level="info", what="round", text="round 1"))
    assert stream.getvalue().endswith(" peer3  round 1\n")


@pytest.mark.parametrize("cut", ["full disk", "crash"])
def test_a_line_that_was_cut_short_spoils_no_other_of_the_file(tmp_path: Path, cut: str) -> None:
    path = tmp_path / "log.jsonl"
    file = LogFile(path)
    file(said(1))
    if cut == "crash":
        with path.open("ab") as torn:
            torn.write(b'{"t": 1.0, "lev')
        file.close()
    else:
        with file_bytes_at_most(path.stat().st_size + 20):
            file(said(2))
        assert file.lost == 1
        assert lines(path) == ["line 1"]
    file(said(3))
    file.close()
    whole = [line for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
    assert [json.loads(line)["what"] for line in whole] == [
        "round",
        *(["lines_lost"] if cut != "crash" else []),
        "round",
    ]


def said(number: int) -> LogLine:
    return LogLine(t=1.0, level="info", what="round", text=f"line {number}")


@needs_full
@pytest.mark.parametrize("fault", ["full", "closed pipe", "closed"])
def test_lines_that_a_stream_does_not_take_are_lost_and_counted(tmp_path: Path, fault: str) -> None:
    number = os.open("/dev/full", os.O_WRONLY)
    with open(number, "w", encoding="utf-8", closefd=False) as stream, (tmp_path / "later").open("wb") as later:
        if fault == "closed pipe":
            reader, writer = os.pipe()
            os.close(reader)
            os.dup2(writer, number)
            os.close(writer)
        elif fault == "closed":
            os.close(number)
        sink = for_stream("peer3", stream)
        for each in range(3):
            sink(said(each))
        assert sink.lost == 3
        os.dup2(later.fileno(), number)
        for each in range(3, 5):
            sink(said(each))
        os.close(number)
    assert lines(tmp_path / "later") == ["3 lines are missing here: nothing could be written", "line 3", "line 4"]


@needs_full
def test_nobody_waits_for_a_reader_that_stands_still() -> None:
    """The pipe is full and nobody reads: a write would wait for ever, and the peer with it."""
    reader, writer = os.pipe()
    with open(writer, "w", encoding="utf-8") as stream, open(reader, "rb") as other:
        sink, told = for_stream("peer3", stream), 0
        while not sink.lost:
            sink(said(told))
            told += 1
        sink(said(told))
        assert sink.lost == 2
        for number in range(told - 1):
            assert json.loads(other.readline())["text"] == f"line {number}"
        sink(said(told + 1))
        assert json.loads(other.readline())["fields"] == {"lines": 2}
        assert json.loads(other.readline())["text"] == f"line {told + 1}"


@needs_full
def test_nobody_waits_for_a_reader_that_has_room_for_a_part_of_a_line() -> None:
    """A line that names many peers is longer than what a pipe takes at once, and the peer stood still behind it."""
    reader, writer = os.pipe()
    with open(writer, "w", encoding="utf-8") as stream, open(reader, "rb") as other:
        sink = for_stream("peer3", stream)
        long = LogLine(t=1.0, level="info", what="round", text="line", fields={"without": ["peer"] * 6000})

        def say() -> None:
            for _ in range(3):
                sink(long)

        thread = threading.Thread(target=say, daemon=True)
        thread.start()
        thread.join(10.0)
        stands = thread.is_alive()
        other.close()  # which lets the thread go on
        assert not stands
        assert sink.lost == 2


def test_a_process_without_standard_error_logs_to_its_file_only() -> None:
    sink = for_stream("peer3", None)
    sink(said(1))
    assert sink.lost == 1


@needs_full
def test_a_line_that_was_cut_short_spoils_no_other_of_a_stream(tmp_path: Path) -> None:
    path = tmp_path / "all"
    with path.open("w", encoding="utf-8") as stream:
        sink = for_stream("peer3", stream)
        with file_bytes_at_most(100):
            sink(said(1))
            sink(said(2))
            assert path.stat().st_size == 100, "a part of it"
        sink(said(3))
    one, _, lost, three = path.read_text(encoding="utf-8").splitlines()
    assert [json.loads(each)["text"] for each in (one, three)] == ["line 1", "line 3"]
    assert json.loads(lost)["fields"] == {"lines": 1}


def lines(path: Path) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_file_goes_on_and_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    texts = [f"line {number:04}" for number in range(200)]
    for half in (texts[:90], texts[90:]):
        file = LogFile(path, bytes_max=4000)
        for text in half:
            file(LogLine(t=0.0, level="info", what="round", text=text))
        file.close()
    old = path.with_name("log.jsonl.1")
    assert path.stat().st_size <= 4000
    assert old.stat().st_size <= 4000
    kept = lines(old) + lines(path)
    assert kept == texts[-len(kept) :]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["log.jsonl", "log.jsonl.1"]


def test_a_line_is_on_disk_when_it_is_told(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "log.jsonl")
    file(LogLine(t=0.0, level="info", what="round", text="kill me now"))
    assert lines(tmp_path / "log.jsonl") == ["kill me now"]
    file.close()


def test_a_full_disk_loses_lines_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    file = LogFile(folder / "log.jsonl")
    file(LogLine(t=0.0, level="info", what="round", text="no folder yet"))
    assert file.lost == 1
    folder.mkdir()
    file(LogLine(t=0.0, level="info", what="round", text="there again"))
    file.close()
    told = ["1 line is missing here: nothing could be written", "there again"]
    assert (file.lost, lines(folder / "log.jsonl")) == (0, told)
