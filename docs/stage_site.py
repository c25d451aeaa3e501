"""Put the pages of the site together: `python docs/stage_site.py build/site-pages`; `make site` does, and builds it.

README.md is the first page, and ends with the version. Each page, and each file that a page links to, is copied to the
place that it has in the repository, so that the links of the pages lead to the same things in the site. A link to a
folder leads to its list of files. `docs/api.md` is made from the docstrings of all public names.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections import deque
from pathlib import Path

import fedpeer
from fedpeer.runs.environment import source_commit

ROOT = Path(__file__).resolve().parents[1]
#: Pages, and their style, to which nothing has to link.
FIRST = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "CODE_OF_CONDUCT.md",
    "SECURITY.md",
    "benchmarks/RESULTS.md",
    "docs/site.css",
)
_LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")


def stage(target: Path) -> list[Path]:
    """Copy all pages and what they link to; return the paths in the site, sorted.

    Raises:
        FileNotFoundError: a page links to a file that is not there.
    """
    shutil.rmtree(target, ignore_errors=True)
    first = [ROOT / name for name in FIRST]
    waiting = deque([*first, *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "results").glob("*.md"))])
    done: set[Path] = set()
    while waiting:
        source = waiting.popleft()
        if source in done:
            continue
        done.add(source)
        place = target / source.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix != ".md":
            shutil.copyfile(source, place)
            continue
        text, linked = _page(source)
        place.write_text(text, encoding="utf-8")
        waiting += linked
    (target / "docs" / "api.md").write_text(_reference(), encoding="utf-8")
    with (target / "README.md").open("a", encoding="utf-8") as first_page:
        first_page.write(f"\n*These pages are of fedpeer {fedpeer.__version__}, commit {source_commit()}.*\n")
    return sorted(path.relative_to(target) for path in target.rglob("*") if path.is_file())


def _page(source: Path) -> tuple[str, list[Path]]:
    """Return the text of a page, in which links to folders lead to one of their files, and the files it links to."""
    linked: list[Path] = []

    def lead(found: re.Match[str]) -> str:
        before, to, after = found.groups()
        if "://" in to or to.startswith("mailto:"):
            return found[0]
        path = (source.parent / to).resolve()
        if path.is_dir():
            files = sorted(each for each in path.iterdir() if each.is_file())
            linked.extend(files)
            index = next((each for each in files if each.suffix == ".md"), files[0])
            to = f"{to.rstrip('/')}/{index.name}"
        elif not path.exists():
            raise FileNotFoundError(f"{source.relative_to(ROOT)} links to {to}, which does not exist")
        else:
            linked.append(path)
        return f"{before}{to}{after}"

    # What stands between fences and backticks is code, which has no links.
    pieces = re.split(r"(^```.*?^```$|`[^`\n]+`)", source.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    pieces[::2] = [_LINK.sub(lead, piece) for piece in pieces[::2]]
    return "".join(pieces), linked


def _reference() -> str:
    names = "\n\n".join(f"::: fedpeer.{name}" for name in fedpeer.__all__)
    first = "Everything that `import fedpeer` promises. [python.md](python.md) begins with an example."
    return f"# Python API\n\n{first}\n\n{names}\n"


if __name__ == "__main__":
    print(f"{len(stage(Path(sys.argv[1])))} files in {sys.argv[1]}")
