"""Partial models and the dependency DAG between them.

A partial model claims neurons (or whole modules) of every peer that implements it. Dependencies are a strict partial
order (written `a -> b`: a depends on b), and a peer that implements a model also implements all models that it depends
on. This module knows names only: no network, no array, no torch, so that a federation file is checked quickly.
`model_mistakes` collects all mistakes at once; `ModelGraph` raises them as one `SlicingError`.

Source: Bouchra Pilet, Frey and Taiani, Simple, Efficient and Convenient Decentralized Multi-Task Learning for Neural
Networks, IDA 2021, section II.3 and appendix A.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import networkx as nx

#: Neurons of one part: a number of neurons, all free neurons, or exactly these indices.
NeuronClaim = int | Literal["all"] | tuple[int, ...]

#: Name for modules and parameters that are declared local, as unsliceable ones must be; everything else that no model
#: claims is local anyway.
LOCAL = "local"

#: Separators of models in the id of an averaging group.
_RESERVED_CHARACTERS = "&+"


class SlicingError(ValueError):
    """The user's partial models or slices are invalid; the message names the place, the problem and the way out."""


@dataclass(frozen=True)
class ModelMistake:
    """One mistake: its place, such as `partial_models.ward-a.depends_on`, and the problem with the way out."""

    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


@dataclass(frozen=True)
class PartialModel:
    """A model that some peers have in common, as a slice of each peer's network.

    Attributes:
        name: unique among the models; `local` is reserved (see `LOCAL`).
        depends_on: names of models; the models that these depend on are included.
        neurons: for each part (or `output`, the part that ends the network), or for a pattern of parts' names such as
            "*.lora_A", a `NeuronClaim`; "all": all free neurons of every part and every module.
        modules: dotted names of modules, or single parameters, that the model owns whole, or patterns such as "*.norm".
        parameters: names of parameters that the model owns whole, or patterns such as "*.bias"; they take precedence
            over modules, and modules over neurons.
        members: ids of the peers that implement the model.
    """

    name: str
    depends_on: tuple[str, ...] = ()
    neurons: Mapping[str, NeuronClaim] | Literal["all"] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    members: tuple[str, ...] | Literal["all"] = "all"
    parameters: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """The model's key in the federation file."""
        return f"partial_models.{self.name}"

    def implemented_by(self, peer: str) -> bool:
        return self.members == "all" or peer in self.members


def nearest_model(name: str, known: Collection[str]) -> str:
    """Return `did you mean "x"?` if a known name is similar, else the list of known names."""
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f'did you mean "{near[0]}"?' if near else "known: " + (", ".join(sorted(known)) or "none")


def model_mistakes(models: Iterable[PartialModel], peers: Sequence[str] | None = None) -> list[ModelMistake]:
    """Return all mistakes in the models and, if peers are given, in their members.

    Members are compared with the peers only if everything else is valid: the comparison needs the closure of the
    dependencies.
    """
    models = tuple(models)
    found = [*_name_problems(models), *_dependency_problems(models), *_unimplemented(models)]
    return found or (_member_problems(models, peers) if peers is not None else [])


def _name_problems(models: tuple[PartialModel, ...]) -> list[ModelMistake]:
    found = []
    for name, times in Counter(model.name for model in models).items():
        place = f"partial_models.{name}"
        if not name.strip():
            found.append(ModelMistake("partial_models", "a partial model has an empty name; give it one"))
        if any(character in name for character in _RESERVED_CHARACTERS):
            found.append(
                ModelMistake(place, "& and + separate models in the ids of groups; use other characters in names")
            )
        if times > 1:
            found.append(ModelMistake(place, f"{times} partial models have this name; give each its own"))
    return found + [
        ModelMistake(model.place, f'"{LOCAL}" is reserved for what stays local; give it only modules and parameters')
        for model in models
        if model.name == LOCAL and (model.depends_on or model.neurons or model.members != "all")
    ]


def _dependency_problems(models: tuple[PartialModel, ...]) -> list[ModelMistake]:
    known = {model.name for model in models} - {LOCAL}
    found = []
    for model in models:
        for name in model.depends_on:
            if name == LOCAL:
                found.append(
                    ModelMistake(f"{model.place}.depends_on", f'no model can depend on "{LOCAL}"; leave it out')
                )
            elif name not in known:
                found.append(
                    ModelMistake(
                        f"{model.place}.depends_on",
                        f'"{name}" is not a partial model here; {nearest_model(name, known)}',
                    )
                )
    return found + [
        ModelMistake(
            f"partial_models.{cycle[0]}.depends_on",
            f"{' -> '.join([*cycle, cycle[0]])} is a cycle; no model can depend on itself, so remove one dependency",
        )
        for cycle in _cycles(models)
    ]


def _cycles(models: tuple[PartialModel, ...]) -> list[list[str]]:
    """Return one cycle for each strongly connected set of models, starting at its smallest name."""
    import networkx as nx

    graph = _arrows(models)
    knots = sorted(sorted(knot) for knot in nx.strongly_connected_components(graph))
    return [
        [a for a, _ in nx.find_cycle(graph.subgraph(knot), knot[0])]
        for knot in knots
        if len(knot) > 1 or graph.has_edge(knot[0], knot[0])
    ]


def _unimplemented(models: tuple[PartialModel, ...]) -> list[ModelMistake]:
    """Return a mistake for each model with an empty list of members: it would silently not be averaged."""
    text = "the list is empty, so nobody averages this model; name its peers, write all, or leave the model out"
    return [
        ModelMistake(f"{model.place}.members", text)
        for model in models
        if model.members != "all" and not model.members and model.name != LOCAL
    ]


def _member_problems(models: tuple[PartialModel, ...], peers: Sequence[str]) -> list[ModelMistake]:
    graph, known = ModelGraph(models), set(peers)
    found = []
    for model in models:
        place = f"{model.place}.members"
        members = peers if model.members == "all" else model.members
        for peer, times in Counter(members).items():
            if peer not in known:
                found.append(ModelMistake(place, f'"{peer}" is not a peer here; {nearest_model(peer, known)}'))
            elif times > 1:
                found.append(ModelMistake(place, f'"{peer}" is listed {times} times; list it once'))
        lacking: dict[str, list[str]] = {}
        for peer in members:
            for name in model.depends_on:
                chain = graph.missing(peer, model.name, name) if peer in known else None
                if chain:
                    lacking.setdefault(chain, []).append(peer)
        for chain, who in lacking.items():
            end = chain.rsplit(" -> ", 1)[-1]
            others = f" (and {len(who) - 1} more peers)" if len(who) > 1 else ""
            found.append(
                ModelMistake(
                    place,
                    f"{who[0]}{others} implements {chain} but is not a member of {end}; "
                    f"add it to the members of {end}, or remove it here",
                )
            )
    return found


def _arrows(models: Iterable[PartialModel]) -> nx.DiGraph:
    import networkx as nx  # late: a fifth of a second, and workers of a simulation do not need it

    graph = nx.DiGraph()
    for model in models:
        graph.add_node(model.name)
        graph.add_edges_from((model.name, name) for name in model.depends_on)
    return graph


class ModelGraph:
    """The strict partial order of the partial models (without `local`, which is not one).

    Raises:
        SlicingError: a cycle, an unknown or a repeated name; the message has one line for each and shows cycles.
    """

    def __init__(self, models: Iterable[PartialModel]) -> None:
        import networkx as nx

        given = tuple(models)
        _refuse([*_name_problems(given), *_dependency_problems(given)])
        self._arrows = _arrows(model for model in given if model.name != LOCAL)
        self._closure = {name: frozenset(nx.descendants(self._arrows, name)) for name in self._arrows}
        #: Names in topological order, dependencies first, whatever the order in which the models are listed.
        self.order: tuple[str, ...] = tuple(nx.lexicographical_topological_sort(self._arrows.reverse()))
        by_name = {model.name: model for model in given}
        self.models: Mapping[str, PartialModel] = {name: by_name[name] for name in self.order}
        #: The modules and parameters that the user declared local.
        self.local = by_name.get(LOCAL, PartialModel(LOCAL))

    def closure(self, name: str) -> frozenset[str]:
        """Return all models on which this one depends, directly or through others."""
        return self._closure[name]

    def depends(self, a: str, b: str) -> bool:
        """Return whether a depends on b (a < b in appendix A)."""
        return b in self._closure[a]

    def reduced(self, names: Iterable[str]) -> frozenset[str]:
        """Return R of appendix A: the names on which no other of the names depends."""
        names = frozenset(names)
        return names - frozenset[str]().union(*(self._closure[name] for name in names))

    def edges(self) -> tuple[tuple[str, str], ...]:
        """Return the declared dependencies, sorted; (a, b) means that a depends on b."""
        return tuple(sorted(self._arrows.edges))

    def implemented(self, peer: str) -> tuple[str, ...]:
        """Return the models that the peer implements, in canonical order."""
        return tuple(name for name, model in self.models.items() if model.implemented_by(peer))

    def implementers(self, peers: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Return the peers that implement each model, in the order of `peers`.

        Raises:
            SlicingError: an unknown member, or a peer that implements a model but not all that it depends on.
        """
        _refuse(_member_problems(tuple(self.models.values()), peers))
        return {
            name: tuple(peer for peer in peers if model.implemented_by(peer)) for name, model in self.models.items()
        }

    def missing(self, peer: str, name: str, through: str) -> str | None:
        """Return the chain `name -> through -> ... -> x` to the first model x that the peer lacks, or None."""
        chain = [name, through]
        while self.models[chain[-1]].implemented_by(peer):
            ahead = [each for each in sorted(self._arrows.successors(chain[-1])) if not self._complete(peer, each)]
            if not ahead:
                return None
            chain.append(ahead[0])
        return " -> ".join(chain)

    def _complete(self, peer: str, name: str) -> bool:
        return all(self.models[each].implemented_by(peer) for each in {name, *self._closure[name]})


def _refuse(found: Sequence[ModelMistake]) -> None:
    if found:
        raise SlicingError("\n".join(map(str, found)))
