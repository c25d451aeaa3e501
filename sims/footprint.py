"""What a run of the vector engine on a CPU will take, before it begins: on the disk, and in memory.

What peers have learnt lies in files of the run's folder (`vector/workspace.py`), and only those clients of a server
that have ever trained have a state of their own. The disk is told exactly where all train; where some are drawn, for
the number that is to be expected. Memory is what all processes take together: the libraries, the data, the workers, and
what stays of the states (`vector/resident.py`).
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from fedpeer.algorithms.registry import taking_part
from fedpeer.config.methods import method_of
from fedpeer.runs.disk import RunError
from fedpeer.runs.summary import count_text
from fedpeer.sims.request import cores
from fedpeer.sims.simulation import Simulation

#: Bytes of the leading process with its libraries, of a worker with what training takes, and of what the leading
#: process knows of a peer: measured, `python -m benchmarks.learning_scale` shows them. And of large states what
#: all processes look at between two times that their pages are given back, at the most: where all peers train, some
#: 2 GB, and a tenth of it where few do.
LEADER, WORKER, A_PEER, IN_USE = 200_000_000, 140_000_000, 10_000, 2_000_000_000
_FLOAT = 4


@dataclass(frozen=True)
class Footprint:
    """Bytes: of states while a method is played, on the disk at the most, in memory at the most."""

    states: int
    disk: int
    memory: int


def footprint(simulation: Simulation) -> Footprint | None:
    """Of the largest method; None where the vector engine does not play it on a CPU."""
    request, world = simulation.request, simulation.world
    if request.engine != "vector" or simulation.device != "cpu":
        return None
    learning, peers, model = world.federation.learning, len(world.peers), _FLOAT * world.layout.n
    largest, checkpoint, at_once = 0, 0, 0
    for method in request.methods:
        kept = simulation.kept[str(method)]
        if method_of(method).served:
            drawn = taking_part(peers, learning.participation)
            some = not (kept.everyone or learning.everyone_trains)
            trained = round(peers * (1 - (1 - drawn / peers) ** learning.rounds)) if some else peers
            # Two sides and the update; at the end the models of all.
            states = trained * (2 * kept.own + kept.update) + peers * model
            saved, gathered = trained * kept.own, 2 * drawn * kept.update
        else:
            saved, gathered = peers * (model * simulation.plans[str(method)].vectors + kept.own), 0
            states = 2 * saved
        largest, checkpoint, at_once = max(largest, states), max(checkpoint, saved), max(at_once, gathered)
    # A checkpoint is written beside the last one; the models of each method and seed stay.
    models = len(request.methods) * len(request.seeds) * peers * model
    memory = memory_of(peers, min(request.workers or cores(), peers), _FLOAT * world.dataset.x.size, largest)
    return Footprint(largest, largest + 2 * checkpoint + models, memory + at_once)


def memory_of(peers: int, workers: int, inputs: int, states: int) -> int:
    """Bytes of memory at the most, for so many bytes of inputs and of states, beside the updates of a round.

    >>> memory_of(peers=1_000, workers=2, inputs=0, states=10**12) == memory_of(1_000, 2, 0, 10**10)
    True
    """
    return LEADER + workers * WORKER + peers * A_PEER + inputs + min(states, IN_USE)


def check_disk(simulation: Simulation, folder: Path) -> None:
    """Refuse a run that the disk of this folder has no room for.

    Raises:
        RunError: with what it takes, what there is, and the way out.
    """
    found = footprint(simulation)
    if found is None:
        return
    place = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    free = shutil.disk_usage(place).free
    if found.disk > free:
        raise RunError(
            f"this run takes up to {count_text(found.disk, 'B')} on the disk, and {folder} has "
            f"{count_text(free, 'B')} free; name another folder with --out, or take fewer peers or a smaller network"
        )


def footprint_text(found: Footprint, peers: int) -> str:
    """In a sentence."""
    return (
        f"the states of {peers:,} peers lie on the disk, in the run's folder: up to {count_text(found.disk, 'B')}, "
        f"and at most some {count_text(found.memory, 'B')} of memory"
    )
