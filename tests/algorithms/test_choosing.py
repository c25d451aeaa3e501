"""Choice of the way to take a round's steps: the quickest exact one, and `vmap` only if a probe shows it exact."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpeer.algorithms.losses import LOSSES
from fedpeer.algorithms.optimizers import OptimizerChoice
from fedpeer.algorithms.steppers import build_stepper, choose, mappable
from fedpeer.slicing.flat import FlatLayout
from tests.algorithms.client_factory import mlp

LOSS = LOSSES["cross-entropy"]
SGD = OptimizerChoice("SGD", {"lr": 0.1})
MOMENTUM = OptimizerChoice("SGD", {"lr": 0.1, "momentum": 0.9})


class Recurring(nn.Module):
    """The last state of a recurrent layer over three places of one feature."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.recurrent = kind(1, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.recurrent(x[:, :3, None])
        last: Tensor = states[:, -1]
        return last


class Foreign(torch.autograd.Function):
    """A gradient of the user's own, in the old style, for which vmap has no rule."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        return 2 * gradients[0]


class Calling(nn.Module):
    """A linear layer followed by a function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.dense, self.function = nn.Linear(5, 3), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.dense(x))


class Counting(nn.Module):
    """A layer that divides by its number of training calls; with one counter per block, its first step is right."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(5, 3)
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
        scaled: Tensor = self.dense(x) / self.calls
        return scaled


def branching(z: Tensor) -> Tensor:
    return z if float(z.sum()) > 0 else 2 * z


class Holding(nn.Module):
    """A linear layer beside a tensor that the loss does not depend on and that a step must not change."""

    def __init__(self, held: str) -> None:
        super().__init__()
        self.dense = nn.Linear(5, 3)
        if held == "frozen":
            self.held = nn.Parameter(torch.ones(3), requires_grad=False)
        else:
            self.register_buffer("held", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.dense(x)
        return answer.tanh()


EXAMPLE = (torch.randn((2, 5), generator=torch.Generator().manual_seed(4)), torch.tensor([0, 2]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "right"),
    [
        (nn.Sequential(nn.Linear(5, 4), nn.GELU(), nn.LayerNorm(4), nn.Linear(4, 3)), True),
        (Calling(torch.tanh), True),
        (Recurring(nn.LSTM), False),
        (Recurring(nn.GRU), False),
        (nn.Sequential(nn.Linear(5, 3), nn.Dropout(0.5)), False),
        (Calling(functional.dropout), False),
        (Calling(branching), False),
        (Calling(Foreign.apply), False),
        (nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3)), False),
        (Counting(), False),
        (Holding("frozen"), True),
        (Holding("buffer"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_vmap_is_taken_only_where_it_gives_the_loops_numbers(module: nn.Module, right: bool) -> None:
    layout = FlatLayout.of(module)
    assert mappable(module, layout, LOSS, *EXAMPLE) is right
    before, generator = layout.flatten(module), torch.get_rng_state()
    way, block = choose(module, layout, LOSS, SGD, batch_size=2, device="cpu", peers=16, example=EXAMPLE)
    assert (way, block > 1) == (("mapped", True) if right else ("loop", False))
    assert torch.equal(layout.flatten(module), before)
    assert torch.equal(torch.get_rng_state(), generator)


def test_where_vmap_only_pretends_the_loop_is_taken_without_a_word() -> None:
    module = Calling(lambda z: torch.renorm(z, 2, 0, 1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a user may do so; vmap then runs a slow loop silently
        assert not mappable(module, FlatLayout.of(module), LOSS, *EXAMPLE)


STACK, OTHER = mlp(), nn.Sequential(mlp(), nn.Tanh(), nn.Linear(3, 3))
WIDE = nn.Sequential(nn.Linear(5, 20_000), nn.GELU(), nn.Linear(20_000, 3))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "loss", "optimizer", "batch", "way"),
    [
        (STACK, "cross-entropy", SGD, 1, "single sample"),
        (STACK, "cross-entropy", SGD, 10, "stack"),
        (STACK, "cross-entropy", MOMENTUM, 1, "stack"),
        (STACK, "cross-entropy", MOMENTUM, 10, "stack"),
        (STACK, "cross-entropy", OptimizerChoice("SGD", {**MOMENTUM.settings, "nesterov": True}), 10, "mapped"),
        (STACK, "cross-entropy", OptimizerChoice("Adafactor", {}), 10, "loop"),
        (STACK, "huber", SGD, 1, "mapped"),
        (OTHER, "cross-entropy", SGD, 1, "mapped"),
        (WIDE, "cross-entropy", SGD, 10, "loop"),
    ],
)
def test_the_quickest_exact_way_is_chosen_on_a_cpu(
    module: nn.Module, loss: str, optimizer: OptimizerChoice, batch: int, way: str
) -> None:
    target = torch.tensor([0, 2]) if LOSSES[loss].classifies else torch.randn(2, 3)
    layout, example = FlatLayout.of(module), (EXAMPLE[0], target)
    found, block = choose(
        module, layout, LOSSES[loss], optimizer, batch_size=batch, device="cpu", peers=16, example=example
    )
    assert found == way
    assert block == (1 if way == "loop" else 4)
    assert type(build_stepper(found, module, layout, LOSSES[loss], optimizer)).__name__.lower() == way.replace(" ", "")


@pytest.mark.slow
def test_a_gpu_takes_all_peers_at_once_and_no_compiled_loop() -> None:
    for module, way in ((STACK, "stack"), (WIDE, "mapped")):
        layout = FlatLayout.of(module)
        found = choose(module, layout, LOSS, SGD, batch_size=1, device="cuda", peers=16, example=EXAMPLE)
        assert found == (way, 16)


@pytest.mark.slow
@pytest.mark.parametrize(("module", "block"), [(STACK, 1000), (OTHER, 125), (WIDE, 125)])
def test_blocks_on_a_gpu_are_even_and_bounded(module: nn.Module, block: int) -> None:
    layout = FlatLayout.of(module)
    found = choose(module, layout, LOSS, SGD, batch_size=10, device="cuda", peers=1000, example=EXAMPLE)
    assert found == ("stack" if module is STACK else "mapped", block)
