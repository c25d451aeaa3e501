"""Where runs are, and files that a command writes because an option names them."""

from __future__ import annotations

import os
from pathlib import Path

from fedpeer.cli.errors import ConfigError, Problem


def runs_folder(out: Path | None) -> Path:
    """The folder of all runs: `--out`, else $FEDPEER_RUNS, else fedpeer-runs in the working folder."""
    return out or Path(os.environ.get("FEDPEER_RUNS") or "fedpeer-runs")


def write_text(path: Path, text: str, *, option: str) -> None:
    """Write the file, or say why it cannot be written, naming the option that asked for it."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        problem = Problem((), f"{path} cannot be written ({error.strerror}); name another file", option)
        raise ConfigError("the command line", [problem]) from None
