"""Consensus groups and their voter sets, derived from a roster."""

from __future__ import annotations

from collections.abc import Callable, Collection, Set
from dataclasses import dataclass, replace

from torch import Tensor

from fedpeer.peer.wire.consensus_messages import VoterSet
from fedpeer.peer.wire.roster import Roster

#: The consensus group of an algorithm with a server: all peers of the roster.
EVERYONE = "everyone"


@dataclass(frozen=True, eq=False)
class ConsensusGroup:
    """One consensus group, as one of its members sees it.

    members      ids of the peers that learn in it
    digest       (32 bytes) of what they learn; two peers with the same digest may learn together
    voter_set    from a roster to the group's voter set
    index_D      (D,) int64 places of the group's scalars in the peer's x_n, if they are averaged; None: it has a server
    """

    members: Set[str]
    digest: bytes
    voter_set: Callable[[Roster], VoterSet]
    index_D: Tensor | None = None


def voter_set(roster: Roster, among: Collection[str] | None = None) -> VoterSet:
    """Return the voter set of a roster, of all its peers or those `among`.

    The peers marked as voters count for majorities; if none is marked, all count.
    """
    members = frozenset(roster.by_id if among is None else roster.by_id.keys() & set(among))
    voters = frozenset(entry.id for entry in roster.entries if entry.voter and entry.id in members)
    return with_keys(VoterSet(roster.number, voters or members, members), roster)


def with_keys(voter_set: VoterSet, roster: Roster) -> VoterSet:
    """Return a voter set with the keys that its roster names."""
    return replace(voter_set, keys={voter: roster.by_id[voter].key for voter in voter_set.voters})
