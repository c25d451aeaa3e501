"""The request of a simulation: a federation, methods to compare, seeds. Plain data that the run folder keeps."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from fedpeer.config.choice import Choice, parse_choice
from fedpeer.config.federation import Federation
from fedpeer.config.settings import EngineName, FederationSettings

#: The methods that are compared by default.
DEFAULT_METHODS = ("local", "partial-averaging", "full-averaging")


def default_methods(federation: FederationSettings) -> tuple[Choice, ...]:
    """Return the methods that are compared by default, without full averaging if networks differ.

    An algorithm that the settings name replaces the one of the same name, or else is compared with local.
    """
    usual = DEFAULT_METHODS[:2] if federation.simulation.networks else DEFAULT_METHODS
    if "algorithm" not in federation.learning.model_fields_set:
        return tuple(map(Choice, usual))
    chosen = federation.learning.algorithm
    if chosen.name in usual:
        return tuple(chosen if name == chosen.name else Choice(name) for name in usual)
    return beside_local(chosen)


def beside_local(chosen: Choice) -> tuple[Choice, ...]:
    """Return the methods to compare if one algorithm is chosen: local training and that algorithm."""
    return (chosen,) if chosen.name == "local" else (Choice("local"), chosen)


class MethodSeed(NamedTuple):
    """One method with one seed: a cell of a simulation."""

    method: str
    seed: int


@dataclass(frozen=True, kw_only=True)
class SimulationRequest:
    """The request of one `fedpeer simulate`.

    methods    algorithms to compare, in the order of the table
    seeds      each method runs once with each seed
    device     "cpu", "cuda", "mps" or "auto" (the fastest available)
    workers    worker processes of the vector engine on a CPU; None: one per core, or one per run if whole runs are
               distributed
    faults     the faults of the network engine, as `sims/network/faults.py` reads them; "": none
    address    address of the Ray cluster, HOST:PORT or "auto"; "": a cluster of this machine alone
    shards     shards of the ray engine; None: one per CPU of the cluster for one run; several are distributed whole
    """

    federation: FederationSettings
    methods: tuple[Choice, ...] = tuple(Choice(name) for name in DEFAULT_METHODS)
    seeds: tuple[int, ...] = (0,)
    device: str = "auto"
    workers: int | None = None
    engine: EngineName = "vector"
    faults: str = ""
    address: str = ""
    shards: int | None = None

    @property
    def spread(self) -> bool:
        """True if whole runs are distributed over a Ray cluster: there are several, and no shards were requested."""
        return self.engine == "ray" and self.shards is None and len(self.methods) * len(self.seeds) > 1

    def alone(self, method: Choice, seed: int) -> SimulationRequest:
        """Return the request of a single run for the vector engine, taken from a request with several on Ray.

        The leading process tracks all of them.
        """
        untracked = self.federation.simulation.model_copy(update={"tracking": ()})
        return replace(
            self,
            federation=self.federation.model_copy(update={"simulation": untracked}),
            methods=(method,),
            seeds=(seed,),
            device="cpu",
            workers=self.workers or 1,
            engine="vector",
            address="",
        )

    @property
    def only(self) -> MethodSeed:
        """Method and seed, if there is only one of each."""
        (method,), (seed,) = self.methods, self.seeds
        return MethodSeed(str(method), seed)

    def to_json(self) -> dict[str, Any]:
        """Return plain data for `settings.json`; `from_json` makes an equal request of it."""
        cluster = {"address": self.address, "shards": self.shards} if self.engine == "ray" else {}
        return {
            "federation": self.federation.model_dump(mode="json"),
            "methods": [str(method) for method in self.methods],
            "seeds": list(self.seeds),
            "device": self.device,
            "workers": self.workers,
            "engine": self.engine,
            "faults": self.faults,
            **cluster,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> SimulationRequest:
        return cls(
            federation=Federation.stored(data["federation"]),
            methods=tuple(parse_choice(text) for text in data["methods"]),
            seeds=tuple(data["seeds"]),
            device=data["device"],
            workers=data["workers"],
            engine=data["engine"],
            faults=data["faults"],
            address=data.get("address", ""),  # stored for the ray engine only
            shards=data.get("shards"),
        )


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
