"""Rules for elementwise operations, whose operands' neurons are united position by position, and for `x[index]`.

A mask decides for each element separately, as `torch.where` does. So a write by a mask leaves the elements their
neurons: an element that happens to be masked in the traced example is not a constant. Elements that an index of
positions overwrites get the neurons of the new value.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpeer.slicing.cells import MixedError
from fedpeer.slicing.layers import attach
from fedpeer.slicing.network import NONE
from fedpeer.slicing.pairs import united
from fedpeer.slicing.shadows import Neurons, Shadow, TracedCall, Weights, tensor_leaves


def elementwise(call: TracedCall, *operands: Any, **named: Any) -> Shadow:
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
        result = united(call, result, other.ids)
    result = result.expand(shape)
    for each in weights:
        attach(call, each, Neurons(result))
    return Neurons(result)


def selected(call: TracedCall, input: Any, index: Any) -> Shadow:
    """Follow `input[index]`."""
    at = call.args[1]
    if isinstance(input, Weights):
        _refuse_chosen_by_data(index)
        return Weights(tuple(each[at] for each in input.indices))
    ids = input.ids if isinstance(input, Neurons) else torch.full(input.shape, NONE)
    return Neurons(_masked(call, ids, index)[at])


def assigned(call: TracedCall, target: Any, index: Any, value: Any) -> Shadow:
    """Follow `target[index] = value`, and return the target's new shadow."""
    at = call.args[1]
    if isinstance(target, Weights) or (isinstance(value, Weights) and not isinstance(target, Neurons)):
        return _assigned_weights(target, index, at, value)
    ids = target.ids.clone() if isinstance(target, Neurons) else torch.full(target.shape, NONE)
    ids = _masked(call, ids, index).clone()
    if isinstance(value, Weights):
        attach(call, value, Neurons(ids[at]))
    elif not _by_mask(at):
        ids[at] = value.ids if isinstance(value, Neurons) else NONE
    elif isinstance(value, Neurons):
        ids[at] = united(call, ids[at], value.ids)
    return Neurons(ids)


def _assigned_weights(target: Any, index: Any, at: Any, value: Any) -> Shadow:
    """Follow an assignment that involves only parameters; overwritten parameters keep their neurons."""
    _refuse_chosen_by_data(index)
    if isinstance(value, Neurons):
        ids = torch.full(target.shape, NONE)
        ids[at] = value.ids
        return Neurons(ids)
    found = list(target.indices) if isinstance(target, Weights) else []
    for each in value.indices if isinstance(value, Weights) else ():
        found.append(torch.full(target.shape, NONE))
        found[-1][at] = each
    return Weights(tuple(found))


def _refuse_chosen_by_data(index: Any) -> None:
    """Raise MixedError if the traced example decides which elements of a parameter are taken or written."""
    if any(isinstance(leaf, Neurons) for leaf in tensor_leaves(index)):
        raise MixedError("a parameter is masked by values that are computed from neurons")


def _masked(call: TracedCall, ids: Tensor, index: Any) -> Tensor:
    """Unite each element with the neuron that its mask comes from."""
    for axis, real, shadow in _axes(call.args[1], index, ids.dim()):
        if isinstance(shadow, Neurons) and _is_mask(real):
            after = ids.dim() - axis - shadow.ids.dim()
            ids = united(call, ids, shadow.ids.reshape((1,) * axis + shadow.ids.shape + (1,) * after))
    return ids


def _axes(at: Any, index: Any, dims: int) -> Iterator[tuple[int, Any, Any]]:
    """Yield each piece of an index with its shadow and the first axis that it indexes."""
    pieces, shadows = (each if isinstance(each, tuple) else (each,) for each in (at, index))
    axis, taken = 0, sum(map(_width, pieces))
    for piece, shadow in zip(pieces, shadows, strict=True):
        yield axis, piece, shadow
        axis += dims - taken if piece is Ellipsis else _width(piece)


def _width(piece: Any) -> int:
    """Return the number of axes that a piece of an index covers."""
    if piece is None or piece is Ellipsis or isinstance(piece, bool):
        return 0
    return int(piece.ndim) if _is_mask(piece) else 1


def _by_mask(at: Any) -> bool:
    return any(isinstance(leaf, bool) or _is_mask(leaf) for leaf in tensor_leaves(at))


def _is_mask(piece: Any) -> bool:
    return (isinstance(piece, Tensor) and piece.dtype in (torch.bool, torch.uint8)) or (
        isinstance(piece, np.ndarray) and piece.dtype == bool
    )
