"""The scores of peers' parameters on their test examples, taken in pieces to bound memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedpeer.algorithms.batches import BatchView, Examples
from fedpeer.algorithms.losses import Loss, score_sums
from fedpeer.algorithms.precision import widest
from fedpeer.algorithms.steppers import Stepper

#: Examples evaluated at once: few enough to bound the memory of activations, enough for efficient matrix products. For
#: next-token tasks it counts the places of a text, since each has outputs for a whole vocabulary.
EVALUATED_AT_ONCE = 2048
#: The same for a block of peers.
BLOCK_EVALUATED_AT_ONCE = 4096


def evaluate(
    stepper: Stepper, loss: Loss, x_n: Tensor, examples: Examples, view: BatchView | None, score_scale: float
) -> tuple[float, float]:
    """Return (score, loss): accuracy as a fraction or root-mean-square error, and the mean loss.

    Both are weighted means, if the examples have weights.

    Args:
        view: the peer's own view, without a leading dimension.
        score_scale: one unit of the targets in units of the data.
    """
    score = total = 0.0
    for logits_MC, piece in _pieces(stepper, loss, x_n, examples, view):
        if piece.weight_M is None:
            right, summed = score_sums(loss, logits_MC, piece.y_M)
        else:
            right, summed = (_each(loss, logits_MC[None], piece.y_M[None])[:, 0] * piece.weight_M).sum(-1)
        score, total = score + float(right), total + float(summed)
    return _means(loss, score, total, examples.total_weight, score_scale)


def evaluate_block(
    stepper: Stepper,
    loss: Loss,
    x_Bn: Tensor,
    parts: Sequence[Examples],
    view: BatchView | None,
    score_scales: Sequence[float],
) -> list[tuple[float, float]]:
    """Return the results of `evaluate` for each of B peers, in few calls: on a GPU, calls take most of the time.

    Args:
        parts: the peers' examples, of the same inputs; they may differ in number.
        view: the peers' view, with a leading dimension.
        score_scales: one for each peer.
    """
    x_NF, device = parts[0].x_NF, x_Bn.device
    index_BM = pad_sequence([each.index_M for each in parts], batch_first=True)
    y_BM = pad_sequence([each.y_M for each in parts], batch_first=True)
    weight_BM = pad_sequence([each.weights() for each in parts], batch_first=True)  # 0 where a peer has no more
    sums_2B = torch.zeros(2, len(parts), dtype=widest(device), device=device)
    width = max(1, BLOCK_EVALUATED_AT_ONCE // (len(parts) * _places(loss, parts[0])))
    for first in range(0, index_BM.shape[1], width):
        index_Bm, y_Bm = index_BM[:, first : first + width], y_BM[:, first : first + width]
        inputs = torch.index_select(x_NF, 0, index_Bm.flatten()).view(*index_Bm.shape, *x_NF.shape[1:])
        logits = stepper.logits(x_Bn, inputs if view is None else view(inputs, x_NF.dim() - 1))
        weight_Bm = weight_BM[:, first : first + width]
        sums_2B += torch.where(weight_Bm > 0, _each(loss, logits, y_Bm) * weight_Bm, 0.0).sum(-1)
    rows = zip(*sums_2B.tolist(), parts, score_scales, strict=True)
    return [_means(loss, score, total, part.total_weight, scale) for score, total, part, scale in rows]


def _each(loss: Loss, logits: Tensor, y: Tensor) -> Tensor:
    """Return `score_sums` of each example of B peers, (2, B, m): each is a batch of one."""
    return torch.stack(score_sums(loss, logits.unsqueeze(2), y.unsqueeze(2)))


def _means(loss: Loss, score: float, total: float, weight: float, score_scale: float) -> tuple[float, float]:
    """Return score and mean loss, from the sums over examples of this weight in all; NaN for examples without any."""
    if not weight:
        return math.nan, math.nan
    mean = score / weight
    return mean if loss.counts else mean**0.5 * score_scale, total / weight


def losses(stepper: Stepper, loss: Loss, x_n: Tensor, examples: Examples, view: BatchView | None) -> Tensor:
    """Return the loss of each example, (M,)."""
    pieces = _pieces(stepper, loss, x_n, examples, view)
    return torch.cat([loss.value(logits_MC.unsqueeze(1), piece.y_M.unsqueeze(1)) for logits_MC, piece in pieces])


def _places(loss: Loss, examples: Examples) -> int:
    """Return the number of places of an example that each have outputs."""
    return examples.y_M.shape[1] if loss.continues else 1


def _pieces(
    stepper: Stepper, loss: Loss, x_n: Tensor, examples: Examples, view: BatchView | None
) -> Iterator[tuple[Tensor, Examples]]:
    """Yield the outputs for some examples, and these."""
    count = max(1, EVALUATED_AT_ONCE // _places(loss, examples))
    for first in range(0, len(examples), count):
        piece = examples.between(first, first + count)
        inputs = piece.inputs() if view is None else view(piece.inputs(), examples.x_NF.dim() - 1)
        yield stepper.logits(x_n.unsqueeze(0), inputs.unsqueeze(0))[0], piece
