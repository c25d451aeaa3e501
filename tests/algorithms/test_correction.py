"""The correction of every step's gradient, for all ways to take the steps, against a loop that spells it out."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.correction import Correction
from fedpeer.algorithms.local_training import fresh_steps
from fedpeer.algorithms.losses import LOSSES
from fedpeer.algorithms.optimizers import OptimizerChoice
from fedpeer.algorithms.steppers import Stack, Stepper, Way, build_stepper
from fedpeer.algorithms.training_context import TrainingContext
from fedpeer.slicing.flat import FlatLayout
from tests.algorithms.client_factory import CLOSE, batches, distance, mlp, starts

LOSS = LOSSES["cross-entropy"]
MODULE = mlp()
WAYS: list[Way] = ["single sample", "stack", "mapped", "loop"]


def stepper_of(way: Way, module: nn.Module = MODULE, layout: FlatLayout | None = None, **settings: Any) -> Stepper:
    layout = layout or FlatLayout.of(module)
    return build_stepper(way, module, layout, LOSS, OptimizerChoice("SGD", {"lr": 0.1, **settings}))


def block_of(way: Way) -> Batches:
    return batches(size=1 if way == "single sample" else 6)


def spelt_out(x_n: Tensor, one: Batches, shift_n: Tensor, pull: float, momentum: float) -> Tensor:
    """Train one peer by autograd on loss + shift . x + (pull / 2) x . x."""
    x_n = x_n.clone().requires_grad_()
    optimizer = torch.optim.SGD([x_n], lr=0.1, momentum=momentum)
    for step in range(one.steps):
        views = FlatLayout.of(MODULE).unflatten(x_n)
        answers = torch.func.functional_call(MODULE, views, (one.inputs(step),))
        value = LOSS.value(answers, one.targets(step)) + shift_n @ x_n + pull / 2 * x_n @ x_n
        optimizer.zero_grad()
        torch.autograd.backward(value)
        optimizer.step()
    return x_n.detach()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "momentum"),
    [
        *(pytest.param(way, 0.0, marks=[pytest.mark.soak] if way == "mapped" else []) for way in WAYS),
        *((way, 0.9) for way in WAYS[1:]),
    ],
    ids=lambda value: str(value),
)
def test_every_way_adds_it_to_every_gradient(way: Way, momentum: float) -> None:
    stepper, block, x_Bn = stepper_of(way, momentum=momentum), block_of(way), starts(MODULE, 3)
    shift_Bn = starts(MODULE, 3, seed=5, scale=0.1)
    found = fresh_steps(stepper, x_Bn, block, (1, 2, 3), Correction(shift_Bn, 0.7))
    for p, x_n in enumerate(x_Bn):
        wanted = spelt_out(x_n, block.peer(p), shift_Bn[p], 0.7, momentum)
        assert distance(found[p], wanted) < CLOSE
        alone = fresh_steps(stepper, x_n, block.peer(p), (p + 1,), Correction(shift_Bn[p], 0.7))
        assert distance(alone, found[p]) < 2e-7
        for less in (spelt_out(x_n, block.peer(p), 0 * x_n, 0.7, momentum),
                     spelt_out(x_n, block.peer(p), shift_Bn[p], 0.0, momentum)):  # fmt: skip
            assert distance(less, wanted) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("way", ["stack", "mapped", "loop"])
def test_a_correction_of_nothing_changes_no_bit(way: Way) -> None:
    stepper, block, x_Bn = stepper_of(way), block_of(way), starts(MODULE, 3)
    nothing = Correction.towards(torch.randn_like(x_Bn), 0.0)
    plain, corrected = (fresh_steps(stepper, x_Bn, block, (1, 2, 3), each) for each in (None, nothing))
    assert torch.equal(plain, corrected)


def test_towards_is_the_gradient_of_the_proximal_term() -> None:
    anchor_n, x_n = torch.randn(2, 7, dtype=torch.float64)
    x_n.requires_grad_()
    torch.autograd.backward(1.3 / 2 * (x_n - anchor_n).square().sum())
    torch.testing.assert_close(Correction.towards(anchor_n, 1.3).at(x_n.detach()), x_n.grad)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("layer", [0, 2, 4])
def test_a_layer_is_trained_alone_as_with_autograd_and_the_others_are_not_pulled(layer: int, momentum: float) -> None:
    context = TrainingContext.of(MODULE, LOSS, OptimizerChoice("SGD", {"lr": 0.1, "momentum": momentum}))
    places_D = context.head_D((str(layer),))
    closed = context.training_only(places_D)
    module, whole = copy.deepcopy(MODULE).requires_grad_(False), FlatLayout.of(MODULE)
    module[layer].requires_grad_(True)
    assert isinstance(closed, Stack)
    block, x_Bn = block_of("stack"), starts(MODULE, 3)
    pull = Correction.towards(starts(MODULE, 3, seed=5), 0.7)
    for correction in (None, pull):
        found, wanted = (
            fresh_steps(each, x_Bn, block, (1, 2, 3), correction)
            for each in (closed, stepper_of("loop", module, whole, momentum=momentum))
        )
        assert distance(found, wanted) < CLOSE
        moved = (found != x_Bn).any(0).nonzero().flatten().tolist()
        assert set(moved) <= set(places_D.tolist())
        assert len(moved) > len(places_D) // 2


def test_a_head_that_is_half_a_layer_takes_autograd() -> None:
    context = TrainingContext.of(MODULE, LOSS, OptimizerChoice("SGD", {"lr": 0.1}))
    weights_D = context.head_D(("4",))[:12]
    stepper, block, x_Bn = context.training_only(weights_D), block_of("stack"), starts(MODULE, 3)
    moved = (fresh_steps(stepper, x_Bn, block, (1, 2, 3)) != x_Bn).any(0).nonzero().flatten()
    assert torch.equal(moved, weights_D)


def test_running_statistics_and_frozen_parameters_are_not_pulled() -> None:
    module = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    layout, block, x_Bn = FlatLayout.of(module), batches(), starts(module, 3)
    module[2].requires_grad_(False)
    pull = Correction.towards(torch.full_like(x_Bn, 9.0), 0.5)
    plain, pulled = (
        layout.unflatten(fresh_steps(stepper_of("loop", module, layout, lr=lr), x_Bn, block, (1, 2, 3), each))
        for lr, each in ((0.0, None), (0.0, pull))
    )
    assert torch.equal(plain["1.running_mean"], pulled["1.running_mean"])
    moved = layout.unflatten(fresh_steps(stepper_of("loop", module, layout), x_Bn, block, (1, 2, 3), pull))
    before = layout.unflatten(x_Bn)
    assert torch.equal(moved["2.weight"], before["2.weight"])
    assert float((moved["0.weight"] - before["0.weight"]).mean()) > 1.0
    assert float(moved["1.running_var"].max()) < 9.0
