"""Initial parameters."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedpeer.algorithms.draws import Draws
from fedpeer.algorithms.start import STARTS, torch_default, uniform
from fedpeer.slicing.flat import FlatLayout


class Own(nn.Module):
    """A module with buffers, layers with `reset_parameters`, and a parameter outside such layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(30, 40)
        self.norm = nn.BatchNorm1d(40)
        self.scale = nn.Parameter(torch.full((7,), 3.0))

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(self.first(x))
        return normed


MODULE = Own()
LAYOUT = FlatLayout.of(MODULE)


def test_uniform_fills_its_interval_and_leaves_the_buffers() -> None:
    x_n = uniform(MODULE, LAYOUT, Draws(0), "")
    drawn = x_n[: LAYOUT.n_parameters]
    assert -0.5 <= float(drawn.min()) < -0.49
    assert 0.49 < float(drawn.max()) <= 0.5
    # Standard error of the mean of 1,327 draws: 0.008; of their standard deviation, 1/sqrt(12), less.
    assert abs(float(drawn.mean())) < 0.04
    assert abs(float(drawn.std()) - 12**-0.5) < 0.02
    buffers = LAYOUT.unflatten(x_n)
    assert torch.equal(buffers["norm.running_mean"], torch.zeros(40))
    assert torch.equal(buffers["norm.running_var"], torch.ones(40))


def test_half_width_scales_the_same_draw() -> None:
    half = uniform(MODULE, LAYOUT, Draws(0), "")[: LAYOUT.n_parameters]
    wide = uniform(MODULE, LAYOUT, Draws(0), "", half_width=2.0)[: LAYOUT.n_parameters]
    torch.testing.assert_close(wide, 4 * half)


@pytest.mark.parametrize("start", ["uniform", "torch"])
def test_a_draw_is_its_seed_and_peer(start: str) -> None:
    def draw(seed: int, peer: str) -> Tensor:
        found: Tensor = STARTS[start](MODULE, LAYOUT, Draws(seed), peer)
        return found

    assert torch.equal(draw(0, ""), draw(0, ""))
    assert not torch.equal(draw(0, "peer1"), draw(0, "peer2"))
    assert not torch.equal(draw(0, ""), draw(1, ""))


@pytest.mark.parametrize("start", STARTS)
def test_neither_the_module_nor_the_global_generator_is_touched(start: str) -> None:
    generator, before = torch.get_rng_state(), LAYOUT.flatten(MODULE)
    STARTS[start](MODULE, LAYOUT, Draws(0), "peer1")
    assert torch.equal(torch.get_rng_state(), generator)
    assert torch.equal(LAYOUT.flatten(MODULE), before)


def test_as_built_is_the_network_itself() -> None:
    assert torch.equal(STARTS["built"](MODULE, LAYOUT, Draws(0), "peer1"), LAYOUT.flatten(MODULE))


def test_torch_default_is_what_reset_parameters_draws() -> None:
    views = LAYOUT.unflatten(torch_default(MODULE, LAYOUT, Draws(0), ""))
    bound = 30**-0.5  # nn.Linear draws from U(-1/sqrt(fan_in), 1/sqrt(fan_in))
    for name in ("first.weight", "first.bias"):
        assert 0.9 * bound < float(views[name].abs().max()) <= bound
        assert not torch.equal(views[name], dict(MODULE.named_parameters())[name])
    assert torch.equal(views["scale"], torch.full((7,), 3.0))
