"""FedAvg, FedProx and SCAFFOLD against closed forms and conservation laws, and properties of all such algorithms."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import Tensor

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.servers.fedavg import FedAvg
from fedpeer.algorithms.servers.fedprox import FedProx
from fedpeer.algorithms.servers.scaffold import Scaffold
from fedpeer.algorithms.steppers import Way
from tests.algorithms.client_factory import CLOSE, batches, distance, in_torch, starts
from tests.algorithms.server_factory import LOSS, LR, MAKERS, MODULE, Algorithm, Quadratics, bench_of, played

WAYS: list[Way] = ["stack", "mapped", "loop"]
#: `mapped` is slow because each algorithm traces its gradient anew. `make test` takes one algorithm that corrects the
#: gradients and one that asks for the answers of models; `make soak` takes all.
MAPPED = ("scaffold", "ifca")
EXAMPLES = torch.tensor([10.0, 30.0, 60.0])


def tensors(state: Any) -> dict[str, Tensor]:
    return {each.name: getattr(state, each.name) for each in fields(state)}


def begun(algorithm: Algorithm) -> tuple[Any, Any]:
    """Return a server, and a block of three clients whose models differ."""
    server = algorithm.start_server(starts(MODULE, 2, seed=8)[0])
    return server, algorithm.start_client(starts(MODULE, 3), EXAMPLES)


def one_of(state: Any, number: int) -> Any:
    return type(state)(**{name: each[number] for name, each in tensors(state).items()})


def side_by_side(one: Any, other: Any) -> list[tuple[str, Tensor, Tensor]]:
    return [(name, each, getattr(other, name)) for name, each in tensors(one).items()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "way"),
    [
        pytest.param(name, way, marks=[pytest.mark.soak] if way == "mapped" and name not in MAPPED else [])
        for name in MAKERS
        for way in WAYS
    ],
)
def test_a_block_of_clients_is_each_alone(name: str, way: Way) -> None:
    algorithm, block = MAKERS[name](way), batches()
    server, clients = begun(algorithm)
    for _ in range(2):
        broadcast, before = algorithm.open(server, 1), clients
        clients, updates = algorithm.train(before, broadcast, block, (1, 2, 3))
        for p in range(3):
            alone = algorithm.train(one_of(before, p), broadcast, block.peer(p), (p + 1,))
            together = one_of(clients, p), one_of(updates, p)
            for field, a, b in (each for pair in zip(together, alone, strict=True) for each in side_by_side(*pair)):
                # SCAFFOLD divides a model's change by steps * rate, and the rounding of the change with it.
                limit = 2e-7 / (block.steps * LR if field == "control_n" else 1)
                assert (a - b).double().norm() <= limit * algorithm.personal_model(together[0]).norm(), field
        server = algorithm.close(server, updates)


@pytest.mark.parametrize("name", MAKERS)
def test_nothing_passed_in_is_changed(name: str) -> None:
    algorithm, block = MAKERS[name]("stack"), batches()
    server, clients = begun(algorithm)
    held = [*tensors(server).values(), *tensors(clients).values(), block.index, block.y, block.x_NF]
    before = [each.clone() for each in held]
    after, updates = algorithm.train(clients, algorithm.open(server, 1), block, (1, 2, 3))
    later = algorithm.close(server, updates)
    assert all(torch.equal(a, b) for a, b in zip(held, before, strict=True))
    assert not torch.equal(algorithm.personal_model(after), algorithm.personal_model(clients))
    assert any(not torch.equal(a, b) for a, b in zip(tensors(later).values(), tensors(server).values(), strict=True))


@pytest.mark.parametrize("name", MAKERS)
def test_a_client_that_was_never_asked_has_its_initial_model(name: str) -> None:
    algorithm, x_Bn = MAKERS[name]("stack"), starts(MODULE, 3)
    assert torch.equal(algorithm.personal_model(algorithm.start_client(x_Bn, EXAMPLES)), x_Bn)


def test_fedavg_with_one_full_batch_step_is_descent_on_the_pooled_loss() -> None:
    pool = batches(peers=1, steps=1, size=20).peer(0)
    parts = {"0": (0, 4), "1": (4, 13), "2": (13, 20)}
    algorithm, x_n = FedAvg(bench_of("stack")), starts(MODULE, 1)[0]
    clients = {p: algorithm.start_client(x_n, torch.tensor(b - a)) for p, (a, b) in parts.items()}

    def work(peer: str) -> Batches:
        first, last = parts[peer]
        return Batches(pool.x_NF, pool.index[:, first:last], pool.y[:, first:last])

    server = played(algorithm, algorithm.start_server(x_n), clients, work, ["2", "0", "1"])
    wanted = in_torch(MODULE, x_n, [pool], LOSS, lambda parameters: torch.optim.SGD(parameters, lr=LR))
    assert distance(server.model_n, wanted) < CLOSE
    assert distance(wanted, x_n) > 1e-3
    same = torch.stack([client.model_n for client in clients.values()]).mean(0)
    assert distance(same, wanted) > 1e-4, "weights that do not matter would show nothing"


def test_fedavg_weighs_those_who_took_part_and_leaves_the_others() -> None:
    algorithm, x_n = FedAvg(bench_of("stack")), starts(MODULE, 1)[0]
    clients = {str(p): algorithm.start_client(x_n, EXAMPLES[p]) for p in range(3)}
    block = batches()
    server = played(algorithm, algorithm.start_server(x_n), clients, lambda peer: block.peer(int(peer)), ["2", "0"])
    wanted = (10 * clients["0"].model_n.double() + 60 * clients["2"].model_n.double()) / 70
    torch.testing.assert_close(server.model_n, wanted.float(), rtol=0, atol=1e-7)
    assert torch.equal(clients["1"].model_n, x_n)


@pytest.mark.parametrize("way", ["stack", pytest.param("mapped", marks=pytest.mark.soak), "loop"])
def test_fedprox_without_a_penalty_is_fedavg_to_the_last_bit(way: Way) -> None:
    ends = []
    for algorithm in (FedAvg(bench_of(way)), FedProx(bench_of(way), mu=0.0)):
        server, clients = begun(algorithm)
        for _ in range(2):
            clients, updates = algorithm.train(clients, server, batches(), (1, 2, 3))
            server = algorithm.close(server, updates)
        ends.append(server.model_n)
    assert torch.equal(*ends)


@pytest.mark.slow
def test_fedprox_ends_where_loss_and_penalty_balance() -> None:
    world, w0_D = Quadratics(2), torch.ones(3, dtype=torch.float64)
    algorithm = FedProx(world.context(), mu=0.8)
    for i in range(2):
        client = algorithm.start_client(w0_D, torch.tensor(1))
        trained, _ = algorithm.train(client, algorithm.start_server(w0_D), world.batches(i, 400), (0,))
        torch.testing.assert_close(trained.model_n, world.near(i, w0_D, 0.8), rtol=0, atol=1e-10)


def test_the_first_round_of_scaffold_is_fedavg_of_equals() -> None:
    block, ones = batches(), torch.ones(3)
    x_Bn = starts(MODULE, 1).expand(3, -1)
    fedavg, scaffold = FedAvg(bench_of("stack")), Scaffold(bench_of("stack", clients=3))
    plain, sent = fedavg.train(fedavg.start_client(x_Bn, ones), fedavg.start_server(x_Bn[0]), block, (1, 2, 3))
    server = scaffold.start_server(x_Bn[0])
    controlled, changes = scaffold.train(scaffold.start_client(x_Bn, ones), server, block, (1, 2, 3))
    assert torch.equal(controlled.model_n, plain.model_n)
    wanted = fedavg.close(fedavg.start_server(x_Bn[0]), sent).model_n
    assert distance(scaffold.close(server, changes).model_n, wanted) < 2e-7


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(some.lists(some.sets(some.integers(0, 3), min_size=1), min_size=1, max_size=4))
def test_the_servers_control_variate_stays_the_mean_of_the_clients(rounds: list[set[int]]) -> None:
    world, w0_D = Quadratics(4), torch.zeros(3, dtype=torch.float64)
    algorithm = Scaffold(world.context())
    server, clients = (
        algorithm.start_server(w0_D),
        {str(i): algorithm.start_client(w0_D, torch.tensor(1)) for i in range(4)},
    )
    for participants in rounds:
        work = {str(i): world.batches(i, 3) for i in participants}
        server = played(algorithm, server, clients, work.__getitem__, sorted(work))
    mean_D = torch.stack([client.control_n for client in clients.values()]).mean(0)
    torch.testing.assert_close(server.control_n, mean_D, rtol=0, atol=1e-13)


@pytest.mark.slow
def test_control_variates_are_mean_gradients_and_take_the_drift_away() -> None:
    """With one step, c_i is the client's gradient at the round's start; with many, only SCAFFOLD finds the optimum."""
    world, w0_D = Quadratics(4), torch.zeros(3, dtype=torch.float64)
    peers, ends = [str(i) for i in range(4)], []
    scaffold = Scaffold(world.context())
    clients = {peer: scaffold.start_client(w0_D, torch.tensor(1)) for peer in peers}
    begun = scaffold.start_server(w0_D)
    for _ in range(2):  # in the second round the server has a control variate as well
        later = played(scaffold, begun, clients, lambda peer: world.batches(int(peer), 1), peers)
        for i in range(4):
            wanted_D = world.gradient(i, begun.model_n)
            torch.testing.assert_close(clients[str(i)].control_n, wanted_D, rtol=0, atol=1e-13)
        begun = later
    algorithms: list[Algorithm] = [FedAvg(world.context()), scaffold]
    for algorithm in algorithms:
        server: Any = algorithm.start_server(w0_D)
        clients = {peer: algorithm.start_client(w0_D, torch.tensor(1)) for peer in peers}
        for _ in range(35):
            server = played(algorithm, server, clients, lambda peer: world.batches(int(peer), 5), peers)
        ends.append(float((server.model_n - world.optimum()).norm()))
    assert ends[0] > 1e-2
    assert ends[1] < 1e-6
