"""The names of the learning algorithms and their settings. Imports no torch, so that checking a file is quick.

An algorithm in which peers are equals is local training (`algorithms/local_training.py`) under a plan that says what
is averaged with whom. Local only, partial averaging and full averaging are the same program under three plans.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

#: Which partial models a method uses: none, those of the federation, or one that owns everything.
Sharing = Literal["nothing", "partial models", "everything"]


@dataclass(frozen=True)
class Method:
    """What a method shares, and whether weights between unrelated models are averaged too (Algorithm 2)."""

    sharing: Sharing
    cross_model: bool = False


def local() -> Method:
    """Each peer learns alone; nothing is sent."""
    return Method("nothing")


def partial_averaging(*, cross_model: bool = False) -> Method:
    """Slice by slice, each weight with the peers that the partial models name.

    Bouchra Pilet, Frey, Taiani 2021, Algorithm 1; with `cross_model` also Algorithm 2.
    """
    return Method("partial models", cross_model)


def full_averaging() -> Method:
    """The whole network is averaged among all peers (one global model)."""
    return Method("everything")


ALGORITHMS: dict[str, Callable[..., Method]] = {
    "local": local,
    "partial-averaging": partial_averaging,
    "full-averaging": full_averaging,
}
