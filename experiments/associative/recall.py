"""Trained associative networks that can be asked: cells are given, hidden units fire, and cells answer.

A `Recall` holds what all peers of a demonstration know after learning in each of its ways, and the patterns that any of
them learnt. `ask` is a pure function of what is given: it shows both layers, finds the pattern that was meant, and says
how the answer compares with what this peer should say.

Cells are what a person sees and sets, units are what the network has. They are the same but for images, where a cell is
a pixel and each block of 2x2 pixels has 15 units.
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

from fedpeer.data.associative_digits import BITS, BLOCK, image, sparse
from fedpeer.networks.associative import fires

Cells = NDArray[np.bool_]
Bits = NDArray[np.float32]
#: What a peer has to do with a pattern: it learnt the usual one, another completion of its half, or neither.
Relation = Literal["learnt", "otherwise", "never"]


@dataclass(frozen=True, kw_only=True)
class Canvas:
    """How units are drawn as `shape`, (rows, columns) of cells."""

    shape: tuple[int, int]
    images: bool

    @classmethod
    def of(cls, units: int, *, images: bool) -> Canvas:
        """Images are square; other units stand in five rows."""
        side = BLOCK * math.isqrt(units // BITS)
        return cls(shape=(side, side) if images else (5, units // 5), images=images)

    def units(self, cells: Cells) -> Bits:
        """(R, C) -> (V,) of 0 and 1."""
        return sparse(cells[None])[0] if self.images else cells.reshape(-1).astype(np.float32)

    def cells(self, bits_V: NDArray[np.generic]) -> Cells:
        """(V,) -> (R, C)."""
        if self.images:
            return np.asarray(image(bits_V[None], self.shape[0])[0])
        return np.asarray(bits_V.reshape(self.shape) != 0)


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """One that somebody learnt, in cells.

    half       what peers are shown of it when they are asked, without noise
    otherwise  another completion of a half than most of the peers know
    learnt_by  the peers that were shown it
    """

    name: str
    half: Cells
    whole: Cells
    overrides: bool
    learnt_by: frozenset[str]

    def relation(self, peer: str) -> Relation:
        """What this peer has to do with it."""
        if peer not in self.learnt_by:
            return "never"
        return "otherwise" if self.overrides else "learnt"


@dataclass(frozen=True, kw_only=True)
class RecallMemory:
    """One peer's weights after learning in one way, and which of its hidden units (H,) are averaged with others."""

    hidden_HV: Tensor
    output_VH: Tensor
    averaged_H: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Recalled:
    """What came of a question, layer by layer.

    hidden_H   which hidden units fire
    answer     cells
    pattern    the peer's own expected one, if what was given is a part of one; else None, and so is `passes`
    passes     whether at least as many units are right ones as are wrong (partial averaging 2021, section V.5)
    taken_for  the known pattern that the answer completes, if it does one
    """

    hidden_H: NDArray[np.bool_]
    answer: Cells
    pattern: Pattern | None
    passes: bool | None
    taken_for: Pattern | None

    @property
    def missing(self) -> int:
        """Expected cells that are not in the answer."""
        return 0 if self.pattern is None else int((self.pattern.whole & ~self.answer).sum())

    @property
    def too_much(self) -> int:
        """Cells of the answer that are not expected."""
        return 0 if self.pattern is None else int((self.answer & ~self.pattern.whole).sum())


@dataclass(frozen=True, kw_only=True)
class Recall:
    """All peers of a demonstration.

    patterns   all that any peer learnt
    expected   by peer, the patterns that it is asked for, in the same order for all
    memories   by method and peer
    """

    canvas: Canvas
    threshold: float
    patterns: tuple[Pattern, ...]
    expected: Mapping[str, tuple[Pattern, ...]]
    memories: Mapping[str, Mapping[str, RecallMemory]]

    def fire(self, method: str, peer: str, given_MV: Bits) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Units (M, V) that are set -> (M, H) and (M, V): which hidden ones fire, and which visible ones then."""
        memory = self.memories[method][peer]
        hidden_MH = fires(torch.from_numpy(given_MV), memory.hidden_HV, self.threshold)
        answer_MV = fires(hidden_MH, memory.output_VH, self.threshold)
        return hidden_MH.numpy() > 0, answer_MV.numpy() > 0

    def ask(self, method: str, peer: str, given: Cells) -> Recalled:
        """Give one peer some cells (R, C)."""
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
        """The pattern of this peer that was given in part: its half, the rest of it, or all of it, noise allowed."""
        found = []
        for pattern in self.expected[peer]:
            half, whole = pattern.half, pattern.whole
            parts = (half, whole & ~half, whole)
            found.append(max(closeness(self.canvas.units(part), given_V) for part in parts))
        number = _closest(found)
        return None if number is None else self.expected[peer][number]


def closeness(expected_V: NDArray[np.generic], answer_V: NDArray[np.generic]) -> int:
    """Ones that are right less units that are wrong; an answer passes from 0 on.

    Source: partial averaging 2021, section V.5.
    """
    expected, answer = expected_V != 0, answer_V != 0
    return int((expected & answer).sum()) - int((expected ^ answer).sum())


def _closest(found: Sequence[int]) -> int | None:
    """Which one has the most, at least 0; None where none or two do."""
    best = max(found)
    return found.index(best) if best >= 0 and found.count(best) == 1 else None
