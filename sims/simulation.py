"""A simulation that is ready to run; `prepare.py` makes one of a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedpeer.data.dataset import Dataset
from fedpeer.sims.network.faults import Faults
from fedpeer.sims.request import SimulationRequest
from fedpeer.sims.vector.workspace import Job
from fedpeer.sims.world import World
from fedpeer.slicing.plan import Plan


@dataclass(frozen=True)
class KeptFiles:
    """What the files of a method hold of a peer.

    own        bytes of what it keeps for itself; beside the parameters, where there is no server
    update     bytes of what it sends to a server
    everyone   whether all train in each round, whoever takes part
    """

    own: int
    update: int = 0
    everyone: bool = True


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """A request with everything it needs.

    objects    what came as a Python object and not by name: "dataset", "module"
    worlds     one a seed: data, split, network
    jobs       one a seed: how the vector engine trains its peers
    faults     what goes wrong in the network engine
    plans      one a method (by its words, such as "partial-averaging,cross_model=true")
    kept       of each method what its files hold of a peer, in the vector engine
    device     where it runs: "cpu", "cuda", "mps"
    """

    request: SimulationRequest
    dataset: Dataset
    objects: Mapping[str, Any]
    worlds: Mapping[int, World]
    jobs: Mapping[int, Job]
    plans: Mapping[str, Plan]
    kept: Mapping[str, KeptFiles]
    device: str
    faults: Faults

    @property
    def resolved(self) -> SimulationRequest:
        """The request with everything filled in that it left open; asked again, it gives the same run."""
        return replace(self.request, federation=self.world.federation, device=self.device)

    @property
    def world(self) -> World:
        """The first seed's."""
        return self.worlds[self.request.seeds[0]]
