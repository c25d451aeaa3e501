"""Imports that the fork server does once for all workers: torch, the engine and the compiled training loop.

Imported by the fork server only.
"""

from __future__ import annotations

import numpy as np

from fedpeer.algorithms import linear_stack, single_sample
from fedpeer.algorithms.losses import LOSSES
from fedpeer.sims.vector import worker

__all__ = ["worker"]

_LAYER = linear_stack.Layer(fan_in=1, fan_out=1, weight=0, bias=1, activation="identity")
single_sample.train_single_samples(
    single_sample.example_table((_LAYER,)),
    LOSSES["cross-entropy"],
    np.zeros(2, np.float32),
    np.zeros((1, 1), np.float32),
    np.zeros(1, np.int64),
    0.0,
)
