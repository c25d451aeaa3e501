"""Paths of data files in settings, made whole: what they are relative to is known only where the settings are read."""

from __future__ import annotations

from pathlib import Path

from fedpeer.data.own import OWN
from fedpeer.peer.core.choice import Choice, ChoiceError, bind
from fedpeer.peer.core.federation import Federation


def anchored(choice: Choice, folder: Path) -> Choice:
    """With the whole path of a user's own data file, so that it is found from any folder.

    A path in a file is relative to that file's folder, one in an option to the working folder.
    """
    try:
        path = bind(choice, OWN[choice.name]).get("path") if choice.name in OWN else None
    except ChoiceError:  # told as a mistake of the choice itself
        path = None
    if path is None:
        return choice
    others = {name: value for name, value in choice.settings.items() if name != "path"}
    return Choice(choice.name, str((folder / path).resolve()), others)


def anchored_federation(federation: Federation, folder: Path) -> Federation:
    """The same for the data of a federation's simulation."""
    dataset = anchored(federation.simulation.dataset, folder)
    simulation = federation.simulation.model_copy(update={"dataset": dataset})
    return federation.model_copy(update={"simulation": simulation})
