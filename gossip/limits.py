"""Bounds at which a channel or a peer pauses, for `transfers.py` and for scalar gossip at scale."""

from __future__ import annotations

#: Transfers that a channel may have open before it rests. With one, a channel would rest while an answer travels; with
#: more than two, a cut edge would take more than its peer can spare.
WINDOW = 2

#: A peer below this fraction of its initial weight waits until it has received a share. Its estimate is a quotient of
#: two small numbers by then, and the shares that it could give would help no one.
REST_BELOW = 1 / 16

#: The same fraction in synchronous exchanges, where neighbors wait for its share: a resting peer would keep them
#: waiting until their deadline, and the average would not be that of the mixing matrices. On a graph that is drawn anew
#: a peer may receive nothing in several exchanges, by chance. The fraction only keeps neighbors that take and never
#: give from driving the weight to zero.
REST_BELOW_SYNCHRONOUS = 2.0**-30

#: Weight under way, as a fraction of the weight held, above which a peer waits: up to it, two thirds of its own weight
#: are still in its hands.
UNDER_WAY_MAX = 1 / 2
