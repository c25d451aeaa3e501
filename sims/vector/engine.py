"""The vector engine, which leads the rounds of one method with one seed, peer-to-peer or client-server.

In a round some peers train, and then the engine combines what they send (`rounds.py`). Each phase is a list of
independent tasks. On a CPU worker processes run them; on a GPU they run in this process, with all peers in one block.
The division into tasks depends on shapes and device only, never on the number of workers, and so do the results.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpeer.algorithms.coordinated import has_server
from fedpeer.algorithms.leaves import byte_count, combined, divided, leaves_of, map_leaves
from fedpeer.algorithms.local_training import TrainingState
from fedpeer.algorithms.probing import probed, small
from fedpeer.algorithms.steppers import Stepper
from fedpeer.config.building import AnyAlgorithm, algorithm_of
from fedpeer.config.methods import method_of
from fedpeer.data.own.code import imported
from fedpeer.gossip.averaging import Averaging
from fedpeer.sims.disagreement import disagreement_of
from fedpeer.sims.engine import Engine, RoundTimes
from fedpeer.sims.vector.gossip_rounds import GossipRounds
from fedpeer.sims.vector.pool import WorkerPool
from fedpeer.sims.vector.resident import given_back
from fedpeer.sims.vector.rounds import Session, VectorRounds, blocks_of_peers, column_slices
from fedpeer.sims.vector.server_rounds import ServerRounds
from fedpeer.sims.vector.task_executors import LocalTaskExecutor, TaskExecutor
from fedpeer.sims.vector.tasks import (
    BlockContext,
    BlockScores,
    EvaluateBlock,
    Score,
    TrainBlock,
    Worker,
    WorkerTask,
    in_order_of_peers,
    training_context,
    work_of,
)
from fedpeer.sims.vector.workspace import FIRST, Job, States, Workspace, on_disk, rows_of
from fedpeer.slicing.plan import Plan


class OpenExecutor(Protocol):
    """A function that opens the executor of a job on other machines.

    Its workspace comes without memory for the learned tensors (`LEARNT`) and is given zeros for them.
    """

    def __call__(
        self,
        job: Job,
        workspace: Workspace,
        plan: Plan,
        stack: ExitStack,
        replaced: Callable[[str, str], None],
        stop: threading.Event,
    ) -> TaskExecutor: ...


class VectorEngine(Engine):
    """All peers of one method and seed. A context manager: its workers and files exist until the exit."""

    def __init__(
        self,
        job: Job,
        plan: Plan,
        averaging: Mapping[str, Averaging],
        memory: Callable[[], Workspace],
        drawn: Sequence[Callable[[str], Tensor]],
        *,
        weights_P: NDArray[np.float64] | None = None,
        workers: int = 1,
        folder: Path | None = None,
        replaced: Callable[[str, str], None] = lambda worker, reason: None,
        refused: Callable[[str, str], None] = lambda peer, reason: None,
        stop: threading.Event | None = None,
        open_executor: OpenExecutor | None = None,
    ) -> None:
        """
        Args:
            averaging: by group of the plan, how it averages.
            memory: makes the workspace.
            drawn: for each network of the job, a function that returns initial parameters (n,) by the name of their
                draw: a peer's id, or "" for a common start.
            weights_P: push-sum weights at the start of each averaging (`weights: samples` or `restart`); None: they
                begin as 1 and carry over from one averaging to the next.
            workers: the most worker processes on a CPU.
            folder: in which the files of the states are made; None: the system's temporary folder.
            replaced: called with a worker that died and the reason.
            refused: called with the peer whose update is left out and the reason.
            open_executor: opens an executor on other machines; None: on this machine.
        """
        self._job, self._plan, self._averaging = job, plan, averaging
        self._memory, self._drawn, self._start_weights = memory, drawn, weights_P
        self._workers, self._folder, self._replaced, self._refused = workers, folder, replaced, refused
        self._stop, self._open_remote = stop or threading.Event(), open_executor
        self._evaluated: dict[tuple[int, bool], BlockScores] = {}
        self._trained: Sequence[int] | None = None  # the peers that have trained in a round that is not combined yet
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        job, steppers = self._job, self._job.steppers()
        self._blocks = blocks_of_peers(job, range(len(job.peers)))
        plain = self._memory()
        made = [
            _formed(job.narrowed(number), plain.part(job, number), drawn, stepper, _first_of(job, number))
            for number, (drawn, stepper) in enumerate(zip(self._drawn, steppers, strict=True))
        ]
        self._algorithm, forms = made[0]
        first_P = _first_rows(job, plain)
        plain.states = tuple(_allocate_states(job, each, first_P) for _, each in made)
        executor = self._open_executor(plain, steppers)
        sides = [FIRST] * len(job.peers)
        parts = [
            BlockContext(job.narrowed(number), self.workspace.part(job, number), stepper, algorithm)
            for number, (stepper, (algorithm, _)) in enumerate(zip(steppers, made, strict=True))
        ]
        self._session = Session(
            job, parts, self.workspace, executor, lambda tasks: self._run(tasks), sides, self._refused
        )
        self._rounds: VectorRounds
        if has_server(self._algorithm):
            self._rounds = ServerRounds(self._session, self._algorithm, forms.server)
        else:
            self._rounds = GossipRounds(self._session, self._plan, self._averaging, self._start_weights)
        self._own = self._algorithm.personal_model(forms.client) is not None
        self._derived = method_of(job.algorithm).derived
        self._begin(first_P)
        executor.resume(sides)
        self._rounds.begin()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Process ids of the workers; empty on a device."""
        return self._session.executor.process_ids

    @property
    def weights(self) -> dict[str, NDArray[np.float64]]:
        return self._rounds.weights

    @property
    def x_Pn(self) -> Tensor:
        """The models with which the peers predict, at the end of the last finished round."""
        if not self._own:
            return self.estimate_Pn
        self._session.executor.gather()
        x_Pn = self.workspace.x[0] if has_server(self._algorithm) else torch.empty_like(self.estimate_Pn)
        for some in column_slices(len(self._job.peers)):
            model = self._algorithm.personal_model(self._session.states.of(some, self._session.sides_of(some)))
            assert model is not None, "peers have models of their own"
            x_Pn[some.start : some.stop] = model
        return x_Pn

    @property
    def estimate_Pn(self) -> Tensor:
        """The peers' estimates of the averaged model after the last finished round, or the models that they derive."""
        self._session.executor.gather()
        averaged_PN = self.workspace.x[self._rounds.source]
        first_Pn = averaged_PN[:, : self._job.longest]
        if not self._derived:
            return first_Pn
        x_Pn, template = torch.empty_like(first_Pn), self._algorithm.start_averaged(self._job.like_n)
        for some in column_slices(len(self._job.peers)):
            client = self._session.states.of(some, self._session.sides_of(some))
            averaged = divided(template, averaged_PN[some.start : some.stop])
            model = self._algorithm.derived_model(client, averaged)
            assert model is not None, "peers derive their models"
            x_Pn[some.start : some.stop] = model
        return x_Pn

    @property
    def trained_Pn(self) -> Tensor | None:
        """The vectors with which the peers entered the averaging of the last finished round; None if it had none."""
        assert isinstance(self._rounds, GossipRounds), "only for algorithms without a server"
        return self.workspace.x[1 - self._rounds.source] if self._rounds.averages(self.round) else None

    @property
    def server_n(self) -> Tensor | None:
        """The server's model, if the algorithm has one. Only for algorithms with a server."""
        assert has_server(self._algorithm), "only for algorithms with a server"
        assert isinstance(self._rounds, ServerRounds)
        return self._algorithm.server_model(self._rounds.server)

    @property
    def relations_PP(self) -> Tensor | None:
        return self._rounds.relations_PP if isinstance(self._rounds, ServerRounds) else None

    @property
    def traffic(self) -> tuple[list[int], list[int]]:
        """Messages and bytes that each peer would send in the last finished round."""
        return self._rounds.traffic(self.round)

    def step(self) -> RoundTimes:
        number, began = self.round + 1, time.perf_counter()
        if self._trained is None:
            training, source = self._rounds.open(number), self._rounds.source
            blocks = self._blocks if len(training) == len(self._job.peers) else blocks_of_peers(self._job, training)
            self._run([TrainBlock(each, self._session.sides_of(each), number, source) for each in blocks])
            self._trained = training
        trained = time.perf_counter()
        self._rounds.close(number, self._trained)
        self._trained, self.round = None, number
        return RoundTimes(trained - began, time.perf_counter() - trained)

    def evaluate(self, *, validation: bool = False) -> list[Score]:
        """Return (score, loss) of each peer's own model on its own test part, or on its validation part."""
        return self._scored(validation).own

    def evaluate_server(self, *, validation: bool = False) -> list[Score] | None:
        return self._scored(validation).shared

    def statistics(self) -> dict[str, list[float]]:
        return self._scored(False).statistics

    def disagreement(self) -> dict[str, float]:
        """Return each group's largest distance of a member from the members' mean, relative to the mean's norm."""
        if self._derived:
            return disagreement_of(self._plan, self._job.peers, self.estimate_Pn)
        return self._rounds.disagreement()

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        self._session.executor.gather()
        halfway = self._trained is not None and self._session.executor.halfway
        tensors, state = self._rounds.snapshot(trained=halfway)
        return tensors, {"round": self.round, **state}

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        self.round, self._evaluated = state["round"], {}
        self._trained = range(len(self._job.peers)) if state["trained"] is True else None
        self._rounds.restore(tensors, state)

    def _run(self, tasks: Sequence[WorkerTask]) -> list[Any]:
        return self._session.executor.run(tasks)

    def _open_executor(self, plain: Workspace, steppers: Sequence[Stepper]) -> TaskExecutor:
        """Open the workspace and return the executor of the tasks."""
        job = self._job
        if self._open_remote is not None:
            self.workspace = plain
            return self._open_remote(job, plain, self._plan, self._stack, self._replaced, self._stop)
        if job.device != "cpu":
            self.workspace = plain
            return LocalTaskExecutor(Worker(job, plain, steppers), None, self._stop)
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="work-", dir=self._folder)))
        self._handles = on_disk(plain, folder)
        self.workspace = self._handles.open()
        self._stack.enter_context(given_back(self.workspace))
        workers = max(1, min(self._workers, len(self._blocks)))
        pool = self._stack.enter_context(WorkerPool(job, self._handles, workers, self._replaced, self._stop))
        return LocalTaskExecutor(Worker(job, self.workspace, steppers), pool, self._stop)

    def _begin(self, first_P: Sequence[int]) -> None:
        """Fill in the first states and, between peers, the first averaged vectors."""
        for number, peers in self._job.split(range(len(self._job.peers))):
            part, drawn = self._session.parts[number], self._drawn[number]
            part.states.first_P.copy_(torch.tensor(first_P))
            example = sorted({first_P[peer]: peer for peer in reversed(peers)}.items())
            for some in column_slices(len(example)):
                kinds, starting = zip(*example[some.start : some.stop], strict=True)
                examples_B = torch.tensor([self.workspace.train.count(p) for p in starting], device=self._job.device)
                begun = leaves_of(part.algorithm.start_client(self._values(drawn, starting), examples_B))
                for name, leaf in leaves_of(part.states.first).items():
                    leaf[rows_of(kinds)] = begun[name]
            if not has_server(part.algorithm):
                for some in column_slices(len(peers)):
                    rows = peers[some.start : some.stop]
                    averaged = part.algorithm.start_averaged(self._values(drawn, rows))
                    part.workspace.x[0][rows_of(rows)] = combined(averaged)

    def _values(self, drawn: Callable[[str], Tensor], peers: Sequence[int]) -> Tensor:
        """Return the initial parameters of some peers, (B, n)."""
        if self._job.learning.common_start:
            values_Bn = drawn("").expand(len(peers), -1)
        else:
            values_Bn = torch.stack([drawn(self._job.peers[peer]) for peer in peers])
        return values_Bn.to(self._job.device)

    def _scored(self, validation: bool) -> BlockScores:
        """Return the scores after this round; peers are evaluated once, however many methods ask."""
        if (self.round, validation) not in self._evaluated:
            source = self._rounds.source
            tasks = [EvaluateBlock(each, self._session.sides_of(each), validation, source) for each in self._blocks]
            found = in_order_of_peers(self._blocks, self._run(tasks))
            self._evaluated = {key: value for key, value in self._evaluated.items() if key[0] == self.round}
            self._evaluated[self.round, validation] = found
        return self._evaluated[self.round, validation]


@dataclass(frozen=True)
class Forms:
    """Initial states of one peer and of the server; without a server all but the client's are None."""

    client: Any
    sent: Any = None
    received: Any = None
    server: Any = None


def _first_of(job: Job, number: int) -> int:
    """Return the first peer with the network of this number, or peer 0 if no peer has that network."""
    return job.network_P.index(number) if number in job.network_P else 0


def _formed(
    job: Job,
    workspace: Workspace,
    drawn: Callable[[str], Tensor],
    stepper: Stepper,
    peer: int,
    *,
    whole_peers: bool = False,
) -> tuple[AnyAlgorithm, Forms]:
    """Return the algorithm and examples of its states; with a server, one client trains briefly to make an update.

    Args:
        peer: the peer whose states are the examples.
        whole_peers: whether a peer knows its own examples only, and not how many all have.

    Raises:
        AlgorithmError, RobustError, PrivacyError: what does not fit, and what to change.
    """
    context = replace(training_context(job, stepper, workspace), draw=lambda name: drawn(name).to(job.device))
    context = replace(context, examples=0) if whole_peers else context
    algorithm = algorithm_of(job.algorithm, job.learning, context, imported)
    start_n = context.draw("")
    client = algorithm.start_client(start_n, torch.tensor(workspace.train.count(peer), device=start_n.device))
    if not has_server(algorithm):
        return algorithm, Forms(client)
    server, (batches, _) = algorithm.start_server(start_n), work_of(job, workspace, [peer], 1)
    update = probed(algorithm, client, server, batches.peer(0))
    return algorithm, Forms(client, update, algorithm.open(server, 1), server)


def dry_run(
    job: Job,
    workspace: Workspace,
    drawn: Sequence[Callable[[str], Tensor]],
    plan: Plan,
    *,
    whole_peers: bool = False,
) -> tuple[AnyAlgorithm, Forms]:
    """Do the same as `_formed`, and without a server also train one peer briefly, to find mistakes before a run starts.

    Each network is tried by the peer with the fewest examples, which may be too few for the algorithm; the algorithm
    and the examples with the largest states are returned.

    Raises:
        AlgorithmError, RobustError, PrivacyError: what does not fit, and what to change.
    """
    made = [
        _tried(
            job.narrowed(number), workspace.part(job, number), each, plan, _fewest(job, workspace, number), whole_peers
        )
        for number, each in enumerate(drawn)
    ]
    return max(made, key=lambda each: byte_count(each[1].client))


def _fewest(job: Job, workspace: Workspace, number: int) -> int:
    """Return the peer with the fewest examples of those with this network, or peer 0 if no peer has that network."""
    with_it = [peer for peer, network in enumerate(job.network_P) if network == number]
    return min(with_it, key=workspace.train.count, default=0)


def _tried(
    job: Job, workspace: Workspace, drawn: Callable[[str], Tensor], plan: Plan, peer: int, whole_peers: bool
) -> tuple[AnyAlgorithm, Forms]:
    algorithm, forms = _formed(job, workspace, drawn, job.stepper(), peer, whole_peers=whole_peers)
    if not has_server(algorithm) and type(forms.client) is not TrainingState:
        batches, keys = work_of(job, workspace, [peer], 1)
        received = algorithm.start_averaged(drawn("").to(job.device))
        trained, _ = algorithm.train(forms.client, received, small(batches.peer(0)), keys)
        for group in plan.groups_of(job.peers[peer]):
            algorithm.weights(trained, group.indices[job.peers[peer]])
    return algorithm, forms


def _first_rows(job: Job, workspace: Workspace) -> list[int]:
    """Return the index of each peer's first state.

    With a common start, peers with equally many examples share one; otherwise each peer has its own.
    """
    peers = range(len(job.peers))
    if not job.learning.common_start:
        return list(peers)
    kinds: dict[int, int] = {}
    return [kinds.setdefault(workspace.train.count(peer), len(kinds)) for peer in peers]


def _allocate_states(job: Job, forms: Forms, first_P: Sequence[int]) -> States:
    """Allocate states for all peers; on a CPU without memory, which files provide later."""
    where, peers = "meta" if job.device == "cpu" else job.device, len(job.peers)

    def zeros(state: Any, *count: int) -> Any:
        return map_leaves(lambda leaf: torch.zeros((*count, *leaf.shape), dtype=leaf.dtype, device=where), state)

    served = forms.server is not None
    return States(
        clients=(zeros(forms.client, peers), zeros(forms.client, peers)),
        first=zeros(forms.client, max(first_P) + 1),
        first_P=torch.zeros(peers, dtype=torch.int64),
        sent=zeros(forms.sent, peers) if served else None,
        received=zeros(forms.received) if served else None,
        server=zeros(forms.server) if served else None,
    )
