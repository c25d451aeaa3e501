"""Results in Python: a table, a data frame and a picture of a run agree with its rows."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from matplotlib.figure import Figure

from fedpeer.config.federation import Federation
from fedpeer.runs.disk import RunError
from fedpeer.runs.summary import summarise
from fedpeer.sims.record import run_summary
from fedpeer.sims.results import Results
from fedpeer.sims.simulation import Simulation
from tests.runs.run_factory import METHODS, made, row


def results(folder: Path, **options: Any) -> Results:
    run = made(folder, finished=False, **options)
    summary = {"dataset": "digits", "peers": 4, "seeds": list(options.get("seeds", (0,)))}
    run.finish(summary | {"methods": summarise(run.rows())})
    return Results.open("last", folder)


def test_a_run_is_opened_again_by_its_id(tmp_path: Path) -> None:
    found = results(tmp_path)
    assert Results.open(found.folder.name, tmp_path) == found
    assert found.score("local") == pytest.approx(0.5 + 0.05 + 0.06 + 0.01 * 1.5 / 4)
    unfinished = made(tmp_path, name="other", finished=False)
    with pytest.raises(RunError, match=f"run {unfinished.id} is running and has no results yet"):
        Results.open(unfinished.id, tmp_path)


def test_a_score_that_is_no_number_is_nan(tmp_path: Path) -> None:
    """As of a regression that diverged."""
    run = made(tmp_path, rounds=0, measure="error", finished=False)
    run.record(row("local", 1, measure="error") | {"error": [0.5, None, 0.5, 0.5]})
    run.finish({"dataset": "table", "peers": 4, "seeds": [0], "methods": summarise(run.rows())})
    assert np.isnan(Results.open("last", tmp_path).score("local"))


def test_the_summary_of_a_run_in_which_a_peer_diverged_is_strict_json(tmp_path: Path) -> None:
    run = made(tmp_path, rounds=0, measure="error", finished=False)
    validated = {"validation_error": [0.5, None, 0.5, 0.5], "validation_loss": [0.5, None, 0.5, 0.5]}
    run.record(row("local", 1, measure="error") | {"error": [0.5, None, 0.5, 0.5], "tested": [9] * 4} | validated)
    of_run = SimpleNamespace(
        dataset=SimpleNamespace(name="table"),
        world=SimpleNamespace(peers=[f"peer{number}" for number in range(1, 5)]),
        request=SimpleNamespace(seeds=(0,), federation=Federation()),
        worlds={},
    )
    summary = run_summary(run, cast(Simulation, of_run))
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert summary["methods"]["local"]["best_models"]["per_peer"] == [0.5, None, 0.5, 0.5]


def test_each_row_of_the_frame_is_one_peer_in_one_round(tmp_path: Path) -> None:
    frame = results(tmp_path, seeds=(0, 1)).frame()
    assert list(frame.columns) == [
        "method", "seed", "round", "peer", "accuracy", "loss", "bytes_sent", "messages_sent"
    ]  # fmt: skip
    assert len(frame) == len(METHODS) * 2 * 3 * 4
    one = frame.query("method == 'full-averaging' and seed == 1 and round == 3 and peer == 'peer2'").iloc[0]
    assert one["accuracy"] == row("full-averaging", 3, seed=1)["accuracy"][1]
    assert (one["bytes_sent"], one["messages_sent"]) == (300, 6), "since the first round"
    mean = frame[frame["round"] == 3].groupby("method")["accuracy"].mean()
    assert mean["local"] == pytest.approx(results(tmp_path / "again", seeds=(0, 1)).score("local"))


def test_the_score_of_a_run_of_which_a_peer_diverged_is_nan(tmp_path: Path) -> None:
    run = made(tmp_path, methods=(), measure="error", finished=False)
    run.record({**row("local", 1, measure="error"), "error": [1.0, None, 2.0, 3.0]})
    run.record(row("fedavg", 1, measure="error", evaluated=False))
    run.finish({"dataset": "digits", "peers": 4, "seeds": [0], "methods": summarise(run.rows())}, "interrupted")
    found = Results.open("last", tmp_path)
    assert np.isnan(found.score("local"))
    assert repr(found).splitlines()[4].split() == ["FedAvg", "–", "–", "400", "B"], "it was not evaluated yet"


def test_rounds_without_scores_count_for_bytes_and_the_last_row_of_a_round_counts(tmp_path: Path) -> None:
    run = made(tmp_path, rounds=1, methods=("fedavg",), finished=False)
    run.record(row("fedavg", 2, evaluated=False))
    run.record(row("fedavg", 3) | {"metrics": {"auc": [0.5, None, 0.75, 1.0]}})
    run.record(row("fedavg", 3) | {"metrics": {"auc": [0.6, None, 0.75, 1.0]}})
    run.finish({"dataset": "digits", "peers": 4, "seeds": [0], "methods": summarise(run.rows())})
    frame = Results.open("last", tmp_path).frame()
    assert list(frame["round"]) == [1] * 4 + [3] * 4
    assert list(frame["bytes_sent"]) == [100] * 4 + [300] * 4
    np.testing.assert_array_equal(frame["auc"].to_numpy(), [np.nan] * 4 + [0.6, np.nan, 0.75, 1.0])


def test_further_metrics_are_in_the_tables_and_asked_for_by_name(tmp_path: Path) -> None:
    run = made(tmp_path, rounds=2, methods=("fedavg", "local"), finished=False)
    run.record(row("fedavg", 3) | {"metrics": {"auc": [0.6, None, 0.75, 1.0], "f1": [None] * 4}})
    run.finish({"dataset": "digits", "peers": 4, "seeds": [0], "methods": summarise(run.rows())})
    found = Results.open("last", tmp_path)
    assert found.score("fedavg", "auc") == pytest.approx(2.35 / 3)
    assert np.isnan(found.score("fedavg", "f1"))
    with pytest.raises(KeyError, match=r'no metric "acu" in .*; there are auc, f1'):
        found.score("fedavg", "acu")
    with pytest.raises(KeyError, match="there are none"):
        found.score("local", "auc")
    lines = repr(found).splitlines()
    assert lines[2].split() == ["accuracy", "worst", "peer", "auc", "f1", "sent"]
    assert lines[3].split()[-7:-2] == ["0.783", "(3", "of", "4)", "–"]
    assert lines[4].split()[-4:-2] == ["–", "–"]
    assert "0.783 (3 of 4)" in found._repr_html_()


def test_a_history_is_of_one_seed_or_the_mean(tmp_path: Path) -> None:
    found = results(tmp_path, seeds=(0, 4))
    mean, one = found.history("local"), found.history("local", seed=4)
    np.testing.assert_allclose(one.score_RP - mean.score_RP, 0.002, atol=1e-12)
    assert (mean.seeds, one.seeds) == ((0, 4), (4,))
    with pytest.raises(KeyError, match=r"no seed \"5\" in .*; there are 0"):
        found.history("local", seed=5)
    with pytest.raises(KeyError, match=r"no method \"fedavg\" in .*; there are local"):
        found.history("fedavg")


def test_the_plot_has_the_means(tmp_path: Path) -> None:
    found = results(tmp_path, measure="error")
    axes = found.plot(Figure().add_subplot())
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["local only", "partial averaging", "full averaging"]
    for line, method in zip(axes.get_lines(), METHODS, strict=True):
        np.testing.assert_allclose(
            np.asarray(line.get_ydata()), found.history(method).score_RP.mean(axis=1), atol=1e-12
        )
    assert axes.get_ylabel() == "error, mean over peers"


def test_the_text_is_a_table(tmp_path: Path) -> None:
    found = results(tmp_path, seeds=(0, 1))
    lines = repr(found).splitlines()
    assert lines[0] == f"digits, 4 peers, 2 seeds; run {found.folder.name}"
    assert lines[2].split() == ["accuracy", "worst", "peer", "sent"]
    assert lines[3] == "local only         61.4 ± 0.1 %      61.1 %     0 B"
    assert lines[4] == "partial averaging  73.4 ± 0.1 %      73.0 %  1.2 kB"
    assert lines[-1].startswith("Partial averaging: 73.4 %, 12.0 points above local only")


def test_text_from_outside_is_escaped_in_a_notebook(tmp_path: Path) -> None:
    run = made(tmp_path, methods=("python:mine:Local<b>",), finished=False)
    run.finish({"dataset": "<script>", "peers": 4, "seeds": [0], "methods": summarise(run.rows())})
    page = Results.open("last", tmp_path)._repr_html_()
    assert "<script>" not in page
    assert "<b>" not in page
    assert "&lt;script&gt;" in page
    assert "76.4 %" in page


def test_without_pandas_the_way_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = results(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        found.frame()
