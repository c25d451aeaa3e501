"""The rule book: what settings do not go together, by whichever door they come."""

from __future__ import annotations

from typing import Any

import pytest

from fedpeer.config.choice import Choice
from fedpeer.config.federation import Federation
from fedpeer.config.problems import Path
from fedpeer.config.rules import PEERS, Combination, problems_of
from tests.config.refusals import refusals


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ({"learning": {"mode": "asynchronous", "weights": "samples"}}, ("learning", "mode")),
        ({"learning": {"mode": "asynchronous"}, "gossip": {"protocol": "exact"}}, ("learning", "mode")),
        ({"learning": {"passes": 5}}, ("learning", "passes")),
        ({"learning": {"passes": 5, "steps_between_averaging": "pass"}}, None),
        ({"gossip": {"deadline": 0.01}}, ("gossip", "deadline")),
        ({"gossip": {"wire": "float16"}}, ("gossip", "wire")),
        ({"gossip": {"wire": "float32/gzip"}}, ("gossip", "wire")),
        ({"gossip": {"wire": "top-k"}}, ("gossip", "wire")),
        ({"learning": {"mode": "asynchronous"}}, None),
        ({"gossip": {"wire": "top-k:0.1/zstd,level=5"}}, None),
    ],
)
def test_how_peers_take_turns_and_what_they_send(settings: dict[str, Any], place: Path | None) -> None:
    found = refusals(settings)
    assert [problem.path for problem in found] == ([] if place is None else [place])


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        (
            {
                "learning": {"algorithm": "fedavg", "aggregation": "krum:2", "participation": 0.5},
                "simulation": {"peers": 12},
            },
            "aggregation",
        ),
        (
            {
                "learning": {"algorithm": "fedavg", "aggregation": "krum:2", "participation": 0.5},
                "simulation": {"peers": 13},
            },
            None,
        ),
        (
            {"learning": {"aggregation": "krum:2"}},
            None,
        ),  # how many take part is known with the data
        ({"learning": {"aggregation": "krum:2", "privacy": "gaussian"}}, "privacy"),
        ({"learning": {"aggregation": "krum:2", "privacy": "gaussian,where=client"}}, None),
    ],
)
def test_who_may_lie_and_what_is_hidden(settings: dict[str, Any], place: str | None) -> None:
    found = refusals({**settings, "learning": {"algorithm": "fedavg", **settings["learning"]}})
    assert [problem.path for problem in found] == ([] if place is None else [("learning", place)])


@pytest.mark.parametrize("learning", [{"aggregation": "median"}, {"privacy": "gaussian"}, {"farthest": 10}])
def test_peers_that_are_equals_have_nobody_who_aggregates(learning: dict[str, Any]) -> None:
    assert [problem.path for problem in refusals({"learning": learning})] == [("learning", each) for each in learning]
    methods = (Choice("local"), Choice("fedavg"))
    together = Combination(federation=Federation.stored({"learning": learning}), methods=methods, compared=True)
    assert problems_of(together) == [], "a simulation may compare them with an algorithm with a server"


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({}, None),
        ({"learning": {"algorithm": "full-averaging", "weights": "samples"}}, None),
        ({"learning": {"mode": "asynchronous"}}, ("learning", "mode")),
        ({"gossip": {"protocol": "coordinator", "wire": "int8"}}, ("gossip", "wire")),
        ({"gossip": {"protocol": "coordinator", "wire": "float32/zstd"}}, ("gossip", "wire")),
    ],
)
def test_a_coordinator_takes_averages_round_by_round_as_they_are(changes: dict[str, Any], place: Path | None) -> None:
    settings = {"gossip": {"protocol": "coordinator"}} | changes
    assert [problem.path for problem in refusals(settings, PEERS)] == ([] if place is None else [place])


@pytest.mark.parametrize(
    ("learning", "place"),
    [
        ({"algorithm": "fedavg", "aggregation": "median", "privacy": "gaussian,where=client"}, None),
        ({"algorithm": "python:mypkg.mine:Slow"}, None),
        ({"algorithm": "fedavg", "mode": "asynchronous"}, ("learning", "mode")),
    ],
)
def test_real_peers_play_algorithms_with_a_server(learning: dict[str, Any], place: Path | None) -> None:
    assert [problem.path for problem in refusals({"learning": learning}, PEERS)] == ([] if place is None else [place])
