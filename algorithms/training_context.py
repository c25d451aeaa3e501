"""Context of an algorithm: the network, its training, the number of clients, the rule that averages updates.

Every peer, and every worker of a simulation, has its own context. All are equal except for the device and the largest
number of examples of one of their own clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from fedpeer.algorithms import linear_stack
from fedpeer.algorithms.coordinated import AlgorithmError, weighted_mean
from fedpeer.algorithms.losses import Loss
from fedpeer.algorithms.optimizers import OptimizerChoice
from fedpeer.algorithms.outer_steps import OuterRules
from fedpeer.algorithms.running_statistics import running_statistics
from fedpeer.algorithms.steppers import Stack, Stepper, Way, build_stepper, closed
from fedpeer.slicing.flat import FlatLayout, trainable_copy
from fedpeer.slicing.network import TensorSpec

#: (values_KD, weights_K) -> (D,): `weighted_mean`, or a rule that tolerates Byzantine clients (`aggregation.py`).
Mean: TypeAlias = Callable[[Tensor, Tensor], Tensor]


def _no_further_draws(name: str) -> Tensor:
    raise AssertionError(f"no further initial parameters can be drawn here, and {name} are needed")


@dataclass(frozen=True, kw_only=True)
class TrainingContext:
    """The context of an algorithm.

    module           the network, on the device where it is trained: its own tensors are not used, except for those that
                     are not in x_n, such as frozen parameters
    layout           where each tensor is in the flat vector x_n
    loss             the loss of the network's outputs
    optimizer        the local optimizer, as the user chose it
    stepper          takes the local steps of the whole network with that optimizer
    clients          N, number of clients that may take part, >= 1; default 1
    examples_max     largest number of examples of one client in this context; default 0
    examples         number of examples of all N clients together; 0 (default) where unknown
    draw             name -> (n,) further initial parameters, one draw for each name; default: no further ones
    mean             combines the updates of a round into one; default `weighted_mean`
    optimizer_state  whether peers without a server "keep" (default) or "reset" their optimizer's state between rounds
    rounds           number of rounds of the run, for algorithms without a server; default 1
    outer            outer steps after averagings, for algorithms without a server; default None: no outer steps
    """

    module: nn.Module
    layout: FlatLayout
    loss: Loss
    optimizer: OptimizerChoice
    stepper: Stepper
    clients: int = 1
    examples_max: int = 0
    examples: int = 0
    draw: Callable[[str], Tensor] = _no_further_draws
    mean: Mean = field(default=weighted_mean)
    optimizer_state: Literal["keep", "reset"] = "keep"
    rounds: int = 1
    outer: OuterRules | None = None

    @staticmethod
    def of(
        module: nn.Module, loss: Loss, optimizer: OptimizerChoice, *, way: Way = "loop", clients: int = 1
    ) -> TrainingContext:
        """Return the context of a network that is trained in one of the ways of `steppers`."""
        layout = FlatLayout.of(module)
        stepper = build_stepper(way, module, layout, loss, optimizer)
        return TrainingContext(
            module=module, layout=layout, loss=loss, optimizer=optimizer, stepper=stepper, clients=clients
        )

    @property
    def running_statistics(self) -> Tensor | None:
        """Mask of a model's numbers that are running statistics, (n,) bool; None where the network keeps none."""
        return running_statistics(self.layout)

    @property
    def lr(self) -> float:
        """The local learning rate, for an algorithm whose steps are x <- x - lr * gradient.

        Raises:
            AlgorithmError: the optimizer takes other steps.
        """
        if not self.optimizer.plain_sgd:
            raise AlgorithmError(
                f"this algorithm takes plain gradient steps, but learning.optimizer is {self.optimizer.kind} with "
                f"{', '.join(self.optimizer.settings)}; write sgd,lr=..."
            )
        return self.optimizer.lr

    def head_D(self, modules: Sequence[str] = ()) -> Tensor:
        """Return the places of the head in x_n, (D,): these modules, by name, or else the last module with parameters.

        Raises:
            AlgorithmError: there is no such module, or nothing would be left as the base.
        """
        names = tuple(modules) or (self._parameters[-1].module,)
        spans = [each.span for each in self.layout.tensors if _inside(each.name, names)]
        missing = [name for name in names if not any(_inside(each.name, (name,)) for each in self.layout.tensors)]
        if missing:
            known = dict.fromkeys(each.module for each in self._parameters)
            raise AlgorithmError(f'head: the network has no module "{missing[0]}"; known: {", ".join(known)}')
        head_D = torch.cat([torch.arange(span.start, span.stop) for span in spans])
        if len(head_D) == self.layout.n:
            raise AlgorithmError(
                "head: it is the whole network, so nothing is left to share; name a part of it, or take more layers"
            )
        return head_D

    def base_D(self, modules: Sequence[str] = ()) -> Tensor:
        """Return the places in x_n of everything outside the head, (n - D,)."""
        rest = torch.ones(self.layout.n, dtype=torch.bool)
        rest[self.head_D(modules)] = False
        return rest.nonzero().squeeze(-1)

    def training_only(self, places_D: Tensor) -> Stepper:
        """Return a stepper that trains only the parameters at these places, which must be whole tensors."""
        chosen, layers = set(places_D.tolist()), linear_stack.recognise(self.module)
        if layers and closed(self.loss, self.optimizer):
            held = tuple(replace(layer, frozen=layer.weight not in chosen) for layer in layers)
            if all(layer.bias is None or (layer.bias not in chosen) == layer.frozen for layer in held):
                return Stack(held, self.loss, self.optimizer.lr, self.optimizer.momentum or 0.0)
        module = trainable_copy(self.module)
        for spec in self._parameters:
            module.get_parameter(spec.name).requires_grad_(spec.offset in chosen)
        return build_stepper("loop", module, self.layout, self.loss, self.optimizer)

    @property
    def _parameters(self) -> list[TensorSpec]:
        return [each for each in self.layout.tensors if each.kind == "parameter"]


def _inside(tensor: str, modules: Sequence[str]) -> bool:
    """Return whether a tensor belongs to one of these modules; the module "" is the network itself."""
    return any(f"{tensor}.".startswith(f"{name}.") or not name for name in modules)
