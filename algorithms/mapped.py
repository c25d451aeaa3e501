"""Local steps of a block of peers as one program: vmap of the gradient, one elementwise optimizer for all of them.

A `Stepper` (see `steppers.py`). If a shape of block and batch recurs often, the gradient is traced, and from then on
the traced list of the operations of vmap and grad is run. These are the same operations with the same bits, at a third
of the time for small networks, where finding the list is most of it. The optimizer holds the block's parameters as one
(B, n) tensor. Between rounds its state is one row for each peer; a step count, common to the block, is in every row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.correction import Correction
from fedpeer.algorithms.losses import Loss
from fedpeer.algorithms.optimizers import OptimizerChoice, StateLayout
from fedpeer.algorithms.unfolded import copied_for_block
from fedpeer.slicing.flat import FlatLayout

#: (x_Bp, inputs, targets, and weights of the examples if they have any) -> gradient_Bp
_Gradient = Callable[..., Tensor]
#: Steps of a shape before its gradient is traced: tracing takes about as long as it saves in as many further steps.
STEPS_BEFORE_TRACE = 100


class Mapped:
    """A block of peers as one program: vmap of the gradient, an elementwise optimizer on all of x_Bn."""

    def __init__(self, module: nn.Module, layout: FlatLayout, loss: Loss, optimizer: OptimizerChoice) -> None:
        self._module = copied_for_block(module)
        self._layout = layout
        self._loss = loss
        self._optimizer = optimizer
        trainable = nn.Parameter(torch.zeros(1, layout.n_parameters))
        self._state = StateLayout.probe(optimizer, [trainable])

        def weighted(parameters_p: Tensor, inputs: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
            views = layout.unflatten(parameters_p)
            return loss.mean(functional_call(self._module, views, (inputs,)), targets, weights)

        def value(parameters_p: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
            return weighted(parameters_p, inputs, targets, None)

        def answer(x_n: Tensor, inputs: Tensor) -> Tensor:
            result: Tensor = functional_call(self._module, layout.unflatten(x_n), (inputs,))
            return result

        # Keyed by the number of arguments: the trace takes no optional ones.
        self._gradients: dict[int, _Gradient] = {3: vmap(grad(value)), 4: vmap(grad(weighted))}
        self._steps = Counter[tuple[object, ...]]()
        self._written: dict[tuple[object, ...], _Gradient] = {}
        self._answer = vmap(answer)

    @property
    def state_size(self) -> int:
        return self._state.size

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
        x_Bp = nn.Parameter(x_Bn)
        optimizer = self._optimizer.build([x_Bp])
        layout = self._block_state(len(x_Bn))
        if not fresh:
            layout.load(optimizer, [x_Bp], self._columns(s_Bk))
        for step in range(batches.steps):
            weights = batches.weights(step)
            given = x_Bp.detach(), batches.inputs(step), batches.targets(step), *(() if weights is None else (weights,))
            gradient_Bp = self._gradient_of(*given)(*given)
            x_Bp.grad = gradient_Bp if correction is None else gradient_Bp + correction.at(x_Bp.detach())
            optimizer.step()
        row = torch.empty(layout.size, dtype=s_Bk.dtype, device=s_Bk.device)
        layout.save(optimizer, [x_Bp], row)
        self._uncolumns(row, s_Bk)

    def _gradient_of(self, *arguments: Tensor) -> _Gradient:
        """Return the gradient of tensors like these: its traced operations, if there were many such steps before."""
        like = tuple((each.shape, each.stride(), each.dtype, each.device) for each in arguments)
        if like in self._written:
            return self._written[like]
        gradient = self._gradients[len(arguments)]
        if self._steps[like] < STEPS_BEFORE_TRACE:
            self._steps[like] += 1
            return gradient
        written = make_fx(gradient)(*arguments)
        written.graph.eliminate_dead_code()
        written.recompile()
        self._written[like] = written
        return written

    @torch.no_grad()
    def logits(self, x_Bn: Tensor, inputs: Tensor) -> Tensor:
        self._module.eval()
        return self._answer(x_Bn, inputs)

    def _block_state(self, peers: int) -> StateLayout:
        """Return the layout of one row for an optimizer that holds `peers` peers in (B, n) tensors."""
        entries = tuple(
            (number, key, (peers, *shape[1:]) if shape else ()) for number, key, shape in self._state.entries
        )
        return StateLayout(entries, sum(torch.Size(shape).numel() for _, _, shape in entries))

    def _columns(self, s_Bk: Tensor) -> Tensor:
        """Return one row as `_block_state` lays it out, from one row a peer (B, k); peers share a step count."""
        pieces, at = [], 0
        for _, _, shape in self._state.entries:
            length = torch.Size(shape).numel()
            piece = s_Bk[:, at : at + length]
            pieces.append(piece.reshape(-1) if shape else piece[0])
            at += length
        return torch.cat(pieces) if pieces else s_Bk.new_empty(0)

    def _uncolumns(self, row: Tensor, s_Bk: Tensor) -> None:
        at = source = 0
        for _, _, shape in self._state.entries:
            length = torch.Size(shape).numel()
            taken = length * len(s_Bk) if shape else 1
            s_Bk[:, at : at + length] = row[source : source + taken].view(len(s_Bk) if shape else 1, length)
            at += length
            source += taken
