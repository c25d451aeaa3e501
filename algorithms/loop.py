"""Local steps of any module with any of torch's optimizers: a plain loop with autograd, one peer after the other.

A `Stepper` (see `steppers.py`). The module's own tensors are made views of a peer's row, so that a step writes straight
into it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.channels_last import copied
from fedpeer.algorithms.correction import Correction
from fedpeer.algorithms.draws import guarded
from fedpeer.algorithms.losses import Loss
from fedpeer.algorithms.optimizers import OptimizerChoice, StateLayout
from fedpeer.slicing.flat import FlatLayout

#: Examples evaluated at once: a convolution's activations take so much memory that larger batches are slower.
AT_ONCE = 500


class Loop:
    """A plain loop over peers and steps, with autograd and torch's own optimizer."""

    def __init__(self, module: nn.Module, layout: FlatLayout, loss: Loss, optimizer: OptimizerChoice) -> None:
        self._module = copied(module)
        self._layout = layout
        self._loss = loss
        self._optimizer = optimizer
        self._trained = [p for p in self._module.parameters() if p.requires_grad]
        self._state = StateLayout.probe(optimizer, self._trained)
        # Each peer has its own counters, such as that of batch normalisation, which are never averaged. A row holds the
        # counts since the start, so that a new peer's row is zeros, whatever the module's initial counts.
        self._counters = [(b, b.clone()) for b in self._module.buffers() if not b.is_floating_point()]

    @property
    def state_size(self) -> int:
        return self._state.size + sum(counter.numel() for counter, _ in self._counters)

    def train(
        self,
        x_Bn: Tensor,
        s_Bk: Tensor,
        fresh: bool,
        batches: Batches,
        keys: Sequence[int],
        correction: Correction | None = None,
    ) -> None:
        self._module.train()
        for number in range(len(x_Bn)):
            self._bind(x_Bn[number])
            optimizer = self._optimizer.build(self._trained)
            if not fresh:
                self._state.load(optimizer, self._trained, s_Bk[number])
            self._set_counters(s_Bk[number, self._state.size :])
            peer = batches.peer(number)
            corrections = [] if correction is None else self._cut(correction.peer(number))
            with guarded(keys[number]):
                for step in range(peer.steps):
                    optimizer.zero_grad()
                    answers, targets = self._module(peer.inputs(step)), peer.targets(step)
                    torch.autograd.backward(self._loss.mean(answers, targets, peer.weights(step)))
                    self._complete_gradients(corrections)
                    optimizer.step()
            optimizer.zero_grad()
            self._state.save(optimizer, self._trained, s_Bk[number])
            self._get_counters(s_Bk[number, self._state.size :])

    @torch.no_grad()
    def logits(self, x_Bn: Tensor, inputs: Tensor) -> Tensor:
        self._module.eval()
        answers = []
        for x_n, peer_inputs in zip(x_Bn, inputs, strict=True):
            self._bind(x_n)
            answers.append(torch.cat([self._module(piece) for piece in peer_inputs.split(AT_ONCE)]))
        return torch.stack(answers)

    def _complete_gradients(self, corrections: Sequence[Correction]) -> None:
        """Fill in zeros where the loss does not depend on a parameter, and add the corrections.

        Torch would skip such a parameter and keep no state for it.
        """
        for number, parameter in enumerate(self._trained):
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if corrections:
                parameter.grad += corrections[number].at(parameter.detach())

    def _cut(self, correction: Correction) -> list[Correction]:
        """Return one correction for each parameter that is trained."""
        shifts, named = self._layout.unflatten(correction.shift_n), self._module.named_parameters()
        return [replace(correction, shift_n=shifts[name]) for name, p in named if p.requires_grad]

    def _set_counters(self, counted: Tensor) -> None:
        at = 0
        for counter, beginning in self._counters:
            counter.copy_(beginning.long() + counted[at : at + counter.numel()].view(counter.shape).long())
            at += counter.numel()

    def _get_counters(self, counted: Tensor) -> None:
        at = 0
        for counter, beginning in self._counters:
            counted[at : at + counter.numel()] = (counter.long() - beginning.long()).flatten()
            at += counter.numel()

    def _bind(self, x_n: Tensor) -> None:
        """Make the module's tensors views of x_n, so that a step writes straight into the row."""
        views = self._layout.unflatten(x_n)
        for name, tensor in [*self._module.named_parameters(), *self._module.named_buffers()]:
            if name in views:  # frozen parameters are not
                tensor.data = views[name]
