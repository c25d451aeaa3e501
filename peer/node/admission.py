"""Admission policy of a running peer: what a message is checked against at this moment (`message_policy.py`)."""

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

#: Largest weight of one peer where weights are numbers of examples or an algorithm's own: more than any data set has,
#: and exact in a float.
WEIGHT_MAX = 1e12


def policy_of(state: NodeState, other: str | None) -> MessagePolicy:
    """Return the current policy for messages from this peer; None: an unknown sender, without certificates."""
    neighbors = {group: _neighbors(state, group) for group in state.peer_groups.groups}
    rules = state.durable.rules
    nothing = {NOTHING.name: NOTHING} if rules.drifts or rules.drifted else {}
    groups = {
        id: GroupSpec(
            length=group.length,
            forms=read_in(rules.form_of(id)) | nothing,
            members=frozenset(group.members),
            neighbors=neighbors[id],
            weight_max=_weight_max(state, other, id),
        )
        for id, group in state.peer_groups.groups.items()
    } | {
        id: GroupSpec(
            length=group.length, forms={}, members=frozenset(group.members), neighbors=frozenset(), weight_max=0.0
        )
        for id, group in state.peer_groups.elsewhere.items()
    }
    return MessagePolicy(
        federation=state.peer_groups.roster.federation_id,
        me=state.me,
        incarnation=state.durable.incarnation,
        other=other,
        peers=frozenset(state.peer_groups.peers) | ({AUTHORITY} if other == AUTHORITY else set()),
        groups=groups,
        consensus_by_group=_consensus_specs(state),
        version=state.others.version_of(other or ""),
    )


def weight_limits(state: NodeState, group: str) -> WeightLimits:
    """Return the limits of the weight that a member of this group may send to another, and hold."""
    members, union = len(state.peer_groups.groups[group].members), state.peer_groups.averaging[group].overlay.union
    if state.setup.federation.learning.weights == "uniform" and not state.setup.own_weights:
        return WeightLimits.among(members, both_ways=not union.is_directed())
    return WeightLimits.among(members, WEIGHT_MAX, both_ways=False)


def note_roster(state: NodeState, peer: str, incarnation: int, hello: Hello) -> None:
    """Note the roster that a peer uses now, and the highest number of a transfer that it may have made under another.

    At most WINDOW transfers are open on a channel, so a peer that states a higher number gains nothing.
    """
    other, went_over = state.others[peer], (hello.roster, incarnation)
    other.roster = hello.roster
    if hello.roster <= state.peer_groups.roster.number:
        other.later_since = None
    elif other.later_since is None:
        other.later_since = state.now
    if other.made_before[0] == went_over:
        return
    taken = {group: holding.into.get(peer, Incoming()).taken for group, holding in state.durable.groups.items()}
    made = {channel.group: min(channel.made, taken.get(channel.group, 0) + WINDOW) for channel in hello.channels}
    other.made_before = went_over, made
    state.others.changed()


def may_precede(state: NodeState, peer: str, group: str, number: int) -> bool:
    """Return whether the transfer of this number may have been made under another roster than ours.

    Limits follow from the number of members, so a transfer that was valid there may exceed ours: it is rejected, and
    proves nothing against its sender.
    """
    other = state.others[peer]
    return other.roster != state.peer_groups.roster.number or number <= other.made_before[1].get(group, 0)


def weight_refusal(state: NodeState, peer: str, group: str, share: NumberedTransfer) -> str | None:
    """Return the code by which a share is rejected for its weight; None if it is not."""
    limits, holding = weight_limits(state, group), state.durable.groups[group]
    out, incoming = holding.out.get(peer, Outgoing()), holding.into.get(peer, Incoming())
    before = holding.before.get(peer, 0.0)
    stated = state.others.version_of(peer) > 1 and group not in state.others[peer].unstated
    code: str | None = limits.refusal(out, incoming, holding.weight, share.weight, before, stated=stated)
    if share.weight > limits.share:
        code = "bad_weight"
    return "no_room" if code == "bad_weight" and may_precede(state, peer, group, share.seq) else code


def _weight_max(state: NodeState, other: str | None, group: str) -> float:
    """Return the largest weight that a share of this peer can have, whichever roster it was made under."""
    if other is None or other not in state.others:
        return WEIGHT_MAX
    holding = state.durable.groups.get(group)
    channel = Incoming() if holding is None else holding.into.get(other, Incoming())
    return WEIGHT_MAX if may_precede(state, other, group, channel.taken + 1) else weight_limits(state, group).share


def _consensus_specs(state: NodeState) -> dict[str, ConsensusSpec]:
    """Return the specs of all consensus groups; specs of groups without this peer name only their members."""
    specs = {}
    if state.peer_groups.consensus_by_group:
        for id, group in state.peer_groups.elsewhere.items():
            specs[id] = ConsensusSpec(members=frozenset(group.members), update_bytes=(0, 0), model_bytes=(0, 0))
    for id, consensus in state.peer_groups.consensus_by_group.items():
        spec = state.specs[id]
        updates, models = (spec.update_bytes, spec.update_bytes), content_bytes(spec.server_bytes)
        specs[id] = ConsensusSpec(
            members=consensus.members,
            update_bytes=updates,
            model_bytes=models,
            update_fault=spec.fault,
            model_fault=spec.model_fault,
        )
    return specs


def _neighbors(state: NodeState, group: str) -> frozenset[str]:
    """Return the members that may send us shares.

    They have an edge to us in the overlay, or announced one. While a member is not available, any member may: peers may
    repair the overlay differently.
    """
    policy = state.peer_groups.averaging[group]
    members = policy.overlay.members
    if policy.exact or not all(peer == state.me or state.others.available(peer, group) for peer in members):
        return frozenset(members)
    union, me = policy.overlay.union, members.index(state.me)
    into = union.predecessors(me) if union.is_directed() else union.neighbors(me)
    giving = {peer for peer, other in state.others.items() if group in other.giving}
    return frozenset(giving | {members[i] for i in into})
