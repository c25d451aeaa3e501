"""The ray engine for algorithms with a server: clients in shards, the server in the leading process.

The rounds are the vector engine's. Updates come to the leader as what the shards' methods return, and it closes the
round as ever. Of each client the object store holds how the last round left it, as patches: the states of those who
trained in some round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import ray
import torch
from torch import Tensor

from fedpeer.algorithms.leaves import leaves, rebuilt
from fedpeer.sims.ray.cluster import Cluster
from fedpeer.sims.ray.crew import RayWorkerPool, crew_of
from fedpeer.sims.ray.shard import Array, Rows, replaced_rows, room
from fedpeer.sims.ray.shards import Call
from fedpeer.sims.vector.engine import RoundTimes
from fedpeer.sims.vector.served import ROWS_AT_ONCE, ServedEngine
from fedpeer.sims.vector.workspace import tensor

#: Clients, the sides that they are on, and a reference to their states.
Patch = tuple[tuple[int, ...], tuple[int, ...], Any]


class RayServedEngine(ServedEngine):
    """All clients and the server of one method and seed. Use as a context manager."""

    def __init__(self, cluster: Cluster, shards: int | None, *asked: Any, **settings: Any) -> None:
        """
        Args:
            shards: how many; None: as many as the cluster has CPUs.
            asked, settings: as of the vector engine, whose number of workers means nothing here.
        """
        super().__init__(*asked, **settings)
        self._cluster, self._asked = cluster, shards
        self._told: dict[str, tuple[Any, Any]] = {}

    def __enter__(self) -> Self:
        plain = self._prepared(self._job.stepper())
        made = crew_of(self._cluster, self._asked, self._job, plain, (), self._replaced, self._stop)
        self._crew: RayWorkerPool = self._stack.enter_context(made)
        self._pool = self._crew
        # Here are updates only, until somebody asks for all; what is not written takes no room.
        x_Pn = room(plain.x[0].shape, plain.x[0].dtype)
        found = {name: room(t.shape, t.dtype) for name, t in plain.leaves.items()}
        self.workspace = replace(plain, x=(x_Pn, x_Pn), leaves=found)
        self._tell("server", self.server)
        self._resume([self._first(peers) for peers in self._crew.peers])
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    @property
    def x_Pn(self) -> Tensor:
        self._gather()
        return super().x_Pn

    def step(self) -> RoundTimes:
        before = list(self._sides)
        self._told.pop("broadcast", None)  # a shard that is made anew knows none
        times = super().step()
        self._keep([peer for peer, side in enumerate(self._sides) if side != before[peer]])
        return times

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        self._gather()
        return super().snapshot()

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        assert self._job.served is not None
        self.round, self._sides, self._examined = state["round"], [0] * len(self._sides), {}
        self.server = rebuilt(self.server, {name: tensors[f"server {name}"].clone() for name in leaves(self.server)})
        self._tell("server", self.server)
        names = list(leaves(self._job.served.client))
        self._resume(
            [[_patch(peers, {name: _stacked(tensors, name, peers) for name in names})] for peers in self._crew.peers]
        )

    # ------------------------------------------------------------------------------------------------------- its parts

    def _first(self, peers: Sequence[int]) -> list[Patch]:
        """What these clients begin with."""
        found = []
        for at in range(0, len(peers), ROWS_AT_ONCE):
            several = peers[at : at + ROWS_AT_ONCE]
            begun = leaves(self._begun(self.workspace, several))
            found.append(_patch(several, {name: leaf.numpy() for name, leaf in begun.items()}))
        return found

    def _tell(self, what: str, state: Any) -> None:
        if what not in self._told or self._told[what][0] is not state:
            told = ray.put({name: leaf.numpy() for name, leaf in leaves(state).items()})
            self._told[what] = state, told
            self._each([Call(shard, "tell", (what, told), changes=True) for shard in range(len(self._crew.shards))])

    def _taken(self, sending: Sequence[int]) -> list[int]:
        calls = [Call(shard, "updates", (mine,)) for shard, mine in self._mine(sending)]
        for call, rows in zip(calls, self._crew.shards.answers(calls), strict=True):
            for name, leaf in rows.items():
                self.workspace.leaves[f"update {name}"][list(call.args[0])] = tensor(leaf)
        return super()._taken(sending)

    def _settle(self, training: Sequence[int], sent: set[int]) -> None:
        self._tell("server", self.server)
        calls = []
        for shard, mine in self._mine(training):
            for at in range(0, len(mine), ROWS_AT_ONCE):
                peers = mine[at : at + ROWS_AT_ONCE]
                args = (peers, self._sides_of(peers), [peer in sent for peer in peers])
                calls.append(Call(shard, "settle", args, changes=True))
        self._each(calls)

    def _mine(self, peers: Sequence[int]) -> list[tuple[int, tuple[int, ...]]]:
        """Shards that have some of these peers, and which."""
        some = set(peers)
        found = [(shard, tuple(p for p in held if p in some)) for shard, held in enumerate(self._crew.peers)]
        return [(shard, mine) for shard, mine in found if mine]

    def _each(self, calls: Sequence[Call]) -> list[list[Any]]:
        """In the end of a round nobody stops any more."""
        return self._crew.shards.run(calls, stoppable=False)

    def _keep(self, trained: Sequence[int]) -> None:
        """A round is over: remember the states of those who trained."""
        mine = self._mine(trained)
        calls = [Call(shard, "kept", (peers, self._sides_of(peers)), 1) for shard, peers in mine]
        for (shard, peers), (_, reference) in zip(mine, self._each(calls), strict=True):
            self._patches[shard] = _needed([*self._patches[shard], (peers, self._sides_of(peers), reference)])
        self._settled()

    def _resume(self, patches: list[list[Patch]]) -> None:
        self._patches = patches
        self._each([_resuming(shard, each) for shard, each in enumerate(patches)])
        self._settled()

    def _settled(self) -> None:
        told = "server", self._told["server"][1]
        for shard, patches in enumerate(self._patches):
            self._crew.shards.settled(shard, Call(shard, "tell", told), _resuming(shard, patches))

    def _gather(self) -> None:
        """Have all clients' states here as they were at the end of the last round."""
        for patches in self._patches:
            for peers, sides, reference in patches:
                replaced_rows(self.workspace, peers, sides, ray.get(reference))


def _patch(peers: Sequence[int], states: Rows) -> Patch:
    """States of the first side."""
    return tuple(peers), (0,) * len(peers), ray.put(states)


def _stacked(tensors: Mapping[str, Tensor], name: str, peers: Sequence[int]) -> Array:
    """One leaf of some clients, from a snapshot: every client has a side here from the beginning."""
    return torch.stack([tensors[f"client {peer} {name}"] for peer in peers]).numpy()


def _needed(patches: Sequence[Patch]) -> list[Patch]:
    """Without those whose peers have all trained again since."""
    seen: set[int] = set()
    found = []
    for patch in reversed(patches):
        if not seen.issuperset(patch[0]):
            found.append(patch)
        seen.update(patch[0])
    return found[::-1]


def _resuming(shard: int, patches: Sequence[Patch]) -> Call:
    return Call(shard, "resume", ([(peers, sides) for peers, sides, _ in patches], *(each for _, _, each in patches)))
