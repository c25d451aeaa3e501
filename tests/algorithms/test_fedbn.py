"""FedBN: batch normalisation stays with the client, and everything else is FedAvg's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.servers.fedavg import FedAvg
from fedpeer.algorithms.servers.fedbn import FedBN
from fedpeer.algorithms.servers.models import Local
from fedpeer.config.choice import parse_choice
from fedpeer.config.federation import Federation
from fedpeer.learning.groups import plan_for
from fedpeer.slicing.flat import FlatLayout
from fedpeer.slicing.network import NetworkMap
from fedpeer.slicing.trace import trace
from tests.algorithms.client_factory import batches, starts
from tests.algorithms.server_factory import MODULE, bench_of
from tests.slicing.zoo import ITS_NORMALIZATION, Normalized

NORMAL = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 3))
EXAMPLES = torch.tensor([10, 30, 60])


def norms() -> torch.Tensor:
    """Return which places of a model are the normalisation's: scale, shift, mean and variance."""
    layout = FlatLayout.of(NORMAL)
    found_n = torch.zeros(layout.n, dtype=torch.bool)
    for each in layout.tensors:
        found_n[each.span] = each.name.startswith("1.")
    return found_n


def test_normalisation_stays_and_everything_else_is_fedavg() -> None:
    algorithm, fedavg, norm_n = FedBN(bench_of("loop", NORMAL)), FedAvg(bench_of("loop", NORMAL)), norms()
    x_Bn = starts(NORMAL, 3)
    x_Bn[1:, ~norm_n] = x_Bn[0, ~norm_n]
    kept, sent = algorithm.train(
        algorithm.start_client(x_Bn, EXAMPLES), algorithm.start_server(x_Bn[0]), batches(), (1, 2, 3)
    )
    assert int(norm_n.sum()) == 4 * 7
    assert sent.model_n.shape == (3, int((~norm_n).sum()))
    assert not torch.equal(kept.model_n[:, norm_n], x_Bn[:, norm_n]), "normalisation is trained"
    for p in range(3):
        # Each client's own normalisation under the common weights, trained as FedAvg trains.
        _, alone = fedavg.train(Local(x_Bn[p], EXAMPLES[p]), fedavg.start_server(x_Bn[p]), batches().peer(p), (p + 1,))
        assert torch.equal(kept.model_n[p], alone.model_n)
        assert torch.equal(sent.model_n[p], alone.model_n[~norm_n])
    server = algorithm.close(algorithm.start_server(x_Bn[0]), sent)
    assert torch.equal(server.model_n, fedavg.close(server, Local(kept.model_n, EXAMPLES)).model_n[~norm_n])
    again, _ = FedBN(bench_of("loop", NORMAL, lr=0.0)).train(kept, server, batches(steps=1), (1, 2, 3))
    scales = norm_n.clone()
    scales[-14:] = False  # the statistics move without a learning rate, too
    assert torch.equal(again.model_n[:, scales], kept.model_n[:, scales])
    assert torch.equal(again.model_n[:, ~norm_n], server.model_n.expand(3, -1))


def test_it_shares_what_gossip_with_local_buffers_shares() -> None:
    federation = Federation.model_validate({"learning": {"buffers": "local"}})
    plan = plan_for(federation, trace(NORMAL, torch.zeros(2, 5)), ["a", "b"], parse_choice("full-averaging"))
    [group] = plan.groups
    assert sorted(group.indices["a"].tolist()) == FedBN(bench_of("loop", NORMAL)).base_D.tolist()


def test_of_modules_that_hold_other_buffers_only_these_stay() -> None:
    """A buffer of the network itself, or of a block, does not keep layers beside or inside it from being averaged."""
    module = Normalized()
    network = trace(module, torch.zeros(2, 6))
    federation = Federation.model_validate({"learning": {"buffers": "local"}})
    [group] = plan_for(federation, network, ["a", "b"], parse_choice("full-averaging")).groups
    shared = {network.tensors[at].name for at in network.tensor_n[group.indices["a"]]}
    assert {tensor.name for tensor in network.tensors} - shared == ITS_NORMALIZATION
    assert sorted(group.indices["a"].tolist()) == FedBN(bench_of("loop", module)).base_D.tolist()


def test_peers_keep_the_normalization_of_their_own_networks() -> None:
    """One network has no normalization, a deeper one has another layer of it; a buffer without slices is no error."""

    def network(layers: int, norms: int) -> NetworkMap:
        made = nn.Sequential(nn.Linear(5, 5), *(nn.Tanh() for _ in range(layers)), nn.Linear(5, 3))
        for at in range(norms):
            made[1 + at] = nn.BatchNorm1d(5)
        if norms:
            made.register_buffer("unused", torch.ones(4))
        return trace(made, torch.zeros(2, 5))

    networks = {"a": network(2, 0), "b": network(2, 1), "c": network(2, 2), "d": network(2, 2)}
    federation = Federation.model_validate({"learning": {"buffers": "local"}})
    plan = plan_for(federation, networks, list(networks), parse_choice("partial-averaging"))
    for peer, its in networks.items():
        local = {its.tensors[at].name for at in its.tensor_n[plan.local[peer]]}
        assert {each.name for each in its.tensors if each.name.startswith(("1.", "2.", "unused"))} <= local


def test_a_network_without_it_is_refused_with_the_way_out() -> None:
    table = nn.Sequential(nn.Linear(5, 3))
    table.register_buffer("places", torch.ones(4))
    for bench in (bench_of("stack", MODULE), bench_of("loop", table)):
        with pytest.raises(AlgorithmError, match=r"no batch normalisation, .* take fedavg"):
            FedBN(bench)
