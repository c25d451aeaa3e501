"""Imports and compilation that libraries defer, done by a process before it forks: its children share them."""

from __future__ import annotations

import numpy as np
import torch

from fedpeer.algorithms import linear_stack
from fedpeer.algorithms.losses import LOSSES


def load_compiled_loop() -> None:
    """Load the compiled loop over single examples, or compile it."""
    from fedpeer.algorithms import single_sample  # late: numba takes 60 MB, which no optimizer needs

    layer = linear_stack.Layer(fan_in=1, fan_out=1, weight=0, bias=1, activation="identity")
    single_sample.train_single_samples(
        single_sample.example_table((layer,)),
        LOSSES["cross-entropy"],
        np.zeros(2, np.float32),
        np.zeros((1, 1), np.float32),
        np.zeros(1, np.int64),
        0.0,
    )


def import_optimizers() -> None:
    """Make torch import the modules that its optimizers need: building the first one takes a second and 70 MB."""
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.0)
