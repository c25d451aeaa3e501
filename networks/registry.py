"""The built-in networks by name, with their settings. torch is imported only when a network is built.

A builder takes the shape of one example and the number of outputs, and returns a plain `nn.Module` whose modules
have the names that partial models use for parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import nn

_Activation = Literal["sigmoid", "tanh", "relu"]
#: Most neurons of a hidden layer.
WIDEST = 1_000_000


class NetworkError(ValueError):
    """The network does not fit the data or has an invalid setting; the message names the values and the way out."""


def mlp(
    input_shape: tuple[int, ...],
    outputs: int,
    *,
    layers: tuple[int, ...] | None = None,
    hidden: tuple[int, ...] | None = None,
    activation: _Activation = "sigmoid",
    dropout: float = 0.0,
    bias: bool = True,
) -> nn.Module:
    """Multi-layer perceptron; `layers` from input to output, such as 64+300+100+10, or `hidden` alone (300+100)."""
    from fedpeer.networks.mlp import MLP

    if layers is not None and hidden is not None:
        both = f"layers {_joined(layers)} and hidden {_joined(hidden)}"
        raise NetworkError(f"mlp: {both} both give the hidden sizes; leave one out")
    features = math.prod(input_shape)
    sizes = (features, *((300, 100) if hidden is None else hidden), outputs) if layers is None else layers
    if len(sizes) < 2 or min(sizes) < 1:
        raise NetworkError(f"mlp layers {_joined(sizes)}: give at least two sizes, each 1 or more")
    if max(sizes[1:-1], default=1) > WIDEST:
        raise NetworkError(f"mlp layers {_joined(sizes)}: write at most {WIDEST} for a hidden layer")
    if (sizes[0], sizes[-1]) != (features, outputs):
        raise NetworkError(
            f"mlp layers {_joined(sizes)} do not fit the data: it has {features} input features and needs {outputs} "
            f"outputs; write {_joined((features, *sizes[1:-1], outputs))}"
        )
    return MLP(
        sizes, activation=activation, dropout=_share(dropout, "dropout"), bias=bias, flatten=len(input_shape) > 1
    )


def linear_network(input_shape: tuple[int, ...], outputs: int, *, bias: bool = True) -> nn.Module:
    """One linear layer and no hidden units; with loss binary it has one output for two classes."""
    from fedpeer.networks.mlp import MLP

    sizes = (math.prod(input_shape), outputs)
    return MLP(sizes, activation="sigmoid", bias=bias, flatten=len(input_shape) > 1)


def lateral_mlp(
    input_shape: tuple[int, ...],
    outputs: int,
    *,
    hidden: tuple[int, ...] = (100, 100),
    activation: _Activation = "relu",
    dropout: float = 0.0,
) -> nn.Module:
    """Two perceptrons side by side, the server's feeding each layer of the client's (VIRTUAL, 2019, eq. 4)."""
    from fedpeer.networks.lateral import LateralMLP

    if not hidden or min(hidden) < 1:
        raise NetworkError(f"lateral-mlp: hidden {_joined(hidden)}: give at least one size, each 1 or more")
    sizes = (math.prod(input_shape), *hidden, outputs)
    return LateralMLP(sizes, activation=activation, dropout=_share(dropout, "dropout"))


def cnn(
    input_shape: tuple[int, ...],
    outputs: int,
    *,
    channels: tuple[int, ...] = (32, 64),
    hidden: tuple[int, ...] = (100,),
    kernel: int = 5,
    norm: Literal["none", "batch"] = "none",
    activation: _Activation = "relu",
    dropout: float = 0.0,
) -> nn.Module:
    """Convolutions, each followed by 2x2 max-pooling, then dense layers; for images (channels, height, width)."""
    from fedpeer.networks.cnn import CNN

    if len(input_shape) != 3:
        raise NetworkError(
            f"cnn needs images (channels, height, width), and one example here has shape {input_shape}; "
            "choose mlp, or load the data as images (shape=image)"
        )
    if not channels or min(*channels, *hidden, 1) < 1:
        raise NetworkError(f"cnn: channels {_joined(channels)}, hidden {_joined(hidden)}: give sizes of 1 or more")
    if kernel % 2 == 0 or kernel < 1:
        raise NetworkError(f"cnn: kernel = {kernel}: write an odd number, so that the kernel has a centre")
    if min(input_shape[1:]) < 2 ** len(channels):
        raise NetworkError(
            f"cnn: {len(channels)} poolings by 2 leave nothing of a {input_shape[1]}x{input_shape[2]} image; "
            f"write at most {min(input_shape[1:]).bit_length() - 1} sizes in channels"
        )
    return CNN(
        input_shape,
        outputs,
        channels=channels,
        hidden=hidden,
        kernel=kernel,
        norm=norm,
        activation=activation,
        dropout=_share(dropout, "dropout"),
    )


def lstm(
    input_shape: tuple[int, ...],
    outputs: int,
    *,
    hidden: int = 100,
    layers: int = 1,
    embedding: int = 8,
    vocabulary: int = 0,
    padding: int | None = None,
    cell: Literal["lstm", "gru"] = "lstm",
) -> nn.Module:
    """LSTM or GRU over a sequence, then a dense layer on its last state; tokens (T,), features (T, F) or image rows.

    The last state of a text that is filled up with the token `padding` is that of its own last token.
    """
    from fedpeer.networks.recurrent import Recurrent

    input_shape = _sequence("lstm", input_shape)
    if min(hidden, layers, embedding) < 1:
        raise NetworkError(f"lstm: hidden {hidden}, layers {layers}, embedding {embedding}: give sizes of 1 or more")
    features = None if len(input_shape) == 1 else input_shape[1]
    return Recurrent(
        features,
        vocabulary or outputs,
        outputs,
        hidden=hidden,
        layers=layers,
        embedding=embedding,
        padding=padding if features is None else None,
        cell=cell,
    )


def transformer(
    input_shape: tuple[int, ...],
    outputs: int,
    *,
    width: int = 64,
    heads: int = 4,
    layers: int = 2,
    hidden: int | None = None,
    vocabulary: int = 0,
    dropout: float = 0.0,
    causal: bool = False,
) -> nn.Module:
    """Attention blocks over a sequence, each with `hidden` units (2 x width), then a dense layer on its last place.

    Sequences are those of `lstm`. With `causal` the dense layer is on each place, which sees only itself and the places
    before it: for next tokens.
    """
    from fedpeer.networks.transformer import Transformer

    input_shape = _sequence("transformer", input_shape)
    hidden = 2 * width if hidden is None else hidden
    if min(width, heads, layers, hidden) < 1 or width % heads:
        raise NetworkError(
            f"transformer: width {width}, heads {heads}, layers {layers}, hidden {hidden}: give sizes of 1 or more, "
            "and a width that the heads divide"
        )
    return Transformer(
        None if len(input_shape) == 1 else input_shape[1],
        vocabulary or outputs,
        input_shape[0],
        outputs,
        width=width,
        heads=heads,
        hidden=hidden,
        layers=layers,
        dropout=_share(dropout, "dropout"),
        causal=causal,
    )


def associative_network(
    input_shape: tuple[int, ...], outputs: int, *, hidden: int = 400, threshold: float = 0.5
) -> nn.Module:
    """Completes patterns of 0 and 1; learns by association, not by gradients (partial averaging 2021, IV.2)."""
    from fedpeer.networks.associative import Associative

    visible = math.prod(input_shape)
    if outputs != visible:
        raise NetworkError(
            f"associative completes patterns and needs as many outputs as inputs, but here {visible} inputs need "
            f"{outputs} outputs; choose data of patterns, such as associative, or another network, such as mlp"
        )
    if hidden < 1:
        raise NetworkError(f"associative: hidden {hidden}: write 1 or more")
    if not 0 < threshold < math.inf:
        raise NetworkError(
            f"associative: threshold = {threshold:g}: write a number above 0, or units fire without input"
        )
    return Associative(visible, hidden, threshold=threshold)


def _sequence(network: str, input_shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of one example as the network takes it, (T,) or (T, F)."""
    from fedpeer.networks.rows import sequence_shape

    shape = sequence_shape(input_shape)
    if len(shape) not in (1, 2):
        raise NetworkError(
            f"{network} needs sequences (T,) of tokens or (T, F) of features, or images (C, H, W), read by rows; "
            f"one example here has shape {input_shape}; choose mlp"
        )
    return shape


def _joined(sizes: tuple[int, ...]) -> str:
    return "+".join(map(str, sizes))


def _share(value: float, name: str) -> float:
    if not 0.0 <= value < 1.0:
        raise NetworkError(f"{name} = {value}: write a number from 0 to below 1")
    return value


NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "lateral-mlp": lateral_mlp,
    "linear": linear_network,
    "cnn": cnn,
    "lstm": lstm,
    "transformer": transformer,
    "associative": associative_network,
}
