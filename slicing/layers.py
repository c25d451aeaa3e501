"""One rule for each kind of layer with parameters: the neurons that it creates, and the scalars that they get.

A rule takes the shadows of its arguments and returns the shadow of the result. Arguments are in the order of torch's
functional forms, so that `F.linear(x, w)` and `nn.Linear` share one rule. A rule raises `MixedError` if it cannot
follow the operation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from fedpeer.slicing.cells import Ids, MixedError
from fedpeer.slicing.shadows import Neurons, Shadow, TracedCall, Weights, tensor_leaves


def _bind(call: TracedCall, weights: Weights | None, into: Ids, source: Ids | None = None) -> None:
    for index in weights.indices if weights else ():
        call.builder.bind(index.numpy(), into, source)


def attach(call: TracedCall, weights: Weights | None, neurons: Neurons) -> None:
    """Give parameters to the neurons on which they act, broadcast over positions."""
    for index in weights.indices if weights else ():
        call.builder.attach(index.expand(neurons.ids.shape).numpy().ravel(), neurons.ids.numpy().ravel())


def _attach_rows(call: TracedCall, rows_MK: Ids, *weights: Weights | None) -> None:
    """Give parameters to K neurons that are the same at M positions, which is cheaper than at all positions."""
    things = Neurons(torch.from_numpy(call.builder.agree(rows_MK)))
    for each in weights:
        attach(call, each and each.reshaped(-1), things)


def _known(input: Any, weight: Any) -> None:
    if not isinstance(input, Neurons) or not isinstance(weight, Weights):
        raise MixedError("it is used in a way that slicing does not support")


def trace_linear(call: TracedCall, input: Neurons, weight: Weights, bias: Weights | None = None) -> Shadow:
    """Create a neuron for each output; each input feature is one neuron, the same at every position."""
    _known(input, weight)
    source = call.builder.agree(input.last())
    into = call.builder.born(call.name, weight.shape[0])
    _bind(call, weight, into[:, None], source)
    _bind(call, bias, into)
    return call.across(into)


def matmul(call: TracedCall, input: Neurons, other: Weights) -> Shadow:
    """Follow `x @ w` as a linear layer without bias."""
    _known(input, other)
    return trace_linear(call, input, Weights(tuple(index.T for index in other.indices)))


def conv(
    call: TracedCall,
    input: Neurons,
    weight: Weights,
    bias: Weights | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Shadow:
    """Create a neuron for each output channel; a depthwise convolution keeps the neurons of its input channels."""
    _known(input, weight)
    source = call.builder.agree(input.channels())
    channels, per_group = weight.shape[:2]
    if groups == channels == len(source) > 1 and (source >= 0).all():
        into, sources = source, None
    else:
        into = call.builder.born(call.name, channels)
        group = np.arange(channels) // (channels // groups)
        sources = source[group[:, None] * per_group + np.arange(per_group)][..., None]
    _bind(call, weight.reshaped(channels, per_group, -1), into[:, None, None], sources)
    _bind(call, bias, into)
    return call.across(into, dim=1)


def embedding(call: TracedCall, input: Any, weight: Weights, *_: Any, **__: Any) -> Shadow:
    """Create a neuron for each column, and for each token a neuron of the input."""
    if not isinstance(weight, Weights):
        raise MixedError("it is used in a way that slicing does not support")
    tokens, columns = weight.shape
    source = call.builder.born(f"{call.name}.input" if call.builder.knows("input") else "input", tokens)
    into = call.builder.born(call.name, columns)
    _bind(call, weight, into, source[:, None])
    return call.across(into)


def scale_channels(call: TracedCall, input: Neurons, *weights: Weights | None) -> Shadow:
    """Give scale, shift and running statistics of a channel to the channel's neuron."""
    _attach_rows(call, input.channels(), *weights)
    return input


def batch_norm(
    call: TracedCall, input: Neurons, mean: Any, var: Any, weight: Any = None, bias: Any = None, *_: Any
) -> Shadow:
    return scale_channels(call, input, mean, var, weight, bias)


def group_norm(call: TracedCall, input: Neurons, groups: int, weight: Any = None, bias: Any = None, *_: Any) -> Shadow:
    return scale_channels(call, input, weight, bias)


def layer_norm(call: TracedCall, input: Neurons, shape: Any, weight: Any = None, bias: Any = None, *_: Any) -> Shadow:
    """Give scale and shift of a feature to the feature's neuron."""
    if weight is not None:
        _attach_rows(call, input.ids.reshape(-1, weight.shape.numel()).numpy(), weight, bias)
    return input


def recurrent(
    call: TracedCall, module: nn.RNNBase, own: Mapping[str, Weights], input: Neurons, start: Any = None
) -> Shadow:
    """Create a neuron for each hidden unit with all its gates; each layer and direction is a part of its own."""
    if module.proj_size:
        raise MixedError("a projection of its hidden state (proj_size) mixes the units")
    if not isinstance(input, Neurons):
        raise MixedError("its input is not a plain sequence")
    directions = ["", "_reverse"] if module.bidirectional else [""]
    gates = own["weight_hh_l0"].shape[0] // module.hidden_size
    source, units = call.builder.agree(input.last()), []
    for layer in range(module.num_layers):
        for direction in directions:
            where = f"l{layer}{direction}"
            single = module.num_layers * len(directions) == 1
            born = call.builder.born(call.name if single else f"{call.name}.{where}", module.hidden_size)
            into = np.tile(born, gates)
            _bind(call, own[f"weight_ih_{where}"], into[:, None], source)
            _bind(call, own[f"weight_hh_{where}"], into[:, None], born)
            _bind(call, own.get(f"bias_ih_{where}"), into)
            _bind(call, own.get(f"bias_hh_{where}"), into)
            units.append(born)
        source = np.concatenate(units[-len(directions) :])
    outputs, states = call.value
    shape = states[0].shape if isinstance(states, tuple) else states.shape
    final = Neurons(torch.from_numpy(np.stack(units))[:, None].expand(shape))
    for given in tensor_leaves(start):
        if isinstance(given, Neurons):
            call.builder.unite(given.ids.numpy().ravel(), final.ids.numpy().ravel())
        elif isinstance(given, Weights):
            attach(call, given, final)
    return call.across(source, outputs), (final, final) if isinstance(states, tuple) else final
