"""The common job by sixteen real peers, with TLS and state saved before it is sent, beside two processes by hand.

`python -m benchmarks.common_peers [--quick]` prints this table alone.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import torch
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.common_job import BATCH, IMAGES, PEERS, RATE, floor_lap, floor_of
from benchmarks.measure import Lap, Spent, cpu_seconds, times
from benchmarks.processes import door, round_of
from benchmarks.rows import Row, Section, compared, show
from benchmarks.worlds import Engine, federation, world_of
from fedpeer.config.choice import parse_choice
from fedpeer.config.federation import Federation
from fedpeer.peer.runtime.dashboard.ask import ask
from fedpeer.sims.processes.process_pool import ProcessPool
from fedpeer.sims.processes.settling import settle
from fedpeer.sims.world import World

METHOD = "full-averaging"
#: Most wall time of a round, in rounds of the two hand-written processes.
TARGET = 2.0
#: Seconds after which a round that has not begun counts as failed; seconds between two checks of the first peer.
PATIENCE, LOOK_S = 120.0, 0.02
#: Rounds that warm up (connections are made, buffers allocated), and the last round, the only one with an evaluation.
WARM, LAST = 2, 1


def measure(quick: bool) -> Section:
    """Measure twelve rounds (quick: six); half of the floor's are before the peers', half after, on the same job."""
    rounds = 6 if quick else 12
    world = world_of(_federation(WARM + rounds + LAST))
    with Engine(world, METHOD, workers=2) as engine, floor_of(engine) as floor:
        before = [floor_lap(floor) for _ in range(WARM + rounds // 2)][WARM:]
        ours, parts, x_Pn = _peers(world, rounds)
        after = [floor_lap(floor) for _ in range(rounds - rounds // 2 + LAST)][:-LAST]
        apart = float((x_Pn - floor.x_Pn).norm() / floor.x_Pn.norm())
    theirs = [*before, *after]
    return Section(
        f"The common job by {PEERS} real peers on this machine: TLS, and saved before it is said",
        f"The job of the first table, one exchange a round. After {WARM + rounds + LAST} rounds parameters differ by "
        f"{apart:.1e}, relative. The event loop has TLS, messages, decisions and the adding of shares; other threads "
        "train and save. Saving is in seconds of waiting for the disk, mean over peers.",
        [
            compared("a round, by the clock", "s", _wall(ours), _wall(theirs), TARGET),
            compared("a round, all processes", "CPU s", times(ours, "round"), times(theirs, "round")),
            *(Row(name=f"of a round: {name}", unit=unit, ours=value) for name, unit, value in parts),
        ],
    )


def _federation(rounds: int) -> Federation:
    wanted = federation(f"blocks:{IMAGES}", peers=PEERS, batch=BATCH, lr=RATE)
    learning = wanted.learning.model_copy(update={"rounds": rounds, "evaluate_every": rounds})
    return wanted.model_copy(update={"learning": learning})


def _wall(laps: Sequence[Lap]) -> list[float]:
    return times(laps, "round", clock="wall")


def _peers(world: World, rounds: int) -> tuple[list[Lap], list[tuple[str, str, float]], Tensor]:
    """Return laps of these rounds, the parts of a round, and all peers' parameters (P, n) at the end."""
    with tempfile.TemporaryDirectory(prefix="fedpeer-bench-") as folder:
        files = settle(Path(folder) / "peers", world, parse_choice(METHOD), "cpu")
        pool = ProcessPool(files, threads=1)
        try:
            _reached(files, pool, WARM + 1)
            pids = [int((_state(file) / "lock").read_text()) for file in files.values()]
            laps, loops, saved = list[Lap](), _loop_seconds(pids), _saving(files)
            ended = list[tuple[str, int]]()
            for number in range(WARM + 1, WARM + rounds + 1):
                wall, cpu = time.perf_counter(), cpu_seconds(pids) - time.process_time()
                _reached(files, pool, number + 1)
                used = cpu_seconds(pids) - time.process_time() - cpu
                laps.append({"round": Spent(used, time.perf_counter() - wall)})
            loop = (_loop_seconds(pids) - loops) / rounds
            saving = (_saving(files) - saved) / rounds
            while len(ended := [*ended, *pool.ended()]) < PEERS:
                time.sleep(LOOK_S)
            if any(code for _, code in ended):
                raise RuntimeError(f"peers ended with {dict(ended)}: {pool.words}")
        finally:
            pool.pause()
            pool.wait()
        names = [tensor.name for tensor in world.layout.tensors]
        found = [load_file(_state(file) / "model.safetensors") for file in files.values()]
        x_Pn = torch.stack([torch.cat([tensors[name].reshape(-1) for name in names]) for tensors in found])
    whole = fmean(lap["round"].cpu for lap in laps)
    parts = [("event loops", "CPU s", loop), ("other threads", "CPU s", whole - loop), ("saving", "s", saving)]
    return laps, parts, x_Pn


def _state(file: Path) -> Path:
    return file.parent / f"{file.parent.name}-state"


def _reached(files: Mapping[str, Path], pool: ProcessPool, round: int) -> None:
    """Wait until the first peer is in this round; all peers are in step."""
    began, first = time.perf_counter(), next(iter(files.values())).parent
    while round_of(first) < round:
        if time.perf_counter() - began > PATIENCE or pool.ended():
            raise RuntimeError(f"round {round} did not begin: {pool.words}")
        time.sleep(LOOK_S)


def _saving(files: Mapping[str, Path]) -> float:
    """Return the seconds that a peer has waited for its disk so far, mean over peers."""
    return fmean(ask(door(file.parent))["timings"]["save"]["sum"] for file in files.values())


def _loop_seconds(pids: Sequence[int]) -> float:
    """Return the CPU seconds of the first threads of these processes, on which their event loops run."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    show("common_peers", __doc__, measure)
