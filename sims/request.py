"""What is asked of a simulation: a federation, methods to compare, seeds; plain data that a run folder keeps."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from fedpeer.config.choice import Choice, parse_choice
from fedpeer.config.federation import Federation
from fedpeer.config.settings import EngineName, FederationSettings

#: What is compared when nobody says otherwise.
DEFAULT_METHODS = ("local", "partial-averaging", "full-averaging")


@dataclass(frozen=True, kw_only=True)
class SimulationRequest:
    """One `fedpeer simulate`.

    methods    algorithms to compare, in the order of the table
    seeds      one run of each method a seed
    device     "cpu", "cuda", "mps" or "auto" (the fastest there is)
    workers    worker processes of the vector engine on a CPU; None: one a core, or one where runs are spread
    faults     what goes wrong in the network engine, as `sims/network/faults.py` reads it; "" for nothing
    address    of the Ray cluster, HOST:PORT or "auto"; "" for one of this machine alone
    shards     of the ray engine; None: one a CPU of the cluster, or whole runs are spread
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
        """Whether whole runs are spread over a Ray cluster: there are several, and nobody asked for shards."""
        return self.engine == "ray" and self.shards is None and len(self.methods) * len(self.seeds) > 1

    def alone(self, method: Choice, seed: int) -> SimulationRequest:
        """One run of a spread request, as the vector engine plays it."""
        return replace(
            self,
            methods=(method,),
            seeds=(seed,),
            device="cpu",
            workers=self.workers or 1,
            engine="vector",
            address="",
        )

    @property
    def only(self) -> tuple[str, int]:
        """Method and seed of a request that has one of each."""
        (method,), (seed,) = self.methods, self.seeds
        return str(method), seed

    def to_json(self) -> dict[str, Any]:
        """Plain data for `settings.json`; `from_json` gives an equal request back."""
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
            address=data.get("address", ""),  # of a Ray cluster only
            shards=data.get("shards"),
        )


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
