"""Recall by trained associative networks: given cells set visible units, hidden units fire, and visible units answer.

A `Recall` has the weights of all peers of a demonstration after training by each method, and the patterns that any of
them learnt. `ask` is a pure function of the given cells: it returns both layers, finds the pattern that was meant, and
compares the answer with the one expected of this peer.

Cells are what a person sees and sets; units are those of the network. They are the same except for images, where a cell
is a pixel and each block of 2x2 pixels has 15 units.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpeer.data.associative import Bits
from fedpeer.data.associative_digits import BITS, BLOCK, image, sparse
from fedpeer.networks.associative import fires

Cells = NDArray[np.bool_]
#: A peer's relation to a pattern: it learnt it as most peers, learnt another completion of its half, or never saw it.
Relation = Literal["learnt", "otherwise", "never"]


@dataclass(frozen=True, kw_only=True)
class Canvas:
    """The arrangement of units as cells, `shape` = (rows, columns)."""

    shape: tuple[int, int]
    images: bool

    @classmethod
    def of(cls, units: int, *, images: bool) -> Canvas:
        """Return a canvas for this many units: square for images, otherwise of five rows."""
        side = BLOCK * math.isqrt(units // BITS)
        return cls(shape=(side, side) if images else (5, units // 5), images=images)

    def units(self, cells: Cells) -> Bits:
        """Return the units of cells: (R, C) -> (V,) of 0 and 1."""
        return sparse(cells[None])[0] if self.images else cells.reshape(-1).astype(np.float32)

    def cells(self, bits_V: NDArray[np.generic]) -> Cells:
        """Return the cells of units: (V,) -> (R, C)."""
        if self.images:
            return np.asarray(image(bits_V[None], self.shape[0])[0])
        return np.asarray(bits_V.reshape(self.shape) != 0)


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """A pattern that some peer learnt, in cells.

    half       the half that tests give, without noise
    whole      the whole pattern
    differs    whether it is another completion of its half than most peers know
    learnt_by  the peers that were shown it in training
    """

    name: str
    half: Cells
    whole: Cells
    differs: bool
    learnt_by: frozenset[str]

    def relation(self, peer: str) -> Relation:
        """Return a peer's relation to the pattern."""
        if peer not in self.learnt_by:
            return "never"
        return "otherwise" if self.differs else "learnt"


@dataclass(frozen=True, kw_only=True)
class RecallMemory:
    """One peer's weights after training by one method, and which of its hidden units (H,) are averaged with others."""

    hidden_HV: Tensor
    output_VH: Tensor
    averaged_H: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Recalled:
    """One recall, layer by layer.

    hidden_H   which hidden units fire
    answer     the answer's cells
    pattern    the expected pattern, if the given cells are part of one of the peer's; else None, as is `passes`
    passes     whether at least as many ones are right as units are wrong (partial averaging 2021, section V.5)
    taken_for  the known pattern that the answer is closest to, if it is close to one
    """

    hidden_H: NDArray[np.bool_]
    answer: Cells
    pattern: Pattern | None
    passes: bool | None
    taken_for: Pattern | None

    @property
    def missing(self) -> int:
        """Number of expected cells that are not in the answer."""
        return 0 if self.pattern is None else int((self.pattern.whole & ~self.answer).sum())

    @property
    def too_much(self) -> int:
        """Number of cells of the answer that are not expected."""
        return 0 if self.pattern is None else int((self.answer & ~self.pattern.whole).sum())


@dataclass(frozen=True, kw_only=True)
class Recall:
    """All peers of a demonstration.

    canvas      arrangement of units as cells
    threshold   of the network's units
    patterns    all patterns that any peer learnt
    expected    peer -> the patterns of its tests, in the same order for all peers
    memories    method -> peer -> its weights
    """

    canvas: Canvas
    threshold: float
    patterns: tuple[Pattern, ...]
    expected: Mapping[str, tuple[Pattern, ...]]
    memories: Mapping[str, Mapping[str, RecallMemory]]

    def fire(self, method: str, peer: str, given_MV: Bits) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return which hidden units (M, H), and then which visible ones (M, V), fire for given units (M, V)."""
        memory = self.memories[method][peer]
        hidden_MH = fires(torch.from_numpy(given_MV), memory.hidden_HV, self.threshold)
        answer_MV = fires(hidden_MH, memory.output_VH, self.threshold)
        return hidden_MH.numpy() > 0, answer_MV.numpy() > 0

    def ask(self, method: str, peer: str, given: Cells) -> Recalled:
        """Return one peer's recall from given cells, (R, C)."""
        given_V = self.canvas.units(given)
        hidden_MH, answer_MV = self.fire(method, peer, given_V[None])
        pattern = self._meant(peer, given_V)
        wholes = [self.canvas.units(each.whole) for each in self.patterns]
        taken_for = _closest([closeness(whole_V, answer_MV[0]) for whole_V in wholes])
        passes = None
        if pattern is not None:
            passes = closeness(self.canvas.units(pattern.whole), answer_MV[0]) >= 0
        return Recalled(
            hidden_H=hidden_MH[0],
            answer=self.canvas.cells(answer_MV[0]),
            pattern=pattern,
            passes=passes,
            taken_for=None if taken_for is None else self.patterns[taken_for],
        )

    def _meant(self, peer: str, given_V: Bits) -> Pattern | None:
        """Return the peer's pattern whose half, rest, or whole was given, up to noise, or None."""
        found = []
        for pattern in self.expected[peer]:
            half, whole = pattern.half, pattern.whole
            parts = (half, whole & ~half, whole)
            found.append(max(closeness(self.canvas.units(part), given_V) for part in parts))
        number = _closest(found)
        return None if number is None else self.expected[peer][number]


def closeness(expected_V: NDArray[np.generic], answer_V: NDArray[np.generic]) -> int:
    """Return the number of ones that are right minus the number of wrong units; an answer passes from 0 on.

    Source: partial averaging 2021, section V.5.
    """
    expected, answer = expected_V != 0, answer_V != 0
    return int((expected & answer).sum()) - int((expected ^ answer).sum())


def _closest(found: Sequence[int]) -> int | None:
    """Return the index of the largest number, if it is at least 0 and unique, else None."""
    best = max(found)
    return found.index(best) if best >= 0 and found.count(best) == 1 else None
