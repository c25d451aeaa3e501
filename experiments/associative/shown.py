"""What the demonstration of the associative network shows: scenes, scores, and the trained peers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedpeer.experiments.associative.recall import Cells, Recall

#: Hidden units of the network.
HIDDEN = 400


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One peer is asked to complete one pattern. Cells (rows, columns), alike for all of them.

    otherwise   it learnt another completion than most; else it was never shown the pattern
    answers     by method
    passes      by method, whether at least as many ones are right as units are wrong (of images: as bits)
    """

    peer: str
    overrides: bool
    given: Cells
    expected: Cells
    answers: Mapping[str, Cells]
    passes: Mapping[str, bool]


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What came out.

    accuracy   by method, the share of completed patterns over all peers; `of_others` that of those who know another
               completion
    wrong      by method, units that are wrong in an answer, on average
    recall     the trained peers, to be asked further
    """

    peers: int
    accuracy: Mapping[str, float]
    of_others: Mapping[str, float]
    wrong: Mapping[str, float]
    scenes: tuple[Scene, ...]
    recall: Recall

    @property
    def best(self) -> str | None:
        """The method that completes more than all others; None where none does."""
        first, second, *_ = sorted(self.accuracy, key=lambda method: -self.accuracy[method])
        return first if self.accuracy[first] > self.accuracy[second] else None
