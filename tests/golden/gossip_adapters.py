"""Golden cases 01 and 09: reshape the inputs, call gossip and topology in float64, name the answers as the cases do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import networkx as nx
import torch

from fedpeer.gossip import push_pull
from fedpeer.gossip.exact import variance, weighted_mean
from fedpeer.gossip.mass import Mass
from fedpeer.gossip.push_sum import receive, share, synchronous_round
from fedpeer.topology.mixing import (
    adjacency,
    eigenvalues,
    limit_weights,
    metropolis_hastings,
    push_sum_matrix,
    second_modulus,
    spectral_gap,
)

Case = dict[str, Any]


def push_sum_atomic(inputs: Case) -> Case:
    """01a"""
    peers = _peers(inputs["x0"], inputs["w0"])
    found: Case = {"s_after": [], "w_after": [], "estimate_after": []}
    found["true_mean"] = weighted_mean(_stacked(peers)).tolist()
    for source, target, fraction in inputs["events"]:
        peers[source], sent = share(peers[source], fraction)
        peers[target] = receive(peers[target], sent)
        now_PD = _stacked(peers)
        found["s_after"].append(now_PD.value_D.tolist())
        found["w_after"].append(now_PD.weight.tolist())
        found["estimate_after"].append(now_PD.estimate_D.tolist())
    return found


def push_sum_synchronous(inputs: Case) -> Case:
    """01b"""
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
    """01c"""
    peers, flight = _peers(inputs["x0"]), dict[str, tuple[int, int, Mass]]()
    log: list[Case] = []
    for act, *rest in inputs["operations"]:
        if act == "send":
            source, target, fraction, name = rest
            peers[source], sent = share(peers[source], fraction)
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
    """01d"""
    peers = _peers(inputs["x0"])
    found: Case = {"true_mean": weighted_mean(_stacked(peers)).tolist(), "values_after": [], "variance_after": []}
    for i, j in inputs["exchanges"]:
        peers[i], peers[j] = push_pull.exchange(peers[i], peers[j])
        estimate_PD = _stacked(peers).estimate_D
        found["values_after"].append(estimate_PD.tolist())
        found["variance_after"].append(variance(estimate_PD))
    return found


def mixing_matrices(inputs: Case) -> Case:
    """09; without the algebraic connectivity, for which fedpeer has no use."""
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


ADAPTERS: dict[str, Callable[[Case], Case]] = {
    "01a_push_sum_atomic": push_sum_atomic,
    "01b_push_sum_synchronous": push_sum_synchronous,
    "01c_push_sum_asynchronous": push_sum_asynchronous,
    "01d_push_pull_pairwise": push_pull_pairwise,
    "09_mixing_matrices": mixing_matrices,
}
