"""The multi-layer perceptron of the papers: hidden1, hidden2, ..., output.

It is a plain `nn.Sequential`, so that it is recognised as a stack of linear layers and trained without autograd.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

ACTIVATIONS: dict[str, type[nn.Module]] = {"sigmoid": nn.Sigmoid, "tanh": nn.Tanh, "relu": nn.ReLU}


class MLP(nn.Sequential):
    """The perceptron; the activation follows every layer except the last, whose outputs are logits.

    sizes       layer sizes from input to output
    activation  a key of `ACTIVATIONS`
    dropout     probability of dropping a hidden unit, 0 up to but not 1
    bias        whether the layers have biases
    flatten     whether inputs (B, *F) are flattened first
    """

    def __init__(
        self, sizes: Sequence[int], *, activation: str, dropout: float = 0.0, bias: bool = True, flatten: bool = False
    ) -> None:
        super().__init__()
        if flatten:
            self.add_module("flatten", nn.Flatten())
        for depth, (fan_in, fan_out) in enumerate(pairwise(sizes[:-1]), start=1):
            self.add_module(f"hidden{depth}", nn.Linear(fan_in, fan_out, bias=bias))
            self.add_module(f"activation{depth}", ACTIVATIONS[activation]())
            if dropout:
                self.add_module(f"dropout{depth}", nn.Dropout(dropout))
        self.add_module("output", nn.Linear(sizes[-2], sizes[-1], bias=bias))
