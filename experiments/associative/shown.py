"""Contents of the demonstration of the associative network: scenes, scores, and the trained peers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedpeer.experiments.associative.recall import Cells, Recall

#: Hidden units of the network.
HIDDEN = 400


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One peer's answers to one half pattern; all cells are (rows, columns) of the same shape.

    peer        the peer
    differs     whether it learnt another completion than most; otherwise it never saw the pattern
    given       the given half
    expected    the expected pattern
    answers     method -> answer
    passes      method -> whether at least as many ones are right as units are wrong (for images: of bits)
    """

    peer: str
    differs: bool
    given: Cells
    expected: Cells
    answers: Mapping[str, Cells]
    passes: Mapping[str, bool]


@dataclass(frozen=True, kw_only=True)
class Shown:
    """Results of the demonstration.

    peers       number of peers
    accuracy    method -> fraction of tests that pass, over all peers
    of_others   method -> the same for the peers that know another completion
    wrong       method -> mean number of wrong units in an answer
    scenes      two recalls to show
    recall      the trained peers, for further questions
    """

    peers: int
    accuracy: Mapping[str, float]
    of_others: Mapping[str, float]
    wrong: Mapping[str, float]
    scenes: tuple[Scene, ...]
    recall: Recall

    @property
    def best(self) -> str | None:
        """The method with the highest accuracy, or None if two are equal."""
        first, second, *_ = sorted(self.accuracy, key=lambda method: -self.accuracy[method])
        return first if self.accuracy[first] > self.accuracy[second] else None
