"""All experiments on one page: an index, row heads, the names of columns for narrow screens, visible verdicts."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from fedpeer.experiments.book import book, index
from fedpeer.experiments.table import table_page
from tests.peer.runtime.browser import CHROMIUM, chromium


def measured(**more: Any) -> dict[str, Any]:
    """Return made-up results for the one line of a page."""
    return {
        "label": "FedAvg",
        "variant": "lr=0.5",
        "seeds": [0, 1],
        "rounds": 2,
        "peers": 3,
        "sent": 0.0,
        "per_seed": {"PM": [0.9, 0.8]},
        "seconds": 60.0,
        "tried": {"lr=0.5": 0.4},
        "best": {},
        "statistics": {},
        **more,
    }


def data(name: str, source: str = "Nobody 2026, table 1", **more: Any) -> dict[str, Any]:
    """Return the made-up data of a page with one line."""
    return {
        "name": name,
        "size": "quick",
        "title": f"The <title> of {name}",
        "source": source,
        "paper": "Nobody, Nothing, 2026",
        "notes": "",
        "differs": "",
        "seeds": 2,
        "columns": ["PM"],
        "cells": ["FedAvg"],
        "theirs": {"FedAvg": {"PM": "90.0 ± 0.1"}},
        "figure": None,
        "places": {"FedAvg": {"line": "FedAvg", "x": 3}},
        "measured": [measured()],
        "claims": [
            {"text": "A & B", "held": True, "words": "+1.0 points"},
            {"text": "C", "held": False, "words": "-1.0 points"},
            {"text": "D", "held": None, "words": "FedProx was not run"},
        ],
        "command": f"fedpeer experiment run {name} --quick",
        "environment": {"packages": {}, "git": None, "device": "cpu", "processors": 2, "python": "CPython"},
        "workers": 2,
        **more,
    }


FIGURE = {"number": "1", "runs": 10, "lines": "averaging", "x": "peers", "log": False, "ticks": []}
PAGES = [
    data("one"),
    data("two", figure=FIGURE, measured=[measured(seeds=[0, 3])]),
    data("three", "Somebody 2026, figure 1", measured=[]),
]


class Reader(HTMLParser):
    """Elements of a page in order, as (tag, attributes, words); the words of inner elements belong to outer ones."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.open: list[int] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), []))
        if tag not in ("meta", "use", "br", "img", "link", "input", "path"):
            self.open.append(len(self.found) - 1)

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.found[self.open.pop()][0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        for at in self.open:
            self.found[at][2].append(data)

    def words(self, tag: str, **attributes: str) -> list[str]:
        return [
            "".join(words).strip()
            for name, attrs, words in self.found
            if name == tag
            and attributes.items() <= {key.replace("-", "_"): value for key, value in attrs.items()}.items()
        ]


def test_the_index_leads_to_each_experiment_and_counts_what_held() -> None:
    reader = Reader(book(PAGES))
    assert reader.words("p")[0] == "3 pages, 2 min of runs; 3 of 6 claims held."
    targets = [attrs["href"] for tag, attrs, _ in reader.found if tag == "a"]
    ids = [attrs["id"] for tag, attrs, _ in reader.found if "id" in attrs]
    assert [f"#{each['name']}-quick" for each in PAGES] == [each for each in targets if each != "#top"]
    assert all(ids.count(str(target)[1:]) == 1 for target in targets)
    assert reader.words("th", scope="colgroup") == ["Nobody 2026", "Somebody 2026"]
    assert reader.words("td", data_label="claims held") == ["1 of 2"] * 3
    assert reader.words("h2") == [each["title"] for each in PAGES], "what looks like HTML stays words"
    assert "1 of 1" not in book(PAGES)


def test_in_markdown_the_index_leads_to_the_pages_beside_it() -> None:
    lines = index(PAGES).splitlines()
    assert lines[0] == "# What the papers say, played on 2 cores"
    assert lines[2].startswith("3 pages, 2 min of runs; 3 of 6 claims held.")
    row = "| two | [The <title> of two](two-quick.md) | 1 of 2 | 60 s | `fedpeer experiment run two --quick` |"
    assert lines.index("## Nobody 2026") < lines.index(row) < lines.index("## Somebody 2026")


def test_what_did_not_hold_is_named_once_with_its_places() -> None:
    claims = [{"text": text, "held": held, "words": ""} for text, held in (("at 1: A", False), ("at 2: A", False))]
    claims += [{"text": "at 3: A", "held": True, "words": ""}, {"text": "B", "held": False, "words": ""}]
    claims.append({"text": "C", "held": False, "noise": True, "words": ""})
    text = index([data("one", size="default", claims=claims), data("two", claims=claims)])
    assert " [What did not hold](#what-did-not-hold) is named at the end." in text
    assert text.count("at 1") == 1, "quick pages are counted apart"
    assert text.endswith("| [one](one-default.md) | A (at 1, at 2); B | 1 |\n")
    assert "did not hold" not in index([data("one", claims=claims[2:3])])


def test_each_number_has_the_name_of_its_column_and_each_line_a_head() -> None:
    reader = Reader(book(PAGES[:1]))
    assert reader.words("td", data_label="PM, theirs") == ["90.0 ± 0.1"]
    assert reader.words("td", data_label="PM, ours") == ["85.0 ± 5.0"]
    assert reader.words("td", data_label="by how much") == ["+1.0 points", "-1.0 points", "FedProx was not run"]
    assert reader.words("th", scope="row")[1:] == ["FedAvg", "A & B", "C", "D", "FedAvg"]
    assert all("data-label" in attrs for tag, attrs, _ in reader.found if tag == "td")


def test_verdicts_are_words_with_a_colour() -> None:
    reader = Reader(book(PAGES[:1]))
    assert reader.words("strong", **{"class": "held"}) == ["held"]
    assert reader.words("strong", **{"class": "failed"}) == ["not held"]
    assert len(reader.words("strong")) == 2


def test_a_page_has_all_that_it_needs_and_each_figure_once() -> None:
    html = book(PAGES)
    assert html.count("<svg") == 1
    assert not re.search(r"<(img|script|link)\b|https?://(?!www\.w3\.org)", html)
    assert html.count("prefers-color-scheme: dark") == 1


def test_a_point_of_one_run_has_no_bar() -> None:
    (one,) = PAGES[0]["measured"]
    alone = {**one, "seeds": [0], "per_seed": {"PM": [0.9]}}
    text = table_page(data("one", figure=FIGURE, seeds=1, measured=[alone]))
    assert "| FedAvg | 90.0 |" in text
    assert "In percent, of one run (the paper has 10)." in text
    assert "| FedAvg | 85.0 (84.0–86.0) |" in table_page(PAGES[1])


def test_of_many_points_with_fewer_seeds_is_said_how_many() -> None:
    (one,) = PAGES[0]["measured"]
    for count, words in ((2, "of 3: FedAvg 0 2, FedAvg 1 2."), (13, "of 3: 2 or more, at 13 points fewer than all.")):
        labels = [f"FedAvg {number}" for number in range(count)]
        more: dict[str, Any] = {"cells": labels, "theirs": {label: {} for label in labels}, "seeds": 3}
        text = table_page(data("one", measured=[{**one, "label": label} for label in labels], **more))
        assert f"Seeds so far, {words}" in text


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
async def test_it_fits_a_telephone_and_a_wide_screen_light_and_dark(tmp_path: Path) -> None:
    file = tmp_path / "experiments.html"
    file.write_text(
        book([*PAGES, data("a-name-that-is-long", title="Word " * 40, size="default, squared-error, uniform:1")]),
        encoding="utf-8",
    )
    cells = (
        "Math.max(...[...document.querySelectorAll('.index :is(th, td)')].map(e => e.getBoundingClientRect().right))"
    )
    async with chromium(tmp_path / "browser") as tab:
        for width in (390, 1400):
            papers = []
            for dark in (False, True):
                await tab.look(width, dark)
                await tab.open(file.as_uri())
                assert await tab.value("document.documentElement.scrollWidth") == width
                assert await tab.value(cells) <= width, "the index is cut off"
                papers.append(await tab.value("getComputedStyle(document.body).backgroundColor"))
            assert papers[0] != papers[1]
        await tab.look(390)
        await tab.open(file.as_uri())
        label = "getComputedStyle(document.querySelector('section td'), '::before').content"
        assert await tab.value(label) == '"PM, theirs"'


def test_the_same_numbers_count_once_and_quick_pages_apart() -> None:
    twice = [data("one", size="default"), data("two", size="default"), data("one"), data("three", size="default")]
    twice[-1]["measured"] = [measured(per_seed={"PM": [0.9, 0.7]})]
    said = (
        "4 pages, 4 min of runs; 2 of 4 claims held; on quick pages, which are counted apart, 1 of 2. Pages with the "
    )
    said += "same numbers are counted once: two as one."
    text = index(twice)
    assert said in text
    assert said in Reader(book(twice)).words("p")[0]
    assert "](two-default.md) | as one |" in text
    assert "](one-quick.md) | 1 of 2 |" in text


def test_quick_pages_with_the_same_numbers_count_once_too_whether_there_are_others_or_not() -> None:
    quick = [data("one"), data("two"), data("three", measured=[measured(per_seed={"PM": [0.9, 0.7]})])]
    repeat = " Pages with the same numbers are counted once: two as one."
    alone = index(quick)
    assert f"3 pages, 3 min of runs; 2 of 4 claims held.{repeat}" in alone
    assert "](two-quick.md) | as one |" in alone
    for names in (["one"], ["one", "two"]):
        text = index([*(data(name, size="default") for name in names), *quick])
        assert f"1 of 2 claims held; on quick pages, which are counted apart, 2 of 4.{repeat}" in text
        assert "](one-quick.md) | 1 of 2 |" in text
        assert "](two-quick.md) | as one |" in text


def test_what_is_not_judged_is_not_counted() -> None:
    """A claim from a single seed is one that is not judged."""
    alone = [{"text": "A", "held": None, "words": "one run cannot be told from noise"}]
    text = index([data("one", size="default", claims=alone), data("two", size="default")])
    assert "; 1 of 2 claims held." in text
    assert "](one-default.md) | – |" in text
