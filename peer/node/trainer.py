"""Trainer of one peer: training, evaluation, and the server's part if the algorithm has one.

Each job is a function of its arguments, so it may run in any thread and be repeated: the closing of a round beside
another job, all other jobs one at a time. To all other modules states are bytes (`leaf_bytes.py`). The training state
of a peer without a server is a tensor (k,), so that durable state, journal and snapshots can hold it: an optimizer's
state as it is, float32, any other state as the bytes of its leaves. Before the first training there is no state: the
algorithm's first state follows from the parameters.

Results equal those of the vector engine: the same batches, keys and order.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedpeer.algorithms.coordinated import has_server
from fedpeer.algorithms.leaves import combined, divided, map_leaves
from fedpeer.algorithms.local_training import TrainingState
from fedpeer.algorithms.outer_steps import OuterRules
from fedpeer.algorithms.precision import unrounded
from fedpeer.algorithms.probing import small
from fedpeer.config.building import Coordinated, Loader, algorithm_of, coordinated_of
from fedpeer.config.choice import Choice
from fedpeer.config.methods import method_of
from fedpeer.gossip.reductions import all_finite
from fedpeer.learning.groups import plan_for
from fedpeer.learning.local_task import LocalTask
from fedpeer.peer.consensus import means
from fedpeer.peer.node.server_side import RoundWork, RoundWorked, ServerSide
from fedpeer.peer.state.algorithm_spec import AlgorithmSpec
from fedpeer.peer.state.events import (
    AggregateUpdates,
    Evaluate,
    Evaluated,
    Train,
    Trained,
    Work,
    Worked,
)
from fedpeer.peer.state.reader import StateReader
from fedpeer.peer.wire.leaf_bytes import LeafForm
from fedpeer.slicing.plan import Plan


class Training(StateReader):
    """Interface of a peer's work.

    examples     number of training examples
    steps        local steps per round
    state_size   k, length of the training state before the first training
    """

    examples: int
    steps: int
    state_size: int

    @property
    def spec(self) -> AlgorithmSpec | None:
        """Spec of the algorithm if it has a server, else None."""
        return None

    @abstractmethod
    def start(self) -> Tensor:
        """Return the averaged vectors (N,) before the first round: the initial parameters and V - 1 further vectors."""

    @abstractmethod
    def train(self, round: int, x_n: Tensor, s_k: Tensor, fresh: bool) -> tuple[Tensor, Tensor]:
        """Return the averaged vectors (N,) and the state (k,) after the local steps of round 1, 2, ... from `x_n` (N,).

        `fresh`: there is no state yet. Arguments are not changed.
        """

    @abstractmethod
    def evaluate(self, x_n: Tensor) -> tuple[float, float]:
        """Return (score, loss) of a model (n,) on the peer's test part."""

    def serve(self, job: RoundWork) -> RoundWorked:
        """Do a job of a round with a server."""
        raise AssertionError("only an algorithm with a server asks for this")

    def work(self, job: Work) -> Worked:
        """Do one job."""
        match job:
            case Train():
                x_n, s_k = self.train(job.number, job.x_n, job.s_k, job.fresh)
                sound = all_finite(x_n) and (not s_k.is_floating_point() or all_finite(s_k))
                return Trained(job.round, x_n, s_k, sound)
            case Evaluate():
                server = None if job.server_n is None else self.evaluate(job.server_n)
                return Evaluated(job.round, *self.evaluate(job.x_n), server)
            case AggregateUpdates() if self.spec is None:
                return means.mean_result(job)
            case _:
                return self.serve(job)


class LocalTrainer(Training):
    """One peer's work under an algorithm."""

    def __init__(
        self,
        local_task: LocalTask,
        method: Choice,
        load: Loader,
        peers: Sequence[str],
        *,
        patience: float = 1.0,
        secret: bytes = b"",
        outer: OuterRules | None = None,
        begun: bool = False,
    ) -> None:
        """
        Args:
            load: finds a user's own algorithm.
            peers: ids of all peers of the federation.
            patience: part of the longest wait before this peer stands for coordinator (`capability.py`).
            secret: source of its noise.
            outer: its outer steps; None: it takes no outer steps.
            begun: whether peers have joined or left since the federation began (`algorithm_of`).

        Raises:
            ChoiceError, AlgorithmError, RobustError, PrivacyError: the settings of the method, of aggregation or of
                privacy do not fit; the message says what to change.
        """
        self.local_task, self.examples, self.steps = local_task, local_task.examples, local_task.steps
        context, learning = local_task.context(len(peers)), local_task.assembly.federation.learning
        context = replace(context, outer=outer and outer.to(local_task.device))
        self.algorithm = algorithm_of(method, learning, context, load, secret=secret, begun=begun)
        kind = method_of(method)
        self._start_n, self._weighs, self._derives = local_task.start(), kind.own_weights, kind.derived
        first = self._begun(self._start_n.to(local_task.device))
        self.form, self._own = LeafForm(first), self.algorithm.personal_model(first) is not None
        # A subclass may have more leaves, so the type itself counts.
        self._optimizer_only = type(first) is TrainingState
        self.state_size = len(first.optimizer_k) if self._optimizer_only else 0
        self.server_side: ServerSide | None = None
        if has_server(self.algorithm):

            def among(clients: int) -> Coordinated:
                other = replace(context, clients=clients)
                return coordinated_of(method, learning, other, load, secret=secret, begun=True)

            self.server_side = ServerSide.of(local_task, self.algorithm, among, first, peers, patience)
        elif not self._optimizer_only:
            assembly = local_task.assembly
            self._dry_run(first, plan_for(assembly.federation, assembly.network, peers, method, me=local_task.peer))

    @property
    def spec(self) -> AlgorithmSpec | None:
        return None if self.server_side is None else self.server_side.spec

    def start(self) -> Tensor:
        if self.server_side is not None:
            return self._start_n
        return combined(self.algorithm.start_averaged(self._start_n))

    def train(self, round: int, x_n: Tensor, s_k: Tensor, fresh: bool) -> tuple[Tensor, Tensor]:
        local_task, x_n = self.local_task, x_n.to(self.local_task.device)
        client = self._begun(x_n[: len(self._start_n)]) if fresh else self._state(s_k)
        received = divided(self.algorithm.start_averaged(self._start_n), x_n)
        with unrounded(local_task.device):
            trained, sent = self.algorithm.train(client, received, local_task.batches(round), [local_task.key(round)])
        return combined(sent).cpu(), self._stored(trained)

    def evaluate(self, x_n: Tensor) -> tuple[float, float]:
        with unrounded(self.local_task.device):
            return self.local_task.evaluate(x_n)

    def validate(self, x_n: Tensor) -> tuple[float, float] | None:
        """Return (score, loss) of a model (n,) on the examples held out for validation; None: no such examples."""
        if not len(self.local_task.valid_part):
            return None
        with unrounded(self.local_task.device):
            return self.local_task.evaluate(x_n, validation=True)

    def serve(self, job: RoundWork) -> RoundWorked:
        assert self.server_side is not None, "only an algorithm with a server asks for this"
        if isinstance(job, AggregateUpdates):  # beside a training, and without convolutions
            return self.server_side.work(job)
        with unrounded(self.local_task.device):
            return self.server_side.work(job)

    def weight(self, state_k: Tensor, place_D: Tensor) -> float | None:
        if not self._weighs:
            return None
        weight = self.algorithm.weights(self._state(state_k), place_D.numpy())
        return None if weight is None else float(weight)

    def models(self, x_n: Tensor, state_k: Tensor, fresh: bool) -> tuple[Tensor, Tensor | None]:
        held_n = x_n[: len(self._start_n)]
        if not (self._own or self._derives):
            return held_n, None
        x_n = x_n.to(self.local_task.device)
        state = self._begun(x_n[: len(self._start_n)]) if fresh else self._state(state_k)
        if self._derives:
            averaged = divided(self.algorithm.start_averaged(self._start_n), x_n)
            derived_n = self.algorithm.derived_model(state, averaged)
            held_n = held_n if derived_n is None else derived_n.cpu()
        own_n = self.algorithm.personal_model(state)
        return (held_n, None) if own_n is None else (own_n.cpu(), held_n)

    def server_model(self, server: bytes) -> Tensor | None:
        return None if self.server_side is None else self.server_side.server_model(server)

    def _begun(self, values_n: Tensor) -> Any:
        """Return the state before the first training."""
        return self.algorithm.start_client(values_n, torch.tensor(self.examples, device=self.local_task.device))

    def _dry_run(self, begun: Any, plan: Plan) -> None:
        """Train a round on a few examples: an algorithm that does not fit the network fails before the start."""
        local_task, received = self.local_task, self.algorithm.start_averaged(self._start_n.to(self.local_task.device))
        trained, _ = self.algorithm.train(begun, received, small(local_task.batches(1)), [local_task.key(1)])
        for group in plan.groups_of(self.local_task.peer):
            self.algorithm.weights(trained, group.indices[self.local_task.peer])

    def _stored(self, state: Any) -> Tensor:
        """Return a training state as the node stores it, (k,)."""
        if self._optimizer_only:
            optimizer_k: Tensor = state.optimizer_k
            return optimizer_k.cpu()
        return torch.frombuffer(bytearray(self.form.written(state)), dtype=torch.uint8)

    def _state(self, state_k: Tensor) -> Any:
        device = self.local_task.device
        if self._optimizer_only:
            return TrainingState(state_k.to(device), torch.tensor(True, device=device))
        return map_leaves(lambda leaf: leaf.to(device), self.form.read(state_k.numpy().tobytes()))
