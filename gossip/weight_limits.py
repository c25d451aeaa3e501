"""How much weight a peer takes from a neighbour and gives to one, so that who lies cannot load it with what nobody has.

In a group of n members, each of whom puts in a weight of 1, there is a weight of n. Three bounds follow:

    share   a share weighs at most n
    net     what came from a neighbour less what went to it, over all its incarnations, is at most n - 1: all that the
            others ever put in
    held    what a peer holds, with what waits; but for what comes back to it on a channel

`net` is kept by those who give, who know both sums: `room` is what may still go to a neighbour. By t_ij(now) what i has
taken of j, by m_ji what j made for i: when j makes a share, m_ji <= net + t_ji(then). What i takes was made before, and
j has taken only what i made, so

    t_ij(now) <= m_ji(then) <= net + t_ji(then) <= net + m_ij(then) <= net + m_ij(now)

whatever is lost, late or repeated, and whatever anybody else does to the two: m only grows, but where a transfer comes
back for good (`Returned`), and then to what was taken. Who exceeds it has a program that does not keep it, and is
charged. Neither side can be stuck at the bound, since what one gives the other makes room for what that one gives; and
where weight flows back the way it came, as on every undirected graph with the shares of `averaging.py`, nobody comes
near it: all that could flow along an edge is what the others have.

Where edges lead in one direction, weight goes round in circles and `net` bounds nothing; `held` does. It is 2 n there,
twice all that there is, since a member that lost memory puts in 1 again: it stops nobody before as many members as
there are have lost memory at about the same time. A share for which there is no room is not refused for good: it stays
open with its sender, and there is room when the peer has given. So nobody is charged for that.

A neighbour that lost memory begins channels of its own, and knows nothing of the earlier ones. What its earlier
incarnations gave more than they got is `before`; the one who took it tells it in Hello, and both then go by a `net`
that is smaller by that. So over all incarnations of a neighbour its net is at most n - 1, and whoever takes holds at
most

    what it put in + (n - 1) net                                                                    (`held`)

of which each neighbour gives at most its part: there is always room for what `net` allows. Who is born again without
having lied gets from its neighbours about what it gives them, so that `before` stays near 0; were it ever at the bound,
it would give nothing until its neighbours, which are not bounded by it, have given something to it.

What liars can do: with h honest members and f that lie, what is there among the honest is at most what they put in and
what came from liars: h (1 + f (n - 1)), however often a liar is born again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fedpeer.gossip.transfers import Incoming, Outgoing

#: Relative rounding of sums of some million weights.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class WeightLimits:
    """The three bounds of one group; `net` is infinite where it does not hold."""

    share: float
    net: float
    held: float

    @staticmethod
    def among(members: int, start_weight_max: float = 1.0, *, both_ways: bool = True) -> WeightLimits:
        """In a group of so many, of whom each puts in at most `start_weight_max`; `both_ways`: who is given to gives
        back, and what is held is carried from one averaging to the next."""
        everything = members * start_weight_max
        if not both_ways:
            return WeightLimits(everything, math.inf, 2 * everything)
        net = everything - start_weight_max
        return WeightLimits(everything, net, start_weight_max + (members - 1) * net)

    def room(self, out: Outgoing, incoming: Incoming, before: float = 0.0) -> float:
        """How heavy the next share on a channel may be, by its sender's two ends; 0 or less: it has to wait.

        before: what the neighbour says to have got of this peer's earlier incarnations, more than it gave them.
        """
        # Who leaves gives the very last of it: rounding must leave nothing behind, and who takes allows for more of it.
        net = self.net * (1 + _ROUNDING / 2) - before + incoming.taken_weight - out.weight_until(out.made)
        return min(self.share * (1 - _ROUNDING), net)

    def refusal(
        self, out: Outgoing, incoming: Incoming, held: float, weight: float, before: float = 0.0, *, told: bool = True
    ) -> Literal["bad_weight", "no_room"] | None:
        """Why a share of this weight is not taken, by its receiver's two ends and what it holds, if it is not.

        before: what came from the sender's earlier incarnations, more than went to them; told: whether the sender was
        told that. Who was not cannot know, and is not charged for it.
        """
        net, most = incoming.taken_weight + weight - out.weight_until(out.made), self.net * (1 + _ROUNDING)
        if net > most or (told and net > most - before):
            return "bad_weight"
        return "no_room" if net > most - before or (net > 0 and held + weight > self.held * (1 + _ROUNDING)) else None
