"""The Ray cluster, which is joined, or started on this machine and stopped again, without Ray's own output.

A `Sweep` (`sweep.py`) distributes whole runs over it. A run that is divided has actors, its shards (`shard.py`), with
one CPU each. They are reused by the next method and seed, since starting a process and importing torch takes longer
than many runs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ray
from numpy.typing import NDArray
from ray._private import worker as ray_worker

from fedpeer.config.choice import ChoiceError
from fedpeer.sims.events import Remark
from fedpeer.sims.ray.options import HERE
from fedpeer.sims.ray.shard import Shard
from fedpeer.sims.request import cores

#: Attempts to start a cluster on this machine: Ray waits half a minute for its own processes, and a busy machine needs
#: longer.
STARTS_MAX = 3


class Cluster:
    """The cluster that this process has joined. `close` ends the shards."""

    def __init__(self, on_remark: Callable[[Remark], None]) -> None:
        self._on_remark = on_remark
        self._idle: list[Any] = []
        self._actors: list[Any] = []
        self._held: tuple[NDArray[Any], Any] | None = None

    def remark(self, text: str) -> None:
        self._on_remark(Remark(text=text))

    @property
    def places(self) -> int:
        """Number of shards that fit: the CPUs of all machines."""
        return int(ray.cluster_resources().get("CPU", 0))

    @property
    def widest(self) -> int:
        """CPUs of the machine with the most CPUs."""
        alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        return int(max((resources.get("CPU", 0) for resources in alive), default=0))

    def shards(self, wanted: int | None) -> int:
        """Return the number of shards: as requested, or one per CPU.

        Raises:
            ChoiceError: there are fewer CPUs than shards, each of which needs one.
        """
        count = self.places
        if max(wanted or 1, 1) > count:
            some = "no CPU" if count == 0 else f"{count} CPU{'s' if count > 1 else ''}"
            raise ChoiceError(
                f"the Ray cluster has {some} for {wanted or 1} shards of one CPU each; take --shards {max(count, 1)}, "
                "or add machines to it"
            )
        return wanted or count

    def take(self) -> Any:
        """Return an idle actor, or a new one, which may have to wait for a CPU."""
        if self._idle:
            return self._idle.pop()
        options = {"num_cpus": 1, "num_gpus": 0, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        actor = ray.remote(Shard).options(**options).remote()
        self._actors.append(actor)
        return actor

    def give_back(self, actors: Sequence[Any]) -> None:
        """Return actors that are idle, for the next job."""
        self._idle += actors

    def end(self, actors: Sequence[Any]) -> None:
        """Kill these actors, whatever they are doing."""
        for actor in actors:
            self._actors.remove(actor)
            ray.kill(actor)

    def close(self) -> None:
        self._held = None
        self.end(list(self._actors))

    def hold(self, array: NDArray[Any]) -> Any:
        """Return a reference to an array in the object store; consecutive calls with the same array put it once."""
        if self._held is None or not _same_memory(self._held[0], array):
            self._held = array, ray.put(array)
        return self._held[1]


def _same_memory(a: NDArray[Any], b: NDArray[Any]) -> bool:
    return a.__array_interface__ == b.__array_interface__


@contextlib.contextmanager
def join_cluster(address: str, cpus: int | None, on_remark: Callable[[Remark], None]) -> Iterator[Cluster]:
    """Join a cluster, and leave it at the end. If the caller's program has already joined one, use that one.

    Args:
        address: HOST:PORT; "auto" for the cluster of this machine; "" for a new cluster on this machine alone.
        cpus: CPUs of a new cluster; None: all of this machine.

    Raises:
        ChoiceError: the cluster cannot be joined; with Ray's own reason.
    """
    own = not ray.is_initialized()
    if own:
        text = f"joining Ray at {address} ..." if address else "starting Ray on this machine, which takes seconds ..."
        on_remark(Remark(text=text, progress=True))
        _begin(address, cpus)
    cluster = Cluster(on_remark)
    try:
        yield cluster
    finally:
        with contextlib.suppress(Exception):  # actors that are lost need not be ended
            cluster.close()
        if own:
            ray.shutdown()


def _begin(address: str, cpus: int | None) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage statistics are sent to Ray's makers
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # otherwise every process prints a warning
    # Ray prints a line for each dead actor besides raising an exception; there is no public way to turn that off.
    ray_worker._worker_logs_enabled = False
    options = {"include_dashboard": False, "num_cpus": cpus or cores()} if not address else {}
    before = signal.getsignal(signal.SIGTERM) or signal.SIG_DFL
    try:
        for left in reversed(range(1 if address else STARTS_MAX)):
            try:
                ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **options)
                return
            except Exception as error:
                ray.shutdown()
                if not left:
                    reason = " ".join(str(error).split())[:300]
                    if address:
                        raise ChoiceError(f"cannot join the Ray cluster at {address}: {reason}; {HERE}") from None
                    raise ChoiceError(f"cannot start Ray on this machine: {reason}") from None
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # Ray replaces it, but the leading process decides when a run ends
