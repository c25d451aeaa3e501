"""How one group averages: protocol, overlay and number of exchanges, as plans for a peer and as matrices for all.

Every protocol is played in exchanges. In each, a peer splits the mass that it has at the beginning into equal shares,
keeps one, gives one to each peer that it is to send to, and waits for those that are to send to it. Push-sum goes along
the overlay, whose phases continue from one averaging to the next; push-pull along a random matching, so that a share
is a half and a pair meets in the middle; the exact mean along all pairs at once. `turn` says this to one peer,
`Averaging.matrix` is the product of a whole averaging; `synchronous.py` plays the turns, message by message.

Or one member, the coordinator, is sent all values, takes their exact mean and sends it back. That is the same matrix as
the exact mean's with other messages, and there are no turns: what one peer would do is not a share for a share.

How many exchanges: as many as the federation file says, or as `topology` predicts for its tolerance from the graph
alone; nobody needs to see the spread. Where only those begin who have moved (`event_trigger.py`), two at least.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from fedpeer.gossip.drift import EXCHANGES_MIN
from fedpeer.gossip.event_trigger import Awake
from fedpeer.gossip.noise import Noise
from fedpeer.topology.mixing import Protocol, carrier, effective_matrix, exchange_matrices
from fedpeer.topology.overlay import Overlay
from fedpeer.topology.prediction import predicted_rounds

#: Bytes of a message beside the values, with which traffic is computed where nothing is sent: a fixed head of 24
#: (magic, version, kind, two lengths) and a block of metadata with federation and group (16-byte digests), sender and
#: recipient (names of some 10 bytes), incarnation, round and exchange, sequence, weight (9 bytes each), and the marks
#: between them.
MESSAGE_HEAD_BYTES = 128
#: The same of a share along a channel, as version 2 of the wire sends it: with a signature of 64 bytes, and the sum of
#: weights that it is about.
SHARE_HEAD_BYTES = 160
#: Bytes of the acknowledgement of a share, signed likewise.
ACK_BYTES = 140
#: What a share costs beside its values: its own head, and its acknowledgement by who takes it.
SHARE_EXTRA_BYTES = SHARE_HEAD_BYTES + ACK_BYTES

#: How an average is taken: by exchanges along a graph, or by one member for all.
Way: TypeAlias = Protocol | Literal["coordinator"]

#: The stream for (round, exchange); only push-pull draws from it, and every member must draw the same.
Draws = Callable[[int, int], np.random.Generator]


@dataclass(frozen=True)
class Turn:
    """What one peer does in one exchange: give `fraction` of its mass to each of `to`, then wait for all of `expect`.

    Ids in peer order. What is kept is the rest, 1 - len(to) * fraction.
    """

    to: tuple[str, ...]
    fraction: float
    expect: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Averaging:
    """How one group averages in every round.

    exchanges   in one averaging; 0 in a group of one
    draws       for push-pull's matchings
    every       rounds from one averaging to the next
    noise       of the phase that each averaging begins with; None: of none
    masked      how many of the exchanges are that phase's, in which nobody gives a true share
    drift       part of its length by which a slice must have moved for its peer to begin (`event_trigger.py`); None:
                all do
    """

    overlay: Overlay
    protocol: Way
    exchanges: int
    draws: Draws
    every: int = 1
    noise: Noise | None = None
    masked: int = 0
    drift: float | None = None

    @staticmethod
    def of(
        overlay: Overlay,
        protocol: Way,
        *,
        draws: Draws,
        tolerance: float | None = None,
        exchanges: int | None = None,
        every: int = 1,
        noise: Noise | None = None,
        drift: float | None = None,
    ) -> Averaging:
        """With a number of exchanges, or with those that the tolerance takes on this overlay: one of the two is given.

        A phase of noise comes before these exchanges, and makes them more where they follow from a tolerance.

        Raises:
            TopologyError: if the tolerance takes more exchanges than anybody wants; the message names the way out.
        """
        assert (tolerance is None) != (exchanges is None), "a tolerance or a number of exchanges"
        if len(overlay.members) == 1:
            exchanges = 0
        elif protocol == "exact" or protocol == "coordinator":
            exchanges = 1
        elif tolerance is not None:
            exchanges = predicted_rounds(overlay, protocol, noise.tolerance(tolerance) if noise else tolerance)
        assert exchanges is not None
        if drift is not None and exchanges:
            exchanges = max(exchanges, EXCHANGES_MIN)
        masked = _masked_exchanges(overlay, noise.pushes, exact=protocol == "exact") if noise and exchanges else 0
        return Averaging(overlay, protocol, masked + exchanges, draws, every, noise, masked, drift)

    def due(self, round: int) -> bool:
        """Whether there is an averaging in round 0, 1, ..."""
        return (round + 1) % self.every == 0

    @property
    def exact(self) -> bool:
        """Whether one averaging gives everyone the mean itself."""
        return self.mixing == "exact"

    @property
    def mixing(self) -> Protocol:
        """The protocol whose matrices are this averaging's."""
        return "exact" if self.protocol == "coordinator" else self.protocol

    @property
    def coordinator(self) -> str | None:
        """Who takes the mean for all: the first member by id. None where all do their part."""
        return min(self.overlay.members) if self.protocol == "coordinator" else None

    def graph(self, round: int, exchange: int) -> nx.Graph:
        """Along which edges shares travel in this exchange (0, 1, ...) of this round's averaging (0, 1, ...)."""
        assert self.coordinator is None, "to a coordinator values travel, not shares"
        return carrier(self.overlay, self.mixing, self._first(round) + exchange, self._keyed)

    def matrices(self, round: int) -> list[csr_array]:
        """One (P, P) column-stochastic matrix for each exchange of a round, in the order of the exchanges."""
        return exchange_matrices(self.overlay, self.mixing, self.exchanges, first=self._first(round), draws=self._keyed)

    def matrix(self, round: int) -> NDArray[np.float64] | csr_array:
        """(P, P) column-stochastic: after the averaging of a round values are `matrix @ values`, weights likewise.
        Where it begins with a phase of noise, of what they are behind that.

        Sparse where there is one exchange. Push-sum's is the same whenever a round begins with the same phase, and is
        then computed once.
        """
        if self.protocol != "push-sum":
            return self._product(round)
        phase = (self._first(round) + self.masked) % len(self.overlay.phases)
        if phase not in self._products:
            self._products[phase] = self._product(round)
        return self._products[phase]

    def masked_matrices(self, round: int) -> list[csr_array]:
        """(P, P) of each exchange of the phase of noise: what the weights do in it."""
        return exchange_matrices(self.overlay, self.mixing, self.masked, first=self._first(round), draws=self._keyed)

    def _product(self, round: int) -> NDArray[np.float64] | csr_array:
        exchanges, first = self.exchanges - self.masked, self._first(round) + self.masked
        if exchanges == 1:
            return exchange_matrices(self.overlay, self.mixing, 1, first=first, draws=self._keyed)[0]
        return effective_matrix(self.overlay, self.mixing, exchanges, first=first, draws=self._keyed)

    @cached_property
    def _products(self) -> dict[int, NDArray[np.float64] | csr_array]:
        return {}

    def _first(self, round: int) -> int:
        """The running number of a round's first exchange, so that the phases continue over the averagings."""
        return round // self.every * self.exchanges

    def _keyed(self, running: int) -> np.random.Generator:
        return self.draws(*divmod(running, self.exchanges))


def _masked_exchanges(overlay: Overlay, pushes: int, *, exact: bool) -> int:
    """Exchanges after which all have given to so many different neighbours, or to all they have, wherever among the
    phases the averaging begins."""
    if exact or len(overlay.phases) == 1:
        return 1
    phases, count = overlay.phases, len(overlay.phases)

    def enough(exchanges: int) -> bool:
        return all(
            len(set().union(*(phases[(first + number) % count].neighbors(member) for number in range(exchanges))))
            >= min(pushes, len(set(overlay.union.neighbors(member))))
            for first in range(count)
            for member in overlay.union
        )

    return next(exchanges for exchanges in range(1, count + 1) if enough(exchanges))


def turn(policy: Averaging, peer: str, round: int, exchange: int) -> Turn:
    """What `peer` does in one exchange; of a coordinator's averaging there is no such thing."""
    assert policy.coordinator is None, "to a coordinator values travel, not shares"
    members = policy.overlay.members
    if policy.exact:
        others = tuple(member for member in members if member != peer)
        return Turn(others, 1 / len(members), others)
    graph, me = policy.graph(round, exchange), members.index(peer)
    to = sorted(graph.neighbors(me))
    expect = sorted(graph.predecessors(me)) if graph.is_directed() else to
    return Turn(tuple(members[i] for i in to), 1 / (len(to) + 1), tuple(members[i] for i in expect))


def neighbours(policy: Averaging, peer: str) -> tuple[str, ...]:
    """All to whom `peer` gives in some exchange."""
    members = policy.overlay.members
    if policy.exact:
        return tuple(member for member in members if member != peer)
    return tuple(members[i] for i in sorted(policy.overlay.union.neighbors(members.index(peer))))


def traffic(
    policy: Averaging, length: int, round: int = 0, *, wire_bytes: int = 4, active: Sequence[Awake] = ()
) -> list[tuple[int, int]]:
    """(messages, bytes) that each member sends in the averaging of one round, in peer order.

    A share is `length` scalars of `wire_bytes` and SHARE_EXTRA_BYTES: acknowledgements are in the bytes, and are no
    messages here; on average a member sends as many as it takes shares. Only push-pull's traffic differs between
    rounds. The weight travels in the head even on regular graphs, where it stays 1. Each member sends a coordinator its
    values, and is sent the mean: 2 (P - 1) messages, each with MESSAGE_HEAD_BYTES. `active` says who was in each
    exchange, where some were not: the messages of the others have a head and nothing else.
    """
    members = policy.overlay.members
    sent_P, full_P = np.zeros((2, len(members)), dtype=np.int64)
    head_bytes = SHARE_EXTRA_BYTES
    if policy.coordinator is not None:
        head_bytes = MESSAGE_HEAD_BYTES
        sent_P += 1
        sent_P[members.index(policy.coordinator)] = len(members) - 1
        full_P = sent_P
    else:
        for exchange, matrix in enumerate(policy.matrices(round)):
            to_P = np.asarray((matrix != 0).sum(axis=0)) - 1
            sent_P += to_P
            full_P += to_P * active[exchange] if active else to_P
    return [
        (int(count), int(count) * head_bytes + int(full) * length * wire_bytes)
        for count, full in zip(sent_P, full_P, strict=True)
    ]
