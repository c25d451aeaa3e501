"""Averaging groups: which peers average which parameters, for all peers (a plan) and for one.

A peer knows its own network and a list of ids, which changes as peers join and leave; from these it compiles its own
plan of all peers (a tenth of a second for 300,000 parameters, for any number of peers). Peers whose networks differ
compile with their own network, and compare the groups' digests when they connect.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedpeer.algorithms.draws import Draws
from fedpeer.config.choice import Choice, bind_settings, call_choice
from fedpeer.config.methods import method_of
from fedpeer.config.settings import (
    MAX_EXCHANGES,
    FederationSettings,
    GossipSettings,
    PartialModelSettings,
    SliceGossipSettings,
)
from fedpeer.gossip.averaging import Averaging
from fedpeer.gossip.noise import PHASES, Noise
from fedpeer.slicing.assign import LOCAL_INDEX, Assignment, assign_all
from fedpeer.slicing.models import ModelGraph, PartialModel
from fedpeer.slicing.network import NetworkMap, normalization
from fedpeer.slicing.plan import Plan, compile_plan, widened
from fedpeer.topology.graphs import GRAPHS, TopologyError
from fedpeer.topology.overlay import kept_apart, overlay, overlay_mistakes

_Settings = TypeVar("_Settings", bound=FederationSettings)
_Setting = TypeVar("_Setting")

#: Settings of a partial model that hold for its own group alone. The name of a group between two models does not tell
#: how its shares are read and taken (`wire_forms.py`, `node_setup.rules_of`), and each peer decides its own deadline.
_OF_ONE_MODEL = ("wire", "deadline", "mode")
#: The paper's averaging level 80 of 784-300-100-10 (partial averaging 2021, section V.1); other sizes: four fifths.
_LEVEL_80 = {300: 250, 100: 80}


def default_models(network: NetworkMap) -> tuple[PartialModel, ...]:
    """Return the partial models of a federation that names none: one model that all peers share.

    It has all inputs and outputs, most hidden neurons, and every module that cannot be sliced.
    """
    ends = {"input", network.aliases.get("output", "output")}
    neurons: dict[str, Any] = {
        part.name: "all" if part.name in ends else _LEVEL_80.get(part.size, round(0.8 * part.size))
        for part in network.parts
    }
    whole = dict.fromkeys(tensor.name for tensor in network.tensors if tensor.unsliceable)
    return (PartialModel("everyone", (), neurons, tuple(whole)),)


def enrolled(federation: _Settings, models: Mapping[str, Sequence[str] | None]) -> _Settings:
    """Return the federation with the members of its partial models taken from a roster.

    `models` has the partial models that each peer of the roster implements; None: those of the file. Peers that
    only the file names (revoked ones) are left out, peers that joined by invitation are added.
    """

    def members(name: str, written: Sequence[str] | str) -> list[str] | str:
        if written == "all" and all(own is None for own in models.values()):
            return "all"
        return [
            peer
            for peer, own in models.items()
            if (written == "all" or peer in written if own is None else name in own)
        ]

    changed = {
        name: each.model_copy(update={"members": members(name, each.members)})
        for name, each in federation.partial_models.items()
    }
    return federation.model_copy(update={"partial_models": changed})


def plan_for(
    federation: FederationSettings,
    networks: NetworkMap | Mapping[str, NetworkMap],
    peers: Sequence[str],
    algorithm: Choice,
    *,
    me: str | None = None,
) -> Plan:
    """Return the plan of which peers average which parameters under this algorithm, from the networks, without data.

    Args:
        networks: the network that all peers have, or each peer's.
        me: the peer that plans, if it knows its own network only. Peers whose models do not fit that network have
            another one.

    Raises:
        SlicingError: the partial models do not fit the networks.
    """
    if isinstance(networks, NetworkMap):
        networks = dict.fromkeys(peers, networks)
    first, method = networks[peers[0]], method_of(algorithm)
    models: tuple[PartialModel, ...] = ()
    if method.sharing == "everything":
        models = (PartialModel("everyone", (), "all"),)
    elif method.sharing == "partial models":
        models = federation.models() if federation.partial_models else default_models(first)
    elif method.models is not None:
        models = method.models(first)
    graph = ModelGraph(models)
    assignments = assign_all(networks, graph, me)
    if federation.learning.buffers == "local":
        assignments = _with_local_norms(assignments, networks)
    plan = compile_plan(networks, graph, assignments, cross_model=method.cross_model)
    named = method.sharing == "partial models" and bool(federation.partial_models)
    return replace(widened(plan, method.vectors, first.n), named=named)


def _with_local_norms(
    assignments: Mapping[str, Assignment], networks: Mapping[str, NetworkMap]
) -> dict[str, Assignment]:
    """Return the assignments with batch normalisation local to each peer, even if claimed (FedBN, Li et al. 2021).

    Scale and shift are local, too.

    Normalisation without running statistics is averaged like other modules.
    """
    made: dict[int, Assignment] = {}  # peers that share an assignment have the same network, and go on sharing it
    for peer, each in assignments.items():
        if id(each) not in made:
            names, tensors = normalization(networks[peer].tensors), networks[peer].tensors
            own = {at: LOCAL_INDEX for at, tensor in enumerate(tensors) if tensor.name in names}
            made[id(each)] = replace(each, model_of_tensor={**each.model_of_tensor, **own})
    return {peer: made[id(each)] for peer, each in assignments.items()}


def averaging_of(plan: Plan, federation: FederationSettings, seed: int) -> dict[str, Averaging]:
    """Return how each group of a plan averages, by group id.

    Raises:
        TopologyError: the topology does not fit the peers, or takes too many exchanges.
    """
    gossip = federation.gossip
    mistakes = _topology_mistakes(gossip, plan.peers) if plan.groups else []
    for group in plan.groups:
        own = gossip_of(plan, federation, group.id)
        if own.topology != gossip.topology:
            mistakes += [
                f'in the averaging group "{group.id}" {text}' for text in _topology_mistakes(own, group.members)
            ]
    if mistakes:
        raise TopologyError("; ".join(mistakes))
    return {
        group.id: averaging_among(group.members, group.id, gossip_of(plan, federation, group.id), seed)
        for group in plan.groups
    }


def _topology_mistakes(gossip: GossipSettings, peers: Sequence[str]) -> list[str]:
    """Return how a topology does not fit these peers; the default topology adapts to few peers."""
    if gossip.topology == GossipSettings().topology:
        return []
    settings = call_choice(gossip.topology, GRAPHS, "topology").keywords
    return overlay_mistakes(gossip.topology.name, settings, peers)


def said_by_models(
    plan: Plan, federation: FederationSettings, group: str, setting: Callable[[PartialModelSettings], _Setting | None]
) -> _Setting | None:
    """Return the value that a group's partial models have for it, if the user named them and all agree; else None."""
    models = [federation.partial_models.get(name) if plan.named else None for name in group.split("+")]
    found = [None if model is None else setting(model) for model in models]
    return found[0] if all(each == found[0] for each in found) else None


def gossip_of(plan: Plan, federation: FederationSettings, group: str) -> GossipSettings:
    """Return how a group of a plan averages: by its partial model's settings, and for the rest by the federation's.

    A group between two unrelated models (`a+b`) averages by their settings if these are the same, else by the
    federation's; for settings in `_OF_ONE_MODEL` always by the federation's.
    """
    between = dict.fromkeys(_OF_ONE_MODEL if "+" in group else ())
    own = said_by_models(
        plan, federation, group, lambda model: model.gossip and model.gossip.model_copy(update=between)
    )
    if own is None:
        return federation.gossip
    stated = {name: value for name in GossipSettings.model_fields if (value := getattr(own, name, None)) is not None}
    if stated.keys() & {"exchanges", "tolerance"}:  # the federation's own do not count beside them
        stated = {"exchanges": None, "tolerance": None, "max_exchanges": None} | stated
    elif "privacy" in stated and federation.gossip.max_exchanges == MAX_EXCHANGES:
        stated["max_exchanges"] = None  # the default's bound would leave the noise in the average
    return federation.gossip.model_copy(update=stated)


def is_asynchronous(plan: Plan, federation: FederationSettings, group: str) -> bool:
    """Return whether shares of a group are given while peers train, and not in rounds."""
    own = None if "+" in group else said_by_models(plan, federation, group, lambda model: model.gossip)
    mode = federation.learning.mode if own is None or own.mode is None else own.mode
    return mode == "asynchronous"


def longest_deadline(federation: FederationSettings) -> float:
    """Return the longest time in seconds that an exchange of any group waits for a late peer."""
    own = (model.gossip.deadline for model in federation.partial_models.values() if model.gossip is not None)
    return max(federation.gossip.deadline, *(each for each in own if each is not None), 0.0)


def hides_values(federation: FederationSettings) -> bool:
    """Return whether the averagings of some group start with a noise phase."""
    own = (model.gossip.privacy for model in federation.partial_models.values() if model.gossip is not None)
    return any(choice is not None and choice.name != "none" for choice in (federation.gossip.privacy, *own))


def _noise_of(gossip: GossipSettings) -> Noise | None:
    """Return the noise phase with which each averaging starts; None: there is none.

    Raises:
        ChoiceError, NoiseError: unknown name or setting, or one out of its range.
    """
    noise: Noise | None = call_choice(gossip.privacy, PHASES, "privacy of gossip")()
    return noise


def averaging_among(
    members: Sequence[str], group: str, gossip: GossipSettings, seed: int, apart: Collection[str] = ()
) -> Averaging:
    """Return how these members of one group average; their overlay is drawn from the stream (seed, "overlay", group).

    Few edges join two members of `apart`, unless the federation file lists the edges.

    Raises:
        TopologyError: the edges that the federation file lists do not connect the members.
    """
    draws, noise = Draws(seed), _noise_of(gossip)

    def matching(number: int, exchange: int) -> np.random.Generator:
        return draws.numpy(f"matching {exchange}", group, number)

    try:
        drawn = overlay(call_choice(gossip.topology, GRAPHS, "topology"), members, draws.numpy("overlay", group))
    except TopologyError as error:
        raise TopologyError(f'in the averaging group "{group}" {error}') from None
    return Averaging.of(
        drawn if gossip.topology.name == "edges" else kept_apart(drawn, apart),
        gossip.protocol,
        tolerance=gossip.tolerance if gossip.exchanges is None else None,
        exchanges=gossip.exchanges,
        most=gossip.max_exchanges,
        every=gossip.every,
        noise=noise,
        drift=gossip.drift,
        draws=matching,
    )


@dataclass(frozen=True, eq=False)
class PeerGroup:
    """One averaging group as one of its members sees it.

    members    ids in the order of the plan's peers, including the peer itself
    length     D, the number of its scalars
    index_D    (D,) int64, in canonical order: the positions of its scalars in the peer's x_n
    digest     32 bytes that identify the scalars; two peers with the same digest may average
    """

    id: str
    members: tuple[str, ...]
    length: int
    index_D: Tensor
    digest: bytes


@dataclass(frozen=True, eq=False)
class PeerPlan:
    """All groups of one peer, by id."""

    peer: str
    groups: dict[str, PeerGroup]


def peer_plan(plan: Plan, peer: str) -> PeerPlan:
    """Return the peer's part of a plan; the arrays are those of the plan, not copies."""
    groups = {
        group.id: PeerGroup(
            id=group.id,
            members=group.members,
            length=group.length,
            index_D=torch.from_numpy(group.indices[peer]),
            digest=bytes.fromhex(group.digest),
        )
        for group in plan.groups_of(peer)
    }
    return PeerPlan(peer, groups)


def groups_apart(federation: FederationSettings, peers: Mapping[str, Sequence[str] | None]) -> Iterator[str]:
    """Yield why the federation file's own edges do not connect the members of an averaging group.

    Args:
        peers: the partial models that each peer of a roster implements; None: by the federation file.
    """
    method, gossip = method_of(federation.learning.algorithm), federation.gossip
    models = enrolled(federation, peers).partial_models if method.sharing == "partial models" else {}
    for name, model in (models or {"everyone": PartialModelSettings()}).items():
        own = model.gossip or SliceGossipSettings()
        topology, led = own.topology or gossip.topology, (own.protocol or gossip.protocol) == "coordinator"
        if not method.averages or led or topology.name != "edges":
            continue
        members = [*peers] if isinstance(model.members, str) else model.members
        try:
            GRAPHS["edges"](members, np.random.default_rng(0), **bind_settings(topology, GRAPHS["edges"]))
        except TopologyError as error:
            yield f'in the averaging group "{name}" {error}'
