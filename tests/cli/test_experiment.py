"""`fedpeer experiment` as it is typed: what it shows, what it leaves, how it pauses."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from rich.console import Console

from fedpeer.cli import experiment_progress
from fedpeer.cli.experiment_progress import Bar, Lines, Silence
from fedpeer.sims.events import Event, MethodDone, Remark, RoundDone, WorkerReplaced
from fedpeer.sims.experiments import registry
from fedpeer.sims.experiments.results import Measured
from fedpeer.sims.experiments.runner import Begun, CellBegun, CellDone
from tests.cli.conftest import Fedpeer


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny experiment of the tests beside the papers'."""
    known = {**registry.EXPERIMENTS, "tiny": "tests.sims.test_experiments:TINY"}
    monkeypatch.setattr(registry, "EXPERIMENTS", known)


def done(round: int, rounds: int = 4) -> RoundDone:
    more = {"method": "local", "seed": 0, "seconds": 1.0, "score_P": None, "bytes_sent": 0, "messages_sent": 0}
    return RoundDone(round=round, rounds=rounds, **more)  # type: ignore[arg-type]


MEASURED = Measured(
    label="A", variant="", seeds=(0,), rounds=4, peers=2, per_seed={"PM": (0.75,)}, sent=0.0, seconds=90.0
)
STORY: list[Begun | CellBegun | CellDone | Event] = [
    Begun(runs=4, finished=1),
    CellBegun(label="A", what="seed 0", rounds=4),
    done(1),
    done(2),
    Remark(text="an edge was added"),
    WorkerReplaced(worker="worker 1", reason="exit code 1", method="local", seed=0, round=2),
    done(4),
    MethodDone(method="local", seed=0),
    CellDone(measured=MEASURED),
    CellBegun(label="B", what="trying lr=1", rounds=4),
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
    assert "fig7 is drawn from the runs of fig8" in outcome.out


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
        (["report"], ["nothing", "fedpeer experiment run"]),
        (["report", "tiny", "--full"], ["fedpeer experiment run tiny"]),
        (["report", "fig7"], ["nothing of it was played", "fedpeer experiment run fig7"]),
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
    class Interrupting(Silence):
        def __call__(self, event: Begun | CellBegun | CellDone | Event) -> None:
            if isinstance(event, RoundDone) and event.method == "fedavg" and event.round == 1:
                os.kill(os.getpid(), signal.SIGINT)

    command = ["experiment", "run", "tiny", "--quick", "--workers", "1"]
    with monkeypatch.context() as patched:
        patched.setattr(experiment_progress, "watcher", lambda console, quiet: Interrupting())
        paused = fedpeer(*command)
    assert paused.code == 130, paused.err
    assert "fedpeer experiment run tiny --quick --workers 1" in paused.err
    assert not paused.out
    assert "Not finished: FedAvg." in fedpeer("experiment", "report", "tiny").out

    outcome = fedpeer(*command)
    assert outcome.code == 0, outcome.err
    assert "2 runs, 1 of them finished before" in outcome.err
    for words in ("# A tiny table", "| Local | 90.0 ± 0.1 |", "$ fedpeer experiment run tiny --quick\n", "Page: "):
        assert words in outcome.out
    assert "Not finished" not in outcome.out

    written = fedpeer("experiment", "report", "--quick", "--to", "pages")
    assert written.code == 0, written.err
    text = Path("pages/tiny-quick.md").read_text(encoding="utf-8")
    assert text in written.out
    assert json.loads(Path("pages/tiny-quick.json").read_text(encoding="utf-8"))["name"] == "tiny"
    assert str(Path.cwd()) not in text, "a page names no folder of the machine that made it"


def test_lines_tell_how_far_it_is() -> None:
    """Three runs are left; the one under way has taken 10 s for a quarter of its rounds."""
    now, lines = [0.0], list[str]()
    display = Lines(lines.append, lambda: now[0])
    with display:
        for event in STORY:
            if isinstance(event, RoundDone):
                now[0] += 10.0 if event.round == 1 else 5.0
            display(event)
    assert lines == [
        "4 runs, 1 of them finished before",
        "A, seed 0: run 2 of 4, round 1 of 4, 1 min 50 s left",
        "A, seed 0: run 2 of 4, round 2 of 4, 1 min 15 s left",
        "note: an edge was added",
        "worker 1 died (exit code 1); replaced",
        "A: PM 75.0 %, 1 min 30 s",
    ]
    assert display.tally.left == "40 s left", "two runs as long as the one that was seen"


def test_a_bar_tells_the_same() -> None:
    console = Console(width=80, force_terminal=True, record=True)
    display = Bar(console)
    with display:
        for event in STORY:
            display(event)
        task = display.progress.tasks[0]
        assert (task.completed, task.total, task.description) == (2, 4, "B, trying lr=1")
    shown = console.export_text()
    for words in ("1 of them finished before", "note: an edge was added", "A: PM 75.0 %"):
        assert words in shown
