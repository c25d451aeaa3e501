"""One linear model of all examples in one place, compared with scikit-learn's solver; stops and rejections."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.svm import LinearSVC

from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.mocha.dual import DualTask
from fedpeer.algorithms.mocha.losses import HINGE
from fedpeer.algorithms.mocha.sdca import reshuffled, solve
from fedpeer.config.choice import Choice, parse_choice
from fedpeer.config.federation import Federation
from fedpeer.config.methods import method_of
from fedpeer.data.binary import against_the_rest
from fedpeer.data.dataset import Dataset
from fedpeer.learning.holdings import load_dataset
from fedpeer.sims import api
from fedpeer.sims.memory import job_of, workspace_of
from fedpeer.sims.vector.pool import Stopped
from fedpeer.sims.vector.pooled_linear import PooledLinearEngine
from fedpeer.sims.world import World, build_world, plan_of
from tests.sims.worlds import federation, relative, same_bits

LAM = 0.3


def zeros() -> Dataset:
    """Return the digits as two classes: zeros against the rest."""
    return against_the_rest(load_dataset(Choice("digits")), "0")


def binary(**settings: Any) -> World:
    """Return a world of six peers with 40 digits, each of which sees the pixels in its own order."""
    return build_world(
        options(**{"simulation__split": "blocks:40,shuffle=true,test=50/pixels", **settings}), zeros(), 0
    )


def options(**settings: Any) -> Federation:
    """Return a federation with linear models of two classes."""
    plain = {"network": "linear", "learning__loss": "binary", "simulation__split": "blocks:40,shuffle=true,test=50"}
    return federation(**{**plain, **settings})


def linear(made: World, method: str = f"global,lam={LAM},passes=30", **settings: Any) -> PooledLinearEngine:
    found = method_of(parse_choice(method))
    assert found.linear is not None
    memory = workspace_of(made, plan_of(made, parse_choice(method)), "cpu")()
    return PooledLinearEngine(job_of(made, "cpu"), memory, made.drawn(""), *found.linear, **settings)


def seen(made: World) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the examples as all peers see them, (S, F), and their classes."""
    peers = range(len(made.peers))
    x = np.concatenate([np.asarray(made.split.inputs(made.dataset, peer)) for peer in peers])
    y = np.concatenate([np.asarray(made.split.labels(made.dataset, peer)) for peer in peers])
    return x.reshape(len(x), -1).astype(np.float64), y


def test_it_is_the_support_vector_machine_of_all_examples() -> None:
    made = binary()
    x_SF, y_S = seen(made)
    weight = len(made.peers) / len(y_S)
    svm = LinearSVC(C=weight / LAM, loss="hinge", intercept_scaling=1.0, tol=1e-9, max_iter=100_000).fit(x_SF, y_S)
    wanted_F = torch.from_numpy(np.append(svm.coef_[0], svm.intercept_)).float()
    with linear(made) as running:
        gaps = []
        for _ in range(8):
            running.step()
            gaps.append(sum(running.statistics()["gap"]))
        assert gaps[-1] < 1e-6 < gaps[0]
        assert relative(running.x_Pn[:1], wanted_F[None]) < 1e-3
        assert len(running.x_Pn) == 6
        margins_S = (2 * y_S - 1) * (np.c_[x_SF, np.ones(len(x_SF))] @ wanted_F.double().numpy())
        objective = weight * np.maximum(0, 1 - margins_S).sum() + LAM / 2 * float(wanted_F.square().sum())
        assert sum(running.statistics()["primal"]) == pytest.approx(objective, rel=1e-4)


def test_a_stop_leaves_the_state_before_the_round_and_a_checkpoint_goes_on() -> None:
    made, stop = binary(), threading.Event()
    with linear(made, stop=stop) as running:
        running.step()
        tensors, state = running.snapshot()
        stop.set()
        with pytest.raises(Stopped):
            running.step()
        stop.clear()
        running.step()
    with linear(made) as resumed:
        resumed.restore(tensors, state)
        assert same_bits(resumed.x_Pn, tensors["x"].expand(6, -1))
        resumed.step()
        assert resumed.round == 2
        assert same_bits(resumed.x_Pn, running.x_Pn)


def test_a_round_is_its_passes_in_an_order_of_its_own() -> None:
    made = binary()
    x_SF, y_S = (torch.from_numpy(each).double() for each in seen(made))
    task = DualTask(torch.cat([x_SF, torch.ones(240, 1)], dim=1), 2 * y_S - 1, 6 / 240)
    alpha_S = torch.zeros(240, dtype=torch.float64)
    with linear(made, f"global,lam={LAM},passes=0.5") as running:
        for round in (1, 2):
            running.step()
            order_H = reshuffled(240, 120, made.draws.numpy("order", "", round))
            alpha_S, _ = solve(HINGE, task, alpha_S, task.v_F(alpha_S) / LAM, 1 / LAM, order_H)
            torch.testing.assert_close(running.snapshot()[0]["alpha"], alpha_S)


@pytest.mark.parametrize(
    ("method", "settings", "words"),
    [
        ("global,lam=0", {}, "lam = 0.0: write a number above 0"),
        ("global,lam=1,passes=0", {}, "passes = 0.0: write a number above 0"),
        ("global,lam=1", {"network": "mlp:64+5+1"}, "write network: linear"),
    ],
)
def test_what_does_not_fit_is_said_before_anything_is_begun(
    method: str, settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(AlgorithmError, match=words):
        api.simulate(federation=options(**settings), data=zeros(), methods=(method,), out=tmp_path)
    assert not list(tmp_path.iterdir())


def test_it_is_simulated_and_scored_on_each_peers_test_part(tmp_path: Path) -> None:
    found = api.simulate(federation=options(), data=zeros(), methods=("global,lam=0.01",), out=tmp_path)
    (result,) = found.summary["methods"].values()
    assert result["bytes_sent"] == 0
    assert result["scores"]["PM"]["final"] > 0.95, "who never says zero is right in nine of ten"
