"""Shadows: for each activation or parameter in a traced forward pass, the neuron or the scalar behind each element.

A shadow has the shape of its value. `layers.py` and `rules.py` define the effect of each operation on shadows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx.node import map_aggregate

from fedpeer.slicing.cells import Ids, NetworkMapBuilder


@dataclass(frozen=True)
class Neurons:
    """The shadow of an activation: the neuron from which each element comes, -1 for a constant."""

    ids: Tensor

    def last(self) -> Ids:
        """Return the neurons along the last dimension, (M, K), a row for each position."""
        return self.ids.reshape(-1, self.ids.shape[-1]).numpy()

    def channels(self) -> Ids:
        """Return the neurons along dimension 1, (M, C), a row for each position."""
        return self.ids.movedim(1, -1).reshape(-1, self.ids.shape[1]).numpy()


@dataclass(frozen=True)
class Weights:
    """The shadow of a parameter: the index of each element in the flat vector, -1 if it must not be bound.

    There are several indices if the value is computed elementwise from several parameters of the same shape.
    """

    indices: tuple[Tensor, ...]

    @property
    def shape(self) -> torch.Size:
        return self.indices[0].shape

    def reshaped(self, *shape: int) -> Weights:
        return Weights(tuple(index.reshape(shape) for index in self.indices))

    def transposed(self) -> Weights:
        """Return the shadow with the last two dimensions exchanged."""
        return Weights(tuple(index.mT for index in self.indices))

    def rows(self, first: int, after: int) -> Weights:
        """Return the rows from `first` to before `after`."""
        return Weights(tuple(index[first:after] for index in self.indices))


Shadow = Any  # Neurons, Weights, None (nothing is known), or tuples and lists of them


@dataclass(frozen=True)
class TracedCall:
    """One operation of the forward pass.

    builder  the network's map so far
    name     name of the part that it produces: the path of the module, or the operation's name
    value    its result; for an assignment, the tensor that was written into
    args     its arguments themselves, which rules need where shadows do not suffice (a mask)
    """

    builder: NetworkMapBuilder
    name: str
    value: Any
    args: Any = ()

    def across(self, neurons: Ids, value: Tensor | None = None, *, dim: int = -1) -> Neurons:
        """Return a shadow with these neurons along one dimension of the result, the same at all other positions."""
        value = self.value if value is None else value
        shape = [1] * value.dim()
        shape[dim] = len(neurons)
        return Neurons(torch.from_numpy(neurons).reshape(shape).expand(value.shape))


def replaced(tree: Any, of_leaf: Callable[[Any], Any]) -> Any:
    """Rebuild nested tuples, lists, dicts and slices with each leaf replaced."""
    return map_aggregate(tree, of_leaf)


def tensor_leaves(tree: Any) -> list[Any]:
    """Return all leaves of nested tuples, lists, dicts and slices."""
    found: list[Any] = []
    map_aggregate(tree, found.append)
    return found


def fresh(call: TracedCall) -> Shadow:
    """Create loose neurons for each floating-point tensor that an unknown operation returned."""

    def one(value: Any) -> Shadow:
        if not isinstance(value, Tensor) or not (value.is_floating_point() or value.is_complex()):
            return None
        ids = call.builder.born(call.name, value.numel(), loose=True)
        return Neurons(torch.from_numpy(ids).reshape(value.shape))

    return replaced(call.value, one)


def parameters_in(tree: Any) -> Iterator[Tensor]:
    """Yield the flat-vector indices of all parameters among these shadows."""
    for leaf in tensor_leaves(tree):
        if isinstance(leaf, Weights):
            yield from leaf.indices
