"""Which of two honest peers that meet has lost memory, by all that both know: the twin of signed reminders."""

from __future__ import annotations

from dataclasses import dataclass

from fedpeer.gossip.incarnations import ChannelMemory
from fedpeer.gossip.transfers import Incoming, Outgoing


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLoss:
    """The peers, of two that meet, that have lost memory.

    If neither has, they go on with `acknowledged` and the number that the other has taken.
    """

    mine: bool
    theirs: bool


def meet(out: Outgoing, incoming: Incoming, theirs: ChannelMemory) -> MemoryLoss:
    """Compare this peer's memory of two channels with the other's; both ends come to the same result.

    The number that the other has taken must be at least the number known here to be taken and at most the number made
    here, with the same weights; the same holds in the other direction. A sender that lost its memory and then made
    other transfers under old numbers is found by the sums of weights: both ends add the same numbers in the same order,
    so honest sums are equal to the last bit. If the new transfers had the very same weights, the decision REUSED has
    the same effect.
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
