"""FedAvgM, FedAdagrad, FedAdam and FedYogi against recursions written by hand, in float64 on quadratic losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.servers.fedavg import FedAvg
from fedpeer.algorithms.servers.fedavgm import FedAvgM, MovingModel
from fedpeer.algorithms.servers.fedopt import AdaptiveServer, FedAdagrad, FedAdam, FedYogi, ServerMoments
from fedpeer.algorithms.servers.fedprox import FedProx
from fedpeer.algorithms.servers.models import Local
from tests.algorithms.client_factory import batches, mlp, starts
from tests.algorithms.server_factory import LR, MODULE, Algorithm, Quadratics, bench_of, played

STEPS, ROUNDS = 3, 8
WORLD = Quadratics(2)
COUNTS = {"0": 1, "1": 3}
Vector = NDArray[np.float64]


def path(algorithm: Algorithm) -> list[Vector]:
    """Return the server's model after each round; client 0 takes part in all, client 1 in every second one."""
    start_D = torch.ones(3, dtype=torch.float64)
    server: Any = algorithm.start_server(start_D)
    clients = {peer: algorithm.start_client(start_D, torch.tensor(count)) for peer, count in COUNTS.items()}
    found = []
    for number in range(ROUNDS):
        some = ["0", "1"] if number % 2 else ["0"]
        server = played(algorithm, server, clients, lambda peer: WORLD.batches(int(peer), STEPS), some)
        found.append(server.model_n.numpy())
    return found


def change(x_D: Vector, number: int) -> Vector:
    """Return the clients' mean change in a round, by hand, weighted by their numbers of examples."""
    total_D, examples = np.zeros(3), 0
    for client in (0, 1) if number % 2 else (0,):
        own_D, H_DD, c_D = x_D, WORLD.H_CDD[client].numpy(), WORLD.c_CD[client].numpy()
        for _ in range(STEPS):
            own_D = own_D - LR * H_DD @ (own_D - c_D)
        total_D = total_D + COUNTS[str(client)] * (own_D - x_D)
        examples += COUNTS[str(client)]
    return np.asarray(total_D / examples)


def test_fedavgm_is_the_recursion() -> None:
    x_D, v_D = np.ones(3), np.zeros(3)
    for number, found_D in enumerate(path(FedAvgM(WORLD.context(), server_lr=0.7, momentum=0.6))):
        v_D = 0.6 * v_D + change(x_D, number)
        x_D = x_D + 0.7 * v_D
        np.testing.assert_allclose(found_D, x_D, rtol=0, atol=1e-13)


def test_fedprox_with_a_rate_goes_that_much_of_the_way_to_the_mean() -> None:
    x_D = np.ones(3)
    for number, found_D in enumerate(path(FedProx(WORLD.context(), mu=0.0, server_lr=1.6))):
        x_D = x_D + 1.6 * change(x_D, number)
        np.testing.assert_allclose(found_D, x_D, rtol=0, atol=1e-12)
    with pytest.raises(AlgorithmError, match="server_lr = 0: write a number above 0"):
        FedProx(WORLD.context(), server_lr=0.0)


@pytest.mark.parametrize(
    ("kind", "second"),
    [
        (FedAdagrad, lambda v_D, d_D: v_D + d_D**2),
        (FedAdam, lambda v_D, d_D: 0.8 * v_D + 0.2 * d_D**2),
        (FedYogi, lambda v_D, d_D: v_D - 0.2 * d_D**2 * np.sign(v_D - d_D**2)),
    ],
)
def test_adaptive_servers_are_the_recursions(
    kind: Callable[..., AdaptiveServer], second: Callable[[Vector, Vector], Vector]
) -> None:
    settings = {} if kind is FedAdagrad else {"beta2": 0.8}
    x_D, m_D, v_D = np.ones(3), np.zeros(3), np.full(3, 0.05**2)
    for number, found_D in enumerate(path(kind(WORLD.context(), server_lr=0.3, beta1=0.6, tau=0.05, **settings))):
        d_D = change(x_D, number)
        m_D, v_D = 0.6 * m_D + 0.4 * d_D, second(v_D, d_D)
        x_D = x_D + 0.3 * m_D / (np.sqrt(v_D) + 0.05)
        np.testing.assert_allclose(found_D, x_D, rtol=0, atol=1e-12)


def test_fedavgm_with_rate_1_and_no_momentum_is_fedavg_to_the_last_bit() -> None:
    ends = []
    for algorithm in (FedAvg(bench_of("stack")), FedAvgM(bench_of("stack"), momentum=0.0)):
        server = algorithm.start_server(starts(MODULE, 1)[0])
        clients = algorithm.start_client(starts(MODULE, 3), torch.tensor([10, 30, 60]))
        for number in range(3):
            clients, updates = algorithm.train(clients, algorithm.open(server, number), batches(), (1, 2, 3))
            server = algorithm.close(server, updates)
        ends.append(server.model_n)
    assert torch.equal(*ends)


@pytest.mark.slow
def test_momentum_brings_one_client_on_a_quadratic_to_its_minimum() -> None:
    context, start_D = WORLD.context(), torch.ones(3, dtype=torch.float64)

    def apart(algorithm: Algorithm) -> float:
        server, clients = algorithm.start_server(start_D), {"0": algorithm.start_client(start_D, torch.tensor(1))}
        for _ in range(60):
            server = played(algorithm, server, clients, lambda _: WORLD.batches(0, STEPS), ["0"])
        return float((server.model_n - WORLD.c_CD[0]).norm())

    assert apart(FedAvgM(context, momentum=0.5)) < 0.5 * apart(FedAvg(context))


def test_defaults_are_the_papers() -> None:
    context = WORLD.context()
    assert FedAvgM(context).momentum == 0.9
    assert [(each.beta1, each.tau) for each in (FedAdagrad(context), FedAdam(context), FedYogi(context))] == [
        (0.0, 1e-3), (0.9, 1e-3), (0.9, 1e-3),
    ]  # fmt: skip
    assert (FedAdam(context).beta2, FedYogi(context).beta2) == (0.99, 0.99)


@pytest.mark.parametrize("kind", [FedAvgM, FedAdagrad, FedAdam, FedYogi])
def test_running_statistics_take_the_mean(kind: Callable[..., Algorithm]) -> None:
    """Momentum and adaptive steps could make a variance negative."""
    module = nn.Sequential(mlp(), nn.BatchNorm1d(3))
    algorithm = kind(bench_of("loop", module))
    parameters = algorithm.context.layout.n_parameters  # type: ignore[attr-defined]
    server: Any = algorithm.start_server(starts(module, 1)[0])
    for _ in range(3):
        sent_Kn = starts(module, 2, seed=3)
        sent_Kn[:, parameters:] = torch.rand(2, sent_Kn.shape[1] - parameters)
        server = algorithm.close(server, Local(sent_Kn, torch.tensor([1, 3])))
        wanted_n = (0.25 * sent_Kn[0] + 0.75 * sent_Kn[1])[parameters:]
        torch.testing.assert_close(server.model_n[parameters:], wanted_n)
    assert not torch.allclose(server.model_n[:parameters], (0.25 * sent_Kn[0] + 0.75 * sent_Kn[1])[:parameters])


def test_the_broadcast_is_the_model_alone() -> None:
    x_n = starts(MODULE, 1)[0]
    for algorithm in (FedAvgM(bench_of("stack")), FedAdam(bench_of("stack"))):
        assert vars(algorithm.open(algorithm.start_server(x_n), 1)).keys() == {"model_n"}


def test_a_second_moment_below_0_is_not_taken_over() -> None:
    algorithm, x_n = FedAdam(bench_of("stack")), starts(MODULE, 1)[0]
    assert algorithm.server_fault(algorithm.start_server(x_n)) is None

    def fault(second_n: Tensor) -> str | None:
        found = algorithm.server_fault(ServerMoments(x_n, x_n, second_n))
        return None if found is None else found.code

    assert fault(x_n.square()) is None
    assert fault(x_n.square() - 1e-3) == "bad_precision"


@pytest.mark.parametrize(
    ("kind", "settings", "says"),
    [
        (FedAvgM, {"momentum": 1.0}, "momentum = 1: write 0 or more"),
        (FedAvgM, {"server_lr": 0.0}, "server_lr = 0: write a number above 0"),
        (FedAdagrad, {"tau": 0.0}, "tau = 0: write a number above 0"),
        (FedAdam, {"beta2": 1.0}, "beta2 = 1: write 0 or more"),
        (FedYogi, {"beta1": -0.1}, "beta1 = -0.1: write 0 or more"),
    ],
)
def test_settings_out_of_range_are_named(kind: Callable[..., Algorithm], settings: dict[str, float], says: str) -> None:
    with pytest.raises(AlgorithmError, match=says):
        kind(bench_of("stack"), **settings)


def test_a_servers_state_begins_at_rest() -> None:
    x_n = starts(MODULE, 1)[0]
    begun = FedAvgM(bench_of("stack")).start_server(x_n)
    assert isinstance(begun, MovingModel)
    assert not begun.velocity_n.any()
    moments = FedYogi(bench_of("stack"), tau=0.1).start_server(x_n)
    assert not moments.first_n.any()
    assert torch.allclose(moments.second_n, torch.tensor(0.01))
