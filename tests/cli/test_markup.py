"""Names that a user or another peer has chosen are printed as they are written, and never as markup."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fedpeer.cli.judgement import Judgement
from fedpeer.cli.main import run
from fedpeer.cli.results import metric_table, result_table

#: Markup that would vanish, and markup that would be an error.
NAME, WRONG = "python:mine:[red]Mine", "python:mine:Mine[/b]"

SLICES = """
network: {mlp: {layers: [64, 12, 10]}}
partial_models:
  "[bold]": {neurons: {input: all, hidden1: 6, output: all}, gossip: {protocol: coordinator}}
  "ward[/x]": {depends_on: ["[bold]"], neurons: {hidden1: 3}, members: [peer1, peer2]}
simulation: {peers: 4, dataset: digits}
"""


def printed(*shown: Any) -> str:
    screen = io.StringIO()
    console = Console(file=screen, width=200)
    for each in shown:
        console.print(each)
        console.print(each, markup=False)
    return screen.getvalue()


def test_methods_and_metrics_in_tables() -> None:
    one = {
        "accuracy_mean": 0.5, "accuracy_worst": 0.4, "accuracy_spread": 0.1, "accuracy_sem": None, "bytes_sent": 10,
        "messages_sent": 1, "seconds_per_round": 1.0, "metrics": {"[b]mine[/c]": {"mean": 0.5, "per_peer": [0.5]}},
    }  # fmt: skip
    summary = {"methods": {NAME: one, WRONG: one}, "seeds": [0], "peers": 3}
    text = printed(result_table(summary), metric_table(summary))
    for written in ("[red]Mine", "Mine[/b]", "[b]mine[/c]"):
        assert written in text


def test_classes_in_tables() -> None:
    classes = ("[red]", "ill[/b]")
    judged = Judgement(classes=classes, by_class=np.ones((2, 4)), confusion=np.eye(2, dtype=np.int64))
    text = printed(*judged.shown())
    for name in classes:
        assert text.count(name) == 2 * 3, "a row in each table, and a column"


def test_partial_models(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "federation.yaml").write_text(SLICES)
    assert run(["slices", "--config", str(tmp_path / "federation.yaml")]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for written in ("[bold]: averaged by a coordinator", "ward[/x] 2 peers", "ward[/x] 225"):
        assert written in text
