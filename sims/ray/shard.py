"""The actor of the ray engine: a worker of the vector engine with memory of its own, called a shard.

A shard's tensors have a row for every peer, in sparse files without names, but only the rows of its own peers are
written. So the vector engine's tasks can be used unchanged, and only those rows take space. Everything that other
processes need travels as arguments and results of the shard's methods. The examples are read in place in the node's
object store.

For averaging, a group's columns are divided into shares, each some of the vector engine's blocks of columns. `give`
returns the shard's rows of some shares, `mix` averages one share over the rows of all shards, `take` writes the rows
back. The results of `take`, `keep` and `kept`, together with those rows, are enough to `restore` a shard.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpeer.algorithms.leaves import leaves_of, rebuilt
from fedpeer.sims.vector.tasks import (
    Disagreement,
    Mix,
    Mixing,
    Worker,
    WorkerTask,
    disagreement_of_columns,
    mix,
    multiplied,
)
from fedpeer.sims.vector.workspace import LOCAL_COLUMNS, Job, States, Workspace, allocate, tensor, transformed

_Array: TypeAlias = NDArray[Any]
#: Rows of some peers, by name.
ShardRows: TypeAlias = Mapping[str, _Array]


@dataclass(frozen=True)
class PackedRows:
    """A share: consecutive blocks of columns of a group, start..stop each."""

    group: str
    blocks: tuple[tuple[int, int], ...]

    @property
    def span(self) -> slice:
        return slice(self.blocks[0][0], self.blocks[-1][1])


class ShardSize(NamedTuple):
    """The shape and type of a tensor that a shard allocates."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def pack_rows(workspace: Workspace) -> dict[str, Any]:
    """Return the tensors of a workspace that all shards need, except its inputs, as arrays."""
    fields = ("train", "test", "valid", "view", "index", "rows", "class_weight_PC")
    return {name: transformed(getattr(workspace, name), Tensor, lambda tensor: tensor.numpy()) for name in fields}


def put_packed(workspace: Workspace, peers: Sequence[int], side: int, share: PackedRows, rows_MD: _Array) -> None:
    """Write these peers' rows of a share into this side of x."""
    for (row, index_D), row_D in zip(_places(workspace, peers, share), tensor(rows_MD), strict=True):
        workspace.x[side][row].scatter_(0, index_D, row_D)


def restore_rows(workspace: Workspace, peers: Sequence[int], side: int, kept: ShardRows) -> None:
    """Write the result of `take` or `keep` back to this side of x."""
    for name, rows in kept.items():
        if name == "x":
            workspace.x[side][list(peers)] = tensor(rows)
            continue
        own = _own(workspace.rows[name], peers)
        for row, row_D in zip(workspace.rows[name][own].tolist(), tensor(rows), strict=True):
            workspace.x[side][row].scatter_(0, workspace.index[name], row_D)


def put_rows(states: States, peers: Sequence[int], sides: Sequence[int], kept: ShardRows) -> None:
    """Write the states of some peers to these sides."""
    states.put(rebuilt(states.first, {name: tensor(rows) for name, rows in kept.items()}), peers, sides)


def numpy_rows(state: Any) -> dict[str, _Array]:
    """Return the leaves of a state, by name."""
    return {name: leaf.numpy() for name, leaf in leaves_of(state).items()}


def _own(row_M: Tensor, peers: Sequence[int]) -> _Array:
    """Return the indices of these peers among a group's members, (m,)."""
    return np.flatnonzero(np.isin(row_M.numpy(), peers))


def _places(workspace: Workspace, peers: Sequence[int], share: PackedRows) -> list[tuple[int, Tensor]]:
    """Return the row of each of these peers that is in the group, and the share's columns in it."""
    row_M, index = workspace.rows[share.group], workspace.index[share.group][..., share.span]
    return [(int(row_M[m]), index if index.dim() == 1 else index[m]) for m in _own(row_M, peers)]


def unlinked_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return zeros in a sparse file that is already unlinked, so that it ends with the process."""
    with tempfile.TemporaryDirectory(prefix="fedpeer-shard-") as folder:
        return allocate(Path(folder), "zeros", shape, dtype).open()


def check_version(version: str) -> None:
    """Raise RuntimeError if the leading process has another version than this machine."""
    import fedpeer

    if fedpeer.__version__ != version:
        raise RuntimeError(
            f"fedpeer {fedpeer.__version__} is installed on this machine and {version} on the leading one; install the "
            "same version on all"
        )


class Shard:
    """Some peers of a job; one job at a time.

    The first result of a method that returns rows is None. The leading process reads it to see that the call is done,
    and passes references to the other results on without reading them.
    """

    def __init__(self) -> None:
        torch.set_num_threads(1)

    def begin(
        self,
        version: str,
        job: Job,
        data: Mapping[str, Any],
        inputs: _Array,
        peers: tuple[int, ...],
        sizes: Mapping[str, Any],
    ) -> int:
        """Take over these peers of this job, and return the process id.

        Args:
            data: the result of `pack_rows`.
            inputs: the inputs of the data set.
            sizes: sizes of x and of all states.
        """
        check_version(version)
        fields = transformed(dict(data), np.ndarray, tensor)
        memory = {
            name: transformed(each, ShardSize, lambda size: unlinked_zeros(*size)) for name, each in sizes.items()
        }
        self._workspace = Workspace(x_NF=tensor(inputs), **memory, **fields)
        self._worker, self._peers = Worker(job, self._workspace, job.steppers()), peers
        return os.getpid()

    def do(self, tasks: Sequence[WorkerTask]) -> list[Any]:
        """Run tasks of the vector engine for peers of this shard, and return their results."""
        return [self._worker.do(task) for task in tasks]

    # ------------------------------------------------------------------------------------------ averaging between peers

    def give(self, shares: Sequence[PackedRows], side: int) -> tuple[_Array | None, ...]:
        """Return the shard's rows (m, D) of each share."""
        x_Pn, rows = self._workspace.x[side], []
        for share in shares:
            places = _places(self._workspace, self._peers, share)
            rows.append(torch.stack([x_Pn[row].index_select(0, index_D) for row, index_D in places]).numpy())
        return None, *rows

    def mix(
        self, share: PackedRows, mixing: Mixing, members: Sequence[_Array], *rows: _Array
    ) -> tuple[_Array | None, ...]:
        """Average all shards' rows of a share, and return each shard's rows: the vector engine's task on a small x."""
        small, width = self._assembled(share, members, rows), share.span.start
        matrix = multiplied(mixing, small.x[0].device)
        for start, stop in share.blocks:
            mix(small, matrix, Mix(share.group, start - width, stop - width, 0))
        return None, *(small.x[1].numpy()[m] for m in members)

    def spread(self, share: PackedRows, members: Sequence[_Array], *rows: _Array) -> list[tuple[_Array, float]]:
        """Return how far the members are apart in each block of a share."""
        small, width = self._assembled(share, members, rows), share.span.start
        return [
            disagreement_of_columns(small, Disagreement(share.group, a - width, b - width, 0)) for a, b in share.blocks
        ]

    def take(
        self, source: int, sides: Sequence[int], shares: Sequence[PackedRows], *rows: _Array
    ) -> tuple[None, ShardRows, ShardRows]:
        """Write averaged rows to the other side and copy local parameters there.

        Returns the local parameters and the states on these sides.
        """
        workspace, kept = self._workspace, {}
        for share, rows_MD in zip(shares, rows, strict=True):
            put_packed(workspace, self._peers, 1 - source, share, rows_MD)
        for name in workspace.index:
            own = workspace.rows[name][_own(workspace.rows[name], self._peers)]
            if name.startswith(LOCAL_COLUMNS) and len(own):
                index_D, trained_Pn = workspace.index[name], workspace.x[source]
                kept[name] = torch.stack([trained_Pn[row].index_select(0, index_D) for row in own.tolist()]).numpy()
        restore_rows(workspace, self._peers, 1 - source, kept)
        return None, kept, self.kept(self._peers, sides)[1]

    def keep(self, side: int) -> tuple[None, ShardRows]:
        """Return the shard's whole rows of x."""
        return None, {"x": self._workspace.x[side][list(self._peers)].numpy()}

    def weigh(self, group: str, peers: Sequence[int], sides: Sequence[int]) -> _Array:
        """Return the weights with which the shard's peers begin an averaging of this group, (m,)."""
        weights = self._worker.weights(peers, sides, group)
        assert weights is not None, "only for algorithms with weights of their own"
        return weights

    # ----------------------------------------------------------------------------------------------------------- states

    def set_shared(self, what: str, state: ShardRows) -> None:
        """Set the broadcast of a round, or the server's state after it."""
        places = leaves_of(getattr(self._worker.states, what))
        for name, leaf in state.items():
            places[name].copy_(tensor(leaf))

    def updates(self, peers: Sequence[int]) -> ShardRows:
        """Return the updates of these peers."""
        return {name: leaf[list(peers)].numpy() for name, leaf in leaves_of(self._worker.states.sent).items()}

    def settle(self, peers: Sequence[int], sides: Sequence[int], counted: Sequence[bool]) -> None:
        """Settle what these peers keep of the round in which they trained, once the server's new state is set."""
        self._worker.settle(peers, sides, counted)

    def kept(self, peers: Sequence[int], sides: Sequence[int]) -> tuple[None, ShardRows]:
        """Return the states of these peers, which are on these sides."""
        return None, numpy_rows(self._worker.states.of(peers, sides))

    def restore(
        self,
        side: int,
        kept: ShardRows,
        shares: Sequence[PackedRows],
        patches: Sequence[tuple[Sequence[int], Sequence[int]]],
        *rows: Any,
    ) -> None:
        """Restore a shard from the results of `take`, `keep` and `kept`.

        Args:
            side: the side of x to write to.
            kept: the result of `take` or `keep`.
            patches: peers and sides of each set of states, the newest last.
            rows: the rows of each of the shares, then the states of each of the patches.
        """
        restore_rows(self._workspace, self._peers, side, kept)
        for share, rows_MD in zip(shares, rows, strict=False):
            put_packed(self._workspace, self._peers, side, share, rows_MD)
        for (peers, sides), states in zip(patches, rows[len(shares) :], strict=True):
            put_rows(self._worker.states, peers, sides, states)

    # --------------------------------------------------------------------------------------------------------- internal

    def _assembled(self, share: PackedRows, members: Sequence[_Array], rows: Sequence[_Array]) -> Workspace:
        """Return a workspace whose x has only the columns of this share, two sides (M, D)."""
        count = sum(len(each) for each in members)
        given_MD = torch.empty((count, share.span.stop - share.span.start))
        for m, rows_MD in zip(members, rows, strict=True):
            given_MD[m] = tensor(rows_MD)
        index, row = {share.group: torch.arange(given_MD.shape[1])}, {share.group: torch.arange(count)}
        return replace(self._workspace, x=(given_MD, torch.empty_like(given_MD)), index=index, rows=row)
