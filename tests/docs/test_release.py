"""The release script, the packages that it builds, and the files of an open project."""

from __future__ import annotations

import datetime
import importlib.util
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from ruamel.yaml import YAML

import fedpeer
from fedpeer.runs.environment import BUILT_FROM, source_commit
from tests.runs.test_environment import git

from .pages import ROOT

DATE = datetime.date(2026, 12, 24)
CHANGELOG = "# Changelog\n\n## 0.9.0 (unreleased)\n\n- More.\n\n## 0.8.0 (2026-01-02)\n\n- Less.\n"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    found = importlib.util.spec_from_file_location("release", ROOT / ".ci" / "release.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a checkout of a small package with the files that a release changes."""
    files = {
        "CHANGELOG.md": CHANGELOG,
        "CITATION.cff": "title: fedpeer\nversion: 0.8.0\ndate-released: 2026-01-02\nlicense: Apache-2.0\n",
        "fedpeer/__init__.py": "",
        "fedpeer/version.py": '"""The version."""\n\n__version__ = "0.8.0"\n',
        "pyproject.toml": (ROOT / "pyproject.toml").read_text(encoding="utf-8"),
        "README.md": "fedpeer\n",
        "LICENSE": "free\n",
        ".ci/run": "#!/bin/sh\nexit 1\n",
        ".gitignore": "dist/\nbuild/\n*.egg-info/\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / ".ci" / "run").chmod(0o755)
    for words in (["init", "--quiet"], ["config", "user.name", "ann"], ["config", "user.email", "ann@example.org"]):
        git(tmp_path, *words)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "all")
    return tmp_path


def test_a_release_is_a_commit_with_version_and_date_and_a_tag(
    script: ModuleType, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script.sys, "executable", "true")  # the next test checks the built packages
    script.release(checkout, "0.9.0", DATE, check=False)
    assert (checkout / "CHANGELOG.md").read_text() == CHANGELOG.replace("unreleased", "2026-12-24")
    assert (checkout / "CITATION.cff").read_text() == (
        "title: fedpeer\nversion: 0.9.0\ndate-released: 2026-12-24\nlicense: Apache-2.0\n"
    )
    assert '__version__ = "0.9.0"' in (checkout / "fedpeer" / "version.py").read_text()
    assert git(checkout, "status", "--porcelain") == ""
    assert git(checkout, "rev-parse", "v0.9.0^{commit}") == git(checkout, "rev-parse", "HEAD")
    with pytest.raises(script.ReleaseError, match=r"there is a tag v0\.9\.0 already"):
        script.release(checkout, "0.9.0", DATE, check=False)


@pytest.mark.parametrize(
    ("version", "change", "problem"),
    [
        ("0.9", "", "0.9 is no version such as"),
        ("1.0.0", "", "newest section of CHANGELOG.md is of 0.9.0, not of 1.0.0"),
        ("0.9.0", "README.md", "the checkout has changes"),
    ],
)
def test_what_has_to_be_mended_first_is_said(
    script: ModuleType, checkout: Path, version: str, change: str, problem: str
) -> None:
    if change:
        (checkout / change).write_text("changed")
    before = git(checkout, "status", "--porcelain")
    with pytest.raises(script.ReleaseError, match=problem):
        script.release(checkout, version, DATE)
    assert git(checkout, "status", "--porcelain") == before


def test_a_failed_check_leaves_nothing_behind(script: ModuleType, checkout: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        script.release(checkout, "0.9.0", DATE)
    assert git(checkout, "status", "--porcelain") == ""
    assert git(checkout, "tag") == ""


@pytest.mark.slow
def test_wheel_and_source_archive_have_all_of_it_and_run(tmp_path: Path) -> None:
    """The wheel is made from the source archive, and used without a checkout."""
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (archive,), (wheel,) = tmp_path.glob("*.tar.gz"), tmp_path.glob("*.whl")
    assert archive.name == f"fedpeer-{fedpeer.__version__}.tar.gz"
    packages = sorted(each.name for each in (ROOT / "fedpeer").iterdir() if each.is_symlink())
    kinds = {".py", ".css", ".html", ".js", ".typed", ".yaml", ".md", ".ipynb"}
    expected = {
        f"fedpeer/{path.relative_to(ROOT)}"
        for name in packages
        for path in (ROOT / name).rglob("*")
        if path.suffix in kinds and "__pycache__" not in path.parts
    } | {f"fedpeer/{path.name}" for path in (ROOT / "fedpeer").iterdir() if path.suffix in kinds}
    expected.add(BUILT_FROM)
    with zipfile.ZipFile(wheel) as file:
        assert {name for name in file.namelist() if ".dist-info/" not in name} == expected
        assert any(name.endswith("licenses/LICENSE") for name in file.namelist())
    with tarfile.open(archive) as source:
        names = {name.partition("/")[2] for name in source.getnames()}
    assert {"README.md", "LICENSE", "pyproject.toml", "setup.py", BUILT_FROM} <= names
    target = tmp_path / "installed"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*install, "--target", str(target), str(wheel)], check=True)
    shown = subprocess.run(
        [str(target / "bin" / "fedpeer"), "--version"],
        env={"PYTHONPATH": str(target), "PATH": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert shown.stdout == f"fedpeer {fedpeer.__version__} (commit {source_commit()})\n", shown.stderr


def test_the_workflow_does_what_a_developer_does() -> None:
    (job,) = YAML(typ="safe").load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    (hooks,) = YAML(typ="safe").load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    check = (ROOT / "Makefile").read_text()
    for hook in hooks["hooks"]:
        words = hook["entry"].removeprefix(".venv/bin/")
        assert f"$(BIN)/{words}" in check
