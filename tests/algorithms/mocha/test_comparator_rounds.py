"""CoCoA, minibatch SDCA and minibatch SGD behind the contract: their rounds equal those of the functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedpeer.algorithms.draws import Draws
from fedpeer.algorithms.leaves import leaves_of, stack_states, take_rows
from fedpeer.algorithms.mocha import comparators, dual, omega
from fedpeer.algorithms.mocha.sdca import Order
from fedpeer.algorithms.servers.mocha import Mocha
from fedpeer.algorithms.servers.mocha_comparators import Cocoa, MinibatchSdca, MinibatchSgd, SlopeUpdate
from tests.algorithms.mocha.playing import Play, Tasks, features_of
from tests.reference import mocha as reference
from tests.reference.mocha import DualProblem, State, minimise

TASKS = Tasks.drawn(1)
#: Settings for related tasks, with relations that stay fixed.
RELATED: dict[str, Any] = {"omega": "mean-regularised", "lam": 0.4, "ridge": 0.1}


def problem_of(loss: Any) -> DualProblem:
    a_TT = omega.penalty(omega.mean_regularised(3), 0.2, 0.1)
    return DualProblem(loss, features_of(TASKS), omega.coupling_of_penalty(a_TT))


def orders_of(play: Play, round: int) -> list[Order]:
    keys = [play.draws.key("local", str(t), round) for t in range(3)]
    return [Draws(key).numpy("order").permutation(len(x)) for key, x in zip(keys, TASKS.xs, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["hinge", "logistic"])
def test_rounds_of_cocoa(loss: Any) -> None:
    algorithm = Cocoa(TASKS.context, loss=loss, theta=0.3, **RELATED)
    play, problem = Play(algorithm, TASKS), problem_of(algorithm.local_loss)
    state, sigma_T = State.zero(problem.tasks), dual.sigma_primes(problem.coupling_TT)
    for number in range(1, 4):
        play.one()
        state, steps = reference.cocoa_round(problem, state, sigma_T, orders_of(play, number), 0.3)
        torch.testing.assert_close(play.server.v_TF, state.v_TF, rtol=0, atol=1e-12)
        assert play.statistic("steps").tolist() == steps


@pytest.mark.parametrize("loss", ["hinge", "squared"])
def test_rounds_of_minibatch_sdca(loss: Any) -> None:
    algorithm = MinibatchSdca(TASKS.context, loss=loss, batch=5, beta=4.0, **RELATED)
    play, problem = Play(algorithm, TASKS), problem_of(algorithm.local_loss)
    state = State.zero(problem.tasks)
    for number in range(1, 4):
        play.one()
        batches = [order[:5] for order in orders_of(play, number)]
        state = reference.minibatch_sdca_round(problem, state, batches, 4.0)
        torch.testing.assert_close(play.server.v_TF, state.v_TF, rtol=0, atol=1e-12)
    assert play.statistic("steps").tolist() == [5, 5, 5]
    torch.testing.assert_close(play.server.v_TF, reference.v_of(problem.tasks, play.state.alphas))


def test_nodes_with_less_than_a_batch_give_what_they_have_and_the_rest_is_not_made_more() -> None:
    """A round takes beta / (batch * clients) of each move for any set of participants, so that beta = 1 stays safe."""
    play = Play(MinibatchSdca(TASKS.context, batch=8, beta=1.0, **RELATED), TASKS)
    problem, before = play.problem(), 0.0
    for nodes in ([0], [0, 1, 2], [1, 2], [2]):
        play.one(nodes)
        now = reference.dual(problem, play.state.alphas)
        assert now < before
        before = now
    assert play.statistic("steps").tolist() == [8, 5, 7]


@pytest.mark.parametrize("loss", ["hinge", "smoothed-hinge", "logistic", "squared"])
def test_rounds_of_minibatch_sgd(loss: Any) -> None:
    algorithm = MinibatchSgd(TASKS.context, loss=loss, batch=4, beta=0.3, **RELATED)
    play, problem = Play(algorithm, TASKS), problem_of(algorithm.local_loss)
    w_TF = torch.zeros(3, 5, dtype=torch.float64)
    for number in range(1, 4):
        primal = reference.primal_of_w(problem, w_TF)
        play.one()
        assert play.statistic("primal").sum().item() == pytest.approx(primal, rel=1e-12)
        batches = [order[:4] for order in orders_of(play, number)]
        w_TF = reference.minibatch_sgd_round(problem, w_TF, batches, 0.3 / number)
        torch.testing.assert_close(play.w_TF, w_TF, rtol=0, atol=1e-12)
    assert play.statistic("steps").tolist() == [4, 4, 4]
    play.one([1])
    empty, (_, drawn, _) = np.array([], np.int64), orders_of(play, 4)
    w_TF = reference.minibatch_sgd_round(problem, w_TF, [empty, drawn[:4], empty], 0.3 / 4)
    torch.testing.assert_close(play.server.w_TF, w_TF, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_sgd_learns_relations_too_and_takes_no_lies_about_numbers() -> None:
    algorithm = MinibatchSgd(TASKS.context, lam=0.1, beta=0.05, inner=3, loss="squared")
    play = Play(algorithm, TASKS).rounds(3)
    wanted_TT = omega.coupling_of_covariance(omega.trace_constrained(play.w_TF, 1e-3), 0.05)
    torch.testing.assert_close(play.server.coupling.matrix_TT, wanted_TT)
    assert algorithm.relations(play.server) is not None
    slope_KF = torch.ones(2, 5, dtype=torch.float64)
    lied, silent = (
        algorithm.close(play.server, SlopeUpdate(rows_KF, torch.tensor([-2, 3])))
        for rows_KF in (slope_KF, torch.zeros_like(slope_KF))
    )
    assert torch.equal(lied.w_TF, silent.w_TF)


@pytest.mark.parametrize("kind", [Cocoa, MinibatchSdca, MinibatchSgd])
def test_a_block_is_each_alone(kind: Any) -> None:
    algorithm = kind(TASKS.context, **RELATED)
    play = Play(algorithm, TASKS).rounds(2)
    told, keys = algorithm.open(play.server, 3), (11, 12, 13)
    nodes, said = algorithm.train(stack_states(play.clients), told, TASKS.block([0, 1, 2]), keys)
    for t in range(3):
        pair = algorithm.train(play.clients[t], told, TASKS.batches(t), keys[t : t + 1])
        for one, other in zip((take_rows(nodes, t), take_rows(said, t)), pair, strict=True):
            assert all(torch.equal(leaf, leaves_of(other)[name]) for name, leaf in leaves_of(one).items())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "rounds", "near"),
    [
        (Mocha(TASKS.context, loss="squared", passes=2, **RELATED), 60, 1e-6),
        (Cocoa(TASKS.context, loss="squared", **RELATED), 60, 1e-6),
        (MinibatchSdca(TASKS.context, loss="squared", batch=9, beta=4.0, **RELATED), 120, 1e-2),
        (MinibatchSgd(TASKS.context, loss="squared", batch=9, beta=1.0, **RELATED), 120, 2e-2),
    ],
    ids=["mocha", "cocoa", "minibatch-sdca", "minibatch-sgd"],
)
def test_all_come_to_the_same_optimum(made: Any, rounds: int, near: float) -> None:
    problem = problem_of(made.local_loss)
    start, draws = State.zero(problem.tasks), np.random.default_rng(0)
    best = minimise(problem, start, gap_wanted=1e-12, rounds_max=2000, passes=2, draws=draws)
    play = Play(made, TASKS).rounds(rounds)
    assert reference.primal_of_w(problem, play.w_TF) == pytest.approx(reference.primal(problem, best.v_TF), rel=near)


def test_seconds_are_the_units_of_the_papers_model_over_a_phones_speed() -> None:
    steps_RT = np.array([[10, 30], [0, 5]])
    found = comparators.seconds_of("mocha", "lte", steps_RT, 500, 1e6)
    assert found.tolist() == pytest.approx([(8 * 40 + 100) * 5e-4, (8 * 40 + 100 + 8 * 5 + 100) * 5e-4])
    slowest = comparators.seconds_of("cocoa", "wifi", steps_RT[:1], 500, 1e6)
    assert slowest.tolist() == pytest.approx([(8 * 2 * 30 + 10) * 5e-4])
    default = comparators.seconds_of("minibatch-sgd", "3g", steps_RT[:1], 500)
    assert default.tolist() == pytest.approx([(4 * 40 + 1000) * 500 / 1e9])
