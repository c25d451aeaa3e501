"""When a channel rests, and when a peer does: the bounds of `transfers.py`, which large simulations (`channels.py`)
keep too.
"""

from __future__ import annotations

#: Transfers that a channel may have open before it rests. With one, a channel rests while an answer travels; with more
#: than two, a cut edge takes more than its peer can spare.
WINDOW = 2

#: A peer with less than this part of the weight it started with waits until it has received. Its estimate is a
#: quotient of two small numbers by then, and the shares it could give would not help anybody.
REST_BELOW = 1 / 16

#: The same where a share is given for a share. There a peer that rests gives nothing to neighbours that wait for it, so
#: all lose a deadline, and it gets shares back anyway. This part only keeps a neighbour that takes and never gives from
#: driving the weight to zero.
REST_BELOW_MUTUAL = 2.0**-30

#: Weight under way, as a part of what is held, above which a peer waits: it then has at least two thirds of its own.
UNDER_WAY_MAX = 1 / 2
