"""What somebody signed who was put out since: it counts as what it was, by the key of the roster that it stood in.

A coordinator's votes and a round's acceptances are passed on for as long as they matter, and somebody who signed them
may be put out meanwhile. Who was there then checked them then; who comes or comes back later looks the key up in the
earlier rosters that its consensus group keeps. Whether the signer's word counts is the machine's business: it does
where the voter set of that time is spoken of, and in no later one. A peer that is still there speaks by its present key
only.
"""

from __future__ import annotations

from functools import lru_cache

from fedpeer.gossip.claims import Verify
from fedpeer.peer.state.node_state import NodeState
from fedpeer.peer.wire.roster import Roster, from_bytes, verify_statement


def attested(state: NodeState, group: str, verify: Verify) -> Verify:
    """`verify`, and for who is in the present roster no more by the keys of the earlier ones that the consensus state
    has.
    """

    def verified(author: str, text: bytes, signature: bytes) -> bool:
        if verify(author, text, signature):
            return True
        present = state.peer_groups.roster
        if author in present.by_id:
            return False
        earlier = map(_read, state.durable.chambers[group].rosters.values())
        keys = {each.by_id[author].key for each in earlier if author in each.by_id}
        return any(verify_statement("claim", present.federation_id, text, key, signature) for key in keys)

    return verified


@lru_cache(maxsize=16)
def _read(text: bytes) -> Roster:
    return from_bytes(text)
