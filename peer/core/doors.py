"""The doors of a running peer: what a message is held against at this moment, as the codec needs it (`gate.py`)."""

from __future__ import annotations

from fedpeer.gossip.reductions import NOTHING
from fedpeer.gossip.successive import read_in
from fedpeer.gossip.weight_limits import WeightLimits
from fedpeer.peer.core.gate import CouncilSpec, Gate, GroupSpec
from fedpeer.peer.core.leaf_bytes import content_bytes
from fedpeer.peer.core.life import Life
from fedpeer.peer.core.roster import AUTHORITY

#: Examples of one peer, where they are its weight, or what stands for them: more than any data set has, and exact in a
#: float.
WEIGHT_MAX = 1e12


def gate_of(life: Life, other: str | None) -> Gate:
    """What a message from this other peer (None: not known without certificates) is held against now."""
    neighbours = {group: _neighbours(life, group) for group in life.circle.groups}
    rules = life.ledger.rules
    forms = read_in(rules.form) | ({NOTHING.name: NOTHING} if rules.drifts or rules.drifted else {})
    groups = {
        id: GroupSpec(
            length=group.length,
            forms=forms,
            members=frozenset(group.members),
            neighbours=neighbours[id],
            weight_max=weight_limits(life, id).share,
        )
        for id, group in life.circle.groups.items()
    } | {
        id: GroupSpec(
            length=group.length, forms={}, members=frozenset(group.members), neighbours=frozenset(), weight_max=0.0
        )
        for id, group in life.circle.elsewhere.items()
    }
    return Gate(
        federation=life.circle.roster.federation_id,
        me=life.me,
        incarnation=life.ledger.incarnation,
        other=other,
        peers=frozenset(life.circle.peers) | ({AUTHORITY} if other == AUTHORITY else set()),
        groups=groups,
        councils=_councils(life),
        version=life.version_of(other or ""),
    )


def weight_limits(life: Life, group: str) -> WeightLimits:
    """How much weight may go from one member of this group to another, and be held by one."""
    members, union = len(life.circle.groups[group].members), life.circle.averaging[group].overlay.union
    if life.setup.federation.learning.weights == "uniform" and life.setup.keeps is None:
        return WeightLimits.among(members, both_ways=not union.is_directed())
    return WeightLimits.among(members, WEIGHT_MAX, both_ways=False)


def _councils(life: Life) -> dict[str, CouncilSpec]:
    """Those of this peer, and by name those of others, in which it has no part."""
    specs = {}
    if life.circle.councils:
        for id, group in life.circle.elsewhere.items():
            specs[id] = CouncilSpec(members=frozenset(group.members), update_bytes=(0, 0), model_bytes=(0, 0))
    for id, council in life.circle.councils.items():
        course = life.courses[id]
        updates, models = (course.update_bytes, course.update_bytes), content_bytes(course.server_bytes)
        specs[id] = CouncilSpec(
            members=council.members,
            update_bytes=updates,
            model_bytes=models,
            update_fault=course.fault,
            model_fault=course.model_fault,
        )
    return specs


def _neighbours(life: Life, group: str) -> frozenset[str]:
    """Who may give us shares: along the overlay, or by an edge that it told us of; while somebody is missing, when
    peers may repair the overlay differently, any member."""
    policy = life.circle.averaging[group]
    members = policy.overlay.members
    if policy.exact or not all(peer == life.me or life.available(peer, group) for peer in members):
        return frozenset(members)
    union, me = policy.overlay.union, members.index(life.me)
    into = union.predecessors(me) if union.is_directed() else union.neighbors(me)
    giving = {peer for peer, other in life.others.items() if group in other.giving}
    return frozenset(giving | {members[i] for i in into})
