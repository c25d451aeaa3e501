"""The cases of the associative network turn red when one function that their adapters call is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedpeer.data.associative import vectors
from fedpeer.networks import associative
from fedpeer.networks.associative import Associative, associate_, fires
from tests.golden.mutating import assert_turned_red, name_of, needs_golden

MODULE = "fedpeer.networks.associative"
#: The functions as they were before any mutation.
LEARN, VECTORS = Associative.learn_, vectors


def either_end_active(weight_OI: Tensor, source_I: Tensor, target_O: Tensor, rate: float) -> None:
    """Follow the paper's prose and not its listing: links also weaken where only their target is active."""
    associate_(weight_OI, source_I, target_O, rate)
    only_target = (1 - source_I).unsqueeze(-2) * target_O.unsqueeze(-1)
    weight_OI.sub_(only_target * rate / 2 * (1 + weight_OI))


def the_whole_way(weight_OI: Tensor, source_I: Tensor, target_O: Tensor, rate: float) -> None:
    associate_(weight_OI, source_I, target_O, 2 * rate)


def never_weaker(weight_OI: Tensor, source_I: Tensor, target_O: Tensor, rate: float) -> None:
    weight_OI.add_(target_O.unsqueeze(-1) * source_I.unsqueeze(-2) * rate / 2 * (1 - weight_OI))


def below_the_threshold(x_MI: Tensor, weight_OI: Tensor, threshold: float) -> Tensor:
    return 1 - fires(x_MI, weight_OI, threshold)


def all_at_once(self: Associative, tensors: Mapping[str, Tensor], patterns: Tensor, rate: float) -> None:
    """Let every pattern of a batch learn on the weights as they were before the batch."""
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    for pattern in patterns:
        after = {name: tensor.clone() for name, tensor in before.items()}
        LEARN(self, after, pattern.unsqueeze(0), rate)
        for name, tensor in tensors.items():
            tensor += after[name] - before[name]


@needs_golden
@pytest.mark.parametrize(
    ("target", "mutant"),
    [
        (f"{MODULE}.associate_", either_end_active),
        (f"{MODULE}.associate_", the_whole_way),
        (f"{MODULE}.associate_", never_weaker),
        (f"{MODULE}.fires", below_the_threshold),
        (f"{MODULE}.Associative.learn_", all_at_once),
    ],
    ids=name_of,
)
def test_a_wrong_network_is_seen(target: str, mutant: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_turned_red("07a_associative_network", target, mutant, monkeypatch)


def without_wrapping(number_K: Any, *, n: int, m: int, z: int, s: int, changed_K: Any) -> Any:
    return tuple(each[:, :n] for each in VECTORS(number_K, n=3 * m * s + n, m=m, z=z, s=s, changed_K=changed_K))


def noise_on_the_whole_only(number_K: Any, **settings: Any) -> Any:
    whole, noisy, _ = VECTORS(number_K, **settings)
    return whole, noisy, VECTORS(number_K, **{**settings, "z": 0})[2]


def half_of_the_completion(number_K: Any, *, m: int, changed_K: Any, **settings: Any) -> Any:
    """Follow a possible reading of the paper's example: half of the ones to be completed are other ones."""
    usual = VECTORS(number_K, m=m, changed_K=np.zeros_like(changed_K), **settings)
    other = VECTORS(number_K, m=m, changed_K=changed_K, **settings)
    columns = np.arange(settings["n"]) % 2 == 0
    return tuple(np.where(columns, a, b) for a, b in zip(usual, other, strict=True))


@needs_golden
@pytest.mark.parametrize("mutant", [without_wrapping, noise_on_the_whole_only, half_of_the_completion], ids=name_of)
def test_a_wrong_generator_is_seen(mutant: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_turned_red("07b_vector_generator", "tests.golden.adapters_associative.vectors", mutant, monkeypatch)


def test_a_unit_fires_at_its_threshold_itself() -> None:
    """The golden case has no exact tie, so this test has some."""
    x_2I = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0]], dtype=torch.float64)
    weight_OI = torch.tensor([[0.25, 0.25, 0.0], [0.25, 0.125, 0.125], [0.5, 0.0, 2.0**-50]], dtype=torch.float64)
    assert associative.fires(x_2I, weight_OI, 0.5).tolist() == [[1, 0, 1], [0, 0, 1]]
    weight_OI -= 2.0**-50
    assert associative.fires(x_2I, weight_OI, 0.5).tolist() == [[0, 0, 0], [0, 0, 0]]
