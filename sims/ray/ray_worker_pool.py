"""The executor of the vector engine's tasks on shards, the counterpart of a pool of workers on one machine.

A task for some peers goes to the shard that has them. In averaging each parameter passes through the object store
twice, however many exchanges there are: each shard gives its rows of every share, one shard averages a share, and each
shard takes its rows of it back. The leading process passes on references, never values.

Peers are distributed by the vector engine's blocks of all peers, which are never divided; so the results are the same
numbers. Where only some clients take part in a round, their blocks may have peers of several shards and be divided; the
results are then the same up to rounding.
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
import torch
from numpy.typing import NDArray

from fedpeer.algorithms.leaves import leaves_of
from fedpeer.sims.ray.cluster import Cluster
from fedpeer.sims.ray.shard import (
    PackedRows,
    ShardRows,
    ShardSize,
    numpy_rows,
    pack_rows,
    put_packed,
    put_rows,
    restore_rows,
    unlinked_zeros,
)
from fedpeer.sims.ray.shards import ShardCall, Shards
from fedpeer.sims.vector.gossip_rounds import Columns, columns
from fedpeer.sims.vector.rounds import blocks_of_peers
from fedpeer.sims.vector.task_executors import ROWS_AT_ONCE, SharedState
from fedpeer.sims.vector.tasks import Disagreement, EvaluateBlock, Keep, Mix, Mixing, TrainBlock, WorkerTask
from fedpeer.sims.vector.workspace import LEARNT, Job, States, Workspace, other, tensor, transformed
from fedpeer.slicing.plan import Plan

#: Calls in which the tasks of a phase are sent to one shard; a stop is noticed between two of them.
_CALLS = 8
#: Most scalars of a share (16 MiB in float32), unless a single block of columns has more.
SHARE_SCALARS_MAX = 4 * 2**20
_OfPeers: TypeAlias = TrainBlock | EvaluateBlock
#: Peers, the sides of their states, and a reference to these states.
_Patch: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], Any]


def dealt(job: Job, shards: int) -> list[tuple[int, ...]]:
    """Return each shard's peers: whole blocks go, the longest first, to the shard with the least work."""
    blocks = blocks_of_peers(job, range(len(job.peers)))
    shards = min(shards, len(blocks))
    work, found = [0] * shards, [[] for _ in range(shards)]  # type: tuple[list[int], list[list[int]]]
    for block in blocks:
        least = min(range(shards), key=work.__getitem__)
        work[least] += job.steps_P[block[0]] * len(block)
        found[least] += block
    return [tuple(sorted(peers)) for peers in found]


def as_shares(blocks: Sequence[Columns], members: Mapping[str, int], shards: int) -> list[PackedRows]:
    """Divide the blocks into shares: small enough that all shards have some to average, large enough to be few."""
    by_group: dict[str, list[tuple[int, int]]] = {}
    for group, start, stop in blocks:
        by_group.setdefault(group, []).append((start, stop))
    found = []
    for group, spans in by_group.items():
        scalars = max(stop - start for start, stop in spans) * members[group]
        size = max(1, min(len(spans) // (2 * shards), SHARE_SCALARS_MAX // scalars))
        found += [PackedRows(group, tuple(spans[at : at + size])) for at in range(0, len(spans), size)]
    return found


def open_shards(
    cluster: Cluster,
    wanted: int | None,
    job: Job,
    workspace: Workspace,
    plan: Plan,
    stack: ExitStack,
    replaced: Callable[[str, str], None],
    stop: threading.Event,
) -> RayWorkerPool:
    """Open the executor of a job (`engine.OpenExecutor`) on as many shards as requested or useful."""
    peers = dealt(job, cluster.shards(wanted))
    stored, data, inputs = ray.put(job), ray.put(pack_rows(workspace)), cluster.hold(workspace.x_NF.numpy())
    sizes = {
        name: transformed(getattr(workspace, name), torch.Tensor, lambda each: ShardSize(tuple(each.shape), each.dtype))
        for name in LEARNT
    }
    shards = Shards(cluster, [(stored, data, inputs, each, sizes) for each in peers], replaced, stop)
    # The leading process has space for all tensors too, which `gather` and `fetch` fill when needed.
    for name in LEARNT:
        setattr(workspace, name, transformed(sizes[name], ShardSize, lambda size: unlinked_zeros(*size)))
    return stack.enter_context(RayWorkerPool(job, workspace, peers, columns(plan), shards))


class RayWorkerPool:
    """The executor of one job's tasks on shards. A context manager.

    The object store has each shard's content after the last round: the `_rows` of the shares after averaging, by share
    and shard; the rest of x (`_kept`); and `_patches`, each with the states of the peers that trained in one round. The
    leading process's own copy is as old as the last `gather`. After a stop in the middle of a round, the run resumes
    from the round before it.
    """

    halfway = False

    def __init__(
        self,
        job: Job,
        workspace: Workspace,
        peers: Sequence[tuple[int, ...]],
        blocks: Sequence[Columns],
        shards: Shards,
    ) -> None:
        self._job, self._workspace, self._peers, self.shards = job, workspace, peers, shards
        self._owner = {peer: shard for shard, several in enumerate(peers) for peer in several}
        rows = {group: row_M.numpy() for group, row_M in workspace.rows.items()}
        self._shares = as_shares(blocks, {group: len(row_M) for group, row_M in rows.items()}, len(shards))
        self._members = {
            group: {
                shard: own
                for shard, several in enumerate(peers)
                if len(own := np.flatnonzero(np.isin(rows[group], several)))
            }
            for group in {share.group for share in self._shares}
        }
        self._of_shard = [
            [number for number, share in enumerate(self._shares) if shard in self._members[share.group]]
            for shard in range(len(shards))
        ]
        self._mixing: dict[str, tuple[Mixing, Any]] = {}
        self._sent: dict[str, tuple[Any, Any]] = {}
        self._after: dict[int, int] = {}  # by peer that has trained in this round, the side of its state
        self._side = 0
        self._rows: dict[tuple[int, int], Any] = {}
        self._kept: list[Any] = []
        self._patches: list[list[_Patch]] = [[] for _ in peers]
        self._gathered = False
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self.shards)
        return self

    def __exit__(self, *error: Any) -> None:
        self._rows, self._kept, self._mixing, self._patches, self._sent = {}, [], {}, [], {}
        self._stack.__exit__(*error)

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Process ids of the shards, each on its own machine."""
        return tuple(self.shards.process_ids)

    @property
    def _states(self) -> States:
        return self._workspace.states[0]

    def set_mixing(self, group: str, mixing: Mixing) -> None:
        """Set the matrix by which the group averages from now on."""
        known = self._mixing.get(group, (None, None))[0]
        if isinstance(known, np.ndarray) and isinstance(mixing, np.ndarray) and np.array_equal(known, mixing):
            return
        self._mixing[group] = mixing, ray.put(mixing)

    def run(self, tasks: Sequence[WorkerTask]) -> list[Any]:
        """Run all tasks of a phase, and return their results in the same order. Raises as `Shards.run` does."""
        if any(isinstance(task, Mix | Keep) for task in tasks):
            self._average(next(task.source for task in tasks if isinstance(task, Mix | Keep)))
            return [None] * len(tasks)
        if tasks and isinstance(tasks[0], Disagreement):
            return self._disagreement([task for task in tasks if isinstance(task, Disagreement)])
        return self._by_owner([task for task in tasks if isinstance(task, TrainBlock | EvaluateBlock)])

    # -------------------------------------------------------------------------------------------------- tasks of peers

    def _by_owner(self, tasks: Sequence[_OfPeers]) -> list[Any]:
        changes = isinstance(tasks[0], TrainBlock) if tasks else False
        mine: list[list[tuple[int, _OfPeers]]] = [[] for _ in self._peers]
        self._after = {} if changes else self._after
        for number, task in enumerate(tasks):
            for shard, part in self._parts(task):
                mine[shard].append((number, part))
            if isinstance(task, TrainBlock):
                self._after |= {peer: other(side) for peer, side in zip(task.peers, task.sides, strict=True)}
        calls, numbers = [], []
        for shard, part_of in enumerate(mine):
            size = math.ceil(len(part_of) / _CALLS)
            for at in range(0, len(part_of), size or 1):
                together = part_of[at : at + size]
                calls.append(ShardCall(shard, "do", ([task for _, task in together],), changes=changes))
                numbers.append([number for number, _ in together])
        results: list[Any] = [None] * len(tasks)
        for several, answers in zip(numbers, self.shards.answers(calls), strict=True):
            for number, answer in zip(several, answers, strict=True):
                results[number] = answer
        return results

    def _parts(self, task: _OfPeers) -> Iterator[tuple[int, _OfPeers]]:
        """Yield each shard that has some of the task's peers, with its part of the task."""
        owners = [self._owner[peer] for peer in task.peers]
        if len(set(owners)) == 1:
            yield owners[0], task
            return
        for shard in sorted(set(owners)):
            here = [(p, s) for p, s, owner in zip(task.peers, task.sides, owners, strict=True) if owner == shard]
            yield shard, replace(task, peers=tuple(p for p, _ in here), sides=tuple(s for _, s in here))

    # ------------------------------------------------------------------------------------------------------- averaging

    def _average(self, source: int) -> None:
        """Average all shares: side `source` of x -> the other side."""
        source_rows = self._rows_of_shares(source)
        calls = []
        for number, share in enumerate(self._shares):
            members = self._members[share.group]
            rows = [source_rows[number, shard] for shard in members]
            args = (share, self._mixing[share.group][1], list(members.values()), *rows)
            calls.append(ShardCall(number % len(self.shards), "mix", args, len(members)))
        mixed: dict[tuple[int, int], Any] = {}
        for number, (_, *rows) in enumerate(self.shards.run(calls)):
            for shard, reference in zip(self._members[self._shares[number].group], rows, strict=True):
                mixed[number, shard] = reference
        del source_rows, calls
        takes = []
        for shard, peers in enumerate(self._peers):
            shares, rows = self._of(mixed, shard)
            takes.append(ShardCall(shard, "take", (source, [self._after[p] for p in peers], shares, *rows), 2))
        found = self.shards.run(takes)
        self._rows, self._side, self._kept = mixed, 1 - source, [kept for _, kept, _ in found]
        for shard, (peers, (_, _, states)) in enumerate(zip(self._peers, found, strict=True)):
            self._patches[shard] = [(peers, tuple(self._after[p] for p in peers), states)]

    def _rows_of_shares(self, side: int) -> dict[tuple[int, int], Any]:
        """Return references to each shard's rows of each share, by (share, shard)."""
        calls = [
            ShardCall(shard, "give", ([self._shares[number] for number in numbers], side), len(numbers))
            for shard, numbers in enumerate(self._of_shard)
        ]
        return {
            (number, shard): reference
            for shard, (_, *rows) in enumerate(self.shards.run(calls))
            for number, reference in zip(self._of_shard[shard], rows, strict=True)
        }

    def _disagreement(self, tasks: Sequence[Disagreement]) -> list[Any]:
        side = tasks[0].source
        rows = self._rows if self._rows and side == self._side else self._rows_of_shares(side)
        calls = []
        wanted = {(task.group, task.start, task.stop) for task in tasks}
        shares = [
            (number, share)
            for number, share in enumerate(self._shares)
            if any((share.group, *block) in wanted for block in share.blocks)
        ]
        for number, share in shares:
            members = self._members[share.group]
            args = (share, list(members.values()), *(rows[number, shard] for shard in members))
            calls.append(ShardCall(number % len(self.shards), "spread", args))
        found = {
            (share.group, *block): answer
            for (_, share), answers in zip(shares, self.shards.answers(calls), strict=True)
            for block, answer in zip(share.blocks, answers, strict=True)
        }
        return [found[task.group, task.start, task.stop] for task in tasks]

    def weights(self, group: str, peers: Sequence[int], sides: Sequence[int]) -> NDArray[np.float64] | None:
        """Return the weights with which the members of a group begin an averaging, (M,)."""
        members, found = self._members[group], np.zeros(len(peers))
        calls = [
            ShardCall(shard, "weigh", (group, [peers[m] for m in own.tolist()], [sides[m] for m in own.tolist()]))
            for shard, own in members.items()
        ]
        for own, weights in zip(members.values(), self.shards.answers(calls), strict=True):
            found[own] = weights
        return found

    # ------------------------------------------------------------------------------------------------------- a server's

    def set_shared(self, what: SharedState, state: Any) -> None:
        """Send a broadcast or a server's state to all shards, unless they already have it.

        A round's broadcast is always sent, since a replaced shard has none.
        """
        if what == "received" or what not in self._sent or self._sent[what][0] is not state:
            stored = ray.put(numpy_rows(state))
            self._sent[what] = state, stored
            calls = [ShardCall(shard, "set_shared", (what, stored), changes=True) for shard in range(len(self.shards))]
            self._each(calls)

    def fetch(self, peers: Sequence[int]) -> None:
        """Bring these clients' updates into the leading process's memory."""
        sent = leaves_of(self._states.sent)
        calls = [ShardCall(shard, "updates", (mine,)) for shard, mine in self._mine(peers)]
        for call, rows in zip(calls, self.shards.answers(calls), strict=True):
            for name, leaf in rows.items():
                sent[name][list(call.args[0])] = tensor(leaf)

    def settle(self, peers: Sequence[int], sides: Sequence[int], counted: Sequence[bool]) -> None:
        """Settle what clients keep of a round."""
        of = {peer: each for peer, *each in zip(peers, sides, counted, strict=True)}
        calls = []
        for shard, mine in self._mine(peers):
            for at in range(0, len(mine), ROWS_AT_ONCE):
                some = mine[at : at + ROWS_AT_ONCE]
                args = (some, [of[peer][0] for peer in some], [of[peer][1] for peer in some])
                calls.append(ShardCall(shard, "settle", args, changes=True))
        self._each(calls)

    def _mine(self, peers: Sequence[int]) -> list[tuple[int, tuple[int, ...]]]:
        """Return the shards that have some of these peers, each with those peers."""
        some = set(peers)
        found = [(shard, tuple(p for p in held if p in some)) for shard, held in enumerate(self._peers)]
        return [(shard, mine) for shard, mine in found if mine]

    def _each(self, calls: Sequence[ShardCall]) -> list[list[Any]]:
        """Make calls at the end of a round; a stop does not interrupt them."""
        return self.shards.run(calls, stoppable=False)

    # --------------------------------------------------------------------------------------------- state between rounds

    def finished(self, peers: Sequence[int], sides: Sequence[int], source: int, *, mixed: bool) -> None:
        """Record each shard's content at the end of a round."""
        if not mixed:
            of = dict(zip(peers, sides, strict=True))
            mine = self._mine(peers)
            calls = [ShardCall(shard, "kept", (each, [of[p] for p in each]), 1) for shard, each in mine]
            for (shard, each), (_, states) in zip(mine, self._each(calls), strict=True):
                patch = each, tuple(of[p] for p in each), states
                self._patches[shard] = needed_snapshots([*self._patches[shard], patch])
            if self._states.sent is None:  # no server
                keeps = [ShardCall(shard, "keep", (source,), 1) for shard in range(len(self.shards))]
                self._kept, self._rows, self._side = [kept for _, kept in self._each(keeps)], {}, source
        self._settled()

    def resume(self, sides: list[int]) -> None:
        """Resume from the leading process's memory. On shards every peer has a state of its own, at first on side 0."""
        self._kept, self._rows, self._side, self._patches = [], {}, 0, []
        for peers in self._peers:
            of = [sides[peer] for peer in peers]
            self._patches.append([(peers, (0,) * len(peers), ray.put(numpy_rows(self._states.of(peers, of))))])
            served = self._states.sent is not None
            self._kept.append(ray.put({} if served else {"x": self._workspace.x[0][list(peers)].numpy()}))
        sides[:] = [0] * len(sides)
        self._each([self._restoring(shard) for shard in range(len(self.shards))])
        self._settled()

    def gather(self) -> None:
        """Bring everything into the leading process's memory, as it was at the end of the last round."""
        if self._gathered:
            return
        for shard, peers in enumerate(self._peers):
            restore_rows(self._workspace, peers, self._side, ray.get(self._kept[shard]))
            for share, reference in zip(*self._of(self._rows, shard), strict=True):
                put_packed(self._workspace, peers, self._side, share, ray.get(reference))
            for some, sides, reference in self._patches[shard]:
                rows: ShardRows = ray.get(reference)
                put_rows(self._states, some, sides, rows)
        self._gathered = True

    def _settled(self) -> None:
        self._gathered = False
        server = [("server", self._sent["server"][1])] if "server" in self._sent else []
        for shard in range(len(self.shards)):
            calls = [ShardCall(shard, "set_shared", each) for each in server]
            self.shards.settled(shard, *calls, self._restoring(shard))

    def _restoring(self, shard: int) -> ShardCall:
        shares, rows = self._of(self._rows, shard)
        patches = self._patches[shard]
        where = [(peers, sides) for peers, sides, _ in patches]
        states = [states for _, _, states in patches]
        return ShardCall(shard, "restore", (self._side, self._kept[shard], shares, where, *rows, *states))

    def _of(self, rows: dict[tuple[int, int], Any], shard: int) -> tuple[list[PackedRows], list[Any]]:
        """Return the shares of a shard that have rows, and these rows."""
        numbers = [number for number in self._of_shard[shard] if (number, shard) in rows]
        return [self._shares[number] for number in numbers], [rows[number, shard] for number in numbers]


def needed_snapshots(patches: Sequence[_Patch]) -> list[_Patch]:
    """Drop patches whose peers have all trained again since."""
    seen: set[int] = set()
    found = []
    for patch in reversed(patches):
        if not seen.issuperset(patch[0]):
            found.append(patch)
        seen.update(patch[0])
    return found[::-1]
