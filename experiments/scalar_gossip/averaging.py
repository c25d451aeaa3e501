"""Averaging in large-scale simulations: exchanges among up to millions of peers that have one number each.

The protocols are those of `gossip/averaging.py`: a peer keeps one of (out-degree + 1) equal shares of its mass (value
and weight) and gives the others away; push-sum along the phases of the graph in turn, push-pull along a random
matching. A test compares the exchanges here with the product of the matrices there.

Lost messages are handled in one of two ways. On channels (`channels.py`) lost shares arrive later, as in fedpeer.
Without channels they are gone, as in textbook push-sum: all peers agree in the end, but not on the mean. If nothing is
lost, channels change nothing, and none are kept.

A peer that leaves hands its mass to its neighbors in equal parts; one whose disk is lost takes it along. A newcomer
takes its place in the next round, with the same neighbors: it asks two of them for their estimates, and begins with
their mean and a weight of 1, as a late joiner does. The limit of all estimates is the mean of all mass that was put in
and not lost, so it moves a little with every newcomer.

A simulation is changed in place. Random generators are arguments.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedpeer.experiments.scalar_gossip.channels import Flags, Masses, PeerChannels, Positions, ScalarTraffic, add
from fedpeer.topology.wide import WideGraph, matched

ScalarProtocol = Literal["push-sum", "push-pull"]

#: Neighbors whose estimates a newcomer averages; no peer is Byzantine here. A real late joiner takes the median of
#: three.
ASKED_FOR_VALUE = 2
#: Members of a complete graph above which a matching is drawn as random pairs instead of edge by edge, with the same
#: distribution.
_PAIRED_ABOVE = 100


class ScalarGossip:
    """P peers on a graph, each with a value and a weight of 1.

    graph      the graph; it needs edges if messages are lost or peers leave (the complete graph of very many peers has
               none)
    protocol   how the peers average
    value_P    (P,) initial values
    loss       probability that a message is lost
    channels   whether shares are repeated until acknowledged
    """

    def __init__(
        self,
        graph: WideGraph,
        protocol: ScalarProtocol,
        value_P: NDArray[np.float64],
        *,
        loss: float = 0.0,
        channels: bool = True,
    ) -> None:
        assert len(value_P) == graph.members, "one value per peer"
        assert 0 <= loss < 1, "some messages arrive"
        assert graph.phases or not loss, "messages are lost on edges"
        self.graph, self.protocol, self.loss = graph, protocol, loss
        self.mass_2P: Masses = np.stack([value_P, np.ones(graph.members)])
        self.start_mean = float(value_P.mean())
        self.start_spread = float(np.linalg.norm(value_P - self.start_mean))
        self.channels = self._laid() if loss and channels else None

    @property
    def members(self) -> int:
        return self.graph.members

    # ------------------------------------------------------------------------------------------------------ measured

    def everything(self) -> NDArray[np.float64]:
        """Return the sums of values and weights over all peers and channels, (2,)."""
        held = self.mass_2P.sum(axis=1)
        return np.asarray(held if self.channels is None else held + self.channels.under_way())

    def mean(self) -> float:
        """Return the limit of all estimates if nothing more is lost and no peer comes or goes."""
        value, weight = self.everything()
        return float(value / weight)

    def disagreement(self) -> float:
        """Return the distance of the estimates from their limit as a fraction of the initial distance.

        The distance is Euclidean over the peers, as in `topology.prediction`, but from this start instead of the worst.
        """
        error_P = self.mass_2P[0] / self.mass_2P[1] - self.mean()
        return float(np.linalg.norm(error_P)) / self.start_spread if self.start_spread else 0.0

    def drift(self) -> float:
        """Return the distance of the limit from the initial mean, in standard deviations of the start."""
        deviation = self.start_spread / math.sqrt(self.members)
        return abs(self.mean() - self.start_mean) / deviation if deviation else 0.0

    # -------------------------------------------------------------------------------------------------------- exchanges

    def exchange(self, number: int, draws: np.random.Generator) -> ScalarTraffic:
        """Perform exchange `number` (0, 1, ...) of all peers, and return its messages."""
        if self.protocol == "push-pull":
            return self._meet(draws)
        if not self.graph.phases:
            self.mass_2P[:] = self.mass_2P.mean(axis=1, keepdims=True)
            return ScalarTraffic(self.graph.channels)
        phase = number % len(self.graph.phases)
        if self.channels is not None:
            in_turn = slice(self._first[phase], self._first[phase + 1])
            return self.channels.play(self.mass_2P, in_turn, self._fractions[phase], self.loss, draws)
        edges = self.graph.phases[phase]
        share_2P = self.mass_2P * self._fractions[phase]
        if not self.loss:
            self.mass_2P = share_2P + np.stack([edges.T @ share_P for share_P in share_2P])
            return ScalarTraffic(edges.nnz)
        src_L = np.repeat(np.arange(self.members, dtype=np.int32), np.diff(edges.indptr))
        self._forgetful(src_L, edges.indices, share_2P, draws)
        return ScalarTraffic(edges.nnz)

    def _meet(self, draws: np.random.Generator) -> ScalarTraffic:
        if self.graph.complete and self.channels is None and self.members > _PAIRED_ABOVE:
            pairs = draws.permutation(self.members)[: self.members // 2 * 2].reshape(-1, 2)
            edges, a_M, b_M = None, pairs[:, 0], pairs[:, 1]
        else:
            edges = matched(self.graph, draws)
            a_M, b_M = (end[edges] for end in self.graph.union)
        if self.channels is not None:
            assert edges is not None, "channels are edges"
            in_turn = np.concatenate([edges, edges + len(self.graph.union[0])])
            return self.channels.play(self.mass_2P, in_turn, np.full(self.members, 0.5), self.loss, draws)
        if not self.loss:
            half_2M = (self.mass_2P[:, a_M] + self.mass_2P[:, b_M]) / 2
            self.mass_2P[:, a_M] = self.mass_2P[:, b_M] = half_2M
        else:
            share_2P = self.mass_2P.copy()
            share_2P[:, a_M] /= 2
            share_2P[:, b_M] /= 2
            ends = (np.concatenate([a_M, b_M]), np.concatenate([b_M, a_M]))
            self._forgetful(*ends, share_2P, draws)
        return ScalarTraffic(2 * len(a_M))

    def _forgetful(self, src_L: Positions, dst_L: Positions, share_2P: Masses, draws: np.random.Generator) -> None:
        """Send shares along these edges without channels: lost ones are gone."""
        arrived = draws.random(len(src_L), dtype=np.float32) >= self.loss
        self.mass_2P = share_2P.copy()
        add(self.mass_2P, dst_L[arrived], share_2P[:, src_L[arrived]])

    @cached_property
    def _fractions(self) -> list[NDArray[np.float64]]:
        """1 / (out-degree + 1) of each phase, (P,)."""
        return [1 / (np.diff(phase.indptr) + 1.0) for phase in self.graph.phases]

    @cached_property
    def _first(self) -> list[int]:
        """Number of each phase's first channel, and the number of all channels."""
        return [0, *np.cumsum([phase.nnz for phase in self.graph.phases]).tolist()]

    def _laid(self) -> PeerChannels:
        if self.protocol == "push-pull":
            a_E, b_E = (end.astype(np.int32) for end in self.graph.union)
            return PeerChannels(np.concatenate([a_E, b_E]), np.concatenate([b_E, a_E]))
        place_P = np.arange(self.members, dtype=np.int32)
        src_L = np.concatenate([np.repeat(place_P, np.diff(phase.indptr)) for phase in self.graph.phases])
        return PeerChannels(src_L, np.concatenate([phase.indices for phase in self.graph.phases]))

    # ------------------------------------------------------------------------------------------------- coming and going

    def replace(self, share: float, draws: np.random.Generator, *, handed_over: bool = True) -> int:
        """Replace peers by newcomers, each with probability `share`, and return how many were replaced.

        A peer without a neighbor that stays is not replaced.
        """
        assert self.graph.phases, "a peer that leaves has neighbors"
        going_P = draws.random(self.members) < share
        going = np.flatnonzero(going_P)
        leaver_N, near_N = self._neighbors(going, going_P)
        near_G = np.bincount(leaver_N, minlength=len(going))
        going_P[going[near_G == 0]] = False
        if self.channels is not None:
            self.channels.part(self.mass_2P, going_P, handed_over=handed_over)
        if handed_over:
            add(self.mass_2P, near_N, (self.mass_2P[:, going] / np.maximum(near_G, 1))[:, leaver_N])
        rank_N = np.arange(len(leaver_N)) - (np.cumsum(near_G) - near_G)[leaver_N]
        asked_N = rank_N < ASKED_FOR_VALUE
        estimate_N = np.divide(*self.mass_2P[:, near_N[asked_N]])
        sums_G = np.bincount(leaver_N[asked_N], estimate_N, len(going))
        left = near_G > 0
        self.mass_2P[0, going[left]] = sums_G[left] / np.minimum(near_G[left], ASKED_FOR_VALUE)
        self.mass_2P[1, going[left]] = 1.0
        return int(left.sum())

    def _neighbors(self, going: Positions, going_P: Flags) -> tuple[Positions, Positions]:
        """Return indices into `going`, ascending, and a neighbor of that peer that stays, (N,) each."""
        leavers, near = [], []
        for phase in self.graph.phases:
            first_G, count_G = phase.indptr[going].astype(np.int64), np.diff(phase.indptr)[going]
            leaver_N = np.repeat(np.arange(len(going)), count_G)
            place_N = np.arange(len(leaver_N)) - (np.cumsum(count_G) - count_G)[leaver_N] + first_G[leaver_N]
            near_N = phase.indices[place_N]
            stays = ~going_P[near_N]
            leavers.append(leaver_N[stays])
            near.append(near_N[stays])
        leaver_N, near_N = np.concatenate(leavers), np.concatenate(near)
        order = np.argsort(leaver_N, kind="stable")
        return leaver_N[order], near_N[order]
