"""The compiled plan: for each averaging group, which scalars of each peer's flat vector are averaged together.

Every scalar pi has the models M(pi) of its neurons and the reduced set R(pi) of appendix A. If R(pi) has one model, the
scalar is averaged among the peers that implement it (Algorithm 1). If R(pi) has several unrelated models, the scalar is
local, or, with `cross_model`, averaged among the peers that implement all of them (Algorithm 2). A scalar that touches
a neuron of no model is local. Within a group the scalars are in a canonical order (part, neuron's index in its slice,
source of the weight, tensor, place), which is the same on every peer whatever the size and the offsets of its network.

numpy only. Each distinct (network, assignment) is compiled once, and peers with the same two share the arrays.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, zip_longest

import numpy as np
from numpy.typing import NDArray

from fedpeer.slicing.assign import LOCAL_INDEX, Assignment, assign_all
from fedpeer.slicing.models import LOCAL, ModelGraph, SlicingError
from fedpeer.slicing.network import NetworkMap

Indices = NDArray[np.int64]
#: Peers of one kind have the same network, the same assignment and the same models.
_Kind = tuple[int, int, tuple[str, ...]]


@dataclass(frozen=True, eq=False)
class Group:
    """Scalars that are averaged together; gossip, the wire and checkpoints see an id and a vector (D,).

    Attributes:
        id: the model's name, or `a+b` for the weights between two unrelated models.
        models: the models' names, sorted.
        members: ids of the peers that take part, two or more, in the order of the plan's peers.
        length: D; 0 if the networks of all members are unknown.
        indices: (D,) int64 into the flat vector of each member whose network is known; the order of scalars is the same
            for all members.
        digest: hex BLAKE2b of the identities of the D scalars; two peers with the same digest may average.
    """

    id: str
    models: tuple[str, ...]
    members: tuple[str, ...]
    length: int
    indices: Mapping[str, Indices]
    digest: str


@dataclass(frozen=True, eq=False)
class Plan:
    """All averaging groups and the local scalars of each peer: every scalar is in exactly one group or in `local`.

    Attributes:
        peers: ids of all peers.
        groups: averaging groups in canonical order.
        local: int64 indices into the flat vector of each peer whose network is known.
        graph, assignments: the inputs of the compilation, kept for drawing.
        vectors: number of vectors that a peer averages; they are concatenated and all cut the same way (`widened`).
        named: whether the user named its models, and so may have set how each of them is averaged.
    """

    peers: tuple[str, ...]
    groups: tuple[Group, ...]
    local: Mapping[str, Indices]
    graph: ModelGraph
    assignments: Mapping[str, Assignment]
    vectors: int = 1
    named: bool = False

    def groups_of(self, peer: str) -> tuple[Group, ...]:
        """Return the groups in which the peer takes part."""
        return tuple(group for group in self.groups if peer in group.indices)

    def unshared(self) -> list[str]:
        """Return a sentence for each model that claims something, and of which its members average nothing."""
        averaged = {name for group in self.groups for name in group.models}
        implementers = self.graph.implementers(self.peers)
        return [
            f'partial model "{name}" averages nothing: each of its weights also touches a neuron of a model that it '
            "does not depend on, or of none, or is frozen; name such models in its depends_on"
            for name, model in self.graph.models.items()
            if name not in averaged
            and len(implementers[name]) > 1
            and (model.neurons or model.modules or model.parameters)
        ]


def compile_plan(
    networks: Mapping[str, NetworkMap],
    graph: ModelGraph,
    assignments: Mapping[str, Assignment] | None = None,
    *,
    cross_model: bool = False,
) -> Plan:
    """Compile the averaging groups of all peers.

    Args:
        networks: each peer's network; peers with equal networks should share one object, so that the work is done once.
        graph: the partial models.
        assignments: each peer's assignment of neurons to models; default: by the models' claims (`assign_all`). The
            network of a peer without one is unknown, and is assumed to have the slices of the other peers.
        cross_model: use Algorithm 2 instead of Algorithm 1.

    Raises:
        SlicingError: mistakes of `implementers` and `assign`; a module that cannot be sliced and that no model claims,
            on a peer that shares neurons; peers whose slices of one model do not have the same shape.
    """
    peers = tuple(networks)
    implementers = graph.implementers(peers)
    assignments = assign_all(networks, graph) if assignments is None else assignments
    kind = {peer: (id(networks[peer]), id(assignments[peer]), graph.implemented(peer)) for peer in assignments}
    one_of_kind = {each: peer for peer, each in kind.items()}
    mistakes = [_unclaimed(networks[peer], assignments[peer]) for peer in one_of_kind.values()]
    if any(mistakes):
        raise SlicingError("\n".join(dict.fromkeys(chain(*mistakes))))
    sliced = {each: _Sliced(networks[peer], graph, assignments[peer]) for each, peer in one_of_kind.items()}

    groups: list[Group] = []
    taken: dict[_Kind, list[Indices]] = {each: [] for each in sliced}
    unknown = [graph.implemented(peer) for peer in peers if peer not in assignments]
    for models in _candidates(graph, sliced.values(), unknown, cross_model):
        members = tuple(peer for peer in peers if all(peer in implementers[model] for model in models))
        if len(members) < 2:
            continue
        slices = {peer: sliced[kind[peer]].under(models) for peer in members if peer in kind}
        if not slices:
            groups.append(Group("+".join(models), models, members, 0, {}, ""))
            continue
        one, first = next(iter(slices.items()))
        for peer, each in slices.items():
            _compare("+".join(models), one, first, peer, each)
        if not len(first.index_D):
            continue
        indices = {peer: each.index_D for peer, each in slices.items()}
        groups.append(Group("+".join(models), models, members, len(first.index_D), indices, first.digest))
        for same in {kind[peer] for peer in slices}:
            taken[same].append(sliced[same].under(models).index_D)

    # Peers of one kind implement the same models, so they have the same groups and the same local scalars.
    local = {each: _rest(networks[peer].n, taken[each]) for each, peer in one_of_kind.items()}
    return Plan(peers, tuple(groups), {peer: local[kind[peer]] for peer in kind}, graph, assignments)


def widened(plan: Plan, vectors: int, n: int) -> Plan:
    """Return the plan for peers that average `vectors` vectors (n,) instead of one, all cut the same way.

    With several vectors all peers have the same network.
    """
    if vectors == 1:
        return plan
    known: dict[int, Indices] = {}

    def wide(index_D: Indices) -> Indices:
        if id(index_D) not in known:
            known[id(index_D)] = np.concatenate([index_D + n * number for number in range(vectors)])
        return known[id(index_D)]

    groups = tuple(
        replace(
            group,
            length=group.length * vectors,
            indices={peer: wide(index_D) for peer, index_D in group.indices.items()},
            digest=hashlib.blake2b(f"{group.digest} {vectors}".encode(), digest_size=32).hexdigest(),
        )
        for group in plan.groups
    )
    local = {peer: wide(index_D) for peer, index_D in plan.local.items()}
    return replace(plan, groups=groups, local=local, vectors=vectors)


def reduced_sets(
    network: NetworkMap, graph: ModelGraph, assignment: Assignment
) -> tuple[NDArray[np.int32], tuple[frozenset[str], ...]]:
    """Return R(pi) of appendix A for each scalar of the flat vector.

    Returns:
        (n,) int32 of indices into the sets, -1 if the scalar touches a neuron of no model; and the sets.
    """
    order = graph.order
    sets: dict[frozenset[str], int] = {frozenset({name}): i for i, name in enumerate(order)}
    table = np.full((len(order) + 1, len(order) + 1), LOCAL_INDEX, dtype=np.int32)  # last row and column: no model
    for i, a in enumerate(order):
        for j, b in enumerate(order):
            table[i, j] = sets.setdefault(graph.reduced((a, b)), len(sets))
    out_n = _of_cells(assignment.model_of_neuron, network.out_part_n, network.out_neuron_n)
    in_n = _of_cells(assignment.model_of_neuron, network.in_part_n, network.in_neuron_n)
    code_n = table[out_n, np.where(network.in_part_n < 0, out_n, in_n)]
    for tensor, model in assignment.model_of_tensor.items():
        code_n[network.tensors[tensor].span] = model
    return code_n, tuple(sets)


def _of_cells(values: tuple[NDArray[np.int32], ...], part_n: NDArray[np.int32], neuron_n: NDArray[np.int32]) -> Indices:
    """Return values[part][neuron] for each scalar, (n,); -1 where there is no neuron."""
    starts = np.cumsum([0, *(len(value) for value in values)])
    flat = np.concatenate([*values, np.full(1, LOCAL_INDEX, dtype=np.int32)])
    return flat[np.where(part_n < 0, len(flat) - 1, starts[part_n] + neuron_n)].astype(np.int64)


def _rest(n: int, taken: list[Indices]) -> Indices:
    free = np.ones(n, dtype=bool)
    for index in taken:
        free[index] = False
    return np.flatnonzero(free)


def _unclaimed(network: NetworkMap, assignment: Assignment) -> list[str]:
    """Return a mistake for each unsliceable module that no model claims whole, if any neurons are shared."""
    if not any((owner != LOCAL_INDEX).any() for owner in assignment.model_of_neuron):
        return []
    modules = {
        tensor.module or tensor.name: tensor.unsliceable
        for at, tensor in enumerate(network.tensors)
        if tensor.unsliceable and tensor.kind == "parameter" and at not in assignment.model_of_tensor
    }
    return [
        f"module {module} cannot be sliced ({reason}); assign it as a whole: write modules: [{module}] in a "
        f"partial model, or {LOCAL}: {{modules: [{module}]}} to keep it local"
        for module, reason in modules.items()
    ]


def _candidates(
    graph: ModelGraph, sliced: Iterable[_Sliced], unknown: Iterable[Iterable[str]], cross_model: bool
) -> list[tuple[str, ...]]:
    """Return the sets of models under which scalars may be averaged, each sorted, single models first.

    For peers whose networks are unknown, the sets are their models.
    """
    sets = {tuple(sorted(models)) for each in sliced for models in each.sets}
    sets |= {(model,) for models in unknown for model in models}
    rank = {name: at for at, name in enumerate(graph.order)}
    chosen = [models for models in sets if len(models) == 1 or cross_model]
    return sorted(chosen, key=lambda models: (len(models), [rank[name] for name in models]))


#: Bits of a key below the number of its name (part or tensor): enough for 2**19 names and for 2**44 scalars in one
#: tensor.
_NAME = 44
#: Bits of a part's key below the model's number, for the index in its slice.
_MODEL = 32


@dataclass(frozen=True, eq=False)
class _Slice:
    """The scalars of one network that are averaged under some models, in canonical order.

    Attributes:
        index_D: their indices in the flat vector.
        keys_3D: for each scalar the neuron that it leads into, the neuron that it comes from, and its tensor and place.
        parts, tensors, models: the names whose indices are in the keys. Only parts and tensors that occur are included,
            so that two peers get equal keys for the scalars that they share, whatever else their networks contain.
        base: digest of the network's frozen parameters: weights trained beside different ones cannot be averaged.
        whole: the model of each tensor of the network that is owned whole, in this slice or another.
    """

    index_D: Indices
    keys_3D: Indices
    parts: tuple[str, ...]
    tensors: tuple[str, ...]
    models: tuple[str, ...]
    base: str
    whole: Mapping[str, str]

    @cached_property
    def digest(self) -> str:
        names = json.dumps([self.parts, self.tensors, self.models, *filter(None, [self.base])])
        hashed = hashlib.blake2b(names.encode(), digest_size=32)
        hashed.update(self.keys_3D.astype("<i8").tobytes())
        return hashed.hexdigest()

    def spelled(self) -> Iterator[str]:
        """Yield a description of each scalar for error messages."""
        for into, source, where in self.keys_3D.T:
            tensor = self.tensors[where >> _NAME]
            ends = [self._neuron(into, "into"), self._neuron(source, "from")]
            place = where & ((1 << _NAME) - 1)
            yield " ".join([tensor, *filter(None, ends), *([f"place {place}"] if place else [])])

    def _neuron(self, key: int, word: str) -> str:
        part, model, index = self.parts[key >> _NAME], (key >> _MODEL) & 0xFFF, key & 0xFFFFFFFF
        return f"{word} {part}[{self.models[model]} {index}]" if part else ""


class _Sliced:
    """The scalars of one (network, assignment), sorted once by the models of their averages, then canonically."""

    def __init__(self, network: NetworkMap, graph: ModelGraph, assignment: Assignment) -> None:
        self.models, self._base = graph.order, network.base
        owned = assignment.model_of_tensor.items()
        self._whole = {network.tensors[at].name: self.models[model] for at, model in owned if model != LOCAL_INDEX}
        assert len(self.models) <= 0xFFF, "the keys of scalars count 4,095 models"
        code_n, self.sets = reduced_sets(network, graph, assignment)
        keys_3n, self.parts, self.tensors = _keys(network, assignment)
        order = np.lexsort((keys_3n[2], keys_3n[1], keys_3n[0], code_n))
        self._index, self._keys = order, keys_3n[:, order]
        self._starts = np.searchsorted(code_n[order], np.arange(len(self.sets) + 1))
        self._slices: dict[tuple[str, ...], _Slice] = {}

    def under(self, models: tuple[str, ...]) -> _Slice:
        """Return the scalars whose reduced set is these models."""
        if models not in self._slices:
            code = self.sets.index(frozenset(models))
            span = slice(self._starts[code], self._starts[code + 1])
            keys_3D = self._keys[:, span].copy()
            parts = _recount(keys_3D[:2], self.parts)
            tensors = _recount(keys_3D[2:], self.tensors)
            self._slices[models] = _Slice(
                self._index[span], keys_3D, parts, tensors, self.models, self._base, self._whole
            )
        return self._slices[models]


def _keys(network: NetworkMap, assignment: Assignment) -> tuple[Indices, tuple[str, ...], tuple[str, ...]]:
    """Return the keys of all scalars, (3, n), and the sorted names of parts and tensors whose indices are in them."""
    parts = ("", *sorted(part.name for part in network.parts))
    rank_of_part = np.array([*(parts.index(part.name) for part in network.parts), 0], dtype=np.int64)

    def neurons(part_n: NDArray[np.int32], neuron_n: NDArray[np.int32]) -> Indices:
        model_n = np.maximum(_of_cells(assignment.model_of_neuron, part_n, neuron_n), 0)
        index_n = np.maximum(_of_cells(assignment.index_in_slice, part_n, neuron_n), 0)
        return rank_of_part[part_n] << _NAME | model_n << _MODEL | index_n

    into_n = neurons(network.out_part_n, network.out_neuron_n)
    source_n = neurons(network.in_part_n, network.in_neuron_n)
    place_n = network.place_n.astype(np.int64)
    spelled = [tensor.name for tensor in network.tensors]
    for at in assignment.model_of_tensor:
        # A tensor owned whole is matched by its name and shape, whatever its neurons; the sort is stable, so its
        # scalars keep their order.
        tensor = network.tensors[at]
        spelled[at] = f"{tensor.name}{list(tensor.shape)}"
        into_n[tensor.span] = source_n[tensor.span] = place_n[tensor.span] = 0
    tensors = tuple(sorted(spelled))
    rank_of_tensor = np.array([tensors.index(name) for name in spelled], dtype=np.int64)
    return np.stack([into_n, source_n, rank_of_tensor[network.tensor_n] << _NAME | place_n]), parts, tensors


def _recount(keys: Indices, names: tuple[str, ...]) -> tuple[str, ...]:
    """Renumber the names in the keys, in place, so that only names that occur have numbers, and return these names."""
    number = keys >> _NAME
    occurs = np.bincount(number.ravel(), minlength=len(names)) > 0
    keys -= (number - (np.cumsum(occurs) - 1)[number]) << _NAME
    return tuple(name for name, used in zip(names, occurs, strict=True) if used)


def _compare(id: str, peer: str, mine: _Slice, other: str, theirs: _Slice) -> None:
    """Raise a `SlicingError` if two peers' slices of the same models are not the same scalars."""
    if mine is theirs or mine.digest == theirs.digest:
        return
    if mine.base != theirs.base:
        raise SlicingError(
            f'{peer} and {other} cannot average "{id}": their frozen parameters differ; begin with the same file '
            "(learning.start: file:MODEL.safetensors), or build the network from the same one"
        )
    nothing = "nothing more"
    pairs = zip_longest(mine.spelled(), theirs.spelled(), fillvalue=nothing)
    a, b = next((a, b) for a, b in pairs if a != b)
    raise SlicingError(
        f'{peer} and {other} cannot average "{id}": their slices have {len(mine.index_D)} and {len(theirs.index_D)} '
        f"scalars, and where {peer} has {a}, {other} has {b}; {_way_out(id, mine, theirs)}"
    )


def _way_out(id: str, mine: _Slice, theirs: _Slice) -> str:
    """Return how two slices become the same: by the members of a model that owns a tensor whole, or by the claims."""
    for tensor, owner in sorted({*mine.whole.items()} ^ {*theirs.whole.items()}):
        if tensor in {*mine.tensors, *theirs.tensors}:
            return f'"{owner}" owns {tensor} whole; give it all members of "{id}" or none, or leave {tensor} out of it'
    return 'claim the same neurons on both (a count instead of "all" if their networks differ in size)'
