"""Initial parameters: the same draw for all peers (the default), or one draw for each peer.

Each function takes the module, its layout, the run's draws and the peer ("" for a draw that all peers share), and
returns x_n. Torch is imported when a function is called, so that names and settings can be checked without it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedpeer.algorithms.draws import Draws
    from fedpeer.slicing.flat import FlatLayout


def uniform(module: nn.Module, layout: FlatLayout, draws: Draws, peer: str, *, half_width: float = 0.5) -> Tensor:
    """Draw every parameter, weights and biases alike, from U(-half_width, half_width); buffers as the modules set them.

    U(-1/2, 1/2) is the start with which sigmoid networks learn within the paper's budget of single-sample steps.

    Args:
        half_width: default 0.5.
    """
    import torch

    x_n = layout.flatten(module)
    drawn = torch.rand(layout.n_parameters, generator=draws.torch("start", peer), dtype=x_n.dtype)
    x_n[: layout.n_parameters] = (2 * drawn - 1) * half_width
    return x_n


def torch_default(module: nn.Module, layout: FlatLayout, draws: Draws, peer: str) -> Tensor:
    """Draw parameters as the modules' own `reset_parameters` do; modules without one keep theirs as built."""
    from fedpeer.algorithms.draws import guarded

    module = copy.deepcopy(module)
    with guarded(draws.key("start", peer)):
        for each in module.modules():
            reset: Any = getattr(each, "reset_parameters", None)
            if callable(reset):
                reset()
    return layout.flatten(module)


def as_built(module: nn.Module, layout: FlatLayout, draws: Draws, peer: str) -> Tensor:
    """Take the network as it was built or loaded: the same for all peers, and nothing is drawn."""
    return layout.flatten(module)


def from_file(
    module: nn.Module, layout: FlatLayout, draws: Draws, peer: str, *, path: str = "", digest: str = ""
) -> Tensor:
    """Take a trained model, such as `fedpeer export` writes: the same for all peers, and nothing is drawn.

    The code that built the module has put the file's tensors into it (`put_into`).

    Args:
        path: of the file.
        digest: digest of the file, filled in by fedpeer; peers compare it.
    """
    return layout.flatten(module)


def put_into(module: nn.Module, tensors: Mapping[str, Tensor]) -> list[str]:
    """Copy the tensors of a trained model into a module, by name; return the names whose shapes differ.

    Of such a tensor the overlap with the module's tensor is copied, from the first row and column on; the rest of the
    module's tensor stays as built.

    Raises:
        ValueError: no tensor has the name of one of the module's tensors.
    """
    import torch

    own = {name: value for name, value in module.state_dict().items() if name in tensors}
    found = {name: value for name, value in own.items() if tensors[name].dim() == value.dim()}
    if not found:
        known, there = ", ".join(list(module.state_dict())[:3]), ", ".join(list(tensors)[:3])
        raise ValueError(f"none of its tensors fits the network: the network has {known}, the model {there}")
    with torch.no_grad():
        for name, value in found.items():
            both = tuple(slice(min(sizes)) for sizes in zip(value.shape, tensors[name].shape, strict=True))
            value[both] = tensors[name][both].to(value.dtype)
    return [name for name, value in own.items() if value.shape != tensors[name].shape]


STARTS: dict[str, Callable[..., Any]] = {
    "uniform": uniform,
    "torch": torch_default,
    "built": as_built,
    "file": from_file,
}
