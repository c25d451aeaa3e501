"""Settings of the noise phase before each average (`noise_phase.py`), without torch: checking a file needs none."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass


class NoiseError(ValueError):
    """The user's noise phase is invalid; the message names the setting and what to write instead."""


@dataclass(frozen=True, slots=True)
class Noise:
    """A noise phase.

    pushes   p: the least number of different neighbors to which a peer sends masked shares before the first true one
    scale    standard deviation of the masked shares' numbers, in the units of the parameters
    """

    pushes: int
    scale: float

    def __post_init__(self) -> None:
        if self.pushes < 1:
            raise NoiseError(f"noise: pushes = {self.pushes}: write 1 or more neighbors")
        if not (self.scale > 0 and math.isfinite(self.scale)):
            raise NoiseError(f"noise: scale = {self.scale:g}: write a number above 0, as large as the values to hide")

    def tolerance(self, wanted: float) -> float:
        """Return the relative disagreement at which the noise, too, is averaged below `wanted`, in parameter units."""
        return wanted / (1 + self.scale)


def no_noise() -> None:
    """No noise phase: all shares are true."""


def gossip_noise(*, pushes: int = 2, scale: float = 1.0) -> Noise:
    """Before each average, a peer sends masked shares to at least `pushes` neighbors; the noise averages away.

    Source: Bouchra Pilet, Frey, Taiani 2019.
    """
    return Noise(pushes, scale)


PHASES: Mapping[str, Callable[..., Noise | None]] = {"none": no_noise, "noise": gossip_noise}
