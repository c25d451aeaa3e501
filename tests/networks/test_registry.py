"""The networks that come with fedpeer: shapes, names of parts, and refusals that state a remedy."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Literal

import pytest
import torch
from torch import nn

from fedpeer.config.choice import bind_settings, parse_choice
from fedpeer.networks.registry import NETWORKS, NetworkError, cnn, lateral_mlp, linear_network, lstm, mlp, transformer
from fedpeer.slicing.trace import trace

Build = Callable[[], nn.Module]


@pytest.mark.parametrize(
    ("name", "shape", "outputs"),
    [
        ("mlp", (64,), 10),
        ("mlp", (1, 8, 8), 10),
        ("mlp,layers=12+5+3", (3, 4), 3),
        ("mlp,layers=4+2", (4,), 2),
        ("mlp,activation=relu,dropout=0.5,bias=false", (6,), 1),
        ("linear", (4,), 1),
        ("linear:false", (3, 4), 2),
        ("lateral-mlp", (1, 8, 8), 10),
        ("lateral-mlp,hidden=5,dropout=0.3,activation=tanh", (6,), 3),
        ("cnn", (1, 28, 28), 10),
        ("cnn,channels=4,hidden=7,kernel=3,norm=batch,dropout=0.2", (3, 9, 5), 4),
        ("cnn,channels=2+3+4,activation=tanh", (1, 8, 8), 2),
        ("lstm,hidden=6", (12, 9), 7),
        ("lstm,hidden=6,layers=2,cell=gru", (12, 9), 7),
        ("lstm,hidden=6", (3, 8, 5), 7),
        ("transformer,width=8,heads=2", (12, 9), 7),
        ("transformer,width=8,heads=2", (1, 8, 5), 7),
    ],
)
def test_answers_one_row_of_outputs_an_example(name: str, shape: tuple[int, ...], outputs: int) -> None:
    choice = parse_choice(name)
    network = NETWORKS[choice.name](shape, outputs, **bind_settings(choice, NETWORKS[choice.name]))
    for size in (2, 5):
        assert network(torch.randn(size, *shape)).shape == (size, outputs)


def test_linear_is_one_layer_and_nothing_else() -> None:
    network, x_SF = linear_network((2, 3), 2), torch.randn(4, 2, 3)
    weight, bias = dict(network.named_parameters())["output.weight"], dict(network.named_parameters())["output.bias"]
    torch.testing.assert_close(network(x_SF), x_SF.flatten(1) @ weight.mT + bias)
    assert [name for name, _ in linear_network((3,), 1, bias=False).named_parameters()] == ["output.weight"]


def test_tokens_are_embedded_over_their_whole_vocabulary() -> None:
    network = lstm((20,), 3, hidden=6, embedding=4, vocabulary=30)
    assert network(torch.tensor([[29] * 20, [0] * 20])).shape == (2, 3)
    assert dict(network.named_parameters())["embedding.weight"].shape == (30, 4)
    assert dict(lstm((20,), 80).named_parameters())["embedding.weight"].shape == (80, 8)


@pytest.mark.parametrize(
    ("build", "parts"),
    [
        (lambda: mlp((64,), 10), {"hidden1": 300, "hidden2": 100, "output": 10}),
        (lambda: mlp((4,), 2, layers=(4, 9, 2), dropout=0.1), {"hidden1": 9, "output": 2}),
        (lambda: cnn((1, 28, 28), 10), {"conv1": 32, "conv2": 64, "hidden1": 100, "output": 10}),
        (lambda: cnn((1, 8, 8), 3, channels=(5,), hidden=(), norm="batch"), {"conv1": 5, "norm1": 5, "output": 3}),
    ],
)
def test_parts_have_the_names_that_partial_models_use(build: Build, parts: dict[str, int]) -> None:
    weights = {
        name.removesuffix(".weight"): len(p) for name, p in build().named_parameters() if name.endswith("weight")
    }
    assert weights == parts


def test_a_recurrent_network_has_its_parts() -> None:
    children = dict(lstm((20,), 3, cell="gru", layers=2).named_children())
    assert list(children) == ["embedding", "recurrent", "output"]
    assert isinstance(children["recurrent"], nn.GRU)
    assert children["recurrent"].num_layers == 2
    assert isinstance(dict(lstm((20, 3), 3).named_children())["recurrent"], nn.LSTM)


def test_the_last_place_of_a_sequence_decides_together_with_those_before() -> None:
    network, x = lstm((5, 2), 3, hidden=4), torch.randn(1, 5, 2)
    for place in range(5):
        other = x.clone()
        other[0, place] += 1
        assert not torch.equal(network(other), network(x))


def test_a_recurrent_network_reads_a_text_to_its_own_end() -> None:
    """After a hundred places of padding its state would have forgotten the text."""
    network = lstm((9,), 3, hidden=4, vocabulary=12, padding=0)
    lengths, x = (3, 1, 9), torch.tensor([[3, 0, 5, 0, 0, 0, 0, 0, 0], [0] * 9, [*range(1, 10)]])
    for answer, text, length in zip(network(x), x, lengths, strict=True):
        torch.testing.assert_close(answer, network(text[None, :length])[0])
    assert {part.name: part.size for part in trace(network, x).parts} == {
        "input": 12, "embedding": 8, "recurrent": 4, "output": 3
    }  # fmt: skip


@pytest.mark.parametrize("build", [lstm, transformer])
def test_an_image_is_the_sequence_of_its_rows(build: Callable[..., nn.Module]) -> None:
    """Each row has the channels of the image one after the other."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        of_images, of_sequences = build((2, 4, 3), 5), build((4, 6), 5)
        images = torch.randn(7, 2, 4, 3)
    of_sequences.load_state_dict(of_images.state_dict())
    rows = torch.stack([torch.cat([image[0], image[1]], dim=1) for image in images])
    assert torch.equal(of_images.eval()(images), of_sequences.eval()(rows))


@pytest.mark.parametrize("build", [lstm, transformer])
def test_rows_of_numbers_are_no_tokens(build: Callable[..., nn.Module]) -> None:
    with pytest.raises(
        ValueError, match=r"a row of 64 numbers; give sequences \(T, F\), or images \(such as shape=image\)"
    ):
        build((64,), 10)(torch.randn(2, 64))


def test_a_causal_transformer_answers_at_each_place_from_those_before_it() -> None:
    network = transformer((6,), 9, width=8, heads=2, layers=2, vocabulary=9, causal=True).eval()
    x = torch.randint(0, 9, (3, 6))
    answers = network(x)
    assert answers.shape == (3, 6, 9)
    later = x.clone()
    later[:, 4:] = (later[:, 4:] + 1) % 9
    torch.testing.assert_close(network(later)[:, :4], answers[:, :4])
    assert not torch.allclose(network(later)[:, 4:], answers[:, 4:])


def test_each_pooling_halves_the_image_exactly() -> None:
    hidden = dict(cnn((1, 28, 28), 10).named_parameters())["hidden1.weight"]
    assert hidden.shape == (100, 64 * 7 * 7)


@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid"])
def test_pooling_before_the_activation_changes_no_number(activation: Literal["relu", "tanh", "sigmoid"]) -> None:
    """This holds in float64, where no two numbers are so close that an activation makes them equal. The last bit of a
    number may be rounded differently at another place in a tensor: processors compute most numbers of a tensor several
    at a time, and the last ones singly."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = cnn((2, 8, 8), 3, channels=(4, 5), hidden=(6,), kernel=3, activation=activation).double()
        images = torch.randn(5, 2, 8, 8, dtype=torch.float64)
    assert isinstance(network, nn.Sequential)
    order = list(network)
    for depth in (1, 4):
        order[depth : depth + 2] = reversed(order[depth : depth + 2])
    kinds = [type(layer) for layer in order[:3]]
    assert kinds == [nn.Conv2d, type(network.get_submodule("conv_activation1")), nn.MaxPool2d]
    found = []
    for one in (network, nn.Sequential(*order)):
        answer = one(images)
        found.append((answer, *torch.autograd.grad(answer.square().sum(), list(network.parameters()))))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)


def test_settings_of_a_perceptron() -> None:
    modules = list(mlp((6,), 2, activation="tanh", dropout=0.25, bias=False).modules())
    assert [m.p for m in modules if isinstance(m, nn.Dropout)] == [0.25, 0.25]
    assert sum(isinstance(m, nn.Tanh) for m in modules) == 2
    assert all(m.bias is None for m in modules if isinstance(m, nn.Linear))
    assert not any(isinstance(m, (nn.Dropout, nn.Flatten)) for m in mlp((6,), 2).modules())
    assert [tuple(m.weight.shape) for m in mlp((6,), 2, hidden=()).modules() if isinstance(m, nn.Linear)] == [(2, 6)]


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (
            lambda: mlp((64,), 10, layers=(60, 30, 10)),
            ["60+30+10", "64 input features", "10 outputs", "write 64+30+10"],
        ),
        (lambda: mlp((64,), 10, layers=(64, 30, 9)), ["64+30+9", "10 outputs", "write 64+30+10"]),
        (lambda: mlp((64,), 10, layers=(64,)), ["64", "at least two sizes"]),
        (lambda: mlp((4,), 2, layers=(4, 9_999_999_999, 2)), ["4+9999999999+2", "write at most 1000000"]),
        (lambda: mlp((64,), 10, layers=(64, 0, 10)), ["64+0+10", "1 or more"]),
        (lambda: mlp((64,), 10, dropout=1.0), ["dropout = 1.0", "from 0 to below 1"]),
        (lambda: lateral_mlp((64,), 10, hidden=()), ["hidden", "at least one size"]),
        (lambda: cnn((64,), 10), ["(channels, height, width)", "(64,)", "mlp"]),
        (lambda: cnn((1, 8, 8), 10, channels=(2, 2, 2, 2)), ["4 poolings", "8x8", "at most 3"]),
        (lambda: cnn((1, 8, 8), 10, channels=()), ["channels", "1 or more"]),
        (lambda: cnn((1, 8, 8), 10, hidden=(0,)), ["hidden 0", "1 or more"]),
        (lambda: cnn((1, 8, 8), 10, kernel=4), ["kernel = 4", "odd"]),
        (lambda: cnn((1, 8, 8), 10, dropout=-0.1), ["dropout = -0.1"]),
        (lambda: lstm((1, 2, 8, 8), 10), ["lstm", "(T,)", "(T, F)", "(C, H, W)", "(1, 2, 8, 8)", "mlp"]),
        (lambda: transformer((1, 2, 8, 8), 10), ["transformer", "(T,)", "(1, 2, 8, 8)", "mlp"]),
        (lambda: transformer((8, 2), 10, width=6), ["width 6", "heads 4", "divide"]),
        (lambda: lstm((8, 2), 10, hidden=0), ["hidden 0", "1 or more"]),
    ],
)
def test_a_refusal_names_the_sizes_and_the_way_out(build: Build, words: list[str]) -> None:
    with pytest.raises(NetworkError) as refusal:
        build()
    assert all(word in str(refusal.value) for word in words), refusal.value


def test_listing_the_networks_needs_no_torch() -> None:
    code = "import sys, fedpeer.networks.registry; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
