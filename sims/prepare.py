"""From a request to a simulation that is ready to run: everything a user can have got wrong is found here.

Data is loaded, networks are built and traced, plans compiled and graphs drawn before a run folder exists, so that a
mistake leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import nn

from fedpeer.data.dataset import Dataset
from fedpeer.peer.core.choice import ChoiceError
from fedpeer.peer.core.groups import averaging_of, method_of
from fedpeer.peer.device import device_of
from fedpeer.peer.holdings import load_dataset
from fedpeer.sims.memory import job_of
from fedpeer.sims.request import SimulationRequest
from fedpeer.sims.vector.workspace import Job
from fedpeer.sims.world import World, build, plan_of
from fedpeer.slicing.plan import Plan


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
    _check_engine(request)
    device = device_of(request.device)
    found = dataset or load_dataset(request.federation.simulation.dataset)
    worlds = {seed: build(request.federation, found, seed, module) for seed in request.seeds}
    first = worlds[request.seeds[0]]
    plans = {str(method): plan_of(first, method_of(method)) for method in request.methods}
    for plan in plans.values():
        averaging_of(plan, request.federation, request.seeds[0])
    jobs = {seed: job_of(world, device) for seed, world in worlds.items()}
    return Simulation(request=request, dataset=found, worlds=worlds, jobs=jobs, plans=plans, device=device)


def _check_engine(request: SimulationRequest) -> None:
    """Refuse what this engine, whose rounds are products of matrices, cannot play."""
    learning, wire = request.federation.learning, "/".join(map(str, request.federation.gossip.wire))
    asked = [f"learning.mode = {learning.mode}"] if learning.mode != "synchronous" else []
    asked += [f"gossip.wire = {wire}"] if wire != "float32" else []
    if asked:
        raise ChoiceError(f"the vector engine does not play {' and '.join(asked)}; use --engine network")
