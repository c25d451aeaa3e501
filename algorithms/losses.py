"""Losses: number of outputs that a network needs, value, closed gradient at the outputs, and score.

The outputs `z` are always logits (or plain numbers for regression); a loss that needs probabilities applies the sigmoid
or softmax itself. `delta` is the closed gradient for steps without autograd; a test compares it with autograd. All
functions take any leading dimensions.

Where examples have weights, as under `learning.class_weights`, the mean over a batch is sum(w_i loss_i) / sum(w_i), the
normalisation of torch's `CrossEntropyLoss(weight=..., reduction="mean")`: only the ratios of weights matter.

Completion has no gradient: its outputs are units that fire or not, for networks with their own learning rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from fedpeer.algorithms.precision import widest

#: The answer that a data set asks for: one of some classes, which of some labels hold, numbers, the rest of a pattern
#: of 0 and 1, or the token after each place of a text.
Task = Literal["classification", "multi-label", "regression", "completion", "next-token"]


@dataclass(frozen=True)
class Loss:
    """One loss.

    name       as users write it
    value      value(z_...BC, y_...B) -> (...): mean over the batch B; y is int64 classes, or numbers (labels: 0 and 1)
               of z's shape;
               for next tokens z is (..., B, T, V) and y (..., B, T) int64, -1 where there is none
    delta      delta(z_...BC, y_...B) -> d(sum over the batch)/dz, (..., B, C): divide by B for the gradient of `value`;
               None: there is no closed form
    task       the task of the data sets that it is for
    code       number of the loss in the compiled single-sample loop; -1: not in it
    sigmoids   whether its outputs are independent, so that one output is enough for two classes; default False
    each       each(z_...BC, y_...B) -> (..., B): the loss of each example, of which `value` is the mean; default None:
               examples of this loss have no weights
    """

    name: str
    value: Callable[[Tensor, Tensor], Tensor]
    delta: Callable[[Tensor, Tensor], Tensor] | None
    task: Task
    code: int
    sigmoids: bool = False
    each: Callable[[Tensor, Tensor], Tensor] | None = None

    @property
    def classifies(self) -> bool:
        """True if targets are classes."""
        return self.task == "classification"

    @property
    def marks(self) -> bool:
        """True if targets are labels, and each label holds or not."""
        return self.task == "multi-label"

    @property
    def continues(self) -> bool:
        """True if targets are the next tokens at the places of an example."""
        return self.task == "next-token"

    @property
    def counts(self) -> bool:
        """True if answers are right or wrong, so that the score is an accuracy; otherwise the score is an error."""
        return self.task != "regression"

    def mean(self, z: Tensor, y: Tensor, weight: Tensor | None) -> Tensor:
        """Return the mean over the batch, (...), weighted by (..., B) > 0; None: equal weights."""
        if weight is None:
            return self.value(z, y)
        assert self.each is not None, f"{self.name} has no weights"
        return (weight * self.each(z, y)).sum(-1) / weight.sum(-1)

    def slope(self, z: Tensor, y: Tensor, weight: Tensor | None) -> Tensor:
        """Return B times the gradient of `mean` at the outputs, (..., B, C), in closed form."""
        assert self.delta is not None, f"{self.name} has no closed gradient"
        delta = self.delta(z, y)
        if weight is None:
            return delta
        return delta.mul_((weight / weight.mean(-1, keepdim=True)).unsqueeze(-1))

    def outputs(self, classes: int) -> int:
        """Return the number of outputs that a classifier of this many classes, or labels, needs."""
        return 1 if classes == 2 and self.sigmoids and self.classifies else classes


def _indicator(z: Tensor, y: Tensor) -> Tensor:
    """Return targets in 0..1 of the shape of z: one-hot rows, or the class number itself if there is one output."""
    if z.shape[-1] == 1:
        return y.to(z.dtype).unsqueeze(-1)
    return functional.one_hot(y, z.shape[-1]).to(z.dtype)


def _as_numbers(z: Tensor, y: Tensor) -> Tensor:
    """Return regression targets in the shape of z: (B,) becomes (B, 1)."""
    return y.to(z.dtype).reshape(z.shape)


def _cross_entropies(z: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(z.reshape(-1, z.shape[-1]), y.reshape(-1), reduction="none").reshape(y.shape)


def _cross_entropy(z: Tensor, y: Tensor) -> Tensor:
    return _cross_entropies(z, y).mean(-1)


def _cross_entropy_delta(z: Tensor, y: Tensor) -> Tensor:
    return z.softmax(-1).scatter_add_(-1, y.unsqueeze(-1), torch.full_like(z, -1.0))


def _squared_error(z: Tensor, y: Tensor) -> Tensor:
    return 0.5 * (z.sigmoid() - _indicator(z, y)).square().sum(-1).mean(-1)


def _squared_error_delta(z: Tensor, y: Tensor) -> Tensor:
    a = z.sigmoid()
    return (a - _indicator(z, y)) * a * (1 - a)


def _binaries(z: Tensor, y: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(z, _indicator(z, y), reduction="none").sum(-1)


def _binary(z: Tensor, y: Tensor) -> Tensor:
    return _binaries(z, y).mean(-1)


def _binary_delta(z: Tensor, y: Tensor) -> Tensor:
    return z.sigmoid() - _indicator(z, y)


def _multi_label(z: Tensor, y: Tensor) -> Tensor:
    """Return the binary cross-entropy, mean over labels and examples, in nats."""
    return functional.binary_cross_entropy_with_logits(z, _as_numbers(z, y), reduction="none").mean(-1).mean(-1)


def _multi_label_delta(z: Tensor, y: Tensor) -> Tensor:
    return (z.sigmoid() - _as_numbers(z, y)) / z.shape[-1]


def _mean_squared_error(z: Tensor, y: Tensor) -> Tensor:
    return (z - _as_numbers(z, y)).square().mean((-1, -2))


def _mean_squared_error_delta(z: Tensor, y: Tensor) -> Tensor:
    return (2.0 / z.shape[-1]) * (z - _as_numbers(z, y))


def _mean_absolute_error(z: Tensor, y: Tensor) -> Tensor:
    return (z - _as_numbers(z, y)).abs().mean((-1, -2))


def _huber(z: Tensor, y: Tensor) -> Tensor:
    return functional.huber_loss(z, _as_numbers(z, y), reduction="none").mean((-1, -2))


def _next_tokens(z: Tensor, y: Tensor) -> Tensor:
    """Return the mean cross-entropy of each example over its places that have a next token, in nats, (..., B)."""
    flat = functional.cross_entropy(z.reshape(-1, z.shape[-1]), y.reshape(-1), ignore_index=-1, reduction="none")
    return flat.reshape(y.shape).sum(-1) / (y >= 0).sum(-1).clamp(min=1)


def _next_token(z: Tensor, y: Tensor) -> Tensor:
    return _next_tokens(z, y).mean(-1)


def _wrong(z: Tensor, y: Tensor) -> Tensor:
    return ((z > 0) != (y > 0)).to(z.dtype).mean((-1, -2))


LOSSES: dict[str, Loss] = {
    loss.name: loss
    for loss in (
        Loss("cross-entropy", _cross_entropy, _cross_entropy_delta, "classification", 0, each=_cross_entropies),
        # The paper's sigmoid outputs with their derivative (partial averaging 2021, section IV.1): half the squared
        # error summed over the outputs, so that delta = (a - t) a (1 - a).
        Loss("squared-error", _squared_error, _squared_error_delta, "classification", 1, sigmoids=True),
        Loss("binary", _binary, _binary_delta, "classification", 2, sigmoids=True, each=_binaries),
        # As torch's BCEWithLogitsLoss: the mean over examples and labels.
        Loss("multi-label", _multi_label, _multi_label_delta, "multi-label", 4, sigmoids=True),
        Loss("mean-squared-error", _mean_squared_error, _mean_squared_error_delta, "regression", 3),
        Loss("mean-absolute-error", _mean_absolute_error, None, "regression", -1),
        Loss("huber", _huber, None, "regression", -1),
        # The fraction of wrong units.
        Loss("completion", _wrong, None, "completion", -1),
        Loss("next-token", _next_token, None, "next-token", -1, each=_next_tokens),
    )
}


def predicted(z_BC: Tensor) -> Tensor:
    """Return the classes (..., B) for logits (..., B, C): the largest output, or the sign if there is one output."""
    if z_BC.shape[-1] == 1:
        return (z_BC.squeeze(-1) > 0).long()
    return z_BC.argmax(-1)


def completed(z_BV: Tensor, y_BV: Tensor) -> Tensor:
    """Return whether an answer has at least as many right ones as it has wrong units, (..., B).

    ones(c AND a) >= ones(c XOR a), of the expected pattern c and the answer a (partial averaging 2021, section V.5).
    """
    expected, answer = y_BV > 0, z_BV > 0
    return (expected & answer).sum(-1) >= (expected ^ answer).sum(-1)


def _foretold(z_BTV: Tensor, y_BT: Tensor) -> Tensor:
    """Return the fraction of each example's next tokens that have the largest output, (..., B)."""
    there_BT = y_BT >= 0
    return ((z_BTV.argmax(-1) == y_BT) & there_BT).sum(-1) / there_BT.sum(-1).clamp(min=1)


def score_sums(loss: Loss, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return (right answers, or summed squared errors; summed loss) over the batch, in the device's widest type.

    An answer of labels counts as the share of them that is right.
    It returns sums, not means, so that a test set can be evaluated in pieces.
    """
    wide = widest(z.device)
    summed_loss = loss.value(z, y).to(wide) * z.shape[-3 if loss.continues else -2]
    if loss.classifies:
        return (predicted(z) == y).sum(-1).to(wide), summed_loss
    if loss.marks:
        return ((z > 0) == (_as_numbers(z, y) > 0)).to(wide).mean(-1).sum(-1), summed_loss
    if loss.continues:
        return _foretold(z, y).to(wide).sum(-1), summed_loss
    if loss.counts:
        return completed(z, y).sum(-1).to(wide), summed_loss
    error = (z - _as_numbers(z, y)).to(wide).square().mean(-1)
    return error.sum(-1), summed_loss
