"""Peers observed from outside: files that grow while they are read, and ports that another process has."""

from __future__ import annotations

import json
import math
import socket
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fedpeer.config.choice import parse_choice
from fedpeer.config.federation import Federation
from fedpeer.sims.processes import settling
from fedpeer.sims.processes.process_pool import ProcessPool, _end
from fedpeer.sims.processes.settling import HOST, free_ports
from fedpeer.sims.processes.watch import WARNINGS_MAX, JsonLinesReader, Watched, slowest
from fedpeer.sims.vector.pool import EngineError
from tests.sims import worlds


def row(round: int, accuracy: float | None = None, loss: float | None = None, weight: float = 1.0) -> dict[str, Any]:
    traffic = {"messages_sent": 10 + round, "bytes_sent": 100 + round, "seconds": 0.5}
    return {"round": round, "accuracy": accuracy, "loss": loss, "weight": {"everyone": weight}} | traffic


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_lines_are_given_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    lines = JsonLinesReader(path)
    assert lines.new() == []
    append(path, '{"a": 1}\n{"a"')
    assert lines.new() == [{"a": 1}]
    assert lines.new() == []
    append(path, ': 2}\n{"a": 3, {"a": 4}\n[5]\n{"a": 6}\n')  # one line was cut off by a kill, one is not an object
    assert lines.new() == [{"a": 2}, {"a": 6}]
    path.write_text('{"b": 1}\n')  # as a log that has become too long
    assert lines.new() == [{"b": 1}]


def test_of_a_round_that_was_done_again_the_later_row_counts(tmp_path: Path) -> None:
    watched = Watched("peer1", tmp_path)
    for each in (row(1, 0.5, 2.0), row(2, 0.6, 1.5), row(2, 0.7, 1.0), row(5)):
        append(tmp_path / "metrics.jsonl", json.dumps(each) + "\n")
    watched.look()
    assert watched.done == 5
    assert watched.row(2)["accuracy"] == 0.7
    assert watched.row(4) == watched.row(2), "it skipped rounds 3 and 4"
    assert watched.row(0)["round"] == 1, "it came late: the first that there is"
    assert [watched.sent(round) for round in (2, 3, 4, 5)] == [(12, 102), (0, 0), (0, 0), (15, 105)]
    assert [slowest([watched], round).average for round in (2, 3)] == [0.5, 0.0]
    assert watched.results(1) == (0.5, 2.0)
    assert watched.results(5) == (0.7, 1.0), "round 5 was not evaluated"


def test_who_came_late_has_its_first_scores(tmp_path: Path) -> None:
    watched = Watched("peer1", tmp_path)
    for each in (row(3), row(4, 0.4, 1.8), row(6, 0.6, 1.5)):
        append(tmp_path / "metrics.jsonl", json.dumps(each) + "\n")
    watched.look()
    assert watched.results(1) == (0.4, 1.8), "its first update counted in round 3, and round 4 was evaluated first"
    assert watched.results(5) == (0.4, 1.8)


def test_a_lost_loss_is_no_number(tmp_path: Path) -> None:
    watched = Watched("peer1", tmp_path)
    append(tmp_path / "metrics.jsonl", json.dumps(row(1, 0.1, None)) + "\n")
    watched.look()
    score, loss = watched.results(1)
    assert score == 0.1
    assert math.isnan(loss)


def test_the_log_tells_what_matters_to_the_result_and_not_for_ever(tmp_path: Path) -> None:
    watched = Watched("peer1", tmp_path)
    for level, what in (("info", "started"), ("info", "met"), ("info", "went_on_without"), ("warning", "refused")):
        append(tmp_path / "log.jsonl", json.dumps({"level": level, "what": what, "text": f"{what}!"}) + "\n")
    assert watched.look() == ["peer1: went_on_without!", "peer1: refused!"]
    assert watched.listening
    for _ in range(10):
        append(tmp_path / "log.jsonl", json.dumps({"level": "error", "what": "x", "text": "again"}) + "\n")
    assert len(watched.look()) == WARNINGS_MAX - 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"peer": "peer3", "what": "ended", "text": "", "fields": {"code": -9}}', ("peer3", -9)),
        ('{"peer": "peer3", "what": "started", "text": ""}', None),
        ("peer3: finished all 5 rounds", None),
        ("[1, 2]", None),
    ],
)
def test_an_end_is_told_from_other_lines(line: str, said: tuple[str, int] | None) -> None:
    assert _end(line) == said


@pytest.mark.skipif(sys.platform == "win32", reason="a script of the shell")
def test_last_words_are_no_warnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Quiet peers print warnings, which would leave no room for the reason of an end; their logs have them anyway."""
    warning, error = (json.dumps({"peer": "peer1", "level": level, "what": "x"}) for level in ("warning", "error"))
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\nprintf '%s\\n' '{error}' 'out of memory' '{warning}' '[1, 2]' >&2\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    pool = ProcessPool({"peer1": tmp_path / "peer1.yaml"}, 1)
    pool.wait()
    assert pool.words.splitlines() == [error, "out of memory", "[1, 2]"]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"gossip": {"tolerance": 1e-4}},  # no bound on the exchanges, which the same tolerance by default has
        {"learning": {"alone_limit": None}},
        {
            "simulation": {"dataset": "csv:ward.csv,label=ill"},  # other defaults
            "partial_models": {"all": {"neurons": "all"}},
            "learning": {"optimizer": "sgd,lr=0.1", "batch_size": 1, "steps_between_averaging": 87},
        },
    ],
)
def test_peers_read_the_settings_of_their_simulation(settings: dict[str, Any]) -> None:
    given = Federation.model_validate(settings)
    assert Federation.model_validate(settling.written(given)).digest() == given.digest()


def test_identities_that_take_too_long_to_make_are_an_error_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "_INIT_S", 0.0)
    made = worlds.world(worlds.federation(simulation__peers=2))
    with pytest.raises(EngineError, match="took longer than 0 s"):
        settling.settle(tmp_path / "made", made, parse_choice("local"), "cpu")


def test_ports_are_free_for_peers_and_dashboards(monkeypatch: pytest.MonkeyPatch) -> None:
    first = free_ports(3)
    with ExitStack() as held:
        for port in (*range(first, first + 3), *range(first + 100, first + 103)):
            held.enter_context(socket.create_server((HOST, port)))
        monkeypatch.setattr(settling, "PORTS", range(first, first + 104))
        with pytest.raises(EngineError, match="no 3 consecutive free ports"):
            free_ports(3)
