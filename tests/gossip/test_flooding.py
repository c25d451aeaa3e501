"""Flooding compared with members simulated exchange by exchange, and with the paths in the graph."""

from __future__ import annotations

from collections.abc import Collection

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpeer.gossip.averaging import MESSAGE_HEAD_BYTES
from fedpeer.gossip.flooding import flood_along
from fedpeer.topology.graphs import complete, exponential, k_regular, one_peer_exponential, ring, star
from fedpeer.topology.overlay import Overlay, overlay

GRAPHS = [complete, exponential, k_regular, one_peer_exponential, ring, star]


def drawn(build: object, members: int, seed: int = 0) -> Overlay:
    return overlay(build, [f"peer{number}" for number in range(members)], np.random.default_rng(seed))  # type: ignore[arg-type]


def played(graph: nx.Graph, sources: Collection[int]) -> tuple[int, list[int], list[int]]:
    """Simulate members that each know what they received and from which neighbors.

    Return (exchanges, messages of each member, items sent by each member).
    """
    knows: list[dict[int, set[int]]] = [{member: set()} if member in sources else {} for member in range(len(graph))]
    new = [set(each) for each in knows]
    exchanges, messages, items = 0, [0] * len(graph), [0] * len(graph)
    while any(new):
        coming: list[dict[int, set[int]]] = [{} for _ in range(len(graph))]
        for member, fresh in enumerate(new):
            for neighbor in graph.neighbors(member):
                telling = {thing for thing in fresh if neighbor not in knows[member][thing]}
                if telling:
                    messages[member] += 1
                    items[member] += len(telling)
                for thing in telling:
                    coming[neighbor].setdefault(thing, set()).add(member)
        new = []
        for member, received in enumerate(coming):
            new.append(received.keys() - knows[member].keys())
            for thing, tellers in received.items():
                knows[member].setdefault(thing, set()).update(tellers)
        exchanges += any(new)
    assert all(set(each) == set(sources) for each in knows), "all hold everything"
    return exchanges, messages, items


@pytest.mark.parametrize("build", GRAPHS, ids=lambda build: build.__name__)
@pytest.mark.parametrize("members", [1, 2, 5, 12])
def test_it_is_what_the_members_play(build: object, members: int) -> None:
    made = drawn(build, members)
    for sources in (None, [0], range(0, members, 2), []):
        found = flood_along(made, sources)
        exchanges, messages, items = played(made.union, range(members) if sources is None else sources)
        assert (found.exchanges, found.messages_P.tolist(), found.items_P.tolist()) == (exchanges, messages, items)


@settings(max_examples=20)
@given(members=st.integers(2, 15), seed=st.integers(0, 5))
def test_all_have_everything_after_the_diameter_and_no_edge_tells_anything_twice(members: int, seed: int) -> None:
    made = drawn(k_regular, members, seed)
    found = flood_along(made)
    assert found.exchanges == nx.diameter(made.union)
    degree_P = np.array([made.union.degree(member) for member in range(members)])
    assert (found.items_P <= members * degree_P).all()
    # Each member must receive every other's item, and an item sent in vain crosses the same item on the same edge.
    assert members * (members - 1) <= found.items_P.sum() <= members * 2 * made.union.number_of_edges()


def test_on_a_tree_everything_goes_along_each_edge_once() -> None:
    made = drawn(star, 7)
    found = flood_along(made)
    assert found.items_P.sum() == 7 * 6
    # The centre sends its own item to six members, and each of theirs to five.
    assert found.items_P.tolist() == [6 + 6 * 5, *[1] * 6]


def test_bytes_are_those_of_the_things_and_of_a_head_a_message() -> None:
    found = flood_along(drawn(ring, 6))
    assert found.bytes_of(100).tolist() == (found.items_P * 100 + found.messages_P * MESSAGE_HEAD_BYTES).tolist()
