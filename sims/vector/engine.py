"""The vector engine: leads the rounds of one method with one seed.

A round is: all peers train (side A of x -> side B), every group averages and what is in no group is carried over
(B -> A). Where peers keep a state of their own (`equals.py`), x holds their estimates. Both phases are lists of
independent tasks; on a CPU worker processes take them, on a GPU they run here, one block holding all peers. How tasks
are cut depends on shapes and device only, never on the number of workers, so the numbers do not either.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpeer.algorithms.leaves import leaves
from fedpeer.algorithms.steppers import Stepper
from fedpeer.config.building import AnyAlgorithm
from fedpeer.gossip.averaging import Averaging, traffic
from fedpeer.gossip.veil import key_of, made_up
from fedpeer.sims.peers import secret_of
from fedpeer.sims.vector.clients import Examined, Score, emptied, joined, two_sides, workbench, write_rows
from fedpeer.sims.vector.drifting import Drifting
from fedpeer.sims.vector.equals import Advance, Appraise, equals_of, states
from fedpeer.sims.vector.pool import Hands, Pool, Stopped
from fedpeer.sims.vector.resident import given_back
from fedpeer.sims.vector.tasks import Evaluate, Keep, Mix, Mixing, Spread, Task, Train, Worker
from fedpeer.sims.vector.workspace import Job, Keeping, Workspace, WorkspaceHandles, on_disk
from fedpeer.slicing.plan import Group, Plan

#: Scalars of a block of columns over all members of a group: 2 MiB in float64, so that the block, its float64 copy and
#: the result stay in the cache (measured: 10 ms for 16 x 270,000, against 26 ms in blocks four times as large).
MIXED_AT_ONCE = 256 * 1024
#: An effective matrix with fewer entries than this share is kept sparse.
SPARSE_BELOW = 0.1


@dataclass(frozen=True)
class RoundTimes:
    """Wall seconds of the two phases of a round."""

    train: float
    average: float


class VectorEngine:
    """All peers of one method and seed. Use as a context manager: workers and files live as long as it."""

    def __init__(
        self,
        job: Job,
        plan: Plan,
        averaging: Mapping[str, Averaging],
        memory: Callable[[int], Workspace],
        start_Pn: Callable[[Tensor], None],
        *,
        algorithm: Keeping | None = None,
        weights_P: NDArray[np.float64] | None = None,
        workers: int = 1,
        folder: Path | None = None,
        replaced: Callable[[str, str], None] = lambda worker, reason: None,
        stop: threading.Event | None = None,
    ) -> None:
        """
        Args:
            memory: makes the workspace for a given size of optimiser state.
            start_Pn: fills the initial parameters, in place.
            algorithm: one whose peers keep a state of their own; None: local training.
            weights_P: push-sum weights with which each averaging starts (`weights: samples`); None: carried on from 1.
        """
        self._job, self._plan, self._averaging = job, plan, averaging
        self._start, self._replaced = start_Pn, replaced
        self._stop = stop or threading.Event()
        self._memory, self._workers, self._folder = memory, workers, folder
        self._choice, self._sample_weights = algorithm, weights_P
        self._algorithm: AnyAlgorithm | None = None
        self._examined: dict[tuple[int, bool], Examined] = {}
        self._members = {g.id: [plan.peers.index(p) for p in g.members] for g in plan.groups}
        self.weights = {id: np.ones(len(rows)) for id, rows in self._members.items()}
        self.round = 0  # rounds finished
        self._trained = False  # whether the next round's training is done and its averaging is not
        self._side = self._s_side = 0
        self._noise: dict[str, NDArray[np.float64]] = {}
        self._drifting: Drifting | None = None
        self._pool: Hands | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        stepper = self._job.stepper()
        plain, job = self._prepared(stepper), self._job
        self._handles: WorkspaceHandles | None = None
        if job.device == "cpu":
            folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="work-", dir=self._folder)))
            self._handles = on_disk(plain, folder)
            self.workspace = self._handles.open()
            self._stack.enter_context(given_back(self.workspace))
        else:
            self.workspace = plain
        self._start(self.workspace.x[0])
        if any(policy.drift is not None for policy in self._averaging.values()):
            self._drifting = Drifting(self.workspace.x[0], self._plan, self._averaging)
        self._blocks = cut(job, range(len(job.peers)))
        if self._algorithm is not None:
            for block in self._blocks:
                examples = torch.tensor([self.workspace.train.count(peer) for peer in block], device=job.device)
                begun = self._algorithm.start_client(self.workspace.x[0][list(block)], examples)
                write_rows(self.workspace, begun, block, [0] * len(block))
        self._mixes, self._keeps = self._cut_columns()
        if self._handles is not None:
            workers = max(1, min(self._workers, max(len(self._blocks), len(self._mixes))))
            self._pool = self._stack.enter_context(Pool(job, self._handles, workers, self._replaced, self._stop))
        else:
            self._bench = Worker(job, self.workspace, stepper)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The workers' process numbers; empty on a device."""
        return self._pool.process_ids if self._pool else ()

    @property
    def x_Pn(self) -> Tensor:
        """The models of all peers at the end of the last finished round: what each of them predicts with."""
        own_Pn = None if self._algorithm is None else self._algorithm.personal_model(self._states(self._s_finished))
        return self.estimate_Pn if own_Pn is None else own_Pn

    @property
    def estimate_Pn(self) -> Tensor:
        """What all peers hold for the average at the end of the last finished round."""
        return self.workspace.x[self._side]

    @property
    def trained_Pn(self) -> Tensor | None:
        """With what all peers went into the averaging of the round just finished; None where it had none."""
        return self.workspace.x[1 - self._side] if self._averages(self.round) else None

    @property
    def traffic(self) -> tuple[list[int], list[int]]:
        """Messages and bytes that each peer would send in the averaging of the last finished round."""
        messages, amount = [0] * len(self._job.peers), [0] * len(self._job.peers)
        for group in self._plan.groups if self._averages(self.round) else ():
            awake = self._drifting.awake[group.id] if self._drifting is not None else ()
            sent = traffic(self._averaging[group.id], group.length, self.round - 1, awake=awake)
            for row, (count, size) in zip(self._members[group.id], sent, strict=True):
                messages[row] += count
                amount[row] += size
        return messages, amount

    def step(self) -> RoundTimes:
        """One round.

        Raises:
            Stopped: if asked to stop meanwhile; `snapshot` then still gives the last consistent state.
        """
        number = self.round + 1
        began = time.perf_counter()
        if not self._trained:
            self._run([self._train(block, number) for block in self._blocks])
            self._s_side = 1 - self._s_side
            self._trained = True
        trained = time.perf_counter()
        if self._averages(number):
            self._prepare_mixing(number)
            source = 1 - self._side
            mixes: list[Task] = [Mix(group, a, b, source) for group, a, b in self._mixes]
            self._run(mixes + [Keep(index, source) for index in self._keeps])
            self._add_noise()
            if self._drifting is not None:
                self._drifting.settle(self.workspace.x[self._side])
            self.weights = self._mixed_weights
        else:
            self._side = 1 - self._side
        self._trained = False
        self.round = number
        return RoundTimes(trained - began, time.perf_counter() - trained)

    def evaluate(self, *, validation: bool = False) -> list[tuple[float, float]]:
        """(score, loss) of each peer on its own test part, or on what was kept back."""
        if self._algorithm is not None:
            return self._scored(validation).own
        found = self._run([Evaluate(block, self._side, validation) for block in self._blocks])
        by_peer = {
            p: result
            for block, results in zip(self._blocks, found, strict=True)
            for p, result in zip(block, results, strict=True)
        }
        return [by_peer[p] for p in range(len(self._job.peers))]

    def evaluate_server(self, *, validation: bool = False) -> list[Score] | None:
        """The same of each peer's estimate, where it is not the model that the peer predicts with."""
        return None if self._algorithm is None else self._scored(validation).server

    def statistics(self) -> dict[str, list[float]]:
        """What the algorithm tells of each peer."""
        return {} if self._algorithm is None else self._scored(False).statistics

    @property
    def relations_PP(self) -> None:
        """Peers are equals."""

    def disagreement(self) -> dict[str, float]:
        """Of each group: the largest distance of a member from the members' mean, relative to the mean's norm."""
        tasks = [Spread(group, a, b, self._side) for group, a, b in self._mixes]
        distance: dict[str, NDArray[np.float64]] = {}
        norm: dict[str, float] = {}
        for task, (part_M, part) in zip(tasks, self._run(tasks), strict=True):
            distance[task.group] = distance.get(task.group, 0.0) + part_M
            norm[task.group] = norm.get(task.group, 0.0) + part
        return {group: float(np.sqrt(distance[group].max() / max(norm[group], 1e-30))) for group in distance}

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything needed to go on: tensors, and a small JSON-able state."""
        side = 1 - self._side if self._trained else self._side
        tensors = {"x": self.workspace.x[side], "s": self.workspace.s[self._s_side]}
        tensors |= {f"state {name}": leaf for name, leaf in self._leaves(self._s_side).items()}
        weights = {group: value.tolist() for group, value in self.weights.items()}
        state = {"round": self.round, "trained": self._trained, "weights": weights}
        if self._drifting is not None:
            tensors, state = tensors | {"last": self._drifting.x_Pn}, state | {"awake": self._drifting.snapshot()}
        return tensors, state

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Go on from a snapshot, to the very numbers of an uninterrupted run."""
        self.round, self._trained = state["round"], state["trained"]
        self._side = self._s_side = 0
        self.workspace.x[1 if self._trained else 0].copy_(tensors["x"])
        self.workspace.s[0].copy_(tensors["s"])
        for name, leaf in self._leaves(0).items():
            leaf.copy_(tensors[f"state {name}"])
        if self._drifting is not None:
            self._drifting.restore(tensors["last"], state["awake"])
        self._examined = {}
        self.weights = {group: np.array(value) for group, value in state["weights"].items()}

    def _prepared(self, stepper: Stepper) -> Workspace:
        """Everything but memory for parameters and states, which are named; the job says what peers keep."""
        plain = self._memory(stepper.state_size if self._choice is None else 0)
        if self._choice is not None:
            job = self._job
            self._algorithm = equals_of(self._choice, workbench(job, stepper, plain))
            one = torch.ones((), dtype=torch.int64, device=job.device)
            state = self._algorithm.start_client(torch.zeros(job.layout.n, device=job.device), one)
            self._job = job = replace(job, keeping=replace(self._choice, state=emptied(state)))
            plain.leaves = two_sides(job, state)
        return plain

    @property
    def _s_finished(self) -> int:
        """The side of the states as the last finished round left them."""
        return 1 - self._s_side if self._trained else self._s_side

    def _states(self, side: int) -> Any:
        assert self._job.keeping is not None, "peers keep a state of their own"
        return states(self.workspace, self._job.keeping.state, side)

    def _leaves(self, side: int) -> dict[str, Tensor]:
        """The states that peers keep, by name."""
        return {} if self._algorithm is None else leaves(self._states(side))

    def _train(self, block: tuple[int, ...], number: int) -> Task:
        if self._algorithm is not None:
            return Advance(block, number, self._side, self._s_side)
        return Train(block, number, number == 1, self._side, self._s_side)

    def _scored(self, validation: bool) -> Examined:
        """Scores are asked for by three names; peers are examined once."""
        if (self.round, validation) not in self._examined:
            tasks = [Appraise(block, self._side, self._s_finished, validation) for block in self._blocks]
            self._examined = {key: value for key, value in self._examined.items() if key[0] == self.round}
            self._examined[self.round, validation] = joined(self._blocks, self._run(tasks))
        return self._examined[self.round, validation]

    def _averages(self, number: int) -> bool:
        """Whether round 1, 2, ... ends with an averaging."""
        return any(each.due(number - 1) for each in self._averaging.values())

    def _start_weights(self, group: Group) -> NDArray[np.float64]:
        """(M,) the weights with which the members begin this round's averaging, in units of their mean."""
        own_M = self._own_weights(group)
        if own_M is not None:
            return np.asarray(own_M / own_M.mean())
        if self._sample_weights is not None:
            return self._sample_weights[self._members[group.id]]
        return self.weights[group.id]

    def _own_weights(self, group: Group) -> NDArray[np.float64] | None:
        """(M,) those that the algorithm gives the members after their training, where it does."""
        if self._algorithm is None:
            return None
        weights_P = self._algorithm.weights(self._states(self._s_side), group.indices[group.members[0]])
        return None if weights_P is None else weights_P.cpu().numpy()[self._members[group.id]]

    def _run(self, tasks: Sequence[Task]) -> list[Any]:
        if self._pool is not None:
            return self._pool.run(tasks)
        results = []
        for task in tasks:
            if self._stop.is_set():
                raise Stopped
            results.append(self._bench.do(task))
        return results

    def _cut_columns(self) -> tuple[list[tuple[str, int, int]], list[str]]:
        """Blocks of columns of every group, and the names of the index arrays that are only carried over."""
        mixes = []
        for group in self._plan.groups:
            width = max(1024, MIXED_AT_ONCE // len(group.members))
            mixes += [(group.id, a, min(a + width, group.length)) for a in range(0, group.length, width)]
        return mixes, [name for name in self.workspace.index if name.startswith("local ")]

    def _prepare_mixing(self, number: int) -> None:
        """Tell the workers this round's matrices T = diag(1 / w') M diag(w), which act on estimates; what a phase of
        noise leaves in these, diag(1 / w') M B, is added behind them.
        """
        self._mixed_weights = {}
        self._noise = {}
        if self._drifting is not None:
            self._drifting.look(self.workspace.x[1 - self._side], number - 1)
        for group in self._plan.groups:
            policy, weights = self._averaging[group.id], self._start_weights(group)
            mixing: Mixing
            if self._drifting is not None and self._drifting.asleep(group.id):
                after, mixing = weights, scipy.sparse.csr_array(scipy.sparse.eye_array(len(weights)))
            elif policy.exact:  # all made-up shares come together in every mean
                after, mixing = weights, weights / weights.sum()
            else:
                matrix = self._matrix(group.id, number - 1)  # gossip counts rounds from 0
                veiled, made_up_MD = self._made_up(group, policy, number, weights)
                after = matrix @ veiled
                mixing = _scaled(matrix, 1.0 / after, weights)
                if made_up_MD is not None:
                    self._noise[group.id] = (matrix @ made_up_MD) / after[:, None]
            self._mixed_weights[group.id] = after
            if self._pool is not None:
                self._pool.tell_mixing(group.id, mixing)
            else:
                self._bench.mixing[group.id] = mixing

    def _matrix(self, group: str, round: int) -> Any:
        if self._drifting is not None:
            return self._drifting.matrix(group, round)
        return self._averaging[group].matrix(round)

    def _made_up(
        self, group: Group, policy: Averaging, number: int, weights: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
        """The weights (M,) behind the phase of noise of a round, and B (M, D): what each was sent less what it sent."""
        if policy.noise is None or not policy.veiled:
            return weights, None
        noise_MD = np.zeros((len(group.members), group.length))
        for exchange, matrix in enumerate(policy.veil_matrices(number - 1)):
            for sender, peer in enumerate(group.members):
                key = key_of(secret_of(self._job.draws, peer), group.id, number, exchange, 1, 0)
                column = matrix[:, [sender]].tocoo()
                for receiver, fraction in zip(column.row.tolist(), column.data.tolist(), strict=True):
                    if receiver != sender:
                        drawn_D = made_up(key, group.members[receiver], group.length, policy.noise.scale)
                        share_D = (drawn_D * weights[sender] * fraction).float().numpy()
                        noise_MD[sender] -= share_D
                        noise_MD[receiver] += share_D
            weights = np.asarray(matrix @ weights)
        return weights, noise_MD

    def _add_noise(self) -> None:
        target = self.workspace.x[self._side]
        for group in self._plan.groups:
            if group.id in self._noise:
                for row, member, noise_D in zip(
                    self._members[group.id], group.members, self._noise[group.id], strict=True
                ):
                    index_D = torch.from_numpy(group.indices[member]).to(target.device)
                    target[row, index_D] += torch.from_numpy(noise_D).to(target)


def cut(job: Job, peers: Iterable[int]) -> list[tuple[int, ...]]:
    """Blocks of peers with equal numbers of steps and equal batches, the longest first."""
    cohorts: dict[tuple[int, int], list[int]] = {}
    for peer in peers:
        cohorts.setdefault((job.steps_P[peer], job.batch_P[peer]), []).append(peer)
    blocks = [
        tuple(cohort[first : first + job.block])
        for cohort in cohorts.values()
        for first in range(0, len(cohort), job.block)
    ]
    return sorted(blocks, key=lambda block: (-job.steps_P[block[0]] * len(block), block))


def _scaled(matrix: Any, left: NDArray[np.float64], right: NDArray[np.float64]) -> Mixing:
    if scipy.sparse.issparse(matrix):
        if matrix.nnz > SPARSE_BELOW * matrix.shape[0] ** 2:
            matrix = matrix.toarray()
        else:
            return scipy.sparse.csr_array(scipy.sparse.diags_array(left) @ matrix @ scipy.sparse.diags_array(right))
    return np.asarray(left[:, None] * np.asarray(matrix) * right[None, :])
