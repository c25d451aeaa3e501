"""Executors of an experiment's runs: in this process, one after the other, or on a Ray cluster, many at once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fedpeer.experiments.events import ExperimentEvent, OfRun
from fedpeer.runs.folder import RunFolder
from fedpeer.sims.events import MethodDone, RunBegun, SimulationEvent
from fedpeer.sims.prepare import LastDataset, prepare_simulation
from fedpeer.sims.record import begin_record
from fedpeer.sims.request import SimulationRequest
from fedpeer.sims.simulate import run_prepared

if TYPE_CHECKING:
    from fedpeer.sims.ray.remote_run import RemoteRun
    from fedpeer.sims.ray.sweep import Sweep

OnExperimentEvent = Callable[[ExperimentEvent], None]


@dataclass(frozen=True, kw_only=True)
class WantedRun:
    """A run that an experiment needs.

    digest     digest of its request, by which it is found again
    label      label of its cell
    what       which run of the cell: a seed, or a variant of a search
    folder     folder of an interrupted run to resume
    """

    digest: str
    label: str
    what: str
    request: SimulationRequest
    folder: RunFolder | None

    @property
    def name(self) -> str:
        return f"{self.label}, {self.what}"

    @property
    def note(self) -> dict[str, Any]:
        """Record in the run's folder, by which the run is found again."""
        return {"asked": self.request.to_json(), "label": self.label, "what": self.what}


@dataclass(frozen=True, kw_only=True)
class Where:
    """Place where runs are executed.

    root       folder of the run folders
    device     where to train, such as "cpu" or "auto"
    workers    training processes per run; None: the default
    cluster    address of a Ray cluster, "" for a new one on this machine, None for this process
    command    command line that the run folders record
    """

    root: Path
    device: str
    workers: int | None
    cluster: str | None
    command: str


class Executor(Protocol):
    """Executes runs.

    free       whether it accepts more runs
    at_once    most runs under way at once
    """

    @property
    def free(self) -> bool: ...
    @property
    def at_once(self) -> int: ...

    def begin(self, wanted: WantedRun) -> None:
        """Execute the run, now or when there is room."""

    def finished(self) -> dict[str, RunFolder]:
        """Wait for finished runs and return their folders by digest; empty if none is under way or all were stopped."""


class LocalExecutor:
    """Executes runs in this process, in the order in which they are begun."""

    at_once = 1

    def __init__(self, where: Where, on_event: OnExperimentEvent, stop: threading.Event) -> None:
        self._where, self._on_event, self._stop = where, on_event, stop
        self._waiting: deque[WantedRun] = deque()
        self._dataset = LastDataset()

    @property
    def free(self) -> bool:
        return not self._waiting

    def begin(self, wanted: WantedRun) -> None:
        self._waiting.append(wanted)

    def finished(self) -> dict[str, RunFolder]:
        if self._stop.is_set() or not self._waiting:
            return {}
        wanted, where = self._waiting.popleft(), self._where
        method, seed = wanted.request.only
        self._received(wanted, RunBegun(method=method, seed=seed))
        request = replace(wanted.request, device=where.device, workers=where.workers)
        simulation = prepare_simulation(request, dataset=self._dataset(wanted.request.federation.simulation.dataset))
        run = wanted.folder
        if run is None:
            run = begin_record(where.root, simulation, where.command)
            run.describe("cell", wanted.note)
        run_prepared(simulation, run, partial(self._received, wanted), self._stop)
        run.forget_models()  # no table needs them
        return {wanted.digest: run}

    def _received(self, wanted: WantedRun, event: SimulationEvent) -> None:
        self._on_event(OfRun(run=wanted.name, event=event))


class RayExecutor:
    """Executes runs on a Ray cluster, which gets every run at once."""

    free = True

    def __init__(
        self, where: Where, sweep: Sweep, at_once: int, received: Callable[[RemoteRun, SimulationEvent], None]
    ) -> None:
        self._where, self._sweep, self.at_once, self._received = where, sweep, at_once, received

    def begin(self, wanted: WantedRun) -> None:
        from fedpeer.sims.ray.remote_run import RemoteRun

        self._sweep.begin(
            RemoteRun(
                key=wanted.digest,
                name=wanted.name,
                request=replace(wanted.request, device="cpu", workers=self._where.workers or 1),
                begun=None if wanted.folder is None else (wanted.folder.id, wanted.folder.files()),
                command=self._where.command,
                notes={"cell": wanted.note},
                models=False,
            )
        )

    def finished(self) -> dict[str, RunFolder]:
        found = {}
        for remote_run, files in self._sweep.finished():
            run = found[remote_run.key] = RunFolder.adopt(self._where.root, *files)
            if run.status == "finished":
                method, seed = remote_run.request.only
                self._received(remote_run, MethodDone(method=method, seed=seed))
        return found


@contextmanager
def executor_for(where: Where, on_event: OnExperimentEvent, stop: threading.Event) -> Iterator[Executor]:
    """Yield the executor for a place; Ray is imported only for a cluster.

    Raises:
        ChoiceError: there is no such cluster, or it has too few CPUs.
    """
    if where.cluster is None:
        yield LocalExecutor(where, on_event, stop)
        return
    from fedpeer.sims.ray.cluster import join_cluster
    from fedpeer.sims.ray.sweep import Sweep

    def received(remote_run: RemoteRun, event: SimulationEvent) -> None:
        on_event(OfRun(run=remote_run.name, event=event))

    cpus = where.workers or 1
    with (
        join_cluster(where.cluster, None, on_event) as cluster,
        Sweep(cluster, cpus, received, stop, run_prepared) as sweep,
    ):
        yield RayExecutor(where, sweep, cluster.places // cpus, received)
