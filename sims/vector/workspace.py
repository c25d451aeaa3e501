"""The memory of one vector run: the averaged vectors, the peers' states, the examples, and the averaging groups.

On a CPU every tensor is a file-backed mapping that worker processes open by name, so nothing is copied between
processes. On a device they are plain tensors of that device. The averaged vectors and the states exist twice: a phase
reads one side and writes the other, so a task that was interrupted (its worker died) can simply be repeated.
"""

from __future__ import annotations

import itertools
import mmap
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedpeer.algorithms.batches import Batches, BatchView, Examples
from fedpeer.algorithms.draws import Draws
from fedpeer.algorithms.leaves import leaves_of, map_leaves, stack_states, take_rows
from fedpeer.algorithms.losses import Loss
from fedpeer.algorithms.optimizers import OptimizerChoice
from fedpeer.algorithms.outer_steps import OuterRules
from fedpeer.algorithms.steppers import Stepper, Way, build_stepper
from fedpeer.config.choice import Choice
from fedpeer.config.settings import LearningSettings
from fedpeer.slicing.flat import FlatLayout

T = TypeVar("T")

#: Fields of a workspace that training changes.
LEARNT = ("x", "states")


#: Beginning of the names of the local columns among those of the groups; no partial model's name has this character.
LOCAL_COLUMNS = "&local "


def tensor(array: NDArray[Any]) -> Tensor:
    """Return a tensor in the array's memory. It may belong to a file or an object store: read it, never write it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


@dataclass(frozen=True)
class Handle:
    """The name of a file-backed tensor; every process that opens it gets the same memory."""

    path: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return int(np.prod(self.shape)) * self.dtype.itemsize

    def open(self, mapped: Callable[[mmap.mmap], object] = lambda mapping: None) -> Tensor:
        """Open the tensor. `mapped` is called with its mapping, unless the tensor is empty."""
        if self.bytes == 0:
            return torch.empty(self.shape, dtype=self.dtype)
        with Path(self.path).open("r+b") as file:
            mapping = mmap.mmap(file.fileno(), self.bytes)
        mapped(mapping)
        return torch.frombuffer(mapping, dtype=self.dtype).view(self.shape)


def _share_memory(folder: Path, name: str, value: Tensor) -> Handle:
    """Write a tensor into a new file of the folder and return its handle."""
    handle = allocate(folder, name, tuple(value.shape), value.dtype)
    handle.open().copy_(value)
    return handle


def allocate(folder: Path, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Handle:
    """Return the handle of zeros in a new file, which is sparse: it takes space only once it is written."""
    handle = Handle(str(folder / name), shape, dtype)
    with Path(handle.path).open("wb") as file:
        file.truncate(handle.bytes)
    return handle


#: In place of a side, for a peer that has never trained: it has no state of its own, but shares one of the first
#: states.
FIRST = 2


def other(side: int) -> int:
    """Return the side to which a peer's next state is written."""
    return 1 if side == 0 else 0


@dataclass
class States:
    """The states of all peers, in the algorithm's own types.

    clients    the peers' states (P, ...), on two sides; the leading process knows which side each peer's state is on
    first      the states before the first training (F, ...), one for all peers with the same start
    first_P    (P,) int64, the index in `first` of each peer's state
    sent       the clients' updates (P, ...); None without a server, as the next two
    received   the server's broadcast to its clients
    server     the server's state
    """

    clients: tuple[Any, Any]
    first: Any
    first_P: Tensor
    sent: Any = None
    received: Any = None
    server: Any = None

    def of(self, peers: Sequence[int], sides: Sequence[int]) -> Any:
        """Return the states of some peers, which are on these sides; as views where possible."""
        same = len(set(sides)) == 1
        if same and sides[0] != FIRST:
            return take_rows(self.clients[sides[0]], rows_of(peers))
        if same and len(set(first := self.first_P[list(peers)].tolist())) == 1:
            return map_leaves(lambda leaf: leaf[first[0]].expand(len(peers), *leaf.shape[1:]), self.first)
        each = zip(peers, sides, self.first_P[list(peers)].tolist(), strict=True)
        return stack_states(
            [take_rows(*((self.first, at) if side == FIRST else (self.clients[side], p))) for p, side, at in each]
        )

    def put(self, states: Any, peers: Sequence[int], sides: Sequence[int]) -> None:
        """Write the states of some peers to these sides."""
        new = leaves_of(states)
        if len(set(sides)) == 1:
            for name, leaf in leaves_of(self.clients[sides[0]]).items():
                leaf[rows_of(peers)] = new[name]
            return
        kept = [leaves_of(side) for side in self.clients]
        for name, rows in new.items():
            for peer, side, row in zip(peers, sides, rows, strict=True):
                kept[side][name][peer] = row


def rows_of(peers: Sequence[int]) -> slice | list[int]:
    """Return the peers as a slice if they are consecutive, so that a block is a view and not a copy."""
    first, last = peers[0], peers[-1] + 1
    return slice(first, last) if list(peers) == list(range(first, last)) else list(peers)


@dataclass(frozen=True)
class Region:
    """Some columns of some rows of x. If both are consecutive, the region is a view of x; else it is gathered.

    rows      (M,)
    columns   (D,) ascending if they are the same for all rows, else (M, D)
    width     scalars in a row of x
    """

    rows: Tensor
    columns: Tensor
    width: int

    def view(self, x_Pn: Tensor) -> Tensor | None:
        """Return this region as a view of x, (M, D); None if it has to be gathered."""
        return None if self.span is None else x_Pn[self.span]

    def of(self, x_Pn: Tensor) -> Tensor:
        """Return this region's values, (M, D); as a view where possible."""
        view_MD = self.view(x_Pn)
        if view_MD is not None:
            return view_MD
        return x_Pn.view(-1).index_select(0, self._index_MD.view(-1)).view(self._index_MD.shape)

    def put(self, x_Pn: Tensor, values_MD: Tensor) -> None:
        """Write this region's values."""
        view_MD = self.view(x_Pn)
        if view_MD is not None:
            view_MD.copy_(values_MD)
        else:
            x_Pn.view(-1).scatter_(0, self._index_MD.view(-1), values_MD.reshape(-1))

    @property
    def scalars(self) -> int:
        return len(self.rows) * self.columns.shape[-1]

    @cached_property
    def span(self) -> tuple[slice, slice] | None:
        """The rows and columns of the view; None if the region has to be gathered."""
        rows = rows_of(self.rows.tolist())
        if self.columns.dim() == 2 or not isinstance(rows, slice):
            return None
        first, stop = int(self.columns[0]), int(self.columns[-1]) + 1
        return (rows, slice(first, stop)) if stop - first == len(self.columns) else None

    @cached_property
    def _index_MD(self) -> Tensor:
        """Indices into x as one flat vector, so that one call gathers and one scatters, however many rows there are."""
        return self.rows.to(self.columns.device).unsqueeze(1) * self.width + self.columns


@dataclass(frozen=True)
class JobNetwork:
    """A network of a job.

    module       only its architecture is used, never its own tensors
    way, block   how a block of peers with this network is trained, and how many peers it has (`steppers.choose`)
    """

    module: nn.Module
    layout: FlatLayout
    way: Way
    block: int


@dataclass(frozen=True, kw_only=True)
class Job:
    """One method with one seed, for a worker that trains, averages and evaluates; the tensors are elsewhere.

    networks        the peers' networks, one or more
    network_P       index of each peer's network
    criterion       the loss of the outputs
    batch_P         each peer's batch size
    steps_P         each peer's steps per round
    score_scale_P   one unit of each peer's regression targets in units of the data; 1 for classification
    algorithm       its name and settings
    learning        the federation's settings: which peers take part in a round, how updates are combined and made
                    private
    outer           outer steps after averagings; None: there are none
    """

    peers: tuple[str, ...]
    networks: tuple[JobNetwork, ...]
    network_P: tuple[int, ...]
    criterion: Loss
    optimizer: OptimizerChoice
    seed: int
    batch_P: tuple[int, ...]
    steps_P: tuple[int, ...]
    device: str
    score_scale_P: tuple[float, ...]
    algorithm: Choice
    learning: LearningSettings
    outer: OuterRules | None = None

    @property
    def draws(self) -> Draws:
        return Draws(self.seed)

    @property
    def network(self) -> JobNetwork:
        """The network, or the first one of several."""
        return self.networks[0]

    @property
    def layout(self) -> FlatLayout:
        return self.network.layout

    @property
    def longest(self) -> int:
        """Number of parameters of the largest network."""
        return max(each.layout.n for each in self.networks)

    def narrowed(self, number: int) -> Job:
        """Return this job for the peers with the network of this number, as if all peers had that network."""
        if len(self.networks) == 1:
            return self
        network = self.networks[number]
        outer = self.outer and replace(self.outer, rule_Cn=self.outer.rule_Cn[:, : network.layout.n])
        return replace(self, networks=(network,), network_P=(0,) * len(self.peers), outer=outer)

    def split(self, peers: Sequence[int]) -> list[tuple[int, Sequence[int]]]:
        """Return some peers by network: (its number, its peers in their order)."""
        if len(self.networks) == 1:
            return [(0, peers)]
        found: dict[int, list[int]] = {}
        for peer in peers:
            found.setdefault(self.network_P[peer], []).append(peer)
        return list(found.items())

    @cached_property
    def clients(self) -> tuple[int, ...]:
        """Indices of the peers in the order of their ids, the order in which an algorithm numbers its clients."""
        return tuple(sorted(range(len(self.peers)), key=self.peers.__getitem__))

    @cached_property
    def client_P(self) -> tuple[int, ...]:
        """Each peer's index as a client."""
        return tuple(np.argsort(self.clients).tolist())

    @cached_property
    def like_n(self) -> Tensor:
        """A tensor (n,) without values, to show the structure of what is averaged."""
        return torch.empty(self.layout.n, device="meta")

    def steppers(self) -> tuple[Stepper, ...]:
        """Return the chosen stepper of each network, ready to be used in this process."""
        return tuple(self.narrowed(number).stepper() for number in range(len(self.networks)))

    def stepper(self) -> Stepper:
        """Return the chosen stepper of the network, or of the first one."""
        return build_stepper(self.network.way, self.network.module, self.layout, self.criterion, self.optimizer)


@dataclass(frozen=True)
class WorkspacePart:
    """The training, test or validation examples of all peers: rows of x_NF and targets, peer after peer.

    index_T    (T,) int64, rows of the data set
    y_T        (T,) or (T, outputs), targets as the peer sees them
    first_P1   (P + 1,), where each peer's examples begin, and the end of the last peer's
    """

    index_T: Tensor
    y_T: Tensor
    first_P1: tuple[int, ...]

    def count(self, peer: int) -> int:
        return self.first_P1[peer + 1] - self.first_P1[peer]


@dataclass
class Workspace:
    """All tensors of a run.

    x          both sides of what peers average (P, V * n), the V vectors of a peer one after the other; where networks
               differ, shorter rows end with zeros
    x_NF       the inputs of the data set
    view       how each peer sees the inputs; None if all see them unchanged
    index      by group the columns of x, (D,) ascending if they are the same for all members, else (M, D); also the
               local columns of each kind of peer, under names that begin with `LOCAL_COLUMNS`
    rows       by group, and for each kind of peer, the rows of x, (M,)
    class_weight_PC   weight of each class in each peer's loss; None: all examples count the same
    states     the algorithm's states, for each network of the job: all peers have a row, and the peers with this
               network use theirs
    mappings   the mappings of x and states, if they are in files
    """

    x: tuple[Tensor, Tensor]
    x_NF: Tensor
    train: WorkspacePart
    test: WorkspacePart
    valid: WorkspacePart
    view: BatchView | None
    index: Mapping[str, Tensor]
    rows: Mapping[str, Tensor]
    class_weight_PC: Tensor | None = None
    states: tuple[States, ...] = ()
    mappings: tuple[mmap.mmap, ...] = ()

    def part(self, job: Job, number: int) -> Workspace:
        """Return the workspace for the peers with the job's network of this number."""
        if len(job.networks) == 1:
            return self
        width = self.x[0].shape[1] // job.longest * job.networks[number].layout.n
        x = self.x[0][:, :width], self.x[1][:, :width]
        return replace(self, x=x, states=self.states[number : number + 1])

    def to(self, device: str) -> Workspace:
        """Return the workspace on a device, where x is already. States and mappings are left out."""

        def moved(part: WorkspacePart) -> WorkspacePart:
            return WorkspacePart(part.index_T.to(device), part.y_T.to(device), part.first_P1)

        view = self.view and BatchView(*(t if t is None else t.to(device) for t in self.view.fields()))
        columns = {name: value.to(device) for name, value in self.index.items()}
        return Workspace(
            self.x,
            self.x_NF.to(device),
            moved(self.train),
            moved(self.test),
            moved(self.valid),
            view,
            columns,
            self.rows,
            None if self.class_weight_PC is None else self.class_weight_PC.to(device),
        )

    def seen_by(self, peers: Sequence[int]) -> BatchView | None:
        """Return how a block of peers sees the inputs; None if unchanged."""
        if self.view is None:
            return None
        return self.view.of(torch.as_tensor(peers, device=self.x_NF.device))

    def examples(self, part: WorkspacePart, peer: int) -> Examples:
        """Return one peer's examples of a part."""
        span = slice(part.first_P1[peer], part.first_P1[peer + 1])
        return Examples(self.x_NF, part.index_T[span], part.y_T[span])

    def scored(self, peer: int, *, validation: bool, weighted: bool) -> Examples:
        """Return the examples on which one peer is scored.

        Args:
            weighted: whether those for validation have the weights of their classes, as examples have in training.
        """
        if not validation:
            return self.examples(self.test, peer)
        weight_PC = self.class_weight_PC if weighted else None
        return self.examples(self.valid, peer).weighted(None if weight_PC is None else weight_PC[peer])

    def batches(self, peers: Sequence[int], orders: NDArray[np.int64]) -> Batches:
        """Return the batches of a block of peers.

        Args:
            orders: (B, S, b), the numbers of each peer's own training examples.
        """
        first = np.array([self.train.first_P1[p] for p in peers], np.int64)
        places = torch.from_numpy(orders + first[:, None, None]).to(self.x_NF.device)
        weight = None if self.class_weight_PC is None else self.class_weight_PC[list(peers)]
        index, y = self.train.index_T[places], self.train.y_T[places]
        return Batches(self.x_NF, index, y, self.seen_by(peers), class_weight=weight)


@dataclass(frozen=True)
class WorkspaceHandles:
    """A workspace of handles, which can be sent to another process and opened there."""

    tree: Any

    def open(self) -> Workspace:
        found: list[mmap.mmap] = []
        states = {name: transformed(self.tree[name], Handle, lambda each: each.open(found.append)) for name in LEARNT}
        rest = {name: value for name, value in self.tree.items() if name not in LEARNT}
        return Workspace(**states, **transformed(rest, Handle, Handle.open), mappings=tuple(found))


def transformed(value: Any, kind: type[T], function: Callable[[T], Any]) -> Any:
    """Return a workspace's field with all values of this kind replaced by their image, at any depth."""
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, tuple):
        return tuple(transformed(each, kind, function) for each in value)
    if isinstance(value, Mapping):
        return {name: transformed(each, kind, function) for name, each in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{each.name: transformed(getattr(value, each.name), kind, function) for each in fields(value)}
        )
    return value


def on_disk(workspace: Workspace, folder: Path) -> WorkspaceHandles:
    """Move a workspace of plain tensors into files. x and states are only allocated and must be filled afterwards."""
    number = itertools.count()

    def moved(field: str, value: Tensor) -> Handle:
        name = f"{field}.{next(number)}"
        return (
            allocate(folder, name, tuple(value.shape), value.dtype)
            if field in LEARNT
            else _share_memory(folder, name, value)
        )

    tree = {name: value for name, value in vars(workspace).items() if name != "mappings"}
    return WorkspaceHandles({name: transformed(value, Tensor, partial(moved, name)) for name, value in tree.items()})
