"""pFedVEM without a server against pFedVEM with one: both compute the same means, even if messages are lost."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedpeer.algorithms.batches import Batches, Examples
from fedpeer.algorithms.confident_peers import ConfidentPeers, Trusting, base_and_head
from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.leaves import leaves_of, take_rows
from fedpeer.algorithms.losses import LOSSES
from fedpeer.algorithms.optimizers import OptimizerChoice
from fedpeer.algorithms.servers.models import ServerModel
from fedpeer.algorithms.servers.pfedvem import PFedVEM, PFedVEMUpdate
from fedpeer.algorithms.training_context import TrainingContext
from fedpeer.gossip.mass import Mass
from fedpeer.slicing.assign import assign_all
from fedpeer.slicing.flat import gather_group, scatter_
from fedpeer.slicing.models import ModelGraph, PartialModel
from fedpeer.slicing.plan import Plan, compile_plan
from fedpeer.slicing.trace import trace
from fedpeer.topology.mixing import Protocol
from tests.algorithms.client_factory import batches, distance, mlp, starts
from tests.algorithms.test_pfedvem_server import images
from tests.gossip.test_averaging import dense, policy
from tests.reference.push_sum import receive, share_of
from tests.reference.synchronous import synchronous_round

PEERS = tuple(f"peer{p}" for p in range(6))
SIZES = (3, 40, 11, 24, 7, 19)
MODULE = mlp(activation=nn.ReLU)
BENCH = TrainingContext.of(MODULE, LOSSES["cross-entropy"], OptimizerChoice("SGD", {"lr": 0.1, "momentum": 0.9}))
CLIENT, EQUALS = PFedVEM(BENCH, head_lr=1e-2), ConfidentPeers(BENCH, head_lr=1e-2)
COUNTS = torch.tensor((3, 40, 11, 24, 7, 19))


def plan_of(models: tuple[PartialModel, ...], module: nn.Module = MODULE, example: tuple[int, ...] = (5,)) -> Plan:
    graph, networks = ModelGraph(models), dict.fromkeys(PEERS, trace(module, torch.zeros(1, *example)))
    return compile_plan(networks, graph, assign_all(networks, graph))


PLAN = plan_of(base_and_head(trace(MODULE, torch.zeros(1, 5)), "4"))


def work(round: int) -> Batches:
    """Return the batches of a round of all peers, which hold different numbers of examples."""
    block = batches(peers=len(PEERS), seed=round)
    held = batches(peers=len(PEERS), steps=1, size=max(SIZES), seed=99)
    whole = tuple(Examples(block.x_NF, held.index[p, 0, :n], held.y[p, 0, :n]) for p, n in enumerate(SIZES))
    return replace(block, whole=whole)


def averaged(algorithm: ConfidentPeers, state: Trusting, trained_Pn: Tensor, protocol: Protocol, round: int) -> Tensor:
    """Return estimates (P, n) after an averaging of each group: weighted masses times the matrices of the exchanges."""
    estimate_Pn = trained_Pn.clone()
    for number, group in enumerate(PLAN.groups):  # each on its own graph, where some peers send to more than others
        matrix_PP = dense(policy(("star", "small-world")[number], len(PEERS), protocol, tolerance=1e-9), round)
        places_D = torch.from_numpy(group.indices[PEERS[0]])
        begun = Mass.of(gather_group(trained_Pn, places_D), algorithm.weights(state, group.indices[PEERS[0]]))
        found_PD = synchronous_round(begun, matrix_PP).estimate_D
        scatter_(estimate_Pn, places_D, found_PD.to(estimate_Pn.dtype))
    return estimate_Pn


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["exact", "push-sum", "push-pull"])
def test_round_by_round_peers_learn_what_a_server_would_tell_them(protocol: Protocol) -> None:
    algorithm = EQUALS
    x_n, keys = starts(MODULE, 1)[0], tuple(range(len(PEERS)))
    state, estimate_Pn = algorithm.start_client(x_n.expand(len(PEERS), -1), COUNTS), x_n.expand(len(PEERS), -1)
    server = CLIENT.start_server(x_n)
    clients = CLIENT.start_client(x_n.expand(len(PEERS), -1), torch.tensor(SIZES))
    for round in range(3):
        state, change = algorithm.train(state, ServerModel(estimate_Pn), work(round), keys)
        estimate_Pn = averaged(algorithm, state, change.model_n, protocol, round)
        clients, sent = CLIENT.train(clients, CLIENT.open(server, round + 1), work(round), keys)
        server = CLIENT.close(server, sent)
        assert distance(algorithm.personal_model(state), clients.model_n) <= 1e-6
        assert distance(state.pi_D, clients.pi_D) <= 1e-6
        torch.testing.assert_close(state.tau, sent.tau, rtol=1e-5, atol=0)
        for estimate_n in estimate_Pn:
            assert distance(estimate_n, server.model_n) <= 1e-6
        for one, other in zip(
            algorithm.statistics(state, ServerModel(estimate_Pn)).values(),
            CLIENT.statistics(clients, server).values(),
            strict=True,
        ):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=0)
    same = CLIENT.close(server, PFedVEMUpdate(sent.model_n, torch.ones(len(PEERS)), torch.ones(len(PEERS))))
    assert distance(same.model_n, server.model_n) > 1e-3, "weights that do not matter would show nothing"


@pytest.mark.slow
def test_a_peer_alone_is_a_row_of_the_block() -> None:
    algorithm, block = EQUALS, work(0)
    x_Pn = starts(MODULE, len(PEERS))
    state, estimate_Pn = algorithm.start_client(x_Pn, COUNTS), x_Pn.roll(1, 0)
    after, change = algorithm.train(state, ServerModel(estimate_Pn), block, tuple(range(len(PEERS))))
    for p in range(len(PEERS)):
        one, own = algorithm.train(take_rows(state, p), ServerModel(estimate_Pn[p]), block.peer(p), (p,))
        assert torch.equal(own.model_n, change.model_n[p])
        for name, leaf in leaves_of(one).items():
            assert torch.equal(leaf, leaves_of(after)[name][p]), name
    assert after.examples.tolist() == list(SIZES)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_shares_that_get_lost_and_come_back_change_no_mean(seed: int) -> None:
    """With single messages over random edges, 3 of 10 lost, mass is conserved and all peers reach the server's mean."""
    algorithm, draws = EQUALS, random.Random(seed)
    x_Pn = starts(MODULE, len(PEERS), seed=seed + 1)
    state, change = algorithm.train(
        algorithm.start_client(x_Pn, COUNTS), ServerModel(x_Pn), work(seed), tuple(range(len(PEERS)))
    )
    sent = PFedVEMUpdate(change.model_n, state.examples, state.tau)
    wanted_n = CLIENT.close(CLIENT.start_server(x_Pn[0]), sent).model_n
    for group in PLAN.groups:
        index_D = group.indices[PEERS[0]]
        whole = Mass.of(gather_group(change.model_n, torch.from_numpy(index_D)), algorithm.weights(state, index_D))
        held = [Mass(value_D, weight) for value_D, weight in zip(whole.value_D, whole.weight, strict=True)]
        for _ in range(700):
            source, target = draws.sample(range(len(PEERS)), 2)
            held[source], share_D = share_of(held[source], 0.5)
            arrives = source if draws.random() < 0.3 else target
            held[arrives] = receive(held[arrives], share_D)
        now = Mass(torch.stack([each.value_D for each in held]), torch.stack([each.weight for each in held]))
        torch.testing.assert_close(now.value_D.sum(0), whole.value_D.sum(0), rtol=1e-12, atol=1e-9)
        torch.testing.assert_close(now.weight.sum(), whole.weight.sum(), rtol=1e-12, atol=0)
        for found_D in now.estimate_D:
            assert distance(found_D.float(), wanted_n[torch.from_numpy(index_D)]) <= 1e-6


@pytest.mark.parametrize(
    ("module", "head", "example"), [(MODULE, "4", (5,)), (images(), "3", (1, 4, 6))], ids=("stack", "images")
)
def test_two_partial_models_are_base_and_head(module: nn.Module, head: str, example: tuple[int, ...]) -> None:
    plan = plan_of(base_and_head(trace(module, torch.zeros(1, *example)), head), module, example)
    n = sum(p.numel() for p in module.parameters())
    of_head = sum(p.numel() for p in module.get_submodule(head).parameters())
    groups = {group.id: sorted(group.indices[PEERS[3]].tolist()) for group in plan.groups}
    assert groups == {"base": list(range(n - of_head)), "head": list(range(n - of_head, n))}
    assert not any(len(local) for local in plan.local.values())


def test_a_group_of_both_is_refused_and_local_numbers_are_nobodys() -> None:
    algorithm, x_n = EQUALS, starts(MODULE, 1)[0]
    begun = algorithm.start_client(x_n, torch.tensor(3))
    (both,) = plan_of((PartialModel("everyone", (), "all"),)).groups
    with pytest.raises(AlgorithmError, match="group holds numbers of both base and head"):
        algorithm.weights(begun, both.indices[PEERS[0]])
    (base,) = plan_of((PartialModel("base", (), {"0": 3}),)).groups
    assert float(algorithm.weights(begun, base.indices[PEERS[0]])) == 3
    assert float(begun.tau) == pytest.approx(100)
    assert torch.equal(algorithm.personal_model(begun), x_n)
