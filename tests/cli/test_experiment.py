"""`fedpeer experiment` on the command line: its output, the files that it leaves, and how it pauses."""

from __future__ import annotations

import io
import json
import os
import re
import signal
from pathlib import Path

import pytest
from rich.console import Console

from fedpeer.cli import experiment_progress
from fedpeer.cli.experiment_progress import Bar, ExperimentLines, ExperimentWarnings
from fedpeer.experiments import registry
from fedpeer.experiments.events import Begun, CellDone, ExperimentEvent, OfRun
from fedpeer.experiments.results import Measured
from fedpeer.sims.events import (
    MethodDone,
    MethodStarted,
    Remark,
    RoundDone,
    RunBegun,
    RunLost,
    SimulationEvent,
    WorkerReplaced,
)
from tests.cli.conftest import Fedpeer


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the tiny experiment of the tests to the experiments of the papers."""
    known = {**registry.EXPERIMENTS, "tiny": "tests.experiments.test_experiments:TINY"}
    monkeypatch.setattr(registry, "EXPERIMENTS", known)


def done(round: int, rounds: int = 4) -> RoundDone:
    more = {"method": "local", "seed": 0, "seconds": 1.0, "score_P": None, "bytes_sent": 0, "messages_sent": 0}
    return RoundDone(round=round, rounds=rounds, **more)  # type: ignore[arg-type]


MEASURED = Measured(
    label="A", variant="", seeds=(0,), rounds=4, peers=2, per_seed={"PM": (0.75,)}, sent=0.0, seconds=90.0
)


def of(run: str, *events: SimulationEvent) -> list[ExperimentEvent]:
    return [OfRun(run=run, event=event) for event in events]


BEGUN, STARTED = RunBegun(method="local", seed=0), MethodStarted(method="local", seed=0, rounds=4, first_round=1)
STORY: list[ExperimentEvent] = [
    Begun(runs=4, finished=1),
    *of(
        "A, seed 0",
        BEGUN,
        STARTED,
        done(1),
        done(2),
        Remark(text="an edge was added"),
        WorkerReplaced(worker="worker 1", reason="exit code 1", method="local", seed=0, round=2),
        done(4),
        MethodDone(method="local", seed=0),
    ),
    CellDone(measured=MEASURED),
    *of("B, trying lr=1", BEGUN, STARTED),
]


def test_the_list_names_what_there_is_and_what_it_needs(fedpeer: Fedpeer) -> None:
    outcome = fedpeer("experiment", "list")
    assert outcome.code == 0, outcome.err
    for name in registry.EXPERIMENTS:
        assert name in outcome.out
    assert "fashion-mnist" in outcome.out
    assert max(map(len, outcome.out.splitlines())) <= 80
    assert "…" not in outcome.out
    heads = [line.split() for line in outcome.out.splitlines() if line.startswith(" name ")]
    assert heads == [["name", "what", "data", "quick", "default", "full"]] * len(heads)
    assert "fig7 uses the runs of fig8" in outcome.out


@pytest.mark.parametrize("command", ["list", "run", "report"])
def test_help_fits_a_small_terminal(fedpeer: Fedpeer, command: str) -> None:
    outcome = fedpeer("experiment", command, "--help")
    assert outcome.code == 0
    assert max(map(len, outcome.out.splitlines())) <= 80
    assert "…" not in outcome.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "pfedvem-table"], ['"pfedvem-table"', "pfedvem-table1"]),
        (["run", "tiny", "--quick", "--full"], ["--quick and --full", "leave one out"]),
        (["run", "tiny", "--only", "Global"], ['no cell "Global"', "Local; FedAvg"]),
        (["run", "tiny", "--seeds", "0"], ["--seeds"]),
        (["run", "tiny", "--no-search", "--only", "Global"], ["no cell"]),
        (["run", "tiny", "--device", "tpu"], ["tpu"]),
        (["run", "tiny", "--engine", "vector"], ["--engine", '"vector" does not distribute runs', "write ray"]),
        (["run", "tiny", "--address", "auto"], ["--address", "add --engine ray"]),
        (["run", "tiny", "--engine", "ray", "--address", "head"], ['"head" is not an address', "HOST:PORT"]),
        (["run", "tiny", "--engine", "ray", "--device", "cuda"], ["the ray engine trains on CPUs"]),
        (["run", "mocha-table", "--loss", "huber"], ["--loss", "mocha-table fixes this setting"]),
        (["run", "fig27", "--loss", "squared-error"], ["--loss", "fig27 fixes this setting"]),
        (["run", "fig17", "--dataset", "mnist"], ["--dataset", "fig17 fixes this setting"]),
        (["run", "fig27", "--dataset", "digits"], ["--dataset", "fig27 is about associative; write other settings"]),
        (["run", "fig27", "--dataset", "associative,change=1"], ["--dataset", "changed"]),
        (["run", "fig26", "--split", "usr", "--normalise", "standard"], ["--split", 'did you mean "user"']),
        (
            ["run", "fig17", "--loss", "huge", "--start", "uniforn:1"],
            ['there is no loss "huge"', 'did you mean "uniform"?'],
        ),
        (["report"], ["no runs of any experiment", "fedpeer experiment run"]),
        (["report", "tiny", "--full"], ["fedpeer experiment run tiny"]),
        (["report", "fig7"], ["has no runs of fig7 yet", "fedpeer experiment run fig7"]),
        (["report", "tinny"], ['did you mean "tiny"']),
    ],
    ids=" ".join,
)
@pytest.mark.usefixtures("tiny")
def test_mistakes(fedpeer: Fedpeer, arguments: list[str], words: list[str]) -> None:
    outcome = fedpeer("experiment", *arguments)
    assert outcome.code == 2, outcome.err
    assert not outcome.out
    for word in words:
        assert word in " ".join(outcome.err.split())
    assert not Path("fedpeer-runs").exists(), "a mistake leaves nothing behind"


@pytest.mark.slow
@pytest.mark.usefixtures("tiny")
def test_a_run_is_paused_goes_on_and_is_reported(fedpeer: Fedpeer, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupting(ExperimentWarnings):
        def __call__(self, event: ExperimentEvent) -> None:
            match event:
                case OfRun(event=RoundDone(method="fedavg", round=1)):
                    os.kill(os.getpid(), signal.SIGINT)

    command = ["experiment", "run", "tiny", "--quick", "--workers", "1"]
    with monkeypatch.context() as patched:
        patched.setattr(experiment_progress, "experiment_display", lambda console, quiet: Interrupting(print))
        paused = fedpeer(*command)
    assert paused.code == 130, paused.err
    assert "fedpeer experiment run tiny --quick --workers 1" in paused.err
    assert not paused.out
    assert "Not finished: FedAvg." in fedpeer("experiment", "report", "tiny").out

    outcome = fedpeer(*command)
    assert outcome.code == 0, outcome.err
    assert "2 runs, 1 of them finished already" in outcome.err
    for words in ("# A tiny table", "| Local | 90.0 ± 0.1 |", "$ fedpeer experiment run tiny --quick\n", "Page: "):
        assert words in outcome.out
    assert "Not finished" not in outcome.out

    written = fedpeer("experiment", "report", "--quick", "--to", "pages")
    assert written.code == 0, written.err
    text = Path("pages/tiny-quick.md").read_text(encoding="utf-8")
    assert text in written.out
    assert json.loads(Path("pages/tiny-quick.json").read_text(encoding="utf-8"))["name"] == "tiny"
    assert str(Path.cwd()) not in text, "a page names no folder of the machine that made it"

    Path("pages/scale.json").write_text("[]", encoding="utf-8")  # not a page of an experiment
    again = fedpeer("experiment", "report", "--from", "pages", "--to", "again")
    assert again.code == 0, again.err
    for name in ("tiny-quick.md", "tiny-quick.json"):
        assert Path("again", name).read_bytes() == Path("pages", name).read_bytes()
    assert not Path("again/scale.json").exists()
    assert "--from" in fedpeer("experiment", "report", "tiny", "--full", "--from", "pages").err

    Path("pages/tiny-default.json").write_text('{"name": "tiny"}', encoding="utf-8")
    damaged = fedpeer("experiment", "report", "--from", "pages")
    assert damaged.code == 2
    assert "pages/tiny-default.json has the name of a page's numbers" in damaged.err


def test_lines_tell_how_far_it_is() -> None:
    """Three runs are left; the current one has taken 10 s for a quarter of its rounds."""
    now, lines = [0.0], list[str]()
    display = ExperimentLines(lines.append, lambda: now[0])
    with display:
        for event in STORY:
            match event:
                case OfRun(event=RoundDone(round=round)):
                    now[0] += 10.0 if round == 1 else 5.0
            display(event)
    assert lines == [
        "4 runs, 1 of them finished already",
        "A, seed 0: run 2 of 4, round 1 of 4, 1 min 50 s left",
        "A, seed 0: run 2 of 4, round 2 of 4, 1 min 15 s left",
        "note: an edge was added",
        "worker 1 died (exit code 1); replaced",
        "A: PM 75.0 %, 1 min 30 s",
    ]
    assert display.tally.left == "40 s left", "two runs as long as the one that was seen"


def test_a_quiet_experiment_hides_progress_and_no_warning() -> None:
    screen = io.StringIO()
    with experiment_progress.experiment_display(Console(file=screen, width=40), quiet=True) as display:
        for event in [*STORY, *SPREAD, Remark(text="starting Ray", progress=True)]:
            display(event)
    assert screen.getvalue().splitlines() == [
        "note: an edge was added",
        "worker 1 died (exit code 1); replaced",
        "A, seed 0: its machine is lost after round 2; starting again",
    ]


def test_a_bar_tells_the_same() -> None:
    console = Console(width=80, force_terminal=True, record=True)
    display = Bar(console)
    with display:
        for event in STORY:
            display(event)
        task = display.progress.tasks[0]
        assert (task.completed, task.total, task.description) == (2, 4, "B, trying lr=1")
    shown = console.export_text()
    for words in ("1 of them finished already", "note: an edge was added", "A: PM 75.0 %"):
        assert words in shown


LOST = RunLost(method="local", seed=0, reason="its machine is lost", round=2)
#: Three runs at once; one of them dies and waits again.
SPREAD: list[ExperimentEvent] = [
    Begun(runs=6, finished=1, at_once=3),
    *of("A, seed 0", BEGUN, STARTED, done(1)),
    *of("A, seed 1", BEGUN, STARTED),
    *of("B, trying lr=1", BEGUN),
    *of("A, seed 0", done(2), LOST),
    *of("A, seed 1", done(1), done(2)),
]


def test_lines_count_what_is_under_way() -> None:
    now, lines = [0.0], list[str]()
    display = ExperimentLines(lines.append, lambda: now[0])
    with display:
        for event in SPREAD:
            now[0] += 5.0
            display(event)
    assert lines[0] == "6 runs, 1 of them finished already"
    assert "A, seed 0: its machine is lost after round 2; starting again" in lines
    assert lines[-1].startswith("A, seed 1: round 2 of 4; 1 of 6 runs finished, 2 running, 3 waiting, ")
    # Seed 1 began 30 s ago and has done half of its rounds, so a run takes 60 s. B began 20 s ago. Two run, three wait.
    assert display.tally.left == "2 min 5 s left", "(30 + 40 + 3 * 60) / 2"


def test_a_terminal_has_a_bar_for_each_run_under_way() -> None:
    screen = io.StringIO()
    display = Bar(Console(file=screen, width=80, force_terminal=True, color_system=None, legacy_windows=False))
    with display:
        for event in SPREAD:
            display(event)
        first, *others = display.progress.tasks
        assert (first.description, first.completed, first.total) == ("2 running, 3 waiting", 1, 6)
        assert [(each.description, each.completed, each.total) for each in others] == [
            ("  A, seed 1", 2, 4),
            ("  B, trying lr=1", 0, None),
        ]
        for number in range(20):
            for event in of(f"a cell with a long name, number {number}, seed 0", BEGUN, STARTED):
                display(event)
        assert len(display.progress.tasks) == 1 + experiment_progress.BARS_MAX
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()).replace("\r", "\n").splitlines()
    assert max(map(len, shown)) <= 80
    assert "A, seed 0: its machine is lost after round 2; starting again" in shown
