"""Running statistics of normalization are only ever averaged, whatever an algorithm does with parameters.

Each test has a network with batch normalization whose inputs lose their spread: variances fall from round to round, and
any step beyond a mean of them makes them negative.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedpeer.algorithms.buffered import Buffered
from fedpeer.algorithms.choco import ChocoSgd
from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.local_training import FullAveraging
from fedpeer.algorithms.noloco import NoLoCo
from fedpeer.algorithms.outer_optimizers import outer_nesterov, outer_sgd
from fedpeer.algorithms.outer_steps import OuterRule, OuterRules
from fedpeer.algorithms.private import protected
from fedpeer.algorithms.servers.fedavg import FedAvg
from fedpeer.algorithms.servers.fedavgm import FedAvgM
from fedpeer.algorithms.servers.fedbn import FedBN
from fedpeer.algorithms.servers.fedopt import FedAdagrad, FedAdam, FedYogi
from fedpeer.algorithms.servers.fedper import FedPer
from fedpeer.algorithms.servers.fedprox import FedProx
from fedpeer.algorithms.servers.models import Local, ServerModel
from fedpeer.algorithms.servers.pfedme import PFedMe
from fedpeer.algorithms.servers.scaffold import Scaffold
from fedpeer.algorithms.training_context import TrainingContext
from fedpeer.config.building import algorithm_of, privacy_of
from fedpeer.config.choice import parse_choice
from fedpeer.config.federation import Federation
from fedpeer.slicing.flat import FlatLayout, gather_group
from tests.algorithms.client_factory import batches, starts
from tests.algorithms.server_factory import bench_of

PEERS, EXAMPLES, ROUNDS = 3, torch.tensor([10, 30, 60]), 6
NORMAL = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7, momentum=0.8), nn.ReLU(), nn.Linear(7, 3))
LAYOUT = FlatLayout.of(NORMAL)
VARIANCE = next(each.span for each in LAYOUT.tensors if each.name.endswith("running_var"))
STATISTICS = torch.arange(LAYOUT.n) >= LAYOUT.n_parameters
WORK = batches()
Maker = Callable[[TrainingContext], Any]


def bench() -> TrainingContext:
    return bench_of("loop", NORMAL, clients=PEERS)


def checked(model_n: Tensor) -> None:
    """Check that the variances of models (..., n) are variances, and that the networks answer numbers."""
    assert (model_n[..., VARIANCE] >= 0).all()
    answers = bench().stepper.logits(
        model_n.reshape(-1, LAYOUT.n), WORK.inputs(0)[:1].expand(model_n[..., 0].numel(), -1, -1)
    )
    assert answers.isfinite().all()


def begun() -> Tensor:
    """Return one start for all, whose variances are far above those that training meets."""
    x_n = starts(NORMAL, 1)[0]
    x_n[VARIANCE] = 100.0
    return x_n


def example() -> ModuleType:
    """Return the module of the example of an own algorithm."""
    path = Path(__file__).parents[2] / "examples" / "fedexp.py"
    spec = importlib.util.spec_from_file_location("fedexp", path)
    assert spec is not None
    assert spec.loader is not None
    made = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


SERVERS: dict[str, Maker] = {
    "fedprox": lambda context: FedProx(context, server_lr=1.9),
    "fedavgm": lambda context: FedAvgM(context, momentum=0.9),
    "fedadagrad": lambda context: FedAdagrad(context, server_lr=3.0),
    "fedadam": lambda context: FedAdam(context, server_lr=3.0),
    "fedyogi": lambda context: FedYogi(context, server_lr=3.0),
    "scaffold": lambda context: Scaffold(context, global_lr=1.9),
    "pfedme": lambda context: PFedMe(context, server_rate=1.9),
    "pfedme, long local steps": lambda context: PFedMe(context, strength=15.0, lr=0.12),
    "fedexp": lambda context: example().FedExP(context),
}


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_takes_the_mean_of_its_clients(name: str) -> None:
    algorithm, x_n = SERVERS[name](bench()), begun()
    server, clients = algorithm.start_server(x_n), algorithm.start_client(x_n.expand(PEERS, -1), EXAMPLES)
    for round in range(1, ROUNDS + 1):
        broadcast = algorithm.open(server, round)
        before = clients
        clients, updates = algorithm.train(before, broadcast, WORK, (1, 2, 3))
        after = algorithm.close(server, updates)
        sent_Kn = updates.model_n + (server.model_n if name == "scaffold" else 0)
        weight_K = torch.ones(PEERS) if name == "scaffold" else EXAMPLES
        wanted_n = (weight_K[:, None] * sent_Kn).sum(0) / weight_K.sum()
        torch.testing.assert_close(after.model_n[STATISTICS], wanted_n[STATISTICS], rtol=1e-5, atol=1e-5)
        checked(sent_Kn)
        checked(after.model_n)
        server = after


def test_local_steps_of_pfedme_take_over_the_statistics_of_the_personal_model() -> None:
    algorithm, x_n = PFedMe(bench(), strength=15.0, lr=0.12), begun()
    personal, sent = algorithm.train(
        algorithm.start_client(x_n.expand(PEERS, -1), EXAMPLES), ServerModel(x_n), WORK, (1, 2, 3)
    )
    assert torch.equal(sent.model_n[:, STATISTICS], personal.model_n[:, STATISTICS])


def test_scaffold_has_no_control_variates_of_statistics() -> None:
    algorithm, x_n = Scaffold(bench()), begun()
    client, update = algorithm.train(
        algorithm.start_client(x_n.expand(PEERS, -1), EXAMPLES), algorithm.start_server(x_n), WORK, (1, 2, 3)
    )
    for control_n in (client.control_n, update.control_n):
        assert not control_n[:, STATISTICS].any()
        assert control_n[:, ~STATISTICS].any()


@pytest.mark.parametrize("kind", [FedAvg, FedPer, FedBN])
def test_an_old_updates_statistics_draw_the_servers_by_its_discount(kind: type[FedAvg]) -> None:
    """The result is w * the client's + (1 - w) * the server's, w = 1 / sqrt(1 + age); parameters move by changes."""
    algorithm, x_n, now_n = Buffered(kind(bench()), "it"), begun(), begun()
    now_n[STATISTICS] *= 0.01  # the server's have fallen, since the clients began
    clients = algorithm.start_client(x_n.expand(PEERS, -1), EXAMPLES)
    trained, updates = algorithm.train(clients, algorithm.open(algorithm.start_server(x_n), 1), WORK, (1, 2, 3))
    server, age_K = algorithm.start_server(now_n), torch.tensor([0, 3, 8])
    found = algorithm.rebased(server, updates, 9, age_K)
    assert isinstance(found, Local)
    weight_K1 = (1 + age_K).double().rsqrt()[:, None]
    trained_Kn, was_n, is_n = (each.double() for each in (trained.model_n, x_n, now_n))
    wanted_Kn = torch.where(
        STATISTICS, weight_K1 * trained_Kn + (1 - weight_K1) * is_n, is_n + weight_K1 * (trained_Kn - was_n)
    )
    places = algorithm.inner.base_D if isinstance(algorithm.inner, FedPer | FedBN) else torch.arange(LAYOUT.n)
    torch.testing.assert_close(found.model_n.double(), gather_group(wanted_Kn, places), rtol=1e-5, atol=1e-5)
    if kind is FedAvg:
        checked(found.model_n)
        checked(algorithm.close(server, found).model_n)


def by_building(context: TrainingContext, name: str, every: int = 1) -> Any:
    """Return full averaging with outer steps of all parameters, as a federation builds it."""
    outer = {"sgd": outer_sgd, "nesterov": outer_nesterov}[name](lr=1.5)
    rules = OuterRules(
        (OuterRule(outer, every),), torch.zeros(1, LAYOUT.n, dtype=torch.int8), torch.zeros(PEERS).long()
    )
    return algorithm_of(
        parse_choice("full-averaging"), Federation().learning, replace(context, outer=rules), lambda name: NoLoCo
    )


EQUALS: dict[str, Maker] = {
    "outer sgd": lambda context: by_building(context, "sgd"),
    "outer nesterov": lambda context: by_building(context, "nesterov"),
    "noloco": lambda context: NoLoCo(context, outer_lr=0.7, momentum=0.8, gamma=0.3),
    "choco": lambda context: ChocoSgd(context, share=0.3, gamma=0.9),
    "choco from zero": lambda context: ChocoSgd(context, share=0.3, gamma=0.9, from_zero=True),
}


@pytest.mark.parametrize("name", EQUALS)
def test_peers_take_the_average_of_what_they_trained(name: str) -> None:
    """The statistics of a peer are those of full averaging with the same parameters at the beginning of the round."""
    algorithm, plain = EQUALS[name](bench()), FullAveraging(bench())
    x_Pn = begun().expand(PEERS, -1).clone()
    client, received = algorithm.start_client(x_Pn, EXAMPLES), algorithm.start_averaged(x_Pn)
    matrix = torch.tensor([[2.0, 1, 0], [0, 2, 1], [1, 0, 2]]) / 3
    statistics_Ps = x_Pn[:, STATISTICS]
    for round in range(1, ROUNDS + 1):
        work = replace(WORK, round=round, number=torch.arange(PEERS))
        client, sent = algorithm.train(client, received, work, (1, 2, 3))
        before_Pn = x_Pn
        received = ServerModel(matrix @ sent.model_n)
        model_Pn = algorithm.derived_model(client, received)
        x_Pn = received.model_n if model_Pn is None else model_Pn
        assert torch.equal(x_Pn[:, STATISTICS], received.model_n[:, STATISTICS])
        checked(sent.model_n)
        checked(x_Pn)
        if name in ("noloco", "choco", "choco from zero"):  # their models are those that training begins from
            _, alone = plain.train(plain.start_client(before_Pn, EXAMPLES), ServerModel(before_Pn), work, (1, 2, 3))
            statistics_Ps = matrix @ alone.model_n[:, STATISTICS]
            torch.testing.assert_close(x_Pn[:, STATISTICS], statistics_Ps, rtol=1e-5, atol=1e-5)


def test_a_difference_has_as_many_numbers_with_statistics_as_without() -> None:
    algorithm, x_Pn = ChocoSgd(bench(), share=0.5), begun().expand(PEERS, -1)
    _, sent = algorithm.train(algorithm.start_client(x_Pn, EXAMPLES), ServerModel(x_Pn), WORK, (1, 2, 3))
    assert ((sent.model_n != x_Pn).sum(-1) == math.ceil(0.5 * LAYOUT.n)).all()


def test_statistics_cannot_be_made_private_and_the_way_out_is_named() -> None:
    privacy = privacy_of(parse_choice("gaussian"))
    for kind in (FedAvg, FedPer):
        with pytest.raises(AlgorithmError, match=r"running statistics, .* \(norm=none\), or fedbn"):
            protected(kind(bench()), privacy, participants=3)
    algorithm = protected(FedBN(bench()), privacy, participants=3)
    _, sent = algorithm.train(
        algorithm.start_client(begun().expand(PEERS, -1), EXAMPLES),
        algorithm.open(algorithm.start_server(begun()), 1),
        WORK,
        (1, 2, 3),
    )
    assert sent.model_n.isfinite().all()
