"""Rules for operations without parameters, and the choice of the rule for each operation of the forward pass.

Operations that move values (flatten, cat, chunk) are applied to the shadows themselves; adding unites neurons position
by position; pooling keeps them. An operation without a rule raises `MixedError`: its results are neurons of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedpeer.slicing.cells import Ids, MixedError
from fedpeer.slicing.layers import (
    attach,
    batch_norm,
    conv,
    embedding,
    group_norm,
    layer_norm,
    matmul,
    recurrent,
    scale_channels,
    trace_linear,
)
from fedpeer.slicing.network import NONE
from fedpeer.slicing.shadows import Neurons, Shadow, TracedCall, Weights, replaced, tensor_leaves


def pooled(call: TracedCall, input: Neurons, *_: Any, **__: Any) -> Shadow:
    """Pool positions of one channel, which stays the same neuron."""
    channels = call.builder.agree(input.channels())
    if isinstance(call.value, tuple):
        return (call.across(channels, call.value[0], dim=1), None)
    return call.across(channels, dim=1)


def _reduced(call: TracedCall, reduce: Callable[..., Any], input: Neurons, *args: Any, **kwargs: Any) -> Shadow:
    """Reduce positions of the same neuron, by a mean for example, which keeps the neuron."""
    if not isinstance(input, Neurons):
        raise MixedError("it is used in a way that slicing does not support")
    ids = torch.from_numpy(call.builder.find(input.ids.numpy()))
    dim = args[0] if args else kwargs.get("dim")
    keepdim = args[1] if len(args) > 1 else kwargs.get("keepdim", False)
    dims = list(range(ids.dim())) if dim is None else dim
    low, high = ids.amin(dims, keepdim), ids.amax(dims, keepdim)
    if not torch.equal(low, high):
        raise MixedError("it combines different neurons")
    return Neurons(high) if isinstance(call.value, Tensor) else (Neurons(high), None)


def _padded(call: TracedCall, input: Neurons, pad: Any, mode: str = "constant", value: Any = None) -> Shadow:
    """Pad with constants, which belong to no neuron, or with copies of values, which keep theirs."""
    ids = input.ids.double()  # exact: there are far fewer than 2**53 neurons, and not all modes know integers
    ids = nn.functional.pad(ids, pad, value=NONE) if mode == "constant" else nn.functional.pad(ids, pad, mode=mode)
    return Neurons(ids.long())


def _elementwise(call: TracedCall, *operands: Any, **named: Any) -> Shadow:
    """Unite the operands' neurons position by position; parameters among the operands belong to the results."""
    found = tensor_leaves((operands, named))
    weights = [each for each in found if isinstance(each, Weights)]
    neurons = [each for each in found if isinstance(each, Neurons) and bool((each.ids >= 0).any())]
    shape = call.value.shape
    if not neurons:
        indices = tuple(index.expand(shape) for each in weights for index in each.indices)
        return Weights(indices) if weights else None
    result = neurons[0].ids
    for other in neurons[1:]:
        result = _united(call, result, other.ids)
    result = result.expand(shape)
    for each in weights:
        attach(call, each, Neurons(result))
    return Neurons(result)


def _united(call: TracedCall, a: Tensor, b: Tensor) -> Tensor:
    """Unite the neurons of each pair, except one that is broadcast over many neurons (a gate), which stays separate."""
    shape = np.broadcast_shapes(a.shape, b.shape)
    wide_a, wide_b = a.expand(shape), b.expand(shape)
    pairs = call.builder.find(np.stack([wide_a.numpy().ravel(), wide_b.numpy().ravel()]))
    a_spreads = a.numel() < wide_a.numel() and _spreads(call, pairs[0], pairs[1])
    b_spreads = b.numel() < wide_b.numel() and _spreads(call, pairs[1], pairs[0])
    if a_spreads and b_spreads:
        raise MixedError("it combines every pair of two sets of neurons")
    if not a_spreads and not b_spreads:
        call.builder.unite(pairs[0], pairs[1])
    return torch.where(wide_b >= 0, wide_b, wide_a) if a_spreads else torch.where(wide_a >= 0, wide_a, wide_b)


def _spreads(call: TracedCall, narrow: Ids, wide: Ids) -> bool:
    """Return whether a broadcast neuron meets several neurons.

    Pixels that may yet be united count as one, unless a single broadcast neuron meets them all.
    """
    both = (narrow >= 0) & (wide >= 0)
    pairs = np.unique(narrow[both] << 32 | wide[both])  # there are far fewer than 2**32 neurons
    kinds, meets = np.unique(pairs >> 32, return_counts=True)
    several = bool((meets > 1).any())
    return several and (len(kinds) == 1 or not call.builder.loose(pairs & 0xFFFFFFFF))


def _instead(old: object, new: object, leaf: object) -> object:
    return new if leaf is old else leaf


def _trace_moved(call: TracedCall, move: Callable[..., Any], *args: Any, **kwargs: Any) -> Shadow:
    """Apply an operation that only moves values to the shadows."""
    tree = (args, kwargs)
    found = tensor_leaves(tree)
    weights = [each for each in found if isinstance(each, Weights)]
    if weights and (len(weights) > 1 or any(isinstance(each, Neurons) for each in found)):
        raise MixedError("it is combined with other values")
    if weights:
        results = []
        for index in weights[0].indices:
            moved_args, moved_kwargs = replaced(tree, partial(_instead, weights[0], index))
            results.append(move(*moved_args, **moved_kwargs))
        if not all(isinstance(result, Tensor) for result in results):
            raise MixedError("it is split into pieces")
        return Weights(tuple(results))

    def id_of(leaf: Any) -> Any:
        if isinstance(leaf, Neurons):
            return leaf.ids.contiguous()  # a view of the real value may ask for it
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            return torch.full(leaf.shape, NONE)
        return leaf

    moved_args, moved_kwargs = replaced(tree, id_of)
    result = move(*moved_args, **moved_kwargs)
    return replaced(result, lambda leaf: Neurons(leaf) if isinstance(leaf, Tensor) else None)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Functions and methods by name; `x.relu_()` and `x += y` count as `relu` and `add`.
_FUNCTIONS: dict[str, Callable[..., Shadow]] = {
    "linear": trace_linear,
    "matmul": matmul,
    "mm": matmul,
    **dict.fromkeys(["conv1d", "conv2d", "conv3d"], conv),
    "embedding": embedding,
    "batch_norm": batch_norm,
    "group_norm": group_norm,
    "layer_norm": layer_norm,
    "pad": _padded,
    "prelu": scale_channels,
    **{f"{kind}_pool{d}d": pooled for kind in ("max", "avg", "lp", "adaptive_max", "adaptive_avg") for d in (1, 2, 3)},
    "interpolate": pooled,
}

_ELEMENTWISE = _words("""
    abs add addcmul alpha_dropout atan celu clamp clip clone contiguous cos detach div divide double dropout
    dropout1d dropout2d dropout3d elu eq erf exp expm1 feature_alpha_dropout fill float floordiv ge gelu gt half
    hardshrink hardsigmoid hardswish hardtanh le leaky_relu lerp log log1p log_softmax logsigmoid lt maximum
    minimum mish mul multiply nan_to_num ne neg normalize positive pow reciprocal relu relu6 rrelu rsqrt rsub
    selu sigmoid sign silu sin softmax softmin softplus softshrink softsign sqrt square sub subtract tanh
    tanhshrink threshold to true_divide truediv type where xlogy
""")

_MOVES = _words("""
    cat chunk concat concatenate expand expand_as flatten flip getattr getitem hsplit hstack movedim narrow
    permute ravel repeat repeat_interleave reshape roll select split split_with_sizes squeeze stack swapaxes
    swapdims t tensor_split tile transpose unbind unflatten unsqueeze view view_as vsplit vstack
""")

_REDUCTIONS = _words("""
    amax amin logsumexp max mean median min norm std sum var
""")

#: Functions that take only a shape from their arguments.
_CONSTANTS = _words("""
    empty_like full_like new_empty new_full new_ones new_tensor new_zeros ones_like rand_like randint_like randn_like
    zeros_like
""")

_MOVING_MODULES = (nn.Flatten, nn.Unflatten, nn.Identity, nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle)


def call_function(call: TracedCall, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Shadow:
    """Apply the rule of a function or method, found by its name.

    Raises:
        MixedError: there is no rule, or it cannot follow the call.
    """
    if name in _CONSTANTS or not any(isinstance(leaf, (Neurons, Weights)) for leaf in tensor_leaves((args, kwargs))):
        return None
    if name == "getitem" and isinstance(args[0], (tuple, list)):
        return args[0][args[1]]
    if not any(isinstance(leaf, Tensor) for leaf in tensor_leaves(call.value)):
        return None
    plain = name.rstrip("_")
    plain = plain[1:] if plain[:1] == "i" and plain[1:] in _ELEMENTWISE else plain
    if name in _MOVES:
        return _trace_moved(call, function, *args, **kwargs)
    if plain in _ELEMENTWISE:
        return _elementwise(call, *args, **kwargs)
    if name in _REDUCTIONS:
        return _reduced(call, function, *args, **kwargs)
    if plain in _FUNCTIONS:
        return _FUNCTIONS[plain](call, *args, **kwargs)
    raise MixedError(f"slicing does not support the operation {name}")


def call_module(call: TracedCall, module: nn.Module, own: Mapping[str, Weights], args: Any, kwargs: Any) -> Shadow:
    """Apply the rule of a torch layer; `own` are its parameters and float buffers.

    Raises:
        MixedError: there is no rule, or it cannot follow the call.
    """
    unknown = f"slicing does not support the layer {type(module).__name__}"
    if getattr(module, "parametrizations", None):
        raise MixedError("its parameters are computed from others")
    if isinstance(module, nn.RNNBase):
        return recurrent(call, module, own, *args, **kwargs)
    if isinstance(module, nn.Embedding):
        return embedding(call, *args, own["weight"])
    if isinstance(module, _MOVING_MODULES):
        return _trace_moved(call, module, *args)
    if len(args) != 1 or kwargs or not isinstance(args[0], Neurons):
        raise MixedError(unknown)
    [input] = args
    weight, bias = own.get("weight"), own.get("bias")
    if isinstance(module, nn.Linear):
        return trace_linear(call, input, own["weight"], bias)
    if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        return conv(call, input, own["weight"], bias, groups=module.groups)
    if isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
        return layer_norm(call, input, None, weight, bias)
    if isinstance(module, (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.PReLU)):
        return scale_channels(call, input, *own.values())
    if isinstance(module, nn.modules.padding._ConstantPadNd):
        return _padded(call, input, module.padding)
    where = type(module).__module__
    if where in ("torch.nn.modules.pooling", "torch.nn.modules.upsampling"):
        return pooled(call, input)
    if where in ("torch.nn.modules.activation", "torch.nn.modules.dropout") and call.value.shape == input.ids.shape:
        return _elementwise(call, input)
    raise MixedError(unknown)
