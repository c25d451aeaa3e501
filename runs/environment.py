"""The environment of a run: versions, machine, git revision. It names no host, user or folder."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fedpeer.version import __version__

#: Packages beside fedpeer whose version can change results.
_PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "numba", "networkx")


def environment(device: str, device_name: str | None = None) -> dict[str, Any]:
    """Return versions, processor count, system and git revision for `environment.json`; import none of the packages.

    Args:
        device_name: of a GPU; None for a CPU.
    """
    return {
        "device": device,
        **({} if device_name is None else {"device_name": device_name}),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": {"fedpeer": __version__, **{name: _version(name) for name in _PACKAGES}},
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "processors": os.cpu_count(),
        "git": _revision(),
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _revision() -> dict[str, Any] | None:
    """Return the commit of the current folder and whether files differ from it; None without git or a checkout."""
    commit, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain", "--untracked-files=no")
    return None if commit is None else {"commit": commit, "changed": bool(changes)}


def _git(*arguments: str) -> str | None:
    try:
        answer = subprocess.run(("git", *arguments), capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
