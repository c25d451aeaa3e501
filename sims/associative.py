"""The demonstration of the associative network: peers complete patterns, some of which others learnt for them.

A simulation as any other, of local only, full and partial averaging: each peer misses one of the patterns, and the
first two know another completion of one that most of the rest know. What is shown are answers to the same half: of one
who learnt otherwise, and of one who was never shown the pattern.
"""

from __future__ import annotations

import math
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from fedpeer.algorithms.losses import completed
from fedpeer.data.associative_digits import BITS, BLOCK, image
from fedpeer.data.dataset import DataError
from fedpeer.peer.core.choice import Choice
from fedpeer.peer.core.federation import Federation
from fedpeer.sims.prepare import Simulation, prepare
from fedpeer.sims.record import begin
from fedpeer.sims.request import SimulationRequest
from fedpeer.sims.simulate import Tell, simulate

Cells = NDArray[np.bool_]

METHODS = ("local", "full-averaging", "partial-averaging")
#: How many know another completion, and of which class; how many of the hidden units are shared.
OTHERS, CHANGED, HIDDEN, SHARED = 2, 1, 400, 320
ROUNDS = 60
#: The least number of peers: the others, and for each of three patterns two who know it.
PEERS_MIN = OTHERS + 3


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One peer is asked to complete one pattern. Cells (rows, columns), alike for all of them.

    otherwise   it learnt another completion than most; else it was never shown the pattern
    answers     by method
    passes      by method, whether at least as many ones are right as units are wrong (of images: as bits)
    """

    peer: str
    otherwise: bool
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
    """

    peers: int
    accuracy: Mapping[str, float]
    of_others: Mapping[str, float]
    wrong: Mapping[str, float]
    scenes: tuple[Scene, ...]

    @property
    def best(self) -> str | None:
        """The method that completes more than all others; None where none does."""
        first, second, *_ = sorted(self.accuracy, key=lambda method: -self.accuracy[method])
        return first if self.accuracy[first] > self.accuracy[second] else None


def federation(peers: int, seed: int, *, images: bool) -> Federation:
    """The settings, as a file would have them.

    Raises:
        DataError: too few peers to know all patterns.
    """
    if peers < PEERS_MIN:
        raise DataError(f"{peers} peers: {OTHERS} know another completion, and the rest must know all; use 5 or more")
    data = "associative-digits" if images else "associative"
    models = {"everyone": {"neurons": {"input": "all", "hidden": SHARED, "output": "all"}}}
    return Federation.model_validate(
        {
            "network": f"associative:{HIDDEN}",
            "partial_models": models,
            "learning": {"batch_size": 3, "steps_between_averaging": 1, "rounds": ROUNDS, "evaluate_every": ROUNDS},
            "seed": seed,
            "simulation": {"dataset": f"{data},users={peers},others={OTHERS},changed={CHANGED},missed=1"},
        }
    )


def demonstrate(
    peers: int,
    seed: int,
    *,
    images: bool = False,
    workers: int | None = None,
    tell: Tell = lambda event: None,
    stop: threading.Event | None = None,
) -> Shown | None:
    """Play it; None where it was stopped. `workers` train; None: one a core.

    Raises:
        DataError: too few peers.
    """
    methods = tuple(map(Choice, METHODS))
    asked = federation(peers, seed, images=images)
    request = SimulationRequest(federation=asked, methods=methods, seeds=(seed,), device="cpu", workers=workers)
    simulation = prepare(request)
    with tempfile.TemporaryDirectory(prefix="fedpeer-demo-") as folder:
        run = begin(Path(folder), simulation, "fedpeer demo associative")
        simulate(simulation, run, tell, stop)
        if run.status != "finished":
            return None
        models = {method: load_file(run.models(method, seed)) for method in METHODS}
    return _shown(simulation, models, images=images)


def _shown(simulation: Simulation, models: Mapping[str, Mapping[str, torch.Tensor]], *, images: bool) -> Shown:
    """What the trained models answer to all that the peers are asked for."""
    world, stepper = simulation.world, simulation.jobs[simulation.request.seeds[0]].stepper()
    tests = [share.test_M for share in world.split.shares]
    asked, expected = ([values[rows] for rows in tests] for values in (world.dataset.x, world.dataset.y))
    answers: dict[str, list[NDArray[np.generic]]] = {}
    for method, found in models.items():
        answers[method] = []
        for peer, inputs in zip(world.peers, asked, strict=True):
            x_n = torch.cat([found[f"{peer}/{tensor.name}"].reshape(-1) for tensor in world.layout.tensors])
            answers[method].append(stepper.logits(x_n[None], torch.from_numpy(inputs)[None])[0].numpy())

    def passed(method: str) -> list[NDArray[np.bool_]]:
        """Of each peer, which tests."""
        pairs = zip(answers[method], expected, strict=True)
        return [completed(torch.from_numpy(z), torch.from_numpy(y)).numpy() for z, y in pairs]

    def wrong(method: str) -> float:
        return float(np.mean([np.mean((z != y).sum(1)) for z, y in zip(answers[method], expected, strict=True)]))

    def cells(bits: NDArray[np.generic]) -> Cells:
        if images:
            return np.asarray(image(bits[None], _side(len(bits)))[0])
        return np.asarray(bits.reshape(5, -1) != 0)

    def scene(peer: int, test: int, *, otherwise: bool) -> Scene:
        return Scene(
            peer=world.peers[peer],
            otherwise=otherwise,
            given=cells(asked[peer][test]),
            expected=cells(expected[peer][test]),
            answers={method: cells(answers[method][peer][test]) for method in METHODS},
            passes={method: bool(passes[method][peer][test]) for method in METHODS},
        )

    def known(peer: int) -> set[bytes]:
        return {row.tobytes() for row in world.dataset.y[world.split.shares[peer].train_M]}

    # The same half for both scenes: the first peer learnt another completion of it, and somebody was never shown any.
    usual = {row.tobytes() for row in expected[OTHERS]}
    otherwise = next(test for test, row in enumerate(expected[0]) if row.tobytes() not in usual)
    never, same = next(
        (peer, test)
        for peer in range(OTHERS, len(asked))
        for test, row in enumerate(asked[peer])
        if np.array_equal(row, asked[0][otherwise]) and expected[peer][test].tobytes() not in known(peer)
    )
    passes = {method: passed(method) for method in METHODS}
    scores = {method: [float(each.mean()) for each in passes[method]] for method in METHODS}
    return Shown(
        peers=len(world.peers),
        accuracy={method: float(np.mean(each)) for method, each in scores.items()},
        of_others={method: float(np.mean(each[:OTHERS])) for method, each in scores.items()},
        wrong={method: wrong(method) for method in METHODS},
        scenes=(scene(0, otherwise, otherwise=True), scene(never, same, otherwise=False)),
    )


def _side(bits: int) -> int:
    """Of the image whose blocks have so many bits."""
    return BLOCK * math.isqrt(bits // BITS)
