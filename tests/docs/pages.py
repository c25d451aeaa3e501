"""Contents of README.md, CONTRIBUTING.md, SECURITY.md and docs/: pages and their fenced blocks."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
#: The page of real peers; a test types its commands one after the other.
PEERS = ROOT / "docs" / "peers.md"
#: The page of a hundred machines; a test types its commands on two machines.
SCALING = ROOT / "docs" / "scaling.md"
#: The handbook of operators; its commands are typed after those of a hundred machines.
OPERATIONS = ROOT / "docs" / "operations.md"
#: Pages that begin with a folder of `fedpeer new`; a test types their commands in it.
FLIGHTS, TEXT = ROOT / "docs" / "tutorial-flights.md", ROOT / "docs" / "quickstart-text.md"
#: The page of Flower's clients; a test types its commands in the folder of that example.
FLOWER = ROOT / "docs" / "quickstart-flower.md"
#: Pages whose commands are typed one after the other, by a test of their own.
TYPED = (PEERS, SCALING, OPERATIONS, FLIGHTS, TEXT, FLOWER)
#: Commands that need a federation of real peers, or make one.
REAL = re.compile(r"fedpeer (init|start|status|dashboard|invite|join|revoke|leave|evaluate|predict|export)\b")


def blocks(page: Path, language: str) -> list[str]:
    """Return the texts of a page's fenced blocks in that language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[str]:
    """Return the lines that a reader is to type."""
    return [line[2:] for block in blocks(page, "console") for line in block.splitlines() if line.startswith("$ ")]


def named(page: Path) -> str:
    """Return the page's name for a test's id."""
    return str(page.relative_to(ROOT))
