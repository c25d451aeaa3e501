"""Training of Bayesian networks: closed gradients against autograd, both against exact inference, every kind of net."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.bayesian_passes import Passes
from fedpeer.algorithms.bayesian_training import BayesianTraining, Posterior, _Loop, _Stack, training_of
from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.gaussian import Gaussian
from fedpeer.algorithms.losses import LOSSES
from fedpeer.algorithms.optimizers import OptimizerChoice
from fedpeer.algorithms.training_context import TrainingContext
from fedpeer.networks.bayesian import inverse_softplus
from fedpeer.networks.registry import cnn, lateral_mlp, lstm
from tests.algorithms.client_factory import CLOSE, batches, distance, mlp, starts
from tests.reference.linear_gaussian import minimiser

#: At a rate of 0.1 a linear network diverges on squared errors, and magnifies rounding.
RATE = 0.05
SGD = OptimizerChoice("SGD", {"lr": RATE})
CLOSED = [name for name, loss in LOSSES.items() if loss.delta is not None]


def bench_of(module: nn.Module, loss: str = "cross-entropy", optimizer: OptimizerChoice = SGD) -> TrainingContext:
    return TrainingContext.of(module, LOSSES[loss], optimizer)


def both_ways(module: nn.Module, loss: str = "cross-entropy", samples: int = 1) -> tuple[_Stack, _Loop]:
    context = bench_of(module, loss)
    closed = training_of(context, estimator="local", samples=samples)
    assert isinstance(closed, _Stack)
    return closed, _Loop(context, "local", samples)


def begun(module: nn.Module, clients: int = 3) -> tuple[Posterior, Gaussian, Tensor]:
    """Return posteriors with different spreads that matter, a reference that pulls hard, and different strengths."""
    mu_Bn, n = starts(module, clients), bench_of(module).layout.n
    draw = torch.Generator().manual_seed(3)
    sigma_Bn = 0.1 + 0.8 * torch.rand((clients, n), generator=draw)
    against = Gaussian.of(0.3 * torch.randn((clients, n), generator=draw), 0.3)
    return Posterior(mu_Bn, inverse_softplus(sigma_Bn)), against, torch.linspace(0.02, 0.05, clients)


def of_client(number: int, start: Posterior, against: Gaussian, strength: Tensor) -> tuple[Posterior, Gaussian, Tensor]:
    return Posterior(start.mu_n[number], start.rho_n[number]), against[number], strength[number]


def agree(found: Posterior, wanted: Posterior, start: Posterior) -> bool:
    """Return whether both are near in norm and far from their start, so that standing still is not agreement."""
    pairs = ((found.mu_n, wanted.mu_n, start.mu_n), (found.rho_n, wanted.rho_n, start.rho_n))
    return all(distance(a, b) < CLOSE and distance(b, began) > 3e-3 for a, b, began in pairs)


ACTIVATIONS = [nn.Sigmoid, nn.Tanh, nn.ReLU, nn.Identity]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "activation", "bias"),
    [
        pytest.param(loss, activation, bias, marks=[] if bias == ((i + j) % 2 == 0) else [pytest.mark.soak])
        for i, loss in enumerate(CLOSED)
        for j, activation in enumerate(ACTIVATIONS)
        for bias in (True, False)
    ],
)
def test_closed_steps_are_those_of_autograd(loss: str, activation: type[nn.Module], bias: bool) -> None:
    module = mlp(activation=activation, bias=bias)
    closed, loop = both_ways(module, loss)
    work = *begun(module), batches(loss), (1, 2, 3)
    assert agree(closed(*work), loop(*work), work[0])


@pytest.mark.slow
@pytest.mark.parametrize("samples", [1, 3])
def test_one_client_takes_the_steps_of_its_block(samples: int) -> None:
    module, block = mlp(), batches()
    for training in both_ways(module, samples=samples):
        start, against, strength = begun(module)
        together = training(start, against, strength, block, (1, 2, 3))
        for p in range(3):
            alone = training(*of_client(p, start, against, strength), block.peer(p), (p + 1,))
            row = Posterior(together.mu_n[p], together.rho_n[p])
            assert agree(alone, row, Posterior(start.mu_n[p], start.rho_n[p]))


def test_several_samples_are_the_mean_over_draws_of_noise() -> None:
    module, block = mlp(), batches(steps=1)
    closed, loop = both_ways(module, samples=4)
    work = *begun(module), block, (1, 2, 3)
    assert agree(closed(*work), loop(*work), work[0])
    single = both_ways(module)[0](*work)
    assert distance(single.mu_n, closed(*work).mu_n) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("way", [0, 1])
def test_the_stream_decides_the_noise_and_nothing_passed_in_is_changed(way: int) -> None:
    module, block = mlp(), batches()
    training, work = both_ways(module)[way], begun(module)
    before = [each.clone() for each in (work[0].mu_n, work[0].rho_n, work[1].chi_D, work[1].xi_D)]
    state = torch.get_rng_state()
    one, same, other = (training(*work, block, keys) for keys in ((1, 2, 3), (1, 2, 3), (4, 2, 3)))
    assert torch.equal(one.mu_n, same.mu_n)
    assert not torch.equal(one.mu_n[0], other.mu_n[0])
    assert torch.equal(one.mu_n[1:], other.mu_n[1:])
    after = (work[0].mu_n, work[0].rho_n, work[1].chi_D, work[1].xi_D)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.slow
@pytest.mark.parametrize("way", [0, 1])
def test_without_a_slope_of_the_data_the_divergence_alone_is_descended(way: int) -> None:
    """Zero inputs without a bias carry no information: mu converges geometrically, and sigma to the reference's."""
    module = mlp((5, 3), bias=False)
    block = batches(peers=1, steps=2)
    block = replace(
        block, x_NF=torch.zeros_like(block.x_NF), index=block.index.repeat(1, 200, 1), y=block.y.repeat(1, 200, 1)
    )
    start, against, _ = begun(module, 1)
    strength = torch.tensor([0.5])
    few = both_ways(module)[way](start, against, strength, block.taking(range(7)), (1,))
    share = (1 - RATE * 0.5 / 0.3**2) ** 7
    torch.testing.assert_close(few.mu_n, against.mu_D + share * (start.mu_n - against.mu_D), rtol=1e-4, atol=1e-5)
    many = both_ways(module)[way](start, against, strength, block, (1,))
    torch.testing.assert_close(many.mu_n, against.mu_D, rtol=0, atol=1e-4)
    torch.testing.assert_close(many.sigma_n, torch.full_like(many.mu_n, 0.3), rtol=0.02, atol=0)


@pytest.mark.slow
def test_the_posterior_of_a_linear_regression_is_found() -> None:
    """The mean squared error is the negative log-likelihood per example of noise with variance 1/2."""
    draw = torch.Generator().manual_seed(5)
    x_NF, noise = torch.randn((20, 3), generator=draw), math.sqrt(0.5)
    y_N = x_NF @ torch.tensor([1.0, -2.0, 0.5]) + noise * torch.randn(20, generator=draw)
    against = Gaussian.of(torch.zeros(3), 0.5)
    index = torch.arange(20).repeat(1500, 10)  # each batch holds each example ten times, which averages the noise
    training = training_of(
        bench_of(nn.Sequential(nn.Linear(3, 1, bias=False)), "mean-squared-error"), estimator="local", samples=1
    )
    start = Posterior.around(torch.zeros(3), 0.5)
    found = training(start, against, torch.tensor(1 / 20), Batches(x_NF, index, y_N[index]), (1,))
    wanted = minimiser(x_NF, y_N, against, noise)
    torch.testing.assert_close(found.mu_n, wanted.mu_D, rtol=0, atol=0.05)
    torch.testing.assert_close(found.sigma_n, wanted.sigma_D, rtol=0.1, atol=0)


def test_compiled_passes_are_torchs() -> None:
    """This also holds far from 0, where sigma is tiny or large, and for several peers at a time."""
    draw = torch.Generator().manual_seed(6)
    rho_Bn = torch.cat([torch.linspace(-60, 60, 400), torch.linspace(-6, 3, 400)]).view(2, 400)
    fields = [torch.rand((2, 400), generator=draw) for _ in range(4)]
    ends = []
    for compiled in (True, False):
        mu_Bn, rho_now, change_Bn = fields[0].clone(), rho_Bn.clone(), fields[3]
        passes = Passes(mu_Bn, rho_now, fields[1], fields[2], torch.tensor([[0.1], [0.2]]))
        vars(passes)["_compiled"] = compiled
        seen = []
        for _ in range(2):
            passes.spread()
            seen.append(passes.variance_n.clone())
            passes.change_n.copy_(change_Bn)
            passes.descend()
        ends.append((*seen, mu_Bn, rho_now))
    torch.testing.assert_close(ends[0][0], ends[1][0], rtol=3e-6, atol=1e-30)
    # A step at sigma = 60 is a difference of numbers in the hundreds, whose rounding stays.
    for found, wanted in zip(ends[0][1:], ends[1][1:], strict=True):
        torch.testing.assert_close(found, wanted, rtol=5e-5, atol=5e-5)
    exact = torch.nn.functional.softplus(rho_Bn.double()) ** 2
    torch.testing.assert_close(ends[0][0].double(), exact, rtol=2e-6, atol=1e-30)


NETS: dict[str, tuple[Callable[[], nn.Module], Callable[[torch.Generator], Tensor]]] = {
    "cnn": (
        lambda: cnn((1, 8, 8), 3, channels=(2,), hidden=(5,), kernel=3),
        lambda g: torch.randn((12, 1, 8, 8), generator=g),
    ),
    "lstm": (
        lambda: lstm((6,), 3, hidden=5, embedding=3, vocabulary=9),
        lambda g: torch.randint(0, 9, (12, 6), generator=g),
    ),
    "lateral": (lambda: lateral_mlp((6,), 3, hidden=(5,), dropout=0.2), lambda g: torch.randn((12, 6), generator=g)),
}


#: Each network with one of the estimators; `tests/networks/test_bayesian.py` has the draws of every layer with each.
LEARNT = {"cnn": "flipout", "lstm": "local", "lateral": "weights"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "estimator"),
    [
        pytest.param(name, estimator, marks=[] if LEARNT[name] == estimator else [pytest.mark.soak])
        for name in NETS
        for estimator in ("local", "flipout", "weights")
    ],
)
def test_every_network_learns(name: str, estimator: Any) -> None:
    """Adam learns a dozen examples by heart; parameters that the data do not reach are still held to their prior."""
    make, inputs = NETS[name]
    draw = torch.Generator().manual_seed(7)
    module, x_NF, y_N = make(), inputs(draw), torch.arange(12) % 3
    context = bench_of(module, optimizer=OptimizerChoice("Adam", {"lr": 0.05}))
    training = training_of(context, estimator=estimator, samples=2)
    start = Posterior.around(starts(module, 1)[0], 0.05)
    against, index = Gaussian.of(torch.zeros_like(start.mu_n), 1.0), torch.arange(12).repeat(60, 1)
    found = training(start, against, torch.tensor(1e-3 / 12), Batches(x_NF, index, y_N[index]), (1,))
    right = context.stepper.logits(found.mu_n[None], x_NF[None])[0].argmax(-1) == y_N
    assert right.float().mean() > 0.8
    assert (found.mu_n != start.mu_n).all()
    assert (found.rho_n != start.rho_n).all()


@pytest.mark.slow
def test_dropout_draws_by_the_key() -> None:
    module = lateral_mlp((5,), 3, hidden=(4,), dropout=0.5)
    training = training_of(bench_of(module), estimator="local", samples=1)
    start = Posterior.around(starts(module, 1)[0], 1e-6)
    work = start, Gaussian.of(start.mu_n, 1.0), torch.tensor(0.0), batches(peers=1).peer(0)
    one, same, other = (training(*work, (key << 70,)) for key in (1, 1, 2))
    assert torch.equal(one.mu_n, same.mu_n)
    assert distance(one.mu_n, other.mu_n) > 1e-4


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(5, 5)
        self.two = self.one
        self.out = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.out(self.two(self.one(x)))
        return answer


class Placed(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(5, 3))
        self.places: Tensor
        self.register_buffer("places", torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self[0](x + self.places)
        return answer


def frozen() -> nn.Module:
    module = mlp()
    module[0].weight.requires_grad_(False)
    return module


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: cnn((1, 8, 8), 3, norm="batch"), r"running_mean and . more\), .*norm=none"),
        (Placed, r"\(places\), which have no distribution; .*table of constants with persistent=False"),
        (Tied, "one tensor in several places"),
        (frozen, "parameters that are not trained"),
        (lambda: nn.Sequential(nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular")), "pads with circular"),
    ],
    ids=["running statistics", "table", "tied", "frozen", "circular"],
)
def test_what_has_no_distribution_is_refused(make: Callable[[], nn.Module], says: str) -> None:
    with pytest.raises(AlgorithmError, match=says):
        training_of(bench_of(make()), estimator="local", samples=1)


@pytest.mark.parametrize(
    ("optimizer", "estimator", "loss", "closed"),
    [
        (SGD, "local", "cross-entropy", True),
        (SGD, "flipout", "cross-entropy", False),
        (SGD, "local", "huber", False),
        (OptimizerChoice("SGD", {"lr": 0.1, "momentum": 0.9}), "local", "cross-entropy", False),
    ],
    ids=["plain", "flipout", "huber", "momentum"],
)
def test_closed_gradients_are_taken_where_they_are_exact(
    optimizer: OptimizerChoice, estimator: Any, loss: str, closed: bool
) -> None:
    training: BayesianTraining = training_of(bench_of(mlp(), loss, optimizer), estimator=estimator, samples=1)
    assert isinstance(training, _Stack) == closed
