"""fedpeer accepts every command in the pages, every link has a target, and the reference is up to date."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedpeer.cli import running
from fedpeer.cli.main import run
from fedpeer.config.capacity import METADATA_BYTES_MAX
from fedpeer.config.choice import Choice
from fedpeer.config.federation import Federation
from fedpeer.data.dataset import Dataset
from fedpeer.data.registry import DATASETS, SOURCES
from fedpeer.experiments.associative import demonstration
from fedpeer.experiments.associative.page import server as playground
from fedpeer.gossip.reductions import FORMS, PACKERS
from fedpeer.learning.holdings import load_dataset
from fedpeer.peer.wire.rejections import REJECTIONS
from fedpeer.runs.folder import RunFolder
from fedpeer.sims import prepare
from fedpeer.sims.prepare import prepare_simulation
from fedpeer.sims.request import SimulationRequest

from .pages import PAGES, REAL, ROOT, TYPED, blocks, commands, named

#: Commands of the pages, except those of pages that are typed as a whole, and those of real peers, which occur there.
COMMANDS = [(page, each) for page in PAGES for each in commands(page) if page not in TYPED and not REAL.match(each)]

#: The reader's own module, nets.py, to which the pages refer.
NETS = """
from torch import nn

def build(shape, outputs):
    return nn.Sequential(nn.Linear(shape[0], 8), nn.ReLU(), nn.Linear(8, outputs))
"""


def loaded(file: Path) -> ModuleType:
    """Return a script of the repository as a module."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a reader's folder, with the files that the pages name and an interrupted run."""
    here = tmp_path_factory.mktemp("reader")
    loaded(ROOT / "examples" / "own_module.py").write_table(here / "clinic.csv")
    shutil.copytree(ROOT / "examples", here / "examples")
    shutil.copy(ROOT / "examples" / "federation.yaml", here)
    digits = load_digits()
    np.savez(here / "digits.npz", x=digits.images / 16, y=digits.target)
    image = pytest.importorskip("PIL.Image", reason="the extra fedpeer[images] is not installed")
    for number, label in enumerate(digits.target[:100]):
        for place in ("pictures", f"sites/{'north' if number % 2 else 'south'}"):
            (here / place / str(label)).mkdir(parents=True, exist_ok=True)
            image.fromarray((digits.images[number] * 15).astype(np.uint8)).save(
                here / place / str(label) / f"{number}.png"
            )
    (here / "nets.py").write_text(NETS)
    settings = SimulationRequest(federation=Federation()).to_json()
    begun = RunFolder.create(
        here / "fedpeer-runs", name="digits", settings={**settings.pop("federation"), **settings}, environment={}
    )
    begun.finish({"schema": 1, "methods": {}, "seeds": [0]}, "interrupted")
    return here


@pytest.fixture(scope="module")
def with_a_language_model(folder: Path) -> None:
    """Put a small model under the name that the page of pretrained models uses, and a table with text."""
    from tests.learning.pretrained_models import TEXTS, saved_model

    saved_model("bert", folder).rename(folder / "minilm")
    rows = [f"{shop},{text},{verdict}" for text, verdict in TEXTS.items() for shop in ("north", "south")]
    (folder / "reviews.csv").write_text("\n".join(["shop,review,verdict", *3 * rows]) + "\n")


@pytest.fixture(scope="module")
def loading() -> Callable[[Choice], Dataset]:
    """Return a function that loads each data set once for all commands; `tests/data/` tests the reading."""
    held: dict[str, Dataset] = {}

    def load(choice: Choice) -> Dataset:
        if str(choice) not in held:
            held[str(choice)] = load_dataset(choice)
        return held[str(choice)]

    return load


@pytest.mark.slow  # each takes a part of a second, and there are many
@pytest.mark.parametrize(("page", "command"), COMMANDS, ids=[f"{named(p)}: {c}" for p, c in COMMANDS])
def test_command(
    page: Path,
    command: str,
    folder: Path,
    loading: Callable[[Choice], Dataset],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    """The command runs as typed; `simulate` stops before the training, and before the data if they would be downloaded.

    A demonstration runs one round, and its page ends as soon as it is served. Scalars are averaged by fewer peers.
    """
    if command.startswith("fedpeer topology simulate"):
        command = re.sub(r"--peers \d+000\b", "--peers 4096", command)
    if page.name == "pretrained.md":
        command = command.replace("length=64", "length=16")  # the model is smaller
        request.getfixturevalue("with_a_language_model")
    monkeypatch.chdir(folder)
    monkeypatch.delenv("FEDPEER_RUNS", raising=False)

    def prepared(request: SimulationRequest, make: Callable[[], RunFolder], **_: bool) -> int:
        source = SOURCES.get(request.federation.simulation.dataset.name)
        if source is None or source.here:
            prepare_simulation(request)
        return 0

    monkeypatch.setattr(running, "run_simulation", prepared)
    monkeypatch.setattr(prepare, "load_dataset", loading)
    monkeypatch.setattr(demonstration, "ROUNDS", 1)

    async def served(*arguments: Any) -> None:
        arguments[-1]()

    monkeypatch.setattr(playground, "serve_page", served)
    monkeypatch.setattr("webbrowser.open", lambda url: True)
    program, *arguments = shlex.split(command.partition(" > ")[0])
    if program == "make":
        assert re.search(rf"^{arguments[0]}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    else:
        assert program == "fedpeer"
        assert run(arguments) == 0, capsys.readouterr().err


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_files_of_the_repository_are_there(page: Path) -> None:
    """Files that a page names with their folder exist; the page's reading list is not checked."""
    text = page.read_text(encoding="utf-8").partition("Reading\n")[0]
    rooms = "algorithms|benchmarks|cli|config|docs|examples|gossip|networks|peer|runs|sims|slicing|tests|topology"
    named_there = re.findall(rf"`((?:{rooms})/[\w./-]*)`", text)
    assert [each for each in named_there if not (ROOT / each).exists()] == []


def test_what_shows_a_fault_again_is_among_the_tests() -> None:
    """Each test of the track record has files that exist, and words that stand there; scenarios are named elsewhere."""
    rows = (ROOT / "docs" / "track-record.md").read_text(encoding="utf-8")
    found = [shlex.split(each) for each in re.findall(r"`((?:pytest|tests/)[^`]*)`", rows)]
    assert len(found) > 200
    for words in found:
        places = [ROOT / each.partition("::")[0] for each in words if each.startswith("tests/")]
        assert all(each.exists() for each in places), words
        files = [path for each in places for path in ([each] if each.is_file() else each.rglob("*.py"))]
        text = "".join(path.name + path.read_text(encoding="utf-8") for path in files).lower()
        chosen = re.findall(r"[^\s()]+", words[words.index("-k") + 1]) if "-k" in words else []
        if "tests/faults/test_sabotage.py" not in words:
            assert all(each in ("and", "or", "not") or each.lower() in text for each in chosen), words


def test_every_form_is_on_the_page_of_the_wire() -> None:
    text = (ROOT / "docs" / "wire.md").read_text(encoding="utf-8")
    assert [form for form in (*FORMS, *PACKERS) if not re.search(rf"`[./]*{form}[:`]", text)] == []
    assert f"at most {METADATA_BYTES_MAX:,}" in text


def test_the_first_bytes_of_the_page_of_the_wire_are_a_message() -> None:
    (example, *_) = blocks(ROOT / "docs" / "wire.md", "text")
    kept = (ROOT / "tests" / "peer" / "wire" / "wire-v2.txt").read_text(encoding="utf-8")
    written = "".join(re.split(r"\s{3,}", line)[0].replace(" ", "") for line in example.splitlines())
    assert f"contract {written}\n" in kept


def test_every_input_that_is_refused_is_in_the_contract() -> None:
    text = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    assert [id for row in REJECTIONS.values() for id in row.ids if f"| {id} |" not in text] == []


def test_every_make_target_is_explained() -> None:
    targets = re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8") + (ROOT / "README.md").read_text(encoding="utf-8")
    assert [each for each in targets if f"make {each}" not in text and each not in ("help", "clean")] == []


def test_the_reference_is_what_the_program_says() -> None:
    reference = loaded(ROOT / "docs" / "reference.py")
    found = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert found == reference.page(), "run python docs/reference.py"


def test_the_tables_of_the_wire_are_what_the_messages_declare() -> None:
    tables = loaded(ROOT / "docs" / "wire_tables.py")
    found = (ROOT / "docs" / "wire.md").read_text(encoding="utf-8")
    assert found == tables.page(), "run python docs/wire_tables.py"


def test_every_data_set_and_its_files_are_on_the_page() -> None:
    text = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    paths = [file.path for source in SOURCES.values() for file in source.files]
    assert [each for each in (*DATASETS, *paths) if f"`{each}`" not in text] == []
