"""A pretrained model on the command line: trained on a table's text, used to predict, exported in its own formats."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedpeer.cli import main
from fedpeer.config.choice import parse_choice
from fedpeer.config.pretrained import pretrained_network
from fedpeer.data.own.code import imported
from fedpeer.data.own.text import TextTokenizer
from fedpeer.learning.assembly import DataShape
from fedpeer.learning.models import load_model
from fedpeer.learning.pretrained import build_pretrained
from tests.cli.conftest import Fedpeer
from tests.learning.pretrained_models import TEXTS, saved_model

pytestmark = pytest.mark.slow

ROWS = [f"{site},{text},{verdict}" for text, verdict in TEXTS.items() for site in "ab"] * 3


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with a model, a table, a federation file that names both beside it, and one finished run."""
    folder = tmp_path_factory.mktemp("finished")
    saved_model("bert", folder)
    (folder / "reviews.csv").write_text("\n".join(["site,review,verdict", *ROWS]) + "\n")
    (folder / "federation.yaml").write_text(
        "network: hf:bert,lora=2\n"
        "partial_models: {everyone: {neurons: all}, local: {parameters: [model.classifier.*]}}\n"
        "learning: {optimizer: 'adam,lr=0.02', batch_size: 8, steps_between_averaging: 5, rounds: 3}\n"
        "simulation:\n"
        "  dataset: csv:reviews.csv,label=verdict,user=site,text=review,tokenizer=bert,length=8\n"
    )
    run = ["simulate", "--config", str(folder / "federation.yaml"), "--compare", "partial-averaging", "--workers", "1"]
    assert main.run([*run, "--out", str(folder / "fedpeer-runs"), "--quiet"]) == 0
    return folder


@pytest.fixture
def run(fedpeer: Fedpeer, finished: Path, monkeypatch: pytest.MonkeyPatch) -> Fedpeer:
    monkeypatch.chdir(finished)
    return fedpeer


def test_predictions_are_those_of_the_adapter_that_is_exported(run: Fedpeer, tmp_path: Path) -> None:
    found = run("predict", "last", "reviews.csv", "--peer", "peer1").out
    rows = list(csv.reader(io.StringIO(found)))
    assert rows[0] == ["prediction", "probability no", "probability yes"]
    out = tmp_path / "adapter"
    said = run("export", "last", "--peer", "peer1", "--format", "peft", "--to", str(out)).out
    assert f'PeftModel.from_pretrained(model, "{out}")' in said
    shape = DataShape(
        name="reviews", input_shape=(8,), input_kind="tokens", task="classification", classes=2, targets=1,
        vocabulary=19,
    )  # fmt: skip
    module = build_pretrained(pretrained_network(parse_choice(f"hf:bert,adapter={out}")), shape, 2)
    texts = [row.split(",")[1] for row in ROWS]
    x = torch.from_numpy(TextTokenizer("bert").whole(texts, 8).x_NT)
    with torch.no_grad():
        wanted = module(x).softmax(-1).numpy()
    np.testing.assert_allclose(np.array([row[1:] for row in rows[1:]], float), wanted, atol=2e-6)


def test_it_is_measured_on_other_files(run: Fedpeer) -> None:
    one = json.loads(run("evaluate", "last", "reviews.csv", "--peer", "peer2", "--json").out)
    assert one["examples"] == len(ROWS)
    assert set(one["classes"]) == {"no", "yes"}


def test_a_whole_model_is_a_folder_of_its_own(run: Fedpeer, tmp_path: Path) -> None:
    run("export", "last", "--peer", "peer1", "--format", "hf", "--to", str(tmp_path / "whole"))
    config = json.loads((tmp_path / "whole" / "config.json").read_text())
    assert config["architectures"] == ["BertForSequenceClassification"]
    problem = run("export", "last", "--peer", "peer1", "--format", "hf", "--to", str(tmp_path / "whole"))
    assert problem.code == 2
    assert "is there already; remove it, or name another folder" in " ".join(problem.err.split())


def test_slices_say_what_is_averaged(run: Fedpeer) -> None:
    said = run("slices", "--config", "federation.yaml").out
    assert "model.classifier" in said
    frozen = sum(each.numel() for each in load_file("bert/model.safetensors").values())
    assert f"{frozen:,} more parameters are frozen" in said


def test_a_plain_export_is_a_model_without_adapters(run: Fedpeer, tmp_path: Path) -> None:
    plain = tmp_path / "plain.safetensors"
    run("export", "last", "--peer", "peer1", "--to", str(plain))
    card = json.loads(plain.with_suffix(".safetensors.json").read_text())
    assert "lora" not in card["network"]
    read = load_model(plain, plain.with_suffix(".safetensors.json"), None, imported)
    texts = [row.split(",")[1] for row in ROWS]
    found = list(csv.reader(io.StringIO(run("predict", "last", "reviews.csv", "--peer", "peer1").out)))
    answers = read.answers(TextTokenizer("bert").whole(texts, 8).x_NT)
    np.testing.assert_allclose(np.array([row[1:] for row in found[1:]], float), answers, atol=2e-6)


def test_a_model_that_continues_text_predicts_no_classes(run: Fedpeer, tmp_path: Path) -> None:
    dataset = "csv:reviews.csv,user=site,drop=verdict,text=review,tokenizer=bert,length=8"
    network = "transformer,width=8,heads=2,layers=1,causal=true"
    options = ["--network", network, "--rounds", "1", "--compare", "local", "--workers", "1", "--out", str(tmp_path)]
    assert run("simulate", "--dataset", dataset, *options, "--quiet").code == 0
    found = run("predict", "last", "reviews.csv", "--peer", "peer1", "--method", "local", "--out", str(tmp_path))
    assert found.code == 2
    assert "this model continues text; write it with fedpeer export --format hf" in " ".join(found.err.split())


def test_a_model_that_is_gone_is_named(run: Fedpeer) -> None:
    found = run("simulate", "--config", "federation.yaml", "--network", "hf:gone")
    assert found.code == 2
    assert "there is no" in found.err
    assert "name the folder into which the model was saved with save_pretrained" in " ".join(found.err.split())
