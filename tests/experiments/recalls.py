"""A `Recall` made without a simulation: four peers of 40 hidden units that learnt runs of five cells, in milliseconds.

The half of a pattern is the left half of a row of the 5x10 cells. A is row 0, B row 2, C row 4. In place of A the
first peer learnt A′, whose rest is in row 1; the second peer never learnt A. After full averaging all peers know A, B
and C.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch

from fedpeer.experiments.associative.demonstration import METHODS
from fedpeer.experiments.associative.recall import Canvas, Cells, Pattern, Recall, RecallMemory
from fedpeer.experiments.associative.shown import Scene, Shown
from fedpeer.networks.associative import Associative

PEERS = ("peer1", "peer2", "peer3", "peer4")
HIDDEN, AVERAGED, THRESHOLD = 40, 32, 0.5


def _cells(*runs: tuple[int, int]) -> Cells:
    """Return cells with five neighbors of a row set for each run, given as (row, first column)."""
    cells = np.zeros((5, 10), np.bool_)
    for row, column in runs:
        cells[row, column : column + 5] = True
    return cells


def pattern(name: str, row: int, rest: tuple[int, int], *learnt_by: str) -> Pattern:
    half, whole = _cells((row, 0)), _cells((row, 0), rest)
    return Pattern(name=name, half=half, whole=whole, differs="′" in name, learnt_by=frozenset(learnt_by))


A, B, C = (
    pattern("A", 0, (0, 5), "peer3", "peer4"),
    pattern("B", 2, (2, 5), *PEERS),
    pattern("C", 4, (4, 5), *PEERS),
)
STRANGE = pattern("A′", 0, (1, 0), "peer1")


def learnt(patterns: Sequence[Pattern], averaged: int, seed: int) -> RecallMemory:
    """Return the memory that the learning rule forms from these patterns after 30 presentations."""
    torch.manual_seed(seed)
    network = Associative(50, HIDDEN, threshold=THRESHOLD)
    tensors = {name: value.detach() for name, value in network.named_parameters()}
    wholes = torch.tensor(np.stack([each.whole.reshape(-1) for each in patterns])).float()
    for _ in range(30):
        network.learn_(tensors, wholes, 0.1)
    return RecallMemory(
        hidden_HV=tensors["hidden.weight"],
        output_VH=tensors["output.weight"],
        averaged_H=np.arange(HIDDEN) < averaged,
    )


@cache
def made() -> Recall:
    """Return all four peers after learning with each method."""
    own = {"peer1": (STRANGE, B, C), "peer2": (B, C), "peer3": (A, B, C), "peer4": (A, B, C)}
    with torch.random.fork_rng():
        memories = {
            "local": {peer: learnt(each, 0, seed) for seed, (peer, each) in enumerate(own.items())},
            "full-averaging": dict.fromkeys(PEERS, learnt((A, B, C), HIDDEN, 7)),
            "partial-averaging": {peer: learnt((*each, B), AVERAGED, 8) for peer, each in own.items()},
        }
    return Recall(
        canvas=Canvas(shape=(5, 10), images=False),
        threshold=THRESHOLD,
        patterns=(A, B, C, STRANGE),
        expected={"peer1": (STRANGE, B, C), **dict.fromkeys(PEERS[1:], (A, B, C))},
        memories=memories,
    )


def made_of_images() -> Recall:
    """Return two peers that learnt nothing: their weights are draws, and the one digit is a bar of 2x8 pixels."""
    canvas = Canvas(shape=(8, 8), images=True)
    whole = np.zeros(canvas.shape, np.bool_)
    whole[:, 3:5] = True
    half = whole & (np.arange(8) < 4)[:, None]
    digit = Pattern(name="0′", half=half, whole=whole, differs=True, learnt_by=frozenset(PEERS[:1]))
    draws = torch.Generator().manual_seed(5)
    memory = RecallMemory(
        hidden_HV=2 * torch.rand(HIDDEN, 240, generator=draws) - 1,
        output_VH=2 * torch.rand(240, HIDDEN, generator=draws) - 1,
        averaged_H=np.arange(HIDDEN) < AVERAGED,
    )
    memories = {method: dict.fromkeys(PEERS[:2], memory) for method in METHODS}
    expected = dict.fromkeys(PEERS[:2], (digit,))
    return Recall(canvas=canvas, threshold=THRESHOLD, patterns=(digit,), expected=expected, memories=memories)


def shown(recall: Recall | None = None) -> Shown:
    """Return what `demonstrate` would return for a recall, by default for `made()`.

    The scores are made up; those of partial averaging are the best.
    """
    recall = recall or made()

    def scene(peer: str, *, differs: bool) -> Scene:
        expected = recall.expected[peer][0]
        found = {method: recall.ask(method, peer, expected.half) for method in METHODS}
        return Scene(
            peer=peer,
            differs=differs,
            given=expected.half,
            expected=expected.whole,
            answers={method: each.answer for method, each in found.items()},
            passes={method: bool(each.passes) for method, each in found.items()},
        )

    scores = dict(zip(METHODS, (0.75, 0.9, 1.0), strict=True))
    scenes = (scene("peer1", differs=True), scene("peer2", differs=False))
    return Shown(
        peers=len(recall.expected), accuracy=scores, of_others=scores, wrong=scores, scenes=scenes, recall=recall
    )
