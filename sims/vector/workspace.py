"""The memory of one vector run: parameters and optimiser state of all peers, the examples, and who averages what.

On a CPU every tensor is a file-backed mapping that worker processes open by name, so that nothing is copied between
processes; on a device they are plain tensors of that device. Parameters and optimiser state exist twice: a phase
reads one side and writes the other, so a task that was cut short (its worker died) is simply done again.
"""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedpeer.algorithms.batches import Batches, Examples, View
from fedpeer.algorithms.draws import Draws
from fedpeer.algorithms.losses import LOSSES, Loss
from fedpeer.algorithms.optimizers import OptimizerChoice
from fedpeer.algorithms.steppers import Stepper, Way, build
from fedpeer.config.choice import Choice
from fedpeer.config.federation import LearningSettings
from fedpeer.slicing.flat import FlatLayout

T = TypeVar("T")

#: Fields of a workspace with what peers have learnt.
STATES = ("x", "s", "leaves")


def tensor(array: NDArray[Any]) -> Tensor:
    """The array's memory, which may be a file's or an object store's: to be read, never written."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


@dataclass(frozen=True)
class Handle:
    """A file-backed tensor by name: opened in any process, it is the same memory."""

    path: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return int(np.prod(self.shape)) * self.dtype.itemsize

    def open(self, mapped: Callable[[mmap.mmap], object] = lambda mapping: None) -> Tensor:
        """The tensor; `mapped` is told of the mapping that it lies in, if it has any numbers."""
        if self.bytes == 0:
            return torch.empty(self.shape, dtype=self.dtype)
        with Path(self.path).open("r+b") as file:
            mapping = mmap.mmap(file.fileno(), self.bytes)
        mapped(mapping)
        return torch.frombuffer(mapping, dtype=self.dtype).view(self.shape)


def share(folder: Path, name: str, value: Tensor) -> Handle:
    """Write a tensor into a new file of the folder and give its handle."""
    handle = allocate(folder, name, tuple(value.shape), value.dtype)
    handle.open().copy_(value)
    return handle


def allocate(folder: Path, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Handle:
    """A tensor of zeros in a new file: a hole that takes room when it is written."""
    handle = Handle(str(folder / name), shape, dtype)
    with Path(handle.path).open("wb") as file:
        file.truncate(handle.bytes)
    return handle


@dataclass(frozen=True)
class Served:
    """What a worker must know of an algorithm with a server.

    algorithm          its name and settings
    learning           the federation's, for how updates are aggregated and made private
    client, broadcast, update, server    states of the right kinds, with tensors of no size
    """

    algorithm: Choice
    learning: LearningSettings
    client: Any
    broadcast: Any
    update: Any
    server: Any


@dataclass(frozen=True)
class Keeping:
    """What a worker must know of an algorithm of equals that keep a state of their own.

    algorithm   its name and settings
    learning    the federation's
    state       one of the right kind, with tensors of no size
    """

    algorithm: Choice
    learning: LearningSettings
    state: Any


@dataclass(frozen=True, kw_only=True)
class Job:
    """One method with one seed, but for the tensors: what a worker must know to train, average and evaluate.

    module          the network; its own tensors are never used, only its form
    way, block      how blocks of how many peers are trained (`steppers.choose`)
    batch_P         batch size of each peer; `steps_P` its steps a round
    score_scale_P   of each peer, what one unit of its regression targets is in units of the data; 1 for classes
    served          the algorithm, where it has a server
    keeping         the algorithm, where peers are equals that keep a state of their own
    """

    peers: tuple[str, ...]
    module: nn.Module
    layout: FlatLayout
    loss: str
    optimizer: OptimizerChoice
    optimizer_state: Literal["keep", "reset"]
    seed: int
    batch_P: tuple[int, ...]
    steps_P: tuple[int, ...]
    device: str
    way: Way
    block: int
    score_scale_P: tuple[float, ...]
    served: Served | None = None
    keeping: Keeping | None = None

    @property
    def draws(self) -> Draws:
        return Draws(self.seed)

    @cached_property
    def clients(self) -> tuple[int, ...]:
        """Peers in the order of their ids, in which an algorithm with a server numbers its clients."""
        return tuple(sorted(range(len(self.peers)), key=self.peers.__getitem__))

    @cached_property
    def client_P(self) -> tuple[int, ...]:
        """Each peer's number as a client."""
        return tuple(np.argsort(self.clients).tolist())

    @property
    def criterion(self) -> Loss:
        return LOSSES[self.loss]

    def stepper(self) -> Stepper:
        """The chosen way to train, ready to be used in this process."""
        return build(self.way, self.module, self.layout, self.criterion, self.optimizer)


@dataclass(frozen=True)
class Part:
    """The training or the test examples of all peers: rows of x_NF and targets, peer after peer.

    index_T   (T,) int64 rows of the data set; y_T (T,) or (T, outputs) targets as the peer sees them
    first_P1  (P + 1,) where each peer's examples begin
    """

    index_T: Tensor
    y_T: Tensor
    first_P1: tuple[int, ...]

    def count(self, peer: int) -> int:
        return self.first_P1[peer + 1] - self.first_P1[peer]


@dataclass
class Workspace:
    """All tensors of a run. x and s hold both sides; `index` of a group is (D,) where members agree, else (M, D).

    `leaves`: states of an algorithm with a server, or of equals that keep one, by name. `mappings`: in which x, s and
    leaves lie, where they are in files.
    """

    x: tuple[Tensor, Tensor]
    s: tuple[Tensor, Tensor]
    x_NF: Tensor
    train: Part
    test: Part
    valid: Part
    view: View | None
    index: Mapping[str, Tensor]
    rows: Mapping[str, Tensor]
    leaves: Mapping[str, Tensor] = field(default_factory=dict)
    mappings: tuple[mmap.mmap, ...] = ()

    def to(self, device: str) -> Workspace:
        """The same on a device; x and s are there already."""

        def moved(part: Part) -> Part:
            return Part(part.index_T.to(device), part.y_T.to(device), part.first_P1)

        view = self.view and View(*(t if t is None else t.to(device) for t in self.view.fields()))
        columns = {name: value.to(device) for name, value in self.index.items()}
        return Workspace(
            self.x,
            self.s,
            self.x_NF.to(device),
            moved(self.train),
            moved(self.test),
            moved(self.valid),
            view,
            columns,
            self.rows,
        )

    def seen_by(self, peers: Sequence[int]) -> View | None:
        """The view of a block of peers."""
        if self.view is None:
            return None
        return self.view.of(torch.as_tensor(peers, device=self.x_NF.device))

    def examples(self, part: Part, peer: int) -> Examples:
        """One peer's part."""
        span = slice(part.first_P1[peer], part.first_P1[peer + 1])
        return Examples(self.x_NF, part.index_T[span], part.y_T[span])

    def scored(self, peer: int, *, validation: bool) -> Examples:
        """What one peer is scored on."""
        return self.examples(self.valid if validation else self.test, peer)

    def batches(self, peers: Sequence[int], orders: NDArray[np.int64]) -> Batches:
        """`orders` (B, S, b): numbers of each peer's own training examples."""
        first = np.array([self.train.first_P1[p] for p in peers], np.int64)
        places = torch.from_numpy(orders + first[:, None, None]).to(self.x_NF.device)
        return Batches(self.x_NF, self.train.index_T[places], self.train.y_T[places], self.seen_by(peers))


@dataclass(frozen=True)
class WorkspaceHandles:
    """A workspace as names, to be sent to another process and opened there."""

    tree: Any

    def open(self) -> Workspace:
        found: list[mmap.mmap] = []
        states = {name: mapped(self.tree[name], Handle, lambda handle: handle.open(found.append)) for name in STATES}
        rest = {name: value for name, value in self.tree.items() if name not in STATES}
        return Workspace(**states, **mapped(rest, Handle, Handle.open), mappings=tuple(found))


def mapped(value: Any, kind: type[T], function: Callable[[T], Any]) -> Any:
    """A field of a workspace with everything of this kind in it, however deep, replaced by the function of it."""
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(mapped(each, kind, function) for each in value)
    if isinstance(value, Mapping):
        return {name: mapped(each, kind, function) for name, each in value.items()}
    if isinstance(value, Part):
        return Part(mapped(value.index_T, kind, function), mapped(value.y_T, kind, function), value.first_P1)
    if isinstance(value, View):
        return View(*(mapped(each, kind, function) for each in value.fields()))
    return value


def on_disk(workspace: Workspace, folder: Path) -> WorkspaceHandles:
    """Move a workspace of plain tensors into files; x and s are only allocated and must be filled afterwards."""

    def moved(value: Any, name: str) -> Any:
        if isinstance(value, Tensor):
            return share(folder, name, value)
        if isinstance(value, tuple):
            return tuple(moved(each, f"{name}.{number}") for number, each in enumerate(value))
        if isinstance(value, Mapping):
            return {key: moved(each, f"{name}.{number}") for number, (key, each) in enumerate(value.items())}
        if isinstance(value, Part):
            return Part(moved(value.index_T, f"{name}.index"), moved(value.y_T, f"{name}.y"), value.first_P1)
        if isinstance(value, View):
            return View(*(moved(field, f"{name}.{number}") for number, field in enumerate(value.fields())))
        return value

    kept = (*STATES, "mappings")
    tree = {name: moved(value, name) for name, value in vars(workspace).items() if name not in kept}
    tree["leaves"] = {
        name: allocate(folder, f"leaf.{number}", tuple(leaf.shape), leaf.dtype)
        for number, (name, leaf) in enumerate(workspace.leaves.items())
    }
    for name in ("x", "s"):
        tree[name] = tuple(
            allocate(folder, f"{name}.{side}", tuple(tensor.shape))
            for side, tensor in enumerate(getattr(workspace, name))
        )
    return WorkspaceHandles(tree)
