"""Bytes until an accuracy is reached: the round that is read, the content of the requests, and failing claims."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from fedpeer.experiments.bytes_figure import BYTES
from fedpeer.experiments.columns import COLUMNS
from fedpeer.experiments.experiment import AtAccuracy
from fedpeer.experiments.moments import MEGABYTES, at_accuracy
from fedpeer.experiments.pictures import figure_picture
from fedpeer.experiments.registry import experiment
from fedpeer.experiments.results import Measured
from fedpeer.sims.network.engine import SECONDS


def row(number: int, scores: list[float] | None, seed: int = 0) -> dict[str, Any]:
    return {
        "method": "full-averaging",
        "seed": seed,
        "round": number,
        "seconds": 0.1,
        "accuracy": scores,
        "loss": scores,
        "tested": [1, 1],
        "bytes_sent": [10**6 * number, 10**6],
        "messages_sent": [number, 1],
        "disagreement": {},
        "weight": {},
        "statistics": {SECONDS: [1.0, 2.0]},
    }


ROWS = [
    row(1, [0.1, 0.3]),
    row(2, None),
    row(3, [0.5, 0.7]),
    row(4, [0.4, 0.5]),
    row(5, [0.8, 0.9]),
    row(1, [0.6, 0.7], seed=1),
    row(2, [0.1, 0.1], seed=1),
]


@pytest.mark.parametrize(
    ("accuracy", "megabytes", "scores"),
    [(0.2, (2, 2), (0.2, 0.65)), (0.6, (9, 2), (0.6, 0.65)), (0.7, None, (0.85, 0.1))],
)
def test_a_run_is_read_when_it_is_first_so_accurate(
    accuracy: float, megabytes: tuple[float, ...] | None, scores: tuple[float, ...]
) -> None:
    """All bytes until the goal count, even of rounds without evaluation; the mean over the peers must reach it."""
    measured = Measured.of("x", at_accuracy(ROWS, accuracy), variant="", tried={}, seconds=0.0)
    assert COLUMNS["megabytes"].values(measured) == megabytes
    assert measured.per_seed["PM"] == pytest.approx(scores)
    assert measured.rounds == 1


def test_a_goal_that_is_reached_exactly_is_reached() -> None:
    [found] = at_accuracy([row(1, [0.5, 0.5]), row(2, [0.82, 0.98]), row(3, [0.99, 0.99])], 0.9)
    assert found["accuracy"] == [0.82, 0.98], "their mean is a little below 0.9 in floating point"


def test_the_column_is_the_statistic() -> None:
    assert COLUMNS["megabytes"].metric == MEGABYTES


def test_all_lines_differ_in_gossip_only_and_one_run_is_read_three_times() -> None:
    bytes_figure = experiment("bytes")
    cells = bytes_figure.cells(bytes_figure.sizes["default"])
    requests = {cell.label.partition(";")[0]: cell.variants[""] for cell in cells}
    assert len(cells) == 3 * len(requests) == 33
    assert all(
        request == requests[cell.label.partition(";")[0]] for cell in cells for request in cell.variants.values()
    )
    assert {cell.read for cell in cells} == {AtAccuracy(0.8), AtAccuracy(0.85), AtAccuracy(0.9)}
    contracts = {
        str(request.federation.model_copy(update={"gossip": requests["float32"].federation.gossip}))
        for request in requests.values()
    }
    assert len(contracts) == 1
    assert len({str(request.federation.gossip) for request in requests.values()}) == len(requests)
    assert {request.engine for request in requests.values()} == {"network"}
    assert all(request.federation.learning.evaluate_every == 1 for request in requests.values())


def test_who_never_comes_so_far_takes_too_much() -> None:
    def measured(label: str, megabytes: float | None) -> Measured:
        statistics = {} if megabytes is None else {MEGABYTES: (megabytes,)}
        return Measured(
            label=label,
            variant="",
            seeds=(0,),
            rounds=1,
            peers=10,
            per_seed={"PM": (0.9,)},
            sent=0,
            seconds=0,
            statistics=statistics,
        )

    (claim,) = [each for each in BYTES.claims if each.needs[0].startswith("int8;") and "float32" in each.needs[1]]
    mine, published = claim.needs
    for megabytes, held in ((30.0, True), (30.1, False), (None, False)):
        results = {mine: measured(mine, megabytes), published: measured(published, 100.0)}
        assert claim.check(results).held is held
    assert claim.check({published: measured(published, 100.0)}).held is None
    axes = BYTES.experiment().figure
    assert axes is not None
    data = {"name": "bytes", "size": "quick", "title": "Bytes", "columns": [MEGABYTES], "figure": asdict(axes),
            "places": {mine: {"line": "int8", "x": 90}}, "measured": [measured(mine, None).to_json()]}  # fmt: skip
    assert "Bytes. " in figure_picture(data), "a picture without lines"
