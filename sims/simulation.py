"""A simulation that is ready to run, as `prepare.py` makes it from a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedpeer.algorithms.answer_metrics import AnswerMetric
from fedpeer.data.dataset import Dataset
from fedpeer.sims.network.faults import Faults
from fedpeer.sims.request import MethodSeed, SimulationRequest
from fedpeer.sims.vector.workspace import Job
from fedpeer.sims.world import World
from fedpeer.slicing.plan import Plan


@dataclass(frozen=True)
class KeptFiles:
    """The size of one peer's states in the files of a method.

    own          bytes of the state that the peer keeps; without a server, the averaged parameters come on top
    update       bytes of its update for a server; 0 without a server
    everyone     whether all peers train in each round, not only the participants
    has_server   whether there is a server
    """

    own: int
    update: int = 0
    everyone: bool = True
    has_server: bool = False


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """A request with everything needed to run it.

    objects    the inputs given as Python objects, not by name: "dataset", "module", "code"
    worlds     by seed: data, split, network
    jobs       by seed: how the vector engine trains the peers
    faults     the faults of the network engine
    plans      by method as written, such as "partial-averaging,cross_model=true"
    kept       by method: the size of one peer's states in the vector engine's files
    device     the device it runs on: "cpu", "cuda", "mps"
    metrics    by method: the metrics of the last models' answers, by name
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
    metrics: Mapping[str, Mapping[str, AnswerMetric]]

    @property
    def resolved(self) -> SimulationRequest:
        """The request with all open settings filled in; running it again gives the same run."""
        return replace(self.request, federation=self.world.federation, device=self.device)

    @property
    def cells(self) -> list[MethodSeed]:
        """All cells, in the order in which they run."""
        return [MethodSeed(method, seed) for seed in self.request.seeds for method in self.plans]

    @property
    def world(self) -> World:
        """The world of the first seed."""
        return self.worlds[self.request.seeds[0]]
