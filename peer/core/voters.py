"""From a roster to those who decide in coordinated rounds."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from fedpeer.gossip.ballots import Electorate
from fedpeer.peer.core.roster import Roster

#: The council of an algorithm with a server: all peers of the roster.
EVERYONE = "everyone"


@dataclass(frozen=True, slots=True)
class PeerCouncil:
    """One council, as one of its members has it.

    members    ids of all who learn in it
    digest     (32 bytes) of what they learn; two peers that agree on it may learn together
    """

    members: Set[str]
    digest: bytes


def electorate(roster: Roster) -> Electorate:
    """All peers of the roster, and those of them who count for majorities."""
    voters = frozenset(entry.id for entry in roster.entries if entry.voter)
    return Electorate(roster.number, voters, frozenset(roster.by_id))
