"""Estimates of the disk and memory that a run of the vector engine on a CPU will need.

The peers' states are in files of the run's folder (`vector/workspace.py`); a client of a server has a state of its own
only once it has trained. The disk estimate is exact if all peers train, and an expected value if some are drawn. Memory
is the total of all processes: the libraries, the data, the workers, and the resident part of the states
(`vector/resident.py`).
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from fedpeer.algorithms.registry import taking_part
from fedpeer.runs.disk import RunError
from fedpeer.runs.summary import count_text
from fedpeer.sims.request import cores
from fedpeer.sims.simulation import Simulation

#: Bytes: the leading process with its libraries; a worker with the memory of training; what the leading process knows
#: of one peer (these three measured by `python -m benchmarks.learning_scale`); and the most of large states that all
#: processes touch between two releases of their pages (some 2 GB if all peers train, a tenth of it if few do).
LEADER, WORKER, A_PEER, IN_USE = 200_000_000, 140_000_000, 10_000, 2_000_000_000
_FLOAT = 4


@dataclass(frozen=True)
class Footprint:
    """Bytes of the states while a method runs, and the most bytes needed on the disk and in memory."""

    states: int
    disk: int
    memory: int


def footprint(simulation: Simulation) -> Footprint | None:
    """Return the footprint of the largest method; None unless the vector engine runs it on a CPU."""
    request, world = simulation.request, simulation.world
    if request.engine != "vector" or simulation.device != "cpu":
        return None
    learning, peers, model = world.federation.learning, len(world.peers), _FLOAT * world.sizes[-1]
    largest, checkpoint, at_once = 0, 0, 0
    for method in request.methods:
        kept = simulation.kept[str(method)]
        if kept.has_server:
            drawn = taking_part(peers, learning.participation)
            some = not (kept.everyone or learning.everyone_trains)
            trained = round(peers * (1 - (1 - drawn / peers) ** learning.rounds)) if some else peers
            # Both sides of the state, and the update; at the end the models of all peers.
            states = trained * (2 * kept.own + kept.update) + peers * model
            saved, gathered = trained * kept.own, 2 * drawn * kept.update
        else:
            saved, gathered = peers * (model * simulation.plans[str(method)].vectors + kept.own), 0
            states = 2 * saved
        states += 0 if learning.common_start else peers * kept.own  # each peer's first state is its own
        largest, checkpoint, at_once = max(largest, states), max(checkpoint, saved), max(at_once, gathered)
    # A checkpoint is written beside the previous one; the models of each method and seed stay.
    models = len(request.methods) * len(request.seeds) * peers * model
    memory = memory_of(peers, min(request.workers or cores(), peers), _FLOAT * world.dataset.x.size, largest) + at_once
    if any(each.split.validates for each in simulation.worlds.values()):
        # Each peer's best model is kept, too: in memory while its method runs, and written beside the one before.
        models, memory = 2 * models + peers * model, memory + peers * model
    return Footprint(largest, largest + 2 * checkpoint + models, memory)


def memory_of(peers: int, workers: int, inputs: int, states: int) -> int:
    """Return the most bytes of memory needed, without the updates of a round.

    Args:
        inputs: bytes of the data set's inputs.
        states: bytes of the peers' states.

    >>> memory_of(peers=1_000, workers=2, inputs=0, states=10**12) == memory_of(1_000, 2, 0, 10**10)
    True
    """
    return LEADER + workers * WORKER + peers * A_PEER + inputs + min(states, IN_USE)


def check_disk(simulation: Simulation, folder: Path) -> None:
    """Check that the disk of this folder has space for the run.

    Raises:
        RunError: with the space needed, the space free, and the way out.
    """
    found = footprint(simulation)
    if found is None:
        return
    place = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    free = shutil.disk_usage(place).free
    if found.disk > free:
        raise RunError(
            f"this run needs up to {count_text(found.disk, 'B')} on the disk, and {folder} has "
            f"{count_text(free, 'B')} free; choose another folder with --out, fewer peers or a smaller network"
        )


def footprint_text(found: Footprint, peers: int) -> str:
    """Return the footprint as a sentence for the user."""
    return (
        f"the states of {peers:,} peers are kept on the disk, in the run's folder: up to "
        f"{count_text(found.disk, 'B')}, and at most about {count_text(found.memory, 'B')} of memory"
    )
