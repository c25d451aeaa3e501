"""The task of a clustering: which partial model needs members, and the inputs of the search for them.

The rules are in `algorithms/assignment.py`; `clustering_engine.py` carries them out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fedpeer.algorithms.assignment import AssignmentError, ClusteringSettings
from fedpeer.algorithms.draws import Draws
from fedpeer.config.choice import Choice
from fedpeer.config.clustering import NOBODY_SHARES, NOTHING_TO_SHARE, clustering_settings_of
from fedpeer.config.methods import method_of
from fedpeer.learning.groups import averaging_among, plan_for
from fedpeer.sims.vector.workspace import WorkspacePart
from fedpeer.sims.world import World
from fedpeer.slicing.plan import Group
from fedpeer.topology.overlay import Overlay

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ClusteringTask:
    """The partial model whose groups are to be found, and where its parameters are.

    name          the partial model
    clustering    the settings of the search
    slice_PD      indices in each peer's x_n of the parameters that the new groups will average
    compared_PD   indices in each peer's x_n of the parameters whose disagreement is compared: those averaged by all
                  that lead into the outputs, since these react first to differences between the tasks; if there are
                  none, all that are averaged by all
    overlay       the overlay of all peers, over which sketches and gains are flooded
    """

    name: str
    clustering: ClusteringSettings
    slice_PD: Indices
    compared_PD: Indices
    overlay: Overlay


def clustering_task_of(world: World, algorithm: Choice) -> ClusteringTask | None:
    """Return the clustering task of this algorithm, or None if it has none.

    Raises:
        AssignmentError, SlicingError: what does not fit, and what to change.
    """
    federation, peers = world.federation, world.peers
    if method_of(algorithm).sharing != "partial models" or not federation.automatic:
        return None
    name = federation.automatic[0]
    place = f"partial_models.{name}.members"
    clustering = clustering_settings_of(federation, name)
    everyone, candidate = (
        plan_for(each, world.networks, peers, algorithm) for each in (federation, federation.decided(name, "all"))
    )
    shared = [group for group in everyone.groups if group.members == peers]
    own = [group for group in candidate.groups if name in group.models]
    problem = None
    if not shared:
        problem = NOBODY_SHARES
    elif not own:
        problem = NOTHING_TO_SHARE
    elif min(len(share.train_M) for share in world.split.shares) < 2:
        problem = "a peer has only one example and can keep none back; give each peer two or more"
    if problem is not None:
        raise AssignmentError(f"{place}: {problem}")
    slice_PD, shared_PD = (_stacked(groups, peers) for groups in (own, shared))
    outputs = [part.name for part in world.network.parts].index(world.network.aliases.get("output", "output"))
    telling_D = world.network.out_part_n[shared_PD[0]] == outputs
    compared_PD = shared_PD[:, telling_D] if telling_D.any() else shared_PD
    overlay = averaging_among(peers, shared[0].id, federation.gossip, world.seed).overlay
    return ClusteringTask(name, clustering, slice_PD, compared_PD, overlay)


def _stacked(groups: Sequence[Group], peers: Sequence[str]) -> Indices:
    return np.concatenate([np.stack([group.indices[peer] for peer in peers]) for group in groups], axis=1)


def split_network(
    part: WorkspacePart, share: float, draws: Draws, peers: Sequence[str]
) -> tuple[WorkspacePart, WorkspacePart]:
    """Split the training examples for the time of the search: those to train on, and those that each peer keeps back.

    A peer keeps back this share of its examples, at least one and not all, drawn from the stream (seed, peer,
    "kept back").
    """
    sides: tuple[list[Indices], list[Indices]] = ([], [])
    for peer, (first, last) in zip(peers, zip(part.first_P1, part.first_P1[1:], strict=False), strict=True):
        order = draws.numpy("kept back", peer).permutation(last - first)
        kept = min(max(1, round(share * len(order))), len(order) - 1)
        for side, chosen in zip(sides, (order[kept:], order[:kept]), strict=True):
            side.append(first + np.sort(chosen))
    train, back = (_rows(part, side) for side in sides)
    return train, back


def _rows(part: WorkspacePart, rows: Sequence[Indices]) -> WorkspacePart:
    chosen = torch.from_numpy(np.concatenate(rows)).to(part.index_T.device)
    first_P1 = np.cumsum([0, *map(len, rows)])
    return WorkspacePart(part.index_T[chosen], part.y_T[chosen], tuple(int(first) for first in first_P1))


def kinds(world: World) -> list[int]:
    """Return the true kind of each peer, unknown to the peers: equal kinds see labels and features in the same way."""
    numbers: dict[tuple[bytes | None, ...], int] = {}
    maps = [(share.label_map_C, share.feature_map_F) for share in world.split.shares]
    return [numbers.setdefault(tuple(map(_words, pair)), len(numbers)) for pair in maps]


def _words(map_C: Indices | None) -> bytes | None:
    return None if map_C is None or np.array_equal(map_C, np.arange(len(map_C))) else map_C.tobytes()
