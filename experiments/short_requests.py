"""Short forms of requests for the definitions of experiments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpeer.config.choice import parse_choice
from fedpeer.config.federation import Federation
from fedpeer.config.settings import EngineName
from fedpeer.experiments.experiment import RunSize
from fedpeer.sims.request import SimulationRequest

#: Evaluations per run, the last round included: test sets are large, and the last round counts.
_EVALUATIONS = 10


def experiment_options(
    method: str,
    size: RunSize,
    *,
    learning: Mapping[str, Any],
    simulation: Mapping[str, Any],
    network: str | None = None,
    partial_models: Mapping[str, Any] | None = None,
    gossip: Mapping[str, Any] | None = None,
    evaluations: int = _EVALUATIONS,
    engine: EngineName = "vector",
    faults: str = "",
) -> SimulationRequest:
    """Return the request of one method at a size; mappings are as in a federation file, the rest as options."""
    rounds = learning.get("rounds", size.rounds)
    federation = {
        "name": "experiment",
        **({} if network is None else {"network": network}),
        **({} if partial_models is None else {"partial_models": partial_models}),
        **({} if gossip is None else {"gossip": gossip}),
        "learning": {"rounds": rounds, "evaluate_every": max(1, rounds // evaluations), **learning},
        "simulation": {**({} if size.peers is None else {"peers": size.peers}), **simulation},
    }
    return SimulationRequest(
        federation=Federation.model_validate(federation),
        methods=(parse_choice(method),),
        seeds=tuple(range(size.seeds)),
        engine=engine,
        faults=faults,
    )


def passes(size: RunSize, batch: int) -> dict[str, Any]:
    """Return the `learning` settings of a round of the size's passes over a peer's examples, in batches."""
    return {"steps_between_averaging": "pass", "passes": size.passes, "batch_size": batch}
