"""What an actor does: it is a worker of the vector engine with a memory of its own.

A shard has a row for every peer, in files without names that are holes but where its own peers are: so the vector
engine's tasks mean the same here, and only those rows take room. All that others must have travels as arguments and
results of its methods; the examples lie in the node's object store and are read where they lie.

What goes to others is cut into shares: some of the vector engine's blocks of columns of one group. `give` hands out
the rows of a share, `mix` averages one of all shards' rows, `take` puts the rows back. What `take`, `keep` and `kept`
hand out makes, with the rows that were taken, a shard anew (`restore`).
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
from fedpeer.sims.vector.tasks import Mix, Mixing, Spread, Task, Worker, mix, spread_of_columns
from fedpeer.sims.vector.workspace import Job, States, Workspace, allocate, tensor, transformed

_Array: TypeAlias = NDArray[Any]
#: By name, rows of some peers.
Rows: TypeAlias = Mapping[str, _Array]


@dataclass(frozen=True)
class PackedRows:
    """Consecutive blocks of columns of a group, start..stop each."""

    group: str
    blocks: tuple[tuple[int, int], ...]

    @property
    def span(self) -> slice:
        return slice(self.blocks[0][0], self.blocks[-1][1])


class ShardSize(NamedTuple):
    """Of a tensor that a shard makes room for."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def pack_rows(workspace: Workspace) -> dict[str, Any]:
    """What all shards must know of a workspace, but for its inputs, as arrays."""
    fields = ("train", "test", "valid", "view", "index", "rows")
    return {name: transformed(getattr(workspace, name), Tensor, lambda tensor: tensor.numpy()) for name in fields}


def put_packed(workspace: Workspace, peers: Sequence[int], side: int, share: PackedRows, rows_MD: _Array) -> None:
    """Put these peers' rows of a share into their places."""
    for (row, index_D), row_D in zip(_places(workspace, peers, share), tensor(rows_MD), strict=True):
        workspace.x[side][row].scatter_(0, index_D, row_D)


def restore_rows(workspace: Workspace, peers: Sequence[int], side: int, kept: Rows) -> None:
    """Put back what `take` or `keep` handed out, onto this side of x."""
    for name, rows in kept.items():
        if name == "x":
            workspace.x[side][list(peers)] = tensor(rows)
            continue
        own = _own(workspace.rows[name], peers)
        for row, row_D in zip(workspace.rows[name][own].tolist(), tensor(rows), strict=True):
            workspace.x[side][row].scatter_(0, workspace.index[name], row_D)


def put_rows(states: States, peers: Sequence[int], sides: Sequence[int], kept: Rows) -> None:
    """Put states of some peers on these sides."""
    states.put(rebuilt(states.first, {name: tensor(rows) for name, rows in kept.items()}), peers, sides)


def numpy_rows(state: Any) -> dict[str, _Array]:
    """The leaves of a state, by name."""
    return {name: leaf.numpy() for name, leaf in leaves_of(state).items()}


def _own(row_M: Tensor, peers: Sequence[int]) -> _Array:
    """(m,) which members of a group these peers are."""
    return np.flatnonzero(np.isin(row_M.numpy(), peers))


def _places(workspace: Workspace, peers: Sequence[int], share: PackedRows) -> list[tuple[int, Tensor]]:
    """Of each of these peers in the group its row, and where the share's columns lie in it."""
    row_M, index = workspace.rows[share.group], workspace.index[share.group][..., share.span]
    return [(int(row_M[m]), index if index.dim() == 1 else index[m]) for m in _own(row_M, peers)]


def room(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros in a file that has no name any more and is gone with the process; it takes room where it is written."""
    with tempfile.TemporaryDirectory(prefix="fedpeer-shard-") as folder:
        return allocate(Path(folder), "room", shape, dtype).open()


def check_version(version: str) -> None:
    """Raise RuntimeError where the leader has another one than this machine."""
    import fedpeer

    if fedpeer.__version__ != version:
        raise RuntimeError(
            f"fedpeer {fedpeer.__version__} is installed here, and {version} leads; install the same everywhere"
        )


class Shard:
    """Some peers of one job at a time. Of a method that hands out values the first result is None: that one the leading
    process reads, to see that it is done, and the others it passes on."""

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
        """Be these peers of this job; `sizes` are those of x and of all states. The process's number."""
        check_version(version)
        fields = transformed(dict(data), np.ndarray, tensor)
        memory = {name: transformed(each, ShardSize, lambda size: room(*size)) for name, each in sizes.items()}
        self._workspace = Workspace(x_NF=tensor(inputs), **memory, **fields)
        self._worker, self._peers = Worker(job, self._workspace, job.stepper()), peers
        return os.getpid()

    def do(self, tasks: Sequence[Task]) -> list[Any]:
        """Tasks of the vector engine, for peers of this shard."""
        return [self._worker.do(task) for task in tasks]

    # --------------------------------------------------------------------------------------------- averaging of equals

    def give(self, shares: Sequence[PackedRows], side: int) -> tuple[_Array | None, ...]:
        """Own rows (m, D) of each share."""
        x_Pn, rows = self._workspace.x[side], []
        for share in shares:
            places = _places(self._workspace, self._peers, share)
            rows.append(torch.stack([x_Pn[row].index_select(0, index_D) for row, index_D in places]).numpy())
        return None, *rows

    def mix(
        self, share: PackedRows, mixing: Mixing, members: Sequence[_Array], *rows: _Array
    ) -> tuple[_Array | None, ...]:
        """All shards' rows of a share averaged, and given back to each: the vector engine's task on a small x."""
        small, width = self._assembled(share, members, rows), share.span.start
        for start, stop in share.blocks:
            mix(small, mixing, Mix(share.group, start - width, stop - width, 0))
        return None, *(small.x[1].numpy()[m] for m in members)

    def spread(self, share: PackedRows, members: Sequence[_Array], *rows: _Array) -> list[tuple[_Array, float]]:
        """How far the members are apart in each block of a share."""
        small, width = self._assembled(share, members, rows), share.span.start
        return [spread_of_columns(small, Spread(share.group, a - width, b - width, 0)) for a, b in share.blocks]

    def take(
        self, source: int, sides: Sequence[int], shares: Sequence[PackedRows], *rows: _Array
    ) -> tuple[None, Rows, Rows]:
        """Put averaged rows onto the other side, carry over what is averaged with nobody; hand that out, and the states
        on these sides."""
        workspace, kept = self._workspace, {}
        for share, rows_MD in zip(shares, rows, strict=True):
            put_packed(workspace, self._peers, 1 - source, share, rows_MD)
        for name in workspace.index:
            own = workspace.rows[name][_own(workspace.rows[name], self._peers)]
            if name.startswith("local ") and len(own):
                index_D, trained_Pn = workspace.index[name], workspace.x[source]
                kept[name] = torch.stack([trained_Pn[row].index_select(0, index_D) for row in own.tolist()]).numpy()
        restore_rows(workspace, self._peers, 1 - source, kept)
        return None, kept, self.kept(self._peers, sides)[1]

    def keep(self, side: int) -> tuple[None, Rows]:
        """All of own rows of x."""
        return None, {"x": self._workspace.x[side][list(self._peers)].numpy()}

    def weigh(self, group: str, peers: Sequence[int], sides: Sequence[int]) -> _Array:
        """(m,) the weights with which own peers begin an averaging of this group."""
        weights = self._worker.weights(peers, sides, group)
        assert weights is not None, "asked where an algorithm weighs"
        return weights

    # ----------------------------------------------------------------------------------------------------------- states

    def tell(self, what: str, state: Rows) -> None:
        """What all are told: the broadcast of a round, or the server after it."""
        places = leaves_of(getattr(self._worker.states, what))
        for name, leaf in state.items():
            places[name].copy_(tensor(leaf))

    def updates(self, peers: Sequence[int]) -> Rows:
        """What these peers send."""
        return {name: leaf[list(peers)].numpy() for name, leaf in leaves_of(self._worker.states.sent).items()}

    def settle(self, peers: Sequence[int], sides: Sequence[int], counted: Sequence[bool]) -> None:
        """What these peers keep of the round in which they trained, once they are told the server after it."""
        self._worker.settle(peers, sides, counted)

    def kept(self, peers: Sequence[int], sides: Sequence[int]) -> tuple[None, Rows]:
        """The states of these peers, which lie on these sides."""
        return None, numpy_rows(self._worker.states.of(peers, sides))

    def restore(
        self,
        side: int,
        kept: Rows,
        shares: Sequence[PackedRows],
        patches: Sequence[tuple[Sequence[int], Sequence[int]]],
        *rows: Any,
    ) -> None:
        """Be as `take`, `keep` and `kept` left a shard: rows of the shares, then states, the newest last."""
        restore_rows(self._workspace, self._peers, side, kept)
        for share, rows_MD in zip(shares, rows, strict=False):
            put_packed(self._workspace, self._peers, side, share, rows_MD)
        for (peers, sides), states in zip(patches, rows[len(shares) :], strict=True):
            put_rows(self._worker.states, peers, sides, states)

    # ------------------------------------------------------------------------------------------------------- its parts

    def _assembled(self, share: PackedRows, members: Sequence[_Array], rows: Sequence[_Array]) -> Workspace:
        """A workspace of two sides (M, D) that is the share alone."""
        count = sum(len(each) for each in members)
        given_MD = torch.empty((count, share.span.stop - share.span.start))
        for m, rows_MD in zip(members, rows, strict=True):
            given_MD[m] = tensor(rows_MD)
        index, row = {share.group: torch.arange(given_MD.shape[1])}, {share.group: torch.arange(count)}
        return replace(self._workspace, x=(given_MD, torch.empty_like(given_MD)), index=index, rows=row)
