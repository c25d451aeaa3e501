"""A module's flat vector in torch: flatten it, view it as the module's tensors, gather and scatter a group.

The scalars are in the order of `NetworkMap.tensors`. Functions take leading dimensions, so that one peer's (n,) and
many peers' (P, n) use the same code. Nothing here knows partial models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from fedpeer.slicing.network import NetworkMap, TensorSpec


@dataclass(frozen=True)
class FlatLayout:
    """The position of each tensor of a module in its flat vector: parameters first, then float buffers."""

    tensors: tuple[TensorSpec, ...]

    @classmethod
    def of(cls, source: nn.Module | NetworkMap) -> FlatLayout:
        """Return the layout of a module or of a traced network."""
        return cls(source.tensors if isinstance(source, NetworkMap) else tuple(tensor_specs(source)))

    @property
    def n(self) -> int:
        """Length of the flat vector."""
        return sum(tensor.size for tensor in self.tensors)

    @property
    def n_parameters(self) -> int:
        """Number of parameters among the scalars; they come first, the rest are buffers."""
        return sum(tensor.size for tensor in self.tensors if tensor.kind == "parameter")

    def flatten(self, module: nn.Module) -> Tensor:
        """Return a copy of the module's tensors as one vector, (n,)."""
        held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        return torch.cat([held[tensor.name].detach().reshape(-1) for tensor in self.tensors])

    def unflatten(self, x_n: Tensor) -> dict[str, Tensor]:
        """Return views of x_n, (..., n), by name, each (..., *shape), for `torch.func.functional_call`."""
        lead = x_n.shape[:-1]
        return {tensor.name: x_n[..., tensor.span].view(lead + tensor.shape) for tensor in self.tensors}


def tensor_specs(module: nn.Module) -> list[TensorSpec]:
    """Return the tensors of a module's flat vector in order: parameters, then float buffers, each in module order."""
    tensors: list[tuple[str, Tensor, Literal["parameter", "buffer"]]] = [
        (name, tensor, "parameter") for name, tensor in module.named_parameters()
    ]
    tensors += [(name, tensor, "buffer") for name, tensor in module.named_buffers() if tensor.is_floating_point()]
    specs, offset = [], 0
    for name, tensor, kind in tensors:
        specs.append(TensorSpec(name, tuple(tensor.shape), offset, kind, name.rpartition(".")[0]))
        offset += tensor.numel()
    return specs


def gather_group(x_n: Tensor, index_D: Tensor) -> Tensor:
    """Return a copy of a group's scalars, (..., D), out of x_n, (..., n)."""
    return x_n.index_select(-1, index_D.to(x_n.device))


def scatter_(x_n: Tensor, index_D: Tensor, value_D: Tensor) -> Tensor:
    """Write a group's scalars, (..., D), into x_n, (..., n), in place, and return x_n."""
    return x_n.index_copy_(-1, index_D.to(x_n.device), value_D)
