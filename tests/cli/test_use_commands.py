"""`fedpeer evaluate / predict / export` on the command line, for a run and for a peer's own folder."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.table import Table
from safetensors.torch import load_file
from sklearn import metrics

from fedpeer.cli import main
from fedpeer.cli.judgement import Judgement
from fedpeer.cli.peer_config import load_peer
from fedpeer.data.own.code import imported
from fedpeer.learning.holdings import outfit
from fedpeer.learning.models import BestRound, Card, load_model, save, save_best
from fedpeer.runs.summary import linear_text, score_text
from tests.cli.conftest import Fedpeer
from tests.cli.peers import federation_on_disk


def table(path: Path) -> Path:
    draws = np.random.default_rng(0)
    rows = [f"{a:.3f},{b:.3f},{'ill' if a > b else 'well'}" for a, b in draws.normal(5, 2, (90, 2))]
    path.write_text("\n".join(["a,b,outcome", *rows]) + "\n")
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with one finished run on ward.csv."""
    folder = tmp_path_factory.mktemp("finished")
    data = f"csv:{table(folder / 'ward.csv')},label=outcome"
    settings = ["--peers", "2", "--network", "mlp:2+5+2", "--rounds", "2", "--steps", "20", "--workers", "1"]
    settings += ["--compare", "partial-averaging", "--device", "cpu", "--out", str(folder / "fedpeer-runs")]
    assert main.run(["simulate", "--dataset", data, *settings, "--quiet"]) == 0
    return folder


@pytest.fixture
def run(fedpeer: Fedpeer, finished: Path, tmp_path: Path) -> Fedpeer:
    """Return the command line in a copy of that folder."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return fedpeer


def test_evaluate_gives_the_last_row_of_the_run(run: Fedpeer, tmp_path: Path) -> None:
    [rows] = tmp_path.glob("fedpeer-runs/*/metrics.jsonl")
    last = json.loads(rows.read_text().splitlines()[-1])
    for number, peer in enumerate(("peer1", "peer2")):
        found = json.loads(run("evaluate", "last", "--peer", peer, "--json").out)
        assert found["accuracy"] == pytest.approx(last["accuracy"][number])
        assert found["loss"] == pytest.approx(last["loss"][number], rel=1e-5)
    assert "its own test part" in run("evaluate", "last", "--peer", "peer1").out
    assert (
        "90 examples of csv:ward.csv"
        in run("evaluate", "last", "--peer", "peer1", "--data", "csv:ward.csv,label=outcome").out
    )


def test_evaluate_reads_a_file_like_those_that_the_model_was_trained_on(run: Fedpeer, tmp_path: Path) -> None:
    """`evaluate` takes the file that `predict` takes, if it has the labels."""
    table(tmp_path / "later.csv")
    named = run("evaluate", "last", "--peer", "peer1", "--data", "csv:later.csv,label=outcome", "--json").out
    assert run("evaluate", "last", "later.csv", "--peer", "peer1", "--json").out == named
    assert "90 examples of later.csv" in run("evaluate", "last", "later.csv", "--peer", "peer1").out
    (tmp_path / "bare.csv").write_text("a,b\n9,1\n")
    missing = run("evaluate", "last", "bare.csv", "--peer", "peer1")
    assert missing.code == 2
    assert "label=outcome: there is no such column; there are: a, b" in missing.err


@pytest.mark.slow
def test_names_with_commas_are_written_in_double_quotes(fedpeer: Fedpeer, tmp_path: Path) -> None:
    """The run keeps them, so that a later command finds file and columns again."""
    content = table(tmp_path / "ward.csv").read_text().replace("a,b,outcome", '"height, cm",b,"fine, or=not"')
    (tmp_path / "ward 3, new.csv").write_text(content)
    options = ["--peers", "2", "--split", "iid", "--rounds", "1", "--workers", "1", "--quiet"]
    unquoted = fedpeer("simulate", "--dataset", "csv:ward 3, new.csv,label=b", *options)
    assert unquoted.code == 2
    assert 'or a value with a comma in double quotes: csv:"a,b"' in " ".join(unquoted.err.split())
    data = 'csv:"ward 3, new.csv",label="fine, or=not"'
    assert fedpeer("simulate", "--dataset", data, *options).code == 0
    assert "its own test part" in fedpeer("evaluate", "last", "--peer", "peer1").out
    assert "90 examples" in fedpeer("evaluate", "last", "ward 3, new.csv", "--peer", "peer1").out


def test_predict_answers_row_by_row(run: Fedpeer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns are found by name, other columns are ignored, and no label is needed."""
    (tmp_path / "new.csv").write_text("b,name,a\n1,x,9\n9,y,1\n")
    (tmp_path / "tabs.csv").write_text("a\tb\n9\t1\n1\t9\n")
    answers = run("predict", "last", "new.csv", "--peer", "peer1").out
    lines = [line.split(",") for line in answers.splitlines()]
    assert lines[0] == ["prediction", "probability ill", "probability well"]
    assert [line[0] for line in lines[1:]] == ["ill", "well"]
    for line in lines[1:]:
        assert float(line[1]) + float(line[2]) == pytest.approx(1, abs=1e-5)
    assert run("predict", "last", "tabs.csv", "--delimiter", "tab", "--peer", "peer1").out == answers
    assert run("predict", "last", "new.csv", "--peer", "peer1", "--to", "answers.csv").out == ""
    assert (tmp_path / "answers.csv").read_text() == answers
    marked = io.TextIOWrapper(io.BytesIO("a,b\n9,1\n1,9\n".encode("utf-8-sig")), encoding="latin1")
    monkeypatch.setattr("sys.stdin", marked)
    assert run("predict", "last", "-", "--peer", "peer1").out == answers
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra fedpeer[parquet]")
    stored = pytest.importorskip("pyarrow.parquet", reason="needs the extra fedpeer[parquet]")
    stored.write_table(pyarrow.table({"b": [1, 9], "name": ["x", "y"], "a": [9, 1]}), tmp_path / "new.parquet")
    assert run("predict", "last", "new.parquet", "--peer", "peer1").out == answers


def test_new_examples_that_cannot_be_read_are_told_with_a_way_out(run: Fedpeer, tmp_path: Path) -> None:
    """A column that the model needs is not to be left out."""
    (tmp_path / "gap.csv").write_text("a,b\n1,\nx,2\n")
    (tmp_path / "wide.csv").write_text("a,b\n1,2\n", encoding="utf-16")
    found = " ".join(run("predict", "last", "gap.csv", "--peer", "peer1").err.split())
    assert "row 2, column b: the cell is empty; fill it in or delete the row" in found
    assert "row 3, column a" in found
    assert "drop=" not in found
    assert "UTF-16" in run("predict", "last", "wide.csv", "--peer", "peer1").err


def test_a_card_whose_peer_is_named_like_a_path_is_not_read(run: Fedpeer, tmp_path: Path) -> None:
    """Without a given file name, `export` would write a file with the peer's name."""
    [path] = tmp_path.glob("fedpeer-runs/*/models/partial-averaging-seed*.json")
    card = json.loads(path.read_text())
    before = sorted(each for each in tmp_path.parent.rglob("*"))
    for name in ("../../evil", "/tmp/evil", "\x1b[2J", "a b", "", "x" * 100):
        path.write_text(json.dumps({**card, "peers": {name: card["peers"]["peer1"]}}))
        for command in (["export", "last"], ["evaluate", "last"]):
            done = run(*command)
            assert done.code == 2, name
            assert "is not an id" in " ".join(done.err.split()), name
            assert "\x1b" not in done.err
    assert sorted(each for each in tmp_path.parent.rglob("*")) == before


#: Names as a label column may have them, and their form in a cell that no spreadsheet evaluates.
NAMES = {
    "=1+1": "'=1+1",
    "+SUM(A1)": "'+SUM(A1)",
    "-x": "'-x",
    "@cmd": "'@cmd",
    "\t=1": "'?=1",
    "\r=1": "'?=1",
    "\uff1d1": "'\uff1d1",
    "-0.5": "-0.5",
    "+1e-3": "+1e-3",
    "ill": "ill",
    "a=b": "a=b",
    "\x1b[31mred": "?[31mred",
    "'=1": "'=1",
}


@pytest.mark.parametrize("name", NAMES)
def test_class_names_are_no_formulas_in_the_answers(run: Fedpeer, tmp_path: Path, name: str) -> None:
    """A model of unknown origin may have any class names: they are escaped, and written unchanged only on request."""
    [path] = tmp_path.glob("fedpeer-runs/*/models/partial-averaging-seed*.json")
    card = json.loads(path.read_text())
    path.write_text(json.dumps({**card, "classes": [name, name]}))
    (tmp_path / "new.csv").write_text("a,b\n1,9\n")

    def cell(*options: str) -> str:
        run("predict", "last", "new.csv", "--peer", "peer1", "--to", "answers.csv", *options)
        with (tmp_path / "answers.csv").open(newline="", encoding="utf-8") as file:
            header, row, *_ = csv.reader(file)
        assert not set("=+-@\t\r") & set(header[1][0])
        return row[0]

    assert cell() == NAMES[name]
    assert cell("--names-as-they-are") == name or "\r" in name, "a lone carriage return ends the row"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty"),
        ("a,c\n1,2\n", 'no column "b"'),
        ("a,b\n", "no rows"),
        ("a,b\n1,x\n", "row 2, column b"),
        ("a,b\n1\n", "row 2: it has 1 cells"),
        ("a,b,a\n1,2,3\n", 'several columns are called "a"'),
    ],
)
def test_what_is_wrong_with_new_examples_is_said(run: Fedpeer, tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "new.csv").write_text(content)
    found = run("predict", "last", "new.csv", "--peer", "peer1")
    assert (found.code, found.out) == (2, "")
    assert said in " ".join(found.err.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["evaluate", "last"], "--peer"),
        (["evaluate", "last", "--peer", "peer9"], "it has peer1, peer2"),
        (["evaluate", "last", "--peer", "peer1", "--method", "fedavg"], "no models of fedavg"),
        (["evaluate", "last", "--peer", "peer1", "--seed", "7"], "with seed 7"),
        (["evaluate", "nowhere", "--peer", "peer1"], "no run"),
        (["evaluate", "last", "ward.csv", "--data", "digits", "--peer", "peer1"], "leave one out"),
        (["evaluate", "last", "--peer", "peer1", "--data", "digits"], "trained for the classes ill, well"),
        (["evaluate", "last", "--peer", "peer1", "--data", "csv:ward.csv,label=a"], "is not a class"),
        (["predict", "last", "nowhere.csv", "--peer", "peer1"], "there is no file nowhere.csv"),
        (["predict", "last", "ward.csv", "--peer", "peer1", "--to", "no/where.csv"], "cannot be written"),
        (["export", "last", "--peer", "nobody", "--to", "no/where.pt2"], "cannot be written"),  # before any work
        (["export", "last", "--peer", "peer1", "--to", "model"], "one of .safetensors, .pt2, .onnx, or add --format"),
        (["export", "last", "--peer", "peer1", "--to", "model.bin"], "one of .safetensors, .pt2, .onnx"),
        (
            ["export", "last", "--peer", "peer1", "--to", "m.onnx", "--format", "pt2"],
            "means onnx, but --format is pt2",
        ),
        (["export", "last", "--peer", "peer1", "--format", "pickle"], "--format"),
    ],
)
def test_what_is_wrong_with_the_question_is_said(run: Fedpeer, arguments: list[str], said: str) -> None:
    found = run(*arguments)
    assert (found.code, found.out) == (2, "")
    assert said in " ".join(found.err.split())


def test_export_writes_the_model_and_what_its_numbers_mean(run: Fedpeer, tmp_path: Path) -> None:
    for form in ("safetensors", "pt2"):
        found = run("export", "last", "--peer", "peer2", "--format", form)
        assert found.out.split() == [f"peer2.{form}", f"peer2.{form}.json"]
        assert (tmp_path / f"peer2.{form}").stat().st_size > 0
        card = json.loads((tmp_path / f"peer2.{form}.json").read_text())
        assert (card["classes"], card["features"], list(card["peers"])) == (["ill", "well"], ["a", "b"], ["peer2"])


def test_the_end_of_the_files_name_decides_what_is_written(run: Fedpeer, tmp_path: Path) -> None:
    """The library of each format can read the file."""
    for name in ("m.onnx", "M.PT2", "m.safetensors", "model.bin"):
        more = ["--format", "safetensors"] if name == "model.bin" else []
        found = run("export", "last", "--peer", "peer2", "--to", name, *more)
        assert (found.code, found.out.split()) == (0, [name, f"{name}.json"]), found.err
    weights = load_file(tmp_path / "m.safetensors")
    assert weights.keys() == load_file(tmp_path / "model.bin").keys()
    with (tmp_path / "M.PT2").open("rb") as file:
        assert torch.export.load(file)
    onnx = pytest.importorskip("onnx", reason="the extra fedpeer[onnx] is not installed")
    assert onnx.load(tmp_path / "m.onnx").graph.output


def test_a_run_on_a_table_has_a_linear_model_beside_it(run: Fedpeer, tmp_path: Path) -> None:
    [path] = tmp_path.glob("fedpeer-runs/*/summary.json")
    summary = json.loads(path.read_text())
    found = summary["linear"]
    assert (found["model"], found["mean"]) == ("logistic regression", pytest.approx(np.mean(found["per_peer"])))
    mean, least, most = (score_text(each, "accuracy") for each in (found["mean"], *sorted(found["per_peer"])))
    said = (
        f"For comparison, logistic regression by each peer alone: {mean} on average, {least} at the lowest peer and "
        f"{most} at the highest; balanced accuracy {found['balanced_accuracy']:.3f}."
    )
    assert said in " ".join(run("runs", "show").out.split())
    alone = {**found, "per_peer": found["per_peer"][:1]}
    del alone["balanced_accuracy"]
    assert linear_text(alone, "accuracy") == f"For comparison, logistic regression by each peer alone: {mean}."
    assert linear_text(None, "accuracy") is None


def test_evaluate_measures_answers_as_scikit_learn_does(run: Fedpeer, tmp_path: Path) -> None:
    found = json.loads(run("evaluate", "last", "--peer", "peer2", "ward.csv", "--json").out)
    assert run("predict", "last", "ward.csv", "--peer", "peer2", "--to", "answers.csv").code == 0
    answers = list(csv.DictReader(io.StringIO((tmp_path / "answers.csv").read_text())))
    truth = [each["outcome"] for each in csv.DictReader(io.StringIO((tmp_path / "ward.csv").read_text()))]
    named, of_well = [each["prediction"] for each in answers], [float(each["probability well"]) for each in answers]
    assert found["metrics"]["f1"] == pytest.approx(metrics.f1_score(truth, named, average="macro"))
    assert found["metrics"]["auc"] == pytest.approx(metrics.roc_auc_score([each == "well" for each in truth], of_well))
    assert found["confusion"] == metrics.confusion_matrix(truth, named).tolist()
    assert found["classes"]["ill"]["recall"] == pytest.approx(metrics.recall_score(truth, named, pos_label="ill"))
    shown = run("evaluate", "last", "--peer", "peer2", "ward.csv", "--metrics", "auc,brier").out
    assert f"auc {found['metrics']['auc']:.4g}, brier {found['metrics']['brier']:.4g}\n" in shown
    assert "precision" in shown
    for name, says in (("r2", "r2 is for regression"), ("acu", 'did you mean "auc"')):
        refused = run("evaluate", "last", "--peer", "peer2", "--metrics", name)
        assert (refused.code, says in " ".join(refused.err.split())) == (2, True)


@pytest.mark.slow
def test_a_model_of_several_labels_is_evaluated_and_predicts(fedpeer: Fedpeer, tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    rows = [f"{a:.3f},{b:.3f},{int(a > b)},{int(a > 5)}" for a, b in draws.normal(5, 2, (90, 2))]
    (tmp_path / "ward.csv").write_text("\n".join(["a,b,fever,cough", *rows]) + "\n")
    data = "csv:ward.csv,labels=fever+cough"
    settings = ["--peers", "2", "--network", "mlp:2+6+2", "--rounds", "4", "--compare", "partial-averaging", "--quiet"]
    made = fedpeer("simulate", "--dataset", data, *settings, "--metrics", "auc,exact-match", "--out", "runs")
    assert made.code == 0, made.err
    assert "logistic regression by each peer alone" in made.out
    peer = ("last", "--peer", "peer1", "--out", "runs")
    assert fedpeer("predict", *peer, "ward.csv", "--to", "answers.csv").code == 0
    answers = list(csv.DictReader(io.StringIO((tmp_path / "answers.csv").read_text())))
    assert list(answers[0]) == ["fever", "cough", "probability fever", "probability cough"]
    truth = list(csv.DictReader(io.StringIO((tmp_path / "ward.csv").read_text())))
    found = json.loads(fedpeer("evaluate", *peer, "ward.csv", "--json").out)
    pairs = list(zip(truth, answers, strict=True))
    right = [[one[name] == other[name] for name in ("fever", "cough")] for one, other in pairs]
    assert found["accuracy"] == pytest.approx(np.mean(right))
    assert found["metrics"]["exact-match"] == pytest.approx(np.mean([all(each) for each in right]))
    for name in ("fever", "cough"):
        marks, p = ([int(one[name]) for one, _ in pairs], [float(other[f"probability {name}"]) for _, other in pairs])
        assert [each[name] for each in answers] == ["1" if each > 0.5 else "0" for each in p]
        chosen = [int(each[name]) for each in answers]
        assert found["classes"][name]["recall"] == pytest.approx(metrics.recall_score(marks, chosen))
    assert "confusion" not in found
    shown = fedpeer("evaluate", *peer).out
    assert "its own test part" in shown
    assert "fever" in shown
    other = fedpeer("evaluate", *peer, "--data", "csv:ward.csv,label=fever,drop=cough")
    assert (other.code, "trained for the labels fever, cough" in " ".join(other.err.split())) == (2, True)


TRAINED = ["--peers", "2", "--split", "iid", "--rounds", "1", "--workers", "1", "--compare", "local", "--quiet"]
OF_PEER1 = ("last", "--peer", "peer1", "--method", "local")


def error_by_hand(fedpeer: Fedpeer, file: str) -> float:
    """Return the root mean square error of the predictions that `predict` prints for a file."""
    answers = csv.DictReader(io.StringIO(fedpeer("predict", *OF_PEER1, file).out))
    truth = csv.DictReader(io.StringIO(Path(file).read_text()))
    wrong = [float(one["prediction"]) - float(other["cost"]) for one, other in zip(answers, truth, strict=True)]
    return float(np.sqrt(np.mean(np.square(wrong))))


@pytest.mark.slow
def test_numbers_are_numbers_in_a_file_in_which_all_are_whole(fedpeer: Fedpeer, tmp_path: Path) -> None:
    """From the cells of this file alone, the guess would be classes."""
    draws = np.random.default_rng(0)
    rows = [f"{a:.3f},{b:.3f},{1000 + 100 * (a - b):.2f}" for a, b in draws.normal(5, 2, (90, 2))]
    Path("ward.csv").write_text("\n".join(["a,b,cost", *rows]))
    Path("few.csv").write_text("a,b,cost\n5,5,1000\n6,5,1100\n5,6,900\n")
    assert fedpeer("simulate", "--dataset", "csv:ward.csv,label=cost", *TRAINED).code == 0
    for given in (["few.csv"], ["--data", "csv:few.csv,label=cost"]):
        done = fedpeer("evaluate", *OF_PEER1, *given, "--json")
        assert done.code == 0, done.err
        found = json.loads(done.out)
        assert found["metrics"]["rmse"] == pytest.approx(error_by_hand(fedpeer, "few.csv"), rel=1e-4)
    classes = fedpeer("evaluate", *OF_PEER1, "--data", "csv:few.csv,label=cost,task=classification")
    assert (classes.code, "trained for numbers to predict" in " ".join(classes.err.split())) == (2, True)


DATA_OF_ONES_OWN = """
import numpy as np
import fedpeer

draws = np.random.default_rng(0)
kinds = draws.integers(0, 3, 60)
x = (np.eye(3)[kinds] + draws.normal(0, 0.1, (60, 3))).astype(np.float32)

def of(names, rows):
    named = np.array([names.index("abc"[kind]) for kind in kinds[rows]])
    return fedpeer.Dataset(name="own", x=x[rows], y=named, task="classification", input_kind="features", classes=names)

def usual(): return of(("a", "b", "c"), np.arange(60))
def turned(): return of(("c", "a", "b"), np.arange(60))
def two(): return of(("c", "a"), np.flatnonzero(kinds != 1))
def others(): return of(("a", "b", "c", "d"), np.arange(60))
"""


@pytest.mark.slow
def test_a_peer_is_named_by_the_user_whose_data_it_has(fedpeer: Fedpeer, tmp_path: Path) -> None:
    rows = [
        f"{a:.3f},{'ill' if a > 0 else 'well'},{'north' if n % 3 else 'south'}" for n, a in enumerate(np.sin(range(60)))
    ]
    Path("sites.csv").write_text("\n".join(["a,outcome,site", *rows]) + "\n")
    data = ["--dataset", "csv:sites.csv,label=outcome,user=site", "--rounds", "1", "--steps", "5", "--compare", "local"]
    assert fedpeer("simulate", *data, "--workers", "1", "--quiet").code == 0
    split = json.loads(next(Path("fedpeer-runs").glob("*/split.json")).read_text())
    for peer in split["peers"]:
        found = [
            fedpeer("evaluate", "last", "--method", "local", "--peer", peer[key], "--json").out
            for key in ("id", "note")
        ]
        assert json.loads(found[0]) == json.loads(found[1])
        assert json.loads(found[0])["peer"] == peer["id"]
    assert {peer["note"] for peer in split["peers"]} == {"north", "south"}
    ward = [line.rpartition(",")[0] for line in ("a,outcome,site", *rows) if not line.endswith("south")]
    Path("ward.csv").write_text("\n".join(ward) + "\n")
    for file, examples in (("ward.csv", len(ward) - 1), ("sites.csv", len(rows))):
        shown = fedpeer("evaluate", "last", file, "--method", "local", "--peer", "north", "--json").out
        assert json.loads(shown)["examples"] == examples, "without the column that names users, too"
    refused = fedpeer("evaluate", "last", "--method", "local", "--peer", "west")
    assert 'no peer "west"' in " ".join(refused.err.split())


TEXTS_OF_ONES_OWN = """
import numpy as np
import fedpeer

def texts():
    x = np.random.default_rng(0).integers(0, 7, (40, 6))
    y = np.roll(x, -1, 1)
    return fedpeer.Dataset(name="texts", x=x, y=y, task="next-token", input_kind="tokens", vocabulary=7)

def places(y, answers):
    return answers.shape[1]
"""


@pytest.mark.slow
def test_a_model_of_next_tokens_has_a_score_and_a_loss(
    fedpeer: Fedpeer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Precision, confusion and the like need one answer for each example."""
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("evaluated_texts.py").write_text(TEXTS_OF_ONES_OWN)
    network = "transformer,width=8,heads=2,layers=1,causal=true"
    assert fedpeer("simulate", "--dataset", "python:evaluated_texts:texts", *TRAINED, "--network", network).code == 0
    own = ["evaluate", *OF_PEER1, "--allow-python", "evaluated_texts"]
    found = json.loads(fedpeer(*own, "--json").out)
    assert (0 <= found["accuracy"] <= 1, found["metrics"], "confusion" in found) == (True, {}, False)
    ours = json.loads(fedpeer(*own, "--metrics", "python:evaluated_texts:places", "--json").out)
    assert (ours["metrics"], "confusion" in ours) == ({"python:evaluated_texts:places": 6}, False)
    refused = fedpeer(*own, "--metrics", "auc")
    assert (refused.code, "the data ask for next-token" in " ".join(refused.err.split())) == (2, True)


@pytest.mark.slow
def test_classes_are_those_of_their_names_in_whatever_order(
    fedpeer: Fedpeer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("evaluated_wards.py").write_text(DATA_OF_ONES_OWN)
    more = ["--network", "mlp:3+3", "--optimizer", "adam,lr=0.1", "--steps", "60"]
    assert fedpeer("simulate", "--dataset", "python:evaluated_wards:usual", *TRAINED, *more).code == 0
    usual, turned, two = (
        json.loads(fedpeer("evaluate", *OF_PEER1, "--data", f"python:evaluated_wards:{name}", "--json").out)
        for name in ("usual", "turned", "two")
    )
    assert usual["accuracy"] > 0.9
    assert turned == usual
    assert list(two["classes"]) == ["a", "b", "c"]
    for name, examples in (("a", usual["classes"]["a"]["examples"]), ("b", 0)):
        assert two["classes"][name]["examples"] == examples
    assert two["accuracy"] > 0.9
    others = fedpeer("evaluate", *OF_PEER1, "--data", "python:evaluated_wards:others")
    assert (others.code, "trained for the classes a, b, c" in " ".join(others.err.split())) == (2, True)


@pytest.mark.slow
def test_labels_are_those_of_their_names_in_whatever_order(fedpeer: Fedpeer, tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    rows = [f"{a:.3f},{b:.3f},{int(a > b)},{int(a > 5)}" for a, b in draws.normal(5, 2, (90, 2))]
    Path("ward.csv").write_text("\n".join(["a,b,fever,cough", *rows]))
    assert fedpeer("simulate", "--dataset", "csv:ward.csv,labels=fever+cough", *TRAINED).code == 0
    usual, turned = (
        json.loads(fedpeer("evaluate", *OF_PEER1, "--data", f"csv:ward.csv,labels={labels}", "--json").out)
        for labels in ("fever+cough", "cough+fever")
    )
    assert turned == usual


@pytest.mark.slow
def test_a_model_of_two_numbers_is_not_measured_on_one(fedpeer: Fedpeer, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    np.savez("two.npz", x=x, y=x[:, :2] * 10 + 0.5)
    np.savez("one.npz", x=x, y=x[:, 0] * 10 + 0.5)
    np.savez("wide.npz", x=np.ones((9, 4), np.float32), y=np.ones((9, 2), np.float32) / 2)
    assert fedpeer("simulate", "--dataset", "npz:two.npz", *TRAINED).code == 0
    assert fedpeer("evaluate", *OF_PEER1, "two.npz").code == 0
    for file, said in (
        ("one.npz", "an example has 1 targets, but the model predicts 2"),
        ("wide.npz", "an example is features (4,), but the model takes features (3,)"),
    ):
        refused = fedpeer("evaluate", *OF_PEER1, file)
        assert (refused.code, said in " ".join(refused.err.split())) == (2, True), refused.err


@pytest.mark.slow
def test_tokens_that_a_model_does_not_know_are_told(fedpeer: Fedpeer, tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    x, y = draws.integers(0, 7, (40, 6)), draws.integers(0, 2, 40)
    np.savez("known.npz", x=x, y=y)
    np.savez("more.npz", x=np.where(x == 3, 7, x), y=y)
    assert fedpeer("simulate", "--dataset", "npz:known.npz,kind=tokens", *TRAINED, "--network", "lstm").code == 0
    assert fedpeer("evaluate", *OF_PEER1, "known.npz").code == 0
    refused = fedpeer("evaluate", *OF_PEER1, "more.npz")
    assert (refused.code, "it has token 7, but the model knows 7" in " ".join(refused.err.split())) == (2, True)


@pytest.mark.slow
def test_a_folder_of_images_may_lack_a_class_and_has_no_other(fedpeer: Fedpeer, tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image", reason="needs the extra fedpeer[images]")

    def paint(*files: str) -> None:
        for file in files:
            Path(file).parent.mkdir(parents=True, exist_ok=True)
            pillow.fromarray(np.random.default_rng(0).integers(0, 99, (6, 6)).astype(np.uint8)).save(file)

    paint(*(f"pictures/{name}/{number}.png" for name in ("cat", "cow", "dog") for number in range(8)))
    assert fedpeer("simulate", "--dataset", "images:pictures", *TRAINED).code == 0
    answers = fedpeer("predict", *OF_PEER1, "pictures").out.splitlines()
    assert (len(answers), answers[0].split(",")[:2], answers[-1][:9]) == (25, ["file", "prediction"], "dog/7.png")
    paint("later/dog/1.png", "later/cat/1.png")
    found = json.loads(fedpeer("evaluate", *OF_PEER1, "later", "--json").out)
    assert {name: row["examples"] for name, row in found["classes"].items()} == {"cat": 1, "cow": 0, "dog": 1}
    paint("later/horse/1.png")
    refused = fedpeer("evaluate", *OF_PEER1, "later")
    assert (refused.code, "horse: this folder is not a class" in " ".join(refused.err.split())) == (2, True)


def test_images_are_predicted_from_as_they_were_read_in_the_training(fedpeer: Fedpeer, tmp_path: Path) -> None:
    """They are scaled, converted and in front of the background that the peer's own file states."""
    pillow = pytest.importorskip("PIL.Image", reason="needs the extra fedpeer[images]")
    draws = np.random.default_rng(0)
    for name in ("a/2.png", "a/10.png", "b/=1.png", "b/deep/er/x.png"):
        file = tmp_path / "new" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        pillow.fromarray(draws.integers(0, 255, (9, 8, 4)).astype(np.uint8)).save(file)
        for number in range(4 * ("deep" not in name)):
            other = tmp_path / "old" / name.replace(".", f"-{number}.")
            other.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, other)
    (tmp_path / "new" / ".hidden").write_text("no image")
    chosen = {"images": str(tmp_path / "old"), "resize": [2, 1], "colours": "grey", "background": "white"}
    file = federation_on_disk(tmp_path / "scans", data=chosen)
    config = load_peer(file)
    made = outfit(config.file, config.federation, "cpu")
    folder = Path(str(config.file.state))
    folder.mkdir()
    card = Card.of(made.assembly, made.dataset, {config.file.id: made.held})
    save(folder, card, made.local_task.start(), made.assembly.layout)

    names = ["a/10.png", "a/2.png", "b/=1.png", "b/deep/er/x.png"]
    seen = []
    for name in names:
        image = pillow.open(tmp_path / "new" / name)
        white = pillow.alpha_composite(pillow.new("RGBA", image.size, "white"), image)
        seen.append(np.asarray(white.convert("RGB").convert("L").resize((2, 1)), np.float32)[None] / 255)
    expected = load_model(folder / "model.safetensors", folder / "model.json", None, imported).answers(np.stack(seen))
    header, *rows = csv.reader(io.StringIO(fedpeer("predict", str(file), "new").out))
    assert header == ["file", "prediction", "probability a", "probability b"]
    assert [row[:2] for row in rows] == [[name, "ab"[p.argmax()]] for name, p in zip(names, expected, strict=True)]
    assert np.array([row[2:] for row in rows], float) == pytest.approx(expected, rel=1e-5)
    _, alone = csv.reader(io.StringIO(fedpeer("predict", str(file), "new/b/=1.png").out))
    assert alone[:2] == ["'=1.png", rows[2][1]]
    unrecorded = fedpeer("predict", str(folder), "new")
    assert (unrecorded.code, "name its peer's file" in " ".join(unrecorded.err.split())) == (2, True)


def test_more_classes_than_a_person_reads_are_counted() -> None:
    names = tuple(map(str, range(101)))
    assert [*Judgement(classes=names, by_class=np.zeros((101, 4))).shown()] == [
        "precision and recall of each of the 101: --json"
    ]
    [listed] = Judgement(classes=names[:100], by_class=np.zeros((100, 4))).shown()
    assert isinstance(listed, Table)


def test_a_peers_file_and_its_folder_name_its_model(fedpeer: Fedpeer, tmp_path: Path) -> None:
    data = table(tmp_path / "ward.csv")
    file = federation_on_disk(tmp_path / "wards", data={"csv": str(data), "label": "outcome"})
    config = load_peer(file)
    made = outfit(config.file, config.federation, "cpu")
    assert config.file.state is not None
    Path(config.file.state).mkdir()
    missing = fedpeer("evaluate", str(file))
    assert (missing.code, "writes its model when" in " ".join(missing.err.split())) == (2, True)
    card = Card.of(made.assembly, made.dataset, {config.file.id: made.held})
    save(Path(config.file.state), card, made.local_task.start(), made.assembly.layout)
    found = json.loads(fedpeer("evaluate", str(file), "--json").out)
    score, loss = made.local_task.evaluate(made.local_task.start())
    assert (found["peer"], found["accuracy"], found["loss"]) == ("peer1", score, pytest.approx(loss, rel=1e-5))
    assert fedpeer("predict", config.file.state, str(data)).out.startswith("prediction,")
    for arguments in ([], [str(data)]):
        nowhere = fedpeer("evaluate", config.file.state, *arguments)
        assert (nowhere.code, "--data" in nowhere.err) == (2, True)
    of_file = json.loads(fedpeer("evaluate", str(file), str(data), "--json").out)
    assert (of_file["peer"], of_file["examples"]) == ("peer1", 90)


def test_the_best_model_of_a_peers_file_and_of_its_folder(fedpeer: Fedpeer, tmp_path: Path) -> None:
    data = table(tmp_path / "ward.csv")
    file = federation_on_disk(tmp_path / "wards", data={"csv": str(data), "label": "outcome", "validation": 0.2})
    config = load_peer(file)
    made = outfit(config.file, config.federation, "cpu")
    assert config.file.state is not None
    folder, layout = Path(config.file.state), made.assembly.layout
    folder.mkdir()
    card, best_n = Card.of(made.assembly, made.dataset, {config.file.id: made.held}), made.local_task.start()
    save(folder, card, -best_n, layout)
    refused = fedpeer("evaluate", str(file), "--model", "best")
    assert (refused.code, "has no best model" in " ".join(refused.err.split())) == (2, True)
    assert save_best(folder, card, best_n, layout, BestRound(round=4, score=0.5, loss=0.75))
    assert not save_best(folder, card, -best_n, layout, BestRound(round=5, score=0.5, loss=0.8))
    best = json.loads(fedpeer("evaluate", str(file), "--model", "best", "--json").out)
    score, loss = made.local_task.evaluate(best_n)
    assert (best["round"], best["accuracy"]) == (4, pytest.approx(score))
    assert best["loss"] == pytest.approx(loss, rel=1e-5)
    assert json.loads(fedpeer("evaluate", str(file), "--json").out) == best, "the default, where there is one"
    last = json.loads(fedpeer("evaluate", str(file), "--model", "last", "--json").out)
    assert "round" not in last
    assert last["loss"] == pytest.approx(made.local_task.evaluate(-best_n)[1], rel=1e-5)
    by_file, by_folder = (fedpeer("predict", str(where), str(data), "--model", "best") for where in (file, folder))
    assert by_file.out == by_folder.out
    assert by_file.err == ""
    default = fedpeer("predict", str(file), str(data))
    assert default.out == by_file.out
    assert "peer1: the model of round 4, the best on examples held out" in " ".join(default.err.split())
    assert by_file.out != fedpeer("predict", str(file), str(data), "--model", "last").out


VALIDATED = """
network: {mlp: {layers: [2, 5, 2]}}
learning: {optimizer: {adam: {lr: 0.3}}, rounds: 6, steps_between_averaging: 3, batch_size: 8}
simulation: {peers: 3, dataset: {csv: {path: ward.csv, label: outcome}}, validation: 0.3}
"""


def test_the_model_of_the_best_round_is_named_by_an_option(fedpeer: Fedpeer, tmp_path: Path) -> None:
    table(tmp_path / "ward.csv")
    (tmp_path / "federation.yaml").write_text(VALIDATED)
    assert fedpeer("simulate", "--config", "federation.yaml", "--algorithm", "fedavg", "--quiet").code == 0
    [path] = tmp_path.glob("fedpeer-runs/*/metrics.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    chosen = set[int]()
    for number, peer in enumerate(("peer1", "peer2", "peer3")):
        history = [row for row in rows if row["method"] == "fedavg"]
        best = max(history, key=lambda row: (row["validation_accuracy"][number], -row["validation_loss"][number]))
        found = json.loads(
            fedpeer("evaluate", "last", "--method", "fedavg", "--peer", peer, "--model", "best", "--json").out
        )
        assert found["round"] == best["round"]
        assert found["accuracy"] == pytest.approx(best["accuracy"][number])
        assert found["loss"] == pytest.approx(best["loss"][number], rel=1e-5)
        chosen.add(best["round"])
    assert chosen != {6}, "the last round is not the best one for all of them"
    said = fedpeer("evaluate", "last", "--method", "fedavg", "--peer", "peer1", "--model", "best").out
    assert "the best on examples held out for validation" in " ".join(said.split())
    for command in (["predict", "last", "ward.csv"], ["export", "last", "--to", "best.safetensors"]):
        options = ["--method", "fedavg", "--peer", "peer1", "--model", "best"]
        assert fedpeer(*command, *options).code == 0
    exported = load_file(tmp_path / "best.safetensors")
    [stored] = tmp_path.glob("fedpeer-runs/*/models/fedavg-seed0-best.safetensors")
    assert torch.equal(exported["output.weight"], load_file(stored)["peer1/output.weight"])


def test_a_peer_that_holds_out_no_example_has_no_best_model(fedpeer: Fedpeer, tmp_path: Path) -> None:
    table(tmp_path / "ward.csv")

    (tmp_path / "federation.yaml").write_text(VALIDATED)
    assert fedpeer("simulate", "--config", "federation.yaml", "--algorithm", "fedavg", "--quiet").code == 0
    [path] = tmp_path.glob("fedpeer-runs/*/models/fedavg-seed0-best-rounds.json")
    rounds = json.loads(path.read_text())
    del rounds["peer2"]
    path.write_text(json.dumps(rounds))
    refused = fedpeer("evaluate", "last", "--method", "fedavg", "--peer", "peer2", "--model", "best")
    assert refused.code == 2
    assert "has no best model of peer2: it holds out no example" in " ".join(refused.err.split())
    found = fedpeer("evaluate", "last", "--method", "fedavg", "--peer", "peer2")
    assert (found.code, "the best" in found.out) == (0, False), "by default it is its last one"


def test_where_no_best_model_was_kept_the_way_out_is_named(run: Fedpeer) -> None:
    refused = run("predict", "last", "ward.csv", "--peer", "peer1", "--model", "best")
    assert refused.code == 2
    assert "no examples were held out for validation; simulate again with" in " ".join(refused.err.split())
