"""One peer's learning under an algorithm of equals that keep a state of their own: what a `Learner` is under others.

What the node keeps between rounds are the bytes of the state's leaves (`leaf_bytes.py`), as a tensor (k,) uint8, so
that its ledger, journal and snapshots hold them as they hold the state of an optimiser. Before the first training
there are none: the state that the algorithm starts with follows from the parameters.

Nothing is kept between two calls, so they may be made from any thread, and repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedpeer.algorithms.leaves import map_leaves
from fedpeer.algorithms.probing import small
from fedpeer.algorithms.servers.models import ServerModel
from fedpeer.config.building import AnyAlgorithm, algorithm_of
from fedpeer.config.choice import Choice
from fedpeer.learning.learner import Learner
from fedpeer.peer.state.keeps import Keeps
from fedpeer.peer.wire.leaf_bytes import LeafForm
from fedpeer.slicing.plan import Plan


def _nothing(name: str) -> Callable[..., Any]:
    raise AssertionError(f"{name} is a reader's own, and has a server")


@dataclass(frozen=True, eq=False)
class Keeper(Keeps):
    """One peer that can learn and keeps a state.

    plan   with its groups, which the algorithm begins with
    form   of the state
    """

    learner: Learner
    algorithm: AnyAlgorithm
    plan: Plan
    form: LeafForm

    @classmethod
    def of(cls, learner: Learner, method: Choice, plan: Plan) -> Keeper:
        """The keeper that a learner is under this method and plan.

        Raises:
            ChoiceError, AlgorithmError: the method's settings do not fit; the message says what to change.
        """
        start_n, learning = learner.start().to(learner.device), learner.assembly.federation.learning
        algorithm = algorithm_of(method, learning, learner.bench(len(plan.peers)), _nothing)
        begun = algorithm.start_client(start_n, torch.tensor(learner.examples, device=learner.device))
        # A round on a few examples: what does not fit the network shows before anybody is met.
        received = algorithm.start_averaged(start_n)
        trained, _ = algorithm.train(begun, received, small(learner.batches(1)), [learner.key(1)])
        for group in plan.groups:
            algorithm.weights(trained, group.indices[group.members[0]])
        return cls(learner, algorithm, plan, LeafForm(begun))

    @property
    def examples(self) -> int:
        """How many it has to train on."""
        return self.learner.examples

    @property
    def steps(self) -> int:
        """Updates in a round."""
        return self.learner.steps

    @property
    def state_size(self) -> int:
        """0: there is no state before the first training."""
        return 0

    def start(self) -> Tensor:
        """(n,) initial parameters."""
        return self.learner.start()

    def train(self, round: int, x_n: Tensor, s_k: Tensor, fresh: bool) -> tuple[Tensor, Tensor]:
        """Parameters (n,) and state (k,) after the local steps of round 1, 2, ... from the estimate x_n (n,).

        `fresh`: there is no state yet.
        """
        x_n = x_n.to(self.learner.device)
        examples = torch.tensor(self.examples, device=self.learner.device)
        state = self.algorithm.start_client(x_n, examples) if fresh else self._state(s_k)
        batches, keys = self.learner.batches(round), [self.learner.key(round)]
        state, sent = self.algorithm.train(state, ServerModel(x_n), batches, keys)
        kept = bytearray(self.form.written(state))
        return sent.model_n.cpu(), torch.frombuffer(kept, dtype=torch.uint8)

    def evaluate(self, x_n: Tensor) -> tuple[float, float]:
        """(score, loss) of a model (n,) on its own test part."""
        return self.learner.evaluate(x_n)

    def weight(self, state_k: Tensor, place_D: Tensor) -> float | None:
        weight = self.algorithm.weights(self._state(state_k), place_D.numpy())
        return None if weight is None else float(weight)

    def own_model(self, state_k: Tensor) -> Tensor | None:
        model_n = self.algorithm.personal_model(self._state(state_k))
        return None if model_n is None else model_n.cpu()

    def _state(self, state_k: Tensor) -> Any:
        read = self.form.read(state_k.numpy().tobytes())
        return map_leaves(lambda leaf: leaf.to(self.learner.device), read)
