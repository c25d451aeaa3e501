"""A user's own loss and optimizer: beside fedpeer's, in every way of training, and the messages where they fail."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import grad, vmap

from fedpeer.algorithms.losses import LOSSES, Loss, Task, score_sums
from fedpeer.algorithms.optimizers import ELEMENTWISE, OptimizerChoice, OptimizerError, StateLayout, names
from fedpeer.algorithms.own_loss import LossError, check_own_loss, own_loss
from fedpeer.algorithms.steppers import Way, build_stepper, choose
from fedpeer.slicing.flat import FlatLayout
from tests.algorithms.client_factory import CLOSE, batches, distance, in_torch, mlp, starts
from tests.algorithms.own_code import (
    Lion,
    Normed,
    branching,
    cross_entropies,
    mean_cross_entropy,
    plain,
    sparing_biases,
    squared,
)

CE, MSE = LOSSES["cross-entropy"], LOSSES["mean-squared-error"]
LION = OptimizerChoice("python:own_code:Lion", {"lr": 0.01}, Lion)


def own(function: Callable[..., object], task: Task = "classification", **settings: Any) -> Loss:
    return own_loss("python:mine:loss", function, settings, task)


@pytest.mark.parametrize("lead", [(), (4,), (2, 4)])
@pytest.mark.parametrize("function", [cross_entropies, mean_cross_entropy])
def test_each_example_or_their_mean_with_any_leading_dimensions(
    function: Callable[..., object], lead: tuple[int, ...]
) -> None:
    generator = torch.Generator().manual_seed(0)
    z, y = torch.randn((*lead, 5, 3), generator=generator), torch.randint(0, 3, (*lead, 5), generator=generator)
    torch.testing.assert_close(own(function).value(z, y), CE.value(z, y))
    for found, expected in zip(score_sums(own(function), z, y), score_sums(CE, z, y), strict=True):
        torch.testing.assert_close(found, expected)


def test_numbers_have_the_shape_of_the_outputs() -> None:
    z, y = torch.randn(4, 6, 1), torch.randn(4, 6)
    torch.testing.assert_close(own(squared, "regression").value(z, y), MSE.value(z, y.unsqueeze(-1)))
    check_own_loss(own(squared, "regression"), 1)


def test_labels_have_the_shape_of_the_outputs_and_are_0_and_1() -> None:
    def of_marks(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        each = nn.functional.binary_cross_entropy_with_logits(z, y, reduction="none")
        return torch.where((y == 0) | (y == 1), each, torch.nan).mean(-1)

    z, y = torch.randn(4, 6, 3), (torch.randn(4, 6, 3) > 0).float()
    torch.testing.assert_close(own(of_marks, "multi-label").value(z, y), LOSSES["multi-label"].value(z, y))
    check_own_loss(own(of_marks, "multi-label"), 3)
    calls = itertools.count(1)
    with pytest.raises(LossError, match="mixes the examples"):  # with other targets all its gradients would be 0
        check_own_loss(own(lambda z, y: of_marks(z, y) * next(calls), "multi-label"), 3)


def test_settings_reach_the_function() -> None:
    z, y = torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    torch.testing.assert_close(own(cross_entropies, factor=3.0).value(z, y), 3 * CE.value(z, y))


def test_it_is_mapped_and_differentiated_as_fedpeers() -> None:
    z, y = torch.randn(3, 5, 4), torch.randint(0, 4, (3, 5))
    check_own_loss(own(cross_entropies), 4)
    found, expected = (vmap(grad(each.value))(z, y) for each in (own(cross_entropies), CE))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda z, y: 3.0, "returned float; it must return a tensor"),
        (lambda z, y: z, r"returned shape \(3, 4\) for outputs \(3, 4\); it must return one number, or \(3,\)"),
        (lambda z, y: z.argmax(1), "returned torch.int64, which has no gradient; return real numbers"),
        (lambda z, y: z.sum(1) * torch.nan, "gradient NaN for every output"),
        (lambda z: z.mean(), "failed: TypeError.*; it gets outputs"),
        (lambda z, y: z.nonsense(), "failed: AttributeError"),
        (branching, "cannot be computed for many peers at once"),
        (lambda z, y: z.mean() * torch.rand(()), "without .item\\(\\), random numbers, or branches"),
    ],
)
def test_what_is_wrong_with_a_loss_is_told(function: Callable[..., object], said: str) -> None:
    with pytest.raises(LossError, match=said):
        check_own_loss(own(function), 4)


@pytest.mark.slow
def test_an_own_optimizer_takes_its_own_steps_in_each_way() -> None:
    """The steps are those of one uninterrupted optimizer in torch: its state is kept between rounds."""
    module, x_Bn = mlp(), starts(mlp(), 3)
    layout, rounds = FlatLayout.of(module), [batches(seed=2), batches(seed=3)]
    ways: tuple[Way, ...] = ("loop", "mapped")
    for way in ways:
        stepper = build_stepper(way, module, layout, own(cross_entropies), LION)
        found, s_Bk = x_Bn.clone(), x_Bn.new_zeros(3, stepper.state_size)
        for number, block in enumerate(rounds):
            stepper.train(found, s_Bk, number == 0, block, [0] * 3)
        for p in range(3):
            expected = in_torch(module, x_Bn[p], [each.peer(p) for each in rounds], CE, lambda ps: Lion(ps, lr=0.01))
            assert distance(found[p], expected) < CLOSE
            assert distance(x_Bn[p], expected) > 1e-3


def test_an_own_optimizer_may_have_several_groups_of_parameters() -> None:
    module, rounds = mlp(), [batches(seed=2).peer(0), batches(seed=3).peer(0)]
    choice = OptimizerChoice("python:mine:sparing_biases", {}, sparing_biases)
    stepper, start_n = build_stepper("loop", module, FlatLayout.of(module), CE, choice), starts(module, 1)[0]
    found_Bn, s_Bk = start_n[None].clone(), start_n.new_zeros(1, stepper.state_size)
    for number, one in enumerate(rounds):
        stepper.train(found_Bn, s_Bk, number == 0, one.block(), [0])
    assert distance(found_Bn[0], in_torch(module, start_n, rounds, CE, sparing_biases)) < CLOSE
    assert not choice.elementwise, "a block of peers would be one tensor, of one group"


@pytest.mark.parametrize("kind", sorted(set(names().values()) - {"Muon"}))
def test_the_trial_finds_which_of_torchs_optimizers_are_elementwise(kind: str) -> None:
    settings = {"lr": 0.01} if kind == "SGD" else {}
    choice = OptimizerChoice(f"python:torch:{kind}", settings, getattr(torch.optim, kind))
    assert choice.elementwise == (kind in ELEMENTWISE)


@pytest.mark.slow
def test_who_treats_tensors_as_a_whole_trains_one_peer_after_the_other() -> None:
    module, example = mlp(), (torch.randn(2, 5), torch.tensor([0, 1]))

    def way_of(choice: OptimizerChoice) -> str:
        return choose(module, FlatLayout.of(module), CE, choice, batch_size=6, device="cpu", peers=64, example=example)[
            0
        ]

    assert way_of(LION) == "mapped"
    assert way_of(OptimizerChoice("python:mine:Normed", {}, Normed)) == "loop"


@pytest.mark.parametrize(
    ("function", "settings", "said"),
    [
        (plain, {}, "missing 1 required keyword-only argument: 'lr'"),
        (plain, {"lr": 0.1, "beta": 3}, "unexpected keyword argument 'beta'"),
        (lambda parameters: None, {}, "returned NoneType; it must return a torch.optim.Optimizer"),
    ],
)
def test_what_is_wrong_with_an_optimizer_is_told(function: Any, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(OptimizerError, match=f'optimizer "python:mine:own".*{said}'):
        OptimizerChoice("python:mine:own", settings, function).build([nn.Parameter(torch.zeros(2))])


@pytest.mark.parametrize("betas", [2, (0.9,), (0.9, 0.99, 0.999)])
def test_a_setting_of_several_numbers_says_how_many(betas: Any) -> None:
    choice = OptimizerChoice("Adam", {"lr": 0.1, "betas": betas})
    with pytest.raises(OptimizerError, match=r'"Adam": betas = .*: write 2, as in betas=0.9\+0.999'):
        choice.build([nn.Parameter(torch.zeros(2))])


def test_a_step_that_fails_is_told() -> None:
    class Failing(Lion):
        def step(self, closure: Any = None) -> Any:
            raise KeyError("velocity")

    choice = OptimizerChoice("python:mine:Failing", {}, Failing)
    with pytest.raises(OptimizerError, match="failed in a step with gradients of 0: KeyError: 'velocity'"):
        StateLayout.probe(choice, [nn.Parameter(torch.zeros(2))])
    assert not choice.elementwise
