"""What a simulation asks of an engine, and what each of the four cannot play.

An engine holds all peers of one method and seed. The vector engine multiplies matrices, the ray engine spreads that
over a cluster, the network engine plays whole peers in virtual time, the processes engine starts real ones; a
simulation records them all alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, Self

from numpy.typing import NDArray
from torch import Tensor

from fedpeer.config.capacity import crowding
from fedpeer.config.choice import ChoiceError
from fedpeer.config.federation import Federation
from fedpeer.config.methods import method_of
from fedpeer.sims.ray.asked import check_ray
from fedpeer.sims.request import SimulationRequest
from fedpeer.sims.vector.engine import RoundTimes

#: Real peers of one machine: each takes some 100 MB of its own and a share of the cores.
PROCESSES_MAX = 64


class Engine(Protocol):
    """All peers of one method and seed. Entered before the first round; what it holds is let go at the exit.

    round      rounds finished
    weights    push-sum weights of each group's members after it, in units of their mean at the start
    traffic    messages and bytes that each peer sent in it for averaging
    x_Pn       the parameters of all peers at its end, or when they were last evaluated
    """

    round: int

    @property
    def weights(self) -> Mapping[str, NDArray[Any]]: ...
    @property
    def traffic(self) -> tuple[list[int], list[int]]: ...
    @property
    def x_Pn(self) -> Tensor: ...

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...

    def step(self) -> RoundTimes:
        """One round. Raises Stopped, EngineError."""

    def evaluate(self, *, validation: bool = False) -> list[tuple[float, float]]:
        """(score, loss) of each peer on its own test part, or on what was kept back (vector engine)."""

    def evaluate_server(self, *, validation: bool = False) -> list[tuple[float, float]] | None:
        """The same of the server's model, or of what each peer holds for it; None where there is none."""

    def statistics(self) -> dict[str, list[float]]:
        """What an algorithm tells of each peer, when it is evaluated."""

    @property
    def relations_PP(self) -> Tensor | None:
        """How related the peers' tasks are, where an algorithm with a server learns it."""

    def disagreement(self) -> dict[str, float]:
        """Of each group: how far its members are from one another, relative to their norm."""

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What `restore` needs: tensors, and a small JSON-able state."""

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Go on from a snapshot. Its tensors may lie in a file, and must not be written."""


def check(request: SimulationRequest, objects: Sequence[str]) -> None:
    """Refuse what the engine cannot play. `objects` was handed over in Python: "data", "network".

    Raises:
        ChoiceError: the user's mistake, with the way out.
    """
    if request.faults and request.engine != "network":
        raise ChoiceError(f"faults are simulated, and the {request.engine} engine has no network; use --engine network")
    if request.engine != "ray" and (request.address or request.shards):
        raise ChoiceError(
            f"--address and --shards are of a Ray cluster, not of the {request.engine} engine; use --engine ray"
        )
    if request.spread:
        check_ray(request.address, request.device)
        check(replace(request, engine="vector", address="", device="cpu"), objects)
        return
    if request.engine in ("vector", "ray"):
        _check_products(request.federation, request.engine)
    if request.engine == "ray":
        _check_ray(request)
    if request.engine == "vector":
        return
    if request.federation.undecided and any(method_of(each).sharing == "partial models" for each in request.methods):
        text = f"partial_models.{request.federation.undecided[0]}.members: who is alike is found in the vector engine"
        raise ChoiceError(f"{text}; let it find them, and write down the partial models that it leaves")
    if any(method_of(method).pooled for method in request.methods):
        raise ChoiceError("global pools the examples of all peers, and peers do not; use --engine vector")
    if request.engine == "ray":
        return
    served = [str(method) for method in request.methods if method_of(method).served]
    if served and request.federation.learning.mode != "synchronous":
        text = f"{', '.join(served)} goes round by round, with all who take part"
        raise ChoiceError(f"{text}; write learning.mode: synchronous, or compare algorithms of equals")
    keeping = [str(method) for method in request.methods if method_of(method).own_weights]
    if keeping and request.federation.learning.mode != "synchronous":
        text = f"{', '.join(keeping)} begins each averaging anew, by weights of its own"
        raise ChoiceError(f"{text}; write learning.mode: synchronous, or compare other algorithms")
    if request.federation.simulation.validation:
        raise ChoiceError(f"the {request.engine} engine keeps no examples back; leave out simulation.validation")
    for method in request.methods:
        problem = crowding(request.federation.models(), method_of(method))
        if problem is not None:
            raise ChoiceError(f"{problem}; or use --engine vector, in which nothing is said")
    if request.engine == "network" and request.device not in ("auto", "cpu"):
        raise ChoiceError(f"the network engine trains on the cpu; leave out the device {request.device}")
    if request.engine == "processes" and objects:
        raise ChoiceError(
            f"real peers read their data and network themselves, and {' and '.join(objects)} came as a Python object; "
            "write the data into a file (npz:FILE) and name the network (python:module:function), or use "
            'engine="network"'
        )


def check_peers(request: SimulationRequest, peers: int) -> None:
    """Refuse more peers than there can be. Raises ChoiceError."""
    if request.engine == "processes" and peers > PROCESSES_MAX:
        raise ChoiceError(
            f"{peers} peers are too many processes for one machine; take {PROCESSES_MAX} or less, or --engine network"
        )


def _check_products(federation: Federation, engine: str) -> None:
    """Rounds that are products of matrices."""
    learning, wire = federation.learning, "/".join(map(str, federation.gossip.wire))
    asked = [f"learning.mode = {learning.mode}"] if learning.mode != "synchronous" else []
    asked += [f"gossip.wire = {wire}"] if wire != "float32" else []
    if asked:
        raise ChoiceError(f"the {engine} engine does not play {' and '.join(asked)}; use --engine network")


def _check_ray(request: SimulationRequest) -> None:
    """Shards average what they have as it is."""
    gossip = request.federation.gossip
    asked = [f"gossip.{name}" for name in ("privacy", "drift") if str(getattr(gossip, name) or "none") != "none"]
    if asked:
        raise ChoiceError(f"the ray engine does not play {' and '.join(asked)}; use --engine vector")
    check_ray(request.address, request.device)
