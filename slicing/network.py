"""What a network's flat vector is made of: its tensors, and for each scalar the neurons that it belongs to.

A network's parameters (and float buffers) are one flat vector of n scalars. A neuron (a *cell* of appendix A: a
hidden unit, a channel, a token, a column of an embedding) belongs to a *part*, and each scalar belongs to one neuron
(a bias) or two (a weight, from one neuron into another). This file holds that map; `trace.py` finds it for a torch
module. It imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedpeer.slicing.models import SlicingError, nearest_model

Ints = NDArray[np.int32]

#: In the arrays of a `NetworkMap`: no such neuron.
NONE = -1


@dataclass(frozen=True)
class Part:
    """Neurons that are treated alike: one layer's, or those of several layers that are added together."""

    name: str
    size: int


@dataclass(frozen=True)
class TensorSpec:
    """A parameter or a buffer: where it lies in the flat vector, row-major.

    `unsliceable` says why its scalars belong to no neurons that tracing could find, and is empty where they do.
    `module` is the module that holds it; of an unsliceable one, the one that can only be owned whole.
    """

    name: str
    shape: tuple[int, ...]
    offset: int
    kind: Literal["parameter", "buffer"]
    module: str
    unsliceable: str = ""

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def span(self) -> slice:
        """Its place in the flat vector."""
        return slice(self.offset, self.offset + self.size)


@dataclass(frozen=True, eq=False)
class NetworkMap:
    """C(pi) of appendix A for each scalar pi of a network's flat vector.

    Attributes:
        parts: in the order in which the network produces them, `input` first.
        tensors: without gaps, parameters first.
        out_part_n, out_neuron_n: (n,) int32, the neuron whose own the scalar is (the one a weight leads into).
        in_part_n, in_neuron_n: (n,) int32, the neuron that a weight comes from; -1 for biases and the like.
        aliases: other names of parts, such as `output`.
    """

    parts: tuple[Part, ...]
    tensors: tuple[TensorSpec, ...]
    out_part_n: Ints
    out_neuron_n: Ints
    in_part_n: Ints
    in_neuron_n: Ints
    aliases: Mapping[str, str] = field(default_factory=dict)

    @property
    def n(self) -> int:
        """Length of the flat vector."""
        return len(self.out_part_n)

    @cached_property
    def tensor_n(self) -> Ints:
        """(n,) int32, the tensor that each scalar lies in."""
        return np.repeat(np.arange(len(self.tensors), dtype=np.int32), [tensor.size for tensor in self.tensors])

    @cached_property
    def place_n(self) -> Ints:
        """(n,) int32, the scalar's position among those of the same tensor and the same neurons.

        A kernel position, the gate of a recurrent unit, the position of a flattened pixel. It counts in row-major
        order, so it is the same in a network with more neurons.
        """
        keys = (self.in_neuron_n, self.in_part_n, self.out_neuron_n, self.out_part_n, self.tensor_n)
        order = np.lexsort(keys)
        first = np.ones(self.n, dtype=bool)
        first[1:] = np.logical_or.reduce([key[order[1:]] != key[order[:-1]] for key in keys])
        rank = np.arange(self.n)
        rank -= np.maximum.accumulate(np.where(first, rank, 0))
        place = np.empty(self.n, dtype=np.int32)
        place[order] = rank
        return place

    def part(self, name: str) -> int:
        """The index of the part of that name or alias.

        Raises:
            SlicingError: there is none; the message has the nearest name, or all with their sizes.
        """
        index = {part.name: i for i, part in enumerate(self.parts)}
        index |= {alias: index[part] for alias, part in self.aliases.items() if alias not in index}
        if name not in index:
            sizes = ", ".join(f"{part.name} {part.size}" for part in self.parts) or "none"
            raise SlicingError(
                f'the network has no part "{name}"; {nearest_model(name, index)} (neurons of each: {sizes})'
            )
        return index[name]

    def module_tensors(self, name: str) -> tuple[int, ...]:
        """The tensors of that module, its submodules', or the one parameter of that name.

        Raises:
            SlicingError: the network has no parameters under that name.
        """
        found = tuple(i for i, tensor in enumerate(self.tensors) if f"{tensor.name}.".startswith(f"{name}."))
        if not found:
            modules = {tensor.module for tensor in self.tensors} | {tensor.name for tensor in self.tensors}
            raise SlicingError(
                f'the network has no module "{name}" with parameters; {nearest_model(name, modules - {""})}'
            )
        return found
