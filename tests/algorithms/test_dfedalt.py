"""DFedAlt and DFedSalt: what is averaged, and rounds against recursions by hand, in float64 on two linear layers."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.dfedalt import DFedAlt, DFedSalt
from fedpeer.algorithms.leaves import take_rows
from fedpeer.algorithms.local_training import PartialAveraging
from fedpeer.algorithms.servers.models import ServerModel
from fedpeer.algorithms.steppers import build_stepper
from fedpeer.config.choice import parse_choice
from fedpeer.config.federation import Federation
from fedpeer.learning.groups import plan_for
from fedpeer.slicing.trace import trace
from tests.algorithms.client_factory import CLOSE, batches, distance, mlp, starts
from tests.algorithms.server_factory import BASE_D, MODULE, bench_of
from tests.algorithms.test_pfedvem_server import images

PEERS, EXAMPLES, FEATURES, HIDDEN, STEPS, LR = 4, 12, 3, 2, 5, 0.05
LINEAR = nn.Sequential(
    nn.Linear(FEATURES, HIDDEN, bias=False, dtype=torch.float64),
    nn.Linear(HIDDEN, 1, bias=False, dtype=torch.float64),
)
BASE = FEATURES * HIDDEN
BENCH = bench_of("loop", LINEAR, "mean-squared-error", LR)
KEYS = tuple(range(PEERS))
Vector = NDArray[np.float64]


@cache
def work() -> Batches:
    """Return the batches of a round of all peers, in float64."""
    draws = torch.Generator().manual_seed(4)
    x_NF = torch.randn(PEERS * EXAMPLES, FEATURES, generator=draws, dtype=torch.float64)
    index = torch.randint(0, len(x_NF), (PEERS, STEPS, 4), generator=draws)
    return Batches(x_NF, index, torch.randn(PEERS, STEPS, 4, 1, generator=draws, dtype=torch.float64))


def slope(x_n: Vector, peer: int, step: int) -> Vector:
    """Return the gradient (n,) of mean((v . U x - y)^2) with base U and head v, by hand."""
    one = work().peer(peer)
    x_MF, y_M = one.inputs(step).numpy(), one.targets(step).numpy()[:, 0]
    base_HF, head_H = x_n[:BASE].reshape(HIDDEN, FEATURES), x_n[BASE:]
    apart_M = 2 / len(y_M) * (x_MF @ base_HF.T @ head_H - y_M)
    of_base_HF = np.outer(head_H, apart_M @ x_MF)
    return np.concatenate([of_base_HF.ravel(), apart_M @ (x_MF @ base_HF.T)])


def by_hand(x_n: Vector, peer: int, of_head: int, rho: float = 0.0) -> Vector:
    """Return a peer's model after a round: steps of its head alone, and then (sharp) steps of its base alone."""
    base_n = np.arange(len(x_n)) < BASE
    for step in range(STEPS):
        if step < of_head:
            x_n = x_n - LR * np.where(base_n, 0, slope(x_n, peer, step))
            continue
        up_n = np.where(base_n, slope(x_n, peer, step), 0)
        ahead_n = x_n + rho * up_n / np.linalg.norm(up_n)
        x_n = x_n - LR * np.where(base_n, slope(ahead_n, peer, step), 0)
    return x_n


def mixing() -> Vector:
    """Return the matrix (P, P) of a ring in which a peer keeps a third."""
    return np.asarray(sum(np.roll(np.eye(PEERS), shift, 1) for shift in (-1, 0, 1)) / 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "of_head", "rho"),
    [
        (DFedAlt(BENCH, head_share=0.4), 2, 0.0),
        (DFedAlt(BENCH, head_share=0.0), 0, 0.0),
        (DFedSalt(BENCH, head_share=0.4, rho=0.3), 2, 0.3),
        (DFedSalt(BENCH, head_share=0.4, rho=0.0), 2, 0.0),
    ],
    ids=["DFedAlt", "fixed heads", "DFedSalt", "DFedSalt without a perturbation"],
)
def test_rounds_are_head_steps_base_steps_and_an_average_of_the_base(
    algorithm: DFedAlt, of_head: int, rho: float
) -> None:
    start_Pn = torch.randn(PEERS, BASE + HIDDEN, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    client, received_Pn, x_Pn = algorithm.start_client(start_Pn, torch.ones(PEERS)), start_Pn, start_Pn.numpy()
    for _ in range(3):
        client, sent = algorithm.train(client, ServerModel(received_Pn), work(), KEYS)
        x_Pn = np.stack([by_hand(x_n, peer, of_head, rho) for peer, x_n in enumerate(x_Pn)])
        np.testing.assert_allclose(sent.model_n.numpy(), x_Pn, rtol=0, atol=1e-12)
        x_Pn[:, :BASE] = mixing() @ x_Pn[:, :BASE]
        received_Pn = torch.from_numpy(x_Pn.copy())
    moved = np.abs(x_Pn[:, BASE:] - start_Pn.numpy()[:, BASE:]).max()
    assert (moved > 1e-3) == (of_head > 0)


def test_without_head_steps_it_is_partial_averaging_under_fixed_heads() -> None:
    module = copy.deepcopy(MODULE)
    module.get_submodule("4").requires_grad_(False)
    context = bench_of("loop")
    held = build_stepper("loop", module, context.layout, context.loss, context.optimizer)
    plain, ours = PartialAveraging(replace(context, stepper=held)), DFedAlt(bench_of("loop"), head_share=0.0)
    x_Bn, block = starts(MODULE, 3), batches()
    _, wanted = plain.train(plain.start_client(x_Bn, torch.ones(3)), ServerModel(x_Bn), block, (1, 2, 3))
    _, found = ours.train(ours.start_client(x_Bn, torch.ones(3)), ServerModel(x_Bn), block, (1, 2, 3))
    assert distance(found.model_n, wanted.model_n) < CLOSE
    assert torch.equal(found.model_n[:, -15:], x_Bn[:, -15:])
    assert not torch.equal(found.model_n[:, BASE_D], x_Bn[:, BASE_D])


@pytest.mark.parametrize("method", ["dfedalt", "dfedsalt"])
@pytest.mark.parametrize(
    ("module", "head", "example"),
    [(MODULE, ("4",), (5,)), (MODULE, ("2", "4"), (5,)), (images(), ("3",), (1, 4, 6))],
    ids=("stack", "two layers", "images"),
)
def test_the_head_never_leaves_its_peer(
    method: str, module: nn.Module, head: tuple[str, ...], example: tuple[int, ...]
) -> None:
    """The groups of the plan contain none of the head's scalars, and all of the base's."""
    chosen = method if head != ("2", "4") else f"{method},head={'+'.join(head)}"
    network = trace(module, torch.zeros(2, *example))
    plan = plan_for(Federation(), network, ["a", "b", "c"], parse_choice(chosen))
    [group] = plan.groups
    of_head = [
        place for each in network.tensors if each.module in head for place in range(each.span.start, each.span.stop)
    ]
    for peer in plan.peers:
        assert sorted(plan.local[peer].tolist()) == of_head
        assert sorted(group.indices[peer].tolist()) == sorted(set(range(network.n)) - set(of_head))


def test_partial_averaging_of_the_base_shares_the_same() -> None:
    """So base and head can be trained together, too: that is local training under the same plan."""
    network = trace(MODULE, torch.zeros(2, 5))
    models = {"base": {"neurons": "all"}, "local": {"modules": ["4"]}}
    written = plan_for(
        Federation.model_validate({"partial_models": models}), network, ["a", "b"], parse_choice("partial-averaging")
    )
    ours = plan_for(Federation(), network, ["a", "b"], parse_choice("dfedalt"))
    assert [group.digest for group in written.groups] == [group.digest for group in ours.groups]
    assert written.local["a"].tolist() == ours.local["a"].tolist()


def test_a_peer_alone_is_a_row_of_the_block() -> None:
    x_Bn, block = starts(MODULE, 3), batches()
    for algorithm in (DFedAlt(bench_of("stack")), DFedSalt(bench_of("stack"), rho=0.3)):
        client = algorithm.start_client(x_Bn, torch.ones(3))
        _, together = algorithm.train(client, ServerModel(x_Bn), block, (1, 2, 3))
        for p in range(3):
            _, alone = algorithm.train(take_rows(client, p), ServerModel(x_Bn[p]), block.peer(p), (p + 1,))
            assert distance(together.model_n[p], alone.model_n) < CLOSE


def test_where_there_is_no_slope_nothing_is_divided_by_0() -> None:
    algorithm, x_n, one = DFedSalt(BENCH), torch.zeros(BASE + HIDDEN, dtype=torch.float64), work().peer(0)
    flat = Batches(torch.zeros_like(one.x_NF), one.index, torch.zeros_like(one.y))
    _, sent = algorithm.train(algorithm.start_client(x_n, torch.tensor(1)), ServerModel(x_n), flat, (0,))
    assert torch.equal(sent.model_n, x_n)


def test_what_does_not_fit_is_said() -> None:
    normal: Any = bench_of("loop", nn.Sequential(mlp(), nn.BatchNorm1d(3)))
    with pytest.raises(AlgorithmError, match="running statistics"):
        DFedSalt(normal)
    with pytest.raises(AlgorithmError, match=r"head_share = 1: write 0 or more and less than 1"):
        DFedAlt(bench_of("stack"), head_share=1.0)
    with pytest.raises(AlgorithmError, match=r"rho = -1: write 0 or more"):
        DFedSalt(bench_of("stack"), rho=-1.0)
    with pytest.raises(AlgorithmError, match='no module "9"'):
        DFedAlt(bench_of("stack"), head=("9",))
