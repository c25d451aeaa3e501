"""Averaging of one group: protocol, overlay and number of exchanges, as a plan for one peer and as matrices for all.

Every protocol proceeds in exchanges. In each, a peer splits the mass that it has at the start of the exchange into
equal shares, keeps one, sends one to each of its recipients, and waits for the shares that are due to it. Push-sum
follows the overlay, whose phases continue from one averaging to the next; push-pull follows a random matching of it, so
a share is one half and the two peers of a pair meet in the middle; the exact mean uses all pairs at once. `turn` is one
peer's part in an exchange; `Averaging.matrix` is the product of a whole averaging. The tests run the turns message by
message and compare them with the matrices.

Alternatively one member, the coordinator, receives all values, computes their exact mean and sends it back. The matrix
is that of the exact mean, but the messages differ, and there are no turns: peers do not exchange share for share.

The number of exchanges comes from the federation file, or `topology` predicts it from the graph alone for the file's
tolerance; no peer needs to see how far the values are apart. Event-triggered averaging (`event_trigger.py`) needs at
least two.
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
from fedpeer.gossip.event_trigger import ActivePeers
from fedpeer.gossip.noise import Noise
from fedpeer.topology.mixing import Protocol, carrier, effective_matrix, exchange_matrices
from fedpeer.topology.overlay import Overlay
from fedpeer.topology.prediction import predicted_rounds

#: Bytes of a message without its values, for computing traffic where nothing is sent: a fixed head of 24 (magic,
#: version, kind, two lengths) and a metadata block with federation and group (16-byte digests), sender and recipient
#: (names of some 10 bytes), incarnation, round, exchange, sequence number and weight (9 bytes each), and separators.
MESSAGE_HEAD_BYTES = 128
#: The same for a share on a channel in version 2 of the wire format, which adds a 64-byte signature and the sum of
#: weights that it covers.
SHARE_HEAD_BYTES = 160
#: Bytes of the acknowledgement of a share, which is signed likewise.
ACK_BYTES = 140
#: Bytes of a value, which is a float32 unless a compression is chosen.
_SCALAR_BYTES = 4
#: Bytes that a share costs beside its values: its own head and the recipient's acknowledgement.
SHARE_EXTRA_BYTES = SHARE_HEAD_BYTES + ACK_BYTES

#: How an average is computed: by exchanges along a graph, or by one member for all.
AveragingProtocol: TypeAlias = Protocol | Literal["coordinator"]

#: The random stream of (round, exchange), for push-pull's matchings and graphs that are drawn anew; all members must
#: draw the same numbers.
_Draws = Callable[[int, int], np.random.Generator]


@dataclass(frozen=True)
class Turn:
    """One peer's part in one exchange: give `fraction` of its mass to each of `to`, then wait for all of `expect`.

    Ids are in peer order. The peer keeps the rest, 1 - len(to) * fraction.
    """

    to: tuple[str, ...]
    fraction: float
    expect: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Averaging:
    """Averaging of one group, the same in every round.

    exchanges   number of exchanges in one averaging, the noise phase's included; 0 in a group of one
    draws       random streams for push-pull's matchings, and for graphs that are drawn anew
    every       rounds from one averaging to the next
    noise       noise phase at the start of each averaging; None: no such phase
    masked      number of exchanges in the noise phase, in which nobody gives a true share
    drift       event-triggered averaging: fraction of its norm by which a slice must have moved before its peer starts
                to give (`event_trigger.py`); None: all peers give
    """

    overlay: Overlay
    protocol: AveragingProtocol
    exchanges: int
    draws: _Draws
    every: int = 1
    noise: Noise | None = None
    masked: int = 0
    drift: float | None = None

    @staticmethod
    def of(
        overlay: Overlay,
        protocol: AveragingProtocol,
        *,
        draws: _Draws,
        tolerance: float | None = None,
        exchanges: int | None = None,
        most: int | None = None,
        every: int = 1,
        noise: Noise | None = None,
        drift: float | None = None,
    ) -> Averaging:
        """Return an averaging with this number of exchanges, or with as many as the tolerance takes on this overlay.

        Exactly one of `tolerance` and `exchanges` is given; `most` bounds the number that a tolerance takes. A noise
        phase adds its own exchanges in front, and raises the number that a tolerance takes.

        Raises:
            TopologyError: if the tolerance takes more exchanges than are allowed; the message names the way out.
        """
        assert (tolerance is None) != (exchanges is None), "give a tolerance or a number of exchanges, not both"
        if len(overlay.members) == 1:
            exchanges = 0
        elif protocol == "exact" or protocol == "coordinator":
            exchanges = 1
        elif tolerance is not None:
            wanted = noise.tolerance(tolerance) if noise else tolerance
            exchanges = predicted_rounds(overlay, protocol, wanted, most=most)
        assert exchanges is not None
        if drift is not None and exchanges:
            exchanges = max(exchanges, EXCHANGES_MIN)
        masked = _masked_exchanges(overlay, noise.pushes, exact=protocol == "exact") if noise and exchanges else 0
        return Averaging(overlay, protocol, masked + exchanges, draws, every, noise, masked, drift)

    def linked(self, one: str, other: str) -> bool:
        """Return whether one of two peers gives to the other in some exchange; False if one is no member."""
        members, union = self.overlay.members, self.overlay.union
        if one not in members or other not in members:
            return False
        a, b = members.index(one), members.index(other)
        return self.exact or union.has_edge(a, b) or union.has_edge(b, a)

    def due(self, round: int) -> bool:
        """Return whether this round (0, 1, ...) ends with an averaging."""
        return (round + 1) % self.every == 0

    @cached_property
    def mutual(self) -> bool:
        """True if every exchange goes both ways with all neighbors, so that they keep step."""
        overlay = self.overlay
        whole = len(overlay.phases) == 1 and overlay.redraw is None and not overlay.union.is_directed()
        return not self.exchanges or (whole and self.protocol != "push-pull")

    @property
    def exact(self) -> bool:
        """True if one averaging gives everyone the mean itself."""
        return self.mixing == "exact"

    @property
    def mixing(self) -> Protocol:
        """The protocol whose matrices are this averaging's."""
        return "exact" if self.protocol == "coordinator" else self.protocol

    @property
    def coordinator(self) -> str | None:
        """The member that computes the mean for all, the first by id; None if peers exchange shares instead."""
        return min(self.overlay.members) if self.protocol == "coordinator" else None

    def graph(self, round: int, exchange: int) -> nx.Graph:
        """Return the edges along which shares travel in this exchange (0, 1, ...) of this round (0, 1, ...)."""
        assert self.coordinator is None, "members send a coordinator values, not shares"
        return carrier(self.overlay, self.mixing, self._first(round) + exchange, self._keyed)

    def matrices(self, round: int) -> list[csr_array]:
        """Return one (P, P) column-stochastic matrix for each exchange of a round, in the order of the exchanges.

        Push-sum's are computed once for each phase of the overlay, unless the graph is drawn anew. Do not change them.
        """
        return self._between(self._first(round), self.exchanges)

    def matrix(self, round: int) -> NDArray[np.float64] | csr_array:
        """Return the (P, P) column-stochastic matrix of a round's averaging.

        Afterwards values are `matrix @ values`, and weights likewise. If there is a noise phase, the matrix starts from
        what they are behind it. It is sparse if there is one exchange. Push-sum's matrix is the same in all rounds that
        begin with the same phase of the overlay, and is computed once for each phase, unless the graph is drawn anew.
        """
        if not self._periodic:
            return self._product(round)
        phase = (self._first(round) + self.masked) % len(self.overlay.phases)
        if phase not in self._products:
            self._products[phase] = self._product(round)
        return self._products[phase]

    def masked_matrices(self, round: int) -> list[csr_array]:
        """Return the (P, P) matrix of each exchange of the noise phase; it applies to the weights only."""
        return self._between(self._first(round), self.masked)

    def _product(self, round: int) -> NDArray[np.float64] | csr_array:
        exchanges, first = self.exchanges - self.masked, self._first(round) + self.masked
        if exchanges == 1:
            return self._between(first, 1)[0]
        return effective_matrix(self.overlay, self.mixing, exchanges, first=first, draws=self._keyed)

    def _between(self, first: int, count: int) -> list[csr_array]:
        """Return the matrices of so many exchanges, from the one with this running number on."""
        if not self._periodic:
            return exchange_matrices(self.overlay, self.mixing, count, first=first, draws=self._keyed)
        phases = self._by_phase
        return [phases[number % len(phases)] for number in range(first, first + count)]

    @property
    def _periodic(self) -> bool:
        """Whether exchanges in the same phase of the overlay have the same matrix."""
        return self.protocol == "push-sum" and self.overlay.redraw is None

    @cached_property
    def _by_phase(self) -> list[csr_array]:
        phases = len(self.overlay.phases)
        return exchange_matrices(self.overlay, self.mixing, phases, first=0, draws=self._keyed)

    @cached_property
    def _products(self) -> dict[int, NDArray[np.float64] | csr_array]:
        return {}

    def _first(self, round: int) -> int:
        """Return the running number of a round's first exchange, so that phases continue across averagings."""
        return round // self.every * self.exchanges

    def _keyed(self, running: int) -> np.random.Generator:
        return self.draws(*divmod(running, self.exchanges))


def _masked_exchanges(overlay: Overlay, pushes: int, *, exact: bool) -> int:
    """Return after how many exchanges each member has given to `pushes` different neighbors, or to all that it has.

    The number suffices whichever phase of the overlay the averaging begins with.
    """
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
    """Return one peer's part in one exchange; a coordinator's averaging has none."""
    assert policy.coordinator is None, "members send a coordinator values, not shares"
    members = policy.overlay.members
    if policy.exact:
        others = tuple(member for member in members if member != peer)
        return Turn(others, 1 / len(members), others)
    graph, me = policy.graph(round, exchange), members.index(peer)
    to = sorted(graph.neighbors(me))
    expect = sorted(graph.predecessors(me)) if graph.is_directed() else to
    return Turn(tuple(members[i] for i in to), 1 / (len(to) + 1), tuple(members[i] for i in expect))


def neighbors(policy: Averaging, peer: str) -> tuple[str, ...]:
    """Return all members to which `peer` gives in some exchange, in peer order."""
    members = policy.overlay.members
    if policy.exact:
        return tuple(member for member in members if member != peer)
    return tuple(members[i] for i in sorted(policy.overlay.union.neighbors(members.index(peer))))


def traffic(
    policy: Averaging, length: int, round: int = 0, *, active: Sequence[ActivePeers] = ()
) -> list[tuple[int, int]]:
    """Return the (messages, bytes) that each member sends in the averaging of one round, in peer order.

    A share is `length` float32 scalars and SHARE_EXTRA_BYTES. Acknowledgements count as bytes but not as
    messages; on average a member acknowledges as many shares as it sends. Traffic differs between rounds with push-pull
    and on graphs that are drawn anew. The weight travels in the head even on regular graphs, where it stays 1. With a
    coordinator, each other member sends its values and receives the mean: 2 (P - 1) messages with MESSAGE_HEAD_BYTES
    each.

    Args:
        active: which members are active in each exchange, (P,) bool each; messages of the others are only a head.
            Empty: all are.
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
        (int(count), int(count) * head_bytes + int(full) * length * _SCALAR_BYTES)
        for count, full in zip(sent_P, full_P, strict=True)
    ]
