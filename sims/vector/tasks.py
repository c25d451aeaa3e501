"""What a worker does: train a block of peers, average a block of columns, evaluate a block of peers.

A task is small and frozen; it reads one side of the workspace and writes the other (or returns numbers), so doing it
twice gives what doing it once gives, and which worker does it makes no difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from fedpeer.algorithms import evaluation
from fedpeer.algorithms.batches import round_order
from fedpeer.algorithms.local_training import LocalTraining, TrainingState
from fedpeer.algorithms.precision import widest
from fedpeer.algorithms.servers.models import Model
from fedpeer.algorithms.steppers import Stepper
from fedpeer.config.building import AnyAlgorithm, Coordinated
from fedpeer.sims.vector.clients import Examine, Teach, built, examine, teach, workbench
from fedpeer.sims.vector.equals import Advance, Appraise, advance, appraise, equals_of
from fedpeer.sims.vector.workspace import Job, Workspace


@dataclass(frozen=True)
class Train:
    """A round of local steps of these peers: side `source` of x and s -> the other side."""

    peers: tuple[int, ...]
    round: int
    fresh: bool
    x_source: int
    s_source: int


@dataclass(frozen=True)
class Mix:
    """Average columns start..stop of a group: side `source` of x -> the other side."""

    group: str
    start: int
    stop: int
    source: int


@dataclass(frozen=True)
class Keep:
    """Carry what a set of peers averages with nobody to the other side, unchanged. `index` names the columns."""

    index: str
    source: int


@dataclass(frozen=True)
class Evaluate:
    """Score these peers on their own test part, or on what was kept back, with side `source` of x."""

    peers: tuple[int, ...]
    source: int
    validation: bool


@dataclass(frozen=True)
class Spread:
    """How far the members of a group are apart in its columns start..stop, on side `source` of x."""

    group: str
    start: int
    stop: int
    source: int


@dataclass(frozen=True)
class Several:
    """These one after the other, told and answered at once: for tasks that take hardly longer than a message."""

    tasks: tuple[Task, ...]


Task: TypeAlias = "Train | Mix | Keep | Evaluate | Spread | Advance | Appraise | Teach | Examine | Several"
#: A group's averaging as one matrix: dense, sparse (few exchanges among many peers), or the weights of an exact mean.
Mixing: TypeAlias = NDArray[np.float64] | csr_array


@dataclass
class Worker:
    """A worker's own things: the job, the memory, the way to train, and the mixing matrices it was last told."""

    job: Job
    workspace: Workspace
    stepper: Stepper
    mixing: dict[str, Mixing] = field(default_factory=dict)

    def do(self, task: Task) -> Any:
        match task:
            case Train():
                return train(self.job, self.workspace, self.local, task)
            case Mix():
                return mix(self.workspace, self.mixing[task.group], task)
            case Keep():
                return keep(self.workspace, task)
            case Evaluate():
                return evaluate(self.job, self.workspace, self.stepper, task)
            case Spread():
                return spread(self.workspace, task)
            case Advance():
                return advance(self.job, self.workspace, self.equals, task)
            case Appraise():
                return appraise(self.job, self.workspace, self.stepper, self.equals, task)
            case Teach():
                return teach(self.job, self.workspace, self.algorithm, task)
            case Several():
                return [self.do(each) for each in task.tasks]
            case Examine():
                return examine(self.job, self.workspace, self.stepper, self.algorithm, task)

    @cached_property
    def local(self) -> LocalTraining:
        """That of equals that keep nothing but their optimiser's state."""
        return LocalTraining(workbench(self.job, self.stepper, self.workspace))

    @cached_property
    def equals(self) -> AnyAlgorithm:
        """That whose peers keep a state of their own."""
        assert self.job.keeping is not None, "the job has such peers"
        return equals_of(self.job.keeping, workbench(self.job, self.stepper, self.workspace))

    @cached_property
    def algorithm(self) -> Coordinated:
        """That with a server."""
        assert self.job.served is not None, "the job has a server"
        return built(self.job, self.job.served, self.stepper, self.workspace)


def train(job: Job, workspace: Workspace, algorithm: LocalTraining, task: Train) -> None:
    """The block's rows: gather, train, write to the other side."""
    peers = list(task.peers)
    batch, steps = job.batch_P[peers[0]], job.steps_P[peers[0]]
    orders = np.stack(
        [round_order(workspace.train.count(p), task.round, steps, batch, job.draws, job.peers[p]) for p in peers]
    )
    keys = [job.draws.key("dropout", job.peers[p], task.round) for p in peers]
    rows = _rows(peers)
    state = TrainingState(workspace.s[task.s_source][rows], torch.tensor([not task.fresh]))
    state, sent = algorithm.train(
        state, Model(workspace.x[task.x_source][rows]), workspace.batches(peers, orders), keys
    )
    workspace.x[1 - task.x_source][rows] = sent.model_n
    workspace.s[1 - task.s_source][rows] = state.optimizer_k


def _rows(peers: list[int]) -> slice | list[int]:
    """A slice where the peers are consecutive, so that a block is a view and not a copy."""
    if peers == list(range(peers[0], peers[-1] + 1)):
        return slice(peers[0], peers[-1] + 1)
    return peers


def mix(workspace: Workspace, mixing: Mixing, task: Mix) -> None:
    """x' = T @ x on a block of columns, a piece at a time; each parameter is read once and written once."""
    target = workspace.x[1 - task.source]
    if not isinstance(mixing, np.ndarray):
        mixing = mixing.astype(np.float32)
    for place_MD, block_MD in _pieces(workspace, task):
        target.view(-1).scatter_(0, place_MD.view(-1), _mixed(mixing, block_MD).reshape(-1))


def spread(workspace: Workspace, task: Spread) -> tuple[NDArray[np.float64], float]:
    """(M,) squared distances of the members from their mean, and the squared norm of the mean, in these columns."""
    members = len(workspace.rows[task.group])
    distance_M, norm = np.zeros(members), 0.0
    for _, block_MD in _pieces(workspace, task):
        wide_MD = block_MD.to(widest(block_MD.device))
        mean_D = wide_MD.mean(0)
        distance_M += (wide_MD - mean_D).square().sum(1).cpu().numpy()
        norm += float(mean_D.square().sum())
    return distance_M, norm


def _pieces(workspace: Workspace, task: Mix | Spread) -> Iterator[tuple[Tensor, Tensor]]:
    """The task's columns a piece at a time: their places in all of x as one vector, and their values, (M, D) each.

    One call gathers and one scatters, however many the members are.
    """
    source, index = workspace.x[task.source], workspace.index[task.group]
    row_M1 = workspace.rows[task.group].to(index.device).unsqueeze(1)
    width = max(1, _MIXED_IN_CACHE // len(row_M1))
    for start in range(task.start, task.stop, width):
        place_MD = row_M1 * source.shape[1] + index[..., start : min(start + width, task.stop)]
        yield place_MD, source.view(-1).index_select(0, place_MD.view(-1)).view(place_MD.shape)


#: Scalars averaged at once: their places are 1 MiB, so that all stays in the cache from gathering to scattering.
_MIXED_IN_CACHE = 128 * 1024


def _mixed(mixing: Mixing, block_MD: Tensor) -> Tensor:
    """(M, D): T @ x, computed in float64 for small groups."""
    if not isinstance(mixing, np.ndarray):
        return torch.from_numpy(mixing @ block_MD.cpu().numpy()).to(block_MD.device)
    wide = widest(block_MD.device)
    if mixing.ndim == 1:
        weights = torch.from_numpy(mixing).to(wide).to(block_MD.device)
        return (weights @ block_MD.to(wide)).to(block_MD.dtype).expand_as(block_MD)
    exact = wide if len(mixing) <= _FLOAT64_MEMBERS else torch.float32
    return (torch.from_numpy(mixing).to(exact).to(block_MD.device) @ block_MD.to(exact)).to(block_MD.dtype)


#: Above this size the product costs more than reading the parameters, and float32 halves it; the rows of a mixing
#: matrix sum to one, so its rounding is relative to the values themselves.
_FLOAT64_MEMBERS = 64


def keep(workspace: Workspace, task: Keep) -> None:
    """A row at a time: the local columns of all peers together may be as large as x."""
    source, target, index = workspace.x[task.source], workspace.x[1 - task.source], workspace.index[task.index]
    for row in workspace.rows[task.index].tolist():
        target[row].scatter_(0, index, source[row].index_select(0, index))


def evaluate(job: Job, workspace: Workspace, stepper: Stepper, task: Evaluate) -> list[tuple[float, float]]:
    """(score, loss) of each peer: accuracy as a fraction, or root-mean-square error, and the mean loss."""
    view = workspace.seen_by(task.peers)
    return [
        evaluation.evaluate(
            stepper,
            job.criterion,
            workspace.x[task.source][peer],
            workspace.scored(peer, validation=task.validation),
            view and view.of(number),
            job.score_scale_P[peer],
        )
        for number, peer in enumerate(task.peers)
    ]
