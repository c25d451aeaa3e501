"""Lost memory: how two peers detect it, and how the one that lost it returns without harm to the others' accounts.

Both ends of a channel know sums of weight, made and taken, and compare them when they meet. A peer that has signed more
than it remembers (`peer/node/reminders.py`) returns as a new incarnation with weight 1 and fresh channels, and
announces it; the other then calls `reopened`. Let each incarnation of a peer have an account in each group: the weight
that it put in at its start, and the weight that it wrote off. Then the weights of each single peer satisfy at every
moment

    held = put in - written off + sum over its channels as they are now (taken - made)                              (1)

Each event preserves it: `give` lowers held and raises made by the same weight, `take` raises held and taken. When the
neighbor is a new incarnation, `reopened` sets made and taken of the channels to 0 and returns the open transfers: the
right side gains made - taken, the left one the returned weight r, so that written off grows by

    (made - r) - taken                                                                                           (2)

which is what went to the earlier incarnation less what came from it: its net gain on this channel, known here exactly.
A new incarnation opens a new account with put in 1, written off 0, held 1, no channels: (1) holds, and the old account
disappears as a whole, with what it wrote off. On a channel between two current incarnations made = taken + open, where
open counts transfers not yet taken. Summed over all current incarnations, the channels cancel to those open transfers:

    held + open not yet taken = put in - written off                                                             (3)

exactly, once every neighbor has met the new incarnation; until then an old channel counts as if already reopened. (2)
may be negative: mass that the earlier incarnation had passed on before it lost its memory then exists twice. Two peers
that lose their memory at once need no rule: both open new accounts, and neither end of the channel between them
remembers it. Values follow the weights: every share is a positive multiple of some estimate, so estimates stay in the
hull of the inputs (up to the form's rounding).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedpeer.gossip.mass import Mass
from fedpeer.gossip.reductions import Form
from fedpeer.gossip.transfers import Incoming, Outgoing, carried

#: How far an incarnation may be ahead of the known one: no peer loses its memory that often between two handshakes.
INCARNATION_AHEAD_MAX = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelMemory:
    """One end's memory of the two channels between two peers, as it is sent in a Hello.

    made          highest number of its own transfers
    acked         highest number of its own transfers that is known to be taken
    taken         highest number that it has taken of the other's transfers
    made_weight   sum of the weights of all transfers made
    taken_weight  sum of the weights of all transfers taken
    """

    made: int
    acked: int
    taken: int
    made_weight: float
    taken_weight: float


def memory(out: Outgoing, incoming: Incoming) -> ChannelMemory:
    return ChannelMemory(
        made=out.made,
        acked=out.acked,
        taken=incoming.taken,
        made_weight=out.weight_until(out.made),
        taken_weight=incoming.taken_weight,
    )


def reopened(held: Mass, out: Outgoing, incoming: Incoming, form: Form) -> tuple[Mass, float]:
    """Return (the mass held with all open transfers returned, the weight written off) when a new incarnation is met.

    From here on both channels are new: `Outgoing()` and `Incoming()`. The weight written off is the weight that the
    earlier incarnation took, `out.acked_weight`, less the weight that came from it, `incoming.taken_weight`; see (2).
    """
    written_off = out.acked_weight - incoming.taken_weight
    reference_D = out.reference_D
    for share in out.open:
        carried_D, reference_D = carried(share, form, held.value_D.shape[-1], reference_D)
        held = held + Mass(carried_D, torch.tensor(share.weight, dtype=torch.float64))
    return held, written_off


def fence(spoken: int, known: int) -> str | None:
    """Return a rejection's code if a message from or to incarnation `spoken` of a peer does not fit the known one.

    None if it fits, or is newer; only a Hello may introduce a newer incarnation, which becomes the known one.
    """
    if spoken < known:
        return "stale_incarnation"
    return "incarnation_jump" if spoken > known + INCARNATION_AHEAD_MAX else None
