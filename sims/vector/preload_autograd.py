"""As `preload`, for jobs with torch's optimisers: building the first one imports a second's worth of torch."""

from __future__ import annotations

import torch

from fedpeer.sims.vector import preload

__all__ = ["preload"]

torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.0)
