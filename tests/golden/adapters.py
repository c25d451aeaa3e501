"""Adapters from golden inputs to fedpeer's own functions and back: one function per case, `(inputs) -> computed`.

An adapter reshapes and renames, in float64; it contains no mathematics of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import networkx as nx
import numpy as np
import torch
from torch import Tensor, nn

from fedpeer.data.splits import cut_examples
from fedpeer.gossip.mass import Mass
from fedpeer.slicing.assign import Assignment
from fedpeer.slicing.flat import FlatLayout, gather_group, scatter_
from fedpeer.slicing.models import ModelGraph, PartialModel
from fedpeer.slicing.network import NetworkMap
from fedpeer.slicing.plan import Plan, compile_plan, reduced_sets
from fedpeer.slicing.trace import trace
from fedpeer.topology.mixing import adjacency, eigenvalues, push_sum_matrix
from tests.golden.adapters_associative import ADAPTERS as ASSOCIATIVE
from tests.golden.adapters_mocha import ADAPTERS as MOCHA
from tests.golden.adapters_pfedvem import ADAPTERS as PFEDVEM
from tests.golden.adapters_servers import ADAPTERS as SERVERS
from tests.golden.adapters_virtual import ADAPTERS as VIRTUAL
from tests.reference import push_pull
from tests.reference.assign import layout_of_slices
from tests.reference.exact import variance, weighted_mean
from tests.reference.mixing import limit_weights, metropolis_hastings, second_modulus, spectral_gap
from tests.reference.push_sum import receive, share_of
from tests.reference.synchronous import synchronous_round

Case = dict[str, Any]


def push_sum_atomic(inputs: Case) -> Case:
    """Compute case 01a."""
    peers = _peers(inputs["x0"], inputs["w0"])
    found: Case = {"s_after": [], "w_after": [], "estimate_after": []}
    found["true_mean"] = weighted_mean(_stacked(peers)).tolist()
    for source, target, fraction in inputs["events"]:
        peers[source], sent = share_of(peers[source], fraction)
        peers[target] = receive(peers[target], sent)
        now_PD = _stacked(peers)
        found["s_after"].append(now_PD.value_D.tolist())
        found["w_after"].append(now_PD.weight.tolist())
        found["estimate_after"].append(now_PD.estimate_D.tolist())
    return found


def push_sum_synchronous(inputs: Case) -> Case:
    """Compute case 01b."""
    graph = nx.DiGraph([(int(a), b) for a, targets in inputs["out_neighbours"].items() for b in targets])
    matrix = push_sum_matrix(graph)
    now_PD = Mass.of(torch.tensor(inputs["x0"], dtype=torch.float64))
    found: Case = {"A": matrix.toarray().tolist(), "s_after": [], "w_after": [], "estimate_after": []}
    found["limit_estimate"] = weighted_mean(now_PD).tolist()
    found["limit_weight"] = limit_weights(matrix).tolist()
    for _ in range(inputs["rounds"]):
        now_PD = synchronous_round(now_PD, torch.from_numpy(matrix.toarray()))
        found["s_after"].append(now_PD.value_D.tolist())
        found["w_after"].append(now_PD.weight.tolist())
        found["estimate_after"].append(now_PD.estimate_D.tolist())
    return found


def push_sum_asynchronous(inputs: Case) -> Case:
    """Compute case 01c."""
    peers, flight = _peers(inputs["x0"]), dict[str, tuple[int, int, Mass]]()
    log: list[Case] = []
    for act, *rest in inputs["operations"]:
        if act == "send":
            source, target, fraction, name = rest
            peers[source], sent = share_of(peers[source], fraction)
            flight[name] = (source, target, sent)
        else:
            source, target, sent = flight.pop(rest[0])
            owner = target if act == "recv" else source
            peers[owner] = receive(peers[owner], sent)
        now_PD = _stacked(peers)
        under_way = sum((sent for *_, sent in flight.values()), Mass.of(torch.zeros_like(now_PD.value_D[0]), 0.0))
        log.append({"s": now_PD.value_D.tolist(), "w": now_PD.weight.tolist()})
        log[-1] |= {"in_flight_s": under_way.value_D.tolist(), "in_flight_w": under_way.weight.item()}
    return {"log": log}


def push_pull_pairwise(inputs: Case) -> Case:
    """Compute case 01d."""
    peers = _peers(inputs["x0"])
    found: Case = {"true_mean": weighted_mean(_stacked(peers)).tolist(), "values_after": [], "variance_after": []}
    for i, j in inputs["exchanges"]:
        peers[i], peers[j] = push_pull.exchange(peers[i], peers[j])
        estimate_PD = _stacked(peers).estimate_D
        found["values_after"].append(estimate_PD.tolist())
        found["variance_after"].append(variance(estimate_PD))
    return found


def mixing_matrices(inputs: Case) -> Case:
    """Compute case 09, without the algebraic connectivity, which fedpeer does not need."""
    return {name: _mixing(case) for name, case in inputs.items()}


def _mixing(case: Case) -> Case:
    graph = nx.empty_graph(case["n"])
    graph.add_edges_from(case["edges"])
    matrix = metropolis_hastings(graph)
    now_P1, states = Mass.of(torch.tensor(case["x0"], dtype=torch.float64)[:, None]), []
    for _ in range(case["rounds"]):
        now_P1 = synchronous_round(now_P1, torch.from_numpy(matrix.toarray()))
        states.append(now_P1.estimate_D[:, 0].tolist())
    return {
        "degree": [int(degree) for degree in adjacency(graph).sum(axis=1)],
        "W": matrix.toarray().tolist(),
        "eigenvalues_descending": eigenvalues(matrix).tolist(),
        "second_largest_modulus": second_modulus(matrix),
        "spectral_gap": spectral_gap(matrix),
        "x_after_3_rounds": states,
    }


def _peers(x0: Sequence[Sequence[float]], w0: Sequence[float] | None = None) -> list[Mass]:
    weights = w0 or [1.0] * len(x0)
    return [Mass.of(torch.tensor(x, dtype=torch.float64), w) for x, w in zip(x0, weights, strict=True)]


def _stacked(peers: Sequence[Mass]) -> Mass:
    return Mass(torch.stack([p.value_D for p in peers]), torch.stack([p.weight for p in peers]))


def network_of(sizes: list[int]) -> NetworkMap:
    """Return the plain network of the golden cases: parts "input", "0", "1", ..., tensors in order weight, bias."""
    layers = nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(sizes)))
    return trace(layers, torch.zeros(1, sizes[0]))


def averaged(plan: Plan, start: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return all peers' values with every group's exact mean in the place of its members' values."""
    value = {peer: x_n.clone() for peer, x_n in start.items()}
    for group in plan.groups:
        index = {peer: torch.from_numpy(index_D) for peer, index_D in group.indices.items()}
        held_PD = torch.stack([gather_group(value[peer], index[peer]) for peer in group.members])
        mean_D = weighted_mean(Mass.of(held_PD))
        for peer in group.members:
            scatter_(value[peer], index[peer], mean_D)
    return value


def graph_of(inputs: Case) -> ModelGraph:
    """Return the graph of models: peer number p is called "p" and implements the models that its layout names."""
    named = [{model for layer in peer for model, _ in layer} for peer in inputs["layout"]]
    return ModelGraph(
        PartialModel(
            name,
            tuple(inputs["depends_on"].get(name, ())),
            members=tuple(str(p) for p, models in enumerate(named) if name in models),
        )
        for name in inputs["models"]
    )


def assigned(inputs: Case, graph: ModelGraph, peer: str, network: NetworkMap) -> Assignment:
    """Return the assignment of a peer's neurons as its layout lists them."""
    layers = zip(network.parts, inputs["layout"][int(peer)], strict=True)
    return layout_of_slices(
        network, graph, {part.name: [(model, index) for model, index in layer] for part, layer in layers}
    )


def flat(inputs: Case, peer: str) -> Tensor:
    """Return one peer's flat vector: the weights of each layer, then its activation parameters."""
    layers = zip(inputs["weights"][int(peer)], inputs["q"][int(peer)], strict=True)
    return torch.cat([torch.tensor(tensor, dtype=torch.float64).ravel() for layer in layers for tensor in layer])


def by_layer(network: NetworkMap, x_n: Tensor) -> tuple[list[Any], list[Any]]:
    """Return the weights and the activation parameters of each layer, as nested lists."""
    tensors = [tensor.tolist() for tensor in FlatLayout.of(network).unflatten(x_n).values()]
    return tensors[::2], tensors[1::2]


def partial_averaging(inputs: Case) -> Case:
    """Compute case 02a, 02b, 02c or 02e."""
    graph, peers = graph_of(inputs), [str(p) for p in range(len(inputs["layout"]))]
    networks = {peer: network_of([len(layer) for layer in inputs["layout"][int(peer)]]) for peer in peers}
    assignments = {peer: assigned(inputs, graph, peer, networks[peer]) for peer in peers}
    answer: Case = {
        "implementers": {name: [int(peer) for peer in who] for name, who in graph.implementers(peers).items()},
        "dependency_closure": {name: sorted(graph.closure(name)) for name in graph.order},
        "R": [],
    }
    for peer in peers:
        code_n, sets = reduced_sets(networks[peer], graph, assignments[peer])
        weights, _ = by_layer(networks[peer], torch.from_numpy(code_n))
        answer["R"].append([[[sorted(sets[code]) for code in row] for row in layer] for layer in weights])
    for number, cross_model in ((1, False), (2, True)):
        plan = compile_plan(networks, graph, assignments, cross_model=cross_model)
        after = averaged(plan, {peer: flat(inputs, peer) for peer in peers})
        layers = [by_layer(networks[peer], after[peer]) for peer in peers]
        answer[f"weights_after_algorithm{number}"] = [weights for weights, _ in layers]
        answer[f"q_after_algorithm{number}"] = [q for _, q in layers]
    return answer


def reduced_model_sets(inputs: Case) -> Case:
    """Compute case 02d."""
    depends_on = {name: tuple(on) for name, on in inputs["depends_on"].items()}
    names = {*depends_on, *(name for on in depends_on.values() for name in on)}
    graph = ModelGraph(PartialModel(name, depends_on.get(name, ())) for name in names)
    return {
        "closure": {name: sorted(graph.closure(name)) for name in graph.order},
        "R": [sorted(graph.reduced(query)) for query in inputs["queries"]],
    }


def random_slicing(inputs: Case) -> Case:
    """Compute case 13."""
    parts = [part.tolist() for part in cut_examples(np.array(inputs["order"], dtype=np.int64), inputs["cut_indices"])]
    return {"parts": parts, "sizes": [len(part) for part in parts]}


ADAPTERS: dict[str, Callable[[Case], Case]] = {
    "01a_push_sum_atomic": push_sum_atomic,
    "01b_push_sum_synchronous": push_sum_synchronous,
    "01c_push_sum_asynchronous": push_sum_asynchronous,
    "01d_push_pull_pairwise": push_pull_pairwise,
    "02a_partial_averaging_fig5": partial_averaging,
    "02b_partial_averaging_no_dependency": partial_averaging,
    "02c_partial_averaging_diamond": partial_averaging,
    "02d_reduced_model_sets": reduced_model_sets,
    "02e_partial_averaging_chain": partial_averaging,
    **SERVERS,
    **PFEDVEM,
    **VIRTUAL,
    **MOCHA,
    **ASSOCIATIVE,
    "09_mixing_matrices": mixing_matrices,
    "13_random_slicing": random_slicing,
}
