"""A Ray cluster of processes that stand for two machines, one for all tests of this folder, and engines on it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fedpeer.config.choice import parse_choice
from fedpeer.sims.memory import engine_of
from fedpeer.sims.world import World
from tests.sims.ray.held import VARIABLE


@dataclass(frozen=True)
class Machines:
    """Two joined machines of one CPU each. `of_ray` is Ray's own cluster, which can add machines and break them.

    hold    while this file exists, `held.Held` waits in the processes of the cluster
    """

    of_ray: Any
    cluster: Any
    hold: Path

    @property
    def address(self) -> str:
        return str(self.of_ray.address)

    def engine(self, made: World, method: str, shards: int | None = None, **watched: Any) -> Any:
        """Return the ray engine of one method in this world; add a machine where there is no room for the shards."""
        from fedpeer.sims.ray.ray_worker_pool import open_shards

        if (lacking := (shards or 0) - self.cluster.places) > 0:
            self.of_ray.add_node(num_cpus=lacking)
            self.of_ray.wait_for_nodes()
        return engine_of(
            made, parse_choice(method), open_executor=partial(open_shards, self.cluster, shards), **watched
        )


def vector(made: World, method: str) -> Any:
    """Return the vector engine of one method in this world."""
    return engine_of(made, parse_choice(method))


def _started(times: int) -> Any:
    """Start the cluster, with at most this many tries.

    Ray waits half a minute for its own processes, which is not enough on a busy machine. Its workers would have a lower
    priority, and get next to nothing of processors that other tests use.
    """
    from ray.cluster_utils import Cluster

    os.environ.setdefault("RAY_worker_niceness", "0")
    of_ray = Cluster()
    try:
        # Without the parts that no test uses, it starts in half the time.
        # Ray starts a process a CPU beforehand, and each that is used imports torch.
        of_ray.add_node(num_cpus=1, include_dashboard=False, no_monitor=True, include_log_monitor=False)
        of_ray.add_node(num_cpus=1)
        of_ray.wait_for_nodes()
    except Exception:
        of_ray.shutdown()
        if times == 1:
            raise
        return _started(times - 1)
    return of_ray


@pytest.fixture(scope="package")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    pytest.importorskip("ray")
    from fedpeer.sims.ray.cluster import STARTS_MAX, join_cluster

    hold = os.environ[VARIABLE] = str(tmp_path_factory.mktemp("held") / "hold")
    of_ray = _started(STARTS_MAX)
    try:
        with join_cluster(str(of_ray.address), None, lambda remark: None) as cluster:
            yield Machines(of_ray, cluster, Path(hold))
    finally:
        of_ray.shutdown()
        del os.environ[VARIABLE]


@pytest.fixture
def killing() -> Callable[[Any, str, int], None]:
    """Return a function that kills one of an engine's shard processes just before the engine calls this method."""
    import signal

    def prepare(running: Any, method: str, shard: int) -> None:
        shards = running._session.executor.shards
        run = shards.run

        def deadly(calls: Any, **how: Any) -> Any:
            if any(call.method == method for call in calls):
                shards.run = run
                os.kill(shards.process_ids[shard], signal.SIGKILL)
            return run(calls, **how)

        shards.run = deadly

    return prepare
