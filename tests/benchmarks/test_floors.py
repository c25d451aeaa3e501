"""The floors do what fedpeer does, on jobs small enough to be quick: otherwise the comparison would not be fair."""

from __future__ import annotations

from statistics import fmean

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchmarks.common_job import floor_of
from benchmarks.floors import PARAMETERS, SIZES, accuracy, autograd_pass, compiled_pass, layers, manual_pass
from benchmarks.worlds import Engine, beside_a_pass, federation, world_of
from fedpeer.data.dataset import Dataset

EXAMPLES, TEST = 160, 40


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    """Return noise around ten random pictures; the last 40 examples are the test part."""
    draws = np.random.default_rng(0)
    y = draws.integers(10, size=EXAMPLES + TEST)
    x = draws.random((10, 784))[y] + 0.5 * draws.standard_normal((len(y), 784))
    return Dataset(
        name="pictures",
        x=x.astype(np.float32),
        y=y,
        task="classification",
        input_kind="features",
        classes=tuple("0123456789"),
        test_N=np.arange(len(y)) >= EXAMPLES,
    )


def start() -> Tensor:
    return 0.2 * torch.randn(PARAMETERS, generator=torch.Generator().manual_seed(0))


def apart(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


def test_two_processes_by_hand_reach_the_parameters_of_the_engine(dataset: Dataset) -> None:
    world = world_of(federation("blocks:20", peers=8, batch=10, lr=0.1), dataset)
    with Engine(world, "full-averaging", workers=2) as engine, floor_of(engine) as floor:
        began = engine.x_Pn.clone()
        for _ in range(3):
            engine.step()
            floor.train()
            floor.average()
        assert apart(floor.x_Pn - began, engine.x_Pn - began) < 1e-3
        assert apart(floor.x_Pn[0], floor.x_Pn[1]) > 1e-4  # because peers average with neighbors only
        assert floor.evaluate() == pytest.approx([score for score, _ in engine.evaluate()])


@pytest.mark.slow
def test_the_compiled_loop_reaches_the_parameters_of_the_engine(dataset: Dataset) -> None:
    world = world_of(federation("blocks:40", peers=2, batch=1, lr=0.05), dataset)
    with Engine(world, "local", workers=1) as engine:
        began, x_Pn = engine.x_Pn.clone(), engine.x_Pn.clone()
        x, y = np.ascontiguousarray(dataset.x), np.ascontiguousarray(dataset.y)
        ours, theirs = beside_a_pass(
            engine, lambda peer, index_S: compiled_pass(x_Pn[peer].numpy(), x, y, index_S.numpy(), np.float32(0.05)), 1
        )
        assert apart(x_Pn - began, engine.x_Pn - began) < 1e-3
    assert len(ours) == len(theirs) == 1
    assert ours[0]["training"].cpu > 0 < theirs[0]["training"].cpu


def test_backward_by_hand_is_autograd(dataset: Dataset) -> None:
    module = nn.Sequential()
    for place, (weight, bias) in enumerate(layers(start())):
        module.append(nn.Linear(SIZES[place], SIZES[place + 1]))
        module[-1].load_state_dict({"weight": weight, "bias": bias})
        if place < len(SIZES) - 2:
            module.append(nn.Sigmoid())
    x, y = torch.from_numpy(dataset.x), torch.from_numpy(dataset.y)
    index_S, x_n = torch.arange(100), start()
    manual_pass(x_n, x, y, index_S, 20, 0.1)
    autograd_pass(module, x, y, index_S, 20, 0.1)
    assert apart(x_n, torch.cat([p.detach().flatten() for p in module.parameters()])) < 1e-6
    right = [bool(module(x[i : i + 1]).argmax() == y[i]) for i in range(50)]
    assert accuracy(x_n, x[:50], y[:50]) == pytest.approx(fmean(right))
