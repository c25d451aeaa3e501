"""The pages under docs/results state what the numbers beside them state, and nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import median
from typing import Any, get_args

import pytest

from fedpeer.experiments.book import index
from fedpeer.experiments.experiment import SizeName
from fedpeer.experiments.registry import EXPERIMENTS, experiment
from fedpeer.experiments.results import Measured
from fedpeer.experiments.saved import saved
from fedpeer.experiments.scalar_gossip import scale
from fedpeer.experiments.table import stem_of, table_page
from fedpeer.experiments.verdicts import outdated

from .pages import ROOT

FOLDER = ROOT / "docs" / "results"
#: Numbers of the sweep of large simulations, of the learning curves and of a GPU, which are not experiments.
SCALE, LEARNING, GPU = FOLDER / "scale.json", FOLDER / "learning-scale.json", FOLDER / "gpu.json"
NUMBERS = sorted(path for path in FOLDER.glob("*.json") if path not in (SCALE, LEARNING, GPU))


def test_every_page_has_its_numbers() -> None:
    pages, numbers = (sorted(path.stem for path in FOLDER.glob(f"*.{ending}")) for ending in ("md", "json"))
    assert pages == sorted([*numbers, "experiments"])


@pytest.fixture(scope="module")
def pages() -> list[dict[str, Any]]:
    """Return what `fedpeer experiment report --from` reads from the numbers today."""
    return saved(FOLDER, list(EXPERIMENTS), get_args(SizeName))


def test_all_are_on_one_page_and_in_the_index(pages: list[dict[str, Any]]) -> None:
    assert len(pages) == len(NUMBERS)
    again = "write it with fedpeer experiment report --from docs/results --to docs/results"
    assert (FOLDER / "experiments.md").read_text(encoding="utf-8") == index(pages), again
    whole = (FOLDER / "experiments.html").read_text(encoding="utf-8")
    assert all(f'<section id="{path.stem}">' in whole for path in NUMBERS), again


@pytest.mark.parametrize("path", NUMBERS, ids=lambda path: path.stem)
def test_a_page_is_that_of_its_numbers(path: Path) -> None:
    data = json.loads(path.read_text(encoding="utf-8"))
    assert path.with_suffix(".md").read_text(encoding="utf-8") == table_page(data), (
        "write it with fedpeer experiment report"
    )
    assert path.stem == stem_of(data)
    assert data["name"] in EXPERIMENTS


def test_the_page_of_scalar_gossip_is_that_of_its_numbers() -> None:
    data = json.loads(SCALE.read_text(encoding="utf-8"))
    text = SCALE.with_suffix(".md").read_text(encoding="utf-8")
    assert text == scale.scale_page(data["cells"], data["command"], data["facts"]), (
        "write it with fedpeer topology sweep"
    )


@pytest.mark.parametrize("path", NUMBERS, ids=lambda path: path.stem)
def test_what_is_said_to_hold_follows_from_the_numbers(path: Path, pages: list[dict[str, Any]]) -> None:
    """Each claim was judged again from the measured numbers when the page was read."""
    [today] = [page for page in pages if stem_of(page) == path.stem]
    assert json.loads(path.read_text(encoding="utf-8"))["claims"] == today["claims"]


@pytest.mark.parametrize("name", ["dfl-table", "mocha-table", "pfedvem-cifar100", "virtual-table2", "virtual-table3"])
def test_published_numbers_are_those_of_the_experiment(name: str) -> None:
    data = json.loads((FOLDER / f"{name}-default.json").read_text(encoding="utf-8"))
    found = experiment(name)
    published = {cell.label: dict(cell.published) for cell in found.cells(found.sizes["default"])}
    assert any(published.values())
    assert data["theirs"] == published


@pytest.mark.parametrize("path", NUMBERS, ids=lambda path: path.stem)
def test_what_is_said_to_be_worst_is_below_all_others_at_that_place(path: Path) -> None:
    """Compare the medians of all lines at the claim's place, read directly from the numbers."""
    data = json.loads(path.read_text(encoding="utf-8"))
    medians = {each["label"]: median(each["per_seed"].get("PM", [0.0])) for each in data["measured"]}
    needs = {claim.text: claim.needs for claim in experiment(data["name"]).claims}
    for said in data["claims"]:
        if re.search(r"\bis (worst|last)\b", said["text"]):
            worst = needs[said["text"]][0]
            place = worst.partition("; ")[2]
            others = [label for label in medians if label.partition("; ")[2] == place and label != worst]
            assert len(others) >= 2
            favoured = said["held"] or said["noise"]
            assert favoured == all(medians[worst] < medians[other] for other in others), said["text"]


@pytest.mark.parametrize("path", NUMBERS, ids=lambda path: path.stem)
def test_nothing_holds_within_noise(path: Path) -> None:
    """The p-values of claims that hold are below 5 %, each multiplied by at least the number of those not smaller."""
    data = json.loads(path.read_text(encoding="utf-8"))
    results = {each["label"]: Measured.from_json(each) for each in data["measured"]}
    checks = {claim.text: claim.check(results) for claim in experiment(data["name"]).claims}
    tests = {said["text"]: checks[said["text"]].p for said in data["claims"] if said["tested"]}
    p = {text: each for text, each in tests.items() if each is not None}
    assert len(p) == len(tests)
    for said in data["claims"]:
        if said["tested"] and said["held"]:
            mine = p[said["text"]]
            assert mine * sum(each >= mine for each in p.values()) < 0.05
            assert checks[said["text"]].runs > 1
        if "; p = " in said["words"]:
            assert checks[said["text"]].runs >= 10


def test_the_gallery_counts_as_the_index_does() -> None:
    counted = re.compile(r"(\d+ of\s\d+)\s+claims held.*?results/([a-z0-9-]+)\.md", re.DOTALL)
    found = counted.findall((FOLDER.parent / "gallery.md").read_text(encoding="utf-8"))
    index_text = (FOLDER / "experiments.md").read_text(encoding="utf-8")
    assert len(found) >= 4
    for count, page in found:
        assert f"({page}.md) | {' '.join(count.split())} |" in index_text, page


def test_the_index_counts_the_same_numbers_once_and_quick_pages_apart() -> None:
    pages = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in NUMBERS}
    repeats = {f"fig{number}-default" for number in (9, 10, 12, 13, 15, 16)}

    def held(stems: set[str]) -> str:
        verdicts = [claim["held"] for stem in stems for claim in pages[stem]["claims"] if claim["held"] is not None]
        return f"{sum(verdicts)} of {len(verdicts)}"

    quick = {stem for stem, data in pages.items() if data["size"] == "quick"}
    counted = pages.keys() - quick - repeats
    noise = sum(claim["noise"] for stem in counted for claim in pages[stem]["claims"])
    said = f"{held(counted)} claims held ({noise} more are favoured within noise); on quick pages, which are counted "
    said += f"apart, {held(quick)}."
    for name in ("experiments.md", "experiments.html"):
        text = (FOLDER / name).read_text(encoding="utf-8")
        assert said in text
        assert "fig9 as fig8, fig10 as fig8, fig12 as fig11, fig13 as fig11, fig15 as fig14, fig16 as fig14" in text


@pytest.mark.parametrize("path", NUMBERS, ids=lambda path: path.stem)
def test_what_was_tried_is_what_is_tried_today_or_the_page_says_otherwise(path: Path) -> None:
    data = json.loads(path.read_text(encoding="utf-8"))
    one = experiment(data["name"])
    cells = one.cells(one.sizes[data["size"]])
    variants = {cell.label: cell.variants for cell in cells}
    results = {each["label"]: Measured.from_json(each) for each in data["measured"]}
    assert all(each.variant in variants[label] for label, each in results.items())
    assert data.get("outdated", []) == outdated(cells, results)


def test_without_a_search_methods_have_what_the_published_page_found() -> None:
    """`fedpeer experiment run pfedvem-table1 --full --no-search` runs what its page has."""
    data = json.loads((FOLDER / "pfedvem-table1-full.json").read_text(encoding="utf-8"))
    one = experiment(data["name"])
    cells = {cell.label: cell for cell in one.cells(one.sizes["full"])}
    for each in data["measured"]:
        assert cells[each["label"]].unsearched == each["variant"], each["label"]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*-default*.svg")), ids=lambda path: path.stem)
def test_no_title_of_an_axis_is_cut(path: Path) -> None:
    """A title that is written upwards extends to the left of its position by the height of its letters."""
    upright = re.findall(
        r'<text [^>]*font-size: ([\d.]+)px[^>]* x="(-?[\d.]+)"[^>]*rotate\(-90', path.read_text("utf-8")
    )
    assert upright
    assert all(float(x) >= 0.8 * float(size) for size, x in upright)
