"""Two averaged vectors per peer in the vector engine: by hand, stopped, on other workers; and by whole peers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedpeer.algorithms.gradients import gradient_of
from fedpeer.algorithms.losses import LOSSES
from fedpeer.config.choice import parse_choice
from fedpeer.sims.network.engine import NetworkEngine
from fedpeer.sims.vector.gossip_rounds import GossipRounds
from fedpeer.sims.world import World
from tests.sims.worlds import assert_workers_and_stops_change_nothing, engine, federation, relative, world

METHOD = "gradient-tracking"
#: Each step uses all examples that a peer holds, so that gradients are exact.
EXACT: dict[str, Any] = {"learning__batch_size": 40, "learning__steps_between_averaging": 1}


def mean_gradients(made: World, x_Pn: torch.Tensor) -> torch.Tensor:
    """Return the gradients, (P, n), of each peer's loss on all examples that it holds."""
    gradient, found = gradient_of(made.module, made.layout, LOSSES[made.loss]), []
    for peer, x_n in enumerate(x_Pn):
        x = torch.from_numpy(np.asarray(made.split.inputs(made.dataset, peer)))
        y = torch.from_numpy(np.asarray(made.split.labels(made.dataset, peer)))
        found.append(gradient(x_n[None], x[None], y[None], (0,))[0])
    return torch.stack(found)


def test_the_engine_plays_the_recursion() -> None:
    made = world(federation(**EXACT))
    n = made.layout.n
    with engine(made, METHOD) as running:
        assert isinstance(running._rounds, GossipRounds)
        (policy,) = running._rounds._averaging.values()
        x_Pn, y_Pn, g_Pn, mixed_Pn = running.estimate_Pn.clone(), *torch.zeros(3, len(made.peers), n)
        for number in range(5):
            running.step()
            x_Pn = x_Pn - 0.1 * y_Pn
            after_Pn = mean_gradients(made, x_Pn)
            matrix = torch.from_numpy(np.asarray(policy.matrix(number))).float()
            y_Pn, g_Pn = mixed_Pn + after_Pn - g_Pn, after_Pn
            x_Pn, mixed_Pn = matrix @ x_Pn, matrix @ y_Pn
            held_PN = running.workspace.x[running._rounds.source]
            assert held_PN.shape == (len(made.peers), 2 * n)
            assert relative(held_PN[:, :n], x_Pn) < 1e-5
            assert relative(held_PN[:, n:], mixed_Pn) < 1e-4
            torch.testing.assert_close(held_PN[:, n:].sum(0), g_Pn.sum(0), rtol=1e-3, atol=1e-5)
            assert running.x_Pn.shape == (len(made.peers), n)


def test_neither_workers_nor_a_stop_between_rounds_change_a_bit() -> None:
    made = world(federation(partial_models={"everyone": {"neurons": {"input": "all", "output": "all"}}}))
    assert_workers_and_stops_change_nothing(made, METHOD)


def test_both_vectors_travel() -> None:
    made = world(federation())
    with engine(made, METHOD) as ours, engine(made, "full-averaging") as plain:
        ours.step()
        plain.step()
        (messages, amount), (as_many, once) = ours.traffic, plain.traffic
        assert messages == as_many
        for size, single, count in zip(amount, once, messages, strict=True):
            assert size - single == 4 * made.layout.n * count
        assert ours.disagreement().keys() == plain.disagreement().keys()


def test_whole_peers_give_the_numbers_of_the_vector_engine() -> None:
    made = world(federation(gossip__deadline=120.0))
    with engine(made, METHOD) as expected, NetworkEngine(made, parse_choice(METHOD)) as found:
        for _ in range(3):
            expected.step()
            found.step()
            assert np.allclose(found.evaluate(), expected.evaluate(), rtol=1e-5)
            assert relative(found.x_Pn, expected.x_Pn) < 1e-5
            assert found.evaluate_server() is None
        for group, apart in expected.disagreement().items():
            assert found.disagreement()[group] == pytest.approx(apart, rel=1e-3)
