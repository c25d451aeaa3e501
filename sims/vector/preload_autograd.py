"""The imports of `preload`, and those of torch's optimizers."""

from __future__ import annotations

from fedpeer.algorithms.warm_up import import_optimizers
from fedpeer.sims.vector import preload

__all__ = ["preload"]

import_optimizers()
