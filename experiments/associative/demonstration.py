"""Training for the demonstration of the associative network: peers complete patterns, some learnt only by others.

It is an ordinary simulation of local only, full and partial averaging: each peer lacks one of the patterns, and the
first two peers know another completion of one half than most of the rest. The demonstration shows two peers' answers to
that half: one that learnt the other completion, and one that never saw the pattern.
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
from fedpeer.data.associative import Bits
from fedpeer.data.dataset import DataError
from fedpeer.experiments.associative.recall import Canvas, Pattern, Recall, RecallMemory, closeness
from fedpeer.experiments.associative.shown import HIDDEN, Scene, Shown
from fedpeer.networks.associative import Associative
from fedpeer.sims.prepare import prepare_simulation
from fedpeer.sims.record import begin_record
from fedpeer.sims.request import SimulationRequest
from fedpeer.sims.simulate import OnEvent, run_prepared
from fedpeer.sims.simulation import Simulation
from fedpeer.sims.world import World

METHODS = ("local", "full-averaging", "partial-averaging")
#: Number of peers that know another completion, class of the patterns that it completes, number of shared hidden units.
OTHERS, CHANGED, SHARED = 2, 1, 320
ROUNDS = 60
#: Least number of peers: those with another completion, and enough others to know each of three patterns twice.
_PEERS_MIN = OTHERS + 3


def federation(peers: int, seed: int, *, images: bool) -> Federation:
    """Return the settings of the demonstration's simulation.

    Raises:
        DataError: too few peers to know all patterns.
    """
    if peers < _PEERS_MIN:
        raise DataError(f"{peers} peers are too few to know all patterns; use {_PEERS_MIN} or more")
    data = "associative-digits" if images else "associative"
    models = {"everyone": {"neurons": {"input": "all", "hidden": SHARED, "output": "all"}}}
    return Federation.model_validate(
        {
            "network": f"associative:{HIDDEN}",
            "partial_models": models,
            "learning": {"batch_size": 3, "steps_between_averaging": 1, "rounds": ROUNDS, "evaluate_every": ROUNDS},
            "gossip": {"tolerance": 1e-4},  # shared units must look the same at all peers
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
    on_event: OnEvent = lambda event: None,
    stop: threading.Event | None = None,
) -> Shown | None:
    """Train the peers and return the demonstration, or None if it was stopped.

    Args:
        peers: number of peers.
        seed: seed of everything random.
        images: whether patterns are images of digits instead of bits.
        workers: training processes; None: one per core.
        on_event: called with each event.
        stop: set to stop the training.

    Raises:
        DataError: too few peers.
    """
    methods = tuple(map(Choice, METHODS))
    settings = federation(peers, seed, images=images)
    request = SimulationRequest(federation=settings, methods=methods, seeds=(seed,), device="cpu", workers=workers)
    simulation = prepare_simulation(request)
    with tempfile.TemporaryDirectory(prefix="fedpeer-demo-") as folder:
        run = begin_record(Path(folder), simulation, "fedpeer demo associative")
        run_prepared(simulation, run, on_event, stop)
        if run.status != "finished":
            return None
        models = {method: load_file(run.models(method, seed)) for method in METHODS}
    return _shown(simulation, models, images=images)


def _shown(simulation: Simulation, models: Mapping[str, Mapping[str, Tensor]], *, images: bool) -> Shown:
    """Return the demonstration of trained models: their answers to all of the peers' tests."""
    world = simulation.world
    tests = [np.sort(share.test_M) for share in world.split.shares]
    both = world.dataset.x, world.dataset.y
    given, expected = ([values[rows].astype(np.float32) for rows in tests] for values in both)
    recall = _recall(simulation, models, given, expected, images=images)
    answers = {
        method: [recall.fire(method, *pair)[1] for pair in zip(world.peers, given, strict=True)] for method in METHODS
    }

    def passed(method: str) -> list[NDArray[np.bool_]]:
        """Return which of its tests each peer passes."""
        found = zip(expected, answers[method], strict=True)
        return [np.array([closeness(*pair) >= 0 for pair in zip(y_MV, z_MV, strict=True)]) for y_MV, z_MV in found]

    def wrong(method: str) -> float:
        return float(np.mean([np.mean((z != (y > 0)).sum(1)) for z, y in zip(answers[method], expected, strict=True)]))

    def scene(peer: int, test: int, *, differs: bool) -> Scene:
        cells = recall.canvas.cells
        return Scene(
            peer=world.peers[peer],
            differs=differs,
            given=cells(given[peer][test]),
            expected=cells(expected[peer][test]),
            answers={method: cells(answers[method][peer][test]) for method in METHODS},
            passes={method: bool(passes[method][peer][test]) for method in METHODS},
        )

    # Both scenes show the same half: the first peer learnt another completion of it, and a later one never saw any.
    usual = {row.tobytes() for row in expected[OTHERS]}
    differs = next(test for test, row in enumerate(expected[0]) if row.tobytes() not in usual)
    never, same = next(
        (peer, test)
        for peer in range(OTHERS, len(given))
        for test, row in enumerate(given[peer])
        if np.array_equal(row, given[0][differs]) and _never_shown(world, peer, expected[peer][test])
    )
    passes = {method: passed(method) for method in METHODS}
    scores = {method: [float(each.mean()) for each in passes[method]] for method in METHODS}
    return Shown(
        peers=len(world.peers),
        accuracy={method: float(np.mean(each)) for method, each in scores.items()},
        of_others={method: float(np.mean(each[:OTHERS])) for method, each in scores.items()},
        wrong={method: wrong(method) for method in METHODS},
        scenes=(scene(0, differs, differs=True), scene(never, same, differs=False)),
        recall=recall,
    )


def _never_shown(world: World, peer: int, whole_V: Bits) -> bool:
    """Return whether the peer never learnt this pattern."""
    return not (world.dataset.y[world.split.shares[peer].train_M] == whole_V).all(1).any()


def _recall(
    simulation: Simulation,
    models: Mapping[str, Mapping[str, Tensor]],
    given: Sequence[Bits],
    expected: Sequence[Bits],
    *,
    images: bool,
) -> Recall:
    """Return the trained peers and the patterns; the peers' tests are (M, V) each: half patterns and expected ones."""
    world, module = simulation.world, simulation.world.module
    assert isinstance(module, Associative)
    canvas = Canvas.of(given[0].shape[1], images=images)
    wholes = [list(dict.fromkeys(row.tobytes() for row in rows)) for rows in expected]

    def pattern(peer: int, place: int) -> Pattern:
        whole = wholes[peer][place]
        whole_V = np.frombuffer(whole, np.float32)
        tests = [number for number, row in enumerate(expected[peer]) if row.tobytes() == whole]
        differs = whole != wholes[OTHERS][place]
        return Pattern(
            name=(str(place) if images else chr(ord("A") + place)) + ("′" if differs else ""),
            half=canvas.cells(given[peer][tests].mean(0) > 0.5),  # the mean removes the noise, which differs by test
            whole=canvas.cells(whole_V),
            differs=differs,
            learnt_by=frozenset(
                name for number, name in enumerate(world.peers) if not _never_shown(world, number, whole_V)
            ),
        )

    # The tests of the first peer, and of the first one with the usual completion, contain all patterns.
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
