"""The report: one well-formed file that needs nothing else, for every kind of run, whatever the run is called."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from html.parser import HTMLParser
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpeer.peer.runtime import dashboard
from fedpeer.runs import report as report_module
from fedpeer.runs.canvas import PALETTE
from fedpeer.runs.disk import write_json
from fedpeer.runs.folder import RunFolder
from fedpeer.runs.history import histories
from fedpeer.runs.plots import disagreement
from fedpeer.runs.report import write_report
from fedpeer.runs.svg import drawing_only
from tests.peer.runtime.browser import CHROMIUM, chromium
from tests.runs.run_factory import described, made, row, settings

VOID = {"meta", "br", "hr", "img", "link", "input"}
EVIL = """<img src=x onerror="alert(1)">&'$\\frac"""


class Page(HTMLParser):
    """Parser that collects tags, attributes and text, and fails if an end tag does not close the innermost open tag."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == [], "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


def page(run: RunFolder) -> tuple[str, Page]:
    path = write_report(run)
    assert path == run.path / "report.html"
    text = path.read_text(encoding="utf-8")
    return text, Page(text)


def check(text: str, parsed: Page) -> None:
    """Check what holds for every report."""
    assert "http" not in text.lower(), "nothing is loaded, nothing is linked"
    assert not {tag for tag, _ in parsed.tags} & {"script", "link", "iframe", "img", "object", "embed", "foreignobject"}
    assert not [name for _, attributes in parsed.tags for name in attributes if name.startswith("on")]
    assert not re.search(r"url\((?!#)", text)
    assert not re.search(r"\bnan\b|\bNone\b|\binf\b", parsed.text)
    assert not re.search(r"#0001|#0002", text), "every stand-in colour is replaced"


#: A method without gossip and one with it; each further one costs two pictures.
TWO = ("local", "full-averaging")
KINDS: dict[str, dict[str, Any]] = {
    "three methods": {},
    "one method": {"methods": ("local",)},
    "more methods than colours": {"methods": ("local", *(f"method{number}" for number in range(PALETTE)))},
    "one peer, one round": {"peers": 1, "rounds": 1, "methods": TWO},
    "five seeds": {"seeds": tuple(range(5)), "methods": TWO},
    "sixty-four peers": {"peers": 64, "rounds": 2, "methods": TWO},
    "a thousand peers": {"peers": 1024, "rounds": 2},
    "regression": {"measure": "error", "peers": 12, "methods": TWO},
    "regression with many peers": {"measure": "error", "peers": 65, "rounds": 2, "methods": TWO},
}
Report = Callable[[str], tuple[RunFolder, str, Page]]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Return a function that makes the report of a kind of run, once for all tests that read it."""

    @cache
    def of(kind: str) -> tuple[RunFolder, str, Page]:
        run = made(tmp_path_factory.mktemp("runs"), **KINDS[kind])
        return run, *page(run)

    return of


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_run_has_a_report(report: Report, kind: str) -> None:
    _, text, parsed = report(kind)
    check(text, parsed)
    for heading in (
        "Results",
        "Learning",
        "Data of each peer",
        "Slices",
        "Graphs of the exchanges",
        "How to repeat it",
    ):
        assert heading in parsed.text
    assert len(text) < 1_500_000


def test_the_report_says_what_the_run_measured(report: Report) -> None:
    parsed = report("three methods")[2]
    # 0.5 + 0.01 * letters + 0.02 * 3 + mean over peers of 0.01 * peer / 4
    assert (
        "Partial averaging: 73.4 %, 12.0 points above local only (12.0 to 12.0) and 3.0 points above full averaging"
        in parsed.text.replace("\xa0", " ")
    )
    assert "With partial averaging, 4 of 4 peers are better than with local only" in parsed.text
    assert "1.2 kB" in parsed.text  # 3 rounds x 4 peers x 100 bytes
    assert "a and b" in parsed.text
    assert "2 left over" in parsed.text
    assert "everyone: 4 peers, 4 one-way links" in parsed.text
    assert "12 exchanges in each averaging" in parsed.text
    assert "fedpeer simulate --peers 4" in parsed.text
    assert "all peers, from the worst to the best" in parsed.text  # meaning of the band for fewer than ten peers


def test_bytes_are_drawn_only_where_they_differ_from_round_to_round(tmp_path: Path, report: Report) -> None:
    parsed = report("three methods")[2]
    assert "Bytes sent in each round" not in parsed.text
    sentence = "partial averaging 400 B in each round, 1.2 kB in the whole run, in 24 messages"
    assert sentence in parsed.text.replace("\xa0", " ")
    run = made(tmp_path, methods=("full-averaging",), rounds=2, finished=False)
    run.record({**row("full-averaging", 3), "bytes_sent": [0] * 4})
    assert "Bytes sent in each round" in page(run)[1].text


@pytest.mark.parametrize("peers", [4, 65])
def test_linear_models_are_drawn_beside_each_peers_score(tmp_path: Path, peers: int) -> None:
    run = made(tmp_path, peers=peers, rounds=1, methods=("local",))
    without, before = page(run)
    scores = [0.4, *[0.9] * (peers - 1)]
    linear = {"model": "logistic regression", "mean": 0.8, "per_peer": scores}
    write_json(run.path / "summary.json", (run.read("summary") or {}) | {"linear": linear})
    text, parsed = page(run)
    check(text, parsed)
    assert "logistic regression" not in before.text
    assert "logistic regression by each peer alone: 80.0 % on average, 40.0 % at the lowest peer" in parsed.text
    assert "logistic regression alone" in parsed.text, "the picture's legend"
    marks = (drawn.count("<use") for drawn in (text, without))
    if peers == 4:
        assert int.__sub__(*marks) >= peers, "a mark in each peer's row"
    else:
        assert "90.0 %" in parsed.text.split("peers, from the worst to the best")[1], "the end of its line"


def test_losses_are_drawn_for_methods_of_which_all_are_numbers(tmp_path: Path) -> None:
    """A curve ends with the last loss, as mean over peers; an algorithm that lacks a loss has no curve."""
    run = made(tmp_path, methods=("local", "fedavg"), rounds=1, finished=False)
    run.record({**row("local", 2), "loss": [0.25, 0.5, 0.75, 1.0]})
    run.record({**row("fedavg", 2), "loss": [0.25, 0.5, None, 1.0]})
    text, parsed = page(run)
    check(text, parsed)
    figure = text[text.index("<h3>Loss by round</h3>") :].partition("</figure>")[0]
    assert "0.625" in figure
    assert "local only" in figure
    assert "FedAvg" not in figure
    assert "Loss by round" not in page(made(tmp_path / "none", methods=("local",), rounds=0))[1].text


def test_the_report_shows_metrics_reliability_and_confusion(tmp_path: Path) -> None:
    run = made(tmp_path, methods=("local",), rounds=1, finished=False)
    run.record({**row("local", 2), "metrics": {"auc": [0.9, 0.8, None, None]}})
    found = {"classes": ["flu", EVIL, "cold"], "confusion": [[7, 1, 0], [0, 0, 0], [2, 0, 5]]}
    run.describe("answers", {"local": {**found, "reliability": [[0.55, 0.4, 5], [0.95, 0.9, 10]]}})
    text, parsed = page(run)
    check(text, parsed)
    assert "0.850 (2 of 4)" in parsed.text
    assert "Confidence, and part of the answers that is right" in parsed.text
    cells = {attributes.get("title") for tag, attributes in parsed.tags if tag == "td"}
    assert {"flu as flu: 7", "cold as flu: 2", f"flu as {EVIL}: 1"} <= cells


def test_a_confusion_matrix_needs_no_metrics(tmp_path: Path) -> None:
    """The reliability of a Bayesian method is measured without being asked for; the other method has none."""
    run = made(tmp_path, methods=("local", "virtual"), rounds=1, finished=False)
    plain = {"classes": ["flu", "cold"], "confusion": [[7, 1], [2, 5]]}
    run.describe("answers", {"local": plain})
    text, parsed = page(run)
    check(text, parsed)
    assert "Confusion matrix" in parsed.text
    assert "Confidence, and part" not in parsed.text
    run.describe("answers", {"local": plain, "virtual": {**plain, "reliability": [[0.55, 0.4, 5]]}})
    text, parsed = page(run)
    check(text, parsed)
    figure = text[text.index("<h3>Confidence") :].partition("</figure>")[0]
    assert "VIRTUAL" in figure
    assert "local only" not in figure


def test_the_band_is_named_for_many_peers(report: Report) -> None:
    assert "the middle 80" in report("regression")[2].text


def test_the_same_run_gives_the_same_bytes(report: Report) -> None:
    run, text, _ = report("one peer, one round")
    assert page(run)[0] == text


def test_a_method_has_one_colour_in_every_picture(tmp_path: Path) -> None:
    text, _ = page(made(tmp_path, methods=("full-averaging", "local"), rounds=1))
    assert "var(--m2)" in text
    assert "var(--m0)" in text
    assert "var(--m1)" not in text


@pytest.mark.parametrize(("dark", "apart"), [(True, 0.08), (False, 0.05)])
def test_the_colors_of_the_palette_can_be_told_apart_by_all_eyes(dark: bool, apart: float) -> None:
    """By eyes without red or green, too (Machado et al. 2009), in Oklab; words need a contrast of 4.5 to be read."""
    blind = [
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    ]
    cones = [[0.412221, 0.536333, 0.051446], [0.211903, 0.680700, 0.107397], [0.088302, 0.281719, 0.629979]]
    oklab = [[0.210454, 0.793618, -0.004072], [1.977998, -2.428592, 0.450594], [0.025904, 0.782772, -0.808676]]
    files = [Path(report_module.__file__).with_name("report.css"), Path(dashboard.__file__).with_name("page.css")]
    parted = [file.read_text(encoding="utf-8").partition("prefers-color-scheme: dark") for file in files]
    found = [
        re.findall(r"--(?:card|m[1-7]): #(\w{6});", after[:600] if dark else before) for before, _, after in parted
    ]
    card, *palette = found[0]
    assert found[0] == found[1]
    assert len(palette) == 7
    parts = np.array([[*bytes.fromhex(each)] for each in (card, *palette)]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    background, *lights = linear @ [0.2126, 0.7152, 0.0722] + 0.05
    assert all(max(light, background) >= 4.5 * min(light, background) for light in lights)
    for eye in np.array([np.eye(3), *blind]):
        seen = np.cbrt(np.clip(linear[1:] @ eye.T, 0, 1) @ np.transpose(cones)) @ np.transpose(oklab)
        assert min(np.linalg.norm(one - two) for one, two in combinations(seen, 2)) > apart


def test_light_dark_phone_and_paper_have_their_styles(report: Report) -> None:
    _, text, parsed = report("three methods")
    for query in ("(prefers-color-scheme: dark)", "(max-width: 640px)", "print"):
        assert f"@media {query}" in text
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in parsed.tags
    pictures = [attributes for tag, attributes in parsed.tags if tag == "svg" and "aria-label" in attributes]
    assert len(pictures) == 8  # scores, losses, peers, a graph, and two pictures of gossip for each of two methods
    assert all("width" not in attributes and attributes["viewbox"] for attributes in pictures)


@pytest.mark.parametrize("evaluated", [True, False])
def test_an_interrupted_run_says_so_and_how_to_go_on(tmp_path: Path, evaluated: bool) -> None:
    run = RunFolder.create(tmp_path, name="digits", settings=settings(rounds=30), environment={})
    run.record(row("local", 1, evaluated=evaluated))
    run.record(row("local", 2, evaluated=evaluated))
    text, parsed = page(run)
    assert "still running" in parsed.text
    run.finish({}, status="interrupted")
    text, parsed = page(run)
    check(text, parsed)
    assert "interrupted after round 2 of 30 of local only, seed 0" in parsed.text
    assert f"fedpeer simulate --resume {run.id}" in parsed.text
    assert ("Nothing was evaluated" in parsed.text) is not evaluated


def test_a_run_with_no_row_at_all_has_a_report(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, name="digits", settings={}, environment={})
    run.finish({}, status="failed")
    text, parsed = page(run)
    check(text, parsed)
    assert "failed with an error before its first round" in parsed.text


def test_a_run_with_objects_of_python_is_resumed_from_python(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, name="digits", settings={"objects": ["network"]}, environment={})
    run.finish({}, status="interrupted")
    text, parsed = page(run)
    check(text, parsed)
    assert f'Resume it with the same call of fedpeer.simulate with resume="{run.id}"' in parsed.text
    assert "--resume" not in parsed.text


def test_a_diverged_peer_and_exact_averages_are_drawn_without_numbers_that_are_none(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, name="digits", settings=settings(), environment={})
    for number in (1, 2, 3):
        run.record({**row("local", number, measure="error"), "error": [1.0, None, 2.0, 3.0]})
        exact = {**row("full-averaging", number, measure="error"), "disagreement": {"everyone": 0.0}}
        exact["weight"] = {"everyone": [1.0 - 1e-9, 1.0]}
        exact["statistics"] = {"uncertainty": [0.5, None, 0.25, 1.0], "confidence": [None] * 4}
        run.record(exact)
    run.describe("relations", {"local": {"peers": ["peer1", "peer2"], "matrix": [[1.0, None], [None, 1.0]]}})
    text, parsed = page(run)
    check(text, parsed)
    assert "Full averaging: every average was exact; full averaging: all weights stayed at 1." in parsed.text
    assert "With full averaging, 3 of 3 peers are better than with local only; peer4 gains most" in parsed.text
    described(run, peers=4)
    split = run.read("split")
    assert split is not None
    for place, share in enumerate(split["peers"]):
        share["note"] = f"$\\ward{place}$<b>"
    run.describe("split", split)
    text, parsed = page(run)
    check(text, parsed)
    assert "better than with local only; $\\ward3$<b> gains most" in parsed.text, "users are named by their names"


def test_disagreement_is_a_line_where_few_rounds_are_evaluated() -> None:
    """Rounds that are not evaluated have none."""
    rows = [row("full-averaging", number, evaluated=number % 5 == 0) for number in range(1, 21)]
    rows = [each if each["accuracy"] else {**each, "disagreement": {}} for each in rows]
    drawn = disagreement(histories(rows)["full-averaging"], 1, "left")
    assert drawn is not None
    assert [path.count("L") for path in re.findall(r'd="(M [^"]*)" clip-path[^>]*var\(--m1\)', drawn)] == [3]


def test_text_from_outside_is_never_markup(tmp_path: Path) -> None:
    options = settings(name=EVIL, command=EVIL, simulation={"dataset": EVIL, "split": EVIL, "peers": 4})
    run = RunFolder.create(tmp_path, name=EVIL, settings=options, environment={"device": EVIL})
    for number in (1, 2):
        run.record({**row("local", number), "method": EVIL})
        run.record({**row("full-averaging", number), "disagreement": {EVIL: 1e-4}, "weight": {EVIL: [0.9, 1.1]}})
    described(run, peers=4, classes=(EVIL, "b", "c"), note=EVIL)
    graph = {"group": EVIL, "nodes": ["$\\frac$", "ü漢"], "edges": [[0, 1]], "positions": [[0, 0], [1, 1]]}
    run.describe("graphs", {"groups": [graph]})
    run.describe("plan", {"svg": f"<svg>{EVIL}</svg>"})
    text, parsed = page(run)
    check(text, parsed)
    assert parsed.text.count(EVIL) >= 8
    assert "left out" in parsed.text
    assert "$\\frac$" in parsed.text
    assert any(EVIL in (attributes.get("aria-label") or "") for _, attributes in parsed.tags)


SVG = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">{}</svg>'


@pytest.mark.parametrize(
    "inside",
    [
        "<script>alert(1)</script>",
        '<rect onload="alert(1)"/>',
        "<foreignObject><p>x</p></foreignObject>",
        '<a href="#x"><text>x</text></a>',
        '<use xlink:href="other.svg#x"/>',
        '<rect fill="url(other.svg#x)"/>',
        '<rect style="fill:u\\72l(x)"/>',
        "<svg style=\"background:-webkit-image-set('//other/x.png' 1x)\"/>",
        "<style>body { display: none }</style>",
        '<image href="data:image/png;base64,AAAA"/>',
        "<rect>",
    ],
)
def test_a_drawing_that_does_more_than_draw_is_refused(inside: str) -> None:
    assert drawing_only(SVG.format(inside)) is None


def test_a_drawing_is_taken_in_without_its_name_spaces() -> None:
    inside = (
        '<defs><path id="a" d="M0 0"/></defs><use xlink:href="#a"/><g fill="url(#b)"><text x="1">a &lt; b</text></g>'
    )
    taken = drawing_only("<?xml version='1.0'?>" + SVG.format(inside))
    assert taken is not None
    assert "http" not in taken
    assert '<use href="#a"' in taken
    assert "a &lt; b" in taken
    assert drawing_only("<html/>") is None


def test_an_algorithm_with_a_server_shows_four_scores_its_numbers_and_its_relations(
    tmp_path: Path, report: Report
) -> None:
    run = made(tmp_path, methods=("local",), peers=3, finished=False)
    numbers = {"confidence": [1.0, 500.0, 3.0], "deviation": [0.0, 0.1, 0.2]}
    for method, more in (("pfedvem", {"server_accuracy": [0.5] * 3, "statistics": numbers}), ("mocha", {})):
        for number in (1, 2, 3):
            run.record(row(method, number, peers=3) | {"tested": [10, 10, 20]} | more)
    matrix = [[1.0, 0.5, -0.5], [0.5, 1.0, 0.0], [-0.5, 0.0, 1.0]]
    run.describe("relations", {"mocha": {"peers": ["peer1", "peer2", EVIL], "matrix": matrix}})
    text, parsed = page(run)
    check(text, parsed)
    for words in ("Confidence of the peers", "Deviation of the peers", "How related the tasks are", "PM", "GM"):
        assert words in parsed.text
    assert "50.0 %" in parsed.text
    assert "on the test data itself, which is optimistic" in parsed.text
    parsed_without = report("one method")[2]
    assert "Other measurements" not in parsed_without.text
    assert "GM" not in parsed_without.text


@pytest.mark.parametrize(
    ("classes", "says"),
    [
        (["fever", "cough"], "Training examples of each label, for each peer"),
        ([], "Quantiles of the number of labels in the training data, for each peer"),
    ],
)
def test_of_labels_it_says_so(classes: list[str], says: str, tmp_path: Path) -> None:
    run = made(tmp_path, methods=("local",), rounds=1)
    split = run.read("split")
    assert split is not None
    run.describe("split", split | {"task": "multi-label", "classes": classes})
    assert says in page(run)[1].text


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
async def test_a_name_without_a_blank_fits_a_telephone(tmp_path: Path) -> None:
    data = "csv:/home/somebody/hospitals/north/2026/clinic.csv,labels=fever+cough+rash,user=ward"
    run = made(tmp_path, methods=("local",), simulation={"peers": 4, "dataset": data, "split": "user"})
    async with chromium(tmp_path / "browser") as tab:
        await tab.look(390)
        await tab.open(write_report(run).as_uri())
        assert data in await tab.value("document.body.textContent")
        assert await tab.value("document.documentElement.scrollWidth") == 390
