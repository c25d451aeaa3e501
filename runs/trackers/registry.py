"""The trackers by name. A tracker's library and its extra have its name.

The keyword-only parameters of a function are the settings; it returns a `Tracker` and imports nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.util import find_spec

from fedpeer.runs.trackers.mlflow import mlflow
from fedpeer.runs.trackers.tensorboard import tensorboard
from fedpeer.runs.trackers.tracker import Tracker, TrackingError
from fedpeer.runs.trackers.wandb import wandb

TRACKERS: dict[str, Callable[..., Tracker]] = {
    "tensorboard": tensorboard,
    "mlflow": mlflow,
    "wandb": wandb,
}


def check_installed(names: Iterable[str], place: str) -> None:
    """Check that the libraries of these trackers are installed; none is imported.

    Args:
        place: the setting that names them, for the error.

    Raises:
        TrackingError: one is missing.
    """
    missing = [name for name in dict.fromkeys(names) if find_spec(name) is None]
    if missing:
        extras = ",".join(missing)
        text = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed"
        raise TrackingError(f"{place}: {text}; run  pip install 'fedpeer[{extras}]'")
