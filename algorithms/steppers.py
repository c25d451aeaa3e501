"""The ways to take a round's local steps. All have the same results; the choice among them is for speed alone.

- `SingleSample`: a stack of linear layers, plain SGD, one example an update, on the CPU: one compiled loop;
- `Stack`: a stack of linear layers, SGD with or without momentum, any batch: closed gradients, batched over a block;
- `Mapped`: any network for which `vmap` gives the loop's numbers (a probe decides), elementwise optimizers: one program
  for a block of peers;
- `Loop`: any module and any optimizer, one peer after the other, with autograd;
- `OwnRule`: a module with its own learning rule and without gradients, which no other stepper could train.

Each takes a block of peers: parameters x_Bn (parameters first, then averaged buffers), optimizer state s_Bk, and the
batches of the round. It changes x_Bn and s_Bk in place, and keeps no state between calls.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from fedpeer.algorithms import linear_stack
from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.correction import Correction
from fedpeer.algorithms.loop import Loop
from fedpeer.algorithms.losses import Loss
from fedpeer.algorithms.mapped import Mapped
from fedpeer.algorithms.optimizers import OptimizerChoice
from fedpeer.algorithms.own_rule import OwnRule, check_gradients, learns, rate_of
from fedpeer.slicing.flat import FlatLayout, trainable_copy


class Stepper(Protocol):
    """One way to train a block of peers."""

    @property
    def state_size(self) -> int:
        """Number of scalars of optimizer state that a peer keeps between rounds."""
        ...

    def train(
        self,
        x_Bn: Tensor,
        s_Bk: Tensor,
        fresh: bool,
        batches: Batches,
        keys: Sequence[int],
        correction: Correction | None = None,
    ) -> None:
        """Take all steps of one round, in place.

        Args:
            x_Bn: (B, n) parameters and averaged buffers, changed.
            s_Bk: (B, k) optimizer state, changed.
            fresh: whether to ignore the optimizer state: there is none yet, or it is not to be used.
            batches: the batches of the round.
            keys: one for each peer, for dropout.
            correction: (B, n), added to the gradient of every step.
        """
        ...

    def logits(self, x_Bn: Tensor, inputs: Tensor) -> Tensor:
        """Return the outputs (B, M, outputs) for inputs (B, M, *F), in evaluation mode."""
        ...


@dataclass(frozen=True)
class Stack:
    """Closed gradients; see `linear_stack`."""

    layers: tuple[linear_stack.Layer, ...]
    loss: Loss
    lr: float
    momentum: float = 0.0

    @property
    def state_size(self) -> int:
        """One velocity for each parameter if there is momentum, else 0."""
        return sum(layer.size for layer in self.layers) if self.momentum else 0

    def train(
        self,
        x_Bn: Tensor,
        s_Bk: Tensor,
        fresh: bool,
        batches: Batches,
        keys: Sequence[int],
        correction: Correction | None = None,
    ) -> None:
        if fresh:
            s_Bk.zero_()
        v_Bn = s_Bk if self.momentum else None
        if len(x_Bn) == 1:  # matrix products of one peer are faster without the leading dimension
            x_n, v_n, one = x_Bn[0], None if v_Bn is None else v_Bn[0], correction and correction.peer(0)
            linear_stack.train_stack(self.layers, self.loss, x_n, batches.peer(0), self.lr, one, v_n, self.momentum)
        else:
            linear_stack.train_stack(self.layers, self.loss, x_Bn, batches, self.lr, correction, v_Bn, self.momentum)

    @torch.no_grad()
    def logits(self, x_Bn: Tensor, inputs: Tensor) -> Tensor:
        return linear_stack.forward(self.layers, x_Bn, inputs.flatten(2))


@dataclass(frozen=True)
class SingleSample(Stack):
    """One compiled loop; see `single_sample`. It cannot add to gradients, so `Stack` takes corrected steps."""

    def train(
        self,
        x_Bn: Tensor,
        s_Bk: Tensor,
        fresh: bool,
        batches: Batches,
        keys: Sequence[int],
        correction: Correction | None = None,
    ) -> None:
        if correction is not None:
            super().train(x_Bn, s_Bk, fresh, batches, keys, correction)
            return
        from fedpeer.algorithms import single_sample  # imports numba, which takes half a second

        table = single_sample.example_table(self.layers)
        for number, x_n in enumerate(x_Bn):
            peer = batches.peer(number)
            inputs_SF = peer.all_inputs().flatten(1).numpy()
            single_sample.train_single_samples(
                table, self.loss, x_n.numpy(), inputs_SF, peer.y.flatten(0, 1).numpy(), self.lr
            )


Way = Literal["single sample", "stack", "mapped", "loop", "own rule"]


def choose(
    module: nn.Module,
    layout: FlatLayout,
    loss: Loss,
    optimizer: OptimizerChoice,
    *,
    batch_size: int,
    device: str,
    peers: int,
    example: tuple[Tensor, Tensor],
) -> tuple[Way, int]:
    """Return the fastest way that is exact for this job, and the number of peers in a block.

    On a GPU a block keeps all of it busy and bounds the memory of activations and of copies. On a CPU, tiny networks
    are trained many at a time, since the cost of calls dominates, and larger ones one at a time: the weights of sixteen
    peers do not fit into the cache together.

    Args:
        example: a batch of inputs and targets, for the probe of `vmap`.

    Raises:
        OptimizerError: the optimizer is more than a rate, and the module has its own learning rule.
    """
    if device == "cpu":
        block = min(max(1, _CACHED_SCALARS // max(1, layout.n)), math.ceil(peers / _BLOCKS_LEAST))
    else:
        block = _even(peers, max(1, _SCALARS_ON_GPU // max(1, layout.n)))
    if learns(module):
        rate_of(optimizer)
        return "own rule", block
    if linear_stack.recognise(module) and closed(loss, optimizer):
        compiled = batch_size == 1 and device == "cpu" and loss.code >= 0 and optimizer.plain_sgd
        return ("single sample" if compiled else "stack"), block
    if block > 1 and optimizer.elementwise and mappable(module, layout, loss, *example):
        return "mapped", block if device == "cpu" else _even(peers, min(block, _MAPPED_ON_GPU))
    return "loop", 1


def build_stepper(way: Way, module: nn.Module, layout: FlatLayout, loss: Loss, optimizer: OptimizerChoice) -> Stepper:
    """Return the stepper of this way, as `choose` returned it.

    Raises:
        AlgorithmError: the module has its own learning rule, and another way is asked for.
    """
    if way == "own rule":
        return OwnRule(module, layout, rate_of(optimizer))
    check_gradients(module)
    layers = linear_stack.recognise(module)
    match way:
        case "mapped":
            return Mapped(module, layout, loss, optimizer)
        case "loop":
            return Loop(module, layout, loss, optimizer)
    assert layers is not None
    if way == "single sample":
        return SingleSample(layers, loss, optimizer.lr)
    return Stack(layers, loss, optimizer.lr, optimizer.momentum or 0.0)


def closed(loss: Loss, optimizer: OptimizerChoice) -> bool:
    """Return whether steps of a stack of linear layers on this loss with this optimizer have closed gradients."""
    return optimizer.momentum is not None and optimizer.lr >= 0 and loss.delta is not None


#: Scalars of parameters that a block may hold on a CPU: 256 KiB, a quarter of a common L2 cache, so that weights,
#: activations and examples of a block stay in it.
_CACHED_SCALARS = 64 * 1024
#: Least number of blocks on a CPU, so that several cores have work whatever the network. It is a constant and not the
#: number of workers, because blocks must not depend on that.
_BLOCKS_LEAST = 4
#: Scalars of parameters that a block may hold on a GPU: 256 MiB. Training copies them and its activations are often a
#: few times as much.
_SCALARS_ON_GPU = 64 * 1024 * 1024
#: Peers whose gradients are one program on a GPU: the unfolded images of so many peers take some gigabytes, and a
#: larger number is no faster.
_MAPPED_ON_GPU = 128


def _even(peers: int, most: int) -> int:
    """Return the size of blocks of at most `most` peers, all about equally large."""
    return math.ceil(peers / math.ceil(peers / most))


def mappable(module: nn.Module, layout: FlatLayout, loss: Loss, example: Tensor, target: Tensor) -> bool:
    """Return whether `Mapped` gives the results of `Loop` for this module, by a probe with two peers and one batch.

    A module with buffers in the flat vector is not probed, since buffers must not be stepped. The probe finds
    operations for which vmap has no rule: LSTM and GRU, counters, dropout (which would need a mask for every peer). It
    runs on the CPU, since the rules are the same on all devices, and a GPU's own kernels may differ in more digits than
    a probe allows.
    """
    trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    if layout.n != layout.n_parameters or trained != {tensor.name for tensor in layout.tensors}:
        return False
    module, example, target = trainable_copy(module, "cpu"), example.cpu(), target.cpu()
    plain = OptimizerChoice("SGD", {"lr": 1.0})
    loop, mapped = Loop(module, layout, loss, plain), Mapped(module, layout, loss, plain)
    start_n = layout.flatten(module)
    looped_2n = torch.stack([start_n, 0.5 * start_n])
    mapped_2n = looped_2n.clone()
    places = torch.arange(len(example))
    batches = Batches(example, places.expand(2, 1, -1), target.expand(2, 1, *target.shape))
    inputs = example.expand(2, *example.shape)
    try:
        loop.train(looped_2n, looped_2n.new_zeros(2, loop.state_size), True, batches, (0, 0))
        with warnings.catch_warnings():  # vmap warns where it has no rule and falls back to a loop
            warnings.simplefilter("error")
            mapped.train(mapped_2n, looped_2n.new_zeros(2, 0), True, batches, (0, 0))
            answers = mapped.logits(looped_2n, inputs)
    except Exception:  # vmap cannot do it, or the module itself fails: then the loop will report it
        return False
    return _alike(mapped_2n, looped_2n) and _alike(answers, loop.logits(looped_2n, inputs))


def _alike(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-4, atol=1e-6)
