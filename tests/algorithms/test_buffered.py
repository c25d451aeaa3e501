"""Buffered aggregation: FedBuff's formula, the plain algorithm where nobody is late, and what cannot be buffered."""

from __future__ import annotations

import math

import pytest
import torch

from fedpeer.algorithms.buffered import Buffered, discount
from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.leaves import leaves_of, stack_states
from fedpeer.algorithms.registry import SEND_A_MODEL
from fedpeer.algorithms.servers.fedavg import FedAvg
from fedpeer.algorithms.servers.models import Local, ServerModel
from tests.algorithms.client_factory import batches
from tests.algorithms.server_factory import MAKERS, bench_of


def test_changes_count_by_examples_and_by_age() -> None:
    """x + sum_k n_k s(age_k) change_k / sum_k n_k, with s(age) = 1 / sqrt(1 + age)."""
    algorithm = Buffered(FedAvg(bench_of("loop")), "fedavg")
    server = ServerModel(torch.tensor([1.0, -2.0, 0.5]))
    changes_Kn, examples_K = torch.randn(3, 3), torch.tensor([10, 30, 60])
    age_K = torch.tensor([0, 3, 24])
    updates = algorithm.rebased(server, Local(changes_Kn, examples_K), 7, age_K)
    found = algorithm.close(server, updates).model_n
    expected = server.model_n + (0.1 * changes_Kn[0] + 0.3 * changes_Kn[1] / 2 + 0.6 * changes_Kn[2] / 5)
    torch.testing.assert_close(found, expected)


def test_a_discount_is_one_over_the_root_of_one_and_the_age() -> None:
    for age in (0, 1, 2, 99):
        assert float(discount(torch.tensor(age))) == pytest.approx(1 / math.sqrt(1 + age))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MAKERS if name in SEND_A_MODEL])
def test_where_nobody_is_late_it_is_the_plain_algorithm(name: str) -> None:
    plain, buffered = MAKERS[name]("loop"), Buffered(MAKERS[name]("loop"), name)
    start_n, found, work = bench_of("loop").draw(""), [], batches()
    for algorithm in (plain, buffered):
        server, updates = algorithm.start_server(start_n), []
        for peer in range(3):
            client = algorithm.start_client(start_n + 0.1 * peer, torch.tensor(5 + peer))
            updates.append(algorithm.train(client, algorithm.open(server, 1), work.peer(peer), (peer,))[1])
        together = algorithm.rebased(server, stack_states(updates), 1, torch.zeros(3, dtype=torch.int64))
        found.append(leaves_of(algorithm.close(server, together)))
    for key, expected in found[0].items():
        torch.testing.assert_close(found[1][key], expected, rtol=1e-6, atol=1e-6)


def trained_once(name: str) -> None:
    algorithm, start_n = Buffered(MAKERS[name]("loop"), name), bench_of("loop").draw("")
    client, server = algorithm.start_client(start_n, torch.tensor(5)), algorithm.start_server(start_n)
    algorithm.train(client, algorithm.open(server, 1), batches().peer(0), (1,))


@pytest.mark.parametrize("name", ["scaffold", "ifca", "pfedvem"])
def test_what_belongs_to_one_round_is_refused_with_the_way_out(name: str) -> None:
    with pytest.raises(
        AlgorithmError, match=f"an update of {name} belongs to one round; leave it out, or take one of fedavg"
    ):
        trained_once(name)
