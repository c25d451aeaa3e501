"""Where runs are, where the files are that settings name, and files that a command writes for an option."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedpeer.cli.errors import ConfigError, Problem
from fedpeer.data.own import OWN
from fedpeer.peer.core.choice import Choice, ChoiceError, bind
from fedpeer.peer.core.federation import Federation


def runs_folder(out: Path | None) -> Path:
    """The folder of all runs: `--out`, else $FEDPEER_RUNS, else fedpeer-runs in the working folder."""
    return out or Path(os.environ.get("FEDPEER_RUNS") or "fedpeer-runs")


@contextmanager
def writable(path: Path, *, option: str) -> Iterator[None]:
    """Where a file is written: if it cannot be, say so, naming the option that asked for it."""
    try:
        yield
    except OSError as error:
        problem = Problem((), f"{path} cannot be written ({error.strerror}); name another file", option)
        raise ConfigError("the command line", [problem]) from None


def write_text(path: Path, text: str, *, option: str) -> None:
    """Write the file, or say why it cannot be written."""
    with writable(path, option=option):
        path.write_text(text, encoding="utf-8")


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
