"""Imports that the fork server does once for all workers: torch, the engine and the compiled training loop.

Imported by the fork server only.
"""

from __future__ import annotations

from fedpeer.algorithms.warm_up import load_compiled_loop
from fedpeer.sims.vector import worker

__all__ = ["worker"]

load_compiled_loop()
