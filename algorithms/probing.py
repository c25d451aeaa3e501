"""What an update of an algorithm looks like, found by trying: shapes and types are known before anything travels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.coordinated import CoordinatedAlgorithm

#: Examples in a batch of the probe; some layers refuse a batch of one.
_PROBED = 2


def probed(algorithm: CoordinatedAlgorithm[Any, Any, Any, Any], client: Any, server: Any, batches: Batches) -> Any:
    """An update of one client, from a round of as many steps on batches of two examples; only its form matters.

    Raises:
        AlgorithmError: the algorithm cannot train so; the message says why.
    """
    return algorithm.train(client, algorithm.open(server, 1), small(batches), (0,))[1]


def small(batches: Batches) -> Batches:
    """A peer's round of as many steps on batches of two examples."""
    return replace(batches, index=batches.index[..., :_PROBED], y=batches.y[:, :_PROBED])
