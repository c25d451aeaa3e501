"""Make a release: `.venv/bin/python .ci/release.py 0.3.0`. It uploads nothing, and says how.

In this order, so that a mistake leaves nothing behind: the checkout is clean and the changelog's newest section is of
this version; version, changelog and citation get version and date; `.ci/run` passes; source archive and wheel are built
from the commit that is tagged. If a step fails, the files are as they were.
"""

from __future__ import annotations

import argparse
import datetime
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


class ReleaseError(Exception):
    """A release cannot be made yet; the message says why."""


def dated(changelog: str, version: str, date: datetime.date) -> str:
    """Return the changelog with the date in the heading of this version.

    Raises:
        ReleaseError: the newest section is of another version, or was released already.
    """
    newest = re.search(r"^## (\S+) \((.*)\)$", changelog, re.MULTILINE)
    if newest is None or newest[1] != version:
        shown = "nothing" if newest is None else newest[1]
        raise ReleaseError(f"the newest section of CHANGELOG.md is of {shown}, not of {version}")
    if newest[2] != "unreleased":
        raise ReleaseError(f"{version} was released on {newest[2]}; begin a section for the next version")
    return changelog.replace(newest[0], f"## {version} ({date.isoformat()})", 1)


def cited(citation: str, version: str, date: datetime.date) -> str:
    """Return CITATION.cff with version and date of the release."""
    citation = re.sub(r"^date-released: .*\n", "", citation, flags=re.MULTILINE)
    return re.sub(
        r"^version: .*$", f"version: {version}\ndate-released: {date.isoformat()}", citation, flags=re.MULTILINE
    )


def rewritten(root: Path, version: str, date: datetime.date) -> dict[Path, str]:
    """Return the new text of each file that names version or date."""
    found = {name: root / name for name in ("CHANGELOG.md", "CITATION.cff", "fedpeer/version.py")}
    texts = {name: path.read_text(encoding="utf-8") for name, path in found.items()}
    return {
        found["CHANGELOG.md"]: dated(texts["CHANGELOG.md"], version, date),
        found["CITATION.cff"]: cited(texts["CITATION.cff"], version, date),
        found["fedpeer/version.py"]: re.sub(
            r'^__version__ = ".*"$', f'__version__ = "{version}"', texts["fedpeer/version.py"], flags=re.MULTILINE
        ),
    }


def release(root: Path, version: str, date: datetime.date, *, check: bool = True) -> None:
    """Change the files, check, commit, tag and build.

    Args:
        check: False: leave `.ci/run` out, since CI has passed on this commit.

    Raises:
        ReleaseError: the checkout has changes, or the changelog is not of this version.
        subprocess.CalledProcessError: a step failed.
    """

    def run(*words: str) -> str:
        return subprocess.run(words, cwd=root, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()

    if re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version) is None:
        raise ReleaseError(f"{version} is no version such as 0.3.0 or 0.4.0rc1")
    if run("git", "status", "--porcelain"):
        raise ReleaseError("the checkout has changes; commit them first")
    if run("git", "tag", "--list", f"v{version}"):
        raise ReleaseError(f"there is a tag v{version} already")
    texts = rewritten(root, version, date)
    try:
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
        if check:
            subprocess.run([".ci/run"], cwd=root, check=True)
        run("git", "commit", "--quiet", "--all", "--message", f"Version {version}")
    except BaseException:
        run("git", "checkout", "--quiet", "--", ".")
        raise
    run("git", "tag", "--annotate", f"v{version}", "--message", f"Version {version}")
    shutil.rmtree(root / "dist", ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", "dist")


def main() -> int:
    parser = argparse.ArgumentParser(description="Make a release; upload nothing.")
    parser.add_argument("version", help="such as 0.3.0")
    parser.add_argument("--no-check", action="store_true", help="CI has passed on this commit: leave .ci/run out")
    options = parser.parse_args()
    try:
        release(ROOT, options.version, datetime.datetime.now(datetime.UTC).date(), check=not options.no_check)
    except ReleaseError as problem:
        print(problem, file=sys.stderr)
        return 2
    print(f"dist/ has version {options.version}. Look at it, then:")
    print("  git push --follow-tags")
    print("  make site-version && git push origin gh-pages")
    print("  twine upload dist/*")
    print(f'and begin the section "## NEXT (unreleased)" above {options.version} in CHANGELOG.md.')
    return 0


if __name__ == "__main__":
    sys.exit(main())
