"""The interface of a simulation engine, and the checks that a request suits its engine.

An engine holds all peers of one method and seed. The vector engine multiplies matrices, the ray engine distributes that
over a cluster, the network engine runs whole peers in virtual time, the processes engine starts real ones. A simulation
records all of them in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self

from numpy.typing import NDArray
from torch import Tensor

from fedpeer.config.problems import ConfigError
from fedpeer.config.rules import KEYWORDS, Combination, Vocabulary, problems_of
from fedpeer.sims.ray.options import check_ray
from fedpeer.sims.request import SimulationRequest
from fedpeer.sims.vector.engine import RoundTimes


class Engine(Protocol):
    """All peers of one method and seed. A context manager: entered before the first round, frees its resources at the
    exit.

    round      number of finished rounds
    weights    push-sum weights of each group's members after the last round, in units of their mean at the start
    traffic    messages and bytes that each peer sent for averaging in the last round
    x_Pn       parameters of all peers at the end of the last round, or at their last evaluation
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
        """Run one round. Raises Stopped, EngineError."""

    def evaluate(self, *, validation: bool = False) -> list[tuple[float, float]]:
        """Return (score, loss) of each peer on its own test part, or on its validation part (vector engine)."""

    def evaluate_server(self, *, validation: bool = False) -> list[tuple[float, float]] | None:
        """Return (score, loss) per peer of the server's model or the peer's estimate of it; None if there is none."""

    def statistics(self) -> dict[str, list[float]]:
        """Return the algorithm's own statistics, by name one number per peer."""

    @property
    def relations_PP(self) -> Tensor | None:
        """Relations between the peers' tasks, if an algorithm with a server learns them; else None."""

    def disagreement(self) -> dict[str, float]:
        """Return each group's disagreement: how far its members are apart, relative to their norm."""

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the input of `restore`: tensors, and a small JSON-serialisable state."""

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Resume from a snapshot. Its tensors may be mapped from a file and must not be written."""


def combination_of(request: SimulationRequest, objects: Sequence[str] = ()) -> Combination:
    """Return the request as a combination for the rules.

    Args:
        objects: the inputs given as Python objects: "data", "network".
    """
    return Combination(
        federation=request.federation,
        methods=request.methods,
        compared=True,
        engine=request.engine,
        several=len(request.methods) * len(request.seeds) > 1,
        device=request.device,
        faults=request.faults,
        address=request.address,
        shards=request.shards,
        objects=tuple(objects),
    )


def hold(together: Combination, words: Vocabulary = KEYWORDS) -> None:
    """Check that the settings can be combined.

    Raises:
        ConfigError: all problems; settings are named as in `words` (keys, options or keywords).
    """
    problems = problems_of(together, words)
    if problems:
        raise ConfigError("the simulation", problems)


def check_engine(request: SimulationRequest, objects: Sequence[str], words: Vocabulary = KEYWORDS) -> None:
    """Check that the engine supports the request.

    Raises:
        ConfigError, ChoiceError: the user's mistakes, with the way out.
    """
    hold(combination_of(request, objects), words)
    if request.engine == "ray":
        check_ray(request.address)
