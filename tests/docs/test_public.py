"""`import fedpeer` is quick, and everything that it promises exists."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib

import fedpeer
from fedpeer.runs.environment import environment

from .pages import ROOT


def test_importing_it_imports_no_torch() -> None:
    code = "import sys, fedpeer; assert fedpeer.Dataset and fedpeer.Federation; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_every_public_name_resolves_and_is_explained() -> None:
    assert fedpeer.__doc__ is not None
    for name in fedpeer.__all__:
        assert getattr(fedpeer, name).__name__ == name
        assert name in fedpeer.__doc__
        assert name in dir(fedpeer)
        assert f"`fedpeer.{name}`" in (ROOT / "docs" / "python.md").read_text(encoding="utf-8")


def test_there_is_one_version() -> None:
    """The package's metadata is read from the source of `fedpeer.__version__`; files that repeat the version agree."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" not in settings["project"]
    assert "version" in settings["project"]["dynamic"]
    module, _, name = settings["tool"]["setuptools"]["dynamic"]["version"]["attr"].rpartition(".")
    version = getattr(importlib.import_module(module), name)
    newest = found(r"^## (\S+)", "CHANGELOG.md")
    assert {
        fedpeer.__version__,
        newest,
        found(r"^version: (\S+)", "CITATION.cff"),
        environment("cpu")["packages"]["fedpeer"],
    } == {version}
    assert found(r"^Version (\S+) ", "README.md") == version.rpartition(".")[0]


def found(pattern: str, page: str) -> str:
    """Return the first group of the pattern's first match in the page."""
    match = re.search(pattern, (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert match is not None, f"{page} does not say {pattern}"
    return match[1]
