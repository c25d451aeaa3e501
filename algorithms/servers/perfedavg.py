"""Per-FedAvg: the server seeks a model that one gradient step of a client adapts well to its own examples (MAML).

Source: Fallah, Mokhtari, Ozdaglar, Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach, 2020, Algorithm 1 in the Hessian-free variant (section 5). The paper gives all clients the same
weight; here the mean is weighted by n_k as in FedAvg.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property

from torch import Tensor

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.draws import branch
from fedpeer.algorithms.gradients import Gradient, gradient_of
from fedpeer.algorithms.servers.fedavg import FedAvg
from fedpeer.algorithms.servers.models import Local, ServerModel


@dataclass(frozen=True)
class PerFedAvg(FedAvg):
    """A server model that is easy to adapt: each client keeps an adapted model and sends a meta-model.

    The context's stepper adapts the server's model to the client, with all of the round's batches.

    Args:
        beta: learning rate of the meta-model, >= 0; default 0.01.
        alpha: step size >= 0 of the inner step, whose gradient the meta-model follows; default 0.01.
        delta: half-width > 0 of the difference (gradient(x + delta v) - gradient(x - delta v)) / (2 delta), which
            replaces the product of the Hessian and a gradient v; default 1e-2. At 1e-2 the product is exact to 2e-5 in
            float32; a smaller delta loses it to rounding, a larger one to curvature.
    """

    _: KW_ONLY
    beta: float = 0.01
    alpha: float = 0.01
    delta: float = 1e-2

    def __post_init__(self) -> None:
        for name in ("beta", "alpha"):
            if not getattr(self, name) >= 0:
                raise AlgorithmError(f"{name} = {getattr(self, name):g}: write 0 or more")
        if not self.delta > 0:
            raise AlgorithmError(f"delta = {self.delta:g}: write a number above 0, such as 0.01")

    @cached_property
    def _gradient(self) -> Gradient:
        return gradient_of(self.context.module, self.context.layout, self.context.loss)

    def train(
        self, client: Local, broadcast: ServerModel, batches: Batches, keys: Sequence[int]
    ) -> tuple[Local, Local]:
        adapted, _ = super().train(client, broadcast, batches, keys)
        meta_n = broadcast.model_n.expand_as(client.model_n)
        for first in range(0, max(1, batches.steps - 2), 3):
            meta_n = self._meta_step(meta_n, batches, first, [branch(key, first) for key in keys])
        return adapted, Local(meta_n, client.examples)

    def _meta_step(self, x_n: Tensor, batches: Batches, first: int, keys: Sequence[int]) -> Tensor:
        """Return the meta-model after lines 7 and 8, with three batches D, D', D''.

        A client whose round has fewer than three batches reuses them.
        """
        one, two, three = (place % batches.steps for place in range(first, first + 3))

        def gradient(x_n: Tensor, step: int) -> Tensor:
            return self._gradient(x_n, batches.inputs(step), batches.targets(step), keys, batches.weights(step))

        ahead_n = x_n - self.alpha * gradient(x_n, one)
        v_n = gradient(ahead_n, two)
        further, back = (gradient(x_n + sign * self.delta * v_n, three) for sign in (1, -1))
        hessian_v_n = (further - back) / (2 * self.delta)
        return x_n - self.beta * (v_n - self.alpha * hessian_v_n)
