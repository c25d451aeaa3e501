"""SGP by settings, D-PSGD, DFedAvgM, DFedAlt and DFedSalt in the vector engine, and by whole peers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.gradients import gradient_of
from fedpeer.algorithms.losses import LOSSES
from fedpeer.config.choice import parse_choice
from fedpeer.sims.network.engine import NetworkEngine
from fedpeer.sims.vector.engine import VectorEngine
from fedpeer.sims.vector.gossip_rounds import GossipRounds
from fedpeer.sims.world import World
from tests.sims.worlds import assert_workers_and_stops_change_nothing, engine, federation, relative, world

#: Each step uses all examples of a peer, so that gradients are exact; each peer sends to one peer in a round.
SINGLE: dict[str, Any] = {
    "learning__batch_size": 40,
    "learning__steps_between_averaging": 1,
    "gossip__topology": "one-peer-exponential",
    "gossip__exchanges": 1,
}
#: Places of the output layer, of 12 * 10 weights and 10 biases.
HEAD = 130


def mean_gradients(made: World, x_Pn: Tensor) -> Tensor:
    """Return the gradients, (P, n), of each peer's loss on all examples that it holds."""
    gradient, found = gradient_of(made.module, made.layout, LOSSES[made.loss]), []
    for peer, x_n in enumerate(x_Pn):
        x = torch.from_numpy(np.asarray(made.split.inputs(made.dataset, peer)))
        y = torch.from_numpy(np.asarray(made.split.labels(made.dataset, peer)))
        found.append(gradient(x_n[None], x[None], y[None], (0,))[0])
    return torch.stack(found)


def matrix_of(running: VectorEngine, number: int) -> Tensor:
    """Return the matrix (P, P) of the single group's averaging in round 0, 1, ..."""
    assert isinstance(running._rounds, GossipRounds)
    (policy,) = running._rounds._averaging.values()
    matrix: Any = policy.matrix(number)
    return torch.from_numpy(np.asarray(matrix.toarray())).float()


def test_sgp_is_full_averaging_of_single_steps_on_the_papers_graph() -> None:
    """The numerator takes the step that the de-biased model z asks for; both it and the weight are pushed.

    On this directed graph each peer sends to one and receives from one, so that all weights stay 1.
    """
    made = world(federation(**SINGLE))
    with engine(made, "full-averaging") as running:
        x_Pn, w_P = running.estimate_Pn.clone(), torch.ones(len(made.peers))
        for number in range(4):
            running.step()
            z_Pn, push = x_Pn / w_P[:, None], matrix_of(running, number)
            assert not torch.equal(push, push.T), "the graph is directed"
            x_Pn, w_P = push @ (x_Pn - 0.1 * mean_gradients(made, z_Pn)), push @ w_P
            assert relative(running.estimate_Pn, x_Pn / w_P[:, None]) < 1e-5
        torch.testing.assert_close(w_P, torch.ones(len(made.peers)))


def test_d_psgd_in_the_engine_is_the_recursion() -> None:
    made = world(federation(**SINGLE | {"gossip__topology": "ring"}))
    with engine(made, "d-psgd") as running:
        x_Pn = averaged_Pn = running.estimate_Pn.clone()
        for number in range(4):
            running.step()
            x_Pn = averaged_Pn - 0.1 * mean_gradients(made, x_Pn)
            averaged_Pn = matrix_of(running, number) @ x_Pn
            assert relative(running.x_Pn, averaged_Pn) < 1e-5


@pytest.mark.parametrize("method", ["dfedalt", "dfedsalt"])
def test_only_the_base_is_sent_and_only_the_base_agrees(method: str) -> None:
    made = world(federation(gossip__protocol="exact"))
    base = made.layout.n - HEAD
    with engine(made, method) as running, engine(made, "full-averaging") as whole:
        for each in (running, whole):
            each.step()
        (messages, amount), (as_many, more) = running.traffic, whole.traffic
        assert messages == as_many
        for less, full, count in zip(amount, more, messages, strict=True):
            assert full - less == 4 * HEAD * count
        apart_Pn = (running.x_Pn - running.x_Pn[0]).abs()
        assert float(apart_Pn[:, :base].max()) < 1e-6
        assert float(apart_Pn[1:, base:].amax(-1).min()) > 1e-3
        assert running.evaluate_server() is None


def test_a_directed_graph_makes_it_partial_gradient_push() -> None:
    """DFedPGP: bases are pushed along a directed graph, whose weights stay 1 here, and heads stay."""
    made = world(federation(gossip__topology="exponential", gossip__exchanges=1))
    base = made.layout.n - HEAD
    with engine(made, "dfedalt") as running:
        running.step()
        trained_Pn = running.trained_Pn
        assert trained_Pn is not None
        push = matrix_of(running, 0)
        assert not torch.equal(push, push.T), "the graph is directed"
        torch.testing.assert_close(push.sum(0), push.sum(1))
        assert relative(running.x_Pn[:, :base], push @ trained_Pn[:, :base]) < 1e-5
        assert torch.equal(running.x_Pn[:, base:], trained_Pn[:, base:])


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("d-psgd", {}),
        ("dfedavgm", {"learning__optimizer": "sgd,lr=0.1,momentum=0.9"}),
        ("dfedalt", {}),
        ("dfedsalt,rho=0.1", {}),
    ],
)
def test_whole_peers_give_the_numbers_of_the_vector_engine(method: str, settings: dict[str, Any]) -> None:
    made = world(federation(gossip__deadline=120.0, simulation__peers=4, **settings))
    with engine(made, method) as expected, NetworkEngine(made, parse_choice(method)) as found:
        for _ in range(3):
            expected.step()
            found.step()
        assert np.allclose(found.evaluate(), expected.evaluate(), rtol=1e-5)
        assert relative(found.x_Pn, expected.x_Pn) < 1e-5


@pytest.mark.parametrize("method", ["d-psgd", "dfedalt"])
def test_neither_workers_nor_a_stop_between_rounds_change_a_bit(method: str) -> None:
    assert_workers_and_stops_change_nothing(world(federation()), method)


def test_settings_that_do_not_fit_are_said_before_a_run() -> None:
    with (
        pytest.raises(AlgorithmError, match="plain gradient steps"),
        engine(world(federation(learning__optimizer="adam,lr=0.01")), "d-psgd"),
    ):
        pass
