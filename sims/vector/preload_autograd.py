"""The imports of `preload`, and torch's optimisers: building the first one imports modules for a second."""

from __future__ import annotations

import torch

from fedpeer.sims.vector import preload

__all__ = ["preload"]

torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.0)
