"""View of a node at one moment, for the status: read only.

The audit is what one peer alone can check of the conservation of mass (promise P1): what it put in, plus what it took,
less what it gave and what was written off, is what it holds. Summed over all peers it is the law itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedpeer.peer.consensus.round_consensus import RoundConsensus
from fedpeer.peer.node.node import Node
from fedpeer.peer.node.rounds import expected_averaging
from fedpeer.peer.runtime.status import ConsensusView, GroupView, NodeView, PeerState, PeerView, State
from fedpeer.peer.state.durable_state import GroupState


def view_of(node: Node, heard_s: Mapping[str, float], lag_ms_p99: float = 0.0) -> NodeView:
    """Return the node's current view.

    Args:
        heard_s: by id the seconds since another peer's last message; peers that never sent one are missing.
        lag_ms_p99: 99th percentile of the event loop's lag, in milliseconds.
    """
    durable, roster = node.durable, node.state.peer_groups.roster
    return NodeView(
        state=_state(node),
        round=min(durable.round, node.setup.federation.learning.rounds),
        incarnation=durable.incarnation,
        life=durable.generation,
        roster=roster.number,
        peers=tuple(_peer(node, entry.id, entry.address, heard_s) for entry in roster.entries),
        groups=tuple(_group(node, id) for id in sorted(node.state.peer_groups.groups) if id in durable.groups),
        lag_ms_p99=lag_ms_p99,
        consensus_by_group=tuple(
            _consensus_view(node, consensus) for _, consensus in sorted(node.consensus_by_group.items())
        ),
        alone_s=node.rounds.alone_for(node.state) * node.setup.federation.gossip.tick,
        stalled_s=node.rounds.stalled_for(node.state) * node.setup.federation.gossip.tick,
    )


def _state(node: Node) -> State:
    match node.phase:
        case "learning":
            working = node.rounds.training if node.client is None else node.client.working
            return "training" if working else "averaging"
        case "starting":
            return "gathering"
        case "stopped":
            return "paused"
        case phase:
            return phase


def _peer(node: Node, peer: str, address: str, heard_s: Mapping[str, float]) -> PeerView:
    node_state, rounds = node.state, node.setup.federation.learning.rounds
    if peer == node_state.me:
        return PeerView(
            id=peer, state="me", address=address, round=min(node.durable.round, rounds), score=node_state.score
        )
    statement, other = node_state.membership.last_statement(peer), node_state.others.get(peer)
    advert = statement.advert if statement is not None else None
    state: PeerState = node_state.membership.status(peer)
    return PeerView(
        id=peer,
        state=state,
        address=address,
        round=min(rounds, max(advert.round if advert else 0, other.round if other else 0)),
        score=advert.score if advert else None,
        heard_s=heard_s.get(peer),
    )


def _group(node: Node, id: str) -> GroupView:
    state, holding = node.state, node.durable.groups[id]
    group, overlay = state.peer_groups.groups[id], expected_averaging(state, id).overlay
    name, me = overlay.members, state.me
    edges = sorted({tuple(sorted((name[a], name[b]))) for a, b in overlay.union.edges})
    return GroupView(
        id=id,
        models=tuple(id.split("+")),
        members=group.members,
        length=group.length,
        edges=tuple((a, b) for a, b in edges),
        neighbours=tuple(sorted({b if a == me else a for a, b in edges if me in (a, b)})),
        round=holding.at[0],
        exchange=holding.at[1],
        weight=holding.weight + sum(share.weight for channel in holding.out.values() for share in channel.open),
        start_weight=node.durable.rules.start_weight,
        # A peer that is alone has nobody to agree with, and an earlier measurement is outdated.
        disagreement=None if node.rounds.alone_for(state) else node.rounds.disagreement.get(id),
        waiting_for=holding.missing,
        written_off=holding.written_off,
        audit=audit(holding),
    )


def _consensus_view(node: Node, consensus: RoundConsensus) -> ConsensusView:
    state, round_commit = node.state, consensus.round_commit
    voter_set, counted = round_commit.election.voter_set, consensus.in_force.counted
    # A revoked peer votes until a committed round names the later roster, but no peer exchanges messages with it.
    known = voter_set.voters & state.others.keys()
    there = {peer for peer in known if state.others.present(peer)} | (voter_set.voters & {state.me})
    return ConsensusView(
        id=consensus.group,
        members=consensus.clients,
        coordinator=consensus.coordinator,
        term=round_commit.election.hard_state.term,
        round=consensus.applied,
        counted=tuple(peer for peer, last in counted.items() if last == consensus.applied),
        voters=tuple(sorted(voter_set.voters)),
        voters_there=tuple(sorted(there)),
        votes=consensus.consensus_state.votes,
        paused=consensus.paused,
        waiting_for=consensus.missing,
    )


def audit(holding: GroupState) -> float:
    """Return the error of this peer's own balance of weight in one group, relative to what it put in."""
    taken = sum(channel.taken_weight for channel in holding.into.values())
    given = sum(channel.weight_until(channel.made) for channel in holding.out.values())
    return abs(holding.put + taken - given - holding.written_off - holding.weight) / max(holding.put, 1e-30)
