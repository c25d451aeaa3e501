"""Golden cases 02*: partial models, the reduced sets of all weights, and partial averaging by Algorithms 1 and 2."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from fedpeer.gossip.exact import weighted_mean
from fedpeer.gossip.mass import Mass
from fedpeer.slicing.assign import Assignment, layout
from fedpeer.slicing.flat import FlatLayout, gather, scatter_
from fedpeer.slicing.models import ModelGraph, PartialModel
from fedpeer.slicing.network import NetworkMap
from fedpeer.slicing.plan import Plan, compile_plan, reduced_sets
from fedpeer.slicing.trace import trace

Json = dict[str, Any]


def network_of(sizes: list[int]) -> NetworkMap:
    """The plain network of the golden cases: parts "input", "0", "1", ..., tensors in order weight, bias."""
    layers = nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(sizes)))
    return trace(layers, torch.zeros(1, sizes[0]))


def averaged(plan: Plan, start: dict[str, Tensor]) -> dict[str, Tensor]:
    """Every group's exact mean in the place of its members' values."""
    value = {peer: x_n.clone() for peer, x_n in start.items()}
    for group in plan.groups:
        index = {peer: torch.from_numpy(index_D) for peer, index_D in group.indices.items()}
        held_PD = torch.stack([gather(value[peer], index[peer]) for peer in group.members])
        mean_D = weighted_mean(Mass.of(held_PD))
        for peer in group.members:
            scatter_(value[peer], index[peer], mean_D)
    return value


def graph_of(inputs: Json) -> ModelGraph:
    """Peer number p is "p"; it implements the models that its layout names."""
    named = [{model for layer in peer for model, _ in layer} for peer in inputs["layout"]]
    return ModelGraph(
        PartialModel(
            name,
            tuple(inputs["depends_on"].get(name, ())),
            members=tuple(str(p) for p, models in enumerate(named) if name in models),
        )
        for name in inputs["models"]
    )


def assigned(inputs: Json, graph: ModelGraph, peer: str, network: NetworkMap) -> Assignment:
    """The neurons of a peer as its layout lists them."""
    layers = zip(network.parts, inputs["layout"][int(peer)], strict=True)
    return layout(network, graph, {part.name: [(model, index) for model, index in layer] for part, layer in layers})


def flat(inputs: Json, peer: str) -> Tensor:
    """One peer's flat vector: the weights of each layer, then its activation parameters."""
    layers = zip(inputs["weights"][int(peer)], inputs["q"][int(peer)], strict=True)
    return torch.cat([torch.tensor(tensor, dtype=torch.float64).ravel() for layer in layers for tensor in layer])


def by_layer(network: NetworkMap, x_n: Tensor) -> tuple[list[Any], list[Any]]:
    """The weights of each layer, and the activation parameters of each, as nested lists."""
    tensors = [tensor.tolist() for tensor in FlatLayout.of(network).unflatten(x_n).values()]
    return tensors[::2], tensors[1::2]


def partial_averaging(inputs: Json) -> Json:
    graph, peers = graph_of(inputs), [str(p) for p in range(len(inputs["layout"]))]
    networks = {peer: network_of([len(layer) for layer in inputs["layout"][int(peer)]]) for peer in peers}
    assignments = {peer: assigned(inputs, graph, peer, networks[peer]) for peer in peers}
    answer: Json = {
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


def reduced_model_sets(inputs: Json) -> Json:
    depends_on = {name: tuple(on) for name, on in inputs["depends_on"].items()}
    names = {*depends_on, *(name for on in depends_on.values() for name in on)}
    graph = ModelGraph(PartialModel(name, depends_on.get(name, ())) for name in names)
    return {
        "closure": {name: sorted(graph.closure(name)) for name in graph.order},
        "R": [sorted(graph.reduced(query)) for query in inputs["queries"]],
    }


ADAPTERS: dict[str, Callable[[Json], Json]] = {
    "02a_partial_averaging_fig5": partial_averaging,
    "02b_partial_averaging_no_dependency": partial_averaging,
    "02c_partial_averaging_diamond": partial_averaging,
    "02d_reduced_model_sets": reduced_model_sets,
    "02e_partial_averaging_chain": partial_averaging,
}
