"""The common job on a Ray cluster of 1, 2 and 4 machines, compared with the vector engine: time and bytes of a round.

A machine here is a set of Ray's processes with its own object store and one CPU. All of them run on this computer, so
that traffic between them goes over loopback, where its bytes are counted. Needs the extra `fedpeer[ray]`.

`python -m benchmarks.ray_machines [--quick]` prints this table alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common_job import BATCH, IMAGES, PEERS, RATE
from benchmarks.measure import Lap, Spent, cpu_seconds, family, interleaved, times
from benchmarks.rows import Row, Section, compared, show
from benchmarks.worlds import Engine, federation, world_of
from fedpeer.config.choice import parse_choice
from fedpeer.sims.memory import engine_of
from fedpeer.sims.world import World

METHOD = "full-averaging"
MACHINES = (1, 2, 4)
#: Most time of a round, in rounds of the vector engine with as many workers: with two shards, on two cores.
TARGETS = {2: 1.15}


def measure(quick: bool) -> Section:
    """Measure 9 pairs of rounds by wall time; quick: 3."""
    world = world_of(federation(f"blocks:{IMAGES}", peers=PEERS, batch=BATCH, lr=RATE))
    rows: list[Row] = []
    for machines in MACHINES:
        rows += _rows(world, machines, 3 if quick else 9)
    return Section(
        f"The common job on Ray clusters of {', '.join(map(str, MACHINES))} machines, one shard each",
        "A machine is a set of Ray's processes with an object store of its own; all are on this one, which has two "
        "cores. The floor is the vector engine with as many workers. Bytes are all that goes over loopback in a round, "
        "also what Ray's processes tell one another. Start-up is of the shards, on a cluster that runs.",
        rows,
    )


def _rows(world: World, machines: int, pairs: int) -> list[Row]:
    with (
        _cluster(machines) as cluster,
        Engine(world, METHOD, workers=machines) as vector,
        _timed(lambda: _engine(world, cluster, machines)) as (engine, started),
    ):
        moved: list[int] = []

        def lap() -> Lap:
            before, wall = _loopback_bytes(), time.perf_counter()
            cpu = cpu_seconds(family(os.getpid())[1:])
            engine.step()
            moved.append(_loopback_bytes() - before)
            return {"round": Spent(cpu_seconds(family(os.getpid())[1:]) - cpu, time.perf_counter() - wall)}

        interleaved(lap, vector.lap, 1)
        moved.clear()
        ours, theirs = interleaved(lap, vector.lap, pairs)
    name = f"{machines} machine{'s' if machines > 1 else ''}"
    return [
        compared(f"{name}: a round, by the clock", "s", _wall(ours), _wall(theirs), TARGETS.get(machines)),
        Row(name=f"{name}: bytes between them in a round", unit="MB", ours=median(moved) / 1e6),
        Row(name=f"{name}: start-up", unit="s", ours=started),
    ]


def _wall(laps: list[Lap]) -> list[float]:
    return times(laps, "round", clock="wall")


@contextmanager
def _cluster(machines: int) -> Iterator[Any]:
    """Start a cluster of this number of machines, and join it."""
    from ray.cluster_utils import Cluster

    from fedpeer.sims.ray.cluster import join_cluster

    of_ray = Cluster()
    try:
        for _ in range(machines):
            of_ray.add_node(num_cpus=1)
        of_ray.wait_for_nodes()
        with join_cluster(str(of_ray.address), None, lambda text: None) as cluster:
            yield cluster
    finally:
        of_ray.shutdown()


def _engine(world: World, cluster: Any, shards: int) -> Any:
    from fedpeer.sims.ray.ray_worker_pool import open_shards

    return engine_of(world, parse_choice(METHOD), open_executor=partial(open_shards, cluster, shards))


@contextmanager
def _timed(made: Callable[[], Any]) -> Iterator[tuple[Any, float]]:
    """Open an engine; yield it with the seconds until the end of its first round."""
    began = time.perf_counter()
    with made() as engine:
        engine.step()
        yield engine, time.perf_counter() - began


def _loopback_bytes() -> int:
    """Return the bytes that have arrived over loopback since the computer's start."""
    lines = Path("/proc/net/dev").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.split()[0] == "lo:")


if __name__ == "__main__":
    show("ray_machines", __doc__, measure)
