"""The structure of a network's flat vector: its tensors, and the neurons to which each scalar belongs.

A network's parameters (and float buffers) are one flat vector of n scalars. A neuron (a *cell* of appendix A: a
hidden unit, a channel, a token, a column of an embedding) belongs to a *part*, and each scalar belongs to one neuron
(a bias) or two (a weight, from one neuron into another). This module defines that map, without torch; `trace.py` finds
it for a torch module.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedpeer.slicing.models import SlicingError, nearest_model

Ints = NDArray[np.int32]

#: Entry in the arrays of a `NetworkMap` that means no neuron.
NONE = -1


@dataclass(frozen=True)
class Part:
    """The neurons of one layer, or of several layers whose outputs are added together."""

    name: str
    size: int


@dataclass(frozen=True)
class TensorSpec:
    """A parameter or a buffer and its place in the flat vector, row-major.

    name         dotted name in the module
    offset       index of its first scalar in the flat vector
    module       the module that holds it; if it is unsliceable, the module that can only be owned whole
    unsliceable  the reason why tracing found no neurons for its scalars; empty if it found them
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
        """Its range in the flat vector."""
        return slice(self.offset, self.offset + self.size)


def normalization(tensors: Iterable[TensorSpec]) -> tuple[str, ...]:
    """Return the names of all buffers, and of the scales and shifts of modules with running statistics.

    Other parameters are excluded, even if their module has another buffer: a mask, or a block's own table.
    """
    tensors = tuple(tensors)
    places = {each.name: each.name.rpartition(".") for each in tensors}
    running = {module for module, _, name in places.values() if name in ("running_mean", "running_var")}
    return tuple(each.name for each in tensors if each.kind == "buffer" or places[each.name][0] in running)


@dataclass(frozen=True, eq=False)
class NetworkMap:
    """The neurons C(pi) of appendix A for each scalar pi of a network's flat vector.

    Attributes:
        parts: parts in the order in which the network produces them, `input` first.
        tensors: tensors without gaps, parameters first.
        out_part_n, out_neuron_n: (n,) int32, the neuron that owns the scalar, into which a weight leads.
        in_part_n, in_neuron_n: (n,) int32, the neuron from which a weight comes; -1 for biases and the like.
        aliases: other names of parts, such as `output`.
        base: digest in hex of the frozen parameters, which are not in the vector; empty: no frozen parameters.
        frozen: number of frozen parameters.
    """

    parts: tuple[Part, ...]
    tensors: tuple[TensorSpec, ...]
    out_part_n: Ints
    out_neuron_n: Ints
    in_part_n: Ints
    in_neuron_n: Ints
    aliases: Mapping[str, str] = field(default_factory=dict)
    base: str = ""
    frozen: int = 0

    @property
    def n(self) -> int:
        """Length of the flat vector."""
        return len(self.out_part_n)

    @cached_property
    def tensor_n(self) -> Ints:
        """Index of the tensor that holds each scalar, (n,) int32."""
        return np.repeat(np.arange(len(self.tensors), dtype=np.int32), [tensor.size for tensor in self.tensors])

    @cached_property
    def place_n(self) -> Ints:
        """Position of each scalar among the scalars of the same tensor and the same neurons, (n,) int32.

        Examples are a kernel position, the gate of a recurrent unit, the position of a flattened pixel. Positions count
        in row-major order, so they are the same in a network with more neurons.
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
        """Return the index of the part of that name or alias.

        Raises:
            SlicingError: there is no such part; the message has the nearest name, and all parts with their sizes.
        """
        index = {part.name: i for i, part in enumerate(self.parts)}
        index |= {alias: index[part] for alias, part in self.aliases.items() if alias not in index}
        if name not in index:
            sizes = ", ".join(f"{part.name} {part.size}" for part in self.parts) or "none"
            raise SlicingError(
                f'the network has no part "{name}"; {nearest_model(name, index)} (neurons of each: {sizes})'
            )
        return index[name]

    def matching_parts(self, pattern: str) -> tuple[int, ...]:
        """Return the indices of the parts whose names match a pattern, such as "*.lora_A".

        Raises:
            SlicingError: there is none.
        """
        found = tuple(i for i, part in enumerate(self.parts) if fnmatch.fnmatchcase(part.name, pattern))
        if not found:
            names = ", ".join(part.name for part in self.parts) or "none"
            raise SlicingError(f'no part of the network matches "{pattern}" (parts: {names})')
        return found

    def matching_tensors(self, pattern: str) -> tuple[int, ...]:
        """Return the indices of the tensors with this name, or whose names match this pattern, such as "*.bias".

        Raises:
            SlicingError: there is none.
        """
        names = [tensor.name for tensor in self.tensors]
        found = tuple(i for i, name in enumerate(names) if fnmatch.fnmatchcase(name, pattern))
        if not found:
            raise SlicingError(f'the network has no parameter "{pattern}"; {nearest_model(pattern, names)}')
        return found

    def module_tensors(self, name: str) -> tuple[int, ...]:
        """Return the indices of the tensors of that module and its submodules, or of the one parameter of that name.

        A pattern, such as "*.lora_A", names all modules and parameters whose names match.

        Raises:
            SlicingError: the network has no parameters under that name.
        """
        above = (accumulate(tensor.name.split("."), "{}.{}".format) for tensor in self.tensors)
        found = tuple(i for i, names in enumerate(above) if any(fnmatch.fnmatchcase(each, name) for each in names))
        if not found:
            modules = {tensor.module for tensor in self.tensors} | {tensor.name for tensor in self.tensors}
            raise SlicingError(
                f'the network has no module "{name}" with parameters; {nearest_model(name, modules - {""})}'
            )
        return found
