"""The associative network: visible to hidden units and back; it completes patterns and learns without gradients.

Partial averaging 2021, section IV.2. A unit fires (its output is 1, not 0) if the weighted sum of its inputs reaches a
threshold. Visible units are set to a pattern; then the hidden ones are computed, then the visible ones (Algorithm 3),
which completes a pattern that was learnt. There are no biases, and weights stay between -1 and 1.

The learning rule (Algorithm 4) needs no target: the input is a complete pattern, and each link whose source fires moves
towards 1 if its target fires too, and towards -1 if not. Links whose source is silent do not change.

Functions take any leading dimensions: one network's weights (O, I), or those of many peers (P, O, I).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def fires(x_MI: Tensor, weight_OI: Tensor, threshold: float) -> Tensor:
    """Map the outputs of the layer below, (..., M, I), to (..., M, O): 1 if the weighted sum is >= threshold, else 0.

    Source: partial averaging 2021, Algorithm 3.
    """
    return (torch.matmul(x_MI, weight_OI.mT) >= threshold).to(x_MI.dtype)


def associate_(weight_OI: Tensor, source_I: Tensor, target_O: Tensor, rate: float) -> None:
    """Move the links from active sources half `rate` of the way to 1 (target active) or to -1 (silent), in place.

    Units (..., I) and (..., O) are 0 or 1; with 0 <= rate <= 2 weights in [-1, 1] stay there. Source: partial averaging
    2021, Algorithm 4, w += (1 - w) / 2 * rate and w -= (1 + w) / 2 * rate, written as w += rate / 2 * (+-1 - w).
    """
    way_I = rate / 2 * source_I
    weight_OI.mul_(1 - way_I.unsqueeze(-2)).addcmul_((2 * target_O - 1).unsqueeze(-1), way_I.unsqueeze(-2))


class LayerLinks(nn.Linear):
    """Links from one layer to another, without a bias, and the threshold of their targets."""

    def __init__(self, sources: int, targets: int, *, threshold: float) -> None:
        self.threshold = threshold
        super().__init__(sources, targets, bias=False)

    def reset_parameters(self) -> None:
        """Draw weights from U(-1, 1): with zeros no unit would ever fire, and nothing would be learnt."""
        nn.init.uniform_(self.weight, -1.0, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., M, sources) to (..., M, targets), each 0 or 1."""
        return fires(x, self.weight, self.threshold)


class Associative(nn.Module):
    """The associative network; its parts are input, hidden and output.

    The visible units are the part input as sources and the part output as targets.

    visible    number of visible units
    hidden     number of hidden units
    threshold  least weighted sum with which a unit fires
    """

    def __init__(self, visible: int, hidden: int, *, threshold: float) -> None:
        super().__init__()
        self.hidden = LayerLinks(visible, hidden, threshold=threshold)
        self.output = LayerLinks(hidden, visible, threshold=threshold)

    def forward(self, x: Tensor) -> Tensor:
        """Complete partial patterns of 0 and 1, (B, *F), to (B, visible)."""
        answer: Tensor = self.output(self.hidden(x.flatten(1)))
        return answer

    @torch.no_grad()
    def learn_(self, tensors: Mapping[str, Tensor], patterns: Tensor, rate: float) -> None:
        """Learn complete patterns, (..., M, *F), one after the other, in place.

        `tensors` are weights by name, each (..., *shape), which are changed instead of the module's own. For each
        pattern, hidden units are computed before any weight changes, and visible units stay as they were set.
        """
        hidden_HV, output_VH = tensors["hidden.weight"], tensors["output.weight"]
        for pattern_V in patterns.flatten(hidden_HV.dim() - 1).unbind(-2):
            hidden_H = fires(pattern_V.unsqueeze(-2), hidden_HV, self.hidden.threshold).squeeze(-2)
            associate_(hidden_HV, pattern_V, hidden_H, rate)
            associate_(output_VH, hidden_H, pattern_V, rate)
