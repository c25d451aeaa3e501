"""The fork server of the vector engine: a process that imports what all workers need, once, and forks them.

It takes as long to start as a run does to load torch and the data. This module does not import torch, so a command can
start the server first, and both happen at once.
"""

from __future__ import annotations

import multiprocessing
import shutil
import signal
import sys
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedpeer.sims.request import SimulationRequest


def worker_context(*, autograd: bool) -> BaseContext:
    """Return the context in which workers start, with its server running.

    Args:
        autograd: whether the server, unless it runs already, imports what torch's optimizers need as well: two seconds
            and 70 MB.
    """
    if sys.platform == "win32":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fedpeer.sims.vector." + ("preload_autograd" if autograd else "preload")])
    resource_tracker.ensure_running()  # the server needs it; its start would unblock the signal again
    # The server inherits this, so that Ctrl-C does not interrupt its imports: the leading process decides.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return context


def start_early(request: SimulationRequest) -> None:
    """Start the fork server if the run will need it.

    Its imports are those that the settings make likely, since networks are not built yet. If that turns out to be
    wrong, each worker imports the rest itself.
    """
    if sys.platform == "win32" or request.engine != "vector" or not _trains_on_cpu(request.device):
        return
    network, optimizer = request.federation.network, request.federation.learning.optimizer
    perceptron = network is None or network.name == "mlp"
    worker_context(autograd=not perceptron or optimizer.name.lower() != "sgd")


def _trains_on_cpu(device: str) -> bool:
    """Return whether training will probably take place on the CPU; torch, which knows, is not imported yet."""
    return device == "cpu" or (device == "auto" and shutil.which("nvidia-smi") is None and sys.platform != "darwin")
