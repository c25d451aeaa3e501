"""The vector engine's tasks, done by shards: what a pool of workers is to one machine.

A task for some peers goes to the shard that has them. Averaging moves each parameter through the object store twice,
once on its way out and once back, however many exchanges it takes: each shard gives its rows of every parcel, one shard
averages a parcel, each takes its rows of it. The leading process hands references around, and never values.

Which shard has whom follows from the vector engine's blocks, which are never cut; so its numbers are the numbers here.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Self, TypeAlias

import numpy as np
import ray
from numpy.typing import NDArray

from fedpeer.sims.ray.cluster import Cluster
from fedpeer.sims.ray.shard import Parcel, Sides, packed, restored, taken
from fedpeer.sims.ray.shards import Call, Shards
from fedpeer.sims.vector.clients import Examine, Teach
from fedpeer.sims.vector.engine import cut
from fedpeer.sims.vector.equals import Advance, Appraise
from fedpeer.sims.vector.tasks import Evaluate, Keep, Mix, Mixing, Several, Spread, Task, Train
from fedpeer.sims.vector.workspace import Job, Workspace

#: Calls by which a phase's tasks are handed to one shard: so many times in it a stop is noticed.
CALLS = 8
#: Scalars that one parcel may have, unless a single block of columns has more: 16 MiB in float32.
PARCEL_SCALARS = 4 * 2**20
OfPeers: TypeAlias = Train | Advance | Teach | Evaluate | Appraise | Examine
#: A range of columns of a group.
Block: TypeAlias = tuple[str, int, int]


def dealt(job: Job, shards: int) -> list[tuple[int, ...]]:
    """Who is on which shard: whole blocks, the longest first, each to the shard that has least to do."""
    blocks = cut(job, range(len(job.peers)))
    shards = min(shards, len(blocks))
    work, found = [0] * shards, [[] for _ in range(shards)]  # type: tuple[list[int], list[list[int]]]
    for block in blocks:
        least = min(range(shards), key=work.__getitem__)
        work[least] += job.steps_P[block[0]] * len(block)
        found[least] += block
    return [tuple(sorted(peers)) for peers in found]


def parcelled(blocks: Sequence[Block], members: Mapping[str, int], shards: int) -> list[Parcel]:
    """The blocks in parcels, so small that all shards have some to average, and so large that they are not too many."""
    by_group: dict[str, list[tuple[int, int]]] = {}
    for group, start, stop in blocks:
        by_group.setdefault(group, []).append((start, stop))
    found = []
    for group, spans in by_group.items():
        scalars = max(stop - start for start, stop in spans) * members[group]
        size = max(1, min(len(spans) // (2 * shards), PARCEL_SCALARS // scalars))
        found += [Parcel(group, tuple(spans[at : at + size])) for at in range(0, len(spans), size)]
    return found


def crew_of(
    cluster: Cluster,
    asked: int | None,
    job: Job,
    workspace: Workspace,
    blocks: Sequence[Block],
    replaced: Callable[[str, str], None],
    stop: threading.Event,
) -> RayWorkerPool:
    """The crew of a job, on as many shards as were asked for or can be used; `workspace` has all but memory."""
    peers = dealt(job, cluster.shards(asked))
    told, data, inputs = ray.put(job), ray.put(packed(workspace)), cluster.hold(workspace.x_NF.numpy())
    memory = {f"{name} {side}": getattr(workspace, name)[side] for name in ("x", "s") for side in (0, 1)}
    memory |= workspace.leaves
    sizes = {name: (tuple(each.shape), each.dtype) for name, each in memory.items()}
    shards = Shards(cluster, [(told, data, inputs, each, sizes) for each in peers], replaced, stop)
    return RayWorkerPool(job, workspace, peers, blocks, shards)


class RayWorkerPool:
    """Shards that do the tasks of one job. Use as a context manager.

    The object store holds `rows` of the parcels after the last averaging, by parcel and shard, and what each shard has
    `kept` beside them.
    """

    def __init__(
        self, job: Job, workspace: Workspace, peers: Sequence[tuple[int, ...]], blocks: Sequence[Block], shards: Shards
    ) -> None:
        self._job, self._peers, self.shards = job, peers, shards
        self._owner = {peer: shard for shard, several in enumerate(peers) for peer in several}
        rows = {group: row_M.numpy() for group, row_M in workspace.rows.items()}
        self._parcels = parcelled(blocks, {group: len(row_M) for group, row_M in rows.items()}, len(shards))
        self._members = {
            group: {
                shard: own
                for shard, several in enumerate(peers)
                if len(own := np.flatnonzero(np.isin(rows[group], several)))
            }
            for group in {parcel.group for parcel in self._parcels}
        }
        self._of_shard = [
            [number for number, parcel in enumerate(self._parcels) if shard in self._members[parcel.group]]
            for shard in range(len(shards))
        ]
        self._mixing: dict[str, tuple[Mixing, Any]] = {}
        self._sides = self._settled = Sides(0, 0)
        self._rows: dict[tuple[int, int], Any] = {}
        self._kept: list[Any] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self.shards)
        return self

    def __exit__(self, *error: Any) -> None:
        self._rows, self._kept, self._mixing = {}, [], {}
        self._stack.__exit__(*error)

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Of the shards, each on its own machine."""
        return tuple(self.shards.process_ids)

    @property
    def peers(self) -> Sequence[tuple[int, ...]]:
        """Whom each shard has."""
        return self._peers

    def tell_mixing(self, group: str, mixing: Mixing) -> None:
        """From now on the group averages by this matrix."""
        known = self._mixing.get(group, (None, None))[0]
        if isinstance(known, np.ndarray) and isinstance(mixing, np.ndarray) and np.array_equal(known, mixing):
            return
        self._mixing[group] = mixing, ray.put(mixing)

    def run(self, tasks: Sequence[Task]) -> list[Any]:
        """Do all tasks, which are of one phase; results in their order. Raises as `Shards.run` does."""
        if tasks and isinstance(tasks[0], Several):
            several = [each.tasks for each in tasks if isinstance(each, Several)]
            found = iter(self.run([task for each in several for task in each]))
            return [[next(found) for _ in each] for each in several]
        if any(isinstance(task, Mix | Keep) for task in tasks):
            self._average(next(task.source for task in tasks if isinstance(task, Mix | Keep)))
            return [None] * len(tasks)
        if tasks and isinstance(tasks[0], Spread):
            return self._spread([task for task in tasks if isinstance(task, Spread)])
        return self._by_owner([task for task in tasks if not isinstance(task, Mix | Keep | Spread | Several)])

    # -------------------------------------------------------------------------------------------------- tasks of peers

    def _by_owner(self, tasks: Sequence[OfPeers]) -> list[Any]:
        changes = isinstance(tasks[0], Train | Advance | Teach) if tasks else False
        mine: list[list[tuple[int, OfPeers]]] = [[] for _ in self._peers]
        for number, task in enumerate(tasks):
            for shard, part in self._parts(task):
                mine[shard].append((number, part))
            if isinstance(task, Train | Advance):
                self._sides = Sides(1 - task.x_source, 1 - task.s_source)
        calls, numbers = [], []
        for shard, part_of in enumerate(mine):
            size = math.ceil(len(part_of) / CALLS)
            for at in range(0, len(part_of), size or 1):
                together = part_of[at : at + size]
                calls.append(Call(shard, "do", ([task for _, task in together],), changes=changes))
                numbers.append([number for number, _ in together])
        results: list[Any] = [None] * len(tasks)
        for several, answers in zip(numbers, self.shards.answers(calls), strict=True):
            for number, answer in zip(several, answers, strict=True):
                results[number] = answer
        return results

    def _parts(self, task: OfPeers) -> Iterator[tuple[int, OfPeers]]:
        """The task for each shard that has some of its peers; where not all clients train, a block may have several."""
        owners = [self._owner[peer] for peer in task.peers]
        if len(set(owners)) == 1:
            yield owners[0], task
            return
        assert isinstance(task, Teach), "only rounds of some clients have blocks of their own"
        for shard in sorted(set(owners)):
            here = [(p, s) for p, s, owner in zip(task.peers, task.sides, owners, strict=True) if owner == shard]
            yield shard, replace(task, peers=tuple(p for p, _ in here), sides=tuple(s for _, s in here))

    # ------------------------------------------------------------------------------------------------------- averaging

    def _average(self, source: int) -> None:
        """Side `source` of x -> the other one."""
        given = self._given(source)
        calls = []
        for number, parcel in enumerate(self._parcels):
            members = self._members[parcel.group]
            rows = [given[number, shard] for shard in members]
            args = (parcel, self._mixing[parcel.group][1], list(members.values()), *rows)
            calls.append(Call(number % len(self.shards), "mix", args, len(members)))
        mixed: dict[tuple[int, int], Any] = {}
        for number, (_, *rows) in enumerate(self.shards.run(calls)):
            for shard, reference in zip(self._members[self._parcels[number].group], rows, strict=True):
                mixed[number, shard] = reference
        del given, calls
        sides = Sides(1 - source, self._sides.s)
        takes = [
            Call(shard, "take", (source, sides.s, parcels, *rows), 1)
            for shard, (parcels, rows) in enumerate(self._of(mixed, shard) for shard in range(len(self.shards)))
        ]
        self._settle(sides, [kept for _, kept in self.shards.run(takes)], mixed)

    def _given(self, side: int) -> dict[tuple[int, int], Any]:
        """References to each shard's rows of each parcel."""
        calls = [
            Call(shard, "give", ([self._parcels[number] for number in numbers], side), len(numbers))
            for shard, numbers in enumerate(self._of_shard)
        ]
        return {
            (number, shard): reference
            for shard, (_, *rows) in enumerate(self.shards.run(calls))
            for number, reference in zip(self._of_shard[shard], rows, strict=True)
        }

    def _spread(self, tasks: Sequence[Spread]) -> list[Any]:
        side = tasks[0].source
        rows = self._rows if self._rows and side == self._sides.x else self._given(side)
        calls = []
        for number, parcel in enumerate(self._parcels):
            members = self._members[parcel.group]
            args = (parcel, list(members.values()), *(rows[number, shard] for shard in members))
            calls.append(Call(number % len(self.shards), "spread", args))
        found = {
            (parcel.group, *block): answer
            for parcel, answers in zip(self._parcels, self.shards.answers(calls), strict=True)
            for block, answer in zip(parcel.blocks, answers, strict=True)
        }
        return [found[task.group, task.start, task.stop] for task in tasks]

    # ------------------------------------------------------------------------------------------- what the rounds are at

    def begin(self, kept: Sequence[Any]) -> None:
        """Be what these references say, one a shard: all that `Shard.keep` hands out."""
        calls = [Call(shard, "restore", (Sides(0, 0), each, ())) for shard, each in enumerate(kept)]
        self.shards.run(calls)
        self._settle(Sides(0, 0), kept, {})

    def keep(self) -> None:
        """A round without an averaging is over."""
        calls = [Call(shard, "keep", (self._sides,), 1) for shard in range(len(self.shards))]
        self._settle(self._sides, [kept for _, kept in self.shards.run(calls, stoppable=False)], {})

    def weigh(self, group: str, side: int) -> NDArray[np.float64]:
        """(M,) the weights with which the members of a group begin an averaging."""
        members = self._members[group]
        calls = [Call(shard, "weigh", (group, side)) for shard in members]
        found = np.zeros(sum(map(len, members.values())))
        for own, weights in zip(members.values(), self.shards.answers(calls), strict=True):
            found[own] = weights
        return found

    def gather(self, workspace: Workspace) -> Sides:
        """Write everything as it was at the end of the last round; on which sides."""
        for shard, peers in enumerate(self._peers):
            restored(workspace, peers, self._settled, ray.get(self._kept[shard]))
            parcels, rows = self._of(self._rows, shard)
            for parcel, reference in zip(parcels, rows, strict=True):
                taken(workspace, peers, self._settled.x, parcel, ray.get(reference))
        return self._settled

    def _settle(self, sides: Sides, kept: Sequence[Any], rows: dict[tuple[int, int], Any]) -> None:
        self._settled, self._sides, self._kept, self._rows = sides, sides, list(kept), rows
        for shard, each in enumerate(kept):
            self.shards.settled(shard, Call(shard, "restore", (sides, each, *self._flat(rows, shard))))

    def _flat(self, rows: dict[tuple[int, int], Any], shard: int) -> tuple[Any, ...]:
        parcels, references = self._of(rows, shard)
        return parcels, *references

    def _of(self, rows: dict[tuple[int, int], Any], shard: int) -> tuple[list[Parcel], list[Any]]:
        """The parcels of a shard and its rows of them, where there are any."""
        numbers = [number for number in self._of_shard[shard] if (number, shard) in rows]
        return [self._parcels[number] for number in numbers], [rows[number, shard] for number in numbers]
