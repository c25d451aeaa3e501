"""Lost memory: how two peers find out, and how the one that forgot comes back without harm to the others' accounts.

Both ends of a channel know sums of weight, made and taken, and `meet` compares them. Who remembers less than the other
comes back as a new incarnation with weight 1 and fresh channels, and says so; the other then does `reopened`.
Let one incarnation of a peer, in one group, have an account: what it put in (its weight at the start) and what it
wrote off. Then, of weights, for each peer by itself at every moment,

    held = put in - written off + sum over its channels as they are now (taken - made)                              (1)

Each event keeps it: `give` lowers held and raises made by the same weight, `take` raises held and taken. When the
neighbour is a new incarnation, `reopened` sets made and taken of the channels to 0 and gives the open transfers back:
the right side gains made - taken, the left one the returned weight r, so that written off grows by

    (made - r) - taken                                                                                           (2)

which is what went to the earlier incarnation less what came from it: its net gain on this channel, known here exactly.
A new incarnation opens a new account with put in 1, written off 0, held 1, no channels: (1) holds, and the old account
disappears whole, with what it wrote off. On a channel between two incarnations that both live, made = taken + open,
open counting transfers not yet taken. Summed over all who live, the channels cancel to those open transfers:

    held + open not yet taken = put in - written off                                                             (3)

exactly, once every neighbour has met the new incarnation; until then an old channel counts as if already reopened. (2)
may be negative: mass that the earlier incarnation had passed on before it forgot is there twice. Two that forget at
once need no rule: both open new accounts, and the channel between them has no end that remembers it. Values follow the
weights: every share is a positive part of some estimate, so estimates stay in the hull of the inputs (up to the
rounding of the form).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedpeer.gossip.mass import Mass
from fedpeer.gossip.reductions import Form
from fedpeer.gossip.transfers import Incoming, Outgoing, carried

#: How far an incarnation may be ahead of the one known: nobody loses memory that often between two meetings.
INCARNATION_AHEAD_MAX = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelMemory:
    """What one end remembers of the two channels between two peers, and says in a Hello: of its own transfers the
    highest
    made and known to be taken, of the other's the highest taken, and the weights of all made and of all taken."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLoss:
    """Which of two peers that meet has lost memory. Neither: `acknowledged` with what the other has taken, go on."""

    mine: bool
    theirs: bool


def meet(out: Outgoing, incoming: Incoming, theirs: ChannelMemory) -> MemoryLoss:
    """Compare what I remember with what the other says; each finds its own loss and the other's, and both the same.

    Of what I made, they must have taken between what I know to be taken and what I made, and with the same weights; so
    the other way round. A maker that forgot and then made other transfers under the old numbers is betrayed by the
    sums, which are sums of the same numbers in the same order and so equal to the last bit; one that made them with the
    very same weights by the verdict REUSED, which tells it the same.
    """
    mine = (
        theirs.taken > out.made
        or theirs.acked > incoming.taken
        or (theirs.taken >= out.acked and out.weight_until(theirs.taken) != theirs.taken_weight)
    )
    forgot = (
        theirs.taken < out.acked
        or theirs.made < incoming.taken
        or (theirs.made == incoming.taken and theirs.made_weight != incoming.taken_weight)
    )
    return MemoryLoss(mine=mine, theirs=forgot)


def reopened(held: Mass, out: Outgoing, incoming: Incoming, form: Form) -> tuple[Mass, float]:
    """The other is a new incarnation: (held with my open transfers back, weight written off).

    From here on both channels are new: `Outgoing()` and `Incoming()`. Written off is what went to the earlier
    incarnation for good, `out.acked_weight`, less what came from it, `incoming.taken_weight`; see (2) above.
    """
    written_off = out.acked_weight - incoming.taken_weight
    reference_D = out.reference_D
    for share in out.open:
        carried_D, reference_D = carried(share, form, held.value_D.shape[-1], reference_D)
        held = held + Mass(carried_D, torch.tensor(share.weight, dtype=torch.float64))
    return held, written_off


def fence(spoken: int, known: int) -> str | None:
    """The refusal of something said by, or to, this incarnation of a peer when another is known; None if it is right.

    A newer one is right only in a Hello, which makes it the known one.
    """
    if spoken < known:
        return "stale_incarnation"
    return "incarnation_jump" if spoken > known + INCARNATION_AHEAD_MAX else None
