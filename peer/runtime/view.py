"""What a node looks like at one moment, for the status: read off, never changed.

The audit is what one peer alone can say about the conservation of mass (promise P1): what it put in, plus what it took,
less what it gave and what was written off, is what it holds. Summed over all peers it is the law itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedpeer.peer.consensus.round_consensus import RoundConsensus
from fedpeer.peer.node.node import Node
from fedpeer.peer.node.rounds import among_the_living
from fedpeer.peer.runtime.status import ConsensusView, GroupView, NodeView, PeerState, PeerView, State
from fedpeer.peer.state.durable_state import GroupState

#: Standings of a peer that can vote.
_THERE = {"alive", "suspect", "finished"}


def view_of(node: Node, heard_s: Mapping[str, float], lag_ms_p99: float = 0.0) -> NodeView:
    """The node now.

    Args:
        heard_s: seconds since each other peer was last heard; who is not in it never was.
        lag_ms_p99: delay of the event loop in milliseconds, 99th percentile.
    """
    ledger, roster = node.ledger, node.life.circle.roster
    return NodeView(
        state=_state(node),
        round=min(ledger.round, node.setup.federation.learning.rounds),
        incarnation=ledger.incarnation,
        life=ledger.life,
        roster=roster.number,
        peers=tuple(_peer(node, entry.id, entry.address, heard_s) for entry in roster.entries),
        groups=tuple(_group(node, id) for id in sorted(node.life.circle.groups) if id in ledger.groups),
        lag_ms_p99=lag_ms_p99,
        councils=tuple(_council(node, council) for _, council in sorted(node.councils.items())),
        alone_s=node.rounds.alone_for(node.life) * node.setup.federation.gossip.tick,
        stalled_s=node.rounds.stalled_for(node.life) * node.setup.federation.gossip.tick,
    )


def _state(node: Node) -> State:
    match node.phase:
        case "learning" if node.part is not None:
            return "training" if node.part.working else "averaging"
        case "learning":
            return "training" if node.rounds.training else "averaging"
        case "stopped":
            return "paused"
        case phase:
            return phase


def _peer(node: Node, peer: str, address: str, heard_s: Mapping[str, float]) -> PeerView:
    life, rounds = node.life, node.setup.federation.learning.rounds
    if peer == life.me:
        return PeerView(id=peer, state="me", address=address, round=min(node.ledger.round, rounds), score=life.score)
    said, other = life.membership.last_statement(peer), life.others.get(peer)
    advert = said.advert if said is not None else None
    state: PeerState = life.membership.standing(peer)
    return PeerView(
        id=peer,
        state=state,
        address=address,
        round=min(rounds, max(advert.round if advert else 0, other.round if other else 0)),
        score=advert.score if advert else None,
        heard_s=heard_s.get(peer),
    )


def _group(node: Node, id: str) -> GroupView:
    life, holding = node.life, node.ledger.groups[id]
    group, overlay = life.circle.groups[id], among_the_living(life, id).overlay
    name, me = overlay.members, life.me
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
        weight=holding.weight + sum(parcel.weight for lane in holding.out.values() for parcel in lane.open),
        start_weight=node.ledger.rules.start_weight,
        # Alone there is nobody to agree with: what was measured before says nothing about now.
        disagreement=None if node.rounds.alone_for(life) else node.rounds.disagreement.get(id),
        waiting_for=holding.missing,
        written_off=holding.written_off,
        audit=audit(holding),
    )


def _council(node: Node, council: RoundConsensus) -> ConsensusView:
    life, decrees = node.life, council.decrees
    electorate, counted = decrees.election.electorate, council.in_force()[0]
    # Who was put out votes until a round decrees the later roster, but nobody hears of it any more.
    known = electorate.voters & life.others.keys()
    there = {peer for peer in known if life.membership.standing(peer) in _THERE} | (electorate.voters & {life.me})
    return ConsensusView(
        id=council.group,
        members=council.clients,
        coordinator=council.coordinator,
        term=decrees.election.stand.term,
        round=council.applied,
        counted=tuple(peer for peer, last in counted.items() if last == council.applied),
        voters=tuple(sorted(electorate.voters)),
        voters_there=tuple(sorted(there)),
        votes=council.chamber.votes,
        paused=council.paused,
        waiting_for=council.missing,
    )


def audit(holding: GroupState) -> float:
    """Error of this peer's own account of weight in one group, relative to what was put in."""
    taken = sum(lane.taken_weight for lane in holding.into.values())
    given = sum(lane.weight_until(lane.made) for lane in holding.out.values())
    return abs(holding.put + taken - given - holding.written_off - holding.weight) / max(holding.put, 1e-30)
