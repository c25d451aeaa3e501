"""From a request to a simulation that is ready to run: everything a user can have got wrong is found here.

Data is loaded, networks are built and traced, plans compiled and graphs drawn before a run folder exists, so that a
mistake leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import nn

from fedpeer.algorithms.draws import Draws
from fedpeer.data.dataset import Dataset
from fedpeer.gossip.averaging import Averaging
from fedpeer.peer.core.choice import bind, lookup
from fedpeer.peer.core.federation import Federation, GossipSettings
from fedpeer.sims.memory import job_of
from fedpeer.sims.request import SimulationRequest
from fedpeer.sims.vector.workspace import Job
from fedpeer.sims.world import World, build, load_dataset, method_of, plan_of
from fedpeer.slicing.plan import Plan
from fedpeer.topology.graphs import GRAPHS, TopologyError
from fedpeer.topology.overlay import overlay, problems


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """A request with everything it needs.

    worlds     one a seed: data, split, network
    jobs       one a seed: how its peers are trained
    plans      one a method (by its words, such as "partial-averaging,cross_model=true")
    device     where it runs: "cpu", "cuda", "mps"
    """

    request: SimulationRequest
    dataset: Dataset
    worlds: Mapping[int, World]
    jobs: Mapping[int, Job]
    plans: Mapping[str, Plan]
    device: str

    @property
    def resolved(self) -> SimulationRequest:
        """The request with everything filled in that it left open; asked again, it gives the same run."""
        return replace(self.request, federation=self.world.federation, device=self.device)

    @property
    def world(self) -> World:
        """The first seed's."""
        return self.worlds[self.request.seeds[0]]


def prepare(
    request: SimulationRequest, *, dataset: Dataset | None = None, module: nn.Module | None = None
) -> Simulation:
    """Load, build, trace, compile. `dataset` and `module` stand in for what the federation names.

    Raises:
        DataError, NetworkError, SlicingError, TopologyError, ChoiceError, OptimizerError, DeviceError: the user's
            mistakes, with the place and the way out.
    """
    device = device_of(request.device)
    found = dataset or load_dataset(request.federation.simulation.dataset)
    worlds = {seed: build(request.federation, found, seed, module) for seed in request.seeds}
    first = worlds[request.seeds[0]]
    plans = {str(method): plan_of(first, method_of(method)) for method in request.methods}
    for plan in plans.values():
        averaging_of(plan, request.federation, request.seeds[0])
    jobs = {seed: job_of(world, device) for seed, world in worlds.items()}
    return Simulation(request=request, dataset=found, worlds=worlds, jobs=jobs, plans=plans, device=device)


def averaging_of(plan: Plan, federation: Federation, seed: int) -> dict[str, Averaging]:
    """How each group of a plan averages: its overlay drawn from the stream (seed, "overlay", group)."""
    gossip = federation.gossip
    function = lookup(gossip.topology, GRAPHS, "topology")
    settings = bind(gossip.topology, function)
    chosen = gossip.topology != GossipSettings().topology  # the default fits itself to a few peers without a word
    mistakes = problems(gossip.topology.name, settings, plan.peers) if chosen and plan.groups else []
    if mistakes:
        raise TopologyError("; ".join(mistakes))
    graph = partial(function, **settings)
    draws = Draws(seed)

    def matching(group: str) -> Callable[[int, int], np.random.Generator]:
        return lambda number, exchange: draws.numpy(f"matching {exchange}", group, number)

    return {
        group.id: Averaging.of(
            overlay(graph, group.members, draws.numpy("overlay", group.id)),
            gossip.protocol,
            tolerance=gossip.tolerance if gossip.exchanges is None else None,
            exchanges=gossip.exchanges,
            draws=matching(group.id),
        )
        for group in plan.groups
    }


class DeviceError(ValueError):
    """The device asked for is not there."""


def device_of(name: str) -> str:
    """`auto` is the fastest there is; a device that is not there is the user's mistake."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return next(each for each in ("cuda", "mps", "cpu") if available[each])
    if not available.get(name.split(":")[0], False):
        here = ", ".join(each for each, there in available.items() if there)
        raise DeviceError(f"there is no {name} device here; choose auto or {here}")
    return name
