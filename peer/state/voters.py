"""From a roster to those who decide in coordinated rounds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Set
from dataclasses import dataclass

from torch import Tensor

from fedpeer.peer.wire.ballots import VoterSet
from fedpeer.peer.wire.roster import Roster

#: The consensus group of an algorithm with a server: all peers of the roster.
EVERYONE = "everyone"


@dataclass(frozen=True, eq=False)
class ConsensusGroup:
    """One consensus group, as one of its members has it.

    members      ids of all who learn in it
    digest       (32 bytes) of what they learn; two peers that agree on it may learn together
    voter set   those who decide in it by a roster
    index_D      (D,) int64, where equals average by a coordinator: where the group's scalars lie in the peer's x_n
    """

    members: Set[str]
    digest: bytes
    voter_set: Callable[[Roster], VoterSet]
    index_D: Tensor | None = None


def voter_set(roster: Roster, among: Collection[str] | None = None) -> VoterSet:
    """All peers of the roster, or those of a group, and those of them who count for majorities: all where none is a
    voter."""
    members = frozenset(roster.by_id if among is None else roster.by_id.keys() & set(among))
    voters = frozenset(entry.id for entry in roster.entries if entry.voter and entry.id in members)
    return VoterSet(roster.number, voters or members, members)
