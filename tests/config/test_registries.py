"""Names and settings that config repeats, to check a file without torch, match those of their own packages."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch

from fedpeer.algorithms import losses
from fedpeer.algorithms.optimizers import names
from fedpeer.config.choice import call_choice, chain
from fedpeer.config.problems import Path
from fedpeer.config.registries import CHOICES, FORMS, LOSSES, OPTIMIZERS, PACKERS, registry
from fedpeer.gossip import reductions
from tests.config.refusals import refusals


def test_optimizers_and_their_settings_are_torchs() -> None:
    classes = {name.lower(): kind for name, kind in vars(torch.optim).items() if inspect.isclass(kind)}
    for name, settings in OPTIMIZERS.items():
        if name in classes:  # the newest optimizers are not in every version of torch
            assert set(settings.split()) <= inspect.signature(classes[name]).parameters.keys(), name


def test_every_optimizer_of_torch_that_can_be_used_is_in_the_table() -> None:
    assert names().keys() <= OPTIMIZERS.keys()


def test_the_losses_are_those_of_algorithms() -> None:
    assert list(LOSSES) == list(losses.LOSSES)


def test_the_forms_on_the_wire_are_those_of_gossip() -> None:
    for here, there in ((FORMS, reductions.FORMS), (PACKERS, reductions.PACKERS)):
        assert list(here) == list(there)
        for name, function in here.items():
            assert inspect.signature(function).parameters == inspect.signature(there[name]).parameters, name


@pytest.mark.parametrize("wire", ["top-k:0", "top-k:1.5", "float32/zstd:0", "float32/zstd:20"])
def test_what_a_form_refuses_a_check_refuses(wire: str) -> None:
    found = refusals({"gossip": {"wire": wire}})
    assert [problem.path for problem in found] == [("gossip", "wire")]
    first, *packers = chain(wire)
    last, known = (packers[-1], reductions.PACKERS) if packers else (first, reductions.FORMS)
    with pytest.raises(reductions.FormError):
        call_choice(last, cast("dict[str, Callable[..., object]]", known), "form")()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"learning": {"start": "uniform:-1"}}, "uniform: half_width = -1: write a number above 0"),
        ({"simulation": {"metrics": "ece,bins=0"}}, "ece: bins = 0: write a number above 0"),
        ({"learning": {"optimizer": "sgd,lr=0.1,momentum=nan"}}, "sgd: momentum = nan: write a finite number"),
        ({"learning": {"optimizer": "sgd:0.5,lr=0.1"}}, '"sgd:0.5,lr=0.1" sets lr twice, after the colon and by name'),
    ],
)
def test_numbers_out_of_range_are_refused_before_anything_is_trained(settings: dict[str, Any], words: str) -> None:
    (found,) = refusals(settings)
    assert found.text == words


@pytest.mark.parametrize("path", CHOICES)
def test_every_choice_has_something_to_choose_from(path: Path) -> None:
    what, known = registry(path)
    assert what
    assert len(known) >= 2
    assert all(inspect.getdoc(function) for function in known.values())
