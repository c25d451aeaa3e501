"""The page on a GPU states the measurements."""

from __future__ import annotations

import json

from benchmarks.gpu import FOLDER, NAME, page


def test_the_page_is_made_of_what_was_measured() -> None:
    found = json.loads((FOLDER / f"{NAME}.json").read_text(encoding="utf-8"))
    assert (FOLDER / f"{NAME}.md").read_text(encoding="utf-8") == page(found)
