"""The environment of a run: versions, machine, git revision. It names no host, user or folder."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

from fedpeer.version import __version__

#: The folder in which the package `fedpeer` is: the checkout, or site-packages.
_PLACE = Path(__file__).parents[2]
#: File of archives and wheels with the commit that they were built from; `setup.py` writes it.
BUILT_FROM = "fedpeer/COMMIT"
#: Packages beside fedpeer whose version can change results.
_PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "numba", "networkx")


def environment(device: str, device_name: str | None = None) -> dict[str, Any]:
    """Return versions, processor count, system and git revision for `environment.json`; import none of the packages.

    Args:
        device_name: the name of a GPU; None for a CPU.
    """
    return {
        "device": device,
        **({} if device_name is None else {"device_name": device_name}),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": {"fedpeer": __version__, **{name: _version(name) for name in _PACKAGES}},
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "processors": os.cpu_count(),
        "git": _revision(Path()),
    }


def source_commit() -> str | None:
    """Return the commit of fedpeer's own code, as far as it is known.

    For a checkout it is the current commit, marked as changed if files differ from it. For an installation it is the
    commit that it was built from, or that pip noted.
    """
    if (_PLACE / ".git").exists():
        found = _revision(_PLACE)
        return None if found is None else found["commit"][:12] + ", changed" * found["changed"]
    built = _PLACE / BUILT_FROM
    if built.exists():
        return built.read_text(encoding="utf-8").strip()
    try:
        installed = json.loads(distribution("fedpeer").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        return None
    commit = installed.get("vcs_info", {}).get("commit_id")
    return None if commit is None else str(commit)[:12]


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _revision(folder: Path) -> dict[str, Any] | None:
    """Return the commit of a folder and whether files differ from it; None without git or a checkout."""
    commit, changes = _git(folder, "rev-parse", "HEAD"), _git(folder, "status", "--porcelain", "--untracked-files=no")
    return None if commit is None else {"commit": commit, "changed": bool(changes)}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        answer = subprocess.run(
            ("git", "-C", str(folder), *arguments), capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
