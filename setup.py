"""Write the commit into archive and wheel, so that `fedpeer --version` can name it; pyproject.toml has all else."""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

sys.path.insert(0, str(Path(__file__).parent))
from fedpeer.runs.environment import BUILT_FROM, source_commit


def write_commit(folder: str) -> None:
    """Write the commit of this checkout, or of the archive that this is, into what is built in a folder."""
    commit = source_commit()
    if commit is not None:
        (Path(folder) / BUILT_FROM).write_text(commit + "\n", encoding="utf-8")


class BuildWithCommit(build_py):
    """Copy the packages, and write the commit beside them; an editable installation is its checkout."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            write_commit(self.build_lib)


class ArchiveWithCommit(sdist):
    """Copy the sources, and write the commit among them."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        write_commit(base_dir)


setup(cmdclass={"build_py": BuildWithCommit, "sdist": ArchiveWithCommit})
