"""Absolute paths in settings: what a path is relative to is known only where the settings are read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from fedpeer.algorithms.start import STARTS
from fedpeer.config.choice import Choice, ChoiceError, bind_settings
from fedpeer.config.federation import Federation
from fedpeer.config.pretrained import PATHS, PRETRAINED, pretrained_network
from fedpeer.data.dataset import DataError
from fedpeer.data.own import OWN
from fedpeer.data.own.text import tokenizer_files
from fedpeer.learning.model_folder import folder_digest
from fedpeer.runs.trackers.registry import TRACKERS

#: The settings of a user's own data that are paths of files.
_LOCATED = {"path", "tokenizer"}


def located(path: str | Path, folder: Path) -> Path:
    """Return a path that a person wrote as absolute: relative to this folder, or to a home, as `~/data/ward3.csv`."""
    return (folder / os.path.expanduser(path)).resolve()


def anchored(choice: Choice, folder: Path) -> Choice:
    """Return the choice with absolute paths if it names a user's own data file, so that any folder finds it.

    `folder` is what a relative path starts from: the settings file's folder, or the working folder for an option.
    """
    try:
        found = bind_settings(choice, OWN[choice.name]) if choice.name in OWN else {}
    except ChoiceError:  # reported where the choice itself is checked
        found = {}
    if "path" not in found:
        return choice
    others = {name: value for name, value in choice.settings.items() if name != "path"}
    if found.get("tokenizer"):
        others["tokenizer"] = str(located(found["tokenizer"], folder))
    return Choice(choice.name, str(located(found["path"], folder)), others)


def anchored_network(choice: Choice, folder: Path) -> Choice:
    """Return the choice of a network with absolute paths and digests if it is a pretrained one.

    Raises:
        NetworkError: its files cannot be read.
    """
    if choice.name != PRETRAINED:
        return choice
    settings = dict(choice.settings)
    chosen = pretrained_network(choice)
    for name, digest in PATHS.items():
        if path := getattr(chosen, name):
            settings[name] = str(located(path, folder))
            settings[digest] = folder_digest(Path(settings[name]), "model" if name == "path" else name)
    return Choice(choice.name, settings.pop("path"), settings)


def anchored_federation(
    federation: Federation, folder: Path, options: Collection[tuple[str | int, ...]] = ()
) -> Federation:
    """Return the federation with absolute paths of its simulation's data, and of the models that it begins with.

    The digests of these models are filled in, too.

    Args:
        folder: the folder of the settings' file.
        options: the settings that come from options, whose paths start from the working folder.
    """

    def start(*setting: str) -> Path:
        return Path() if setting in options else folder

    dataset = anchored(federation.simulation.dataset, start("simulation", "dataset"))
    tracked = start("simulation", "tracking")
    tracking = tuple(anchored_tracker(each, tracked) for each in federation.simulation.tracking)
    networks = {name: anchored_network(each, folder) for name, each in federation.simulation.networks.items()}
    simulation = federation.simulation.model_copy(
        update={"dataset": dataset, "tracking": tracking, "networks": networks}
    )
    found: dict[str, object] = {"simulation": simulation}
    path = start_file(federation)
    if path is not None:
        model = located(path, folder)
        begun = Choice("file", str(model), {"digest": _digest(model)})
        found["learning"] = federation.learning.model_copy(update={"start": begun})
    if federation.network is not None:
        found["network"] = anchored_network(federation.network, start("network"))
    return federation.model_copy(update=found)


def same_data(one: Choice, other: Choice) -> bool:
    """Return whether two anchored choices of data differ in nothing but the paths of their files.

    Files are read only if nothing else differs.

    Raises:
        DataError: one of them cannot be read.
    """
    if one == other or one.name != other.name or one.name not in OWN:
        return one == other
    found, wanted = (bind_settings(each, OWN[each.name]) for each in (one, other))
    if found.keys() != wanted.keys():
        return False
    differing = [name for name in found if found[name] != wanted[name]]
    return {*differing} <= _LOCATED and all(_content(name, found) == _content(name, wanted) for name in differing)


def _content(setting: str, settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the files that a setting names, each as its path relative to the setting's and its digest."""
    root = Path(settings[setting])
    try:
        files = tokenizer_files(root) if setting == "tokenizer" else _files_of(root, of_users="user" in settings)
        return [(file.relative_to(root).as_posix(), _file_digest(file)) for file in files]
    except OSError as problem:
        raise DataError(f"{problem.filename} cannot be read ({problem.strerror})") from None


def _files_of(root: Path, *, of_users: bool) -> list[Path]:
    """Return the files of data: one file, or those of a folder with a folder for each class.

    Args:
        of_users: whether the folders of the classes are in a folder for each user.
    """
    return sorted(root.glob("/".join(["[!.]*"] * (3 if of_users else 2)))) if root.is_dir() else [root]


def anchored_tracker(choice: Choice, folder: Path) -> Choice:
    """Return a tracker with an absolute path if it writes into a folder."""
    try:
        path = bind_settings(choice, TRACKERS[choice.name]).get("folder") if choice.name in TRACKERS else None
    except ChoiceError:  # reported where the choice itself is checked
        path = None
    return choice if path is None else Choice(choice.name, None, {"folder": str(located(path, folder))})


def start_file(federation: Federation) -> Path | None:
    """Return the file of the model that a federation starts from, as written in its settings, or None."""
    start = federation.learning.start
    if start is None or start.name != "file":
        return None
    path = bind_settings(start, STARTS["file"]).get("path")
    if not path:
        raise DataError("learning.start: file needs the path of a model; write it like file:model.safetensors")
    return Path(path)


def models_named(federation: Federation) -> list[Path]:
    """Return the files and folders of trained models that a federation begins with, as written in its settings."""
    start = start_file(federation)
    network = federation.network
    chosen = pretrained_network(network) if network is not None and network.name == PRETRAINED else None
    folders = [] if chosen is None else [getattr(chosen, name) for name in PATHS]
    return [*([] if start is None else [start]), *(Path(each) for each in folders if each)]


def _digest(path: Path) -> str:
    """Return the hex BLAKE2b-128 of a file, by which peers compare their copies."""
    try:
        return _file_digest(path)
    except OSError as problem:
        raise DataError(
            f"learning.start: {path} cannot be read ({problem.strerror}); copy the model to that path"
        ) from None


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
