"""Consensus groups as a durable state stores them, from a peer's groups: places and blank consensus states."""

from __future__ import annotations

from torch import Tensor

from fedpeer.peer.state.consensus_state import ConsensusState
from fedpeer.peer.state.setup import PeerGroups
from fedpeer.peer.wire.consensus_messages import CommitState


def consensus_places(peer_groups: PeerGroups, client: bytes) -> tuple[dict[str, Tensor], dict[str, ConsensusState]]:
    """Return the places (D,) of each group's scalars and blank consensus states, as `DurableState.seated` takes them.

    `client` is the client's first state under a server; b"" without one.
    """
    places = {
        id: consensus.index_D
        for id, consensus in peer_groups.consensus_by_group.items()
        if consensus.index_D is not None
    }
    consensus_states = {}
    for id, consensus in peer_groups.consensus_by_group.items():
        everybody = consensus.voter_set(peer_groups.roster)
        consensus_states[id] = ConsensusState(client, CommitState(everybody.number), {everybody.number: everybody})
    return places, consensus_states
