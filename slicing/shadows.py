"""The shadows of values: what tracing knows of an activation or a parameter while it walks through a forward pass.

A shadow has the shape of its value and holds, for each element, which neuron or which scalar it is. What an operation
does with shadows is in `layers.py` and `rules.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx.node import map_aggregate

from fedpeer.slicing.cells import Ids, Ledger


@dataclass(frozen=True)
class Neurons:
    """Of an activation: for each element the neuron it comes from, -1 for a constant."""

    ids: Tensor

    def last(self) -> Ids:
        """(M, K) the neurons along the last dimension, a row for each position."""
        return self.ids.reshape(-1, self.ids.shape[-1]).numpy()

    def channels(self) -> Ids:
        """(M, C) the neurons along dimension 1, a row for each position."""
        return self.ids.movedim(1, -1).reshape(-1, self.ids.shape[1]).numpy()


@dataclass(frozen=True)
class Weights:
    """Of a parameter: for each element its place in the flat vector, -1 for what may not be bound.

    Several where it is computed from several parameters of the same shape, element by element.
    """

    indices: tuple[Tensor, ...]

    @property
    def shape(self) -> torch.Size:
        return self.indices[0].shape

    def reshaped(self, *shape: int) -> Weights:
        return Weights(tuple(index.reshape(shape) for index in self.indices))


Shadow = Any  # Neurons, Weights, None (nothing is known), or tuples and lists of them


@dataclass(frozen=True)
class TracedCall:
    """One operation of the forward pass.

    name: what a part that it produces is called: the path of the module, or of the operation
    value: what it returned
    """

    durable: Ledger
    name: str
    value: Any

    def across(self, neurons: Ids, value: Tensor | None = None, *, dim: int = -1) -> Neurons:
        """The neurons along a dimension of the result, the same at every position of the others."""
        value = self.value if value is None else value
        shape = [1] * value.dim()
        shape[dim] = len(neurons)
        return Neurons(torch.from_numpy(neurons).reshape(shape).expand(value.shape))


def replaced(tree: Any, of_leaf: Callable[[Any], Any]) -> Any:
    """The same tuples, lists, dicts and slices with each leaf replaced."""
    return map_aggregate(tree, of_leaf)


def tensor_leaves(tree: Any) -> list[Any]:
    """Whatever hangs in nested tuples, lists, dicts and slices."""
    found: list[Any] = []
    map_aggregate(tree, found.append)
    return found


def fresh(call: TracedCall) -> Shadow:
    """Loose neurons for each tensor of numbers that an unknown operation returned."""

    def one(value: Any) -> Shadow:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return None
        ids = call.durable.born(call.name, value.numel(), loose=True)
        return Neurons(torch.from_numpy(ids).reshape(value.shape))

    return replaced(call.value, one)


def parameters_in(tree: Any) -> Iterator[Tensor]:
    """Places in the flat vector of all parameters among some shadows."""
    for leaf in tensor_leaves(tree):
        if isinstance(leaf, Weights):
            yield from leaf.indices
