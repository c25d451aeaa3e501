"""Weights of classes in the loss, beside torch's own weighted losses and scikit-learn's balanced weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from torch import Tensor, nn
from torch.nn import functional

import fedpeer.algorithms.mapped
from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.bayesian_training import Posterior, training_of
from fedpeer.algorithms.class_weights import balanced
from fedpeer.algorithms.dfedalt import DFedSalt
from fedpeer.algorithms.dispfl import DisPfl
from fedpeer.algorithms.dpsgd import DPsgd
from fedpeer.algorithms.gaussian import Gaussian
from fedpeer.algorithms.gradient_tracking import GradientTracking
from fedpeer.algorithms.gradients import gradient_of
from fedpeer.algorithms.leaves import leaves_of
from fedpeer.algorithms.losses import LOSSES
from fedpeer.algorithms.optimizers import OptimizerChoice
from fedpeer.algorithms.servers.apfl import Apfl
from fedpeer.algorithms.servers.fedala import FedAla
from fedpeer.algorithms.servers.fedavg import FedAvg
from fedpeer.algorithms.servers.perfedavg import PerFedAvg
from fedpeer.algorithms.steppers import Way, build_stepper
from fedpeer.algorithms.training_context import TrainingContext
from fedpeer.algorithms.unfolded import unfolded
from fedpeer.slicing.flat import FlatLayout
from tests.algorithms.client_factory import CLOSE, batches, distance, mlp, starts

#: Weights of three classes, of three peers.
WEIGHT_PC = torch.tensor([[1.0, 1.0, 9.0], [0.2, 3.0, 1.0], [4.0, 0.5, 2.0]])


def weighted(**settings: object) -> Batches:
    return replace(batches(**settings), class_weight=WEIGHT_PC)  # type: ignore[arg-type]


def looped(module: nn.Module, x_n: Tensor, one: Batches, weight_C: Tensor, lr: float) -> Tensor:
    """Return one peer's parameters after plain steps on torch's weighted cross-entropy."""
    layout = FlatLayout.of(module)
    module.load_state_dict({name: value.clone() for name, value in layout.unflatten(x_n).items()})
    optimizer = torch.optim.SGD(module.parameters(), lr=lr)
    for step in range(one.steps):
        optimizer.zero_grad()
        loss = functional.cross_entropy(module(one.inputs(step)), one.targets(step), weight=weight_C)
        torch.autograd.backward(loss)
        optimizer.step()
    return layout.flatten(module)


@pytest.mark.parametrize("y", [[0, 0, 0, 1, 2, 2], [1, 1, 1], [0, 2, 2, 2, 2, 2, 2]])
def test_balanced_weights_are_those_of_scikit_learn(y: list[int]) -> None:
    found, there = balanced(torch.tensor(y), 4), np.unique(y)
    expected = compute_class_weight("balanced", classes=there, y=np.array(y))
    assert found[there].tolist() == pytest.approx(expected.tolist())
    assert found.shape == (4,)
    assert found.sum() == found[there].sum(), "a class without examples has no weight"


@pytest.mark.parametrize("lead", [(), (2,)])
def test_a_weighted_mean_is_torchs(lead: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn((*lead, 6, 3), generator=generator, dtype=torch.float64)
    y, weight_C = torch.randint(0, 3, (*lead, 6), generator=generator), WEIGHT_PC[0].double()
    found = LOSSES["cross-entropy"].mean(z, y, weight_C[y])
    rows = zip(z.reshape(-1, 6, 3), y.reshape(-1, 6), strict=True)
    expected = torch.stack([functional.cross_entropy(a, b, weight=weight_C) for a, b in rows])
    torch.testing.assert_close(found.reshape(-1), expected)


@pytest.mark.parametrize(("loss", "outputs"), [("cross-entropy", 3), ("binary", 1)])
def test_the_closed_slope_is_the_gradient_of_the_weighted_mean(loss: str, outputs: int) -> None:
    generator = torch.Generator().manual_seed(1)
    z = torch.randn((2, 5, outputs), generator=generator, dtype=torch.float64, requires_grad=True)
    y = torch.randint(0, max(2, outputs), (2, 5), generator=generator)
    weight = WEIGHT_PC[0].double()[y]
    (gradient,) = torch.autograd.grad(LOSSES[loss].mean(z, y, weight).sum(), z)
    torch.testing.assert_close(LOSSES[loss].slope(z.detach(), y, weight) / 5, gradient)


def test_a_weighted_binary_loss_is_the_mean_of_torchs_terms() -> None:
    z, y = torch.tensor([[0.3], [-2.0], [1.5]]), torch.tensor([1, 0, 1])
    each = functional.binary_cross_entropy_with_logits(z[:, 0], y.float(), reduction="none")
    weight = torch.tensor([1.0, 5.0])[y]
    assert LOSSES["binary"].mean(z, y, weight).item() == pytest.approx(np.average(each.numpy(), weights=weight.numpy()))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["stack", "mapped", "loop"])
def test_each_way_takes_the_steps_of_a_loop_over_torchs_weighted_loss(way: Way) -> None:
    module, lr = mlp(), 0.5
    layout, block, x_Bn = FlatLayout.of(module), weighted(), starts(module, 3)
    found = x_Bn.clone()
    stepper = build_stepper(way, module, layout, LOSSES["cross-entropy"], OptimizerChoice("SGD", {"lr": lr}))
    stepper.train(found, found.new_zeros(3, stepper.state_size), True, block, [0] * 3)
    plain = x_Bn.clone()
    stepper.train(plain, plain.new_zeros(3, stepper.state_size), True, replace(block, class_weight=None), [0] * 3)
    for p in range(3):
        expected = looped(module, x_Bn[p], block.peer(p), WEIGHT_PC[p], lr)
        assert distance(found[p], expected) < CLOSE
        assert distance(plain[p], expected) > 1e-3, "the weights matter"


@pytest.mark.slow
def test_unfolded_convolutions_take_those_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedpeer.algorithms.mapped, "copied_for_block", unfolded)
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(18, 3))
    block, x_Bn = weighted(features=(1, 5, 5), steps=2), starts(module, 3)
    found = x_Bn.clone()
    optimizer = OptimizerChoice("SGD", {"lr": 0.5})
    stepper = build_stepper("mapped", module, FlatLayout.of(module), LOSSES["cross-entropy"], optimizer)
    stepper.train(found, found.new_zeros(3, 0), True, block, [0] * 3)
    for p in range(3):
        assert distance(found[p], looped(module, x_Bn[p], block.peer(p), WEIGHT_PC[p], 0.5)) < CLOSE


@pytest.mark.parametrize("module", [mlp(), nn.Sequential(mlp(), nn.LayerNorm(3))], ids=["closed", "autograd"])
def test_the_gradient_of_a_step_is_that_of_torchs_weighted_loss(module: nn.Module) -> None:
    layout, block, x_Bn = FlatLayout.of(module), weighted(steps=1), starts(module, 3)
    gradient = gradient_of(module, layout, LOSSES["cross-entropy"])
    found_Bn = gradient(x_Bn, block.inputs(0), block.targets(0), [0] * 3, block.weights(0))
    for p in range(3):
        expected = x_Bn[p] - looped(module, x_Bn[p], block.peer(p), WEIGHT_PC[p], 1.0)
        torch.testing.assert_close(found_Bn[p], expected, rtol=1e-4, atol=1e-6)
        one = block.peer(p)
        torch.testing.assert_close(
            gradient(x_Bn[p], one.inputs(0), one.targets(0), [0], one.weights(0)), found_Bn[p], rtol=1e-4, atol=1e-6
        )


def test_bayesian_stacks_and_loops_weigh_alike() -> None:
    """The loop's optimizer has a momentum of nearly zero, since closed gradients are not used with momentum."""
    module = mlp()
    mu_Bn, block = starts(module, 3), weighted(steps=2)
    start, reference = Posterior.around(mu_Bn, 0.1), Gaussian.of(torch.zeros_like(mu_Bn), torch.ones_like(mu_Bn))
    found = []
    for momentum in (0.0, 1e-30):
        optimizer = OptimizerChoice("SGD", {"lr": 0.3, "momentum": momentum})
        context = TrainingContext.of(module, LOSSES["cross-entropy"], optimizer)
        train = training_of(context, estimator="local", samples=2)
        found.append(train(start, reference, torch.full((3,), 1e-3), block, [5, 6, 7]).mu_n)
    plain = train(start, reference, torch.full((3,), 1e-3), replace(block, class_weight=None), [5, 6, 7]).mu_n
    assert distance(found[0], found[1]) < 5 * CLOSE
    assert distance(plain, found[1]) > 1e-3


#: Algorithms that follow gradients themselves, on a context.
GRADIENTS: dict[str, Callable[[TrainingContext], Any]] = {
    "d-psgd": DPsgd,
    "gradient-tracking": GradientTracking,
    "dfedsalt": DFedSalt,
    "dispfl": partial(DisPfl, prune=0.0),
    "apfl": Apfl,
    "fedala": partial(FedAla, passes=2),
    "per-fedavg": partial(PerFedAvg, alpha=0.1, beta=0.1),
    "fedavg": FedAvg,
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_a_class_of_weight_two_is_one_whose_examples_are_there_twice(name: str) -> None:
    """Each batch has two examples of class 0 and two of the other classes."""
    module, generator = mlp(), torch.Generator().manual_seed(3)
    x_NF, steps = torch.randn((12, 5), generator=generator), 3
    y_N = torch.tensor([0, 0, 1, 2] * steps)
    index = torch.arange(12).view(1, steps, 4)
    twice = index[..., [0, 0, 1, 1, 2, 3]]
    weighted_once = Batches(x_NF, index, y_N[index], class_weight=torch.tensor([[2.0, 1.0, 1.0]]))
    made = GRADIENTS[name](TrainingContext.of(module, LOSSES["cross-entropy"], OptimizerChoice("SGD", {"lr": 0.2})))
    own_1n, averaged_1n = starts(module, 1), starts(module, 1, seed=2)
    served = hasattr(made, "start_server")
    received = made.start_server(averaged_1n[0]) if served else made.start_averaged(averaged_1n)
    if name == "gradient-tracking":
        received = replace(received, tracker_n=torch.zeros_like(averaged_1n))
    client = made.start_client(own_1n, torch.tensor([12]))
    if name == "fedala":  # it learns its weights from its second round on
        client = replace(client, rounds=torch.tensor([1]))
    opened = made.open(received, 1) if served else received

    def trained(block: Batches) -> dict[str, Tensor]:
        kept, sent = made.train(client, opened, block, (7,))
        return {**leaves_of(kept), **{f"sent {name}": value for name, value in leaves_of(sent).items()}}

    found, wanted = trained(weighted_once), trained(Batches(x_NF, twice, y_N[twice]))
    plain = trained(replace(weighted_once, class_weight=None))
    for leaf, value in wanted.items():
        torch.testing.assert_close(found[leaf], value, rtol=1e-4, atol=1e-6)
    assert any(not torch.allclose(found[leaf].float(), plain[leaf].float(), atol=1e-4) for leaf in found)
