"""Assembly of a network from settings and the form of data: defaults, and combinations that do not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.func import functional_call

from fedpeer.algorithms.draws import Draws
from fedpeer.config.choice import Choice, ChoiceError, parse_choice
from fedpeer.config.federation import Federation
from fedpeer.config.settings import LearningSettings
from fedpeer.data.dataset import Dataset
from fedpeer.learning.assembly import Assembly, DataShape, assemble, prepared
from fedpeer.networks.registry import NetworkError

TABLE = DataShape(
    name="ward", input_shape=(4,), input_kind="features", task="classification", classes=3, targets=1, vocabulary=0
)
NUMBERS = replace(TABLE, task="regression", classes=0, targets=2)
LABELS = replace(TABLE, task="multi-label", classes=2, targets=2)
IMAGES = replace(TABLE, input_shape=(1, 8, 8), input_kind="image")
TOKENS = replace(TABLE, input_shape=(9,), input_kind="tokens", vocabulary=30)
TEXT = replace(TOKENS, task="next-token", classes=0)


def nowhere(name: str) -> Any:
    raise AssertionError(f"nobody asked for {name}")


def made(shape: DataShape, own: Choice | None = None, **settings: Any) -> Assembly:
    return assemble(Federation.model_validate(settings), shape, 0, nowhere, network=own)


@pytest.mark.parametrize(
    ("shape", "network", "loss", "start"),
    [
        (TABLE, "mlp", "cross-entropy", "uniform"),
        (NUMBERS, "mlp", "mean-squared-error", "uniform"),
        (LABELS, "mlp", "multi-label", "uniform"),
        (IMAGES, "cnn", "cross-entropy", "torch"),
        (TOKENS, "lstm", "cross-entropy", "torch"),
        (TEXT, "transformer,causal=true", "next-token", "torch"),
    ],
)
def test_what_is_left_open_is_filled_in_to_fit_the_data(shape: DataShape, network: str, loss: str, start: str) -> None:
    found = made(shape)
    filled = found.federation
    assert (str(filled.network), str(filled.learning.loss), str(filled.learning.start)) == (network, loss, start)
    assert list(filled.partial_models) == ["everyone"]
    assert found.options == Federation()
    outputs = (9, shape.vocabulary) if shape is TEXT else (shape.classes or shape.targets,)
    assert tuple(found.module(shape.example(3)).shape) == (3, *outputs)


def test_a_network_that_reads_texts_to_their_ends_has_the_datas_padding() -> None:
    assert made(replace(TOKENS, padding=4)).module.padding == 4
    assert made(replace(TOKENS, padding=4), network="lstm,padding=5").module.padding == 5
    assert not hasattr(made(replace(TOKENS, padding=4), network="transformer").module, "padding")


@pytest.mark.parametrize(
    ("shape", "settings", "error", "said"),
    [
        (TABLE, {"learning": {"loss": "huber"}}, ChoiceError, "choose cross-entropy"),
        (NUMBERS, {"learning": {"loss": "cross-entropy"}}, ChoiceError, "choose mean-squared-error"),
        (TABLE, {"learning": {"loss": "binary"}}, ChoiceError, "needs two classes, and ward has 3"),
        (NUMBERS, {"learning": {"class_weights": "balanced", "batch_size": 8}}, ChoiceError, "which has no classes"),
        (TABLE, {"network": "mlp:5+3"}, NetworkError, "4 input features"),
        (TABLE, {"network": "cnn"}, NetworkError, "cnn needs images"),
    ],
)
def test_what_does_not_fit_is_said(
    shape: DataShape, settings: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        made(shape, **settings)


def test_a_network_of_a_peers_own_stands_in_for_the_federations() -> None:
    found = made(TABLE, parse_choice("mlp:4+9+3"), network="mlp:4+5+3")
    assert (str(found.federation.network), str(found.options.network)) == ("mlp:4+9+3", "mlp:4+5+3")
    assert found.layout.n == 4 * 9 + 9 + 9 * 3 + 3


class Odd(nn.Module):
    """A network that returns something else than logits."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.head, self.answer = nn.Linear(4, 3), answer

    def forward(self, x: Tensor) -> Any:
        return self.answer(self.head(x))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda shape, outputs: nn.Linear(shape[0], outputs + 1), r"it must be \(2, 3\)"),
        (lambda shape, outputs: nn.Linear(shape[0] + 1, outputs), "cannot take two examples"),
        (
            lambda: Odd(lambda x: (x, x)),
            r"returned tuple for two examples; it must return one tensor of shape \(2, 3\)",
        ),
        (
            lambda: Odd(lambda x: dict[str, Tensor]()["logits"]),
            "cannot take two examples .*: KeyError: 'logits'; choose a network",
        ),
        (lambda: Odd(lambda x: x.long()), "output is torch.int64; it must be torch.float32"),
        (lambda: Odd(lambda x: x.softmax(-1)), "outputs are probabilities, .* return the logits"),
        (lambda: nn.Linear(4, 3).double(), r"parameters of torch.float64; convert it with .float\(\)"),
        (lambda: nn.Linear(4, 3).requires_grad_(False), "nothing to train: no parameter has requires_grad"),
        (lambda: torch.jit.script(nn.Linear(4, 3)), "TorchScript, which cannot be traced; take the nn.Module"),
        (lambda: 3, "must return an nn.Module"),
        (lambda shape, outputs: 1 / 0, "ZeroDivisionError"),
    ],
)
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_users_own_network_that_does_not_fit_is_said(answer: Any, said: str) -> None:
    federation = Federation(network=parse_choice("python:mypkg:build"))
    with pytest.raises(NetworkError, match=said):
        assemble(federation, TABLE, 0, lambda name: answer)


class LastStep(nn.Module):
    """An LSTM over sequences (T, 8), and a transformer's layer before it."""

    def __init__(self) -> None:
        super().__init__()
        self.mixed = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
        self.lstm, self.head = nn.LSTM(8, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.lstm(self.mixed(x))[0][:, -1])
        return out


def test_whose_sequences_were_taken_for_images_learns_how_to_say_so() -> None:
    federation = Federation(network=parse_choice("python:mypkg:build"))
    with pytest.raises(NetworkError, match="images of 8 x 8 with one channel: if they are sequences, write kind="):
        assemble(federation, IMAGES, 0, lambda name: LastStep)


def test_the_shape_of_a_data_set() -> None:
    x = np.array([[1, 7], [2, 3]])
    data = Dataset(name="d", x=x, y=np.array([0, 1]), task="classification", input_kind="tokens", classes=("a", "b"))
    found = DataShape.of(data)
    assert (found.input_shape, found.classes, found.targets, found.vocabulary) == ((2,), 2, 1, 8)
    assert DataShape.of(replace(data, padding=1)).padding == 1
    text = replace(data, y=data.x + 1, task="next-token", classes=())
    assert DataShape.of(text).vocabulary == 9, "a token may be only predicted"
    assert DataShape.of(replace(data, vocabulary=30)).vocabulary == 30, "data may not have each token of a vocabulary"
    numbers = replace(data, x=x.astype(np.float32), y=np.zeros((2, 5)), task="regression", classes=())
    assert DataShape.of(replace(numbers, input_kind="features")).targets == 5


# ------------------------------------------------------------------------------------------- frozen bases and adapters


def perceptron() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 3))


def learning(**settings: object) -> LearningSettings:
    return LearningSettings.model_validate(settings)


def test_a_trained_model_is_the_base_under_adapters_and_stays_in_its_file(tmp_path: Path) -> None:
    trained, path = {name: value + 1 for name, value in perceptron().state_dict().items()}, tmp_path / "m.safetensors"
    save_file(trained, path)
    given = load_file(path)
    settings = learning(lora={"rank": 2, "alpha": 6.0, "targets": ["0"]}, frozen=["2.weight"], start=f"file:{path}")
    module = prepared(perceptron(), settings, Draws(3), given)
    assert {name for name, each in module.named_parameters() if each.requires_grad} == {
        "0.lora_A.weight", "0.lora_B.weight", "2.bias"
    }  # fmt: skip
    x = torch.randn(5, 4)
    expected = functional_call(perceptron(), trained, (x,))
    torch.testing.assert_close(module(x), expected)
    assert module.get_parameter("0.base.weight").data_ptr() == given["0.weight"].data_ptr()
    assert module.get_parameter("2.weight").data_ptr() == given["2.weight"].data_ptr()
    assert module.get_submodule("0").scale == 3.0
    again = prepared(perceptron(), settings, Draws(3), given)
    assert torch.equal(again.get_parameter("0.lora_A.weight"), module.get_parameter("0.lora_A.weight"))


def test_a_model_with_adapters_is_a_start_as_well() -> None:
    settings = learning(lora={"rank": 2, "targets": ["0"]})
    module = prepared(perceptron(), settings, Draws(3), None)
    nn.init.normal_(module.get_parameter("0.lora_B.weight"))
    again = prepared(perceptron(), settings, Draws(4), dict(module.state_dict()))
    x = torch.randn(5, 4)
    torch.testing.assert_close(again(x), module(x))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"frozen": ["*"]}, "nothing is left to train"),
        ({"frozen": ["1.weight"]}, 'no parameter is named "1.weight"'),
        ({"frozen": ["0"], "start": "file:m.safetensors"}, "the file with the frozen parameters is needed"),
    ],
)
def test_what_cannot_be_prepared_is_a_sentence(settings: dict[str, object], message: str) -> None:
    with pytest.raises(NetworkError, match=message):
        prepared(perceptron(), learning(**settings), Draws(0), None)


def test_with_adapters_a_network_begins_as_it_was_built() -> None:
    """A draw of all parameters, the default of perceptrons, would make adapters of random numbers."""
    found = made(TABLE, network="mlp:4+7+3", learning={"lora": {"rank": 2, "targets": ["hidden1"]}})
    assert str(found.federation.learning.start) == "built"
    named = found.layout.unflatten(found.start("peer1"))
    assert not named["hidden1.lora_B.weight"].any()
    assert str(made(TABLE, network="mlp:4+7+3").federation.learning.start) == "uniform"
