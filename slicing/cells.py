"""The bookkeeping of tracing: neurons are created, united if they are the same neuron, and given their scalars.

A neuron on which two layers must agree (a residual add, a pooled channel) is created twice and united. A union-find
over arrays keeps track, so that a hundred thousand pixels are united at once. At the end of the forward pass,
`NetworkMapBuilder.network` numbers the neurons that remain, part by part. numpy only; `layers.py` and `rules.py` define
the effect of each operation on neurons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedpeer.slicing.network import NONE, NetworkMap, Part, TensorSpec

Ids = NDArray[np.int64]


class MixedError(Exception):
    """An operation mixes different neurons, so its tensors cannot be sliced; the message says how."""


class Forest:
    """Union-find over integers; the smallest integer of a set represents it, and -1 stays -1."""

    def __init__(self) -> None:
        self._parent: Ids = np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._parent)

    def grow(self, count: int) -> Ids:
        new = np.arange(len(self), len(self) + count)
        self._parent = np.concatenate([self._parent, new])
        return new

    def find(self, things: Ids) -> Ids:
        if not len(self):
            return things
        root = np.where(things < 0, NONE, self._parent[things])
        while True:
            above = np.where(root < 0, NONE, self._parent[root])
            if np.array_equal(above, root):
                return root
            root = above

    def unite(self, a: Ids, b: Ids) -> None:
        """Unite a[i] with b[i] for each i where neither is -1."""
        known = (a >= 0) & (b >= 0)
        a, b = a[known], b[known]
        while True:
            a, b = self.find(a), self.find(b)
            apart = a != b
            if not apart.any():
                return
            a, b = np.minimum(a, b)[apart], np.maximum(a, b)[apart]
            np.minimum.at(self._parent, b, a)


class NetworkMapBuilder:
    """A builder of a `NetworkMap`: the identities of the neurons, and the scalars that belong to each."""

    def __init__(self, tensors: Sequence[TensorSpec]) -> None:
        n = sum(tensor.size for tensor in tensors)
        self.tensors = tuple(tensors)
        self.unsliceable: dict[str, tuple[str, str]] = {}  # tensor's name -> (reason, module)
        self._neurons = Forest()
        self._births: dict[str, int] = {}
        self._birth = np.zeros(0, dtype=np.int64)  # for each neuron, the number of its part's name at creation
        self._loose = np.zeros(0, dtype=bool)
        self._statistic = np.zeros(0, dtype=bool)
        self._into_n: Ids = np.full(n, NONE)
        self._source_n: Ids = np.full(n, NONE)

    def born(self, name: str, count: int, *, loose: bool = False, statistic: bool = False) -> Ids:
        """Create neurons of the part of that name.

        Loose neurons are values that may later become one neuron (the pixels of an image: a convolution unites the
        pixels of each channel, a linear layer leaves them separate). Statistics are numbers about several neurons, such
        as the mean by which a norm divides.
        """
        number = self._births.setdefault(name, len(self._births))
        self._birth = np.concatenate([self._birth, np.full(count, number)])
        self._loose = np.concatenate([self._loose, np.full(count, loose)])
        self._statistic = np.concatenate([self._statistic, np.full(count, statistic)])
        return self._neurons.grow(count)

    def knows(self, name: str) -> bool:
        """Return whether neurons of a part of that name exist."""
        return name in self._births

    def find(self, neurons: Ids) -> Ids:
        return self._neurons.find(neurons)

    def unite(self, a: Ids, b: Ids) -> None:
        self._neurons.unite(a, b)

    def loose(self, neurons: Ids) -> bool:
        """Return whether none of these neurons has been united with a neuron that a layer produced."""
        held = self.find(np.flatnonzero(~self._loose))
        return not np.isin(self.find(neurons[neurons >= 0]), held).any()

    def statistics(self, neurons: Ids) -> bool:
        """Return whether there are neurons here, and all of them are statistics of other neurons."""
        found = self.find(neurons[neurons >= 0])
        return bool(len(found)) and bool(self._statistic[found].all())

    def agree(self, rows_MK: Ids, *, reshaped: bool = True) -> Ids:
        """Return the neurons that all M positions have in common, (K,); those that differ are united.

        A column may hold loose neurons beside one that a layer produced (a class token beside patches). It may hold
        several produced ones if no other column has them: units that are reshaped into the pixels of a channel.

        Args:
            reshaped: whether such units are united; else they stay apart.

        Raises:
            MixedError: neurons that layers produced are in one column, and may not be united.
        """
        rows_MK = self.find(rows_MK)
        common_K = rows_MK.max(axis=0)
        apart_K = ((rows_MK >= 0) & (rows_MK != common_K)).any(axis=0)
        if apart_K.any():
            columns_MK = np.broadcast_to(np.arange(len(common_K)), rows_MK.shape)
            joinable = self._joinable(columns_MK.ravel(), rows_MK.ravel())
            if not joinable and not (reshaped and self._disjoint(rows_MK)):
                raise MixedError("it is applied across neurons, not to each of them")
            self.unite(rows_MK.ravel(), np.broadcast_to(common_K, rows_MK.shape).ravel())
        return self.find(common_K)

    def _joinable(self, groups: Ids, neurons: Ids) -> bool:
        """Return whether each group has at most one neuron that a layer produced, beside loose ones."""
        produced = np.isin(neurons, self.find(np.flatnonzero(~self._loose))) & (neurons >= 0)
        pairs = np.unique(groups[produced] << 32 | neurons[produced])  # there are far fewer than 2**32 neurons
        return len(np.unique(pairs >> 32)) == len(pairs)

    def apart(self, sets_RN: Ids) -> bool:
        """Return whether the rows are several sets of neurons that layers produced, and no neuron is in two of them."""
        sets = np.unique(np.sort(self.find(sets_RN), axis=1), axis=0)
        produced = np.isin(sets, self.find(np.flatnonzero(~self._loose))) & (sets >= 0)
        return len(sets) > 1 and bool(produced.all()) and self._disjoint(sets.T)

    @staticmethod
    def _disjoint(rows_MK: Ids) -> bool:
        """Return whether there are several columns, and no neuron occurs in two of them."""
        pairs = np.unique(np.arange(rows_MK.shape[1]) << 32 | np.where(rows_MK < 0, 0xFFFFFFFF, rows_MK))
        neurons = pairs & 0xFFFFFFFF
        neurons = neurons[neurons != 0xFFFFFFFF]
        return rows_MK.shape[1] > 1 and len(np.unique(neurons)) == len(neurons)

    def bind(self, scalars: Ids, into: Ids, source: Ids | None = None) -> None:
        """Give scalars to the neurons that they lead into and, for weights, those they come from; shapes are broadcast.

        If a scalar was bound before (a layer used twice), its old and its new neuron are united.
        """
        into = np.broadcast_to(into, scalars.shape).ravel()
        source = np.broadcast_to(NONE if source is None else source, scalars.shape).ravel()
        scalars = scalars.ravel()
        if (scalars < 0).any():
            into, source, scalars = into[scalars >= 0], source[scalars >= 0], scalars[scalars >= 0]
        if self._turned(scalars, into, source):
            self.spoil(self.owners(scalars), "it is used in both directions")
            return
        self.unite(self._into_n[scalars], into)
        self.unite(self._source_n[scalars], source)
        self._into_n[scalars], self._source_n[scalars] = into, source

    def _turned(self, scalars: Ids, into: Ids, source: Ids) -> bool:
        """Return whether bound weights lead back now, from their targets to their sources, as in a tied decoder."""
        before_into, before_source = self._into_n[scalars], self._source_n[scalars]
        if not len(scalars) or min(before_into.min(), before_source.min(), source.min()) < 0:
            return False
        before_into, before_source, into, source = map(self.find, (before_into, before_source, into, source))

        def one_to_one(a: Ids, b: Ids) -> bool:
            return len(np.unique(a << 32 | b)) == len(np.unique(a)) == len(np.unique(b))

        straight = one_to_one(before_into, into) and one_to_one(before_source, source)
        return not straight and one_to_one(before_into, source) and one_to_one(before_source, into)

    def attach(self, scalars: Ids, neurons: Ids) -> None:
        """Give each scalar to the one neuron on which it acts (a scale, a shift); the shapes are equal.

        A tensor with a scalar that acts on several neurons cannot be sliced, but those neurons can.
        """
        known = (neurons >= 0) & (scalars >= 0)
        scalars, neurons = scalars[known], self.find(neurons[known])
        held, first, number = np.unique(scalars, return_index=True, return_inverse=True)
        one = neurons[first][number]
        if (neurons != one).any():
            if len(held) == 1 or not self._joinable(scalars, neurons):
                self.spoil(self.owners(scalars), "several neurons share one of its numbers")
                return
            self.unite(neurons, one)
        self.bind(held, neurons[first])

    def acting_on(self, neurons: Ids) -> list[str]:
        """Return the names of the tensors of which scalars have been given to these neurons."""
        return self.owners(np.flatnonzero(np.isin(self.find(self._into_n), self.find(neurons[neurons >= 0]))))

    def owners(self, scalars: Ids) -> list[str]:
        """Return the names of the tensors that hold at least one of these scalars."""
        return [t.name for t in self.tensors if ((scalars >= t.offset) & (scalars < t.offset + t.size)).any()]

    def spoil(self, names: Sequence[str], reason: str, module: str = "") -> None:
        """Mark tensors as unsliceable: only their module can be owned, as a whole. The first reason is kept."""
        for name in names:
            self.unsliceable.setdefault(name, (reason, module or name.rpartition(".")[0]))

    def network(self, outputs: Ids) -> NetworkMap:
        """Return the map of the neurons found, numbered part by part; neurons without a scalar are left out.

        Args:
            outputs: the neurons of the network's final output.
        """
        for tensor in self.tensors:
            if (self._into_n[tensor.span] < 0).any():
                self.spoil([tensor.name], "tracing found no neurons for it")
        tensors = tuple(self._marked(each) for each in self.tensors)
        for tensor in tensors:
            if tensor.unsliceable:
                self._into_n[tensor.span] = self._source_n[tensor.span] = NONE
        into_n, source_n = self.find(self._into_n), self.find(self._source_n)
        used = np.unique(np.concatenate([into_n, source_n]))
        used = used[used >= 0]
        part_of_used, names = self._parts(used)
        sizes = np.bincount(part_of_used, minlength=len(names))
        order = np.lexsort((used, part_of_used))
        neuron_of_used = np.empty(len(used), dtype=np.int32)
        neuron_of_used[order] = np.arange(len(used)) - np.repeat(np.cumsum(sizes) - sizes, sizes)

        def numbered(values: NDArray[np.int32], neurons_n: Ids) -> NDArray[np.int32]:
            table = np.full(len(self._neurons) + 1, NONE, dtype=np.int32)
            table[used] = values
            return table[neurons_n]  # -1, no neuron, reads the last entry

        ends = numbered(part_of_used, self.find(outputs))
        return NetworkMap(
            tuple(Part(name, int(size)) for name, size in zip(names, sizes, strict=True)),
            tensors,
            numbered(part_of_used, into_n),
            numbered(neuron_of_used, into_n),
            numbered(part_of_used, source_n),
            numbered(neuron_of_used, source_n),
            _alias(names, ends),
        )

    def _marked(self, tensor: TensorSpec) -> TensorSpec:
        if tensor.name not in self.unsliceable:
            return tensor
        reason, module = self.unsliceable[tensor.name]
        return replace(tensor, unsliceable=reason, module=module)

    def _parts(self, used: Ids) -> tuple[NDArray[np.int32], list[str]]:
        """Return the part of each used neuron, and the names of the parts in order of creation.

        All names under which a united neuron was created become one part, which keeps the first name.
        """
        root = self.find(np.arange(len(self._neurons)))
        births = Forest()
        births.grow(len(self._births))
        alive = np.isin(root, used)
        births.unite(self._birth[alive], self._birth[root[alive]])
        firsts, part_of_used = np.unique(births.find(self._birth[used]), return_inverse=True)
        names = list(self._births)
        return part_of_used.astype(np.int32), [names[first] for first in firsts]


def _alias(names: Sequence[str], ends: NDArray[np.int32]) -> Mapping[str, str]:
    """Return the alias `output` if the final output is one part and no part has that name."""
    found = np.unique(ends)
    if len(found) != 1 or found[0] < 0 or "output" in names:
        return {}
    return {"output": names[found[0]]}
