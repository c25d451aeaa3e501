"""A simulation: every method with every seed, on the vector engine, recorded as it goes.

A (method, seed) pair is a cell. Cells are done one after the other; after each round the run folder holds what was
measured, and a checkpoint (at times, and when asked to stop) from which `resume` goes on to the very numbers of an
uninterrupted run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import networkx as nx
import numpy as np
import torch
from torch import nn

from fedpeer.algorithms.draws import Draws
from fedpeer.data.dataset import Dataset
from fedpeer.data.splits import summary as split_summary
from fedpeer.gossip.averaging import Averaging, traffic
from fedpeer.peer.core.choice import Choice, bind, lookup
from fedpeer.peer.core.federation import Federation
from fedpeer.runs.folder import RunFolder
from fedpeer.runs.index import Status
from fedpeer.runs.summary import summarise
from fedpeer.sims.events import Event, MethodDone, MethodStarted, Remark, RoundDone, SimulationStarted, WorkerReplaced
from fedpeer.sims.memory import job_of, sample_weights, start_of, workspace_of
from fedpeer.sims.request import SimulationRequest, cores
from fedpeer.sims.vector.engine import VectorEngine
from fedpeer.sims.vector.pool import Stopped
from fedpeer.sims.world import World, build, load_dataset, method_of, plan_of
from fedpeer.slicing.describe import describe, to_svg
from fedpeer.slicing.plan import Plan
from fedpeer.topology.graphs import GRAPHS
from fedpeer.topology.overlay import overlay

#: Seconds between two checkpoints; also at least CHECKPOINT_SHARE times what the last one took, so that saving large
#: states never takes more than a twentieth of the time.
CHECKPOINT_SECONDS, CHECKPOINT_SHARE = 60.0, 20.0

Tell = Callable[[Event], None]


@dataclass(frozen=True)
class _Cell:
    method: Choice
    seed: int

    @property
    def key(self) -> tuple[str, int]:
        return str(self.method), self.seed


def simulate(
    request: SimulationRequest,
    run: RunFolder,
    tell: Tell = lambda event: None,
    stop: threading.Event | None = None,
    *,
    dataset: Dataset | None = None,
    module: nn.Module | None = None,
) -> dict[str, Any]:
    """Do what is asked, or the rest of it if the run folder holds a checkpoint or finished cells.

    `dataset` and `module` are used in place of what the federation names, by callers that have objects and not names.

    Returns:
        The summary (the `--json` object) of what was measured; also written into the run folder, with its status:
        "finished", "interrupted" if `stop` was set meanwhile.

    Raises:
        DataError, NetworkError, SlicingError, TopologyError, ChoiceError, OptimizerError: the user's mistakes.
        EngineError: a task failed in every worker that took it.
    """
    stop = stop or threading.Event()
    device = _device(request.device)
    cells = [_Cell(method, seed) for seed in request.seeds for method in request.methods]
    done, checkpoint = _progress(run, cells, request.federation.learning.rounds)
    dataset = dataset or load_dataset(request.federation.simulation.dataset)
    worlds = {seed: build(request.federation, dataset, seed, module) for seed in request.seeds}
    world = worlds[request.seeds[0]]
    _describe(run, world, request)
    left = [cell for cell in cells if cell.key not in done]
    workers = request.workers or cores()
    tell(
        SimulationStarted(
            run=run.id,
            dataset=dataset.name,
            peers=len(world.peers),
            rounds=request.federation.learning.rounds,
            cells=tuple(cell.key for cell in left),
            parameters=world.layout.n,
            workers=workers if device == "cpu" else 0,
            device=device,
        )
    )
    for text in dict.fromkeys(world.split.remarks):
        tell(Remark(text=text))
    status: Status = "finished"
    for cell in left:
        resumed = checkpoint if checkpoint is not None and tuple(checkpoint[1]["cell"]) == cell.key else None
        try:
            _play(cell, worlds[cell.seed], run, tell, stop, device, workers, resumed)
        except Stopped:
            status = "interrupted"
            break
    summary = _summary(run, dataset, world, request)
    run.finish(summary, status)
    return summary


def _play(
    cell: _Cell,
    world: World,
    run: RunFolder,
    tell: Tell,
    stop: threading.Event,
    device: str,
    workers: int,
    resumed: tuple[Mapping[str, Any], Mapping[str, Any]] | None,
) -> None:
    """One method with one seed, from its start or from a checkpoint."""
    method, learning = str(cell.method), world.federation.learning
    plan = plan_of(world, method_of(cell.method))
    averaging = averaging_of(plan, world.federation, cell.seed)
    current = 0

    def replaced(worker: str, reason: str) -> None:
        tell(WorkerReplaced(worker=worker, reason=reason, method=method, seed=cell.seed, round=current))

    engine = VectorEngine(
        job_of(world, device),
        plan,
        averaging,
        workspace_of(world, plan, device),
        start_of(world),
        weights_P=sample_weights(world),
        workers=workers,
        replaced=replaced,
        stop=stop,
    )
    with engine:
        if resumed is not None:
            tensors, state = resumed
            engine.restore({name: torch.from_numpy(value) for name, value in tensors.items()}, state["engine"])
        tell(MethodStarted(method=method, seed=cell.seed, rounds=learning.rounds, first_round=engine.round + 1))
        saved, took = time.monotonic(), 0.0
        try:
            while engine.round < learning.rounds:
                current = engine.round + 1
                times = engine.step()
                sent = _sent(world, plan, averaging, current)
                due = current % learning.evaluate_every == 0 or current == learning.rounds
                results = engine.evaluate() if due else None
                _record(run, cell, current, times.train + times.average, results, world, sent, engine)
                _told(tell, cell, current, learning.rounds, times.train + times.average, results, sent)
                if time.monotonic() - saved > max(CHECKPOINT_SECONDS, CHECKPOINT_SHARE * took):
                    took = _save(run, cell, engine)
                    saved = time.monotonic()
        except Stopped:
            _save(run, cell, engine)
            raise
        run.save_models(method, cell.seed, _models(world, engine))
    tell(MethodDone(method=method, seed=cell.seed))


def averaging_of(plan: Plan, federation: Federation, seed: int) -> dict[str, Averaging]:
    """How each group of a plan averages: its overlay drawn from the stream (seed, "overlay", group)."""
    gossip = federation.gossip
    function = lookup(gossip.topology, GRAPHS, "topology")
    graph = partial(function, **bind(gossip.topology, function))
    draws = Draws(seed)

    def matching(group: str) -> Callable[[int, int], np.random.Generator]:
        return lambda number, exchange: draws.numpy(f"matching {exchange}", group, number)

    return {
        group.id: Averaging.of(
            overlay(graph, group.members, draws.numpy("overlay", group.id)),
            gossip.protocol,
            tolerance=gossip.tolerance if gossip.exchanges is None else None,
            exchanges=gossip.exchanges,
            draws=matching(group.id),
        )
        for group in plan.groups
    }


def _sent(world: World, plan: Plan, averaging: Mapping[str, Averaging], number: int) -> tuple[list[int], list[int]]:
    """Messages and bytes that each peer sends in the averaging of round `number` (1, 2, ...)."""
    messages, amount = [0] * len(world.peers), [0] * len(world.peers)
    for group in plan.groups:
        for peer, (count, size) in zip(
            group.members, traffic(averaging[group.id], group.length, number - 1), strict=True
        ):
            messages[world.peers.index(peer)] += count
            amount[world.peers.index(peer)] += size
    return messages, amount


def _record(
    run: RunFolder,
    cell: _Cell,
    number: int,
    seconds: float,
    results: list[tuple[float, float]] | None,
    world: World,
    sent: tuple[list[int], list[int]],
    engine: VectorEngine,
) -> None:
    score = "accuracy" if world.dataset.task == "classification" else "error"
    run.record(
        {
            "method": str(cell.method),
            "seed": cell.seed,
            "round": number,
            "seconds": seconds,
            score: results and [each[0] for each in results],
            "loss": results and [each[1] for each in results],
            "messages_sent": sent[0],
            "bytes_sent": sent[1],
            "disagreement": engine.disagreement() if results else {},
            "weight": {group: [float(np.min(w)), float(np.max(w))] for group, w in engine.weights.items()},
        }
    )


def _told(
    tell: Tell, cell: _Cell, number: int, rounds: int, seconds: float, results: Any, sent: tuple[list[int], list[int]]
) -> None:
    scores = None if results is None else tuple(each[0] for each in results)
    tell(
        RoundDone(
            method=str(cell.method),
            seed=cell.seed,
            round=number,
            rounds=rounds,
            seconds=seconds,
            score_P=scores,
            bytes_sent=sum(sent[1]),
            messages_sent=sum(sent[0]),
        )
    )


def _save(run: RunFolder, cell: _Cell, engine: VectorEngine) -> float:
    """Write a checkpoint; the seconds it took."""
    began = time.monotonic()
    tensors, state = engine.snapshot()
    run.save_checkpoint({name: value.cpu() for name, value in tensors.items()}, {"cell": cell.key, "engine": state})
    return time.monotonic() - began


def _progress(run: RunFolder, cells: list[_Cell], rounds: int) -> tuple[set[tuple[str, int]], Any]:
    """The finished cells and the checkpoint of the one under way; rows that no checkpoint covers are dropped."""
    checkpoint = run.load_checkpoint()
    last: dict[tuple[str, int], int] = {}
    for row in run.rows():
        last[row["method"], row["seed"]] = row["round"]
    done = {cell.key for cell in cells if last.get(cell.key) == rounds}
    covered = dict.fromkeys(done, rounds)
    if checkpoint is not None:
        covered.setdefault(tuple(checkpoint[1]["cell"]), checkpoint[1]["engine"]["round"])
    if last:
        run.truncate(lambda row: row["round"] <= covered.get((row["method"], row["seed"]), 0))
    return done, checkpoint


def _models(world: World, engine: VectorEngine) -> dict[str, torch.Tensor]:
    """Names such as "peer1/hidden1.weight"."""
    found = {}
    for peer, x_n in zip(world.peers, engine.x_Pn, strict=True):
        found.update({f"{peer}/{name}": value for name, value in world.layout.unflatten(x_n).items()})
    return found


def _describe(run: RunFolder, world: World, request: SimulationRequest) -> None:
    """What the report draws: the split, the slices of the first method that shares some, its graphs."""
    run.describe("split", split_summary(world.dataset, world.split))
    for choice in sorted(request.methods, key=lambda each: method_of(each).sharing != "partial models"):
        plan = plan_of(world, method_of(choice))
        if not plan.groups:
            continue
        described = describe(plan, world.network)
        run.describe("plan", {"method": str(choice), **described.to_json(), "svg": to_svg(described)})
        run.describe("graphs", {"groups": _graphs(plan, request.federation, world.seed)})
        return


def _graphs(plan: Plan, federation: Federation, seed: int) -> list[dict[str, Any]]:
    found = []
    for id, policy in averaging_of(plan, federation, seed).items():
        union = policy.overlay.union
        positions = nx.circular_layout(nx.Graph(union))
        found.append(
            {
                "group": id,
                "nodes": list(policy.overlay.members),
                "edges": [[int(a), int(b)] for a, b in union.edges],
                "directed": union.is_directed(),
                "positions": [[float(x) for x in positions[node]] for node in sorted(union.nodes)],
                "exchanges": policy.exchanges,
            }
        )
    return found


def _summary(run: RunFolder, dataset: Dataset, world: World, request: SimulationRequest) -> dict[str, Any]:
    return {
        "schema": 1,
        "run": run.id,
        "dataset": dataset.name,
        "peers": len(world.peers),
        "seeds": list(request.seeds),
        "methods": summarise(run.rows()),
        "report": str(run.path / "report.html"),
    }


def _device(name: str) -> str:
    """`auto` is the fastest there is; a device that is not there is the user's mistake."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return next(each for each in ("cuda", "mps", "cpu") if available[each])
    if not available.get(name.split(":")[0], False):
        here = ", ".join(each for each, there in available.items() if there)
        raise DeviceError(f"there is no {name} device here; choose auto or {here}")
    return name


class DeviceError(ValueError):
    """The device asked for is not there."""
