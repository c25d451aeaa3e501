"""How much weight a peer takes from a neighbour and gives to one, so that who lies cannot load it with what nobody has.

In a group of n members, each of whom puts in a weight of 1, there is a weight of n. Three bounds follow:

    share   a share weighs at most n
    net     what came from a neighbour less what went to it, over the lives of the two incarnations, is at most n - 1:
            all that the others ever put in
    held    what a peer holds, with what waits, is at most 2 n; but for what comes back to it on a lane

`held` is twice all that there is, since a member that lost memory puts in 1 again: it stops nobody before as many
members as there are have lost memory at about the same time. A share for which there is no room is not refused for
good: it stays open with its sender, and there is room when the peer has given. So nobody is charged for that.

`net` is kept by those who give, who know both sums: `room` is what may still go to a neighbour. By t_ij(now) what i has
taken of j, by m_ji what j made for i: when j makes a share, m_ji <= net + t_ji(then). What i takes was made before, and
j has taken only what i made, so

    t_ij(now) <= m_ji(then) <= net + t_ji(then) <= net + m_ij(then) <= net + m_ij(now)

whatever is lost, late or repeated, and whatever anybody else does to the two: m only grows, but where a transfer comes
back for good (`Returned`), and then to what was taken. Who exceeds it has a program that does not keep it, and is
charged. Neither side can be stuck at the bound, since what one gives the other makes room for what that one gives; and
where weight flows back the way it came, as on every undirected graph with the shares of `averaging.py`, nobody comes
near it: all that could flow along an edge is what the others have. Where edges lead in one direction, weight goes
round in circles and `net` bounds nothing; `held` does.

What liars can do: with h honest members and f that lie, what is there among the honest is at most what they put in and
what came from liars: h (1 + f (n - 1)), as long as no liar is born again. Each new incarnation of one begins lanes of
its own, with a `net` of their own; `held` is then what bounds it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fedpeer.gossip.transfers import Incoming, Outgoing

#: Relative rounding of sums of some million weights.
ROUNDING = 1e-9


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
        net = everything - start_weight_max if both_ways else math.inf
        return WeightLimits(everything, net, 2 * everything)

    def room(self, out: Outgoing, incoming: Incoming) -> float:
        """How heavy the next share on a lane may be, by its sender's two ends; 0 or less: it has to wait."""
        # Who leaves gives the very last of it: rounding must leave nothing behind, and who takes allows for more of it.
        net = self.net * (1 + ROUNDING / 2) + incoming.taken_weight - out.weight_until(out.made)
        return min(self.share * (1 - ROUNDING), net)

    def refusal(
        self, out: Outgoing, incoming: Incoming, held: float, weight: float
    ) -> Literal["bad_weight", "no_room"] | None:
        """Why a share of this weight is not taken, by its receiver's two ends and what it holds, if it is not."""
        net = incoming.taken_weight + weight - out.weight_until(out.made)
        if net > self.net * (1 + ROUNDING):
            return "bad_weight"
        return "no_room" if net > 0 and held + weight > self.held * (1 + ROUNDING) else None
