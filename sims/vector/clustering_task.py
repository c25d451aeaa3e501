"""The tasks of a clustering: which partial models need members, and the inputs of the search for them.

The rules are in `algorithms/assignment.py`; `clustering_engine.py` carries them out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fedpeer.algorithms.assignment import AssignmentError, ClusteringSettings, ComparedBy, Floats, moments_in_parts
from fedpeer.algorithms.draws import Draws
from fedpeer.config.choice import Choice
from fedpeer.config.clustering import NOBODY_SHARES, NOTHING_TO_SHARE, clustering_settings_of
from fedpeer.config.methods import method_of
from fedpeer.learning.groups import averaging_among, plan_for
from fedpeer.sims.vector.workspace import WorkspacePart
from fedpeer.sims.world import World
from fedpeer.slicing.network import NONE, NetworkMap
from fedpeer.slicing.plan import Group
from fedpeer.topology.overlay import Overlay

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ClusteringTask:
    """A partial model whose groups are to be found, and where its parameters are.

    name          the partial model
    clustering    the settings of the search
    slice_PD      indices in each peer's x_n of the parameters that the new groups will average
    compared_PD   indices in each peer's x_n of the parameters that are compared. By updates: those that all peers
                  average and that lead into the outputs, since these react first to differences between the tasks; if
                  there are none, all that all peers average. By inputs or outputs: the model's own parameters at that
                  side of the network
    side_2D       row and column of each of these in the matrix whose `moments_in_parts` are compared, (2, D); None: by
                  updates
    overlay       the overlay of all peers, over which sketches and gains are flooded
    """

    name: str
    clustering: ClusteringSettings
    slice_PD: Indices
    compared_PD: Indices
    side_2D: Indices | None
    overlay: Overlay

    @property
    def compared(self) -> int:
        """Count of the numbers that are sketched."""
        return self.compared_PD.shape[1] if self.side_2D is None else int(self.side_2D[1].max() + 1) ** 2

    def moments_of(self, change_D: Floats) -> Floats:
        """Return the second moments of a peer's changes of the compared parameters, in parts (K, `compared`)."""
        assert self.side_2D is not None, "it is not compared by updates"
        change_RC = np.zeros(self.side_2D.max(axis=1) + 1)
        change_RC[tuple(self.side_2D)] = change_D
        return moments_in_parts(change_RC)


def clustering_tasks_of(world: World, algorithm: Choice) -> tuple[ClusteringTask, ...]:
    """Return the clustering tasks of this algorithm, one for each model with automatic members.

    Raises:
        AssignmentError, SlicingError: what does not fit, and what to change.
    """
    if method_of(algorithm).sharing != "partial models":
        return ()
    return tuple(_task_of(world, algorithm, name) for name in world.federation.automatic)


def _task_of(world: World, algorithm: Choice, name: str) -> ClusteringTask:
    federation, peers = world.federation, world.peers
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
    elif clustering.by == "updates" and min(len(share.train_M) for share in world.split.shares) < 2:
        problem = "a peer has only one example and can keep none back; give each peer two or more"
    if problem is not None:
        raise AssignmentError(f"{place}: {problem}")
    slice_PD, shared_PD = (_stacked(groups, peers) for groups in (own, shared))
    network, outputs = world.network, world.network.part("output")
    side_2D = None
    if clustering.by == "updates":
        telling_D = network.out_part_n[shared_PD[0]] == outputs
        compared_PD = shared_PD[:, telling_D] if telling_D.any() else shared_PD
    else:
        into_n, from_n = network.out_part_n[slice_PD[0]], network.in_part_n[slice_PD[0]]
        at_side_D = (from_n == network.part("input")) if clustering.by == "inputs" else (into_n == outputs)
        at_side_D &= from_n != NONE
        if not at_side_D.any():
            raise AssignmentError(f"{place}: by = {clustering.by}: it has no weights there; write by=updates")
        compared_PD = slice_PD[:, at_side_D]
        side_2D = _sides(network, compared_PD[0], clustering.by)
    overlay = averaging_among(peers, shared[0].id, federation.gossip, world.seed).overlay
    return ClusteringTask(name, clustering, slice_PD, compared_PD, side_2D, overlay)


def _sides(network: NetworkMap, index_D: Indices, by: ComparedBy) -> Indices:
    """Return each weight's row and column, (2, D); the columns are inputs, by position in a kernel, or outputs."""
    into_D2 = np.stack([network.out_part_n[index_D], network.out_neuron_n[index_D]], axis=1)
    from_D2 = np.stack([network.in_part_n[index_D], network.in_neuron_n[index_D]], axis=1)
    place_D1 = np.stack([network.tensor_n[index_D], network.place_n[index_D]], axis=1)
    sides = (into_D2, np.hstack([from_D2, place_D1])) if by == "inputs" else (np.hstack([from_D2, place_D1]), into_D2)
    return np.stack([np.unique(side, axis=0, return_inverse=True)[1].ravel() for side in sides])


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


def kinds(world: World, by: ComparedBy = "updates") -> list[int]:
    """Return each peer's true kind, unknown to the peers: one kind sees features, labels, or both in the same way."""
    numbers: dict[tuple[bytes | None, ...], int] = {}
    maps = [
        (None if by == "inputs" else share.label_map_C, None if by == "outputs" else share.feature_map_F)
        for share in world.split.shares
    ]
    return [numbers.setdefault(tuple(map(_words, pair)), len(numbers)) for pair in maps]


def _words(map_C: Indices | None) -> bytes | None:
    return None if map_C is None or np.array_equal(map_C, np.arange(len(map_C))) else map_C.tobytes()
