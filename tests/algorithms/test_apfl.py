"""APFL against its recursion by hand, and its two ends: FedAvg, and each client alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.losses import LOSSES
from fedpeer.algorithms.optimizers import OptimizerChoice
from fedpeer.algorithms.servers.apfl import Apfl, MixingClient, mixed
from fedpeer.algorithms.servers.fedavg import FedAvg
from fedpeer.algorithms.servers.models import Local, ServerModel
from fedpeer.algorithms.training_context import TrainingContext
from tests.algorithms.client_factory import CLOSE, batches, distance, in_torch, mlp, starts
from tests.algorithms.server_factory import LOSS, LR, MODULE, Quadratics, bench_of, played

WORLD, STEPS = Quadratics(2), 3


def slope(client: int, x_D: Any) -> Any:
    """Return a client's gradient, by hand."""
    return WORLD.H_CDD[client].numpy() @ (x_D - WORLD.c_CD[client].numpy())


@pytest.mark.slow
def test_rounds_are_the_recursion() -> None:
    algorithm, start_D = Apfl(WORLD.context(), alpha=0.3), torch.ones(3, dtype=torch.float64)
    server: Any = algorithm.start_server(start_D)
    clients = {peer: algorithm.start_client(start_D, torch.tensor(n)) for peer, n in (("0", 1), ("1", 3))}
    x_D, own, alphas = np.ones(3), [np.ones(3), np.ones(3)], [0.3, 0.3]
    for number in range(6):
        some = (0, 1) if number % 2 else (0,)
        server = played(algorithm, server, clients, lambda peer: WORLD.batches(int(peer), STEPS), [*map(str, some)])
        copies: dict[int, Any] = {}
        for k in some:
            w_D, v_D, alpha = x_D, own[k], alphas[k]
            for step in range(STEPS):
                at_mix = slope(k, alpha * v_D + (1 - alpha) * w_D)
                after = float(np.clip(alpha - LR * (v_D - w_D) @ at_mix, 0, 1)) if step == 0 else alpha
                w_D, v_D, alpha = w_D - LR * slope(k, w_D), v_D - LR * alpha * at_mix, after
            copies[k], own[k], alphas[k] = w_D, v_D, alpha
            kept = clients[str(k)]
            np.testing.assert_allclose(kept.own_n.numpy(), v_D, rtol=0, atol=1e-13)
            assert float(kept.alpha) == pytest.approx(alpha, abs=1e-13)
            np.testing.assert_allclose(
                algorithm.personal_model(kept).numpy(), alpha * v_D + (1 - alpha) * w_D, rtol=0, atol=1e-13
            )
        counts = {0: 1, 1: 3}
        x_D = np.asarray(sum(counts[k] * copies[k] for k in some) / sum(counts[k] for k in some))
        np.testing.assert_allclose(server.model_n.numpy(), x_D, rtol=0, atol=1e-13)
    assert all(abs(alpha - 0.3) > 1e-3 for alpha in alphas), "both have learned their alpha"


def test_alpha_goes_down_the_loss_of_the_mix() -> None:
    own_D, server_D = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    alpha = torch.tensor(0.6, dtype=torch.float64, requires_grad=True)
    apart_D = mixed(server_D, own_D, alpha) - WORLD.c_CD[0]
    (wanted,) = torch.autograd.grad(0.5 * apart_D @ WORLD.H_CDD[0] @ apart_D, alpha)
    client = MixingClient(server_D, torch.tensor(1), own_D, alpha.detach())
    kept, _ = Apfl(WORLD.context(lr=1e-3)).train(client, ServerModel(server_D), WORLD.batches(0, 1), (0,))
    assert float(kept.alpha) == pytest.approx(0.6 - 1e-3 * float(wanted), abs=1e-13)
    assert abs(float(wanted)) > 0.1


def test_without_own_models_it_is_fedavg_and_without_the_servers_each_is_alone() -> None:
    x_Bn, block, examples = starts(MODULE, 3), batches(), torch.tensor([1.0, 2.0, 3.0])
    sent: dict[float, Local] = {}
    for alpha in (0.0, 1.0):
        algorithm = Apfl(bench_of("stack"), alpha=alpha, adaptive=False)
        kept, sent[alpha] = algorithm.train(
            algorithm.start_client(x_Bn, examples), ServerModel(x_Bn[0]), block, (1, 2, 3)
        )
        personal_Bn = algorithm.personal_model(kept)
        for p in range(3):
            start_n = x_Bn[p] if alpha else x_Bn[0]
            alone_n = in_torch(MODULE, start_n, [block.peer(p)], LOSS, lambda ps: torch.optim.SGD(ps, lr=LR))
            assert distance(personal_Bn[p], alone_n) < CLOSE
    fedavg = FedAvg(bench_of("stack"))
    _, wanted = fedavg.train(fedavg.start_client(x_Bn, examples), ServerModel(x_Bn[0]), block, (1, 2, 3))
    for each in sent.values():
        assert distance(each.model_n, wanted.model_n) < CLOSE


def test_alpha_stays_between_0_and_1() -> None:
    algorithm, c_D = Apfl(WORLD.context(), alpha=0.5), WORLD.c_CD[0]

    def after(own_D: Tensor, server_D: Tensor) -> float:
        client = MixingClient(server_D, torch.tensor(1), own_D, torch.tensor(0.5, dtype=torch.float64))
        kept, _ = algorithm.train(client, ServerModel(server_D), WORLD.batches(0, 1), (0,))
        return float(algorithm.statistics(kept, ServerModel(server_D))["alpha"])

    assert after(c_D, c_D + 100) == 1
    assert after(c_D + 100, c_D) == 0


def test_what_does_not_fit_is_said() -> None:
    normal = nn.Sequential(mlp(), nn.BatchNorm1d(3))
    with pytest.raises(AlgorithmError, match="running statistics"):
        Apfl(bench_of("loop", normal))
    with pytest.raises(AlgorithmError, match="plain gradient steps"):
        Apfl(TrainingContext.of(MODULE, LOSSES["cross-entropy"], OptimizerChoice("Adam", {"lr": 0.1})))
    with pytest.raises(AlgorithmError, match=r"alpha = 1.5: write a number from 0 to 1"):
        Apfl(bench_of("stack"), alpha=1.5)
