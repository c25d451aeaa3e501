"""One rule for each kind of layer with parameters: the neurons that it creates, and the scalars that they get.

A rule takes the shadows of its arguments and returns the shadow of the result. Arguments are in the order of torch's
functional forms, so that `F.linear(x, w)` and `nn.Linear` share one rule. A rule raises `MixedError` if it cannot
follow the operation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpeer.slicing.cells import Ids, MixedError
from fedpeer.slicing.network import NONE
from fedpeer.slicing.shadows import Neurons, Shadow, TracedCall, Weights, replaced, tensor_leaves


def bind(call: TracedCall, weights: Weights | None, into: Ids, source: Ids | None = None) -> None:
    for index in weights.indices if weights else ():
        call.builder.bind(index.numpy(), into, source)


def attach(call: TracedCall, weights: Weights | None, neurons: Neurons) -> None:
    """Give parameters to the neurons on which they act, broadcast over positions."""
    for index in weights.indices if weights else ():
        call.builder.attach(index.expand(neurons.ids.shape).numpy().ravel(), neurons.ids.numpy().ravel())


def _attach_rows(call: TracedCall, rows_MK: Ids, *weights: Weights | None) -> None:
    """Give parameters to K neurons that are the same at M positions, which is cheaper than for each position."""
    things = Neurons(torch.from_numpy(call.builder.agree(rows_MK)))
    for each in weights:
        attach(call, each and each.reshaped(-1), things)


def _indices_of(*weights: Weights | None) -> Ids:
    """Return the places of all these parameters in the flat vector."""
    return np.concatenate([index.numpy().ravel() for each in weights if each for index in each.indices])


def known(call: TracedCall, input: Any, weight: Any) -> None:
    if isinstance(weight, Neurons):
        call.builder.spoil(call.builder.acting_on(weight.ids.numpy()), "a weight is computed from it")
    if not isinstance(input, Neurons) or not isinstance(weight, Weights):
        raise MixedError("it is used in a way that slicing does not support")


def activation(call: TracedCall, value: Any) -> Any:
    """Return neurons for a parameter that is used as a value, such as a class token: one for each of its numbers.

    They are loose: a layer that reads them at several positions unites them with those of the other positions. A
    constant, such as a table of distances, has no neurons.
    """
    if isinstance(value, Tensor) and value.is_floating_point():
        return Neurons(torch.full(value.shape, NONE))
    if not isinstance(value, Weights):
        return value
    numbers, place = np.unique(value.indices[0].numpy(), return_inverse=True)
    owners = call.builder.owners(numbers)
    made = call.builder.born(owners[0].removesuffix(".weight") if owners else call.name, len(numbers), loose=True)
    made[numbers == NONE] = NONE
    neurons = Neurons(torch.from_numpy(made[place]).reshape(value.shape))
    attach(call, value, neurons)
    return neurons


def trace_linear(call: TracedCall, input: Neurons, weight: Weights, bias: Weights | None = None) -> Shadow:
    """Create a neuron for each output; each input feature is one neuron, the same at every position.

    Of a layer across positions (token mixing) the neurons stay what they are, and all of them share its weights.
    """
    input = activation(call, input)
    known(call, input, weight)
    try:
        source = call.builder.agree(input.last())
    except MixedError as why:
        rows_M1 = input.ids[..., :1]
        if not torch.equal(input.ids, rows_M1.expand(input.ids.shape)):
            raise
        call.builder.spoil(call.builder.owners(_indices_of(weight, bias)), str(why))
        return Neurons(rows_M1.expand(call.value.shape))
    into = call.builder.born(call.name, weight.shape[0])
    bind(call, weight, into[:, None], source)
    bind(call, bias, into)
    return call.across(into)


def addmm(call: TracedCall, bias: Any, input: Neurons, other: Weights, **_: Any) -> Shadow:
    """Follow `bias + x @ w` as a linear layer."""
    known(call, input, other)
    return trace_linear(call, input, other.transposed(), bias if isinstance(bias, Weights) else None)


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
    known(call, input, weight)
    source = call.builder.agree(input.channels())
    channels, per_group = weight.shape[:2]
    if groups == channels == len(source) > 1 and (source >= 0).all():
        into, sources = source, None
    else:
        into = call.builder.born(call.name, channels)
        group = np.arange(channels) // (channels // groups)
        sources = source[group[:, None] * per_group + np.arange(per_group)][..., None]
    bind(call, weight.reshaped(channels, per_group, -1), into[:, None, None], sources)
    bind(call, bias, into)
    return call.across(into, dim=1)


def transposed_conv(
    call: TracedCall,
    input: Neurons,
    weight: Weights,
    bias: Weights | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Shadow:
    """Create a neuron for each output channel of a transposed convolution."""
    known(call, input, weight)
    source = call.builder.agree(input.channels())
    channels, per_group = weight.shape[:2]
    into = call.builder.born(call.name, per_group * groups)
    group = np.arange(channels) // (channels // groups)
    reached = into[group[:, None] * per_group + np.arange(per_group)]
    bind(call, weight.reshaped(channels, per_group, -1), reached[..., None], source[:, None, None])
    bind(call, bias, into)
    return call.across(into, dim=1)


def embedding(call: TracedCall, input: Any, weight: Weights, *_: Any, **__: Any) -> Shadow:
    """Create a neuron for each column of the embedding, and an input neuron for each token."""
    if not isinstance(weight, Weights):
        raise MixedError("it is used in a way that slicing does not support")
    tokens, columns = weight.shape
    source = call.builder.born(f"{call.name}.input" if call.builder.knows("input") else "input", tokens)
    into = call.builder.born(call.name, columns)
    bind(call, weight, into, source[:, None])
    return call.across(into)


def scale_channels(call: TracedCall, input: Neurons, *weights: Weights | None) -> Shadow:
    """Give scale, shift and running statistics of a channel to the channel's neuron."""
    _attach_rows(call, input.channels(), *weights)
    return input


def batch_norm(
    call: TracedCall,
    input: Neurons,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    *_: Any,
    **__: Any,
) -> Shadow:
    """Give running statistics, scale and shift of a channel to the channel's neuron."""
    return scale_channels(call, input, running_mean, running_var, weight, bias)


def group_norm(
    call: TracedCall, input: Neurons, num_groups: int, weight: Any = None, bias: Any = None, *_: Any, **__: Any
) -> Shadow:
    """Give scale and shift of a channel to the channel's neuron."""
    return scale_channels(call, input, weight, bias)


def rms_norm(call: TracedCall, input: Any, normalized_shape: Any, weight: Any = None, *_: Any, **__: Any) -> Shadow:
    """Give the scale of a feature to the feature's neuron."""
    return layer_norm(call, input, normalized_shape, weight)


def layer_norm(
    call: TracedCall, input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, *_: Any, **__: Any
) -> Shadow:
    """Give scale and shift of a feature to the feature's neuron."""
    input = activation(call, input)
    if weight is not None:
        rows_MK = input.ids.reshape(-1, weight.shape.numel()).numpy()
        try:
            call.builder.agree(rows_MK, reshaped=False)
        except MixedError:  # heads that are normalised one by one share the scale, and stay apart
            call.builder.spoil(
                call.builder.owners(_indices_of(weight, bias)), "several neurons share one of its numbers"
            )
        else:
            _attach_rows(call, rows_MK, weight, bias)
    return input


def recurrent_cell(
    call: TracedCall,
    input: Any,
    start: Any,
    weight_ih: Any,
    weight_hh: Weights,
    bias_ih: Weights | None = None,
    bias_hh: Weights | None = None,
) -> Shadow:
    """Create a neuron for each hidden unit of one step of a recurrent layer, with all its gates."""
    known(call, input, weight_ih)
    units_out, units_in = weight_hh.shape
    units = call.builder.born(call.name, units_in)
    into = np.tile(units, units_out // units_in)
    bind(call, weight_ih, into[:, None], call.builder.agree(input.last()))
    bind(call, weight_hh, into[:, None], units)
    for bias in (bias_ih, bias_hh):
        bind(call, bias, into)
    for leaf in tensor_leaves(start):
        if isinstance(leaf, Neurons):
            call.builder.unite(call.builder.agree(leaf.last(), reshaped=False), units)
        elif isinstance(leaf, Weights):
            attach(call, leaf, call.across(units, torch.empty(leaf.shape)))
    return replaced(call.value, lambda state: call.across(units, state))


def recurrent(
    call: TracedCall,
    input: Any,
    start: Any,
    weights: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    *_: Any,
) -> Shadow:
    """Create a neuron for each hidden unit with all its gates; each layer and direction is a separate part."""
    if not isinstance(input, Neurons) or not isinstance(has_biases, bool):
        raise MixedError("its input is not a plain sequence")
    directions = ["", "_reverse"] if bidirectional else [""]
    per_unit = len(weights) // (num_layers * len(directions))
    if per_unit != (4 if has_biases else 2):
        raise MixedError("a projection of its hidden state (proj_size) mixes the units")
    units_in, units_out, *_ = weights[1].shape[::-1]
    source, units, given = call.builder.agree(input.last()), [], iter(weights)
    for layer in range(num_layers):
        for direction in directions:
            single = num_layers * len(directions) == 1
            born = call.builder.born(call.name if single else f"{call.name}.l{layer}{direction}", units_in)
            into = np.tile(born, units_out // units_in)
            bind(call, next(given), into[:, None], source)
            bind(call, next(given), into[:, None], born)
            for _bias in range(per_unit - 2):
                bind(call, next(given), into)
            units.append(born)
        source = np.concatenate(units[-len(directions) :])
    outputs, *states = call.value
    final = Neurons(torch.from_numpy(np.stack(units))[:, None].expand(states[0].shape))
    for leaf in tensor_leaves(start):
        if isinstance(leaf, Neurons):
            call.builder.unite(leaf.ids.numpy().ravel(), final.ids.numpy().ravel())
        elif isinstance(leaf, Weights):
            attach(call, leaf, final)
    return call.across(source, outputs), *[final] * len(states)
