"""The page on learning at scale states the measurements, and memory is reported by part."""

from __future__ import annotations

import json
import mmap
from pathlib import Path

from benchmarks.learning_scale import FOLDER, NAME, _named, ordered, page
from benchmarks.measure import memory_parts


def test_the_page_is_made_of_what_was_measured() -> None:
    written = (FOLDER / f"{NAME}.md").read_text(encoding="utf-8")
    rows = ordered(json.loads((FOLDER / f"{NAME}.json").read_text(encoding="utf-8")))
    facts = written.rstrip("\n").split("\n\n")[-1]
    assert page(rows, facts) == written
    today = list(_named({"leader": 0, "others": 0}, libraries=0))
    assert all(list(row["parts"]) == today for row in rows), (
        "a command that measures some anew writes these beside them"
    )


def test_a_mapped_file_counts_by_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "work-1"
    folder.mkdir()
    before = memory_parts()
    with (folder / "states.3").open("w+b") as file:
        file.truncate(8 * 2**20)
        with mmap.mmap(file.fileno(), 0) as mapping:
            for first in range(0, len(mapping), mmap.PAGESIZE):  # all at once would be memory of the process, too
                mapping[first : first + mmap.PAGESIZE] = b"1" * mmap.PAGESIZE
            found = memory_parts()
    # Files of other tests of this process may still be mapped.
    found = {name: size - (before.get(name, 0) if name.startswith("file ") else 0) for name, size in found.items()}
    assert found["file states.3"] == 8 * 2**20
    assert abs(found["leader"] - before["leader"]) < 2**20 * 8, "it is not counted twice"
    parts = _named(found, libraries=found["leader"])
    assert parts["peers' states and updates"] == 8 * 2**20
    assert parts["data set, split, plan"] == 0
