"""Rules for operations without parameters, and the choice of the rule for each operation of the forward pass.

Operations that move values (flatten, cat, chunk) are applied to the shadows themselves; addition unites neurons
position by position; pooling keeps them. An operation without a rule raises `MixedError`: its results are new neurons.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedpeer.slicing.cells import Ids, MixedError
from fedpeer.slicing.elementwise import assigned, elementwise, selected
from fedpeer.slicing.layers import (
    activation,
    addmm,
    batch_norm,
    conv,
    embedding,
    group_norm,
    layer_norm,
    recurrent,
    recurrent_cell,
    rms_norm,
    scale_channels,
    trace_linear,
    transposed_conv,
)
from fedpeer.slicing.network import NONE
from fedpeer.slicing.pairs import united
from fedpeer.slicing.products import dot_product_attention, einsum, matmul, multi_head_attention
from fedpeer.slicing.shadows import Neurons, Shadow, TracedCall, Weights, replaced, tensor_leaves


def pooled(call: TracedCall, input: Neurons, *_: Any, **__: Any) -> Shadow:
    """Pool positions of one channel, which stays the same neuron."""
    channels = call.builder.agree(input.channels())
    if isinstance(call.value, tuple):
        return (call.across(channels, call.value[0], dim=1), None)
    return call.across(channels, dim=1)


def _reduced(call: TracedCall, reduce: Callable[..., Any], input: Neurons, *args: Any, **kwargs: Any) -> Shadow:
    """Reduce positions of the same neuron, by a mean for example, which keeps the neuron.

    If the neurons differ, the result is a statistic with its own neurons; exchanging the neurons does not change it.
    But if each result has other neurons, as in maxout, these are the pieces of one unit, and are united. (A norm by
    groups keeps the dimension, and its neurons stay apart, as in `group_norm`.)
    """
    if not isinstance(input, Neurons):
        raise MixedError("it is used in a way that slicing does not support")
    ids = torch.from_numpy(call.builder.find(input.ids.numpy()))
    dim = args[0] if args else kwargs.get("dim")
    keepdim = args[1] if len(args) > 1 else kwargs.get("keepdim", False)
    dims = list(range(ids.dim())) if dim is None else dim
    low, high = ids.amin(dims, keepdim), ids.amax(dims, keepdim)
    if not torch.equal(low, high):
        if not keepdim and call.builder.apart(sets_RN := _reduced_sets(ids, dims)):
            call.builder.unite(sets_RN.ravel(), np.repeat(sets_RN[:, 0], sets_RN.shape[1]))
            made = call.builder.find(high.numpy())
        else:
            made = call.builder.born(call.name, high.numel(), loose=True, statistic=True)
        high = torch.from_numpy(made).reshape(high.shape)
    return Neurons(high) if isinstance(call.value, Tensor) else (Neurons(high), None)


def _reduced_sets(ids: Tensor, dims: int | Sequence[int]) -> Ids:
    """Return the neurons that are reduced to each of R results, (R, N)."""
    reduced = sorted({dim % ids.dim() for dim in ([dims] if isinstance(dims, int) else dims)})
    kept = [dim for dim in range(ids.dim()) if dim not in reduced]
    return ids.permute(kept + reduced).reshape(-1, math.prod(ids.shape[dim] for dim in reduced)).numpy()


def _padded(call: TracedCall, input: Neurons, pad: Any, mode: str = "constant", value: Any = None) -> Shadow:
    """Pad with constants, which belong to no neuron, or with copies of values, which keep theirs."""
    ids = input.ids.double()  # exact: there are far fewer than 2**53 neurons, and not all modes know integers
    ids = nn.functional.pad(ids, pad, value=NONE) if mode == "constant" else nn.functional.pad(ids, pad, mode=mode)
    return Neurons(ids.long())


def _copied(call: TracedCall, _: Any, source: Any, *__: Any) -> Shadow:
    """Follow `x.copy_(source)`."""
    return elementwise(call, source)


def _joined(call: TracedCall, join: Callable[..., Any], *args: Any, **kwargs: Any) -> Shadow:
    """Follow a concatenation: of parameters, of values, or of both, such as a class token before patches."""
    found = tensor_leaves((args, kwargs))
    if any(isinstance(each, Neurons) for each in found):
        args, kwargs = replaced((args, kwargs), partial(activation, call))
        return _trace_moved(call, join, *args, **kwargs)

    def indices(at: int, leaf: Any) -> Any:
        if isinstance(leaf, Weights):
            return leaf.indices[at] if at < len(leaf.indices) else torch.full(leaf.shape, NONE)
        return torch.full(leaf.shape, NONE) if isinstance(leaf, Tensor) else leaf

    count = max(len(each.indices) for each in found if isinstance(each, Weights))
    pieces = (replaced((args, kwargs), partial(indices, at)) for at in range(count))
    return Weights(tuple(join(*its_args, **its_kwargs) for its_args, its_kwargs in pieces))


def _complex(call: TracedCall, input: Neurons) -> Shadow:
    """Unite the two neurons that become real and imaginary part of one number, as rotary positions do."""
    call.builder.unite(input.ids[..., 0].numpy().ravel(), input.ids[..., 1].numpy().ravel())
    return Neurons(input.ids[..., 0])


def _real_pair(call: TracedCall, input: Neurons) -> Shadow:
    """Follow a complex number that becomes two real ones of the same neuron."""
    return Neurons(input.ids[..., None].expand(call.value.shape))


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
            # A copy, since the operation may change it in place; contiguous, since a view may need that.
            return leaf.ids.clone(memory_format=torch.contiguous_format)
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            return torch.full(leaf.shape, NONE)
        return leaf

    moved_args, moved_kwargs = replaced(tree, id_of)
    result = move(*moved_args, **moved_kwargs)
    return replaced(result, lambda leaf: Neurons(leaf) if isinstance(leaf, Tensor) else None)


def _baddbmm(call: TracedCall, input: Any, batch1: Any, batch2: Any, **_: Any) -> Shadow:
    """Follow `input + a @ b` for stacks of matrices, such as scores of attention with a bias of positions."""
    return elementwise(call, input, matmul(call, batch1, batch2))


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _gated(call: TracedCall, input: Neurons, dim: int = -1) -> Shadow:
    """Unite each neuron of the first half with the one of the second half that scales it (a gated linear unit)."""
    first, second = input.ids.chunk(2, dim)
    return Neurons(united(call, first, second))


#: Functions and methods by name; `x.relu_()` and `x += y` count as `relu` and `add`.
_FUNCTIONS: dict[str, Callable[..., Shadow]] = {
    "getitem": selected,
    "setitem": assigned,
    "copy": _copied,
    "linear": trace_linear,
    "addmm": addmm,
    **dict.fromkeys(["matmul", "mm", "bmm", "mv"], matmul),
    "baddbmm": _baddbmm,
    "einsum": einsum,
    "scaled_dot_product_attention": dot_product_attention,
    "multi_head_attention_forward": multi_head_attention,
    **dict.fromkeys(["lstm", "gru", "rnn_tanh", "rnn_relu"], recurrent),
    **dict.fromkeys(["lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"], recurrent_cell),
    **dict.fromkeys(["conv1d", "conv2d", "conv3d"], conv),
    **dict.fromkeys(["conv_transpose1d", "conv_transpose2d", "conv_transpose3d"], transposed_conv),
    "embedding": embedding,
    **dict.fromkeys(["batch_norm", "instance_norm"], batch_norm),
    "group_norm": group_norm,
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "glu": _gated,
    "pad": _padded,
    "view_as_complex": _complex,
    "view_as_real": _real_pair,
    "prelu": scale_channels,
    **{f"{kind}_pool{d}d": pooled for kind in ("max", "avg", "lp", "adaptive_max", "adaptive_avg") for d in (1, 2, 3)},
    "max_pool2d_with_indices": pooled,
    "interpolate": pooled,
}

_ELEMENTWISE = _words("""
    abs add addcmul alpha_dropout and atan bfloat16 bitwise_and bitwise_not bitwise_or bitwise_xor bool celu clamp clip
    clone contiguous cos detach div divide double dropout dropout1d dropout2d dropout3d elu eq erf exp expm1
    feature_alpha_dropout fill float floordiv ge gelu gt half hardshrink hardsigmoid hardswish hardtanh int invert
    isfinite isinf isnan le leaky_relu lerp log log1p log_softmax logical_and logical_not logical_or logical_xor
    logsigmoid long lt masked_fill maximum minimum mish mul multiply nan_to_num ne neg normalize or positive pow
    reciprocal relu relu6 rrelu rsqrt rsub selu sigmoid sign silu sin softmax softmin softplus softshrink softsign sqrt
    square sub subtract tanh tanhshrink threshold tril triu true_divide truediv where xlogy xor
""")

_JOINS = _words("cat concat concatenate hstack stack vstack")

_MOVES = _words("""
    H T channel_shuffle chunk data expand expand_as flatten flip gather hsplit index_select mH mT movedim narrow
    permute pixel_shuffle pixel_unshuffle ravel real repeat repeat_interleave reshape roll select split
    split_with_sizes squeeze swapaxes swapdims t take_along_dim tensor_split tile transpose unbind unflatten
    unsqueeze view view_as vsplit
""")

_REDUCTIONS = _words("""
    amax amin logsumexp max mean median min norm std sum var
""")

#: Reductions that are elementwise if they get two tensors: `torch.max(a, b)` is `torch.maximum(a, b)`.
_OF_TWO = _words("max min")

#: Functions that take the shape of their second argument.
_SHAPED = _words("expand_as view_as")

#: Functions that change the type of their first argument, perhaps to the type of another argument.
_CASTS = _words("to type type_as")

#: Functions that use only the shape of their arguments.
_CONSTANTS = _words("""
    empty_like full_like new_empty new_full new_ones new_tensor new_zeros ones_like rand_like randint_like randn_like
    zeros_like
""")


def plain_name(function: Callable[..., Any]) -> str:
    """Return the name under which an operation's rule is registered.

    >>> plain_name(Tensor.__iadd__), plain_name(Tensor.relu_), plain_name(Tensor.__rsub__), plain_name(Tensor.T.__get__)
    ('add', 'relu', 'sub', 'T')
    """
    name = function.__name__
    if name == "__get__":
        return str(getattr(function, "__self__").__name__)  # noqa: B009 - the getter of a property, `x.T`
    name = name.strip("_")
    return name[1:] if name[:1] in ("i", "r") and name[1:] in _OPERATORS else name


#: Operators that Python also has in place (`iadd`) or with the operands exchanged (`radd`).
_OPERATORS = _words("add and div floordiv matmul mul or pow sub truediv xor")


def call_function(call: TracedCall, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Shadow:
    """Apply the rule of a function or method, found by its name (`plain_name`).

    Raises:
        MixedError: there is no rule, or it cannot follow the call.
    """
    if name in _CONSTANTS:
        return None
    if name in _CASTS:
        return args[0] if isinstance(args[0], (Neurons, Weights)) else None
    if name in _JOINS:
        return _joined(call, function, *args, **kwargs)
    if name in _SHAPED and isinstance(args[0], Weights):
        args = (args[0], *call.args[1:])  # the other tensor gives its shape only
    if name in _MOVES:
        return _trace_moved(call, function, *args, **kwargs)
    if name in _ELEMENTWISE:
        return elementwise(call, *args, **kwargs)
    if name in _OF_TWO and any(isinstance(each, (Neurons, Weights, Tensor)) for each in (*args[1:], *kwargs.values())):
        return elementwise(call, *args, **kwargs)
    if name in _REDUCTIONS:
        return _reduced(call, function, *args, **kwargs)
    if name in _FUNCTIONS:
        return _FUNCTIONS[name](call, *args, **kwargs)
    raise MixedError(f"slicing does not support the operation {name}")
