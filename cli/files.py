"""The folder of runs, and files that a command writes because an option names them."""

from __future__ import annotations

import errno
import os
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedpeer.config.problems import ConfigError, ConfigProblem


def runs_folder(out: Path | None) -> Path:
    """Return the folder of all runs: `--out`, else $FEDPEER_RUNS, else fedpeer-runs in the working folder."""
    return out or Path(os.environ.get("FEDPEER_RUNS") or "fedpeer-runs")


def out_option(root: Path) -> str:
    """Return ` --out FOLDER` for a command that has to find a run there, or "" where it looks by itself."""
    return "" if root == runs_folder(None) else f" --out {shlex.quote(str(root))}"


@contextmanager
def writable(path: Path, *, option: str) -> Iterator[None]:
    """Turn an OSError of the block into a ConfigError that names the option that asked for the file."""
    try:
        yield
    except OSError as error:
        problem = ConfigProblem((), f"{path} cannot be written ({error.strerror}); name another file", option)
        raise ConfigError("the command line", [problem]) from None


def check_writable(path: Path, *, option: str) -> None:
    """Check before long work that a file can be made or replaced at its end; leave nothing behind.

    Raises:
        ConfigError: it cannot; the message names `option`.
    """
    with writable(path, option=option):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with tempfile.TemporaryFile(dir=path.parent):
            pass


def write_new_text(path: Path, text: str, *, option: str) -> None:
    """Write a text file.

    Raises:
        ConfigError: it cannot be written; the message names `option`.
    """
    with writable(path, option=option):
        path.write_text(text, encoding="utf-8")


def make_new_folder(path: Path, *, option: str) -> None:
    """Make a folder.

    Raises:
        ConfigError: there is something in it already, or it cannot be made; the message names `option`.
    """
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        problem = ConfigProblem((), f"{path} is there already; remove it, or name another folder", option)
        raise ConfigError("the command line", [problem])
    with writable(path, option=option):
        path.mkdir(parents=True, exist_ok=True)
