"""Push-pull: two peers meet in the middle, in one exchange that no other peer may interrupt.

The peer that begins sends half of its mass; the other answers with half of what it held *before* it takes the request
in, and each adds what it received. If the answer were given after the merge, the pair would end at (3a + b) / 4 and
(a + b) / 2 and the average would drift. Both sides are single shares of push-sum, so that rounding and lost messages
lose nothing here either. Between request and answer the peer that began must not change what it kept.

Source: Jelasity, Montresor, Babaoglu, Gossip-based aggregation in large dynamic networks, 2005.
"""

from __future__ import annotations

import torch

from fedpeer.gossip.mass import Mass
from tests.reference.push_sum import receive, share_of


def request(held: Mass, *, wire: torch.dtype = torch.float64) -> tuple[Mass, Mass]:
    """Return the half of the peer that begins: (kept until the answer comes, request)."""
    return share_of(held, 0.5, wire=wire)


def respond(held: Mass, request: Mass, *, wire: torch.dtype = torch.float64) -> tuple[Mass, Mass]:
    """Return the half of the other peer: (merged, answer), the answer taken from what it held before."""
    kept, answer = share_of(held, 0.5, wire=wire)
    return receive(kept, request), answer


def exchange(mine: Mass, theirs: Mass, *, wire: torch.dtype = torch.float64) -> tuple[Mass, Mass]:
    """Run a whole exchange: both hold the mean of the two masses, up to the rounding of the wire."""
    kept, options = request(mine, wire=wire)
    theirs, answer = respond(theirs, options, wire=wire)
    return receive(kept, answer), theirs
