"""Whole runs on a cluster, as many at once as it has CPUs for. Each is a task that Ray schedules.

If a run's process or machine dies, the leading process submits the run again. Ray's own retries are off, since they are
silent: this way the user is told at once that the run waits, and why. The result is the same, since a run follows from
its seed.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import ray
from ray.exceptions import NodeDiedError, ObjectLostError, OutOfMemoryError, RayError, RayTaskError, WorkerCrashedError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import fedpeer
from fedpeer.config.choice import ChoiceError
from fedpeer.sims.events import MethodDone, MethodStarted, RoundDone, RunBegun, RunLost, SimulationEvent
from fedpeer.sims.ray.board import ProgressQueue
from fedpeer.sims.ray.cluster import Cluster
from fedpeer.sims.ray.ray_errors import PATIENCE_SECONDS, error_reason, error_text
from fedpeer.sims.ray.remote_run import Files, RemoteRun, Simulate, run_remotely
from fedpeer.sims.vector.pool import DEATHS_PER_TASK_MAX, EngineError

#: Seconds that the end of a sweep waits for cancelled runs.
_TIDYING_SECONDS = 2.0
_DEAD = (WorkerCrashedError, NodeDiedError, OutOfMemoryError, ObjectLostError)


@dataclass
class _Attempt:
    """A remote run that was submitted to Ray, for the first time or again.

    begun   whether its process has reported that it began; from then on it asks whether to stop
    round   the last round of which an event has arrived; None before the first event of its method
    """

    remote_run: RemoteRun
    deaths: int
    begun: bool = False
    round: int | None = None


class Sweep:
    """The runs under way on a cluster. A context manager: at its end it cancels the runs that are left.

    Args:
        cpus: CPUs of each run.
        on_event: called with each event of a run.
        simulate: runs a prepared simulation.
        objects: data and network, if they are given as Python objects.

    Raises:
        ChoiceError: no machine of the cluster has so many CPUs.
    """

    def __init__(
        self,
        cluster: Cluster,
        cpus: int,
        on_event: Callable[[RemoteRun, SimulationEvent], None],
        stop: threading.Event,
        simulate: Simulate,
        objects: Mapping[str, Any] | None = None,
    ) -> None:
        most = cluster.widest
        if cpus > most:
            text = f"no machine of the Ray cluster has {cpus} CPUs for a run of {cpus} workers"
            raise ChoiceError(f"{text}; take --workers {max(most, 1)}, or add machines to it")
        self._cluster, self._cpus, self._on_event, self._stop = cluster, cpus, on_event, stop
        self._simulate = simulate
        self._objects = ray.put(dict(objects)) if objects else None
        self._run_remotely = ray.remote(run_remotely)
        self._numbers = itertools.count()
        self._under_way: dict[Any, int] = {}  # Ray's reference of a task -> number of the attempt
        self._attempts: dict[int, _Attempt] = {}  # by number, the attempts under way
        self._released: list[Any] = []
        self._rooms: dict[str, str] = {}
        self._stopping = self._received = False
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._board = ray.remote(ProgressQueue).options(num_cpus=0, scheduling_strategy=here).remote()
        return self

    def __exit__(self, *_: object) -> None:
        self._cancel(list(self._under_way))
        with contextlib.suppress(RayError):
            if self._released:  # to delete their folders
                ray.wait(self._released, num_returns=len(self._released), timeout=_TIDYING_SECONDS)
            ray.kill(self._board)

    def begin(self, remote_run: RemoteRun) -> None:
        """Submit a run to Ray, which starts it when there are CPUs."""
        self._rooms[remote_run.key] = secrets.token_hex(8)
        self._send(_Attempt(remote_run, 0))

    def finished(self) -> list[tuple[RemoteRun, Files]]:
        """Wait for some runs and return their folders; empty if none is under way.

        After a stop these may be folders of interrupted runs. Runs that have not begun by then are cancelled.

        Raises:
            EngineError: a run failed on its machine, or its process died DEATHS_PER_TASK_MAX times.
            DataError, ...: the user's mistakes.
        """
        while self._under_way:
            if self._stop.is_set() and not self._stopping:
                self._stopping = True
                self._board.stop.remote()
            # The wait ends with a run; its timeout bounds how late rounds are shown and a stop is noticed.
            ready, _ = ray.wait(list(self._under_way), timeout=0.2)
            self._pass_on_events()
            if self._stopping:
                self._cancel([task for task, number in self._under_way.items() if not self._attempts[number].begun])
            found = [self._result(task) for task in ready if task in self._under_way]
            if any(found):
                return [each for each in found if each is not None]
        return []

    def _send(self, attempt: _Attempt) -> None:
        remote_run = attempt.remote_run
        task = self._run_remotely.options(
            num_cpus=self._cpus, num_gpus=0, max_retries=0, scheduling_strategy="SPREAD", name=remote_run.name
        )
        number = next(self._numbers)
        arguments = (
            fedpeer.__version__,
            self._board,
            self._rooms[remote_run.key],
            number,
            remote_run,
            self._objects,
            self._simulate,
        )
        self._under_way[task.remote(*arguments)], self._attempts[number] = number, attempt

    def _cancel(self, tasks: list[Any]) -> None:
        """Cancel runs; a run that does not train yet ends with its process.

        The process may be importing modules: Ray would interrupt that, and give the next run a process with half a
        module.
        """
        for task in tasks:
            attempt = self._attempts.pop(self._under_way.pop(task))
            self._released.append(task)
            with contextlib.suppress(RayError):
                ray.cancel(task, force=attempt.round is None)

    def _pass_on_events(self) -> None:
        """Pass on the events of the runs."""
        try:
            events = ray.get(self._board.new_events.remote())
        except RayError as error:
            raise EngineError(f"events of the runs no longer arrive: {error_text(error)}") from None
        for number, event in events:
            if number not in self._attempts:
                continue  # this attempt died, and another one is under way
            attempt = self._attempts[number]
            match event:
                case RunBegun():
                    self._received = attempt.begun = True
                case MethodStarted():
                    attempt.round = event.first_round - 1
                case RoundDone():
                    attempt.round = event.round
                case MethodDone():
                    continue  # the run is done when its folder has arrived
            self._on_event(attempt.remote_run, event)
        if not self._received and time.monotonic() - self._began > PATIENCE_SECONDS:
            self._received = True
            free = f"{self._cpus} free CPU{'s' * (self._cpus > 1)}"
            self._cluster.remark(f"waiting for a process to start; it needs {free} on one machine of the cluster")

    def _result(self, task: Any) -> tuple[RemoteRun, Files] | None:
        """Return a run's folder; None if its process died and the run was submitted again."""
        attempt = self._attempts.pop(self._under_way.pop(task))
        remote_run = attempt.remote_run
        try:
            files: Files = ray.get(task)
        except _DEAD as error:
            self._lost(attempt, error_reason(error))
            return None
        except RayTaskError as error:
            if isinstance(error.cause, EngineError):
                raise EngineError(f"{remote_run.name}: {error.cause}") from None
            raise error.cause from error
        except RayError as error:
            raise EngineError(f"{remote_run.name}: Ray failed: {error_text(error)}") from None
        return remote_run, files

    def _lost(self, attempt: _Attempt, reason: str) -> None:
        remote_run, deaths = attempt.remote_run, attempt.deaths + 1
        if deaths >= DEATHS_PER_TASK_MAX:
            raise EngineError(f"{remote_run.name} died {deaths} times, the last by: {reason}")
        method, seed = remote_run.request.only
        self._on_event(remote_run, RunLost(method=method, seed=seed, reason=reason, round=attempt.round or 0))
        if not self._stopping:
            self._send(_Attempt(remote_run, deaths))
