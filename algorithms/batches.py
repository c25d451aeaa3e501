"""Order of the examples that a peer trains on: an endless sequence of reshuffled passes, cut into batches.

Pass number e of a peer is one permutation of its examples, drawn from the stream (seed, peer, e, "order"). Batches are
cut from the concatenation of all passes, so every batch is full and every round has the same number of examples, even
where a peer has fewer than a round needs. The position in the sequence is one number, the count of examples seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpeer.algorithms.draws import Draws
from fedpeer.algorithms.leaves import stack_states, take_rows

_Client = TypeVar("_Client")
_Sent = TypeVar("_Sent")


def order(examples: int, start: int, length: int, draws: Draws, peer: str) -> NDArray[np.int64]:
    """Return places `start` to `start + length` of the peer's endless sequence, (length,) numbers in 0..examples-1."""
    first, last = start // examples, (start + length - 1) // examples
    passes = [draws.numpy("order", peer, number).permutation(examples) for number in range(first, last + 1)]
    return np.concatenate(passes)[start - first * examples :][:length]


def round_order(examples: int, round: int, steps: int, batch: int, draws: Draws, peer: str) -> NDArray[np.int64]:
    """Return the numbers of the peer's examples in round 1, 2, ... of its endless sequence, (steps, batch)."""
    return order(examples, (round - 1) * steps * batch, steps * batch, draws, peer).reshape(steps, batch)


@dataclass(frozen=True)
class Examples:
    """Some examples of one peer: rows of inputs that may be shared with others, and their targets.

    x_NF      (N, *F) inputs; never copied
    index_M   (M,) int64 rows of x_NF
    y_M       (M,) or (M, outputs) targets as the peer sees them
    weight_M  (M,) weight of each example in scores; None (default): equal weights
    """

    x_NF: Tensor
    index_M: Tensor
    y_M: Tensor
    weight_M: Tensor | None = None

    def __len__(self) -> int:
        return len(self.index_M)

    def weights(self) -> Tensor:
        """Return the weight of each example in scores, (M,)."""
        return torch.ones(len(self), device=self.x_NF.device) if self.weight_M is None else self.weight_M

    @property
    def total_weight(self) -> float:
        """Sum of the weights."""
        return len(self) if self.weight_M is None else float(self.weight_M.sum())

    def weighted(self, class_weight_C: Tensor | None) -> Examples:
        """Return the same examples, each with the weight of its class, (C,); None: with equal weights."""
        return self if class_weight_C is None else replace(self, weight_M=class_weight_C[self.y_M])

    def between(self, first: int, last: int) -> Examples:
        weight_M = None if self.weight_M is None else self.weight_M[first:last]
        return Examples(self.x_NF, self.index_M[first:last], self.y_M[first:last], weight_M)

    def inputs(self) -> Tensor:
        """Return the inputs, (M, *F)."""
        return torch.index_select(self.x_NF, 0, self.index_M)


@dataclass(frozen=True)
class BatchView:
    """Peers' view of the inputs: features permuted, then `(x - shift) / scale`; leading dimensions as the peers'."""

    feature_map_F: Tensor | None = None  # (..., F) int64 over the flattened example
    shift_F: Tensor | None = None  # (..., F)
    scale_F: Tensor | None = None

    def fields(self) -> tuple[Tensor | None, ...]:
        return self.feature_map_F, self.shift_F, self.scale_F

    def of(self, peers: int | Tensor | None) -> BatchView:
        """Return the view of one peer (a number), of some peers (their numbers), or of one peer as a block (None)."""
        return BatchView(*(field if field is None else field[peers] for field in self.fields()))

    def __call__(self, x: Tensor, example_dims: int) -> Tensor:
        """Return raw inputs x (..., b, *F) as the peers see them, in the same shape."""
        shape = x.shape
        x = x.reshape(*shape[: x.dim() - example_dims], -1)
        if self.feature_map_F is not None:
            x = x.gather(-1, self.feature_map_F.unsqueeze(-2).expand(x.shape))
        if self.shift_F is not None and self.scale_F is not None:
            x = (x - self.shift_F.unsqueeze(-2)) / self.scale_F.unsqueeze(-2)
        return x.reshape(shape)


@dataclass(frozen=True)
class Batches:
    """The batches of one round, for one peer (no leading dimension) or a block of B peers.

    x_NF      (N, *F) all inputs; shared, never copied
    index     (S, b) or (B, S, b) int64 rows of x_NF
    y         the targets of those rows, (S, b), (B, S, b) or with an outputs axis behind
    view      how the peers see the inputs; None: as they are
    whole     all training examples of each peer, for algorithms that use more than batches; () if the algorithm does
              not
    number    () or (B,) int64: number of each peer, 0, 1, ... in the order of their ids, as clients of a server are
              numbered; None if the algorithm does not use it
    round     number of the round, >= 1; default 1
    class_weight   (C,) or (B, C) weight of each class in the loss; None (default): equal weights
    """

    x_NF: Tensor
    index: Tensor
    y: Tensor
    view: BatchView | None = None
    whole: tuple[Examples, ...] = ()
    number: Tensor | None = None
    round: int = 1
    class_weight: Tensor | None = None

    @property
    def steps(self) -> int:
        return self.index.shape[-2]

    @property
    def size(self) -> int:
        return self.index.shape[-1]

    def inputs(self, step: int) -> Tensor:
        """Return the inputs of one step, (..., b, *F)."""
        return self._seen(self.index.select(-2, step))

    def all_inputs(self) -> Tensor:
        """Return the inputs of all steps, (..., S * b, *F)."""
        return self._seen(self.index.flatten(-2))

    def targets(self, step: int) -> Tensor:
        """Return the targets of one step, (..., b) or (..., b, outputs)."""
        return self.y.select(self.index.dim() - 2, step)

    def weights(self, step: int) -> Tensor | None:
        """Return the weight of each example of one step in the loss, (..., b); None: equal weights."""
        return None if self.class_weight is None else self.class_weight.gather(-1, self.targets(step))

    def taking(self, steps: Sequence[int]) -> Batches:
        """Return these steps of the round, in this order; a step may occur several times."""
        places, dim = torch.tensor(steps, device=self.index.device), self.index.dim() - 2
        return replace(self, index=self.index.index_select(dim, places), y=self.y.index_select(dim, places))

    def peer(self, number: int) -> Batches:
        """Return the batches of one peer of the block."""
        whole, of_client = self.whole[number : number + 1], None if self.number is None else self.number[number]
        view, weight = self.view and self.view.of(number), _row(self.class_weight, number)
        return Batches(self.x_NF, self.index[number], self.y[number], view, whole, of_client, self.round, weight)

    def block(self) -> Batches:
        """Return the batches of one peer as a block of one."""
        of_client = None if self.number is None else self.number[None]
        view, weight = self.view and self.view.of(None), _row(self.class_weight, None)
        return Batches(self.x_NF, self.index[None], self.y[None], view, self.whole, of_client, self.round, weight)

    def everything(self) -> tuple[Tensor, Tensor]:
        """Return all training examples of one peer: inputs (M, *F) as it sees them, and targets (M, ...)."""
        (examples,) = self.whole
        inputs = examples.inputs()
        return inputs if self.view is None else self.view(inputs, self.x_NF.dim() - 1), examples.y_M

    def _seen(self, index: Tensor) -> Tensor:
        x = torch.index_select(self.x_NF, 0, index.flatten())
        if index.dim() > 1:
            x = x.view(*index.shape, *x.shape[1:])
        return x if self.view is None else self.view(x, self.x_NF.dim() - 1)


def _row(table: Tensor | None, number: int | None) -> Tensor | None:
    """Return one peer's row of a table (a number), or the row of one peer as a block (None)."""
    return None if table is None else table[number]


def train_singly(
    train: Callable[[_Client, Batches, int], tuple[_Client, _Sent]],
    client: _Client,
    batches: Batches,
    keys: Sequence[int],
) -> tuple[_Client, _Sent]:
    """Train one peer, or a block of peers one after the other, where data sets of different sizes prevent batching.

    Args:
        train: (state, batches, key) of one peer -> its new state, and what it sends.
        client: the state of the peer, or of the block.
    """
    if batches.index.dim() == 2:
        return train(client, batches, keys[0])
    found = [train(take_rows(client, peer), batches.peer(peer), key) for peer, key in enumerate(keys)]
    clients, sent = zip(*found, strict=True)
    return stack_states(clients), stack_states(sent)
