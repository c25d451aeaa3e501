"""Names and settings of MOCHA and its comparators: the choices of a user, and the texts of the refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.losses import LOSSES
from fedpeer.algorithms.mocha.relations import Relations, correlations
from fedpeer.algorithms.optimizers import OptimizerChoice
from fedpeer.algorithms.registry import ALGORITHMS
from fedpeer.algorithms.training_context import TrainingContext
from fedpeer.config.choice import bind_settings, parse_choice
from fedpeer.config.methods import method_of
from fedpeer.networks.registry import linear_network, mlp
from tests.algorithms.mocha.playing import Tasks

BENCH = Tasks.drawn(1).context


def made(text: str, context: TrainingContext = BENCH) -> Any:
    """Return the algorithm of a choice, built as from a federation file: checked first, then bound."""
    choice = parse_choice(text)
    algorithm = ALGORITHMS[choice.name]
    return algorithm(context, **bind_settings(choice, algorithm))


def test_choices_become_settings() -> None:
    algorithm = made("mocha:clustered,clusters=3,eta=0.2,lam=1e-3,loss=logistic,dropped=0+2,sigma=paper,inner=5")
    assert (algorithm.omega, algorithm.related.clusters, algorithm.related.eta) == ("clustered", 3.0, 0.2)
    assert (algorithm.local_loss.name, algorithm.dropped, algorithm.inner) == ("logistic", (0, 2), 5)
    assert made("mocha,loss=smoothed-hinge,smoothing=0.3").local_loss.smoothing == 0.3
    assert made("cocoa,theta=0.2").theta == 0.2
    assert made("minibatch-sdca:local,batch=4,beta=12").beta == 12
    assert made("minibatch-sgd,average=sum").average == "sum"
    assert all(
        method_of(parse_choice(name)).has_server for name in ("mocha", "cocoa", "minibatch-sdca", "minibatch-sgd")
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mocha,lam=0", "lam = 0.0: write a number above 0"),
        ("mocha,ridge=-1", "ridge = -1.0: write 0 or more"),
        ("mocha,floor=2", "floor = 2.0: write a number from 0 to 1"),
        ("mocha:clustered,eta=0", "eta = 0.0: write a number above 0"),
        ("mocha:clustered,clusters=4", "clusters = 4.0: write a number above 0 and up to 3"),
        ("mocha:sparse-precision,sparsity=0", "sparsity = 0.0: write a number above 0"),
        ("mocha:mean-regularised", "write ridge=... above 0"),
        ("mocha:global,ridge=1", "write lam=... alone"),
        ("mocha,loss=smoothed-hinge,smoothing=0", "smoothing = 0.0: write a number above 0"),
        ("mocha,inner=0", "inner = 0: write 1 or more"),
        ("mocha,passes=0", "passes = 0.0: write a number above 0"),
        ("mocha,low=0", "low = 0.0, high = 1.0: write parts above 0, low at most high"),
        ("mocha,low=0.5,high=0.2", "low = 0.5, high = 0.2"),
        ("mocha,drop=1", "drop = 1.0: write a probability below 1"),
        ("mocha,dropped=1+3", "numbers of clients, 0 to 2"),
        ("cocoa,theta=1", "theta = 1.0: write a number between 0 and 1"),
        ("minibatch-sdca,batch=0", "batch = 0: write 1 or more"),
        ("minibatch-sdca,batch=4,beta=13", "beta = 13.0: write a number above 0 and up to 12"),
        ("minibatch-sgd,batch=0", "batch = 0: write 1 or more"),
        ("minibatch-sgd,beta=0", "beta = 0.0: write a number above 0"),
        ("minibatch-sgd:global", "take another omega"),
    ],
)
def test_what_cannot_be_is_refused_with_the_way_out(text: str, message: str) -> None:
    with pytest.raises(AlgorithmError) as refusal:
        made(text)
    assert message in str(refusal.value)


def bench_of(module: nn.Module, loss: str) -> TrainingContext:
    return TrainingContext.of(module, LOSSES[loss], OptimizerChoice("SGD", {"lr": 0.1}), clients=3)


@pytest.mark.parametrize("name", ["mocha", "cocoa", "minibatch-sdca", "minibatch-sgd"])
def test_it_learns_linear_models_of_one_output(name: str) -> None:
    for module in (
        mlp((4,), 1, layers=(4, 3, 1)),
        linear_network((4,), 2),
        nn.Sequential(nn.Linear(4, 1), nn.Sigmoid()),
    ):
        with pytest.raises(AlgorithmError, match="write network: linear, and for two classes loss: binary"):
            made(name, bench_of(module, "cross-entropy"))
    for module in (linear_network((2, 2), 1), mlp((4,), 1, layers=(4, 1)), nn.Linear(4, 1)):
        made(name, bench_of(module, "binary"))
    with pytest.raises(AlgorithmError, match="for numbers write loss=squared"):
        made(name, bench_of(linear_network((4,), 1), "mean-squared-error"))
    made(f"{name},loss=squared", bench_of(linear_network((4,), 1), "mean-squared-error"))


KINDS: list[Any] = ["trace-constrained", "clustered", "sparse-precision", "mean-regularised", "fixed", "local"]


@pytest.mark.parametrize("kind", KINDS)
def test_couplings_to_begin_with_are_those_of_their_penalty(kind: Any) -> None:
    """The first coupling is M = (lam Omega + 2 ridge I)^-1."""
    related = Relations(kind=kind, tasks=4, lam=0.6, ridge=0.15, clusters=2, eta=0.3)
    eye_TT = torch.eye(4, dtype=torch.float64)
    omega_TT = {
        "trace-constrained": 4 * eye_TT,
        "fixed": 4 * eye_TT,
        "clustered": eye_TT / 0.8,
        "sparse-precision": eye_TT,
        "local": eye_TT,
        "mean-regularised": eye_TT - 0.25,
    }[kind]
    torch.testing.assert_close(related.start(), torch.linalg.inv(0.6 * omega_TT + 0.3 * eye_TT))
    # Learned relations begin with the coupling that W = 0 leads to.
    if kind in ("trace-constrained", "clustered"):
        torch.testing.assert_close(related.after(torch.zeros(4, 7, dtype=torch.float64))[0], related.start())


def test_the_coupling_of_one_model_for_all_is_the_limit_of_models_drawn_to_their_mean() -> None:
    one = Relations(kind="global", tasks=3, lam=0.6).start()
    torch.testing.assert_close(one, torch.full((3, 3), 1 / 0.6, dtype=torch.float64))
    drawn = Relations(kind="mean-regularised", tasks=3, lam=1e7, ridge=0.1).start()
    torch.testing.assert_close(drawn, torch.full((3, 3), 1 / 0.6, dtype=torch.float64), rtol=1e-6, atol=0)


def test_correlations_are_of_the_coupling_as_a_covariance() -> None:
    coupling_TT = torch.tensor([[4.0, -3.0], [-3.0, 9.0]], dtype=torch.float64)
    wanted_TT = torch.tensor([[1.0, -0.5], [-0.5, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(correlations(coupling_TT), wanted_TT)


def test_a_bench_with_fewer_examples_than_a_client_is_an_error_of_ours() -> None:
    with pytest.raises(AssertionError, match="the most examples"):
        made("mocha", replace(BENCH, examples_max=3)).start_client(torch.zeros(5), torch.tensor(4))
