"""Where runs are, and files that a command writes because an option names them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedpeer.config.problems import ConfigError, ConfigProblem


def runs_folder(out: Path | None) -> Path:
    """The folder of all runs: `--out`, else $FEDPEER_RUNS, else fedpeer-runs in the working folder."""
    return out or Path(os.environ.get("FEDPEER_RUNS") or "fedpeer-runs")


@contextmanager
def writable(path: Path, *, option: str) -> Iterator[None]:
    """Where a file is written: if it cannot be, say so, naming the option that asked for it."""
    try:
        yield
    except OSError as error:
        problem = ConfigProblem((), f"{path} cannot be written ({error.strerror}); name another file", option)
        raise ConfigError("the command line", [problem]) from None


def write_new_text(path: Path, text: str, *, option: str) -> None:
    """Write the file, or say why it cannot be written."""
    with writable(path, option=option):
        path.write_text(text, encoding="utf-8")
