"""The task of a sweep: a whole run on one machine of the cluster, whose folder is returned as files."""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import ray
from ray.exceptions import RayError

from fedpeer.config.choice import Choice
from fedpeer.data.dataset import DataError, Dataset
from fedpeer.data.registry import DATASETS, describe_dataset
from fedpeer.runs.folder import RunFolder
from fedpeer.sims.events import RunBegun, SimulationEvent
from fedpeer.sims.prepare import LastDataset, prepare_simulation
from fedpeer.sims.ray.shard import check_version
from fedpeer.sims.record import begin_record
from fedpeer.sims.request import SimulationRequest
from fedpeer.sims.simulation import Simulation

#: Seconds between two reports of a run's events, each of which also asks whether to stop: fast enough for the eye, and
#: little load for Ray.
_TELL_SECONDS = 0.25

#: The id and the files of a run's folder.
Files = tuple[str, Mapping[str, bytes]]
#: The type of `fedpeer.sims.simulate.run_prepared`: (simulation, its folder, handler of events, stop event).
Simulate = Callable[[Simulation, RunFolder, Callable[[SimulationEvent], None], threading.Event], object]


@dataclass(frozen=True, kw_only=True)
class RemoteRun:
    """A run of one method and one seed that any machine with enough CPUs can do.

    key        its key in the leading process
    name       its name for the user
    begun      its folder, if it is to be resumed
    command    the command line that repeats it
    notes      further descriptions for its folder, by name
    models     whether trained models are kept
    """

    key: str
    name: str
    request: SimulationRequest
    begun: Files | None = None
    command: str = ""
    notes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    models: bool = True


def run_remotely(
    version: str,
    board: Any,
    room: str,
    attempt: int,
    remote_run: RemoteRun,
    objects: Mapping[str, Any] | None,
    simulate: Simulate,
) -> Files:
    """Do the run, or the rest of it, and return its folder, finished or interrupted by a stop.

    Args:
        version: the leading process's version of fedpeer.
        board: the `ProgressQueue`, which receives the events and knows whether to stop.
        room: names a temporary folder of this machine, which an earlier attempt may have left behind.
        attempt: the number under which events are reported.
        objects: data and network, if they are given as Python objects.
        simulate: runs a prepared simulation.
    """
    check_version(version)
    stop, given = threading.Event(), dict(objects or {})
    method, seed = remote_run.request.only
    with _BoardWriter(board, attempt, stop) as on_event, contextlib.ExitStack() as stack:
        on_event(RunBegun(method=method, seed=seed))
        if "dataset" not in given:
            given["dataset"] = _dataset(remote_run.request.federation.simulation.dataset)
        simulation = prepare_simulation(remote_run.request, **given)
        root = stack.enter_context(_folder(room))
        run = (
            begin_record(root, simulation, remote_run.command)
            if remote_run.begun is None
            else RunFolder.adopt(root, *remote_run.begun)
        )
        for name, note in remote_run.notes.items():
            run.describe(name, note)
        simulate(simulation, run, on_event, stop)
        if not remote_run.models:
            run.forget_models()
        return run.id, run.files()


@contextlib.contextmanager
def _folder(room: str) -> Iterator[Path]:
    """Make an empty temporary folder on this machine, and delete it at the end."""
    path = Path(tempfile.gettempdir()) / f"fedpeer-run-{room}"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(mode=0o700)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


#: The last data set of this process, which does one run after another.
_last = LastDataset()


def _dataset(choice: Choice) -> Dataset:
    """Load the data set on this machine.

    Raises:
        DataError: it is not on this machine, or cannot be read.
    """
    machine = f"{socket.gethostname()} ({ray.util.get_node_ip_address()})"
    if choice.name in DATASETS and not describe_dataset(choice.name).here:
        raise DataError(
            f"{choice.name} is not on {machine}, a machine of the Ray cluster; bring it there (fedpeer data prepare "
            f"{choice.name}), with FEDPEER_DATA set for ray start if it is not in the usual folder"
        )
    try:
        return _last(choice)
    except DataError as error:
        raise DataError(f"on {machine}, a machine of the Ray cluster: {error}") from None


class _BoardWriter:
    """Reporter of a run's events to the board; sets `stop` when the board asks for it. A context manager."""

    def __init__(self, board: Any, attempt: int, stop: threading.Event) -> None:
        self._board, self._attempt, self._stop = board, attempt, stop
        self._events: list[SimulationEvent] = []
        self._lock, self._over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._talk, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def __call__(self, event: SimulationEvent) -> None:
        with self._lock:
            self._events.append(event)

    def _talk(self) -> None:
        over = False
        while not over:
            over = self._over.wait(_TELL_SECONDS)
            with self._lock:
                events, self._events = self._events, []
            with contextlib.suppress(RayError):  # the leading process's machine is lost, and Ray ends its tasks
                if ray.get(self._board.add.remote(self._attempt, events)):
                    self._stop.set()
