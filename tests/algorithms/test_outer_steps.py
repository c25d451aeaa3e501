"""Outer steps: equal to those of torch's own optimizer, the same in a block as alone, and linear in the mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.contract import Algorithm
from fedpeer.algorithms.leaves import take_rows
from fedpeer.algorithms.outer_optimizers import OuterOptimizer, OuterOptimizerError, outer_nesterov, outer_sgd
from fedpeer.algorithms.outer_steps import OuterRule, OuterRules, OuterState, OuterSteps
from fedpeer.algorithms.servers.models import ServerModel
from tests.reference.outer_by_torch import OuterByTorch

PEERS, N = 3, 5
#: Two kinds of peers; the last parameter takes no outer steps.
RULE_CN = torch.tensor([[0, 0, 1, 1, -1], [1, 1, 0, 0, -1]], dtype=torch.int8)
KIND_P = torch.tensor([0, 1, 0])
NOTHING = torch.zeros(0, 1, dtype=torch.int64)


@dataclass(frozen=True, eq=False)
class Trained:
    """State that counts rounds."""

    rounds: Tensor


class Drift(Algorithm[Trained, ServerModel, ServerModel]):
    """Training moves a model by a number that grows from round to round."""

    def start_client(self, values_n: Tensor, examples: Tensor) -> Trained:
        return Trained(torch.zeros(values_n.shape[:-1]))

    def start_averaged(self, values_n: Tensor) -> ServerModel:
        return ServerModel(values_n)

    def train(
        self, client: Trained, received: ServerModel, batches: Batches, keys: Sequence[int]
    ) -> tuple[Trained, ServerModel]:
        rounds = client.rounds + 1
        return Trained(rounds), ServerModel(received.model_n * 0.9 + rounds.unsqueeze(-1))


def rules(*every: int, nesterov: bool = True) -> OuterRules:
    made = [OuterRule(OuterOptimizer(0.7 - 0.2 * i, 0.9 - 0.4 * i, nesterov), each) for i, each in enumerate(every)]
    return OuterRules(tuple(made), RULE_CN, KIND_P)


def work(round: int, number: int | None = None) -> Batches:
    numbers = torch.arange(PEERS) if number is None else torch.tensor(number)
    index = NOTHING.expand(PEERS, 0, 1) if number is None else NOTHING
    return Batches(torch.zeros(1, 1), index, index, number=numbers, round=round)


def begun(x_PN: Tensor, algorithm: OuterSteps) -> OuterState:
    return algorithm.start_client(x_PN, torch.ones(x_PN.shape[:-1]))


def mixed(x_PN: Tensor) -> Tensor:
    """Return the vectors after an incomplete averaging."""
    return 0.5 * x_PN + 0.5 * x_PN.roll(1, 0)


def rounds_of(algorithm: OuterSteps, x_PN: Tensor, rounds: Sequence[int]) -> tuple[Tensor, OuterState]:
    state = begun(x_PN, algorithm)
    for round in rounds:
        state, sent = algorithm.train(state, ServerModel(x_PN), work(round), [0] * PEERS)
        x_PN = mixed(sent.model_n)
    return x_PN, state


def start() -> Tensor:
    return torch.randn(PEERS, N, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("every", [(1, 1), (1, 3), (2, 3)])
def test_torch_takes_the_same_steps(every: tuple[int, int], nesterov: bool) -> None:
    """Its gradient is the model before less the average, rule by rule and peer by peer."""
    made = rules(*every, nesterov=nesterov)
    found_PN, _ = rounds_of(OuterSteps(Drift(), made), start(), range(1, 9))
    x_PN, by_torch = start(), dict[tuple[int, int], OuterByTorch]()
    for round in range(1, 9):
        for peer in range(PEERS):
            for number, rule in enumerate(made.rules):
                where = (RULE_CN[KIND_P[peer]] == number).nonzero().squeeze(-1)
                if round == 1:
                    by_torch[peer, number] = OuterByTorch(rule.optimizer, x_PN[peer, where])
                elif (round - 1) % rule.every == 0:
                    x_PN[peer, where] = by_torch[peer, number].step(x_PN[peer, where])
        x_PN = mixed(x_PN * 0.9 + round)
    assert torch.allclose(found_PN, x_PN, rtol=1e-12, atol=0)


def test_a_block_has_the_bits_of_its_peers_one_by_one() -> None:
    algorithm, x_PN = OuterSteps(Drift(), rules(1, 2)), start().float()
    state, alone = begun(x_PN, algorithm), [take_rows(begun(x_PN, algorithm), peer) for peer in range(PEERS)]
    for round in range(1, 6):
        state, sent = algorithm.train(state, ServerModel(x_PN), work(round), [0] * PEERS)
        for peer in range(PEERS):
            own = OuterSteps(Drift(), algorithm.rules.alone(peer))
            nobody = replace(work(round, peer), number=None)
            for each in (own, algorithm):
                batches = nobody if each is own else work(round, peer)
                after, left = each.train(alone[peer], ServerModel(x_PN[peer]), batches, [0])
                assert torch.equal(left.model_n, sent.model_n[peer])
            alone[peer] = after
            assert all(torch.equal(a, b[peer]) for a, b in zip(vars_of(after), vars_of(state), strict=True))
        x_PN = mixed(sent.model_n)


def vars_of(state: OuterState) -> list[Tensor]:
    return [state.anchor_n, state.momentum_n, state.round, state.inner.rounds]


def test_a_rate_of_one_without_momentum_takes_the_average() -> None:
    plain = OuterRules((OuterRule(outer_sgd(momentum=0.0), 2),), torch.zeros(1, N, dtype=torch.int8), KIND_P * 0)
    nothing = replace(plain, rule_Cn=plain.rule_Cn - 1)
    found, expected = (rounds_of(OuterSteps(Drift(), each), start(), range(1, 8))[0] for each in (plain, nothing))
    assert torch.allclose(found, expected, rtol=1e-12, atol=0)


def test_the_mean_takes_the_step_that_one_peer_with_the_mean_model_takes() -> None:
    """Differences between peers do not matter: averaging keeps the mean; training and outer steps are linear in it."""
    everywhere = OuterRules((OuterRule(outer_nesterov(), 2),), torch.zeros(1, N, dtype=torch.int8), KIND_P * 0)
    algorithm = OuterSteps(Drift(), everywhere)
    apart, _ = rounds_of(algorithm, start(), range(1, 10))
    together, _ = rounds_of(algorithm, start().mean(0, keepdim=True).expand(PEERS, N).clone(), range(1, 10))
    assert torch.allclose(apart.mean(0), together.mean(0), rtol=1e-12, atol=0)


@pytest.mark.slow
@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.integers(1, 4))
def test_a_peer_that_missed_rounds_takes_one_step_for_all_averagings_between(gaps: list[int], every: int) -> None:
    made = OuterRules((OuterRule(outer_sgd(), every),), torch.zeros(1, N, dtype=torch.int8), KIND_P * 0)
    algorithm, x_PN, round = OuterSteps(Drift(), made), start(), 1
    state, sent = algorithm.train(begun(x_PN, algorithm), ServerModel(x_PN), work(round), [0] * PEERS)
    for gap in gaps:
        before, received, last = state, mixed(sent.model_n), round
        round += gap
        state, sent = algorithm.train(before, ServerModel(received), work(round), [0] * PEERS)
        due = any(done % every == 0 for done in range(last, round))
        momentum = 0.5 * before.momentum_n + (before.anchor_n - received)
        assert torch.equal(state.momentum_n, momentum if due else before.momentum_n)
        assert torch.equal(state.anchor_n, before.anchor_n - momentum if due else before.anchor_n)


def test_a_round_that_is_trained_again_takes_no_second_step() -> None:
    algorithm = OuterSteps(Drift(), rules(1, 1))
    x_PN, state = rounds_of(algorithm, start(), range(1, 4))
    again, _ = algorithm.train(state, ServerModel(x_PN), work(3), [0] * PEERS)
    assert torch.equal(again.momentum_n, state.momentum_n)
    stepped_n = algorithm.rules.rule_Cn[0] >= 0
    assert torch.equal(again.anchor_n[:, stepped_n], state.anchor_n[:, stepped_n])


@pytest.mark.parametrize("settings", [{"lr": 0.0}, {"lr": float("nan")}, {"momentum": 1.0}, {"momentum": -0.1}])
@pytest.mark.parametrize("kind", [outer_sgd, outer_nesterov])
def test_settings_out_of_range_are_named(kind: Any, settings: dict[str, float]) -> None:
    (name,) = settings
    with pytest.raises(OuterOptimizerError, match=f": {name} = .*: write"):
        kind(**settings)
