"""The doors of a running peer: what a message is held against at this moment, as the codec needs it (`gate.py`)."""

from __future__ import annotations

from fedpeer.gossip.reductions import FLOAT32
from fedpeer.peer.core.gate import CouncilSpec, Gate, GroupSpec
from fedpeer.peer.core.leaf_bytes import content_bytes
from fedpeer.peer.core.life import Life
from fedpeer.peer.core.roster import AUTHORITY

#: Examples of one peer, where they are its weight: more than any data set has, and exact in a float.
WEIGHT_MAX = 1e12


def gate_of(life: Life, other: str | None) -> Gate:
    """What a message from this other peer (None: not known without certificates) is held against now."""
    neighbours = {group: _neighbours(life, group) for group in life.circle.groups}
    form = life.ledger.rules.form
    forms = {each.name: each for each in (FLOAT32, form)}
    scale = 1.0 if life.setup.federation.learning.weights == "uniform" else WEIGHT_MAX
    groups = {
        id: GroupSpec(
            length=group.length,
            forms=forms,
            members=frozenset(group.members),
            neighbours=neighbours[id],
            weight_max=scale * len(group.members),
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
    )


def _councils(life: Life) -> dict[str, CouncilSpec]:
    course = life.course
    if course is None:
        return {}
    updates = (course.update_bytes, course.update_bytes)
    return {
        id: CouncilSpec(members=council.members, update_bytes=updates, model_bytes=content_bytes(course.server_bytes))
        for id, council in life.circle.councils.items()
    }


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
