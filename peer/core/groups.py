"""What one peer needs of a plan: its averaging groups, each with its members and with its scalars' places in x_n.

A plan speaks of all peers; a peer knows its own network and a list of ids, which changes as peers come and go. Peers
whose networks differ compile with their own, and compare the groups' digests when they meet.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedpeer.slicing.plan import Plan


@dataclass(frozen=True, eq=False)
class PeerGroup:
    """One averaging group, as one of its members has it.

    members    ids in the order of the plan's peers, the peer itself among them
    length     D
    index_D    (D,) int64, in canonical order: where its scalars lie in the peer's x_n
    digest     (32 bytes) of what the scalars are; two peers that agree on it may average
    """

    id: str
    members: tuple[str, ...]
    length: int
    index_D: Tensor
    digest: bytes


@dataclass(frozen=True, eq=False)
class PeerPlan:
    """All groups of one peer, by id."""

    peer: str
    groups: dict[str, PeerGroup]


def peer_plan(plan: Plan, peer: str) -> PeerPlan:
    """The peer's part of a plan. The arrays are the plan's own, not copies."""
    groups = {
        group.id: PeerGroup(
            id=group.id,
            members=group.members,
            length=group.length,
            index_D=torch.from_numpy(group.indices[peer]),
            digest=bytes.fromhex(group.digest),
        )
        for group in plan.groups_of(peer)
    }
    return PeerPlan(peer, groups)
