"""`import fedpeer`: quick, and everything that it promises is there."""

from __future__ import annotations

import subprocess
import sys

import fedpeer

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
