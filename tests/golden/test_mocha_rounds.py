"""MOCHA's golden cases again, run as rounds of the algorithm behind the contract instead of through its functions.

A case gives a server and its clients in the middle of a run, and these values are put into their states; everything
that is then compared comes out of `open`, `train`, `close`, `settle` and `statistics`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fedpeer.algorithms.leaves import stack_states
from fedpeer.algorithms.mocha import dual, omega, sdca
from fedpeer.algorithms.servers import mocha
from fedpeer.algorithms.servers.mocha import Mocha, MochaUpdate
from tests.algorithms.mocha.playing import Tasks
from tests.golden.compare import compare
from tests.golden.mutating import case_of, name_of, needs_golden
from tests.golden.run import Case
from tests.reference import mocha as reference

PAPER, TRACE, OTHERS = "06a_mocha_paper_convention", "06b_mocha_trace_constrained", "06c_mocha_omega_updates"
#: Passes in each round, and the most rounds; related tasks reach the optimum in far fewer.
PASSES, ROUNDS = 50.0, 400


def tensor(nested: Any) -> Tensor:
    return torch.tensor(nested, dtype=torch.float64)


def columns(w_TF: Tensor) -> list[Any]:
    return list(w_TF.mT.tolist())


class Run:
    """A case's server and clients under a coupling."""

    def __init__(self, inputs: Case, coupling_TT: Tensor, **settings: Any) -> None:
        xs = tuple(tensor(x).mT.contiguous() for x in inputs["X"])
        self.tasks = Tasks(xs, tuple((tensor(y) > 0).long() for y in inputs["Y"]), bias=False)
        self.settings = {"omega": "fixed", "sigma": "paper", "passes": 1.0, "shuffle": False, **settings}
        algorithm, start_n = self.made(), torch.zeros(xs[0].shape[1], dtype=torch.float64)
        self.clients = []
        for t, alpha in enumerate(inputs["alpha"]):
            client = algorithm.start_client(start_n, self.tasks.examples(t))
            padded_S = functional.pad(tensor(alpha), (0, client.alpha_S.shape[-1] - len(alpha)))
            self.clients.append(replace(client, alpha_S=padded_S, number=torch.tensor(t)))
        made = [algorithm.task(self.tasks.batches(t)) for t in range(len(xs))]
        v_TF = reference.v_of(made, list(map(tensor, inputs["alpha"])))
        server = algorithm.start_server(start_n)
        self.server = replace(server, v_TF=v_TF, coupling=replace(server.coupling, matrix_TT=coupling_TT))

    def made(self, **settings: Any) -> Mocha:
        return Mocha(self.tasks.context, **(self.settings | settings))

    def round(self, each: Sequence[Mocha]) -> None:
        """Run one round in which client t uses `each[t]`, with the budget that the case prescribes."""
        told = each[0].open(self.server, 1)
        trained = [
            algorithm.train(client, told, self.tasks.batches(t), (t,))
            for t, (algorithm, client) in enumerate(zip(each, self.clients, strict=True))
        ]
        self.before = self.clients
        self.server = each[0].close(self.server, stack_states([said for _, said in trained]))
        self.clients = [
            each[0].settle(before, node, self.server, torch.tensor(True))
            for before, (node, _) in zip(self.before, trained, strict=True)
        ]

    def told(self, name: str) -> float:
        """Return the sum over the clients of a statistic, which describes the beginning of their last round."""
        return sum(self.made().statistics(client, self.server)[name].item() for client in self.clients)

    @property
    def w(self) -> list[Any]:
        return columns(torch.stack([client.model_n for client in self.clients]))

    @property
    def alphas(self) -> list[list[float]]:
        return [client.alpha_S[: len(x)].tolist() for client, x in zip(self.clients, self.tasks.xs, strict=True)]

    @property
    def delta(self) -> list[list[float]]:
        moved = [new.alpha_S - old.alpha_S for new, old in zip(self.clients, self.before, strict=True)]
        return [moved_S[: len(x)].tolist() for moved_S, x in zip(moved, self.tasks.xs, strict=True)]

    def optimum(self) -> Case:
        algorithm = self.made(passes=PASSES)
        for _ in range(ROUNDS):
            self.round([algorithm] * 3)
            if self.told("gap") < 1e-14:
                break
        return {"W": self.w, "primal": self.told("primal"), "dual": self.told("gap") - self.told("primal")}


def paper_convention(inputs: Case) -> Case:
    a_TT = omega.penalty(tensor(inputs["Omega"]), inputs["lambda1"], inputs["lambda2"])
    coupling_TT = omega.coupling_of_penalty(a_TT)

    def begun() -> Run:
        return Run(inputs, coupling_TT, average="sum")

    one, half, some = begun(), begun(), begun()
    found: Case = {
        "V": columns(one.server.v_TF),
        "W_of_alpha": columns(one.made().open(one.server, 1).w_TF),
        "sigma_prime": (one.made().open(one.server, 1).curvature_T / coupling_TT.diagonal()).max().item(),
    }
    one.round([one.made()] * 3)
    found |= {
        "primal_at_W_of_alpha": one.told("primal"),
        "duality_gap": one.told("gap"),
        "dual_at_alpha": one.told("gap") - one.told("primal"),
        "one_pass_delta": one.delta,
        "W_after_one_pass": one.w,
    }
    one.round([one.made()] * 3)
    found["dual_after_one_pass_all_tasks"] = one.told("gap") - one.told("primal")
    half.round([half.made(passes=0.5)] * 3)
    some.round([some.made(), some.made(dropped=(1,)), some.made(passes=0.5)])
    found |= {"half_pass_delta": half.delta, "dropped_round": {"alpha": some.alphas, "W": some.w}}
    some.round([some.made()] * 3)
    found["dropped_round"]["dual"] = some.told("gap") - some.told("primal")
    return found | {"optimum": begun().optimum()}


def trace_constrained(inputs: Case) -> Case:
    """Compute case 06b, whose dual is maximised, so that the sign is flipped."""
    lam = inputs["lam"]
    coupling_TT = omega.coupling_of_covariance(tensor(inputs["Sigma"]), lam / 2)
    run = Run(inputs, coupling_TT, lam=lam)
    told = run.made().open(run.server, 1)
    found = {
        "rho": (told.curvature_T / coupling_TT.diagonal()).max().item(),
        "V": columns(run.server.v_TF),
        "W_of_alpha": columns(told.w_TF),
    }
    optimum = run.optimum()
    again = Run(inputs, coupling_TT, lam=lam)
    again.round([again.made()] * 3)
    found |= {"primal": again.told("primal"), "dual": again.told("primal") - again.told("gap")}
    w_TF = tensor(inputs["W_for_sigma_update"]).mT
    learned_TT = after(again, w_TF, omega="trace-constrained", floor=0.0)
    sigma = {"Sigma": (lam * learned_TT).tolist()}
    return found | {"optimum": {**optimum, "dual": -optimum["dual"]}, "sigma_update": sigma}


def after(run: Run, w_TF: Tensor, **settings: Any) -> Tensor:
    """Return the coupling after a round in which no client moved and W was the given one."""
    v_TF = torch.linalg.solve(run.server.coupling.matrix_TT, w_TF)
    nothing = MochaUpdate(torch.zeros_like(v_TF), torch.arange(len(v_TF)))
    closed = run.made(inner=1, **settings).close(replace(run.server, v_TF=v_TF), nothing)
    return closed.coupling.matrix_TT


def omega_updates(inputs: Case) -> Case:
    w_TF, tasks = tensor(inputs["W"]).mT, inputs["m"]
    ones = {"X": [[[1.0]] * w_TF.shape[1]] * tasks, "Y": [[1.0]] * tasks, "alpha": [[0.0]] * tasks}
    run = Run(ones, torch.eye(tasks, dtype=torch.float64), lam=0.5)
    q_TT = 0.5 * after(run, w_TF, omega="clustered", eta=inputs["eta"], clusters=inputs["k"])
    q_TT -= inputs["eta"] * torch.eye(tasks)
    drawn = run.made(omega="mean-regularised", ridge=0.1).start_server(torch.zeros(w_TF.shape[1]))
    inverse_TT = torch.linalg.inv(drawn.coupling.matrix_TT)
    mean_TT = (inverse_TT - 0.2 * torch.eye(tasks)) / 0.5
    return {"mean_regularised": mean_TT.tolist(), "clustered": {"Q": q_TT.tolist()}}


PLAYED: dict[str, Callable[[Case], Case]] = {
    PAPER: paper_convention,
    TRACE: trace_constrained,
    OTHERS: omega_updates,
}


def wrong(stem: str) -> list[str]:
    """Compare all leaves that a round can show; return those that do not agree."""
    case = case_of(stem)
    found = PLAYED[stem](case["inputs"])
    expected = {name: value for name, value in case["expected"].items() if name in found}
    for inner in ("sigma_update", "clustered", "dropped_round", "optimum"):
        if inner in expected:
            expected[inner] = {name: value for name, value in expected[inner].items() if name in found[inner]}
    leaves = compare(expected, found, case["tolerance"])
    assert len(leaves) > 20
    return [str(leaf) for leaf in leaves if not leaf.agrees]


@needs_golden
@pytest.mark.parametrize("stem", PLAYED)
def test_rounds_come_to_the_golden_numbers(stem: str) -> None:
    assert wrong(stem) == []


ADDED, SOLVE = mocha.added, sdca.solve


def taken_off(rows_TF: Tensor, number_K: Tensor, changes_KF: Tensor) -> Tensor:
    return ADDED(rows_TF, number_K, -changes_KF)


def to_the_next(rows_TF: Tensor, number_K: Tensor, changes_KF: Tensor) -> Tensor:
    return ADDED(rows_TF, (number_K + 1) % len(rows_TF), changes_KF)


def unrelated(v_TF: Tensor, coupling_TT: Tensor) -> Tensor:
    return coupling_TT.diagonal()[:, None] * v_TF


def without_others(coupling_TT: Tensor) -> Tensor:
    return dual.sigma_primes(coupling_TT).amax(-1) - 1


def steps_forgotten(*arguments: Any, once: bool = False) -> tuple[Tensor, Tensor]:
    """Send a change that does not belong to the dual variables that are kept."""
    new_S, delta_v_F = SOLVE(*arguments, once=once)
    return new_S, delta_v_F * 1.01


@needs_golden
@pytest.mark.parametrize("stem", [PAPER, TRACE])
@pytest.mark.parametrize(
    ("name", "mutant"),
    [
        ("added", taken_off),
        ("added", to_the_next),
        ("w_of", unrelated),
        ("sigma_prime", without_others),
        ("solve", steps_forgotten),
    ],
    ids=name_of,
)
def test_one_mistake_in_a_round_turns_it_red(
    stem: str, name: str, mutant: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.golden.test_mocha_rounds.ROUNDS", 20)
    monkeypatch.setattr(mocha, name, mutant)
    assert wrong(stem) != []
