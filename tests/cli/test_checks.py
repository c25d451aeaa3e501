"""What is repeated here so that a file is checked without torch is what the rooms themselves say."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch

from fedpeer.cli.checks import (
    CHOICES,
    FORMS,
    OPTIMIZERS,
    PACKERS,
    between_peers,
    contradictions,
    plain_network,
    registry,
)
from fedpeer.cli.errors import Path
from fedpeer.config.choice import called, chain, parse
from fedpeer.config.federation import Federation
from fedpeer.gossip import reductions
from fedpeer.networks.registry import NETWORKS
from fedpeer.slicing.trace import trace


def test_optimizers_and_their_settings_are_torchs() -> None:
    classes = {name.lower(): kind for name, kind in vars(torch.optim).items() if inspect.isclass(kind)}
    for name, settings in OPTIMIZERS.items():
        if name in classes:  # the newest are not in every torch
            assert set(settings.split()) <= inspect.signature(classes[name]).parameters.keys(), name


def test_the_forms_on_the_wire_are_those_of_gossip() -> None:
    for here, there in ((FORMS, reductions.FORMS), (PACKERS, reductions.PACKERS)):
        assert list(here) == list(there)
        for name, function in here.items():
            assert inspect.signature(function).parameters == inspect.signature(there[name]).parameters, name


@pytest.mark.parametrize("wire", ["top-k:0", "top-k:1.5", "float32/zstd:0", "float32/zstd:20"])
def test_what_a_form_refuses_a_check_refuses(wire: str) -> None:
    found = contradictions(Federation.model_validate({"gossip": {"wire": wire}}), {})
    assert [problem.path for problem in found] == [("gossip", "wire")]
    first, *packers = chain(wire)
    last, known = (packers[-1], reductions.PACKERS) if packers else (first, reductions.FORMS)
    with pytest.raises(reductions.FormError):
        called(last, cast("dict[str, Callable[..., object]]", known), "form")()


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
    found = contradictions(Federation.model_validate(settings), settings)
    assert [problem.path for problem in found] == ([] if place is None else [place])


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ({"learning": {"aggregation": "krum:2", "participation": 0.5}, "simulation": {"peers": 12}}, "aggregation"),
        ({"learning": {"aggregation": "krum:2", "participation": 0.5}, "simulation": {"peers": 13}}, None),
        ({"learning": {"aggregation": "krum:2"}}, None),  # how many take part is known with the data
        ({"learning": {"aggregation": "krum:2", "privacy": "gaussian"}}, "privacy"),
        ({"learning": {"aggregation": "krum:2", "privacy": "gaussian,where=client"}}, None),
    ],
)
def test_who_may_lie_and_what_is_hidden(settings: dict[str, Any], place: str | None) -> None:
    found = contradictions(Federation.model_validate(settings), settings)
    assert [problem.path for problem in found] == ([] if place is None else [("learning", place)])


@pytest.mark.parametrize("learning", [{"aggregation": "median"}, {"privacy": "gaussian"}, {"farthest": 10}])
def test_peers_that_are_equals_have_nobody_who_aggregates(learning: dict[str, Any]) -> None:
    federation = Federation.model_validate({"learning": learning})
    assert contradictions(federation, {}) == [], "a simulation may compare it with an algorithm with a server"
    assert [problem.path for problem in between_peers(federation)] == [("learning", each) for each in learning]


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
    federation = Federation.model_validate(settings)
    found = contradictions(federation, settings) + between_peers(federation)
    assert [problem.path for problem in found] == ([] if place is None else [place])


@pytest.mark.parametrize(
    ("learning", "place"),
    [
        ({"algorithm": "fedavg", "aggregation": "median", "privacy": "gaussian,where=client"}, None),
        ({"algorithm": "python:mypkg.mine:Slow"}, None),
        ({"algorithm": "fedavg", "mode": "asynchronous"}, ("learning", "mode")),
    ],
)
def test_real_peers_play_algorithms_with_a_server(learning: dict[str, Any], place: Path | None) -> None:
    federation = Federation.model_validate({"learning": learning})
    assert [problem.path for problem in between_peers(federation)] == ([] if place is None else [place])


@pytest.mark.parametrize("path", CHOICES)
def test_every_choice_has_something_to_choose_from(path: Path) -> None:
    what, known = registry(path)
    assert what
    assert len(known) >= 2
    assert all(inspect.getdoc(function) for function in known.values())


def test_an_mlps_parts_are_found_without_building_it() -> None:
    network = plain_network(parse("mlp:6+5+4+3"))
    assert network is not None
    traced = trace(NETWORKS["mlp"]((6,), 3, layers=(6, 5, 4, 3)), torch.zeros(2, 6))
    assert [part.size for part in network.parts] == [part.size for part in traced.parts]
    assert [part.name for part in network.parts] == [part.name for part in traced.parts]
    assert [(tensor.name, tensor.shape) for tensor in network.tensors] == [(t.name, t.shape) for t in traced.tensors]
