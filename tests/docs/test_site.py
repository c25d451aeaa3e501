"""The documentation as a site: no page is missing, no link is broken, and each public name is in the reference."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

import fedpeer
from tests.docs.test_pages import loaded

from .pages import PAGES, ROOT


def nav(entries: list[object]) -> set[str]:
    """Return the pages of a part of the navigation."""
    found: set[str] = set()
    for entry in entries:
        assert isinstance(entry, dict)
        (inside,) = entry.values()
        found |= nav(inside) if isinstance(inside, list) else {inside}
    return found


def test_every_page_is_in_the_navigation_and_every_link_leads_somewhere(tmp_path: Path) -> None:
    files = {str(path) for path in loaded(ROOT / "docs" / "stage_site.py").stage(tmp_path / "pages")}
    pages = nav(YAML(typ="safe").load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    assert {str(page.relative_to(ROOT)) for page in PAGES} <= pages <= files
    assert f"fedpeer {fedpeer.__version__}, commit" in (tmp_path / "pages" / "README.md").read_text().splitlines()[-1]
    for file in files:
        if file.endswith(".md"):
            text = re.sub(r"^```.*?^```|`[^`\n]+`", "", (tmp_path / "pages" / file).read_text(), flags=re.M | re.S)
            for link in re.findall(r"\]\(([^)#\s]+)", text):
                if "://" not in link:
                    assert (tmp_path / "pages" / file).parent.joinpath(link).is_file(), f"{file}: {link}"


def test_columns_of_a_docstring_are_lists_in_the_reference() -> None:
    listed = loaded(ROOT / "docs" / "docstring_lists.py").listed
    text = (
        "Examples.\n\nx            inputs\ny, z         labels, or\n             numbers\n\nArgs:\n    seed: a number."
    )
    assert listed(text) == (
        "Examples.\n\n\n- `x`: inputs\n- `y`, `z`: labels, or\n    numbers\n\nArgs:\n    seed: a number."
    )


@pytest.mark.soak
def test_the_site_is_built_and_has_every_public_name(tmp_path: Path) -> None:
    loaded(ROOT / "docs" / "stage_site.py").stage(ROOT / "build" / "site-pages")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    reference = (tmp_path / "docs" / "api" / "index.html").read_text(encoding="utf-8")
    assert all(f'id="fedpeer.{name}"' in reference for name in fedpeer.__all__)


@pytest.mark.soak
def test_each_version_of_the_site_stays_beside_the_next(tmp_path: Path) -> None:
    def run(*words: str) -> str:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # mike calls mkdocs
        env = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(tmp_path / "clone"), "PATH": path}
        for role in ("AUTHOR", "COMMITTER"):
            env |= {f"GIT_{role}_NAME": "a", f"GIT_{role}_EMAIL": "a@b"}
        return subprocess.run(words, cwd=tmp_path / "clone", env=env, check=True, capture_output=True, text=True).stdout

    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(tmp_path / "clone")], check=True)
    run(sys.executable, "docs/stage_site.py", "build/site-pages")
    mike = str(Path(sys.executable).with_name("mike"))
    for version in ("0.2.9", fedpeer.__version__):
        run(mike, "deploy", "--update-aliases", version, "latest")
    kept = json.loads(run("git", "show", "gh-pages:versions.json"))
    assert {each["version"]: each["aliases"] for each in kept} == {fedpeer.__version__: ["latest"], "0.2.9": []}
    assert "index.html" in run("git", "ls-tree", "--name-only", "gh-pages:0.2.9").split()
