"""The score of one peer's parameters on its test examples, taken in pieces to bound memory."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fedpeer.algorithms.batches import BatchView, Examples
from fedpeer.algorithms.losses import Loss, score_sums
from fedpeer.algorithms.steppers import Stepper

#: Examples evaluated at once: few enough to bound the memory of activations, enough for efficient matrix products.
EVALUATED_AT_ONCE = 2048


def evaluate(
    stepper: Stepper, loss: Loss, x_n: Tensor, examples: Examples, view: BatchView | None, score_scale: float
) -> tuple[float, float]:
    """Return (score, loss): accuracy as a fraction or root-mean-square error, and the mean loss.

    Args:
        view: the peer's own, without a leading dimension.
        score_scale: one unit of the targets in units of the data.
    """
    score = total = 0.0
    for logits_MC, y_M in _pieces(stepper, x_n, examples, view):
        right, summed = score_sums(loss, logits_MC, y_M)
        score, total = score + float(right), total + float(summed)
    mean = score / len(examples)
    return mean if loss.counts else mean**0.5 * score_scale, total / len(examples)


def losses(stepper: Stepper, loss: Loss, x_n: Tensor, examples: Examples, view: BatchView | None) -> Tensor:
    """Return the loss of each example, (M,)."""
    pieces = _pieces(stepper, x_n, examples, view)
    return torch.cat([loss.value(logits_MC.unsqueeze(1), y_M.unsqueeze(1)) for logits_MC, y_M in pieces])


def _pieces(
    stepper: Stepper, x_n: Tensor, examples: Examples, view: BatchView | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the outputs for some examples, and their targets."""
    for first in range(0, len(examples), EVALUATED_AT_ONCE):
        piece = examples.between(first, first + EVALUATED_AT_ONCE)
        inputs = piece.inputs() if view is None else view(piece.inputs(), examples.x_NF.dim() - 1)
        yield stepper.logits(x_n.unsqueeze(0), inputs.unsqueeze(0))[0], piece.y_M
