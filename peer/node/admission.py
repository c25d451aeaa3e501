"""The admission policy of a running peer: what a message is held against at this moment (`message_policy.py`)."""

from __future__ import annotations

from fedpeer.gossip.reductions import NOTHING
from fedpeer.gossip.successive import read_in
from fedpeer.gossip.transfers import WINDOW, Incoming, NumberedTransfer, Outgoing
from fedpeer.gossip.weight_limits import WeightLimits
from fedpeer.peer.state.node_state import NodeState
from fedpeer.peer.wire.leaf_bytes import content_bytes
from fedpeer.peer.wire.message_policy import ConsensusSpec, GroupSpec, MessagePolicy
from fedpeer.peer.wire.messages import Hello
from fedpeer.peer.wire.roster import AUTHORITY

#: Examples of one peer, where they are its weight, or what stands for them: more than any data set has, and exact in a
#: float.
WEIGHT_MAX = 1e12


def policy_of(life: NodeState, other: str | None) -> MessagePolicy:
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
            weight_max=_weight_max(life, other, id),
        )
        for id, group in life.circle.groups.items()
    } | {
        id: GroupSpec(
            length=group.length, forms={}, members=frozenset(group.members), neighbours=frozenset(), weight_max=0.0
        )
        for id, group in life.circle.elsewhere.items()
    }
    return MessagePolicy(
        federation=life.circle.roster.federation_id,
        me=life.me,
        incarnation=life.ledger.incarnation,
        other=other,
        peers=frozenset(life.circle.peers) | ({AUTHORITY} if other == AUTHORITY else set()),
        groups=groups,
        councils=_councils(life),
        version=life.version_of(other or ""),
    )


def weight_limits(life: NodeState, group: str) -> WeightLimits:
    """How much weight may go from one member of this group to another, and be held by one."""
    members, union = len(life.circle.groups[group].members), life.circle.averaging[group].overlay.union
    if life.setup.federation.learning.weights == "uniform" and not life.setup.own_weights:
        return WeightLimits.among(members, both_ways=not union.is_directed())
    return WeightLimits.among(members, WEIGHT_MAX, both_ways=False)


def note_roster(life: NodeState, peer: str, incarnation: int, hello: Hello) -> None:
    """Note by which roster a peer goes now, and up to which number its transfers may have been made under another.

    On a lane no more than WINDOW are open, so who says that it has made more gains nothing.
    """
    other, went_over = life.others[peer], (hello.roster, incarnation)
    other.roster = hello.roster
    if other.made_before[0] == went_over:
        return
    taken = {group: holding.into.get(peer, Incoming()).taken for group, holding in life.ledger.groups.items()}
    made = {lane.group: min(lane.made, taken.get(lane.group, 0) + WINDOW) for lane in hello.lanes}
    other.made_before = went_over, made
    life.changed()


def may_precede(life: NodeState, peer: str, group: str, number: int) -> bool:
    """Return whether the transfer of this number may have been made under another roster than ours.

    Limits follow from how many members there are, so what was legal there may be beyond ours: that is refused, and
    proves nothing.
    """
    other = life.others[peer]
    return other.roster != life.circle.roster.number or number <= other.made_before[1].get(group, 0)


def weight_refusal(life: NodeState, peer: str, group: str, parcel: NumberedTransfer) -> str | None:
    """Return the code by which a share is refused for its weight; None if it is not."""
    limits, holding = weight_limits(life, group), life.ledger.groups[group]
    out, incoming = holding.out.get(peer, Outgoing()), holding.into.get(peer, Incoming())
    before, told = holding.before.get(peer, 0.0), life.version_of(peer) > 1
    code: str | None = limits.refusal(out, incoming, holding.weight, parcel.weight, before, told=told)
    if parcel.weight > limits.share:
        code = "bad_weight"
    return "no_room" if code == "bad_weight" and may_precede(life, peer, group, parcel.seq) else code


def _weight_max(life: NodeState, other: str | None, group: str) -> float:
    """Return the most that a share of this peer can weigh, whichever roster it was made under."""
    if other not in life.others:
        return WEIGHT_MAX
    holding = life.ledger.groups.get(group)
    lane = Incoming() if holding is None else holding.into.get(other, Incoming())
    return WEIGHT_MAX if may_precede(life, other, group, lane.taken + 1) else weight_limits(life, group).share


def _councils(life: NodeState) -> dict[str, ConsensusSpec]:
    """Those of this peer, and by name those of others, in which it has no part."""
    specs = {}
    if life.circle.councils:
        for id, group in life.circle.elsewhere.items():
            specs[id] = ConsensusSpec(members=frozenset(group.members), update_bytes=(0, 0), model_bytes=(0, 0))
    for id, council in life.circle.councils.items():
        course = life.courses[id]
        updates, models = (course.update_bytes, course.update_bytes), content_bytes(course.server_bytes)
        specs[id] = ConsensusSpec(
            members=council.members,
            update_bytes=updates,
            model_bytes=models,
            update_fault=course.fault,
            model_fault=course.model_fault,
        )
    return specs


def _neighbours(life: NodeState, group: str) -> frozenset[str]:
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
