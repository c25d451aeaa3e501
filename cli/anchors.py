"""Absolute paths in settings: what a path is relative to is known only where the settings are read."""

from __future__ import annotations

import hashlib
from pathlib import Path

from fedpeer.algorithms.start import STARTS
from fedpeer.config.choice import Choice, ChoiceError, bind_settings
from fedpeer.config.federation import Federation
from fedpeer.data.dataset import DataError
from fedpeer.data.own import OWN
from fedpeer.runs.trackers.registry import TRACKERS


def anchored(choice: Choice, folder: Path) -> Choice:
    """Return the choice with an absolute path if it names a user's own data file, so that any folder finds it.

    `folder` is what a relative path starts from: the settings file's folder, or the working folder for an option.
    """
    try:
        path = bind_settings(choice, OWN[choice.name]).get("path") if choice.name in OWN else None
    except ChoiceError:  # reported where the choice itself is checked
        path = None
    if path is None:
        return choice
    others = {name: value for name, value in choice.settings.items() if name != "path"}
    return Choice(choice.name, str((folder / path).resolve()), others)


def anchored_federation(federation: Federation, folder: Path) -> Federation:
    """Return the federation with absolute paths of its simulation's data and of its start model, with a digest."""
    dataset = anchored(federation.simulation.dataset, folder)
    tracking = tuple(anchored_tracker(each, folder) for each in federation.simulation.tracking)
    simulation = federation.simulation.model_copy(update={"dataset": dataset, "tracking": tracking})
    found: dict[str, object] = {"simulation": simulation}
    path = start_file(federation)
    if path is not None:
        start = Choice("file", str((folder / path).resolve()), {"digest": _digest(folder / path)})
        found["learning"] = federation.learning.model_copy(update={"start": start})
    return federation.model_copy(update=found)


def anchored_tracker(choice: Choice, folder: Path) -> Choice:
    """Return a tracker with an absolute path if it writes into a folder."""
    try:
        path = bind_settings(choice, TRACKERS[choice.name]).get("folder") if choice.name in TRACKERS else None
    except ChoiceError:  # reported where the choice itself is checked
        path = None
    return choice if path is None else Choice(choice.name, None, {"folder": str((folder / path).resolve())})


def start_file(federation: Federation) -> Path | None:
    """Return the file of the model that a federation starts from, as written in its settings, or None."""
    start = federation.learning.start
    if start is None or start.name != "file":
        return None
    path = bind_settings(start, STARTS["file"]).get("path")
    if not path:
        raise DataError("learning.start: file needs the path of a model; write it like file:model.safetensors")
    return Path(path)


def _digest(path: Path) -> str:
    """Return the hex BLAKE2b-128 of a file, by which peers compare their copies."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    except OSError as problem:
        raise DataError(
            f"learning.start: {path} cannot be read ({problem.strerror}); copy the model to that path"
        ) from None
