"""From a circle to what the ledger keeps of its councils: where their scalars lie, and chambers that are empty yet."""

from __future__ import annotations

from torch import Tensor

from fedpeer.peer.state.consensus_state import ConsensusState
from fedpeer.peer.state.node_state import PeerGroups
from fedpeer.peer.wire.ballots import CommitState


def consensus_places(circle: PeerGroups, client: bytes) -> tuple[dict[str, Tensor], dict[str, ConsensusState]]:
    """For `Ledger.seated`; `client` is the state with which this peer's client starts, where there is a server."""
    places = {id: council.index_D for id, council in circle.councils.items() if council.index_D is not None}
    chambers = {}
    for id, council in circle.councils.items():
        everybody = council.electorate(circle.roster)
        chambers[id] = ConsensusState(client, CommitState(everybody.number), {everybody.number: everybody})
    return places, chambers
