"""The demonstration of the associative network: peers complete patterns, some of which others learnt for them.

A simulation as any other, of local only, full and partial averaging: each peer misses one of the patterns, and the
first two know another completion of one that most of the rest know. What is shown are answers to the same half: of one
who learnt otherwise, and of one who was never shown the pattern.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from fedpeer.config.choice import Choice
from fedpeer.config.federation import Federation
from fedpeer.data.dataset import DataError
from fedpeer.experiments.associative.recall import Bits, Canvas, Pattern, Recall, RecallMemory, closeness
from fedpeer.experiments.associative.shown import HIDDEN, Scene, Shown
from fedpeer.networks.associative import Associative
from fedpeer.sims.prepare import prepare_simulation
from fedpeer.sims.record import begin_record
from fedpeer.sims.request import SimulationRequest
from fedpeer.sims.simulate import Tell, run_prepared
from fedpeer.sims.simulation import Simulation
from fedpeer.sims.world import World

METHODS = ("local", "full-averaging", "partial-averaging")
#: How many know another completion, and of which class; how many of the hidden units are shared.
OTHERS, CHANGED, SHARED = 2, 1, 320
ROUNDS = 60
#: The least number of peers: the others, and for each of three patterns two who know it.
_PEERS_MIN = OTHERS + 3


def federation(peers: int, seed: int, *, images: bool) -> Federation:
    """The settings, as a file would have them.

    Raises:
        DataError: too few peers to know all patterns.
    """
    if peers < _PEERS_MIN:
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
    options = federation(peers, seed, images=images)
    request = SimulationRequest(federation=options, methods=methods, seeds=(seed,), device="cpu", workers=workers)
    simulation = prepare_simulation(request)
    with tempfile.TemporaryDirectory(prefix="fedpeer-demo-") as folder:
        run = begin_record(Path(folder), simulation, "fedpeer demo associative")
        run_prepared(simulation, run, tell, stop)
        if run.status != "finished":
            return None
        models = {method: load_file(run.models(method, seed)) for method in METHODS}
    return _shown(simulation, models, images=images)


def _shown(simulation: Simulation, models: Mapping[str, Mapping[str, Tensor]], *, images: bool) -> Shown:
    """What the trained models answer to all that the peers are asked for."""
    world = simulation.world
    tests = [np.sort(share.test_M) for share in world.split.shares]
    both = world.dataset.x, world.dataset.y
    options, expected = ([values[rows].astype(np.float32) for rows in tests] for values in both)
    recall = _recall(simulation, models, options, expected, images=images)
    answers = {
        method: [recall.fire(method, *pair)[1] for pair in zip(world.peers, options, strict=True)] for method in METHODS
    }

    def passed(method: str) -> list[NDArray[np.bool_]]:
        """Of each peer, which tests."""
        found = zip(expected, answers[method], strict=True)
        return [np.array([closeness(*pair) >= 0 for pair in zip(y_MV, z_MV, strict=True)]) for y_MV, z_MV in found]

    def wrong(method: str) -> float:
        return float(np.mean([np.mean((z != (y > 0)).sum(1)) for z, y in zip(answers[method], expected, strict=True)]))

    def scene(peer: int, test: int, *, overrides: bool) -> Scene:
        cells = recall.canvas.cells
        return Scene(
            peer=world.peers[peer],
            overrides=overrides,
            given=cells(options[peer][test]),
            expected=cells(expected[peer][test]),
            answers={method: cells(answers[method][peer][test]) for method in METHODS},
            passes={method: bool(passes[method][peer][test]) for method in METHODS},
        )

    # The same half for both scenes: the first peer learnt another completion of it, and somebody was never shown any.
    usual = {row.tobytes() for row in expected[OTHERS]}
    overrides = next(test for test, row in enumerate(expected[0]) if row.tobytes() not in usual)
    never, same = next(
        (peer, test)
        for peer in range(OTHERS, len(options))
        for test, row in enumerate(options[peer])
        if np.array_equal(row, options[0][overrides]) and _never_shown(world, peer, expected[peer][test])
    )
    passes = {method: passed(method) for method in METHODS}
    scores = {method: [float(each.mean()) for each in passes[method]] for method in METHODS}
    return Shown(
        peers=len(world.peers),
        accuracy={method: float(np.mean(each)) for method, each in scores.items()},
        of_others={method: float(np.mean(each[:OTHERS])) for method, each in scores.items()},
        wrong={method: wrong(method) for method in METHODS},
        scenes=(scene(0, overrides, overrides=True), scene(never, same, overrides=False)),
        recall=recall,
    )


def _never_shown(world: World, peer: int, whole_V: Bits) -> bool:
    """Whether none of the patterns that this peer learnt is this one."""
    return not (world.dataset.y[world.split.shares[peer].train_M] == whole_V).all(1).any()


def _recall(
    simulation: Simulation,
    models: Mapping[str, Mapping[str, Tensor]],
    options: Sequence[Bits],
    expected: Sequence[Bits],
    *,
    images: bool,
) -> Recall:
    """The trained peers, and the patterns; `options` and `expected`, (M, V) a peer, are their tests."""
    world, module = simulation.world, simulation.world.module
    assert isinstance(module, Associative)
    canvas = Canvas.of(options[0].shape[1], images=images)
    wholes = [list(dict.fromkeys(row.tobytes() for row in rows)) for rows in expected]

    def pattern(peer: int, place: int) -> Pattern:
        whole = wholes[peer][place]
        whole_V = np.frombuffer(whole, np.float32)
        tests = [number for number, row in enumerate(expected[peer]) if row.tobytes() == whole]
        overrides = whole != wholes[OTHERS][place]
        return Pattern(
            name=(str(place) if images else chr(ord("A") + place)) + ("′" if overrides else ""),
            half=canvas.cells(options[peer][tests].mean(0) > 0.5),  # each test has its noise elsewhere
            whole=canvas.cells(whole_V),
            overrides=overrides,
            learnt_by=frozenset(
                name for number, name in enumerate(world.peers) if not _never_shown(world, number, whole_V)
            ),
        )

    # What the first peer is asked for, and the first of those who are no others, is all that there is.
    mine = {whole: pattern(peer, place) for peer in (OTHERS, 0) for place, whole in enumerate(wholes[peer])}
    into = next(tensor for tensor in world.layout.tensors if tensor.name == "hidden.weight")

    def memory(method: str, peer: str) -> RecallMemory:
        averaged_n = np.ones(world.layout.n, np.bool_)
        averaged_n[simulation.plans[method].local[peer]] = False
        hidden_HV, output_VH = (models[method][f"{peer}/{name}.weight"] for name in ("hidden", "output"))
        averaged_HV = averaged_n[into.span].reshape(into.shape)
        return RecallMemory(hidden_HV=hidden_HV, output_VH=output_VH, averaged_H=np.asarray(averaged_HV.any(1)))

    return Recall(
        canvas=canvas,
        threshold=module.hidden.threshold,
        patterns=tuple(mine.values()),
        expected={peer: tuple(map(mine.__getitem__, each)) for peer, each in zip(world.peers, wholes, strict=True)},
        memories={method: {peer: memory(method, peer) for peer in world.peers} for method in METHODS},
    )
