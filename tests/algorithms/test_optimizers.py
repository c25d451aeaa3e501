"""Optimizers by name, their refusals, and their state as rows of numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedpeer.algorithms.optimizers import OptimizerChoice, OptimizerError, StateLayout, names


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(2, 3)), nn.Parameter(torch.zeros(2))]


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        (OptimizerChoice.named("sdg", {}), ['"sdg"', "known:", "sgd"]),
        (OptimizerChoice.named("lbfgs", {}), ['"lbfgs"', "closure", "known:"]),
        (OptimizerChoice.named("SparseAdam", {}), ['"SparseAdam"', "sparse gradients", "known:"]),
        (OptimizerChoice.named("adam", {"momentum": 0.9}), ['"Adam"', '"momentum"', "known:", "betas"]),
        (OptimizerChoice.named("sgd", {"lr": -1.0}), ['"SGD"', "learning rate", "-1.0"]),
        (OptimizerChoice.named("adam", {"betas": 0.9}), ['"Adam"']),
        (OptimizerChoice.named("adam", {"fused": True, "foreach": True}), ['"Adam"', "fused"]),
    ],
)
def test_a_refusal_names_optimizer_setting_and_way_out(choice: OptimizerChoice, words: list[str]) -> None:
    with pytest.raises(OptimizerError) as refusal:
        choice.build(parameters())
    assert all(word in str(refusal.value) for word in words), refusal.value


@pytest.mark.parametrize(
    "choice",
    [OptimizerChoice.named("muon", {}), OptimizerChoice.named("adam", {"capturable": True})],
    ids=["muon", "adam"],
)
def test_what_cannot_train_this_network_here_is_refused_before_any_step(choice: OptimizerChoice) -> None:
    with pytest.raises(OptimizerError, match=choice.kind):
        StateLayout.probe(choice, parameters())


def test_muon_trains_networks_of_matrices() -> None:
    """A network without biases is one, say; the state has a matrix for each of its matrices."""
    matrices = [nn.Parameter(torch.ones(3, 4)), nn.Parameter(torch.ones(2, 3))]
    choice = OptimizerChoice.named("muon", {"lr": 0.02})
    assert StateLayout.probe(choice, matrices).size == 18
    with pytest.raises(OptimizerError, match="without biases"):
        choice.build([*matrices, nn.Parameter(torch.ones(3))])


def test_names_are_torchs_own_in_any_case() -> None:
    assert {"sgd", "adam", "adamw", "rmsprop", "adagrad"} <= set(names())
    assert not {"lbfgs", "sparseadam", "optimizer"} & set(names())
    assert OptimizerChoice.named("AdamW", {}).kind == OptimizerChoice.named("adamw", {}).kind == "AdamW"


@pytest.mark.parametrize(
    ("settings", "plain"),
    [
        ({"lr": 0.1}, True),
        ({"lr": 0.1, "momentum": 0, "nesterov": False}, True),
        ({"lr": 0.1, "momentum": 0.9}, False),
        ({"lr": 0.1, "weight_decay": 1e-4}, False),
        ({"lr": 0.1, "maximize": True}, False),
        ({"lr": 0.1, "unheard_of": 0}, False),
    ],
)
def test_plain_sgd_is_a_step_along_the_gradient_and_nothing_else(settings: dict[str, float], plain: bool) -> None:
    assert OptimizerChoice("SGD", settings).plain_sgd is plain
    assert not OptimizerChoice("Adam", {"lr": 0.1}).plain_sgd


@pytest.mark.parametrize(
    ("settings", "momentum"),
    [
        ({"lr": 0.1}, 0.0),
        ({"lr": 0.1, "momentum": 0.9, "nesterov": False}, 0.9),
        ({"lr": 0.1, "momentum": 0.9, "nesterov": True}, None),
        ({"lr": 0.1, "momentum": 0.9, "dampening": 0.1}, None),
        ({"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4}, None),
        ({"lr": 0.1, "momentum": -0.9}, None),
    ],
)
def test_momentum_alone_is_known_and_nothing_beside_it(settings: dict[str, float], momentum: float | None) -> None:
    assert OptimizerChoice("SGD", settings).momentum == momentum
    assert OptimizerChoice("RMSprop", {"lr": 0.1, "momentum": 0.9}).momentum is None


def test_the_rate_without_a_setting_is_torchs_own() -> None:
    for kind in sorted(set(names().values()) - {"Muon"}):
        assert OptimizerChoice(kind, {}).lr == OptimizerChoice(kind, {}).build(parameters()).param_groups[0]["lr"]
    own = OptimizerChoice("python:mine:own", {}, lambda parameters, lr=0.25: torch.optim.SGD(parameters, lr=lr))
    assert own.lr == 0.25
    assert OptimizerChoice("SGD", {"lr": 0.25}).lr == 0.25


def test_state_survives_a_row_of_numbers() -> None:
    choice = OptimizerChoice("Adam", {"lr": 0.1, "amsgrad": True})
    layout = StateLayout.probe(choice, parameters())
    assert layout.size == 3 * 8 + 2  # three moments per scalar, and a step count for each of two parameters
    row = torch.rand(layout.size) + 1
    given = parameters()
    first = choice.build(given)
    layout.load(first, given, row)
    again = torch.zeros_like(row)
    layout.save(first, given, again)
    assert torch.equal(again, row)
    row.zero_()
    layout.save(first, given, again)
    assert bool((again > 0).all()), "the optimizer holds copies, not views of the row"


def test_probing_changes_no_parameter() -> None:
    given = [nn.Parameter(torch.ones(2))]
    StateLayout.probe(OptimizerChoice("Adam", {"weight_decay": 0.5}), given)
    assert torch.equal(given[0].detach(), torch.ones(2))
    assert given[0].grad is None
