"""Averaging groups: from a federation's partial models to who averages what with whom, and one peer's part of it.

A plan speaks of all peers. A peer knows its own network and a list of ids, which changes as peers come and go; it
compiles a plan of its own (a tenth of a second for 300,000 parameters, however many peers). Peers whose networks differ
compile with their own, and compare the groups' digests when they meet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedpeer.algorithms.contract import Method
from fedpeer.algorithms.draws import Draws
from fedpeer.config.choice import call_choice
from fedpeer.config.settings import FederationSettings, GossipSettings
from fedpeer.gossip.averaging import Averaging
from fedpeer.gossip.noise import PHASES, Noise
from fedpeer.slicing.assign import assign_all
from fedpeer.slicing.models import LOCAL, ModelGraph, PartialModel
from fedpeer.slicing.network import NetworkMap
from fedpeer.slicing.plan import Plan, compile_plan, widened
from fedpeer.topology.graphs import GRAPHS, TopologyError
from fedpeer.topology.overlay import overlay, overlay_mistakes

_Settings = TypeVar("_Settings", bound=FederationSettings)

#: The paper's averaging level 80 of 784-300-100-10 (partial averaging 2021, section V.1); other sizes: four fifths.
_LEVEL_80 = {300: 250, 100: 80}


def default_models(network: NetworkMap) -> tuple[PartialModel, ...]:
    """For a federation that names no partial models: one global model with all inputs, outputs and most of the hidden
    neurons, and every module that cannot be sliced."""
    ends = {"input", network.aliases.get("output", "output")}
    neurons: dict[str, Any] = {
        part.name: "all" if part.name in ends else _LEVEL_80.get(part.size, round(0.8 * part.size))
        for part in network.parts
    }
    whole = dict.fromkeys(tensor.name for tensor in network.tensors if tensor.unsliceable)
    return (PartialModel("everyone", (), neurons, tuple(whole)),)


def enrolled(federation: _Settings, models: Mapping[str, Sequence[str] | None]) -> _Settings:
    """The federation with its partial models' members as a roster has them.

    `models` says for each peer of the roster which partial models it implements; None: those that the file gives it. A
    peer that the file names and the roster does not (it was put out) is left out, one that came by invitation comes in.
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


def plan_for(federation: FederationSettings, network: NetworkMap, peers: Sequence[str], method: Method) -> Plan:
    """Who averages what under this method, from the network alone, before there is any data."""
    models: tuple[PartialModel, ...] = ()
    if method.sharing == "everything":
        models = (PartialModel("everyone", (), "all"),)
    elif method.sharing == "partial models":
        models = federation.models() if federation.partial_models else default_models(network)
    elif method.models is not None:
        models = method.models(network)
    if federation.learning.buffers == "local":
        models = _with_local_norms(models, network)
    networks = dict.fromkeys(peers, network)
    graph = ModelGraph(models)
    plan = compile_plan(networks, graph, assign_all(networks, graph), cross_model=method.cross_model)
    return widened(plan, method.vectors, network.n)


def _with_local_norms(models: tuple[PartialModel, ...], network: NetworkMap) -> tuple[PartialModel, ...]:
    """Normalisation with running statistics, scale and shift included, is each peer's own (FedBN, Li et al. 2021)."""
    norms = dict.fromkeys(tensor.module for tensor in network.tensors if tensor.kind == "buffer")
    before = {module: None for model in models if model.name == LOCAL for module in model.modules}
    private = PartialModel(LOCAL, modules=(*before, *(norm for norm in norms if norm not in before)))
    return (*(model for model in models if model.name != LOCAL), private) if private.modules else models


def averaging_of(plan: Plan, federation: FederationSettings, seed: int) -> dict[str, Averaging]:
    """How each group of a plan averages.

    Raises:
        TopologyError: the topology does not fit the peers, or takes too many exchanges.
    """
    gossip = federation.gossip
    settings = call_choice(gossip.topology, GRAPHS, "topology").keywords
    chosen = gossip.topology != GossipSettings().topology  # the default fits itself to a few peers without a word
    mistakes = overlay_mistakes(gossip.topology.name, settings, plan.peers) if chosen and plan.groups else []
    if mistakes:
        raise TopologyError("; ".join(mistakes))
    return {group.id: averaging_among(group.members, group.id, gossip, seed) for group in plan.groups}


def noise_of(gossip: GossipSettings) -> Noise | None:
    """The phase that each averaging begins with; None: none.

    Raises:
        ChoiceError, NoiseError: unknown name or setting, or one out of its range.
    """
    noise: Noise | None = call_choice(gossip.privacy, PHASES, "privacy of gossip")()
    return noise


def averaging_among(members: Sequence[str], group: str, gossip: GossipSettings, seed: int) -> Averaging:
    """How these members of one group average: their overlay drawn from the stream (seed, "overlay", group).

    Raises TopologyError where the federation's own edges do not hold them together.
    """
    draws, noise = Draws(seed), noise_of(gossip)

    def matching(number: int, exchange: int) -> np.random.Generator:
        return draws.numpy(f"matching {exchange}", group, number)

    try:
        drawn = overlay(call_choice(gossip.topology, GRAPHS, "topology"), members, draws.numpy("overlay", group))
    except TopologyError as error:
        raise TopologyError(f'in the averaging group "{group}" {error}') from None
    return Averaging.of(
        drawn,
        gossip.protocol,
        tolerance=gossip.tolerance if gossip.exchanges is None else None,
        exchanges=gossip.exchanges,
        every=gossip.every,
        noise=noise,
        drift=gossip.drift,
        draws=matching,
    )


@dataclass(frozen=True, eq=False)
class PeerGroup:
    """One averaging group, as one of its members has it.

    members    ids in the order of the plan's peers, the peer itself among them
    length     D
    index_D    (D,) int64, in canonical order: where its scalars lie in the peer's x_n
    digest     (32 bytes) of what the scalars are; two peers that agree on it may average
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
    """The peer's part of a plan. The arrays are the plan's own, not copies."""
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
