"""A phase of noise before an average: what a peer sends first says nothing of what it holds.

A peer that enters an averaging first sends each of some neighbours a masked share: the weight of a usual one, and a
value that was drawn. It keeps the rest of its mass, its own value less what it made up. So nothing is lost: after the
phase all goes on as ever, and the noise averages away with everything else, since what one peer sent too much it holds
too little. Until its phase is over a peer's estimate means nothing and is shown to nobody, its owner included
(`shown`); after it, it is as near to the average as the exchanges since then have brought it.

Who wants a peer's value must know every masked share, to add it to the first true one. Each share has a number of its
own, so all p receivers must work together: where each neighbour is corrupted with chance tau, that is tau ** p. Pushes
to one neighbour count once, since in an overlay that stays as it is they are seen by the same eyes. Somebody who misses
one share knows the value only up to that noise, so its scale must be that of all that the value could be, and more.

Made-up numbers must come from a source that neighbours cannot compute, so they are handed in; a run's own streams
follow from a seed that all peers know. More noise takes more exchanges to average away: with noise s times as large as
what peers differ by, those that the tolerance takes for a spread s times as large.

Source: Bouchra Pilet, Frey, Taiani, Robust Privacy-Preserving Gossip Averaging, 2019.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedpeer.gossip.mass import Mass
from fedpeer.gossip.reductions import Form
from fedpeer.gossip.transfers import NumberedTransfer, Outgoing, carried, give


@dataclass(frozen=True, slots=True)
class NoisePhase:
    """How far a peer is in its phase of noise, in one averaging.

    wanted   p: how many different neighbours are to be sent noise
    told     those that were
    """

    wanted: int
    told: frozenset[str] = frozenset()

    @property
    def lifted(self) -> bool:
        """Whether the phase is over."""
        return len(self.told) >= self.wanted

    def among(self, neighbours: Collection[str]) -> NoisePhase:
        """The same where only these are left to be told: a phase ends with the last of them, also where p are more."""
        return replace(self, wanted=min(self.wanted, len(self.told.union(neighbours))))

    def after(self, peers: Collection[str]) -> NoisePhase:
        """When these have been sent noise."""
        return replace(self, told=self.told.union(peers))


def meaningful_estimate(held: Mass, masking: NoisePhase) -> Tensor | None:
    """(D,) the estimate, or None while it means nothing."""
    return held.estimate_D if masking.lifted else None


def noise_key(secret: bytes, *what: object) -> bytes:
    """(32 bytes) of the masked numbers of one time, which `what` names, by somebody's secret of up to 64 bytes."""
    return hashlib.blake2b(repr(what).encode(), key=secret, digest_size=32).digest()


def made_up(key: bytes, peer: str, length: int, scale: float) -> Tensor:
    """(length,) float64 normal numbers for this neighbour, of this standard deviation; the same ones each time.

    Who is told them knows the state of their stream, and by that nothing of the key or of another neighbour's.
    """
    stream = int.from_bytes(hashlib.blake2b(peer.encode(), key=key, digest_size=16).digest(), "little")
    return torch.from_numpy(np.random.Generator(np.random.PCG64(stream)).normal(0.0, scale, length))


def give_made_up(
    held: Mass,
    masking: NoisePhase,
    channels: Mapping[str, Outgoing],
    fraction: float,
    form: Form,
    at: tuple[int, int],
    draws: np.random.Generator,
    made_up: Mapping[str, Tensor],
) -> tuple[Mass, NoisePhase, dict[str, Outgoing], dict[str, NumberedTransfer]]:
    """The same as numbered transfers on channels, none of which rests: (kept, mask, channels, shares by peer).

    The shares travel whole, in float32 or float64, whatever the form: a reduction tells a part of the noise only, and
    what it leaves behind would be told later, beside the true value. What is debited is what travels.
    """
    assert channels.keys() == made_up.keys(), "a vector of its own for each channel"
    assert len(channels) * fraction <= 1, "no one can give more than is held"
    opened: dict[str, Outgoing] = {}
    shares: dict[str, NumberedTransfer] = {}
    left = held
    for peer, channel in channels.items():
        decoy = Mass.of(made_up[peer], held.weight)
        _, channel_after, share = give(decoy, {peer: channel}, fraction, form, at, draws, whole=True)
        opened |= channel_after
        shares |= share
        value_D, _ = carried(share[peer], form, held.value_D.shape[-1], None)
        left = Mass(left.value_D - value_D, left.weight - share[peer].weight)
    return left, masking.after(channels), opened, shares
