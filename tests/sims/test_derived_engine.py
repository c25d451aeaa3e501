"""NoLoCo, CHOCO-SGD and DisPFL, whose peers derive their models, in the vector engine and by whole peers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedpeer.algorithms.choco import PublicCopy
from fedpeer.algorithms.dispfl import PersonalMask
from fedpeer.config.choice import parse_choice
from fedpeer.sims.network.engine import NetworkEngine
from fedpeer.sims.vector.engine import VectorEngine
from fedpeer.sims.vector.gossip_rounds import GossipRounds
from tests.sims.worlds import assert_workers_and_stops_change_nothing, engine, federation, relative, world

PAIRS: dict[str, Any] = {"gossip__protocol": "push-pull", "gossip__topology": "complete", "gossip__exchanges": 1}
RING: dict[str, Any] = {"gossip__exchanges": 1}
#: By method, how its peers average.
METHODS: dict[str, dict[str, Any]] = {
    "noloco,gamma=0.9": PAIRS,
    "choco-sgd,share=0.2,gamma=0.3": RING,
    "dispfl,density=0.4": RING,
}


def matrix_of(running: VectorEngine, number: int) -> Tensor:
    """Return the matrix (P, P) of the single group's averaging in round 0, 1, ..."""
    assert isinstance(running._rounds, GossipRounds)
    (policy,) = running._rounds._averaging.values()
    matrix: Any = policy.matrix(number)
    return torch.from_numpy(np.asarray(matrix.toarray())).float()


def states(running: VectorEngine) -> Any:
    everybody = range(len(running.x_Pn))
    return running._session.states.of(everybody, running._session.sides_of(everybody))


def test_noloco_in_the_engine_takes_outer_steps_towards_its_pair() -> None:
    made = world(federation(**PAIRS))
    with engine(made, "noloco,gamma=0.9") as running:
        phi_Pn, delta_Pn = running.x_Pn.clone(), torch.zeros_like(running.x_Pn)
        for number in range(3):
            running.step()
            trained_Pn = running.trained_Pn
            assert trained_Pn is not None
            delta_Pn = 0.5 * delta_Pn + 0.9 * (matrix_of(running, number) @ trained_Pn - phi_Pn)
            phi_Pn = phi_Pn + delta_Pn
            assert relative(running.x_Pn, phi_Pn) < 1e-5
    assert float((phi_Pn - phi_Pn[0]).abs().max()) > 1e-3


def test_choco_in_the_engine_sends_copies_and_holds_models() -> None:
    made = world(federation(**RING))
    with engine(made, "choco-sgd,share=0.2,gamma=0.3") as running:
        begun_Pn = running.x_Pn.clone()
        for number in range(3):
            running.step()
            kept, copies_Pn = states(running), running.trained_Pn
            assert isinstance(kept, PublicCopy)
            assert copies_Pn is not None
            torch.testing.assert_close(kept.copy_n, copies_Pn)
            wanted_Pn = kept.model_n + 0.3 * (matrix_of(running, number) @ copies_Pn - copies_Pn)
            assert relative(running.x_Pn, wanted_Pn) < 1e-5
            if number == 0:
                changed_P = (copies_Pn != begun_Pn).sum(1)
                assert int(changed_P.max()) <= -(-made.layout.n // 5)


def test_dispfl_in_the_engine_averages_each_weight_among_those_that_keep_it() -> None:
    made = world(federation(**RING))
    n = made.layout.n
    with engine(made, "dispfl,density=0.4") as running:
        for number in range(3):
            running.step()
            kept, sent_PN, matrix = states(running), running.trained_Pn, matrix_of(running, number)
            assert isinstance(kept, PersonalMask)
            assert sent_PN is not None
            having_Pn = matrix @ sent_PN[:, n:]
            mean_Pn = torch.where(having_Pn > 1e-5, (matrix @ sent_PN[:, :n]) / having_Pn.clamp(min=1e-5), 0)
            assert relative(running.x_Pn, mean_Pn * kept.mask_n) < 1e-5
            assert ((sent_PN[:, :n] != 0) <= (sent_PN[:, n:] == 1)).all()
        share_P = torch.tensor(running.statistics()["kept weights"])
        # The two biases of 12 and 10 are whole.
        assert share_P.numpy() == pytest.approx((0.4 * (n - 22) + 22) / n, abs=2e-3)


@pytest.mark.parametrize("method", METHODS)
def test_scores_and_disagreement_are_those_of_the_derived_models(method: str) -> None:
    made = world(federation(**METHODS[method]))
    with engine(made, method) as running:
        running.step()
        running.step()
        scored, x_Pn = running.evaluate(), running.x_Pn.double()
        assert running.evaluate_server() is None
        mean_n = x_Pn.mean(0)
        apart = float((x_Pn - mean_n).norm(dim=1).max() / mean_n.norm())
        assert running.disagreement() == {"everyone": pytest.approx(apart, rel=1e-6)}
        with engine(made, "local") as other:
            other.workspace.x[other._rounds.source].copy_(running.x_Pn)
            np.testing.assert_allclose(other.evaluate(), scored, rtol=1e-6)


def test_they_send_one_vector_or_two() -> None:
    for method, settings in METHODS.items():
        made = world(federation(**settings))
        with engine(made, method) as ours, engine(made, "full-averaging") as plain:
            ours.step()
            plain.step()
            (messages, amount), (as_many, once) = ours.traffic, plain.traffic
            assert messages == as_many
            more = 4 * made.layout.n if method.startswith("dispfl") else 0
            assert [size - single for size, single in zip(amount, once, strict=True)] == [more * m for m in messages]


@pytest.mark.parametrize("method", METHODS)
def test_whole_peers_give_the_numbers_of_the_vector_engine(method: str) -> None:
    made = world(federation(gossip__deadline=120.0, simulation__peers=4, **METHODS[method]))
    with engine(made, method) as expected, NetworkEngine(made, parse_choice(method)) as found:
        for _ in range(3):
            expected.step()
            found.step()
            assert np.allclose(found.evaluate(), expected.evaluate(), rtol=1e-5)
            assert relative(found.x_Pn, expected.x_Pn) < 1e-5
            assert found.evaluate_server() is None
            for group, apart in expected.disagreement().items():
                assert found.disagreement()[group] == pytest.approx(apart, rel=1e-3, abs=1e-6)


def test_differences_travel_sparse_with_the_same_numbers() -> None:
    """With `top-k:SHARE,pace=1` a share has 8 bytes for each number that changed, after the first on each channel.

    A peer sends two shares in a round, and other messages of at most 3,000 bytes in all.
    """
    method, wire = "choco-sgd,share=0.05,gamma=0.3", "top-k:0.05,pace=1"
    made, sparse = (
        world(federation(gossip__deadline=120.0, simulation__peers=4, learning__rounds=4, **RING, **more))
        for more in ({}, {"gossip__wire": wire})
    )
    with engine(made, method) as expected, NetworkEngine(sparse, parse_choice(method)) as found:
        n = made.layout.n
        for number in range(4):
            expected.step()
            found.step()
            assert np.allclose(found.evaluate(), expected.evaluate(), rtol=1e-4)
            assert relative(found.x_Pn, expected.x_Pn) < 1e-5
            each, amount = 4 * n if number == 0 else 8 * math.ceil(0.05 * n), found.traffic[1]
            assert min(amount) > 2 * each
            assert number == 0 or max(amount) < 2 * each + 3000


@pytest.mark.parametrize("method", METHODS)
def test_neither_workers_nor_a_stop_between_rounds_change_a_bit(method: str) -> None:
    assert_workers_and_stops_change_nothing(world(federation(**METHODS[method])), method)
