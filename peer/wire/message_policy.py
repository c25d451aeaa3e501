"""What is known of the other side of a link: what a message from there is held against, before its tail is read.

Nothing here depends on earlier messages; `message_spec.py` has the checks, and `admission.py` makes a policy out of the
state of a running peer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import TypeAlias

from fedpeer.gossip.reductions import Form
from fedpeer.peer.wire.versions import NEWEST
from fedpeer.rejection import Rejection

#: What is wrong with the numbers in a content, if anything.
Check: TypeAlias = Callable[[bytes], Rejection | None]


def nothing_wrong(content: bytes) -> Rejection | None:
    """A check that any content passes."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """What may be said about one averaging group.

    length       D
    forms        in which a transfer may travel, by name
    members      all of the group; `neighbours`: those who may make transfers to us
    weight_max   finite: the most weight that a share can have, the sum of all members'
    """

    length: int
    forms: Mapping[str, Form]
    members: Set[str]
    neighbours: Set[str]
    weight_max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsensusSpec:
    """What may be said in one consensus group: the members of a group who learn by coordinated rounds.

    members        all of them
    update_bytes   bytes of an update's content, the least and the most
    model_bytes    of a model's
    update_fault, model_fault    what is wrong with one of them
    """

    members: Set[str]
    update_bytes: tuple[int, int]
    model_bytes: tuple[int, int]
    update_fault: Check = nothing_wrong
    model_fault: Check = nothing_wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagePolicy:
    """What a message is held against.

    federation, me, incarnation    ours
    other    who speaks, as the certificate says; None without certificates (plain HTTP): then the envelope says it
    peers    all in the roster
    groups   every group of the federation by id, also those in which we have no part
    consensus groups by group, also those in which we have no part; none where equals average
    version  of the wire, in which it is answered
    """

    federation: bytes
    me: str
    incarnation: int
    other: str | None
    peers: Set[str]
    groups: Mapping[str, GroupSpec]
    consensus_by_group: Mapping[str, ConsensusSpec] = field(default_factory=dict)
    version: int = NEWEST
