"""Training by a loop of the user's own: beside FedAvg with the same steps, and the messages where the loop fails."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedpeer
from fedpeer.sims.vector.pool import EngineError
from tests.sims.worlds import engine, federation, relative, world

HERE = "python:tests.algorithms.test_own_training"
LR, STEPS, BATCH = 0.2, 8, 5


@dataclass(frozen=True)
class FullGradient(fedpeer.OwnTraining):
    """Some steps along the gradient of all examples, as a `learning.batch_size` of all examples takes them, too."""

    _: KW_ONLY
    steps: int = STEPS

    def fit(self, module: nn.Module, x: Tensor, y: Tensor, round: int) -> None:
        assert module.training
        assert round >= 1
        optimizer = torch.optim.SGD(module.parameters(), lr=LR)
        for _ in range(self.steps):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()


@dataclass(frozen=True)
class Drawing(fedpeer.OwnTraining):
    """A training that puts random numbers into the network."""

    def fit(self, module: nn.Module, x: Tensor, y: Tensor, round: int) -> None:
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(torch.randn_like(parameter))


@dataclass(frozen=True)
class Counting(fedpeer.OwnTraining):
    """A training that counts its calls in the module, and puts the count into the network."""

    def fit(self, module: nn.Module, x: Tensor, y: Tensor, round: int) -> None:
        times = getattr(module, "times", 0) + 1
        module.times = times  # type: ignore[assignment]
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.fill_(times)


@dataclass(frozen=True)
class Failing(fedpeer.OwnTraining):
    def fit(self, module: nn.Module, x: Tensor, y: Tensor, round: int) -> None:
        raise KeyError("no such column")


def server(method: str, **settings: Any) -> Tensor:
    made = world(federation(simulation__peers=3, **settings))
    with engine(made, method) as running:
        for _ in range(2):
            running.step()
        assert running.server_n is not None
        return running.server_n.clone()


def test_it_is_fedavg_where_the_loop_takes_the_same_steps() -> None:
    """Batches of all forty examples have the same gradient, in whichever order they come."""
    same = {"learning__optimizer": f"sgd,lr={LR}", "learning__batch_size": 40}
    expected = server("fedavg", **same)
    assert relative(server(f"{HERE}:FullGradient"), expected) < 1e-5
    assert relative(server(f"{HERE}:FullGradient,steps=7"), expected) > 1e-3, "settings reach the loop"


def test_what_it_draws_follows_from_the_seed_and_differs_by_peer_and_round() -> None:
    made = world(federation(simulation__peers=3))
    drawn = []
    for _ in range(2):
        with engine(made, f"{HERE}:Drawing") as running:
            running.step()
            first_Pn = running.x_Pn.clone()
            running.step()
            drawn.append((first_Pn, running.x_Pn.clone()))
    assert all(torch.equal(one, other) for one, other in zip(*drawn, strict=True))
    (first_Pn, second_Pn), _ = drawn
    assert len({tuple(row[:5].tolist()) for row in (*first_Pn, *second_Pn)}) == 6


def test_each_peer_trains_a_module_of_its_own() -> None:
    assert (server(f"{HERE}:Counting") == 1).all(), "nobody sees what another peer or round left in it"


def test_nothing_outside_is_changed() -> None:
    made = world(federation(simulation__peers=3))
    before = {name: value.clone() for name, value in made.module.state_dict().items()}
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    with engine(made, f"{HERE}:Drawing") as running:
        running.step()
    assert torch.equal(torch.rand(4), expected), "the caller's generator"
    assert all(torch.equal(value, before[name]) for name, value in made.module.state_dict().items())


def test_a_loop_that_fails_is_told_before_anything_runs() -> None:
    with pytest.raises((fedpeer.AlgorithmError, EngineError), match=r"Failing\.fit failed: KeyError: 'no such column'"):
        server(f"{HERE}:Failing")


def test_weights_of_classes_are_not_left_out_in_silence() -> None:
    with pytest.raises(fedpeer.AlgorithmError, match="FullGradient trains by a loss of its own, without weights"):
        server(f"{HERE}:FullGradient", learning__class_weights="balanced")
    chosen_by_rule = server(f"{HERE}:FullGradient", learning__class_weights="auto", learning__batch_size=16)
    assert torch.equal(chosen_by_rule, server(f"{HERE}:FullGradient", learning__batch_size=16))


def test_a_class_without_a_loop_is_told() -> None:
    with pytest.raises(fedpeer.AlgorithmError, match=r"building it failed: TypeError: .*abstract.*fit"):
        server("python:fedpeer.algorithms.servers.own_training:OwnTraining")
