"""What is asked for of a phase of noise before each average (`masking.py`).

Nothing here needs torch, so that a federation file is checked without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass


class NoiseError(ValueError):
    """A phase of noise that cannot be played; the message says what to write instead."""


@dataclass(frozen=True, slots=True)
class Noise:
    """A phase of noise.

    pushes   p: to how many different neighbours, at least, a peer sends masked shares before the first true one
    scale    the standard deviation of the numbers in them, in the units of the parameters
    """

    pushes: int
    scale: float

    def __post_init__(self) -> None:
        if self.pushes < 1:
            raise NoiseError(f"noise: pushes = {self.pushes}: write 1 or more neighbours")
        if not (self.scale > 0 and math.isfinite(self.scale)):
            raise NoiseError(f"noise: scale = {self.scale:g}: write a number above 0, as large as what it is to hide")

    def tolerance(self, options: float) -> float:
        """For which relative disagreement exchanges are counted, so that what is left of the noise is below `options`,
        in
        the units of the parameters."""
        return options / (1 + self.scale)


def no_noise() -> None:
    """Shares are true from the first one on."""


def gossip_noise(*, pushes: int = 2, scale: float = 1.0) -> Noise:
    """Before each average a peer sends masked shares to so many neighbours at least, which averages away.

    Bouchra Pilet, Frey, Taiani 2019.
    """
    return Noise(pushes, scale)


PHASES: Mapping[str, Callable[..., Noise | None]] = {"none": no_noise, "noise": gossip_noise}
