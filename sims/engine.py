"""What a simulation asks of an engine, and what each of the four cannot play.

An engine holds all peers of one method and seed. The vector engine multiplies matrices, the ray engine spreads that
over a cluster, the network engine plays whole peers in virtual time, the processes engine starts real ones; a
simulation records them all alike.
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


def combination_of(request: SimulationRequest, objects: Sequence[str] = ()) -> Combination:
    """A request as the rule book sees it. `objects` was handed over in Python: "data", "network"."""
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
    """Refuse settings that do not go together.

    Raises:
        ConfigError: all that is wrong, in the words of the door where the user stands.
    """
    problems = problems_of(together, words)
    if problems:
        raise ConfigError("the simulation", problems)


def check_engine(request: SimulationRequest, objects: Sequence[str], words: Vocabulary = KEYWORDS) -> None:
    """Refuse what the engine cannot play.

    Raises:
        ConfigError, ChoiceError: the user's mistakes, with the way out.
    """
    hold(combination_of(request, objects), words)
    if request.engine == "ray":
        check_ray(request.address)
