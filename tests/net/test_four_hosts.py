"""Four hosts with a table and a key each, from `fedpeer init` to `fedpeer predict`, as the README tells it."""

from __future__ import annotations

import csv
import io
import json

import pytest
from safetensors.torch import load_file

from tests.net.conftest import Calm
from tests.net.groups import WARDS
from tests.net.masses import mass_errors

pytestmark = pytest.mark.slow


def test_the_peers_learned_together(calm: Calm) -> None:
    assert calm.accuracy > 0.92
    assert max(mass_errors([peer.file for peer in calm.peers]).values()) < 1e-6
    for peer in calm.peers:
        assert peer.logged("went_on_without") == []
        assert [line["text"] for line in peer.lines if line["level"] in ("warning", "error")] == []


def test_one_of_them_tells_how_all_are(calm: Calm) -> None:
    peers = {each["id"]: each for each in calm.status["peers"]}
    assert set(peers) == set(WARDS)
    assert {each["state"] for each in peers.values()} == {"me", "alive"}
    assert calm.status["groups"][0]["weight"] > 0


def test_a_model_answers_for_new_rows(calm: Calm) -> None:
    north = calm.peers[0]
    with (north.folder / "north.csv").open() as file:
        rows = list(csv.DictReader(file))
    answered = north.run("predict", "north.yaml", "north.csv")
    assert answered.returncode == 0, answered.stderr
    answers = list(csv.DictReader(io.StringIO(answered.stdout)))
    right = sum(answer["prediction"] == row["digit"] for answer, row in zip(answers, rows, strict=True))
    assert right / len(rows) > 0.92
    assert all(abs(sum(float(answer[f"probability {digit}"]) for digit in range(10)) - 1) < 1e-3 for answer in answers)


def test_a_model_is_measured_and_exported(calm: Calm) -> None:
    east = calm.peers[1]
    measured = east.run("evaluate", "east.yaml", "--json")
    assert measured.returncode == 0, measured.stderr
    assert json.loads(measured.stdout)["accuracy"] == pytest.approx(east.accuracy)
    exported = east.run("export", "east.yaml", "--to", "east.safetensors")
    assert exported.returncode == 0, exported.stderr
    assert sum(tensor.numel() for tensor in load_file(east.folder / "east.safetensors").values()) == 65 * 50 + 51 * 10
