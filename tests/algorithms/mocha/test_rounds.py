"""MOCHA behind the contract: its rounds equal those of the functions, and V always equals that of the clients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import functional_call

from fedpeer.algorithms.leaves import leaves_of, rebuilt, stack_states, take_rows
from fedpeer.algorithms.mocha import dual, omega
from fedpeer.algorithms.mocha.dual import DualTask
from fedpeer.algorithms.mocha.sdca import cyclic
from fedpeer.algorithms.servers.mocha import LossName, Mocha, MochaUpdate
from tests.algorithms.mocha.playing import Play, Tasks, features_of
from tests.algorithms.mocha.problem_factory import covariance
from tests.reference import mocha as reference
from tests.reference.mocha import DualProblem, State, minimise, round_of

TASKS = Tasks.drawn(1)
LOSSES: list[LossName] = ["hinge", "smoothed-hinge", "logistic", "squared"]


def optimum(problem: DualProblem, gap_wanted: float = 1e-10) -> Tensor:
    """Return W of the best dual variables, by the functions that see all clients' data."""
    draws = np.random.default_rng(0)
    best = minimise(problem, State.zero(problem.tasks), gap_wanted=gap_wanted, rounds_max=5000, passes=5, draws=draws)
    return dual.w_of(best.v_TF, problem.coupling_TT)


@pytest.mark.parametrize("sigma", ["per-task", "paper"])
@pytest.mark.parametrize("average", ["mean", "sum"])
@pytest.mark.parametrize("loss", LOSSES)
def test_rounds_are_those_of_the_functions(loss: LossName, average: Any, sigma: Any) -> None:
    """Tasks are related, and the functions get the same sigma' and the same orders: a pass and a half."""
    algorithm = Mocha(TASKS.context, omega="fixed", loss=loss, average=average, sigma=sigma, passes=1.5, shuffle=False)
    play = Play(algorithm, TASKS)
    made = features_of(TASKS, DualTask.averaged if average == "mean" else DualTask.summed)
    coupling_TT = omega.coupling_of_covariance(covariance(np.random.default_rng(2), 3), 0.2)
    play.server = replace(play.server, coupling=replace(play.server.coupling, matrix_TT=coupling_TT))
    problem = DualProblem(algorithm.local_loss, made, coupling_TT)
    state, sigma_T = State.zero(made), dual.sigma_primes(problem.coupling_TT)
    if sigma == "paper":
        sigma_T = dual.sigma_prime(problem.coupling_TT).expand(3)
    orders = [cyclic(np.arange(len(task.y_S)), int(1.5 * len(task.y_S))) for task in made]
    for _ in range(3):
        # The statistics of a round describe its beginning.
        gap, primal = reference.gap(problem, state.alphas, state.v_TF), reference.primal(problem, state.v_TF)
        play.one()
        assert play.statistic("gap").sum().item() == pytest.approx(gap, rel=1e-12)
        assert play.statistic("primal").sum().item() == pytest.approx(primal, rel=1e-12)
        state = round_of(problem, state, sigma_T, orders)
        for alpha_S, wanted_S in zip(play.state.alphas, state.alphas, strict=True):
            torch.testing.assert_close(alpha_S, wanted_S, rtol=0, atol=1e-12)
        torch.testing.assert_close(play.server.v_TF, state.v_TF, rtol=0, atol=1e-12)
        torch.testing.assert_close(play.w_TF, dual.w_of(state.v_TF, problem.coupling_TT), rtol=0, atol=1e-11)
    assert play.statistic("steps").tolist() == [13, 7, 10]


WHO = st.lists(st.tuples(st.sets(st.integers(0, 2), min_size=1), st.sets(st.integers(0, 2))), min_size=1, max_size=8)


@pytest.mark.slow
@given(rounds=WHO, loss=st.sampled_from(LOSSES), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_v_is_that_of_the_clients_and_the_dual_never_rises_whoever_takes_part_or_is_late(
    rounds: list[tuple[set[int], set[int]]], loss: LossName, seed: int
) -> None:
    algorithm = Mocha(
        TASKS.context, omega="mean-regularised", lam=0.4, ridge=0.05, loss=loss, passes=2, low=0.1, drop=0.2
    )
    play = Play(algorithm, TASKS, seed)
    before = reference.dual(play.problem(), play.state.alphas)
    for nodes, late in rounds:
        held = [client.alpha_S for client in play.clients]
        play.one(nodes, late)
        problem, state = play.problem(), play.state
        torch.testing.assert_close(state.v_TF, reference.v_of(problem.tasks, state.alphas), rtol=0, atol=1e-13)
        now = reference.dual(problem, state.alphas)
        assert now <= before + 1e-12
        before = now
        w_TF = dual.w_of(state.v_TF, problem.coupling_TT)
        for t in range(3):
            if t not in nodes - late:
                assert torch.equal(play.clients[t].alpha_S, held[t]), "what did not count is taken back"
            if t in nodes:
                assert torch.equal(play.clients[t].model_n, w_TF[t]), "it has w_t after the round, counted or not"


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_the_gap_closes_to_a_millionth_with_budgets_and_nodes_that_drop(loss: LossName) -> None:
    algorithm = Mocha(
        TASKS.context, omega="mean-regularised", lam=0.5, ridge=0.1, loss=loss, passes=6, low=0.3, drop=0.2
    )
    play = Play(algorithm, TASKS)
    while not 0 <= play.rounds(10).statistic("gap").sum().item() <= 1e-6:
        assert play.round < 400
    # P is strongly convex with constant 2 ridge, so |W - W*|^2 <= 2 gap / (2 ridge).
    torch.testing.assert_close(play.w_TF, optimum(play.problem(), 1e-8), rtol=0, atol=(1.1e-6 / 0.1) ** 0.5)


@pytest.mark.slow
def test_a_node_that_never_answers_ends_elsewhere() -> None:
    without = Mocha(TASKS.context, omega="mean-regularised", lam=0.5, ridge=0.1, loss="squared", passes=3, dropped=(1,))
    play = Play(without, TASKS).rounds(100)
    assert not play.state.alphas[1].any()
    assert play.statistic("steps").tolist() == [27, 0, 21]
    assert (play.w_TF - optimum(play.problem())).abs().max() > 0.02
    assert play.w_TF[1].abs().max() > 0.02, "it still learns from the others"


@pytest.mark.slow
def test_budgets_are_drawn_anew_for_each_node_and_round_and_the_key_names_them() -> None:
    algorithm = Mocha(TASKS.context, passes=4, low=0.25, high=1.0, drop=0.25)
    seen = []
    for seed, rounds in ((0, 60), (0, 6), (1, 6)):
        play, steps = Play(algorithm, TASKS, seed), []
        for _ in range(rounds):
            play.one()
            steps.append(play.statistic("steps"))
        seen.append(torch.stack(steps))
    assert torch.equal(seen[0][:6], seen[1])
    assert not torch.equal(seen[0][:6], seen[2])
    taken_RT, most_T = seen[0], torch.tensor([36.0, 20.0, 28.0])
    worked = taken_RT > 0
    assert 0.1 < 1 - worked.double().mean() < 0.4
    assert (taken_RT <= most_T).all()
    assert (taken_RT[worked] >= (most_T / 4).expand_as(taken_RT)[worked]).all()
    assert all(len(set(of_node.tolist())) > 8 for of_node in taken_RT.T)


@pytest.mark.parametrize(
    ("kind", "settings_of_it"), [("trace-constrained", {}), ("clustered", {"clusters": 1.5}), ("sparse-precision", {})]
)
def test_relations_are_learned_after_every_inner_rounds_and_w_follows_at_once(
    kind: Any, settings_of_it: dict[str, Any]
) -> None:
    algorithm = Mocha(TASKS.context, omega=kind, lam=0.1, inner=3, passes=3, **settings_of_it)
    play = Play(algorithm, TASKS)
    first_TT = play.server.coupling.matrix_TT
    play.rounds(2)
    assert torch.equal(play.server.coupling.matrix_TT, first_TT)
    told = algorithm.open(play.server, 3)
    _, updates = algorithm.train(
        stack_states(play.clients), told, TASKS.block(range(3)), [play.draws.key("local", str(t), 3) for t in range(3)]
    )
    w_TF = first_TT @ (play.server.v_TF + updates.delta_v_F)
    play.one()
    found_TT, v_TF = play.server.coupling.matrix_TT, play.server.v_TF
    by_hand_TT = {
        "trace-constrained": lambda: omega.coupling_of_covariance(omega.trace_constrained(w_TF, 1e-3), 0.05),
        "clustered": lambda: omega.coupling_of_covariance(omega.clustered(w_TF, 0.1, 1.5).covariance_TT, 0.05),
        "sparse-precision": lambda: omega.coupling_of_penalty(0.05 * omega.sparse_precision(w_TF, 0.05, 0.01).omega_TT),
    }[kind]()
    torch.testing.assert_close(found_TT, by_hand_TT, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(play.w_TF, found_TT @ v_TF)
    assert (play.w_TF - first_TT @ v_TF).abs().max() > 1e-3
    torch.testing.assert_close(v_TF, reference.v_of(play.problem().tasks, play.state.alphas), rtol=0, atol=1e-13)


def test_tasks_that_are_alike_or_opposite_are_seen_to_be() -> None:
    draws = np.random.default_rng(3)
    plane = torch.from_numpy(draws.standard_normal(6))
    xs = tuple(torch.from_numpy(draws.standard_normal((40, 6))) for _ in range(4))
    ys = tuple(((x @ plane) * sign > 0).long() for x, sign in zip(xs, (1, 1, -1, -1), strict=True))
    tasks = Tasks(xs, ys)
    play = Play(Mocha(tasks.context, lam=0.1, inner=5, passes=3), tasks).rounds(10)
    found_TT = play.algorithm.relations(play.server)
    assert found_TT is not None
    wanted_TT = torch.tensor([[1, 1, -1, -1], [1, 1, -1, -1], [-1, -1, 1, 1], [-1, -1, 1, 1]]).double()
    assert torch.equal(found_TT.diagonal(), torch.ones(4).double())
    assert torch.equal(found_TT.sign(), wanted_TT)
    assert found_TT.abs().min() > 0.5
    for kind in ("fixed", "local", "global", "mean-regularised"):
        unlearned = Mocha(TASKS.context, omega=kind, ridge=0.1 if kind == "mean-regularised" else 0.0)
        assert unlearned.relations(unlearned.start_server(torch.zeros(5))) is None


def test_the_lasso_tells_how_good_its_relations_are() -> None:
    play = Play(Mocha(TASKS.context, omega="sparse-precision", sparsity=1e-3, lam=0.1, inner=1), TASKS).rounds(2)
    assert play.statistic("excess").shape == (3,)
    assert 0 <= play.statistic("excess").max() < 1e-6
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(omega, "LASSO_STEPS_MAX", 2)
        play.one()
    assert play.statistic("excess").min() > 0.01
    assert "excess" not in Play(Mocha(TASKS.context), TASKS).algorithm.statistics(play.clients[0], play.server)


def closed(algorithm: Mocha, gap: float) -> Play:
    """Run rounds until the gap is at most `gap`; |W - W*|^2 is then at most 2 / lam times the gap."""
    play = Play(algorithm, TASKS)
    while play.rounds(5).statistic("gap").sum() > gap:
        assert play.round < 1000
    return play


@pytest.mark.slow
def test_local_is_each_task_alone_and_global_all_examples_as_one() -> None:
    made = features_of(TASKS)
    local = closed(Mocha(TASKS.context, omega="local", lam=0.3, passes=6), 1e-9)
    for task, w_F in zip(made, local.w_TF, strict=True):
        alone = DualProblem(local.problem().loss, (task,), torch.ones(1, 1, dtype=torch.float64) / 0.3)
        torch.testing.assert_close(w_F, optimum(alone)[0], rtol=0, atol=1e-4)
    together = closed(Mocha(TASKS.context, omega="global", lam=0.3, loss="squared", passes=6), 1e-13)
    x_SF, y_S = torch.cat([task.x_SF for task in made]), torch.cat([task.y_S for task in made])
    weight_S = torch.cat([torch.full((len(task.y_S),), task.weight) for task in made]).double()
    normal_FF = x_SF.mT @ (weight_S[:, None] * x_SF) + 0.3 * torch.eye(5, dtype=torch.float64)
    wanted_F = torch.linalg.solve(normal_FF, x_SF.mT @ (weight_S * y_S))
    torch.testing.assert_close(together.w_TF, wanted_F.expand(3, -1), rtol=0, atol=1e-6)


def test_a_block_is_each_alone() -> None:
    algorithm, play = Mocha(TASKS.context, low=0.2), Play(Mocha(TASKS.context), TASKS).rounds(2)
    told, keys = algorithm.open(play.server, 3), (11, 12, 13)
    nodes, said = algorithm.train(stack_states(play.clients), told, TASKS.block([0, 1, 2]), keys)
    settled = algorithm.settle(stack_states(play.clients), nodes, play.server, torch.tensor([True, False, True]))
    for t in range(3):
        node, update = algorithm.train(play.clients[t], told, TASKS.batches(t), keys[t : t + 1])
        alone = algorithm.settle(play.clients[t], node, play.server, torch.tensor(t != 1))
        for one, other in ((take_rows(settled, t), alone), (take_rows(said, t), update)):
            assert all(torch.equal(leaf, leaves_of(other)[name]) for name, leaf in leaves_of(one).items())


def test_the_model_is_that_of_the_network_with_its_bias_as_one_more_feature() -> None:
    play = Play(Mocha(TASKS.context, passes=3), TASKS).rounds(5)
    with_ones = Tasks(tuple(torch.cat([x, torch.ones(len(x), 1)], 1).double() for x in TASKS.xs), TASKS.ys, bias=False)
    torch.testing.assert_close(Play(Mocha(with_ones.context, passes=3), with_ones).rounds(5).w_TF, play.w_TF)
    for task, x, w_F in zip(features_of(TASKS), TASKS.xs, play.w_TF, strict=True):
        z_S1 = functional_call(TASKS.context.module, TASKS.context.layout.unflatten(w_F), x)
        torch.testing.assert_close(z_S1[:, 0], task.x_SF @ w_F)


@pytest.mark.slow
def test_numbers_are_learned_with_the_squared_loss() -> None:
    draws = np.random.default_rng(4)
    xs = tuple(torch.from_numpy(draws.standard_normal((6, 3))).float() for _ in range(2))
    ys = tuple(torch.from_numpy(draws.standard_normal((6, 1))).float() for _ in range(2))
    tasks = Tasks(xs, ys, bias=False, loss="mean-squared-error")
    play = Play(Mocha(tasks.context, omega="local", lam=0.2, loss="squared", average="sum", passes=3), tasks).rounds(
        150
    )
    for x, y, w_F in zip(xs, ys, play.w_TF, strict=True):
        wanted_F = torch.linalg.solve(
            x.double().mT @ x.double() + 0.2 * torch.eye(3).double(), (x.double().mT @ y.double())[:, 0]
        )
        torch.testing.assert_close(w_F, wanted_F, rtol=0, atol=1e-6)


def test_a_client_that_was_never_asked_has_its_initial_model_and_types_stay() -> None:
    algorithm, start_Bn = Mocha(TASKS.context), torch.rand(2, 5)
    block = algorithm.start_client(start_Bn, torch.tensor([9, 5]))
    assert torch.equal(algorithm.personal_model(block), start_Bn)
    assert block.alpha_S.shape == (2, 9)
    server = algorithm.start_server(start_Bn[0])
    assert Play(algorithm, TASKS).algorithm.server_model(server) is None
    nodes, said = algorithm.train(block, algorithm.open(server, 1), TASKS.block([0, 1]), (1, 2))
    settled = algorithm.settle(block, nodes, algorithm.close(server, said), torch.tensor([True, True]))
    assert {name: (leaf.dtype, leaf.shape) for name, leaf in leaves_of(settled).items()} == {
        name: (leaf.dtype, leaf.shape) for name, leaf in leaves_of(block).items()
    }
    assert settled.model_n.dtype == torch.float32
    later = algorithm.close(server, said)
    assert all(
        torch.equal(leaf, leaves_of(later)[name]) for name, leaf in leaves_of(rebuilt(server, leaves_of(later))).items()
    )


def test_the_number_of_no_task_is_a_lie_and_moves_nothing() -> None:
    play = Play(Mocha(TASKS.context), TASKS).rounds(1)
    told = MochaUpdate(torch.ones(3, 5, dtype=torch.float64), torch.tensor([-1, 3, 1]))
    moved_TF = play.algorithm.close(play.server, told).v_TF - play.server.v_TF
    assert torch.equal(moved_TF.abs().sum(-1) > 0, torch.tensor([False, True, False]))
