"""Privacy for any algorithm whose clients send a model: changes are clipped, get noise, and have equal weights.

The guarantees and their limits are in `privacy.py`.

Noise that other peers can compute protects no client, and all other randomness of a run follows from a seed that all
peers know. So a client's noise comes from its `secret`: bytes that a real peer draws once, keeps and never reveals. In
a simulation the secret may be empty, so that the seed determines the run; then the noise costs accuracy, and hides
nothing. The stream is SHAKE-256 of the secret and of the key of (peer, round). A common generator is not safe: a
coordinate that training never changes reveals its noise, and some numbers of such a generator determine all others. The
same key gives the same noise, so an update must be kept and sent again as it is, not computed again from another model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.leaves import leaves_of, rebuilt
from fedpeer.algorithms.precision import widest
from fedpeer.algorithms.privacy import Privacy
from fedpeer.algorithms.registry import SEND_A_MODEL
from fedpeer.algorithms.wrapper import Inner, Wrapper

#: First bytes of the hashed input.
_TAG = b"fedpeer noise 1 "


def protected(algorithm: Inner, privacy: Privacy | None, *, participants: int, secret: bytes = b"") -> Inner:
    """Return the algorithm with this privacy, or the algorithm itself for None.

    Args:
        participants: K, number of clients that take part in a round (`registry.taking_part`).
        secret: the client's secret, or that of all clients that are simulated in one place.

    Raises:
        AlgorithmError: its clients send more than a model, or running statistics of normalization.
    """
    return algorithm if privacy is None else Private(algorithm, privacy, participants=participants, secret=secret)


class Private(Wrapper):
    """An algorithm whose clients send private updates."""

    def __init__(self, inner: Inner, privacy: Privacy, *, participants: int, secret: bytes = b"") -> None:
        super().__init__(inner)
        if not inner.moved:
            raise _not_private(f"protects changes of a model, but clients of {_name(inner)} do not send a model alone")
        statistics = inner.running_statistics()
        if statistics is not None and statistics.any():
            raise AlgorithmError(
                "learning.privacy: the network keeps running statistics, or another buffer that is averaged; variances "
                "could be negative with noise, and are not private without; register a table of constants with "
                "persistent=False, and take a network without running statistics (norm=none), or fedbn: its clients "
                "keep them"
            )
        assert participants >= 1, "a round has a participant"
        self.privacy, self.participants_count, self.secret = privacy, participants, secret

    def train(self, client: Any, broadcast: Any, batches: Batches, keys: Sequence[int]) -> tuple[Any, Any]:
        trained, update = self.inner.train(client, broadcast, batches, keys)
        return trained, self._private(update, leaves_of(broadcast), keys)

    def _private(self, update: Any, broadcast: Mapping[str, Tensor], keys: Sequence[int]) -> Any:
        """Return the update with clipped changes, noise and counts of 1; leading dimensions as the clients have."""
        sent = leaves_of(update)
        if bare := self.besides_a_model(update):
            raise _not_private(f"is incomplete: clients of {_name(self.inner)} would send {bare[0]} as it is")
        widths = [sent[name].shape[-1] for name in self.moved]
        change_D = torch.cat([_change(sent[name], broadcast[name]) for name in self.moved], -1)
        private_D = clipped(change_D, self.privacy.clip)
        deviation = self.privacy.deviation(self.participants_count)
        if deviation:
            drawn = np.stack([private_noise(self.secret, key, sum(widths)) for key in keys])
            private_D = private_D + deviation * torch.from_numpy(drawn).to(private_D).reshape(private_D.shape)
        leaving = {name: torch.ones_like(sent[name]) for name in self.counts if name in sent}
        first = 0
        for name, width in zip(self.moved, widths, strict=True):
            leaving[name] = (broadcast[name] + private_D[..., first : first + width]).to(sent[name].dtype)
            first += width
        return rebuilt(update, leaving)


def _name(algorithm: Inner) -> str:
    return type(algorithm).__name__


def _not_private(text: str) -> AlgorithmError:
    return AlgorithmError(f"learning.privacy {text}; write privacy: none, or take one of {', '.join(SEND_A_MODEL)}")


def _change(became: Tensor, was: Tensor) -> Tensor:
    return became.to(widest(became.device)) - was


def clipped(change_D: Tensor, clip: float) -> Tensor:
    """Return changes (..., D), each scaled down to length `clip` if it is longer.

    A change with NaN or infinity counts as 0: a rejection would reveal something about the client.
    """
    finite = change_D.isfinite().all(-1, keepdim=True)
    change_D = torch.where(finite, change_D, 0)
    length: Tensor = torch.linalg.vector_norm(change_D, dim=-1, keepdim=True)
    return change_D * (clip / length.clamp(min=clip))


def private_noise(secret: bytes, key: int, count: int) -> NDArray[np.float64]:
    """Return independent standard normal numbers, (count,), that cannot be computed without the secret.

    The same arguments give the same numbers: 52 bits of SHAKE-256 for each, through the inverse of the normal
    distribution; the largest is 8.2.
    """
    from scipy.special import ndtri  # takes a quarter of a second

    stream = hashlib.shake_256(_TAG + len(secret).to_bytes(4, "little") + secret + key.to_bytes(16, "little"))
    bits = np.frombuffer(stream.digest(8 * count), dtype="<u8") >> np.uint64(12)
    drawn: NDArray[np.float64] = ndtri((bits.astype(np.float64) + 0.5) * 2.0**-52)
    return drawn
