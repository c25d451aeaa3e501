"""Every example of a federation file in README.md and docs/ is valid."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedpeer.cli.config import ConfigSource, load
from fedpeer.cli.yaml_marks import parse_yaml
from fedpeer.config.federation import Federation
from fedpeer.config.peer_file import PeerFile
from fedpeer.config.reading import typed

ROOT = Path(__file__).parents[2]
#: A fenced block of YAML whose first line says that it is a federation file.
BLOCK = re.compile(r"^ *```ya?ml\n( *# federation\.yaml.*?)^ *```", re.MULTILINE | re.DOTALL)


def examples() -> list[tuple[str, str]]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [
        (f"{page.relative_to(ROOT)}, example {number}", text)
        for page in pages
        if page.exists()
        for number, text in enumerate(BLOCK.findall(page.read_text(encoding="utf-8")), start=1)
    ]


@pytest.mark.parametrize(("name", "text"), examples())
def test_example(name: str, text: str) -> None:
    data, marks = parse_yaml(text, name)
    source = ConfigSource(data, marks, {}, name)
    if text.lstrip().startswith("# federation.yaml, for simulations"):
        Federation.model_validate(source.data)
    else:
        load(source)


PEER_BLOCK = re.compile(r"^```ya?ml\n(# peer\d\.yaml.*?)^```", re.MULTILINE | re.DOTALL)


def test_examples_of_peer_files() -> None:
    """The examples of peer files are valid, as far as this can be checked without keys and data."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    texts = [text for page in pages for text in PEER_BLOCK.findall(page.read_text(encoding="utf-8"))]
    assert texts
    for text in texts:
        data, marks = parse_yaml(text, "peer file")
        file, problems = typed(PeerFile, data)
        assert file is not None
        assert [*problems, *file.contradictions(), *marks.problems] == []


def test_examples_are_found() -> None:
    blocks = ["# federation.yaml\nseed: 1", "other: 1", "# federation.yaml (b)\nseed: 2"]
    text = "words\n" + "".join(f"```yaml\n{block}\n```\n" for block in blocks)
    assert [found.splitlines()[-1] for found in BLOCK.findall(text)] == ["seed: 1", "seed: 2"]
