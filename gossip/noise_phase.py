"""The noise phase before an average: a peer's first shares reveal nothing about its value.

A peer that enters an averaging first sends a masked share to each of some neighbors: the weight of a usual share, and
a random value. It keeps the rest of its mass, its own value less the random ones. So nothing is lost: after the phase
averaging goes on as usual, and the noise averages away with everything else, since a peer that sent too much holds too
little by the same amount. Until its phase is over, a peer's estimate means nothing and is shown to no one, its owner
included; after it, the estimate is as close to the average as the exchanges since then make it.

To find a peer's value, an attacker must know every masked share and add it to the first true one. The shares are drawn
independently, so all p receivers must collude: if each neighbor is corrupted with probability tau, that happens with
probability tau ** p. Several shares to one neighbor count once, since a fixed overlay shows them to the same receiver.
An attacker that lacks one share knows the value only up to that noise, so its scale must exceed the range of values.

The random values must come from a source that neighbors cannot compute, so they are handed in; a run's own streams
follow from a seed that all peers know. Noise takes additional exchanges to average away: if it is s times as large as
the differences between peers, as many as the tolerance takes for a spread s times as large.

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
    """One peer's progress through the noise phase of one averaging.

    wanted     p: number of different neighbors that must get a masked share
    masked_to  neighbors that have got one
    """

    wanted: int
    masked_to: frozenset[str] = frozenset()

    @property
    def lifted(self) -> bool:
        """True if the phase is over."""
        return len(self.masked_to) >= self.wanted

    def among(self, neighbors: Collection[str]) -> NoisePhase:
        """Return the phase if only these neighbors are left: it ends with the last of them even if p is larger."""
        return replace(self, wanted=min(self.wanted, len(self.masked_to.union(neighbors))))

    def after(self, peers: Collection[str]) -> NoisePhase:
        """Return the phase after masked shares to these peers."""
        return replace(self, masked_to=self.masked_to.union(peers))


def noise_key(secret: bytes, *what: object) -> bytes:
    """Derive the key (32 bytes) of the masked shares of one occasion, named by `what`, from a peer's secret.

    The secret has up to 64 bytes.
    """
    return hashlib.blake2b(repr(what).encode(), key=secret, digest_size=32).digest()


def masked_shares(key: bytes, peer: str, length: int, scale: float) -> Tensor:
    """Draw a neighbor's normal numbers of this standard deviation, (length,) float64; repeated calls give the same.

    A neighbor that derives its stream's state from them still learns nothing of the key or of another's numbers.
    """
    stream = int.from_bytes(hashlib.blake2b(peer.encode(), key=key, digest_size=16).digest(), "little")
    return torch.from_numpy(np.random.Generator(np.random.PCG64(stream)).normal(0.0, scale, length))


def give_masked(
    held: Mass,
    masking: NoisePhase,
    channels: Mapping[str, Outgoing],
    fraction: float,
    form: Form,
    at: tuple[int, int],
    draws: np.random.Generator,
    masked_shares: Mapping[str, Tensor],
) -> tuple[Mass, NoisePhase, dict[str, Outgoing], dict[str, NumberedTransfer]]:
    """Give masked shares on channels that do not rest: return (mass kept, phase, channels, shares by peer).

    The shares travel uncompressed, as float32 or float64, whatever the form: compression would send only a part of the
    noise and the rest later, along with the true value. Exactly what travels is debited.
    """
    assert channels.keys() == masked_shares.keys(), "one vector for each channel"
    assert len(channels) * fraction <= 1, "no one can give more than is held"
    opened: dict[str, Outgoing] = {}
    shares: dict[str, NumberedTransfer] = {}
    left = held
    for peer, channel in channels.items():
        decoy = Mass.of(masked_shares[peer], held.weight)
        _, channel_after, share = give(decoy, {peer: channel}, fraction, form, at, draws, whole=True)
        opened |= channel_after
        shares |= share
        value_D, _ = carried(share[peer], form, held.value_D.shape[-1], None)
        left = Mass(left.value_D - value_D, left.weight - share[peer].weight)
    return left, masking.after(channels), opened, shares
