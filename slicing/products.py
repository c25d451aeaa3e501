"""Rules for products of two activations, such as the attention of queries, keys and values.

If each of several matrices has its own neurons, the matrices are heads: all neurons of a head's queries, keys and
values become one neuron, so that attention is sliced by head. In a single product of features, neurons are united in
pairs, since they can be exchanged in pairs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpeer.slicing.cells import Ids, MixedError
from fedpeer.slicing.layers import activation, attach, bind, known, trace_linear
from fedpeer.slicing.network import NONE
from fedpeer.slicing.pairs import united
from fedpeer.slicing.shadows import Neurons, Shadow, TracedCall, Weights


def matmul(call: TracedCall, a: Any, b: Any) -> Shadow:
    """Follow `x @ w` as a linear layer without bias, and the product of two activations as heads or features."""
    if isinstance(b, Weights):
        known(call, a, b)
        if len(b.shape) > 2:
            raise MixedError("it multiplies by a stack of matrices")
        return trace_linear(call, a, b.reshaped(1, -1) if len(b.shape) == 1 else b.transposed())
    if not isinstance(a, Neurons) or not isinstance(b, Neurons) or min(a.ids.dim(), b.ids.dim()) < 2:
        raise MixedError("it is used in a way that slicing does not support")
    lead = np.broadcast_shapes(a.ids.shape[:-2], b.ids.shape[:-2]) or (1,)
    a_ids, b_ids = (ids.expand(lead + ids.shape[-2:]).flatten(0, -3) for ids in (_stacked(a.ids), _stacked(b.ids)))
    return Neurons(_product(call, a_ids, b_ids).reshape(call.value.shape))


def _stacked(ids: Tensor) -> Tensor:
    """Return the tensor with at least three dimensions, like a stack of matrices."""
    return ids if ids.dim() > 2 else ids[None]


def _product(call: TracedCall, a_ZMK: Tensor, b_ZKN: Tensor) -> Tensor:
    """Return the neurons of a stack of products, (Z, M, N), and unite those that the products do not distinguish."""
    a, b = (torch.from_numpy(call.builder.find(ids.numpy())) for ids in (a_ZMK, b_ZKN))
    if _heads(a) or _heads(b):
        return _one_each(call, a, b)
    if _constant(a, -1) and _constant(b, -2):  # a sum over positions
        return _weighted(a[..., :1], b[:, :1])
    if not _constant(a, -1) and not _constant(b, -2):
        left, right = call.builder.agree(_rows(a)), call.builder.agree(_rows(b.mT))
        call.builder.unite(left, right)
        fresh = call.builder.born(f"{call.name}.scores", 1, loose=True)
        return torch.from_numpy(fresh).expand(a.shape[0], a.shape[1], b.shape[2])
    raise MixedError("it multiplies each neuron by another one")


def _rows(ids: Tensor) -> Ids:
    return ids.reshape(-1, ids.shape[-1]).numpy()


def _constant(ids: Tensor, dim: int) -> bool:
    return bool((ids == ids.narrow(dim, 0, 1)).all())


def _heads(ids_ZMN: Tensor) -> bool:
    """Return whether different matrices of the stack have different neurons."""
    matrices = np.unique(ids_ZMN.flatten(1).numpy(), axis=0)
    known = [frozenset(matrix[matrix >= 0].tolist()) for matrix in matrices]
    return len(known) > 1 and not frozenset.intersection(*known)


def _one_each(call: TracedCall, a_ZMK: Tensor, b_ZKN: Tensor) -> Tensor:
    """Unite all neurons of each product, and return them, (Z, M, N)."""
    both = torch.cat([a_ZMK.flatten(1), b_ZKN.flatten(1)], dim=1)
    one_Z = both.amax(1)
    call.builder.unite(both.numpy().ravel(), one_Z[:, None].expand(both.shape).numpy().ravel())
    return one_Z[:, None, None].expand(len(one_Z), a_ZMK.shape[1], b_ZKN.shape[2])


def _weighted(a_ZM1: Tensor, b_Z1N: Tensor) -> Tensor:
    """Return the neurons of sums over positions: the neurons of the values, whatever the weights."""
    shape = (len(a_ZM1), a_ZM1.shape[1], b_Z1N.shape[2])
    if _constant(a_ZM1, -2):
        return torch.where(b_Z1N >= 0, b_Z1N, a_ZM1).expand(shape)
    if _constant(b_Z1N, -1):
        return torch.where(a_ZM1 >= 0, a_ZM1, b_Z1N).expand(shape)
    raise MixedError("it combines every pair of two sets of neurons")


def einsum(call: TracedCall, equation: str, *operands: Any) -> Shadow:
    """Follow a product of two operands that sums over the labels that both have and the result lacks.

    Every label of a parameter must be summed over, or be in the result alone, as in a linear layer.
    """
    if len(operands) == 1 and isinstance(operands[0], (tuple, list)):
        operands = tuple(operands[0])
    inputs, arrow, out = equation.replace(" ", "").partition("->")
    labels = inputs.split(",")
    if not arrow or len(labels) != len(operands) or len(labels) != 2 or "." in equation or _repeats(*labels, out):
        raise MixedError("slicing supports einsum of two operands, each label once, with ->")
    (first, second), (a, b) = labels, operands
    if isinstance(a, Weights):
        (first, second), (a, b) = (second, first), (b, a)
    summed = [each for each in first if each in second and each not in out]
    if isinstance(b, Weights):
        return _linear_einsum(call, (first, second, out), summed, a, b)
    if not isinstance(a, Neurons) or not isinstance(b, Neurons):
        raise MixedError("it is used in a way that slicing does not support")
    shared = [each for each in first if each in second and each in out]
    rows = [each for each in first if each not in second]
    columns = [each for each in second if each not in first]
    if not summed or set(rows + columns) - set(out):
        raise MixedError("slicing supports einsum that sums over labels of both operands")
    sizes = dict(zip(first + second, [*a.ids.shape, *b.ids.shape], strict=True))

    def grouped(ids: Tensor, own: str, *groups: list[str]) -> Tensor:
        order = [own.index(each) for group in groups for each in group]
        return ids.permute(order).reshape([int(np.prod([sizes[each] for each in group])) for group in groups])

    ids = _product(call, grouped(a.ids, first, shared, rows, summed), grouped(b.ids, second, shared, summed, columns))
    ids = ids.reshape([sizes[each] for each in shared + rows + columns])
    return Neurons(ids.permute([(shared + rows + columns).index(each) for each in out]))


def _repeats(*labels: str) -> bool:
    return any(len(set(each)) != len(each) for each in labels)


def _linear_einsum(
    call: TracedCall, labels: tuple[str, str, str], summed: list[str], input: Any, weight: Weights
) -> Shadow:
    """Create a neuron for each combination of the labels that only the weight has."""
    first, second, out = labels
    made = [each for each in second if each not in first]
    known(call, input, weight)
    if {*second} - {*summed, *made} or {*first} - {*summed, *out} or not summed:
        raise MixedError("it multiplies by a stack of matrices")
    rest = [each for each in first if each not in summed]
    sizes = dict(zip(first + second, [*input.ids.shape, *weight.shape], strict=True))
    source = input.ids.permute([first.index(each) for each in rest + summed]).flatten(len(rest)).flatten(0, -2)
    order = [second.index(each) for each in made + summed]
    into = call.builder.born(call.name, int(np.prod([sizes[each] for each in made])))
    rows = Weights(tuple(index.permute(order).reshape(len(into), -1) for index in weight.indices))
    bind(call, rows, into[:, None], call.builder.agree(source.numpy()))
    ids = torch.from_numpy(into).reshape([sizes[each] for each in made])
    ids = ids.expand([sizes[each] for each in rest + made])
    return Neurons(ids.permute([(rest + made).index(each) for each in out]))


def dot_product_attention(
    call: TracedCall, query: Any, key: Any, value: Any, attn_mask: Any = None, *_: Any, **__: Any
) -> Shadow:
    """Follow attention of queries (..., T, D), keys (..., S, D) and values (..., S, V), the heads before these two.

    Several heads of queries may share one head of keys and values (grouped queries). A mask that is a parameter, or
    that a layer produced (biases of relative positions), belongs to the heads; a mask that is computed from the input
    belongs to no neuron.
    """
    query, key, value = (activation(call, each) for each in (query, key, value))
    if not all(isinstance(each, Neurons) for each in (query, key, value)):
        raise MixedError("it is used in a way that slicing does not support")
    lead = query.ids.shape[:-2]
    q, k, v = (_repeated(each.ids, lead).flatten(0, -3) for each in (query, key, value))
    scores = _product(call, q, k.mT)
    wide = scores.reshape((*(lead or (1,)), *scores.shape[-2:]))
    if isinstance(attn_mask, Weights):
        attach(call, attn_mask, Neurons(wide))
    elif isinstance(attn_mask, Neurons) and not call.builder.loose(attn_mask.ids.numpy().ravel()):
        scores = united(call, wide, attn_mask.ids).reshape(scores.shape)
    return Neurons(_product(call, scores, v).reshape(call.value.shape))


def _repeated(ids: Tensor, lead: torch.Size) -> Tensor:
    """Return the neurons of keys or values, with each head repeated for all heads of queries that share it."""
    ids = _stacked(ids)
    if len(lead) and ids.dim() == len(lead) + 2 and ids.shape[-3] != lead[-1] and lead[-1] % ids.shape[-3] == 0:
        ids = ids.repeat_interleave(lead[-1] // ids.shape[-3], -3)
    return ids.expand((*(lead or (1,)), *ids.shape[-2:]))


def multi_head_attention(
    call: TracedCall,
    query: Any,
    key: Any,
    value: Any,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Any,
    in_proj_bias: Any,
    bias_k: Any,
    bias_v: Any,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Weights,
    out_proj_bias: Any,
    *,
    q_proj_weight: Any = None,
    k_proj_weight: Any = None,
    v_proj_weight: Any = None,
    **_: Any,
) -> Shadow:
    """Create a neuron for each head of `nn.MultiheadAttention`, and one for each of its outputs."""
    width, given = embed_dim_to_check, tuple(activation(call, each) for each in (query, key, value))
    if not all(isinstance(each, Neurons) for each in given):
        raise MixedError("it is used in a way that slicing does not support")
    weights = (q_proj_weight, k_proj_weight, v_proj_weight)
    if in_proj_weight is not None:
        weights = tuple(in_proj_weight.rows(width * at, width * (at + 1)) for at in range(3))
    heads = call.builder.born(call.name, num_heads)
    into = np.repeat(heads, width // num_heads)
    for input, weight in zip(given, weights, strict=True):
        bind(call, weight, into[:, None], call.builder.agree(input.last()))
    bind(call, in_proj_bias, np.tile(into, 3))
    for each in (bias_k, bias_v):
        bind(call, each and each.reshaped(-1), into)
    outputs = call.builder.born(f"{call.name}.out_proj", width)
    bind(call, out_proj_weight, outputs[:, None], into)
    bind(call, out_proj_bias, outputs)
    attended, scores = call.value
    ids = torch.full(scores.shape, NONE) if isinstance(scores, Tensor) else None
    return call.across(outputs, attended), None if ids is None else Neurons(ids)
