"""Steps of a network with its own learning rule: one peer or many, and refusal of everything that needs gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedpeer.algorithms.batches import Batches, BatchView
from fedpeer.algorithms.bayesian_training import training_of
from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.correction import Correction
from fedpeer.algorithms.evaluation import evaluate
from fedpeer.algorithms.gradients import gradient_of
from fedpeer.algorithms.losses import LOSSES, completed
from fedpeer.algorithms.optimizers import OptimizerChoice, OptimizerError
from fedpeer.algorithms.own_rule import OwnRule, learns
from fedpeer.algorithms.steppers import Way, build_stepper, choose
from fedpeer.algorithms.training_context import TrainingContext
from fedpeer.networks.associative import Associative
from fedpeer.slicing.flat import FlatLayout
from tests.algorithms.client_factory import batches, mlp

VISIBLE, HIDDEN, PEERS = 10, 24, 5
MODULE = Associative(VISIBLE, HIDDEN, threshold=0.5)
LAYOUT = FlatLayout.of(MODULE)
LOSS, SGD = LOSSES["completion"], OptimizerChoice("SGD", {"lr": 0.1})


def starts(peers: int = PEERS) -> Tensor:
    return torch.rand((peers, LAYOUT.n), generator=torch.Generator().manual_seed(1)) * 2 - 1


def rounds(peers: int = PEERS) -> Batches:
    """Return a round of six steps with three patterns each."""
    made = batches("completion", peers=peers, steps=6, size=3, features=(VISIBLE,), outputs=VISIBLE)
    return replace(made, x_NF=(made.x_NF > 0.4).float())


def trained(x_Bn: Tensor, block: Batches) -> Tensor:
    stepper, x_Bn = build_stepper("own rule", MODULE, LAYOUT, LOSS, SGD), x_Bn.clone()
    assert stepper.state_size == 0
    stepper.train(x_Bn, x_Bn.new_zeros(len(x_Bn), 0), True, block, [0] * len(x_Bn))
    return x_Bn


def test_a_round_is_the_modules_rule_pattern_after_pattern() -> None:
    x_Bn, block = starts(), rounds()
    found = trained(x_Bn, block)
    for p in range(PEERS):
        wide_n = x_Bn[p].double()
        for step in range(block.steps):
            for pattern in block.peer(p).inputs(step):
                MODULE.learn_(LAYOUT.unflatten(wide_n), pattern.double().unsqueeze(0), 0.1)
        assert torch.equal(found[p], wide_n.float())
        assert float((found[p] - x_Bn[p]).abs().max()) > 0.1


def test_a_block_is_one_peer_after_the_other_to_the_last_bit() -> None:
    x_Bn, block = starts(), rounds()
    found = trained(x_Bn, block)
    for p in range(PEERS):
        assert torch.equal(found[p], trained(x_Bn[p : p + 1], block.peer(p).block())[0])


def test_a_sum_at_the_threshold_does_not_depend_on_the_order_of_its_terms() -> None:
    """The terms add up to exactly one half; in float32 they do so only in some orders."""
    terms = torch.tensor([0.1, -0.1, 0.9, -0.9, 0.7, -0.7, 0.5])
    rule = OwnRule(Associative(7, 1, threshold=0.5), FlatLayout.of(Associative(7, 1, threshold=0.5)), 0.1)
    narrow, found = set(), set()
    for seed in range(20):
        order = torch.randperm(7, generator=torch.Generator().manual_seed(seed))
        total = torch.zeros(())
        for term in terms[order]:
            total = total + term
        narrow.add(bool(total >= 0.5))
        x_1n = torch.cat([terms[order], torch.ones(7)]).unsqueeze(0)
        found.add(tuple(rule.logits(x_1n, torch.ones(1, 1, 7)).flatten().tolist()))
    assert narrow == {True, False}
    assert found == {(1.0,) * 7}


def test_patterns_are_seen_as_the_peer_sees_them() -> None:
    x_Bn, block = starts(), rounds()
    order_F = torch.randperm(VISIBLE, generator=torch.Generator().manual_seed(3))
    permuted = replace(block, view=BatchView(order_F.expand(PEERS, -1)))
    by_hand = replace(block, x_NF=block.x_NF[:, order_F])
    assert torch.equal(trained(x_Bn, permuted), trained(x_Bn, by_hand))
    assert not torch.equal(trained(x_Bn, permuted), trained(x_Bn, block))


def test_answers_are_the_modules_and_the_score_is_the_share_of_completed_patterns() -> None:
    x_Bn, block = starts(), rounds()
    stepper = build_stepper("own rule", MODULE, LAYOUT, LOSS, SGD)
    inputs = torch.stack([block.peer(p).inputs(0) for p in range(PEERS)])
    answers = stepper.logits(x_Bn, inputs)
    assert answers.dtype == torch.float32
    for p in range(PEERS):
        nn.utils.vector_to_parameters(x_Bn[p], MODULE.parameters())
        assert torch.equal(answers[p], MODULE(inputs[p]))
    (examples,) = block.peer(0).whole
    examples = replace(examples, x_NF=block.x_NF)
    score, loss = evaluate(stepper, LOSS, x_Bn[0], examples, None, 1.0)
    wanted = stepper.logits(x_Bn[:1], examples.inputs()[None])[0]
    assert score == pytest.approx(completed(wanted, examples.y_M).double().mean().item())
    assert loss == pytest.approx((wanted != examples.y_M).double().mean().item())


@pytest.mark.parametrize(("device", "block"), [("cpu", 2), ("cpu:0", 8)])
def test_it_is_the_only_way_for_such_a_network(device: str, block: int) -> None:
    example = (torch.zeros(2, VISIBLE), torch.zeros(2, VISIBLE))
    found = choose(MODULE, LAYOUT, LOSS, SGD, batch_size=1, device=device, peers=8, example=example)
    assert found == ("own rule", block)
    assert learns(MODULE)
    assert not learns(mlp())


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        (OptimizerChoice("Adam", {"lr": 0.1}), ["Adam", "its own learning rule", "sgd,lr="]),
        (OptimizerChoice("SGD", {"lr": 0.1, "momentum": 0.9}), ["SGD", "its own learning rule", "sgd,lr="]),
        (OptimizerChoice("SGD", {"lr": 0.1, "weight_decay": 0.1}), ["its own learning rule"]),
        (OptimizerChoice("SGD", {"lr": 2.1}), ["lr = 2.1", "0 to 2"]),
        (OptimizerChoice("SGD", {"lr": -0.1}), ["lr = -0.1"]),
    ],
    ids=lambda value: "" if isinstance(value, list) else ",".join(f"{k}={v}" for k, v in value.settings.items()),
)
def test_an_optimiser_is_a_rate_within_bounds(optimizer: OptimizerChoice, words: list[str]) -> None:
    example = (torch.zeros(2, VISIBLE), torch.zeros(2, VISIBLE))
    for refuse in (
        lambda: choose(MODULE, LAYOUT, LOSS, optimizer, batch_size=1, device="cpu", peers=8, example=example),
        lambda: build_stepper("own rule", MODULE, LAYOUT, LOSS, optimizer),
    ):
        with pytest.raises(OptimizerError) as refusal:
            refuse()
        assert all(word in str(refusal.value) for word in words)


def context() -> TrainingContext:
    return TrainingContext.of(MODULE, LOSS, SGD, way="own rule")


WAYS: tuple[Way, ...] = ("single sample", "stack", "mapped", "loop")


@pytest.mark.parametrize(
    "ask",
    [
        *(lambda way=way: build_stepper(way, MODULE, LAYOUT, LOSS, SGD) for way in WAYS),
        lambda: gradient_of(MODULE, LAYOUT, LOSS),
        lambda: training_of(context(), estimator="local", samples=1),
        lambda: context().training_only(context().head_D()),
        lambda: context().stepper.train(starts(1), torch.zeros(1, 0), True, rounds(1), [0], Correction(starts(1))),
    ],
    ids=[*WAYS, "gradient", "Bayesian", "head alone", "correction"],
)
def test_what_needs_gradients_is_refused(ask: Callable[[], object]) -> None:
    with pytest.raises(AlgorithmError, match="needs gradients, but Associative has its own learning rule"):
        ask()
