"""The tasks of a worker: train a block of peers, average a block of columns, evaluate a block of peers.

A task is small and frozen. It reads one side of the workspace and writes the other (or returns numbers), so repeating
it changes nothing, and it does not matter which worker runs it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from fedpeer.algorithms import evaluation
from fedpeer.algorithms.batches import Batches, round_order
from fedpeer.algorithms.coordinated import has_server
from fedpeer.algorithms.leaves import combined, divided, leaves_of, map_leaves
from fedpeer.algorithms.precision import unrounded, widest
from fedpeer.algorithms.steppers import Stepper
from fedpeer.algorithms.training_context import TrainingContext
from fedpeer.config.building import AnyAlgorithm, algorithm_of
from fedpeer.data.own.code import imported
from fedpeer.sims.vector.workspace import Job, Region, States, Workspace, other, rows_of

#: (score, loss) of a model on a peer's test part.
Score: TypeAlias = tuple[float, float]


@dataclass(frozen=True)
class TrainBlock:
    """Train these peers for one round: their states are read from these sides and written to the others.

    Without a server, peers also train from side `source` of x to the other; clients train from the server's broadcast.
    """

    peers: tuple[int, ...]
    sides: tuple[int, ...]
    round: int
    source: int = 0


@dataclass(frozen=True)
class EvaluateBlock:
    """Score these peers on their own test or validation part; without a server, with side `source` of x."""

    peers: tuple[int, ...]
    sides: tuple[int, ...]
    validation: bool
    source: int = 0


@dataclass(frozen=True)
class BlockScores:
    """The results of an evaluation, for each peer.

    own          scores of the model with which the peer predicts
    shared       scores of the server's model or the peer's estimate of the average; None if that is the peer's own
                 model, or the server has no model
    statistics   the algorithm's own statistics
    """

    own: list[Score]
    shared: list[Score] | None
    statistics: dict[str, list[float]]


@dataclass(frozen=True)
class Mix:
    """Average columns start..stop of a group: side `source` of x -> the other side."""

    group: str
    start: int
    stop: int
    source: int


@dataclass(frozen=True)
class Keep:
    """Copy the local parameters of some peers to the other side. `index` names the entry of peers and columns."""

    index: str
    source: int


@dataclass(frozen=True)
class Disagreement:
    """Measure how far the members of a group are apart in its columns start..stop, on side `source` of x."""

    group: str
    start: int
    stop: int
    source: int


@dataclass(frozen=True)
class TaskBatch:
    """Run several tasks one after the other, in one message and answer: tasks may take hardly longer than a message."""

    tasks: tuple[WorkerTask, ...]


WorkerTask: TypeAlias = "TrainBlock | Mix | Keep | EvaluateBlock | Disagreement | TaskBatch"
#: A group's averaging as one matrix: dense, sparse (few exchanges among many peers), or the weights of an exact mean.
Mixing: TypeAlias = NDArray[np.float64] | csr_array
#: That matrix on the device and in the type in which it is multiplied.
Multiplied: TypeAlias = Tensor | csr_array


@dataclass
class BlockContext:
    """The job, the memory, the stepper and the algorithm for blocks of peers with the same network."""

    job: Job
    workspace: Workspace
    stepper: Stepper
    algorithm: AnyAlgorithm

    @property
    def states(self) -> States:
        return self.workspace.states[0]


@dataclass
class Worker:
    """The state of a worker: the job, the memory, a stepper for each network, and the latest mixing matrices."""

    job: Job
    workspace: Workspace
    steppers: Sequence[Stepper]
    mixing: dict[str, Multiplied] = field(default_factory=dict)

    def do(self, task: WorkerTask) -> Any:
        with unrounded(self.job.device):
            return self._done(task)

    def _done(self, task: WorkerTask) -> Any:
        match task:
            case TrainBlock():
                return _train_block(self._part(task.peers), task)
            case Mix():
                return mix(self.workspace, self.mixing[task.group], task)
            case Keep():
                return _keep_columns(self.workspace, task)
            case EvaluateBlock():
                return _evaluate_block(self._part(task.peers), task)
            case Disagreement():
                return disagreement_of_columns(self.workspace, task)
            case TaskBatch():
                return [self._done(each) for each in task.tasks]

    @cached_property
    def parts(self) -> tuple[BlockContext, ...]:
        """The context of each network, with the algorithm as a worker needs it: without draws of initial parameters."""

        def part(number: int, stepper: Stepper) -> BlockContext:
            job, workspace = self.job.narrowed(number), self.workspace.part(self.job, number)
            context = training_context(job, stepper, workspace)
            return BlockContext(job, workspace, stepper, algorithm_of(job.algorithm, job.learning, context, imported))

        return tuple(part(number, stepper) for number, stepper in enumerate(self.steppers))

    def _part(self, block: Sequence[int]) -> BlockContext:
        """Return the context for a block of peers, which have the same network."""
        return self.parts[self.job.network_P[block[0]]]

    def set_mixing(self, group: str, mixing: Mixing) -> None:
        """Set the matrix by which the group averages from now on."""
        self.mixing[group] = multiplied(mixing, self.workspace.x[0].device)

    @property
    def states(self) -> States:
        """The states; with several networks, those of the peers with the first one."""
        return self.parts[0].states

    def weights(self, peers: Sequence[int], sides: Sequence[int], group: str) -> NDArray[np.float64] | None:
        """Return the algorithm's own weights of members of a group after their training, (m,), if it has any."""
        index = self.workspace.index[group]
        weights = self.parts[0].algorithm.weights(
            self.states.of(peers, sides), (index if index.dim() == 1 else index[0]).cpu().numpy()
        )
        return None if weights is None else weights.cpu().numpy()

    def settle(self, peers: Sequence[int], sides: Sequence[int], counted: Sequence[bool]) -> None:
        """Settle what clients keep of a round, if the algorithm makes that depend on whether an update counted.

        Must not be repeated: the result takes the place of the state after training.

        Args:
            sides: sides of the states before the round.
            counted: whether each client's update counted.
        """
        algorithm = self.parts[0].algorithm
        assert has_server(algorithm), "only clients of a server settle"
        others = [other(side) for side in sides]
        before, trained = (self.states.of(peers, each) for each in (sides, others))
        which = torch.tensor(counted, device=self.job.device)
        self.states.put(algorithm.settle(before, trained, self.states.server, which), peers, others)


def training_context(job: Job, stepper: Stepper, workspace: Workspace) -> TrainingContext:
    """Return the context on which an algorithm is built for this job's network."""
    return TrainingContext(
        module=job.network.module,
        layout=job.layout,
        loss=job.criterion,
        optimizer=job.optimizer,
        stepper=stepper,
        clients=len(job.peers),
        examples=len(workspace.train.index_T),
        examples_max=max(workspace.train.count(peer) for peer in range(len(job.peers))),
        outer=job.outer and job.outer.to(job.device),
    )


def work_of(job: Job, workspace: Workspace, peers: Sequence[int], round: int) -> tuple[Batches, list[int]]:
    """Return the batches and random keys of a block of peers, which have equal batch sizes and steps."""
    batch, steps = job.batch_P[peers[0]], job.steps_P[peers[0]]
    orders = np.stack(
        [round_order(workspace.train.count(p), round, steps, batch, job.draws, job.peers[p]) for p in peers]
    )
    keys = [job.draws.key("dropout", job.peers[p], round) for p in peers]
    whole = tuple(workspace.examples(workspace.train, peer) for peer in peers)
    number = torch.tensor([job.client_P[peer] for peer in peers], device=job.device)
    return replace(workspace.batches(peers, orders), whole=whole, number=number, round=round), keys


def _train_block(part: BlockContext, task: TrainBlock) -> None:
    """Train a block; write the new states, and the vectors or updates to send."""
    job, workspace, algorithm, states = part.job, part.workspace, part.algorithm, part.states
    batches, keys = work_of(job, workspace, task.peers, task.round)
    client, rows = states.of(task.peers, task.sides), rows_of(task.peers)
    received = states.received
    if states.sent is None:
        received = divided(algorithm.start_averaged(job.like_n), workspace.x[task.source][rows])
    if len(task.peers) == 1:  # without the leading dimension: faster, and as a real peer does it
        own = received if states.sent is not None else map_leaves(lambda leaf: leaf[0], received)
        found = algorithm.train(map_leaves(lambda leaf: leaf[0], client), own, batches.peer(0), keys)
        trained, sent = (map_leaves(lambda leaf: leaf[None], each) for each in found)
    else:
        trained, sent = algorithm.train(client, received, batches, keys)
    states.put(trained, task.peers, [other(side) for side in task.sides])
    if states.sent is None:
        workspace.x[1 - task.source][rows] = combined(sent)
        return
    update = leaves_of(sent)
    for name, leaf in leaves_of(states.sent).items():
        leaf[rows] = update[name]


def mix(workspace: Workspace, matrix: Multiplied, task: Mix) -> None:
    """Compute x' = T @ x on a block of columns, piece by piece; each parameter is read once and written once."""
    source, target = workspace.x[task.source], workspace.x[1 - task.source]
    whole = _region(workspace, task, task.start, task.stop)
    large = source.device.type == "cpu" and whole.scalars >= _COMPILED_FROM
    if large and whole.span is not None and not isinstance(matrix, Tensor):
        from fedpeer.sims.vector import sparse_mixing  # imports numba, which takes half a second

        sparse_mixing.multiply(matrix, source.numpy(), target.numpy(), *whole.span)
        return
    for piece in _pieces(workspace, task):
        place_MD = piece.view(target)
        mixed_MD = _mixed(matrix, piece.of(source), place_MD)
        if mixed_MD is not place_MD:
            piece.put(target, mixed_MD)


def disagreement_of_columns(workspace: Workspace, task: Disagreement) -> tuple[NDArray[np.float64], float]:
    """Return the members' squared distances from their mean, (M,), and the mean's squared norm, in these columns."""
    members = len(workspace.rows[task.group])
    distance_M, norm = np.zeros(members), 0.0
    for piece in _pieces(workspace, task):
        block_MD = piece.of(workspace.x[task.source])
        wide_MD = block_MD.to(widest(block_MD.device))
        mean_D = wide_MD.mean(0)
        distance_M += (wide_MD - mean_D).square().sum(1).cpu().numpy()
        norm += float(mean_D.square().sum())
    return distance_M, norm


def _pieces(workspace: Workspace, task: Mix | Disagreement) -> Iterator[Region]:
    """Yield the task's columns piece by piece."""
    on_cpu = workspace.x[task.source].device.type == "cpu"
    width = max(1, _MIXED_IN_CACHE // len(workspace.rows[task.group])) if on_cpu else task.stop - task.start
    for start in range(task.start, task.stop, width):
        yield _region(workspace, task, start, min(start + width, task.stop))


def _region(workspace: Workspace, task: Mix | Disagreement, start: int, stop: int) -> Region:
    """Return the columns start..stop of all members of the task's group."""
    width = workspace.x[task.source].shape[1]
    return Region(workspace.rows[task.group], workspace.index[task.group][..., start:stop], width)


#: Scalars averaged at once on a CPU: they take 1 MiB, and their indices, if they are gathered, 2 MiB, so that all stays
#: in the cache until it is written.
_MIXED_IN_CACHE = 256 * 1024
#: Scalars of a task from which on the product with a sparse matrix is compiled, and needs no pieces.
_COMPILED_FROM = 256 * 1024


def multiplied(mixing: Mixing, device: torch.device) -> Multiplied:
    """Return the matrix in the type in which it is multiplied: the widest for an exact mean, else float32.

    Float64 would take twice as long. The rows of a mixing matrix sum to one, so the rounding error is relative to the
    values themselves, like the error of storing them.
    """
    if not isinstance(mixing, np.ndarray):
        single = mixing.astype(np.float32)
        return _on_gpu(single, device) if device.type == "cuda" else single
    return torch.from_numpy(mixing).to(widest(device) if mixing.ndim == 1 else torch.float32).to(device)


def _on_gpu(mixing: csr_array, device: torch.device) -> Tensor:
    """Return a sparse matrix on an NVIDIA GPU."""
    first, columns, values = (torch.from_numpy(each) for each in (mixing.indptr, mixing.indices, mixing.data))
    with warnings.catch_warnings():  # torch warns that the format is new, and that it does not check SciPy's arrays
        warnings.filterwarnings("ignore", message="Sparse")
        return torch.sparse_csr_tensor(first, columns, values, size=mixing.shape, device=device)


def _mixed(matrix: Multiplied, block_MD: Tensor, place_MD: Tensor | None) -> Tensor:
    """Return T @ x, (M, D), written to `place_MD` if that is given and the product can be written there."""
    if not isinstance(matrix, Tensor):
        return torch.from_numpy(matrix @ block_MD.cpu().numpy()).to(block_MD.device)
    if matrix.dim() == 1:
        return (matrix @ block_MD.to(matrix.dtype)).to(block_MD.dtype).expand_as(block_MD)
    if matrix.layout is torch.sparse_csr:
        return matrix @ block_MD
    return torch.mm(matrix, block_MD, out=place_MD)


def _keep_columns(workspace: Workspace, task: Keep) -> None:
    """Copy local columns row by row: those of all peers together may be as large as x."""
    source, target, index = workspace.x[task.source], workspace.x[1 - task.source], workspace.index[task.index]
    for row in workspace.rows[task.index].tolist():
        target[row].scatter_(0, index, source[row].index_select(0, index))


def _evaluate_block(part: BlockContext, task: EvaluateBlock) -> BlockScores:
    """Score a block."""
    job, workspace, algorithm, states = part.job, part.workspace, part.algorithm, part.states
    client, n = states.of(task.peers, task.sides), job.layout.n
    own_Bn = algorithm.personal_model(client)

    def scores(x_Bn: Tensor) -> list[Score]:
        return _scores(part, task.peers, x_Bn, validation=task.validation)

    if has_server(algorithm):
        assert own_Bn is not None, "a client has a model"
        shared, server_n = states.server, algorithm.server_model(states.server)
        scored = None if server_n is None else scores(server_n.expand_as(own_Bn))
    else:
        estimate_BN = workspace.x[task.source][rows_of(task.peers)]
        shared = divided(algorithm.start_averaged(job.like_n), estimate_BN)
        derived_Bn = algorithm.derived_model(client, shared)
        scored = scores(estimate_BN[:, :n] if derived_Bn is None else derived_Bn)
    statistics = {name: each.tolist() for name, each in algorithm.statistics(client, shared).items()}
    if own_Bn is None:
        assert scored is not None, "a peer has a model"
        return BlockScores(scored, None, statistics)
    return BlockScores(scores(own_Bn), scored, statistics)


def _scores(part: BlockContext, peers: Sequence[int], x_Bn: Tensor, *, validation: bool) -> list[Score]:
    """Score one model per peer, each on its peer's test or validation part."""
    job, workspace, stepper = part.job, part.workspace, part.stepper
    view, weighted = workspace.seen_by(peers), not part.algorithm.own_loss
    if job.device != "cpu":
        parts = [workspace.scored(peer, validation=validation, weighted=weighted) for peer in peers]
        scales = [job.score_scale_P[peer] for peer in peers]
        return evaluation.evaluate_block(stepper, job.criterion, x_Bn, parts, view, scales)
    return [
        evaluation.evaluate(
            stepper,
            job.criterion,
            x_n,
            workspace.scored(peer, validation=validation, weighted=weighted),
            view and view.of(number),
            job.score_scale_P[peer],
        )
        for number, (peer, x_n) in enumerate(zip(peers, x_Bn, strict=True))
    ]


def in_order_of_peers(blocks: Sequence[Sequence[int]], found: Sequence[BlockScores]) -> BlockScores:
    """Merge the blocks' results in the order of the peers."""
    place = np.argsort([peer for block in blocks for peer in block])

    def ordered(parts: Sequence[list[Any]]) -> list[Any]:
        flat = [each for part in parts for each in part]
        return [flat[number] for number in place]

    shared = [each.shared for each in found if each.shared is not None]
    return BlockScores(
        own=ordered([each.own for each in found]),
        shared=ordered(shared) if shared else None,
        statistics={name: ordered([each.statistics[name] for each in found]) for name in found[0].statistics},
    )
