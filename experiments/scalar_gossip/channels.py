"""The channels of a large-scale simulation: numbered transfers on millions of directed edges at once, as arrays.

It is `gossip/transfers.py` for all channels of a graph, with one number per peer instead of a vector, and float64 on
the wire; a test compares both message by message. That module explains what a channel is, when it rests, and which
transfers are taken.

A round is the time of a message and its acknowledgement. In a round, peers give shares along the free channels whose
turn it is, and every open transfer is sent once; each message is lost independently. Those that arrive are taken in the
order of their numbers and acknowledged, and acknowledgements are lost with the same probability. No peer waits: a lost
transfer stays open, is repeated in the next round, and is added when it arrives. So it is late, but not gone.

The channels are changed in place: at this size a copy per round would cost more than the round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpeer.gossip.limits import REST_BELOW, UNDER_WAY_MAX, WINDOW

#: (2, P) or (2, K) float64: values and weights.
Masses = NDArray[np.float64]
Positions = NDArray[np.integer[Any]]
Flags = NDArray[np.bool_]


@dataclass
class ScalarTraffic:
    """Messages of all peers together, in one round or several.

    shares    new transfers
    repeats   repeated transfers
    answers   acknowledgements
    """

    shares: int = 0
    repeats: int = 0
    answers: int = 0

    def __add__(self, other: ScalarTraffic) -> ScalarTraffic:
        return ScalarTraffic(self.shares + other.shares, self.repeats + other.repeats, self.answers + other.answers)


class PeerChannels:
    """All channels of a graph. Numbers are kept modulo 256, as a channel never has more than WINDOW transfers open.

    src_L, dst_L     (L,) int32, the two ends of each channel
    channel_K        (K,) int32, the channel of each open transfer, oldest first
    """

    def __init__(self, src_L: NDArray[np.int32], dst_L: NDArray[np.int32]) -> None:
        self.src_L, self.dst_L = src_L, dst_L
        self._made_L, self._acked_L, self._taken_L = (np.zeros(len(src_L), np.uint8) for _ in range(3))
        self.channel_K = np.empty(0, np.int32)
        self._number_K = np.empty(0, np.uint8)
        self._mass_2K = np.empty((2, 0))

    def play(
        self,
        mass_2P: Masses,
        in_turn: slice | Positions,
        fraction_P: NDArray[np.float64],
        loss: float,
        draws: np.random.Generator,
    ) -> ScalarTraffic:
        """Perform one round and return its messages.

        Draws one number for each message, oldest transfer first, then one for each acknowledgement.

        Args:
            mass_2P: the peers' mass, changed in place.
            in_turn: the channels along which shares are given.
            fraction_P: (P,) size of each share of a peer, as a fraction of its mass.
            loss: probability that a message is lost.
            draws: source of random numbers.
        """
        given = self._give(mass_2P, in_turn, fraction_P)
        sent = len(self.channel_K)
        arrived = np.flatnonzero(draws.random(sent, dtype=np.float32) >= loss)
        self._take(mass_2P, arrived)
        back = arrived[draws.random(len(arrived), dtype=np.float32) >= loss]
        self._acked_L[self.channel_K[back]] = self._taken_L[self.channel_K[back]]
        self._keep(self._beyond(self._acked_L))
        return ScalarTraffic(given, sent - given, len(arrived))

    def under_way(self) -> NDArray[np.float64]:
        """Return the sums of value and weight that were given but not taken yet, (2,)."""
        return np.asarray(self._mass_2K[:, self._beyond(self._taken_L)].sum(axis=1))

    def part(self, mass_2P: Masses, going_P: Flags, *, handed_over: bool) -> None:
        """Empty the channels of peers that leave.

        Transfers to them return to their senders. Their transfers to others are taken if `handed_over`, else lost.
        """
        from_P, to_P = going_P[self.src_L[self.channel_K]], going_P[self.dst_L[self.channel_K]]
        waits = self._beyond(self._taken_L)
        add(mass_2P, self.src_L[self.channel_K[waits & to_P]], self._mass_2K[:, waits & to_P])
        if handed_over:
            to_others = waits & from_P & ~to_P
            add(mass_2P, self.dst_L[self.channel_K[to_others]], self._mass_2K[:, to_others])
        ended = self.channel_K[from_P | to_P]
        self._acked_L[ended] = self._taken_L[ended] = self._made_L[ended]
        self._keep(~(from_P | to_P))

    def _give(self, mass_2P: Masses, in_turn: slice | Positions, fraction_P: NDArray[np.float64]) -> int:
        members = mass_2P.shape[1]
        weight_P = mass_2P[1]
        open_P = np.bincount(self.src_L[self.channel_K], self._mass_2K[1], members)
        tired_P = (weight_P < REST_BELOW) | (open_P > UNDER_WAY_MAX * weight_P)
        free = (self._made_L[in_turn] - self._acked_L[in_turn] < WINDOW) & ~tired_P[self.src_L[in_turn]]
        channels = np.arange(in_turn.start, in_turn.stop) if isinstance(in_turn, slice) else in_turn
        channel_N = channels[free].astype(np.int32)
        src_N = self.src_L[channel_N]
        share_2P = mass_2P * fraction_P
        mass_2P -= share_2P * np.bincount(src_N, minlength=members)
        self._made_L[channel_N] += 1
        self.channel_K = np.concatenate([self.channel_K, channel_N])
        self._number_K = np.concatenate([self._number_K, self._made_L[channel_N]])
        self._mass_2K = np.concatenate([self._mass_2K, share_2P[:, src_N]], axis=1)
        return len(channel_N)

    def _take(self, mass_2P: Masses, arrived: Positions) -> None:
        for _ in range(WINDOW):  # of two that arrive on one channel, the second is the next one once the first is taken
            channel = self.channel_K[arrived]
            due = self._number_K[arrived] == self._taken_L[channel] + np.uint8(1)
            now = arrived[due]
            self._taken_L[channel[due]] += 1
            add(mass_2P, self.dst_L[channel[due]], self._mass_2K[:, now])
            arrived = arrived[~due]

    def _beyond(self, number_L: NDArray[np.uint8]) -> Flags:
        """Return whether each open transfer's number is beyond that of its channel, (K,)."""
        return self._number_K - number_L[self.channel_K] - np.uint8(1) < WINDOW

    def _keep(self, which: Flags) -> None:
        self.channel_K, self._number_K = self.channel_K[which], self._number_K[which]
        self._mass_2K = self._mass_2K[:, which]


def add(mass_2P: Masses, at: Positions, mass_2N: Masses) -> None:
    """Add masses to peers; `at` may name a peer several times."""
    for mass_P, mass_N in zip(mass_2P, mass_2N, strict=True):
        mass_P += np.bincount(at, mass_N, len(mass_P))
