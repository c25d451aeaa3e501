"""CHOCO-SGD as its paper writes it, with a copy of each neighbor at each peer, beside the algorithm."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.choco import ChocoSgd
from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.leaves import combined, take_rows
from fedpeer.algorithms.local_training import FullAveraging
from fedpeer.algorithms.servers.models import ServerModel
from tests.algorithms.test_gossip_methods import (
    FEATURES,
    KEYS,
    LR,
    PEERS,
    STEPS,
    Made,
    Vector,
    context,
    mixing,
    slope,
    work,
)

GAMMA = 0.4
START = torch.from_numpy(np.random.default_rng(8).normal(size=FEATURES))


def played(algorithm: Made, rounds: int) -> list[tuple[Tensor, Tensor]]:
    """Return the public copies (P, n) that all peers send, and the models that they derive after it, in each round."""
    start_Pn, matrix = START.expand(PEERS, -1), torch.from_numpy(mixing())
    client, received = algorithm.start_client(start_Pn, torch.ones(PEERS)), algorithm.start_averaged(start_Pn)
    found = []
    for round in range(rounds):
        client, sent = algorithm.train(client, received, work(round), KEYS)
        received = ServerModel(matrix @ sent.model_n)
        model_Pn = algorithm.derived_model(client, received)
        found.append((sent.model_n, received.model_n if model_Pn is None else model_Pn))
    return found


def largest(values_n: Vector, count: int) -> Vector:
    """Return the values with zeros for all but this many of the largest."""
    kept = sorted(range(len(values_n)), key=lambda place: -abs(values_n[place]))[:count]
    return np.where(np.isin(np.arange(len(values_n)), kept), values_n, 0)


def stepped(x_Pn: Vector, round: int) -> Vector:
    """Return the models (P, n) after a round's local steps."""
    for step in range(STEPS):
        x_Pn = x_Pn - LR * slope(x_Pn, round, step)
    return x_Pn


@pytest.mark.slow
@pytest.mark.parametrize(("share", "count"), [(0.2, 1), (0.5, 2), (1.0, 3)])
@pytest.mark.parametrize("from_zero", [False, True])
def test_rounds_are_algorithm_2_of_the_paper(share: float, count: int, from_zero: bool) -> None:
    """Each peer holds a copy of each peer's model, which only that peer's compressed difference changes."""
    x_Pn, matrix = np.tile(START.numpy(), (PEERS, 1)), mixing()
    copies_PPn = np.tile(0 * x_Pn if from_zero else x_Pn, (PEERS, 1, 1))  # [at, of]
    algorithm = ChocoSgd(context(), share=share, gamma=GAMMA, from_zero=from_zero)
    for round, (sent_Pn, model_Pn) in enumerate(played(algorithm, 12)):
        half_Pn = stepped(x_Pn, round)
        q_Pn = np.stack([largest(half_Pn[p] - copies_PPn[p, p], count) for p in range(PEERS)])
        copies_PPn = copies_PPn + q_Pn
        x_Pn = np.stack(
            [
                half_Pn[i] + GAMMA * sum(matrix[i, j] * (copies_PPn[i, j] - copies_PPn[i, i]) for j in range(PEERS))
                for i in range(PEERS)
            ]
        )
        np.testing.assert_allclose(sent_Pn.numpy(), copies_PPn[0], rtol=0, atol=1e-12)
        np.testing.assert_allclose(model_Pn.numpy(), x_Pn, rtol=0, atol=1e-12)
        np.testing.assert_allclose(x_Pn.mean(0), half_Pn.mean(0), rtol=0, atol=1e-12)


@pytest.mark.slow
def test_what_changes_in_a_copy_is_a_share_of_its_numbers() -> None:
    before_Pn = START.expand(PEERS, -1)
    for sent_Pn, _ in played(ChocoSgd(context(), share=0.5), 6):
        assert ((sent_Pn != before_Pn).sum(-1) == 2).all()
        before_Pn = sent_Pn


@pytest.mark.slow
def test_with_everything_sent_and_gamma_1_it_is_full_averaging() -> None:
    whole, plain = (played(each, 6) for each in (ChocoSgd(context(), share=1.0), FullAveraging(context())))
    for (_, ours_Pn), (_, same_Pn) in zip(whole, plain, strict=True):
        torch.testing.assert_close(ours_Pn, same_Pn, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_without_training_models_come_to_their_mean() -> None:
    """This holds with one number of three sent, too: the rest comes later. The one step of a round changes nothing."""
    flat = work(0)
    still = Batches(torch.zeros_like(flat.x_NF), flat.index[:, :1], torch.zeros_like(flat.y[:, :1]))
    x_Pn = torch.from_numpy(np.random.default_rng(2).normal(size=(PEERS, FEATURES)))
    algorithm, matrix = ChocoSgd(context(), share=0.2), torch.from_numpy(mixing())
    client, received = algorithm.start_client(x_Pn, torch.ones(PEERS)), ServerModel(x_Pn)
    for _ in range(150):
        client, sent = algorithm.train(client, received, still, KEYS)
        received = ServerModel(matrix @ sent.model_n)
    found_Pn = algorithm.derived_model(client, received)
    torch.testing.assert_close(found_Pn, x_Pn.mean(0).expand(PEERS, -1), rtol=0, atol=1e-6)


def test_a_peer_alone_is_a_row_of_the_block() -> None:
    algorithm = ChocoSgd(context(momentum=0.9), share=0.5)
    x_Pn = torch.rand(PEERS, FEATURES, dtype=torch.float64)
    client, received = algorithm.start_client(x_Pn, torch.ones(PEERS)), ServerModel(x_Pn.roll(1, 0))
    after, together = algorithm.train(client, received, work(0), KEYS)
    derived_Pn = algorithm.derived_model(after, together)
    for p in range(PEERS):
        own, alone = algorithm.train(take_rows(client, p), take_rows(received, p), work(0).peer(p), (p,))
        torch.testing.assert_close(combined(together)[p], combined(alone))
        torch.testing.assert_close(derived_Pn[p], algorithm.derived_model(own, alone))


@pytest.mark.parametrize("value", [0.0, 1.5, float("nan")])
def test_what_does_not_fit_is_said(value: float) -> None:
    with pytest.raises(AlgorithmError, match=r"share = .*: write a number above 0 and up to 1"):
        ChocoSgd(context(), share=value)
    with pytest.raises(AlgorithmError, match=r"gamma = .*: write a number above 0 and up to 1"):
        ChocoSgd(context(), gamma=value)
