"""Sixteen real peers as processes of this machine beside the vector engine: start-up, a round and its parts, memory.

`python -m benchmarks.processes [--quick]` prints this table alone.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch

from benchmarks.measure import Spent, cpu_seconds, proportional_bytes
from benchmarks.rows import Row, Section
from benchmarks.worlds import Engine
from fedpeer.config.choice import parse_choice
from fedpeer.config.federation import Federation
from fedpeer.learning.holdings import load_dataset
from fedpeer.peer.runtime.dashboard.access import DashboardAddress, DashboardError
from fedpeer.peer.runtime.dashboard.ask import ask
from fedpeer.sims.processes.engine import ProcessesEngine
from fedpeer.sims.processes.process_pool import ProcessPool
from fedpeer.sims.processes.settling import settle
from fedpeer.sims.world import World, build_world

METHOD = "partial-averaging"
PEERS = 16
START_TARGET = 15.0
#: Rounds that warm up: files are read, loops compiled, connections made.
WARM = 2
#: Seconds after which peers that have not begun count as failed.
PATIENCE = 120.0
#: Seconds between two checks of starting peers.
LOOK_S = 0.1


def measure(quick: bool) -> Section:
    """Measure ten rounds (quick: four) of both engines, one after the other, each alone on the machine."""
    rounds = 4 if quick else 10
    world = _world(WARM + rounds)
    wall, cpu, parts, memory, handles, met = _processes(world, rounds)
    floor = _vector(world, rounds)
    rest = wall - sum(parts.values())
    return Section(
        f"{PEERS} real processes on one machine: digits, 64-300-100-10, 87 single examples a round, tolerance 1e-4",
        "One after the other, in the same run, beside the vector engine with two workers. Seconds of a round are the "
        "median over rounds; its parts are means over peers, in which training and saving have threads of their own, "
        "and the rest is waiting: for the cores, for shares, for what a share waits for. Start-up is from the command "
        "until each peer has met all others. Memory counts pages that processes share once.",
        [
            Row(name="start-up, until all have met", unit="s", ours=met, target=START_TARGET),
            Row(name="a round, by the clock", unit="s", ours=wall, floor=floor.wall),
            Row(name="a round, all processes", unit="CPU s", ours=cpu, floor=floor.cpu),
            *(Row(name=f"of a round: {what}", unit="s", ours=seconds) for what, seconds in parts.items()),
            Row(name="of a round: the rest", unit="s", ours=rest),
            Row(name="memory a peer", unit="MiB", ours=memory / PEERS / 2**20),
            Row(name="file handles of the peer with the most", unit="", ours=handles),
        ],
    )


def _world(rounds: int) -> World:
    federation = Federation.model_validate(
        {
            "network": "mlp:64+300+100+10",
            "learning": {"rounds": rounds},
            "gossip": {"tolerance": 1e-4},
            "simulation": {"peers": PEERS},
        }
    )
    return build_world(federation, load_dataset(federation.simulation.dataset), federation.seed)


def _processes(world: World, rounds: int) -> tuple[float, float, Mapping[str, float], int, int, float]:
    """Return wall and CPU seconds of a round, its parts, bytes of all, most handles of one, seconds until all met."""
    method = parse_choice(METHOD)
    with tempfile.TemporaryDirectory(prefix="fedpeer-bench-") as folder:
        before = proportional_bytes()
        with ProcessesEngine(world, method, folder=Path(folder) / "peers") as engine:
            seconds = []
            for number in range(WARM + rounds):
                seconds.append(engine.step().average)
                if number == WARM - 1:
                    used = cpu_seconds(engine.process_ids) - time.process_time()
                if number == WARM + rounds - 2:
                    memory = proportional_bytes() - before
                    handles = max(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in engine.process_ids)
                    timings = [ask(door(Path(folder) / "peers" / "peers" / peer)) for peer in world.peers]
            cpu = (cpu_seconds(engine.process_ids) - time.process_time() - used) / rounds
        met = _until_all_have_met(Path(folder) / "again", world)
    parts = {
        name: fmean(status["timings"][key]["sum"] / (WARM + rounds - 1) for status in timings)
        for name, key in (("training", "train"), ("evaluation", "evaluate"), ("saving", "save"))
    }
    return median(seconds[WARM:]), cpu, parts, memory, handles, met


def _until_all_have_met(folder: Path, world: World) -> float:
    """Return the seconds until all have met; files and data are cached, as for the start-up of a simulation."""
    files = settle(folder, world, parse_choice(METHOD), "cpu")
    began = time.perf_counter()
    pool = ProcessPool(files, threads=1)
    try:
        waiting = dict(files)
        while waiting:
            waiting = {peer: file for peer, file in waiting.items() if not round_of(file.parent)}
            if time.perf_counter() - began > PATIENCE or pool.ended():
                raise RuntimeError(f"{', '.join(waiting)} did not begin: {pool.words}")
            time.sleep(LOOK_S)
        return time.perf_counter() - began
    finally:
        pool.pause()
        pool.wait()


def round_of(peer: Path) -> int:
    """Return the round of the peer in this folder; 0 before its first, which begins when it has met all others."""
    try:
        return int(ask(door(peer))["round"])
    except DashboardError:
        return 0


def door(peer: Path) -> DashboardAddress:
    """Return the address of a peer's dashboard, with its token."""
    settings: Mapping[str, Any] = json.loads((peer / f"{peer.name}.yaml").read_text(encoding="utf-8"))
    token = (peer / f"keys/{peer.name}.token").read_text(encoding="ascii").strip()
    return DashboardAddress(f"http://{settings['dashboard']['listen']}", token)


def _vector(world: World, rounds: int) -> Spent:
    """Return the time of a round with its evaluation, since a real peer also evaluates itself."""
    with Engine(world, METHOD, workers=2) as engine:
        for _ in range(WARM):
            engine.lap()
        laps = [engine.lap() for _ in range(rounds)]
    whole = [lap["round"] + lap["evaluation"] for lap in laps]
    return Spent(median(each.cpu for each in whole), median(each.wall for each in whole))


def main() -> None:
    from rich.console import Console

    parser = argparse.ArgumentParser(prog="python -m benchmarks.processes", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds")
    torch.set_num_threads(1)
    Console().print(measure(parser.parse_args().quick).table())


if __name__ == "__main__":
    main()
