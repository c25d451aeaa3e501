"""Signatures of peers that were revoked since: they are verified with the key of the roster that named the peer.

A coordinator's votes and a round's acceptances are passed on while they matter, and a peer that signed them may be
revoked meanwhile. Peers that were members then checked them then; peers that come or return later look the key up in
the earlier rosters that their consensus group keeps. Whether the signature counts is the machine's business: it does
under the voter set of that time, and under no later one. A peer that is still a member signs with its present key only.
"""

from __future__ import annotations

from functools import lru_cache

from fedpeer.gossip.claims import Verify
from fedpeer.peer.state.node_state import NodeState
from fedpeer.peer.wire.roster import Roster, from_bytes, verify_statement


def attested(state: NodeState, group: str, verify: Verify) -> Verify:
    """Return `verify`, extended to peers that only earlier rosters of the consensus state name."""

    def verified(author: str, text: bytes, signature: bytes) -> bool:
        if verify(author, text, signature):
            return True
        present = state.peer_groups.roster
        if author in present.by_id:
            return False
        earlier = map(_read, state.durable.consensus_states[group].rosters.values())
        keys = {each.by_id[author].key for each in earlier if author in each.by_id}
        return any(verify_statement("claim", present.federation_id, text, key, signature) for key in keys)

    return verified


@lru_cache(maxsize=16)
def _read(text: bytes) -> Roster:
    return from_bytes(text)
