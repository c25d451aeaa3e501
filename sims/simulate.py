"""The main loop of a simulation: every method with every seed, on one of the engines, recorded after each round.

A (method, seed) pair is a cell. Cells run one after the other. After each round its measurements are in the run folder;
a checkpoint is written from time to time and on a stop. A second call resumes from it and reaches exactly the numbers
of an uninterrupted run. Alternatively, cells are distributed over a Ray cluster (`ray/cells.py`), each with a folder of
its own until all are finished.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from fedpeer.config.choice import parse_choice
from fedpeer.config.methods import method_of
from fedpeer.runs.folder import RunFolder, file_stem
from fedpeer.runs.index import RunStatus
from fedpeer.sims import record
from fedpeer.sims.best_models import BestModels
from fedpeer.sims.engine import Engine
from fedpeer.sims.events import (
    MethodDone,
    MethodStarted,
    Remark,
    RoundDone,
    SimulationEvent,
    SimulationStarted,
    WorkerReplaced,
)
from fedpeer.sims.footprint import footprint, footprint_text
from fedpeer.sims.memory import engine_of, workspace_of
from fedpeer.sims.request import MethodSeed, SimulationRequest, cores
from fedpeer.sims.simulation import Simulation
from fedpeer.sims.vector.clustering_engine import ClusteringEngine
from fedpeer.sims.vector.clustering_task import clustering_tasks_of
from fedpeer.sims.vector.engine import OpenExecutor
from fedpeer.sims.vector.pool import StateLostError, Stopped
from fedpeer.sims.vector.pooled import PooledEngine
from fedpeer.sims.vector.resident import RESIDENT_MAX
from fedpeer.sims.vector.workspace import tensor

if TYPE_CHECKING:
    from fedpeer.sims.ray.cluster import Cluster

#: Least seconds between two checkpoints. The pause is also at least CHECKPOINT_SHARE times as long as the last save, so
#: that saving large states never takes more than a twentieth of the time.
CHECKPOINT_SECONDS, CHECKPOINT_SHARE = 60.0, 20.0

#: Attempts at one cell when machines are lost; each after the first resumes from a checkpoint.
_LOSSES_MAX = 3

#: A mean loss above this counts as diverged: a cross-entropy starts near 2, a squared error of targets in their own
#: units may be millions.
_LOST = 1e9

#: Settings of averaging that an algorithm with a server does not use; local training uses the optimizer's state.
_PEER_TO_PEER = {
    "learning": ("weights", "buffers"),
    "gossip": ("protocol", "topology", "exchanges", "every", "drift", "wire"),
}

OnEvent = Callable[[SimulationEvent], None]
_Checkpoint = tuple[Mapping[str, Any], Mapping[str, Any]]


@dataclass(frozen=True)
class _Stage:
    """The objects that all cells share."""

    simulation: Simulation
    cluster: Cluster | None
    run: RunFolder
    on_event: OnEvent
    stop: threading.Event


def run_prepared(
    simulation: Simulation,
    run: RunFolder,
    on_event: OnEvent = lambda event: None,
    stop: threading.Event | None = None,
) -> dict[str, Any]:
    """Run a prepared simulation, or the rest of it if the run folder holds a checkpoint or finished cells.

    Returns:
        The summary of the measurements (the `--json` object). The run folder gets it too, with the run's status:
        "finished", or "interrupted" if `stop` was set meanwhile.

    Raises:
        EngineError: a task failed in every worker that took it.
    """
    stop = stop or threading.Event()
    request, world = simulation.request, simulation.world
    for leftover in run.path.glob("work-*"):  # of a killed process
        shutil.rmtree(leftover, ignore_errors=True)
    done, checkpoint = _progress(run, simulation.cells, request.federation.learning.rounds)
    record.describe_run(run, simulation)
    left = [cell for cell in simulation.cells if cell not in done]
    status: RunStatus = "finished"
    with _cluster_of(simulation, on_event) as cluster:
        on_event(
            SimulationStarted(
                run=run.id,
                dataset=simulation.dataset.name,
                peers=len(world.peers),
                rounds=request.federation.learning.rounds,
                cells=tuple(left),
                parameters=world.sizes,
                workers=_workers(simulation, cluster),
                device=simulation.device,
                at_once=1 if cluster is None or not request.spread else cluster.places // (request.workers or 1),
                measure="error" if simulation.dataset.task == "regression" else "accuracy",
            )
        )
        unshared = [text for plan in simulation.plans.values() for text in plan.unshared()]
        remarks = [*world.split.remarks, *_outside_memory(simulation), *unused_settings(request), *unshared]
        for text in dict.fromkeys(remarks):
            on_event(Remark(text=text))
        stage = _Stage(simulation, cluster, run, on_event, stop)
        try:
            if cluster is not None and request.spread:
                _spread(stage, left, done)
            else:
                for cell in left:
                    _run_to_end(stage, cell, _checkpoint_of(checkpoint, cell))
        except Stopped:
            status = "interrupted"
    record.describe_graphs(run, simulation)
    if status == "finished":
        shutil.rmtree(run.path / record.CELLS, ignore_errors=True)
    summary = record.run_summary(run, simulation)
    run.finish(summary, status)
    return summary


def _outside_memory(simulation: Simulation) -> list[str]:
    """Return the remark, if any, that the peers' states are too large for memory and stay on the disk."""
    found = footprint(simulation)
    return (
        [footprint_text(found, len(simulation.world.peers))]
        if found is not None and found.states > RESIDENT_MAX
        else []
    )


def unused_settings(request: SimulationRequest) -> list[str]:
    """Return a remark for each setting that has no effect on any of the methods."""
    learning, gossip = request.federation.learning, request.federation.gossip
    methods = [method_of(each) for each in request.methods]
    served, gossips = any(method.has_server for method in methods), any(method.averages for method in methods)
    remarks = []
    if not served:
        none = "algorithms with a server, and none has one here"
        if learning.participation < 1:
            remarks.append(f"participation {learning.participation:g} is for {none}: all peers take part")
        elif learning.everyone_trains is not False:
            remarks.append(f"everyone_trains is for {none}: all peers train")
    if served and not gossips:
        unused = ", ".join(filter(None, (_written(request, *group) for group in _PEER_TO_PEER.items())))
        if unused:
            remarks.append(f"{unused}: for algorithms without a server, and all have one here; not used")
    if all(method.has_server for method in methods) and learning.optimizer_state != "keep":
        remarks.append("learning.optimizer_state: for algorithms without a server, and all have one here; not used")
    own = [each.gossip.protocol for each in request.federation.partial_models.values() if each.gossip]
    if gossips and gossip.protocol in ("exact", "coordinator") and not any(own):
        unused = _written(request, "gossip", ("topology", "exchanges"))
        if unused:
            remarks.append(f"{unused}: protocol {gossip.protocol} takes the mean of all members at once; not used")
    if gossips and gossip.every > learning.rounds:
        every, rounds = gossip.every, learning.rounds
        remarks.append(
            f"gossip.every {every} is above the {rounds} rounds of the run: peers average nothing but partial models "
            "with a gossip.every of their own"
        )
    return remarks


def _written(request: SimulationRequest, section: str, names: Sequence[str]) -> str:
    """Return those of these settings of a section of the federation that are not as usual, in words."""
    settings = getattr(request.federation, section)
    usual = type(settings)()
    return ", ".join(f"{section}.{name}" for name in names if getattr(settings, name) != getattr(usual, name))


def _workers(simulation: Simulation, cluster: Cluster | None = None) -> int:
    """Return how many processes train.

    These are the shards or runs at once on a cluster; the vector engine's workers, none if a device does the work; one
    per peer of the processes engine; one for the network engine.
    """
    if cluster is not None:
        request = simulation.request
        return cluster.places if request.spread else cluster.shards(request.shards)
    if simulation.request.engine != "vector":
        return len(simulation.world.peers) if simulation.request.engine == "processes" else 1
    return (simulation.request.workers or cores()) if simulation.device == "cpu" else 0


def _cluster_of(simulation: Simulation, on_event: OnEvent) -> AbstractContextManager[Cluster | None]:
    """Join the Ray cluster that the request asks for. Ray is imported only then."""
    request = simulation.request
    if request.engine != "ray":
        return nullcontext()
    from fedpeer.sims.ray.cluster import join_cluster

    return join_cluster(request.address, request.shards, on_event)


def _spread(stage: _Stage, cells: Sequence[MethodSeed], done: Collection[MethodSeed]) -> None:
    """Distribute whole runs over the cluster. Raises Stopped."""
    from fedpeer.sims.ray.cells import run_cells

    assert stage.cluster is not None, "it is spread over one"
    request = stage.simulation.request
    # A run knows one method, which may not use what another one of the simulation uses.
    wrong = {text for method, seed in cells for text in unused_settings(request.alone(parse_choice(method), seed))}
    parts = stage.simulation, stage.cluster, stage.run, cells, done, stage.on_event, stage.stop, run_prepared
    if not run_cells(*parts, unsaid=wrong):
        raise Stopped


def _run_to_end(stage: _Stage, cell: MethodSeed, resumed: _Checkpoint | None) -> None:
    """Run a cell to its end; if machines are lost with the peers' states, resume from the last checkpoint."""
    for left in reversed(range(_LOSSES_MAX)):
        try:
            _run_cell(stage, cell, resumed)
            return
        except StateLostError:
            if not left:
                raise
            rounds = stage.simulation.request.federation.learning.rounds
            _, checkpoint = _progress(stage.run, stage.simulation.cells, rounds)
            resumed = _checkpoint_of(checkpoint, cell)
            where = f"round {resumed[1]['recorded']}, the last checkpoint" if resumed else "the start"
            text = f"{cell.method}: a machine was lost, and its peers' last round with it; resuming from {where}"
            stage.on_event(Remark(text=text))


def _run_cell(stage: _Stage, cell: MethodSeed, resumed: _Checkpoint | None) -> None:
    """Run a cell from its start or from a checkpoint."""
    run, on_event, world = stage.run, stage.on_event, stage.simulation.worlds[cell.seed]
    learning = world.federation.learning
    engine = _engine_of(stage, cell)
    # A stop may come between a round's averaging and its evaluation: `recorded` may be one behind `engine.round`.
    recorded, seconds = 0, 0.0
    diverged = ""
    with engine:
        if resumed is not None:
            tensors, state = resumed
            engine.restore({name: tensor(value) for name, value in tensors.items()}, state["engine"])
            recorded, seconds = state["recorded"], state["seconds"]
        on_event(MethodStarted(method=cell.method, seed=cell.seed, rounds=learning.rounds, first_round=recorded + 1))
        best = BestModels(run, world, cell.method, cell.seed, resumed=resumed is not None)
        saved, took = time.monotonic(), 0.0
        try:
            while recorded < learning.rounds:
                if engine.round == recorded:
                    times = engine.step()
                    seconds = times.train + times.average
                results = engine.evaluate() if learning.evaluated(engine.round) else None
                row = record.record_row(world, engine, seconds, results)
                if engine.round == learning.rounds:
                    row |= _metrics(stage, cell, engine)
                best.consider(row, engine)
                run.record({"method": cell.method, "seed": cell.seed, **row})
                recorded = engine.round
                if results and not diverged:
                    diverged = _diverged(world.peers, results)
                    if diverged:
                        text = f"the loss of {diverged} is above {_LOST:g} or NaN since round {recorded}"
                        on_event(Remark(text=f"{cell.method}: {text}; try a smaller learning rate"))
                on_event(
                    RoundDone(
                        method=cell.method,
                        seed=cell.seed,
                        round=engine.round,
                        rounds=learning.rounds,
                        seconds=seconds,
                        score_P=None if results is None else tuple(each[0] for each in results),
                        loss_P=None if results is None else tuple(each[1] for each in results),
                        bytes_sent=sum(row["bytes_sent"]),
                        messages_sent=sum(row["messages_sent"]),
                    )
                )
                if time.monotonic() - saved > max(CHECKPOINT_SECONDS, CHECKPOINT_SHARE * took):
                    took = _save(run, cell, engine, recorded, seconds)
                    saved = time.monotonic()
        except Stopped:
            _save(run, cell, engine, recorded, seconds)
            raise
        record.describe_relations(run, engine, world, cell.method)
        record.describe_timeline(run, engine, cell.method)
        # The models come last: with the last row they show that the cell is finished.
        last = record.models(world, dict(zip(world.peers, engine.x_Pn, strict=True)))
        run.save_models(cell.method, cell.seed, last, record.card(world))
    on_event(MethodDone(method=cell.method, seed=cell.seed))


def _diverged(peers: Sequence[str], results: Sequence[tuple[float, float]]) -> str:
    """Return the peers whose loss is lost, in words, the first three by name; "" if there are none."""
    lost = [peer for peer, (_, loss) in zip(peers, results, strict=True) if not loss < _LOST]
    return ", ".join(lost[:3]) + (f" and {len(lost) - 3} more" if lost[3:] else "")


def _metrics(stage: _Stage, cell: MethodSeed, engine: Engine) -> dict[str, Any]:
    """Return the entry of a row for the metrics of the last models, if any are wanted, and describe their answers."""
    metrics, world = stage.simulation.metrics[cell.method], stage.simulation.worlds[cell.seed]
    job = stage.simulation.jobs[cell.seed]
    last = cell.seed == stage.simulation.request.seeds[-1]  # its confusion matrix stays
    if not metrics and not (last and record.shows_confusion(world)):
        return {}
    found = record.answers_of(world, job, engine, metrics)
    record.describe_answers(stage.run, world, cell.method, found.described)
    for name, problem in found.failed.items():
        stage.on_event(Remark(text=f"{cell.method}: the metric {name} failed: {problem}"))
    if not metrics:
        return {}
    if not world.split.validates:
        return {"metrics": found.values}
    return {
        "metrics": found.values,
        "validation_metrics": record.answers_of(world, job, engine, metrics, validation=True).values,
    }


def _engine_of(stage: _Stage, cell: MethodSeed) -> Engine:
    """Make the engine of this cell."""
    simulation, run, on_event, stop = stage.simulation, stage.run, stage.on_event, stage.stop
    world, method = simulation.worlds[cell.seed], parse_choice(cell.method)

    def replaced(who: str, reason: str) -> None:
        on_event(WorkerReplaced(worker=who, reason=reason, method=cell.method, seed=cell.seed, round=engine.round + 1))

    def refused(peer: str, reason: str) -> None:
        on_event(Remark(text=f"{cell.method}: the update of {peer} in round {engine.round + 1} is left out: {reason}"))

    engine: Engine
    common: dict[str, Any] = {"workers": _workers(simulation), "folder": run.path, "replaced": replaced, "stop": stop}
    match simulation.request.engine:
        case "vector" if (found := method_of(method)).pooled:
            memory = workspace_of(world, simulation.plans[cell.method], simulation.device)
            inputs = simulation.jobs[cell.seed], memory(), world.drawn("")
            if (linear := found.linear) is None:
                engine = PooledEngine(*inputs, stop=stop)
            else:
                from fedpeer.sims.vector.pooled_linear import PooledLinearEngine  # it compiles for half a second

                engine = PooledLinearEngine(*inputs, *linear, stop=stop)
        case "network":
            from fedpeer.sims.network.engine import NetworkEngine  # real peers' code, which no other engine needs

            engine = NetworkEngine(world, method, faults=simulation.faults, stop=stop)
        case "processes":
            from fedpeer.sims.processes.engine import ProcessesEngine

            engine = ProcessesEngine(
                world,
                method,
                folder=run.path / f"peers-{file_stem(*cell)}",
                logs=run.path / "logs" / file_stem(*cell),
                device=simulation.device,
                remark=lambda text: on_event(Remark(text=text)),
                replaced=replaced,
                stop=stop,
            )
        case "vector" if clustering_tasks := clustering_tasks_of(world, method):
            engine = ClusteringEngine(
                simulation.jobs[cell.seed],
                world,
                method,
                clustering_tasks,
                lambda decided: on_event(
                    Remark(text=record.describe_groups(run, cell.method, cell.seed, world, decided))
                ),
                **common,
            )
        case "vector" | "ray":
            open_executor = _open_executor(stage.cluster, simulation.request.shards)
            job = simulation.jobs[cell.seed]
            engine = engine_of(world, method, job=job, refused=refused, open_executor=open_executor, **common)
    return engine


def _open_executor(cluster: Cluster | None, shards: int | None) -> OpenExecutor | None:
    """Return the function that opens an executor on the cluster, if there is one."""
    if cluster is None:
        return None
    from fedpeer.sims.ray.ray_worker_pool import open_shards

    return partial(open_shards, cluster, shards)


def _checkpoint_of(checkpoint: _Checkpoint | None, cell: MethodSeed) -> _Checkpoint | None:
    """Return the checkpoint if it belongs to this cell."""
    return checkpoint if checkpoint and MethodSeed(*checkpoint[1]["cell"]) == cell else None


def _save(run: RunFolder, cell: MethodSeed, engine: Engine, recorded: int, seconds: float) -> float:
    """Write a checkpoint and return the seconds that it took."""
    began = time.monotonic()
    tensors, state = engine.snapshot()
    named = {name: value.cpu() for name, value in tensors.items()}
    where = {"cell": [cell.method, cell.seed], "recorded": recorded, "seconds": seconds}
    run.save_checkpoint(named, {**where, "engine": state})
    return time.monotonic() - began


def _progress(run: RunFolder, cells: Sequence[MethodSeed], rounds: int) -> tuple[set[MethodSeed], _Checkpoint | None]:
    """Return the finished cells and the checkpoint of the unfinished one; drop rows that no checkpoint covers."""
    checkpoint = run.load_checkpoint()
    last = {MethodSeed(row["method"], row["seed"]): row["round"] for row in run.rows()}
    done = {cell for cell in cells if last.get(cell) == rounds and run.models(cell.method, cell.seed).is_file()}
    covered = dict.fromkeys(done, rounds)
    if checkpoint is not None:
        covered.setdefault(MethodSeed(*checkpoint[1]["cell"]), checkpoint[1]["recorded"])
    if last:
        run.truncate(lambda row: row["round"] <= covered.get(MethodSeed(row["method"], row["seed"]), 0))
    return done, checkpoint
