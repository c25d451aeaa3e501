"""Message policy: what the checks before a tail is read need to know of the sender, the groups and this peer.

Nothing here depends on earlier messages; `message_spec.py` has the checks, and `admission.py` makes the policy from the
state of a running peer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import TypeAlias

from fedpeer.gossip.reductions import Form
from fedpeer.peer.wire.versions import NEWEST
from fedpeer.rejection import Rejection

#: Returns what is wrong with the numbers in a content, if anything.
Check: TypeAlias = Callable[[bytes], Rejection | None]


def nothing_wrong(content: bytes) -> Rejection | None:
    """Accept any content."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """Bounds of messages about one averaging group.

    length       number of its parameters, D
    forms        wire encodings that a transfer may have, by name
    members      all members of the group
    neighbors   members that may make transfers to us
    weight_max   most weight that a share can have: the sum of all members' weights; finite
    """

    length: int
    forms: Mapping[str, Form]
    members: Set[str]
    neighbors: Set[str]
    weight_max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsensusSpec:
    """Bounds of messages in one consensus group: the members of a group that learn by coordinated rounds.

    members                     all members of the group
    update_bytes, model_bytes   least and most bytes of an update's and of a model's content
    update_fault, model_fault   return what is wrong with an update's or a model's content, if anything
    """

    members: Set[str]
    update_bytes: tuple[int, int]
    model_bytes: tuple[int, int]
    update_fault: Check = nothing_wrong
    model_fault: Check = nothing_wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagePolicy:
    """Policy that a message is checked against before its tail is read.

    federation           (16 bytes) our federation
    me, incarnation      our own
    other                sender by its certificate; None without certificates (plain HTTP): the envelope's sender counts
    peers                all peers in the roster
    groups               every averaging group of the federation by id, including groups without this peer
    consensus_by_group   every consensus group by group, including those without this peer; empty without coordinators
    version              of the wire, for answers
    """

    federation: bytes
    me: str
    incarnation: int
    other: str | None
    peers: Set[str]
    groups: Mapping[str, GroupSpec]
    consensus_by_group: Mapping[str, ConsensusSpec] = field(default_factory=dict)
    version: int = NEWEST
