"""The ray engine for equals: the vector engine's rounds, whose tasks are done by shards.

What it must read of the peers' parameters (a checkpoint, the models at the end) is gathered from the object store,
which holds how the last round ended. A stop in the middle of a round therefore goes on from the round before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpeer.algorithms.leaves import leaves
from fedpeer.gossip.averaging import Averaging
from fedpeer.sims.memory import Start
from fedpeer.sims.ray.cluster import Cluster
from fedpeer.sims.ray.crew import RayWorkerPool, crew_of
from fedpeer.sims.ray.shard import Rows, room
from fedpeer.sims.vector.engine import RoundTimes, VectorEngine, cut
from fedpeer.sims.vector.workspace import Job, Workspace
from fedpeer.slicing.plan import Group, Plan


class RayEngine(VectorEngine):
    """All peers of one method and seed. Use as a context manager: the shards are theirs as long as it lives."""

    def __init__(
        self,
        cluster: Cluster,
        shards: int | None,
        job: Job,
        plan: Plan,
        averaging: Mapping[str, Averaging],
        memory: Callable[[int], Workspace],
        start: Start,
        **settings: Any,
    ) -> None:
        """
        Args:
            shards: how many; None: as many as the cluster has CPUs.
            settings: as of the vector engine, whose number of workers means nothing here.
        """
        super().__init__(job, plan, averaging, memory, start, **settings)
        self._cluster, self._asked, self._fill = cluster, shards, start
        self._gathered: int | None = None

    def __enter__(self) -> Self:
        self.workspace = self._prepared(self._job.stepper())
        self._blocks = cut(self._job, range(len(self._job.peers)))
        self._mixes, self._keeps = self._cut_columns()
        made = crew_of(self._cluster, self._asked, self._job, self.workspace, self._mixes, self._replaced, self._stop)
        self._crew: RayWorkerPool = self._stack.enter_context(made)
        self._pool = self._crew
        self._crew.begin([ray.put(self._first(peers)) for peers in self._crew.peers])
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    @property
    def estimate_Pn(self) -> Tensor:
        self._gather()
        return super().estimate_Pn

    def step(self) -> RoundTimes:
        times = super().step()
        if not self._averages(self.round):
            self._crew.keep()
        return times

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        if self._trained:  # and stopped before its averaging was over: training is done again
            self._trained, self._s_side = False, 1 - self._s_side
        self._gather()
        return super().snapshot()

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        assert not state["trained"], "a snapshot is of a finished round"
        self.round, self._trained, self._examined, self._gathered = state["round"], False, {}, None
        self._side = self._s_side = 0
        self.weights = {group: np.array(value) for group, value in state["weights"].items()}
        self._crew.begin(
            [
                ray.put({name: value[list(peers)].numpy() for name, value in tensors.items()})
                for peers in self._crew.peers
            ]
        )

    def _own_weights(self, group: Group) -> NDArray[np.float64] | None:
        return None if self._algorithm is None else self._crew.weigh(group.id, self._s_side)

    def _states(self, side: int) -> Any:
        self._gather()
        return super()._states(side)

    def _first(self, peers: Sequence[int]) -> Rows:
        """What some peers begin with."""
        x_Bn = torch.empty(len(peers), self._job.layout.n)
        self._fill(x_Bn, peers)
        found = {"x": x_Bn.numpy()}
        if self._algorithm is not None:
            examples = torch.tensor([self.workspace.train.count(peer) for peer in peers])
            state = self._algorithm.start_client(x_Bn, examples)
            found |= {f"state {name}": leaf.numpy() for name, leaf in leaves(state).items()}
        return found

    def _gather(self) -> None:
        """Have everything here as it was at the end of the last round."""
        if self._gathered is None:
            memory = self.workspace
            x, s = ((room(t.shape, t.dtype), room(t.shape, t.dtype)) for t in (memory.x[0], memory.s[0]))
            held = {name: room(leaf.shape, leaf.dtype) for name, leaf in memory.leaves.items()}
            self.workspace = replace(memory, x=x, s=s, leaves=held)
        if self._gathered != self.round:
            self._crew.gather(self.workspace)
            self._gathered = self.round
