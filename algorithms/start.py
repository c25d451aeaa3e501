"""Initial parameters: the same draw for all peers (the default), or one for each."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from fedpeer.algorithms.draws import Draws, guarded
from fedpeer.slicing.flat import FlatLayout


def uniform(module: nn.Module, layout: FlatLayout, draws: Draws, peer: str, *, half_width: float = 0.5) -> Tensor:
    """Every parameter, weights and biases alike, from U(-half_width, half_width); buffers as the modules set them.

    U(-1/2, 1/2) is the start with which sigmoid networks learn within the paper's budget of single-sample steps.
    """
    x_n = layout.flatten(module)
    generator = draws.torch("start", peer)
    drawn = torch.rand(layout.n_parameters, generator=generator, dtype=x_n.dtype)
    x_n[: layout.n_parameters] = (2 * drawn - 1) * half_width
    return x_n


def torch_default(module: nn.Module, layout: FlatLayout, draws: Draws, peer: str) -> Tensor:
    """What the modules' own `reset_parameters` draw; parameters of modules without one stay as they were built."""
    module = copy.deepcopy(module)
    with guarded(draws.key("start", peer)):
        for each in module.modules():
            reset: Any = getattr(each, "reset_parameters", None)
            if callable(reset):
                reset()
    return layout.flatten(module)


STARTS = {"uniform": uniform, "torch": torch_default}
