"""Assignment of a peer's neurons to partial models (mu of appendix A), and their indices in the models' slices.

Neurons are matched between peers by (model, part, index in the slice), never by position, so two peers may have the
same slice at different places. `assign` follows the claims of the partial models, in an order that does not depend on
the order of their list. No torch, no IO.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedpeer.slicing.models import LOCAL, ModelGraph, NeuronClaim, PartialModel, SlicingError
from fedpeer.slicing.network import Ints, NetworkMap, Part

#: Index in an `Assignment` for neurons and tensors without a partial model, which are therefore local to the peer.
LOCAL_INDEX = -1


@dataclass(frozen=True, eq=False)
class Assignment:
    """The owners of one network's neurons and whole modules.

    Attributes:
        model_of_neuron: for each part of the network (size,) int32, indices into `ModelGraph.order`; -1: local.
        index_in_slice: for each part (size,) int32, 0, 1, ... among the part's neurons of one model.
        model_of_tensor: tensor owned whole -> index into `ModelGraph.order`; -1: declared local.
    """

    model_of_neuron: tuple[Ints, ...]
    index_in_slice: tuple[Ints, ...]
    model_of_tensor: Mapping[int, int]


def assign(network: NetworkMap, graph: ModelGraph, peer: str) -> Assignment:
    """Assign the neurons of one peer's network to the partial models that it implements.

    Explicit indices come first, then counts, which take the lowest free neurons of a part in the canonical order of the
    models, then "all", which takes all remaining neurons.

    Raises:
        SlicingError: an unknown part or module, more neurons than there are, a neuron or a module claimed twice; all
            such mistakes in one message, one a line.
    """
    names = graph.implemented(peer)
    wishes, mistakes = _wishes(network, graph, names)
    owners = [np.full(part.size, LOCAL_INDEX, dtype=np.int32) for part in network.parts]
    indices = [np.zeros(part.size, dtype=np.int32) for part in network.parts]
    for at, part in enumerate(network.parts):
        claims = {name: by_part[at] for name, by_part in wishes.items() if at in by_part}
        mistakes += _share_out(part, claims, graph, owners[at], indices[at])
    tensors, more = _whole_tensors(network, graph, names)
    if mistakes or more:
        raise SlicingError("\n".join([*mistakes, *more]))
    return Assignment(tuple(owners), tuple(indices), tensors)


def assign_all(networks: Mapping[str, NetworkMap], graph: ModelGraph, me: str | None = None) -> dict[str, Assignment]:
    """Assign the neurons of all peers; peers with the same network and the same models share one `Assignment`.

    Args:
        me: the peer that assigns, if it knows its own network only: other peers whose models do not fit it have another
            network, and get no `Assignment`.

    Raises:
        SlicingError: as `assign`; where the peers' networks differ, each line says whose network it is about.
    """
    kind = {peer: (id(network), graph.implemented(peer)) for peer, network in networks.items()}
    one_of_kind = {key: peer for peer, key in reversed(kind.items())}
    differ = len({id(network) for network in networks.values()}) > 1
    known, mistakes = {}, []
    for key, peer in reversed(one_of_kind.items()):
        try:
            known[key] = assign(networks[peer], graph, peer)
        except SlicingError as error:
            if me is not None and kind[me] != key:
                continue
            if not differ:
                raise
            mistakes += [f"{line} (in the network of {peer})" for line in str(error).splitlines()]
    if mistakes:
        raise SlicingError("\n".join(mistakes))
    return {peer: known[key] for peer, key in kind.items() if key in known}


def _wishes(
    network: NetworkMap, graph: ModelGraph, names: Sequence[str]
) -> tuple[dict[str, dict[int, NeuronClaim]], list[str]]:
    """Return each model's claims by the part's index, and the mistakes in the names of parts.

    A part that is claimed by name follows that claim, even if patterns match it, too.
    """
    wishes: dict[str, dict[int, NeuronClaim]] = {}
    mistakes = []
    for name in names:
        claims = graph.models[name].neurons
        if claims == "all":
            wishes[name] = dict.fromkeys(range(len(network.parts)), "all")
            continue
        by_pattern: dict[int, NeuronClaim] = {}
        by_name: dict[int, NeuronClaim] = {}
        for part, claim in claims.items():
            place = f"partial_models.{name}.neurons.{part}"
            try:
                if "*" in part:
                    by_pattern |= dict.fromkeys(network.matching_parts(part), claim)
                    continue
                at = network.part(part)
            except SlicingError as error:
                mistakes.append(f"{place}: {error}")
                continue
            if at in by_name:
                mistakes.append(f'{place}: "{part}" is "{network.parts[at].name}"; name it once')
            by_name[at] = claim
        wishes[name] = {**by_pattern, **by_name}
    return wishes, mistakes


def _share_out(part: Part, claims: Mapping[str, NeuronClaim], graph: ModelGraph, owner: Ints, index: Ints) -> list[str]:
    """Fill in the owners and indices of one part's neurons, in place; return the mistakes."""
    mistakes = []

    def give(name: str, neurons: NDArray[np.int64]) -> None:
        owner[neurons] = graph.order.index(name)
        index[neurons] = np.arange(len(neurons))

    for name, claim in claims.items():
        if not isinstance(claim, tuple):
            continue
        place = f"partial_models.{name}.neurons.{part.name}"
        neurons = np.asarray(claim, dtype=np.int64)
        outside = neurons[(neurons < 0) | (neurons >= part.size)]
        if len(outside):
            mistakes.append(f"{place}: there is no neuron {outside[0]}; {part.name} has 0 to {part.size - 1}")
            continue
        values, times = np.unique(neurons, return_counts=True)
        twice = values[(times > 1) | (owner[values] != LOCAL_INDEX)]
        if len(twice):
            held = owner[twice[0]]
            by = f"{graph.order[held]} too" if held != LOCAL_INDEX else "this list twice"
            mistakes.append(f"{place}: neuron {twice[0]} is claimed by {by}; a neuron can have one model only")
            continue
        give(name, neurons)
    counts = {name: claim for name, claim in claims.items() if isinstance(claim, int)}
    free = np.flatnonzero(owner == LOCAL_INDEX)
    if min(counts.values(), default=0) < 0 or sum(counts.values()) > len(free):
        listed = part.size - len(free)
        wanted = " + ".join(f"{name} {count}" for name, count in counts.items())
        lists = f" ({listed} of them are listed by index)" if listed else ""
        mistakes.append(
            f"partial_models.{next(iter(counts))}.neurons.{part.name}: {wanted} = {sum(counts.values())} neurons are "
            f"claimed, but {part.name} has {part.size}{lists}; claim fewer, and no negative numbers"
        )
        return mistakes
    for name, count in counts.items():
        give(name, free[:count])
        free = free[count:]
    rest = [name for name, claim in claims.items() if claim == "all"]
    if len(rest) > 1:
        mistakes.append(
            f'partial_models.{rest[1]}.neurons: {" and ".join(rest)} both claim "all" of {part.name}; give one a count'
        )
    elif rest:
        give(rest[0], free)
    return mistakes


def _whole_tensors(network: NetworkMap, graph: ModelGraph, names: Sequence[str]) -> tuple[dict[int, int], list[str]]:
    """Return the owners of tensors that are owned whole, and the mistakes.

    Parameters that a model names take precedence over modules. Unsliceable tensors that no model names belong to the
    model that claims "all", if there is one.
    """
    claimants = [(LOCAL_INDEX, graph.local)]
    claimants += [(graph.order.index(name), graph.models[name]) for name in names]
    modules, mistakes = _claimed(network, graph, "modules", claimants)
    parameters, more = _claimed(network, graph, "parameters", claimants)
    owner = {**modules, **parameters}
    everything = [graph.order.index(name) for name in names if graph.models[name].neurons == "all"]
    if everything:
        sliceless = {int(t) for t in np.unique(network.tensor_n[network.out_part_n < 0])}
        owner |= dict.fromkeys(sliceless - owner.keys(), everything[0])
    return owner, [*mistakes, *more]


def _claimed(
    network: NetworkMap,
    graph: ModelGraph,
    key: Literal["modules", "parameters"],
    claimants: Sequence[tuple[int, PartialModel]],
) -> tuple[dict[int, int], list[str]]:
    """Return the owner of each tensor that some model names under `key`, and the mistakes."""
    owner: dict[int, int] = {}
    mistakes = []
    find = network.module_tensors if key == "modules" else network.matching_tensors
    for index, model in claimants:
        place = f"{model.place}.{key}"
        for name in getattr(model, key):
            try:
                tensors = find(name)
            except SlicingError as error:
                mistakes.append(f"{place}: {error}")
                continue
            twice = [tensor for tensor in tensors if owner.setdefault(tensor, index) != index]
            if twice:
                held = owner[twice[0]]
                other = LOCAL if held == LOCAL_INDEX else graph.order[held]
                mistakes.append(
                    f"{place}: {network.tensors[twice[0]].name} is claimed by {other} too; "
                    f"a {key[:-1]} can have one model only"
                )
    return owner, mistakes
