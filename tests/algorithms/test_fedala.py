"""FedALA against its weights computed by hand, and FedAvg, which it is with weights of 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.leaves import leaves_of, take_rows
from fedpeer.algorithms.servers.fedala import FedAla, WeighingClient
from fedpeer.algorithms.servers.fedavg import FedAvg
from fedpeer.algorithms.servers.models import ServerModel
from tests.algorithms.client_factory import batches, distance, mlp, starts
from tests.algorithms.server_factory import MODULE, bench_of

FEATURES, HIDDEN = 3, 2
LINEAR = nn.Sequential(
    nn.Linear(FEATURES, HIDDEN, bias=False, dtype=torch.float64),
    nn.Linear(HIDDEN, 1, bias=False, dtype=torch.float64),
)
BASE = FEATURES * HIDDEN
EXAMPLES = torch.tensor([10.0, 30.0, 60.0])
Vector = NDArray[np.float64]


def work(steps: int = 4, size: int = 5) -> Batches:
    draws = torch.Generator().manual_seed(4)
    x_NF = torch.randn(40, FEATURES, generator=draws, dtype=torch.float64)
    index = torch.randint(0, 40, (steps, size), generator=draws)
    return Batches(x_NF, index, torch.randn(steps, size, 1, generator=draws, dtype=torch.float64))


def learned_by_hand(
    weight_D: Vector, own_n: Tensor, server_n: Tensor, one: Batches, steps: int, passes: int, eta: float
) -> Vector:
    """Return W after these passes over the first steps of a round, for the loss mean((a . B x - y)^2) and head a."""
    own_a, server_a = own_n[BASE:].numpy(), server_n[BASE:].numpy()
    base_HF = server_n[:BASE].reshape(HIDDEN, FEATURES).numpy()
    for _ in range(passes):
        for step in range(steps):
            hidden_MH = one.inputs(step).numpy() @ base_HF.T
            a = own_a + weight_D * (server_a - own_a)
            apart_M = hidden_MH @ a - one.targets(step).numpy()[:, 0]
            slope_a = 2 / len(apart_M) * hidden_MH.T @ apart_M
            weight_D = np.clip(weight_D - eta * slope_a * (server_a - own_a), 0, 1)
    return weight_D


def test_weights_of_three_rounds_are_those_by_hand() -> None:
    """The first round takes the server's model, the second learns in several passes, the third in one."""
    algorithm = FedAla(bench_of("loop", LINEAR, "mean-squared-error", 0.05), eta=0.02, share=0.75, passes=4)
    fedavg = FedAvg(algorithm.context)
    draws = torch.Generator().manual_seed(0)
    n = BASE + HIDDEN
    servers = torch.randn(3, n, generator=draws, dtype=torch.float64)
    client = algorithm.start_client(torch.randn(n, generator=draws, dtype=torch.float64), torch.tensor(5))
    weight_D, one = np.ones(HIDDEN), work()
    for server_n, passes in zip(servers, (0, 4, 1), strict=True):
        weight_D = learned_by_hand(weight_D, client.model_n, server_n, one, 3, passes, 0.02)
        own_a, server_a = client.model_n[BASE:], server_n[BASE:]
        head_a = own_a + torch.from_numpy(weight_D) * (server_a - own_a)
        begun = ServerModel(torch.cat([server_n[:BASE], head_a]))
        _, wanted = fedavg.train(client, begun, one, (7,))
        client, sent = algorithm.train(client, ServerModel(server_n), one, (7,))
        np.testing.assert_allclose(client.weight_D.numpy(), weight_D, rtol=0, atol=1e-12)
        torch.testing.assert_close(sent.model_n, wanted.model_n, rtol=0, atol=1e-12)
        assert torch.equal(client.model_n, sent.model_n)
    assert int(client.rounds) == 3
    assert 0.05 < weight_D.min() < weight_D.max() <= 1, "or the weights would show nothing"


@pytest.mark.slow
def test_a_head_that_fits_better_than_the_servers_is_kept() -> None:
    """The client's own head is exact on its examples, and the server's is far off: W goes to 0."""
    one, base_n = work(), torch.randn(BASE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    own_a = torch.tensor([1.0, -2.0], dtype=torch.float64)
    hidden = one.all_inputs() @ base_n.reshape(HIDDEN, FEATURES).T
    exact = Batches(one.x_NF, one.index, (hidden @ own_a).reshape(4, 5, 1))
    own_n, server_n = torch.cat([base_n, own_a]), torch.cat([base_n, own_a + torch.tensor([0.5, 0.5])])
    algorithm = FedAla(bench_of("loop", LINEAR, "mean-squared-error", 0.0), passes=25)
    begun = algorithm.start_client(own_n, torch.tensor(5))
    client = WeighingClient(own_n, begun.examples, begun.weight_D, begun.rounds + 1)
    kept, _ = algorithm.train(client, ServerModel(server_n), exact, (0,))
    assert float(kept.weight_D.max()) < 1e-6
    assert float(algorithm.statistics(kept, ServerModel(server_n))["weight of the server's head"]) < 1e-6
    torch.testing.assert_close(kept.model_n, own_n)


def test_without_a_rate_it_is_fedavg_to_the_last_bit() -> None:
    ends = []
    for algorithm in (FedAvg(bench_of("stack")), FedAla(bench_of("stack"), eta=0.0)):
        server = algorithm.start_server(starts(MODULE, 1)[0])
        clients = algorithm.start_client(starts(MODULE, 3), EXAMPLES)
        for _ in range(3):
            clients, updates = algorithm.train(clients, server, batches(), (1, 2, 3))
            server = algorithm.close(server, updates)
        ends.append(server.model_n)
    assert torch.equal(*ends)


def test_clients_in_different_rounds_are_each_alone() -> None:
    algorithm, block = FedAla(bench_of("stack"), passes=3), batches()
    begun, server = algorithm.start_client(starts(MODULE, 3), EXAMPLES), ServerModel(starts(MODULE, 1, seed=8)[0])
    rounds = torch.tensor([0, 1, 5])
    clients = WeighingClient(begun.model_n, begun.examples, begun.weight_D, rounds)
    together, _ = algorithm.train(clients, server, block, (1, 2, 3))
    for p in range(3):
        alone, _ = algorithm.train(take_rows(clients, p), server, block.peer(p), (p + 1,))
        for name, leaf in leaves_of(alone).items():
            torch.testing.assert_close(leaves_of(together)[name][p], leaf, rtol=1e-6, atol=1e-6)
    assert bool((together.weight_D[0] == 1).all()), "the first round takes the server's model"
    assert distance(together.weight_D[1], together.weight_D[2]) > 1e-3


def test_what_does_not_fit_is_said() -> None:
    with pytest.raises(AlgorithmError, match="running statistics"):
        FedAla(bench_of("loop", nn.Sequential(mlp(), nn.BatchNorm1d(3))))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"eta": -1.0}, "eta = -1: write 0 or more"),
        ({"share": 0.0}, "share = 0: write a number above 0"),
        ({"passes": 0}, "passes = 0: write 1 or more"),
        ({"head": ("9",)}, 'no module "9"'),
    ],
)
def test_settings_out_of_range_are_named(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(AlgorithmError, match=says):
        FedAla(bench_of("stack"), **settings)
