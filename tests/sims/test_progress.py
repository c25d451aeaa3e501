"""Display of a run: bars that fit the terminal, and lines that do not flood a log."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from rich.console import Console

from fedpeer.runs.units import apart, duration_text
from fedpeer.sims.events import (
    MethodDone,
    MethodStarted,
    Remark,
    RoundDone,
    RunBegun,
    RunLost,
    SimulationEvent,
    SimulationStarted,
    WorkerReplaced,
)
from fedpeer.sims.progress import Bars, ProgressLines, WarningsOnly, progress_display
from fedpeer.sims.tally import ProgressTable

ROUNDS = 30


def events(seeds: tuple[int, ...] = (0,), first_round: int = 1) -> Iterator[SimulationEvent]:
    methods = ("local", "partial-averaging", "full-averaging")
    cells = tuple((method, seed) for seed in seeds for method in methods)
    yield SimulationStarted(
        run="20261121-034501-digits-7f3a", dataset="digits", peers=16, rounds=ROUNDS, cells=cells, parameters=(50_610,),
        workers=2, device="cpu",
    )  # fmt: skip
    yield Remark(text="3 training examples left over [1]")
    for method, seed in cells:
        yield MethodStarted(method=method, seed=seed, rounds=ROUNDS, first_round=first_round)
        for number in range(first_round, ROUNDS + 1):
            score = (0.85, 0.95) if number % 2 == 0 else None
            yield RoundDone(
                method=method, seed=seed, round=number, rounds=ROUNDS, seconds=0.25, score_P=score, bytes_sent=10,
                messages_sent=1,
            )  # fmt: skip
        yield MethodDone(method=method, seed=seed)


def lines(told: Iterator[SimulationEvent], seconds_each: float) -> list[str]:
    now = [0.0]
    written: list[str] = []
    with ProgressLines(written.append, lambda: now[0]) as display:
        for event in told:
            now[0] += seconds_each
            display(event)
    return written


def test_at_most_one_line_a_second_and_one_at_each_end() -> None:
    few, many = lines(events(), 0.01), lines(events(), 1.0)
    assert [line for line in few if line.endswith("done")] == [
        f"{method}: round 30 of 30, accuracy 90.0 % ± 5.0, 0.25 s a round, done"
        for method in ("local", "partial-averaging", "full-averaging")
    ]
    assert len(few) <= 2 + 3 + 1
    assert len(many) == 2 + 3 * ROUNDS
    assert "partial-averaging: round 20 of 30, accuracy 90.0 % ± 5.0, 0.25 s a round, 2.50 s left" in many


def test_a_score_that_is_no_number_is_shown_as_such() -> None:
    told: list[SimulationEvent] = [
        replace(event, score_P=(0.5, math.nan)) if isinstance(event, RoundDone) else event for event in events()
    ]
    assert any("accuracy nan % ± nan" in line for line in lines(iter(told), 1.0))


def test_seeds_count_as_one_run_and_a_resumed_one_goes_on() -> None:
    assert "local, seed 5: round 60 of 60, accuracy 90.0 % ± 5.0, 0.25 s a round, done" in lines(events((4, 5)), 0.01)
    assert lines(events(first_round=29), 1.0)[2].startswith("local: round 29 of 30")


def together() -> Iterator[SimulationEvent]:
    """Yield events of two of four runs at once: one dies after round 2, and another one begins before it restarts."""
    cells = tuple((method, seed) for seed in (0, 1) for method in ("local", "fedavg"))
    yield SimulationStarted(
        run="r",
        dataset="digits",
        peers=2,
        rounds=3,
        cells=cells,
        parameters=(9, 12),
        workers=2,
        device="cpu",
        at_once=2,
    )

    def begin(method: str, seed: int) -> Iterator[SimulationEvent]:
        yield RunBegun(method=method, seed=seed)
        yield MethodStarted(method=method, seed=seed, rounds=3, first_round=1)

    def rounds(method: str, seed: int, *numbers: int) -> Iterator[SimulationEvent]:
        for number in numbers:
            yield RoundDone(
                method=method, seed=seed, round=number, rounds=3, seconds=0.5, score_P=(0.5,), bytes_sent=0,
                messages_sent=0,
            )  # fmt: skip

    yield from begin("local", 0)
    yield from begin("local", 1)
    yield from rounds("local", 0, 1, 2)
    yield from rounds("local", 1, 1)
    yield RunLost(method="local", seed=0, reason="its process ended", round=2)
    yield from begin("fedavg", 0)
    yield from rounds("local", 1, 2, 3)
    yield MethodDone(method="local", seed=1)
    yield from begin("local", 0)
    yield from rounds("fedavg", 0, 1)


def test_of_several_at_once_the_counts_are_true_whoever_dies() -> None:
    board, counts = ProgressTable(), []
    for number, event in enumerate(together()):
        if number == 0:
            assert isinstance(event, SimulationStarted)
            board.start(event)
        board.on_event(event)
        counts.append(board.runs)
    steps = list(dict.fromkeys(counts))
    assert steps == [(0, 0, 4), (0, 1, 3), (0, 2, 2), (1, 1, 2), (1, 2, 1)], "finished, running, waiting"
    assert counts.count((0, 1, 3)) == 3, "also after the death"
    assert board.tallies["local"].rounds_done == 3, "what the dead one had done is undone"
    assert board.name("local") == "local, seed 0"
    written = lines(together(), 1.0)
    assert "local, seed 0: its process ended after round 2; starting again" in written
    assert any(line.startswith("local, 2 seeds at once: round 3 of 6") for line in written)
    assert any(line.endswith("runs: 1 finished, 1 running, 2 waiting") for line in written)


def test_a_device_that_does_the_work_has_no_workers() -> None:
    begun = next(events())
    assert isinstance(begun, SimulationStarted)
    assert ", 30 rounds, 2 workers on cpu; run " in ProgressTable().start(begun)
    assert ", 30 rounds, on cuda; run " in ProgressTable().start(replace(begun, workers=0, device="cuda"))


def test_a_dead_worker_is_named() -> None:
    told = WorkerReplaced(worker="worker2", reason="killed by signal 9", method="local", seed=0, round=3)
    assert "worker2 died (killed by signal 9) in round 3" in lines(iter([told]), 0)[0]


@pytest.mark.parametrize("width", [80, 140])
def test_bars_fit_the_terminal(width: int) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=width, color_system=None, legacy_windows=False)
    with Bars(console) as display:
        for event in events((0, 1)):
            display(event)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()).replace("\r", "\n").splitlines()
    assert max(map(len, shown)) <= width
    assert "note: 3 training examples left over [1]" in screen.getvalue()
    assert "runs finished" not in screen.getvalue(), "there is one at a time"
    last = [line for line in shown if line.startswith("partial-averaging")][-1]
    for word in ("60/60", "90.0 % ± 5.0", "0.25 s/round", "done"):
        assert word in last


def test_names_and_notes_are_shown_as_they_are_written() -> None:
    """They are not read as markup, in which a closing tag without an opening one is an error."""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=140, color_system=None, legacy_windows=False)
    method = "python:mine:[red]Mine[/b]"
    with Bars(console) as display:
        for event in events():
            if isinstance(event, SimulationStarted):
                event = replace(event, dataset="[b]wards[/x]", cells=((method, 0),))
            elif isinstance(event, Remark):
                event = Remark(text="peer1 is left out: [/red] in [i]it[/i]")
            elif event.method != "local":
                continue
            else:
                event = replace(event, method=method)
            display(event)
        display(RunLost(method=method, seed=0, reason="[/gone]", round=0))
        display(WorkerReplaced(worker="[w]", reason="[/r]", method=method, seed=0, round=3))
    for written in (method, "[b]wards[/x]: 16 peers", "left out: [/red] in [i]it[/i]", "[/gone]", "[w] died ([/r])"):
        assert written in screen.getvalue(), written


def test_a_bar_counts_the_runs_where_several_are_under_way() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80, color_system=None, legacy_windows=False)
    with Bars(console) as display:
        for event in together():
            display(event)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()).replace("\r", "\n").splitlines()
    assert max(map(len, shown)) <= 80
    (last, *_) = [line for line in reversed(shown) if line.startswith("runs finished")]
    for words in ("1/4", "2 running", "1 waiting"):
        assert words in last
    assert "local, seed 0: its process ended after round 2; starting again" in shown


def test_the_display_suits_the_stream() -> None:
    assert isinstance(progress_display(Console(file=io.StringIO()), quiet=False), ProgressLines)
    assert isinstance(progress_display(Console(file=io.StringIO(), force_terminal=True), quiet=False), Bars)
    assert isinstance(progress_display(Console(file=io.StringIO(), force_terminal=True), quiet=True), WarningsOnly)


def test_a_quiet_display_hides_progress_and_no_warning() -> None:
    screen = io.StringIO()
    died = WorkerReplaced(worker="worker 1", reason="exit code 1", method="local", seed=0, round=3)
    lost = RunLost(method="local", seed=0, reason="its process ended", round=2)
    with progress_display(Console(file=screen, force_terminal=True, width=40), quiet=True) as display:
        for event in [*events(), Remark(text="starting Ray", progress=True), died, lost]:
            display(event)
    assert re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()).splitlines() == [
        "note: 3 training examples left over [1]",
        "worker 1 died (exit code 1) in round 3 of local; another took over its work",
        "local, seed 0: its process ended after round 2; starting again",
    ]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0004, "0.4 ms"),
        (0.5, "0.50 s"),
        (9.999, "10 s"),
        (59.9, "1 min 0 s"),
        (200, "3 min 20 s"),
        (7500, "2 h 5 min"),
        (3599.7, "1 h 0 min"),
    ],
)
def test_durations(seconds: float, words: str) -> None:
    assert duration_text(seconds) == words


def test_spreads() -> None:
    assert (apart(0.0234, "accuracy"), apart(0.0234, "error"), apart(None, "error")) == ("2.3", "0.0234", "–")


def test_networks_of_several_sizes_are_told_as_a_range() -> None:
    begun = next(together())
    assert isinstance(begun, SimulationStarted)
    assert ", 9 to 12 parameters, " in ProgressTable().start(begun)
    assert ", 9 parameters each, " in ProgressTable().start(replace(begun, parameters=(9,)))
