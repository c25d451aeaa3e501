"""Initial parameters: the same draw for all peers (the default), or one for each.

Each function takes the module, its layout, the run's draws and the peer ("" for a draw common to all), and returns
x_n. Torch is imported when one is called, so that the names and settings can be checked without it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedpeer.algorithms.draws import Draws
    from fedpeer.slicing.flat import FlatLayout


def uniform(module: nn.Module, layout: FlatLayout, draws: Draws, peer: str, *, half_width: float = 0.5) -> Tensor:
    """Every parameter, weights and biases alike, from U(-half_width, half_width); buffers as the modules set them.

    U(-1/2, 1/2) is the start with which sigmoid networks learn within the paper's budget of single-sample steps.
    """
    import torch

    x_n = layout.flatten(module)
    drawn = torch.rand(layout.n_parameters, generator=draws.torch("start", peer), dtype=x_n.dtype)
    x_n[: layout.n_parameters] = (2 * drawn - 1) * half_width
    return x_n


def torch_default(module: nn.Module, layout: FlatLayout, draws: Draws, peer: str) -> Tensor:
    """What the modules' own `reset_parameters` draw; parameters of modules without one stay as they were built."""
    from fedpeer.algorithms.draws import guarded

    module = copy.deepcopy(module)
    with guarded(draws.key("start", peer)):
        for each in module.modules():
            reset: Any = getattr(each, "reset_parameters", None)
            if callable(reset):
                reset()
    return layout.flatten(module)


def as_built(module: nn.Module, layout: FlatLayout, draws: Draws, peer: str) -> Tensor:
    """As the network was built or loaded: the same for all peers, and nothing is drawn."""
    return layout.flatten(module)


STARTS: dict[str, Callable[..., Any]] = {"uniform": uniform, "torch": torch_default, "built": as_built}
