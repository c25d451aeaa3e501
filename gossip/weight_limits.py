"""Bounds on the weight that a peer takes from and gives to a neighbor, so that no liar can create unlimited weight.

In a group of n members, each of which puts in a weight of 1, there is a total weight of n. Three bounds follow:

    share   a share weighs at most n
    net     the weight that came from a neighbor less the weight that went to it, over all its incarnations, is at most
            n - 1: all that the others ever put in
    held    the weight that a peer holds, shares that wait included; weight that returns on a channel is exempt

The giving side keeps `net`, since it knows both sums: `room` is the weight that may still go to a neighbor. Let
t_ij(now) be the weight that i has taken from j, and m_ji the weight that j has made for i. When j makes a share,
m_ji <= net + t_ji(then). What i takes was made before, and j has taken only what i made, so

    t_ij(now) <= m_ji(then) <= net + t_ji(then) <= net + m_ij(then) <= net + m_ij(now)

whatever is lost, late or repeated, and whatever other members do to the two: m only grows, except when transfers return
for good (`incarnations.reopened`), and then it falls to what was taken. A peer that exceeds the bound runs a program
that does not keep it, and is charged. Neither side can get stuck at the bound, since each share makes room for one in
the other direction. Where weight flows back the way it came, as on every undirected graph with the shares of
`averaging.py`, no member comes near it: an edge can carry at most what the others have.

Where edges have one direction, weight travels in circles and `net` bounds nothing; `held` does. It is 2 n there, twice
the total, since a member that lost its memory puts in 1 again: it stops no one before n members have lost their memory
at about the same time. A share without room is not rejected for good: it stays open with its sender, and there is room
once the peer has given. So no one is charged for that.

A neighbor that lost its memory begins new channels and knows nothing of the earlier ones. The weight that its earlier
incarnations gave in excess of what they got is `before`; the peer that took it reports it in Hello, and both then use a
`net` that is smaller by this amount. So over all incarnations of a neighbor its net is at most n - 1, and a peer that
takes holds at most

    what it put in + (n - 1) net                                                                    (`held`)

of which each neighbor gives at most its part: there is always room for what `net` allows. An honest member that
returns as a new incarnation gets about as much from its neighbors as it gives them, so that `before` stays near 0; if
it ever reached the bound, it would give nothing until its neighbors, which are not bounded by it, have given to it.

What liars can achieve: with h honest members and f liars, the total weight among the honest is at most what they put in
and what came from liars: h (1 + f (n - 1)), however often a liar returns as a new incarnation.
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
    """The three bounds of one group, as described above; `net` is infinite where that bound does not hold."""

    share: float
    net: float
    held: float

    @staticmethod
    def among(members: int, start_weight_max: float = 1.0, *, both_ways: bool = True) -> WeightLimits:
        """Return the bounds for a group of `members`, each of which puts in at most `start_weight_max`.

        `both_ways`: a member that gets shares from a neighbor also gives it shares, and mass is carried from one
        averaging to the next.
        """
        everything = members * start_weight_max
        if not both_ways:
            return WeightLimits(everything, math.inf, 2 * everything)
        net = everything - start_weight_max
        return WeightLimits(everything, net, start_weight_max + (members - 1) * net)

    def room(self, out: Outgoing, incoming: Incoming, before: float = 0.0) -> float:
        """Return the largest weight of the next share on a channel, by its sender's two ends; 0 or less: it must wait.

        `before` is the weight that the neighbor reports to have got from this peer's earlier incarnations in excess of
        what it gave them.
        """
        # A peer that leaves gives all it has: rounding must leave nothing behind, so the receiver allows for more.
        net = self.net * (1 + _ROUNDING / 2) - before + incoming.taken_weight - out.weight_until(out.made)
        return min(self.share * (1 - _ROUNDING), net)

    def refusal(
        self, out: Outgoing, incoming: Incoming, held: float, weight: float, before: float = 0.0, *, stated: bool = True
    ) -> Literal["bad_weight", "no_room"] | None:
        """Return the code of a rejection if the receiver must not take a share of this weight now, else None.

        Args:
            out, incoming: the receiver's two ends of the channels with the sender.
            held: weight that the receiver holds.
            before: weight that came from the sender's earlier incarnations in excess of what went to them.
            stated: whether the sender was sent `before`; if not, it cannot know, and is not charged for exceeding it.
        """
        net, most = incoming.taken_weight + weight - out.weight_until(out.made), self.net * (1 + _ROUNDING)
        if net > most or (stated and net > most - before):
            return "bad_weight"
        return "no_room" if net > most - before or (net > 0 and held + weight > self.held * (1 + _ROUNDING)) else None
