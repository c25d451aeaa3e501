"""What an actor does: it is a worker of the vector engine with a memory of its own.

A shard has a row for every peer, in files without names that are holes but where its own peers are: so the vector
engine's tasks mean the same here, and only those rows take room. All that others must have travels as arguments and
results of its methods; the examples lie in the node's object store and are read where they lie.

What goes to others is cut into parcels: some of the vector engine's blocks of columns of one group. `give` hands out
the rows of a parcel, `mix` averages one of all shards' rows, `take` puts the rows back. What `take`, `keep` and `kept`
hand out makes, with the rows that were taken, a shard anew (`restore`).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpeer.algorithms.leaves import leaves
from fedpeer.sims.vector.clients import rows_of, shared, write_rows
from fedpeer.sims.vector.tasks import Mix, Mixing, Spread, Task, Worker, mix, spread
from fedpeer.sims.vector.workspace import Job, Workspace, allocate, mapped, tensor

Array: TypeAlias = NDArray[Any]
#: By name, rows of some peers.
Rows: TypeAlias = Mapping[str, Array]


@dataclass(frozen=True)
class Parcel:
    """Consecutive blocks of columns of a group, start..stop each."""

    group: str
    blocks: tuple[tuple[int, int], ...]

    @property
    def span(self) -> slice:
        return slice(self.blocks[0][0], self.blocks[-1][1])


@dataclass(frozen=True)
class Sides:
    """On which sides a finished round lies: of the parameters, and of the states."""

    x: int
    s: int


def packed(workspace: Workspace) -> dict[str, Any]:
    """What all shards must know of a workspace, but for its inputs, as arrays."""
    fields = ("train", "test", "valid", "view", "index", "rows")
    return {name: mapped(getattr(workspace, name), Tensor, lambda tensor: tensor.numpy()) for name in fields}


def taken(workspace: Workspace, peers: Sequence[int], side: int, parcel: Parcel, rows_MD: Array) -> None:
    """Put these peers' rows of a parcel into their places."""
    for (row, index_D), row_D in zip(_places(workspace, peers, parcel), tensor(rows_MD), strict=True):
        workspace.x[side][row].scatter_(0, index_D, row_D)


def restored(workspace: Workspace, peers: Sequence[int], sides: Sides, kept: Rows) -> None:
    """Put back what `take` or `keep` handed out."""
    here = list(peers)
    for name, rows in kept.items():
        what, _, of = name.partition(" ")
        match what:
            case "x":
                workspace.x[sides.x][here] = tensor(rows)
            case "s":
                workspace.s[sides.s][here] = tensor(rows)
            case "local":
                own = _own(workspace.rows[name], peers)
                for row, row_D in zip(workspace.rows[name][own].tolist(), tensor(rows), strict=True):
                    workspace.x[sides.x][row].scatter_(0, workspace.index[name], row_D)
            case _:
                workspace.leaves[f"client {sides.s} {of}"][here] = tensor(rows)


def replaced_rows(workspace: Workspace, peers: Sequence[int], sides: Sequence[int], kept: Rows) -> None:
    """Put states of some clients on these sides."""
    for name, rows in kept.items():
        for peer, side, row in zip(peers, sides, tensor(rows), strict=True):
            workspace.leaves[f"client {side} {name}"][peer] = row


def _own(row_M: Tensor, peers: Sequence[int]) -> Array:
    """(m,) which members of a group these peers are."""
    return np.flatnonzero(np.isin(row_M.numpy(), peers))


def _places(workspace: Workspace, peers: Sequence[int], parcel: Parcel) -> list[tuple[int, Tensor]]:
    """Of each of these peers in the group its row, and where the parcel's columns lie in it."""
    row_M, index = workspace.rows[parcel.group], workspace.index[parcel.group][..., parcel.span]
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
        inputs: Array,
        peers: tuple[int, ...],
        sizes: Mapping[str, tuple[tuple[int, ...], torch.dtype]],
    ) -> int:
        """Be these peers of this job; `sizes` are shapes and types of x, s and leaves. The process's number."""
        check_version(version)
        fields = mapped(dict(data), np.ndarray, tensor)
        memory = {name: room(*size) for name, size in sizes.items()}
        x, s = ((memory.pop(f"{name} 0"), memory.pop(f"{name} 1")) for name in ("x", "s"))
        workspace = Workspace(x=x, s=s, x_NF=tensor(inputs), leaves=memory, **fields)
        self._bench, self._peers = Worker(job, workspace, job.stepper()), peers
        return os.getpid()

    def do(self, tasks: Sequence[Task]) -> list[Any]:
        """Tasks of the vector engine, for peers of this shard."""
        return [self._bench.do(task) for task in tasks]

    # --------------------------------------------------------------------------------------------- averaging of equals

    def give(self, parcels: Sequence[Parcel], side: int) -> tuple[Array | None, ...]:
        """Own rows (m, D) of each parcel."""
        x_Pn, rows = self._workspace.x[side], []
        for parcel in parcels:
            places = _places(self._workspace, self._peers, parcel)
            rows.append(torch.stack([x_Pn[row].index_select(0, index_D) for row, index_D in places]).numpy())
        return None, *rows

    def mix(self, parcel: Parcel, mixing: Mixing, members: Sequence[Array], *rows: Array) -> tuple[Array | None, ...]:
        """All shards' rows of a parcel averaged, and given back to each: the vector engine's task on a small x."""
        small, width = self._assembled(parcel, members, rows), parcel.span.start
        for start, stop in parcel.blocks:
            mix(small, mixing, Mix(parcel.group, start - width, stop - width, 0))
        return None, *(small.x[1].numpy()[m] for m in members)

    def spread(self, parcel: Parcel, members: Sequence[Array], *rows: Array) -> list[tuple[Array, float]]:
        """How far the members are apart in each block of a parcel."""
        small, width = self._assembled(parcel, members, rows), parcel.span.start
        return [spread(small, Spread(parcel.group, a - width, b - width, 0)) for a, b in parcel.blocks]

    def take(self, source: int, s: int, parcels: Sequence[Parcel], *rows: Array) -> tuple[None, Rows]:
        """Put averaged rows onto the other side, carry over what is averaged with nobody, and hand that out."""
        workspace, kept = self._workspace, self._states(s)
        for parcel, rows_MD in zip(parcels, rows, strict=True):
            taken(workspace, self._peers, 1 - source, parcel, rows_MD)
        for name in workspace.index:
            own = workspace.rows[name][_own(workspace.rows[name], self._peers)]
            if name.startswith("local ") and len(own):
                index_D, trained_Pn = workspace.index[name], workspace.x[source]
                kept[name] = torch.stack([trained_Pn[row].index_select(0, index_D) for row in own.tolist()]).numpy()
        restored(workspace, self._peers, Sides(1 - source, s), {k: v for k, v in kept.items() if "local" in k})
        return None, kept

    def keep(self, sides: Sides) -> tuple[None, Rows]:
        """All of own rows."""
        return None, self._states(sides.s) | {"x": self._workspace.x[sides.x][list(self._peers)].numpy()}

    def restore(self, sides: Sides, kept: Rows, parcels: Sequence[Parcel], *rows: Array) -> None:
        """Be as `take` or `keep` left a shard."""
        restored(self._workspace, self._peers, sides, kept)
        for parcel, rows_MD in zip(parcels, rows, strict=True):
            taken(self._workspace, self._peers, sides.x, parcel, rows_MD)

    def weigh(self, group: str, side: int) -> Array:
        """(m,) the weights with which own peers begin an averaging of this group."""
        workspace, keeping = self._workspace, self._bench.job.keeping
        assert keeping is not None, "only who keeps a state of its own has weights of its own"
        row_M, index = workspace.rows[group], workspace.index[group]
        here = row_M[_own(row_M, self._peers)].tolist()
        state = rows_of(workspace, keeping.state, here, [side] * len(here))
        weights = self._bench.equals.weights(state, (index if index.dim() == 1 else index[0]).numpy())
        assert weights is not None, "an algorithm that keeps states weighs them"
        return weights.numpy()

    # -------------------------------------------------------------------------------------------- clients with a server

    def tell(self, what: str, state: Rows) -> None:
        """What all are told: the broadcast of a round, or the server after it."""
        for name, leaf in state.items():
            self._workspace.leaves[f"{what} {name}"].copy_(tensor(leaf))

    def updates(self, peers: Sequence[int]) -> Rows:
        """What these peers send."""
        assert self._bench.job.served is not None
        names = leaves(self._bench.job.served.update)
        return {name: self._workspace.leaves[f"update {name}"][list(peers)].numpy() for name in names}

    def settle(self, peers: Sequence[int], sides: Sequence[int], counted: Sequence[bool]) -> None:
        """What these peers keep of the round in which they trained, once they are told the server after it."""
        served = self._bench.job.served
        assert served is not None
        other = [1 - side for side in sides]
        before, trained = (rows_of(self._workspace, served.client, peers, each) for each in (sides, other))
        after = shared(self._workspace, served.server, "server")
        settled = self._bench.algorithm.settle(before, trained, after, torch.tensor(counted))
        write_rows(self._workspace, settled, peers, other)

    def kept(self, peers: Sequence[int], sides: Sequence[int]) -> tuple[None, Rows]:
        """The present states of these peers."""
        assert self._bench.job.served is not None
        rows = leaves(rows_of(self._workspace, self._bench.job.served.client, peers, sides))
        return None, {name: leaf.numpy() for name, leaf in rows.items()}

    def resume(self, patches: Sequence[tuple[Sequence[int], Sequence[int]]], *kept: Rows) -> None:
        """Put back what `kept` handed out, the newest last."""
        for (peers, sides), rows in zip(patches, kept, strict=True):
            replaced_rows(self._workspace, peers, sides, rows)

    # ------------------------------------------------------------------------------------------------------- its parts

    @property
    def _workspace(self) -> Workspace:
        return self._bench.workspace

    @property
    def _names(self) -> list[str]:
        """Of the states that equals keep."""
        keeping = self._bench.job.keeping
        return [] if keeping is None else list(leaves(keeping.state))

    def _states(self, side: int) -> dict[str, Array]:
        here, workspace = list(self._peers), self._workspace
        found = {f"state {name}": workspace.leaves[f"client {side} {name}"][here].numpy() for name in self._names}
        return found | {"s": workspace.s[side][here].numpy()}

    def _assembled(self, parcel: Parcel, members: Sequence[Array], rows: Sequence[Array]) -> Workspace:
        """A workspace of two sides (M, D) that is the parcel alone."""
        count = sum(len(each) for each in members)
        given_MD = torch.empty((count, parcel.span.stop - parcel.span.start))
        for m, rows_MD in zip(members, rows, strict=True):
            given_MD[m] = tensor(rows_MD)
        index, row = {parcel.group: torch.arange(given_MD.shape[1])}, {parcel.group: torch.arange(count)}
        return replace(self._workspace, x=(given_MD, torch.empty_like(given_MD)), index=index, rows=row)
