"""Use of trained models: from raw inputs, the model, its exports and plain arithmetic give the same answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from fedpeer.config.choice import Choice
from fedpeer.data.dataset import Dataset
from fedpeer.data.own.code import imported
from fedpeer.learning.holdings import load_dataset
from fedpeer.learning.models import Card, Model, ModelError, load_model, save
from fedpeer.learning.program import ExportError, write_onnx, write_pt2, write_state_dict
from fedpeer.sims.peers import local_tasks
from fedpeer.sims.world import World, build_world
from tests.sims.worlds import federation, trainer_of

DIGITS = load_dataset(Choice("digits"))
IMAGES = replace(DIGITS, x=DIGITS.x.reshape(-1, 1, 8, 8), input_kind="image", feature_names=())
TOKENS = replace(DIGITS, x=(DIGITS.x[:, 26:30] * 16).astype(np.int64), input_kind="tokens", feature_names=())
NUMBERS = Dataset(
    name="numbers",
    x=np.random.default_rng(0).normal(5, 3, (300, 4)).astype(np.float32),
    y=np.random.default_rng(1).normal(-7, 20, 300).astype(np.float32),
    task="regression",
    input_kind="features",
    feature_names=("a", "b", "c", "d"),
)
PLACES = replace(NUMBERS, y=np.stack([np.divide(NUMBERS.y, 20) + 48, np.subtract(NUMBERS.x[:, 0], 77)], axis=1))
TWO = replace(
    NUMBERS, y=np.greater(NUMBERS.x[:, 0], 5).astype(np.int64), task="classification", classes=("low", "high")
)
LABELS = replace(
    NUMBERS,
    y=np.greater(NUMBERS.x[:, :3], [4, 5, 7]).astype(np.float32),
    task="multi-label",
    classes=("some", "many", "most"),
)
WORLDS: dict[str, tuple[Dataset, dict[str, Any]]] = {
    "classes": (DIGITS, {}),
    "scaled and permuted": (
        DIGITS,
        {"simulation__normalise": "standard", "simulation__split": "blocks:40,shuffle=true/pixels"},
    ),
    "numbers": (NUMBERS, {"network": "mlp:4+6+1", "simulation__split": "iid", "simulation__normalise": "standard"}),
    "places": (PLACES, {"network": "mlp:4+6+2", "simulation__split": "iid", "simulation__normalise": "standard"}),
    "one output": (
        TWO,
        {"network": "mlp:4+6+1", "simulation__split": "iid", "learning__loss": "binary"},
    ),
    "labels": (LABELS, {"network": "mlp:4+6+3", "simulation__split": "iid", "simulation__normalise": "standard"}),
    "images": (IMAGES, {"network": "cnn,channels=2,hidden=6,norm=batch", "simulation__normalise": "minmax"}),
    "tokens": (TOKENS, {"network": "lstm,hidden=5,embedding=3"}),
    "adapters": (
        DIGITS,
        {
            "learning__lora": {"rank": 2, "targets": ["hidden1"]},
            "learning__frozen": ["output.bias"],
            "learning__optimizer": "adam,lr=0.01",
        },
    ),
}


def trained(folder: Path, made: World, peer: str) -> Model:
    """Train a peer for one round, save its model, and return it as loaded from its files."""
    trainer = trainer_of(made, peer)
    x_n, _ = trainer.train(1, trainer.start(), torch.zeros(trainer.state_size), True)
    card = Card.of(made, made.dataset, {peer: made.held(made.peers.index(peer))})
    save(folder, card, x_n, made.layout)
    model = load_model(folder / "model.safetensors", folder / "model.json", None, imported)
    assert torch.equal(made.layout.flatten(model.module), x_n)
    return model


def own_test_part(made: World, peer: str) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    held = made.held(made.peers.index(peer))
    return made.dataset.x[held.test_M], held.test_y if held.targets is None else held.targets.undo(held.test_y)


@pytest.mark.parametrize("name", WORLDS)
def test_a_stored_model_is_as_good_as_it_was_when_it_was_trained(name: str, tmp_path: Path) -> None:
    dataset, settings = WORLDS[name]
    made = build_world(federation(**settings), dataset, 0)
    model = trained(tmp_path, made, "peer2")
    wanted = local_tasks(made)["peer2"].evaluate(made.layout.flatten(model.module))
    np.testing.assert_allclose(model.evaluate(*own_test_part(made, "peer2")), wanted, rtol=1e-4)


@pytest.mark.parametrize("name", WORLDS)
def test_answers_are_what_the_score_was_counted_from(name: str, tmp_path: Path) -> None:
    dataset, settings = WORLDS[name]
    made = build_world(federation(**settings), dataset, 0)
    model = trained(tmp_path, made, "peer2")
    x, y = own_test_part(made, "peer2")
    answers, score = model.answers(x), model.evaluate(x, y)[0]
    if dataset is LABELS:
        assert answers.shape == y.shape == (len(x), 3)
        assert float(((answers > 0.5) == (y == 1)).mean()) == pytest.approx(score)
    elif model.card.classes:
        np.testing.assert_allclose(answers.sum(1), 1, atol=1e-5)
        assert answers.shape[1] == len(model.card.classes)
        assert float((answers.argmax(1) == y).mean()) == pytest.approx(score)
    else:
        assert float(np.sqrt(np.square(np.subtract(answers.reshape(y.shape), y)).mean())) == pytest.approx(
            score, rel=1e-4
        )


def test_the_probabilities_of_sigmoid_outputs_are_their_shares() -> None:
    made = build_world(federation(learning__loss="squared-error"), DIGITS, 0)
    card = Card.of(made, DIGITS, {"peer1": made.held(0)})
    model = Model(card=card, peer="peer1", module=made.module.eval())
    with torch.no_grad():
        shares = made.module(torch.from_numpy(DIGITS.x[:5])).sigmoid().numpy()
    np.testing.assert_allclose(model.answers(DIGITS.x[:5]), shares / shares.sum(1, keepdims=True), rtol=1e-4)


def test_answers_about_next_tokens_are_probabilities_at_each_place(tmp_path: Path) -> None:
    """Scores count the places that have a next token, as the peer does."""
    text = (DIGITS.x[:, 20:29] * 16).astype(np.int64)
    following = Dataset(
        name="following", x=text[:, :-1], y=text[:, 1:], task="next-token", input_kind="tokens", vocabulary=17
    )
    made = build_world(
        federation(network="transformer,width=8,heads=2,layers=1,causal=true", simulation__split="iid"), following, 0
    )
    model = trained(tmp_path, made, "peer2")
    x, y = own_test_part(made, "peer2")
    wanted, found = local_tasks(made)["peer2"].evaluate(made.layout.flatten(model.module)), model.evaluate(x, y)
    assert found == pytest.approx(wanted, rel=1e-4)
    answers = model.answers(x)
    assert answers.shape == (*x.shape, 17)
    np.testing.assert_allclose(answers.sum(-1), 1, atol=1e-5)
    assert float((answers.argmax(-1) == y).mean()) == pytest.approx(found[0])
    chosen = np.take_along_axis(answers, y.astype(np.int64)[..., None], axis=-1)
    assert float(-np.log(chosen).mean()) == pytest.approx(found[1], rel=1e-4)


def pt2(path: Path) -> Callable[[NDArray[np.generic]], NDArray[np.float32]]:
    program = torch.export.load(path).module()
    return lambda x: program(torch.from_numpy(x)).detach().numpy()


def onnx(path: Path) -> Callable[[NDArray[np.generic]], NDArray[np.float32]]:
    reference = pytest.importorskip("onnx.reference", reason="the extra fedpeer[onnx] is not installed")
    program = reference.ReferenceEvaluator(str(path))
    return lambda x: program.run(["outputs"], {"inputs": x})[0]


#: An export takes a second or more of torch's tracing. Both formats begin with the same trace, so in `make test` each
#: has networks that the other has not.
SOAK = pytest.mark.soak


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["scaled and permuted", "numbers", "one output", pytest.param("images", marks=SOAK), "tokens"]
)
def test_a_pt2_program_gives_the_models_answers_for_any_number_of_examples(name: str, tmp_path: Path) -> None:
    dataset, settings = WORLDS[name]
    made = build_world(federation(**settings), dataset, 0)
    model = trained(tmp_path, made, "peer2")
    write_pt2(model.program, made.shape.example(), tmp_path / "model.pt2")
    for count in (1, 7):
        x = dataset.x[:count]
        np.testing.assert_allclose(pt2(tmp_path / "model.pt2")(x), model.answers(x), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param("scaled and permuted", marks=SOAK), pytest.param("numbers", marks=SOAK), "images"]
)
def test_an_onnx_graph_gives_the_models_answers_for_any_number_of_examples(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="the extra fedpeer[onnx] is not installed")
    dataset, settings = WORLDS[name]
    made = build_world(federation(**settings), dataset, 0)
    model = trained(tmp_path, made, "peer2")
    write_onnx(model.program, made.shape.example(), tmp_path / "model.onnx")
    for count in (1, 7):
        x = dataset.x[:count]
        np.testing.assert_allclose(onnx(tmp_path / "model.onnx")(x), model.answers(x), rtol=1e-3, atol=1e-5)


def test_without_the_extra_onnx_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = build_world(federation(), DIGITS, 0)
    model = trained(tmp_path, made, "peer2")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ExportError, match=r"fedpeer\[onnx\]"):
        write_onnx(model.program, made.shape.example(), tmp_path / "model.onnx")


def test_a_state_dict_serves_plain_pytorch(tmp_path: Path) -> None:
    """The card's data suffice, in a dozen lines that do not use fedpeer."""
    from collections import OrderedDict

    from torch import nn

    dataset, settings = WORLDS["scaled and permuted"]
    made = build_world(federation(**settings), dataset, 0)
    model = trained(tmp_path, made, "peer2")
    write_state_dict(model.module, tmp_path / "plain.safetensors")
    card = json.loads((tmp_path / "model.json").read_text())["peers"]["peer2"]
    module = nn.Sequential(OrderedDict(hidden1=nn.Linear(64, 12), activation1=nn.Sigmoid(), output=nn.Linear(12, 10)))
    module.load_state_dict(load_file(tmp_path / "plain.safetensors"))
    x = torch.from_numpy(DIGITS.x[:20])[:, card["feature_map"]]
    seen = (x - torch.tensor(card["shift"])) / torch.tensor(card["scale"])
    with torch.no_grad():
        answers = module(seen).softmax(-1).numpy()
    np.testing.assert_allclose(answers, model.answers(DIGITS.x[:20]), rtol=1e-4, atol=1e-6)


def damaged(card: str) -> dict[str, str]:
    data = json.loads(card)
    return {
        "no json": card[:-20],
        "newer": json.dumps({**data, "version": 2}),
        "another network": json.dumps({**data, "network": "mlp:64+13+10"}),
        "an object": json.dumps({**data, "network": None}),
        "unknown": json.dumps({**data, "more": 1}),
        "another loss": json.dumps({**data, "loss": "hinge"}),
    }


@pytest.mark.parametrize("how", ["no json", "newer", "another network", "an object", "unknown", "another loss"])
def test_a_damaged_card_is_refused(how: str, tmp_path: Path) -> None:
    trained(tmp_path, build_world(federation(), DIGITS, 0), "peer2")
    card = tmp_path / "model.json"
    card.write_text(damaged(card.read_text())[how])
    with pytest.raises(ModelError):
        load_model(tmp_path / "model.safetensors", card, None, imported)


@pytest.mark.parametrize("keep", [0, 8, 100])
def test_damaged_parameters_are_refused(keep: int, tmp_path: Path) -> None:
    trained(tmp_path, build_world(federation(), DIGITS, 0), "peer2")
    tensors = tmp_path / "model.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:keep])
    with pytest.raises(ModelError, match="cannot be read"):
        load_model(tensors, tmp_path / "model.json", None, imported)


def test_a_network_of_someone_elses_code_is_not_imported_without_leave(tmp_path: Path) -> None:
    trained(tmp_path, build_world(federation(), DIGITS, 0), "peer2")
    card = tmp_path / "model.json"
    card.write_text(card.read_text().replace("mlp:64+12+10", "python:evil:build"))

    def refused(name: str) -> Callable[..., Any]:
        raise PermissionError(name)

    with pytest.raises(PermissionError, match="evil:build"):
        load_model(tmp_path / "model.safetensors", card, None, refused)


def test_a_model_with_adapters_over_a_file_is_read_again_and_exported_as_a_plain_network(tmp_path: Path) -> None:
    from fedpeer.networks.registry import NETWORKS

    plain = NETWORKS["mlp"]((64,), 10, layers=(64, 12, 10))
    save_file(plain.state_dict(), tmp_path / "base.safetensors")
    lora = {"rank": 2, "targets": ["hidden1"]}
    own = federation(
        learning__lora=lora, learning__start=f"file:{tmp_path / 'base.safetensors'}", learning__frozen=["output.weight"]
    )
    made = build_world(own, DIGITS, 0)
    assert torch.equal(made.module.get_parameter("hidden1.base.weight"), plain.state_dict()["hidden1.weight"])
    model = trained(tmp_path, made, "peer2")
    x = torch.from_numpy(DIGITS.x[:9])
    exported = model.standalone()
    plain.load_state_dict(exported.module.state_dict(), strict=True)
    torch.testing.assert_close(plain(x), model.module(x), rtol=1e-4, atol=1e-5)
    assert torch.equal(plain.state_dict()["output.weight"], made.module.get_parameter("output.weight"))
    assert not torch.equal(plain.state_dict()["hidden1.weight"], made.module.get_parameter("hidden1.base.weight"))
    assert (exported.card.lora, exported.card.frozen, exported.card.start) == (None, (), None)
    (tmp_path / "base.safetensors").unlink()
    with pytest.raises(ModelError, match="its frozen parameters cannot be read"):
        load_model(tmp_path / "model.safetensors", tmp_path / "model.json", None, imported)
