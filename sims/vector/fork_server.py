"""The fork server of the vector engine: a process that imports what all workers need, once, and forks them.

It takes as long to start as a run does to load torch and the data. This module does not import torch, so a command can
start the server first, and both happen at once.
"""

from __future__ import annotations

import inspect
import multiprocessing
import shutil
import signal
import sys
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING

from fedpeer.data.registry import DATASETS

if TYPE_CHECKING:
    from fedpeer.config.settings import FederationSettings
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
    """Start the fork server if the run will need it, and the settings tell which imports."""
    if sys.platform == "win32" or request.engine != "vector" or not _trains_on_cpu(request.device):
        return
    autograd = _needs_autograd(request.federation)
    if autograd is not None:
        worker_context(autograd=autograd)


def _needs_autograd(federation: FederationSettings) -> bool | None:
    """Return whether training will need torch's optimizers; None: only data and network will tell.

    A wrong answer is not a mistake, but if it is False each worker imports them for itself.
    """
    learning, network, dataset = federation.learning, federation.network, federation.simulation.dataset
    if learning.optimizer.name.lower() != "sgd" or learning.optimizer.settings.keys() - {"lr", "momentum"}:
        return True
    if learning.changes_network or (learning.loss is not None and learning.loss.name == "python"):
        return None
    if network is not None:
        plain = network.name == "mlp" and not network.settings.keys() - {"hidden", "layers", "activation"}
        return False if plain else None if network.name == "mlp" else True
    if dataset.name == "digits":
        return False
    loader = DATASETS.get(dataset.name)
    shape = inspect.signature(loader).parameters.get("shape") if loader is not None else None
    return None if shape is None else dataset.settings.get("shape", shape.default) == "image"


def _trains_on_cpu(device: str) -> bool:
    """Return whether training will probably take place on the CPU; torch, which knows, is not imported yet."""
    return device == "cpu" or (device == "auto" and shutil.which("nvidia-smi") is None and sys.platform != "darwin")
