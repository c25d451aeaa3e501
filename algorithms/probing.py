"""Shapes and types of an algorithm's update, found by a trial, so that they are known before anything is sent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.coordinated import CoordinatedAlgorithm

#: Examples in a batch of the probe; some layers refuse a batch of one.
_PROBED = 2


def probed(algorithm: CoordinatedAlgorithm[Any, Any, Any, Any], client: Any, server: Any, batches: Batches) -> Any:
    """Return an update of one client from a trial round on batches of two examples; only its form matters.

    The round has as many steps as `batches`.

    Raises:
        AlgorithmError: the algorithm cannot train like this; the message says why.
    """
    return algorithm.train(client, algorithm.open(server, 1), small(batches), (0,))[1]


def small(batches: Batches) -> Batches:
    """Return a peer's round with as many steps, on batches of two examples."""
    return replace(batches, index=batches.index[..., :_PROBED], y=batches.y[:, :_PROBED])
