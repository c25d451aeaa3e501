"""The interface of a simulation engine.

An engine holds all peers of one method and seed. The vector engine multiplies matrices, the ray engine distributes that
over a cluster, the network engine runs whole peers in virtual time, the processes engine starts real ones. A simulation
records all of them in the same way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    from fedpeer.learning.models import BestRound


@dataclass(frozen=True)
class RoundTimes:
    """Wall time of the two phases of a round, in seconds."""

    train: float
    average: float


class Engine(ABC):
    """All peers of one method and seed.

    A context manager: it is entered before the first round, and frees its resources at the exit.

    round   number of finished rounds
    """

    round: int = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:  # noqa: B027  an engine without resources frees none
        pass

    @property
    @abstractmethod
    def x_Pn(self) -> Tensor:
        """Parameters of all peers at the end of the last round, or at their last evaluation.

        Where networks differ, shorter rows end with zeros.
        """

    @property
    @abstractmethod
    def traffic(self) -> tuple[list[int], list[int]]:
        """Messages and bytes that each peer sent for averaging in the last round."""

    @property
    def weights(self) -> Mapping[str, NDArray[Any]]:
        """Push-sum weights of each group's members after the last round, in units of their mean at the start."""
        return {}

    @abstractmethod
    def step(self) -> RoundTimes:
        """Run one round.

        Raises:
            Stopped: the run was asked to stop; `snapshot` then still returns the last consistent state.
            EngineError: the round cannot be finished.
        """

    @abstractmethod
    def evaluate(self, *, validation: bool = False) -> list[tuple[float, float]]:
        """Return (score, loss) of each peer on its own test part, or on its validation part.

        NaN stands for a peer without examples in that part.
        """

    def evaluate_server(self, *, validation: bool = False) -> list[tuple[float, float]] | None:
        """Return (score, loss) per peer of the server's model or the peer's estimate of it; None if there is none."""
        return None

    def best_models(self, known: Mapping[str, BestRound]) -> Mapping[str, tuple[BestRound, Tensor]] | None:
        """Return the models (n,) of their best rounds that the peers keep themselves; None: they keep none.

        Args:
            known: by peer, the best round so far; models of these rounds are left out.
        """
        return None

    def statistics(self) -> dict[str, list[float]]:
        """Return the algorithm's own statistics, by name one number per peer."""
        return {}

    @property
    def relations_PP(self) -> Tensor | None:
        """Relations between the peers' tasks, if an algorithm with a server learns them; else None."""
        return None

    def disagreement(self) -> dict[str, float]:
        """Return each group's disagreement: how far its members are apart, relative to their norm."""
        return {}

    @abstractmethod
    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the input of `restore`: tensors, not copied, and a small JSON-serializable state."""

    @abstractmethod
    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Resume from a snapshot and reach exactly the numbers of an uninterrupted run.

        The tensors may be mapped from a file and must not be written.
        """
