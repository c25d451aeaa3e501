"""A module's flat vector in torch: flatten it, view it as the module's tensors, gather and scatter a group.

The scalars are in the order of `NetworkMap.tensors`. Frozen parameters are excluded: they stay in the module. Functions
take leading dimensions, so that one peer's (n,) and many peers' (P, n) use the same code. Nothing here knows partial
models.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Mapping
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
        """Number of scalars that are parameters; they come first, and the rest are buffers."""
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
    """Return the tensors of a module's flat vector in order: parameters, then float buffers, each in module order.

    Frozen parameters (`requires_grad` False) are left out, as are buffers that the module's `state_dict` leaves out.
    """
    tensors: list[tuple[str, Tensor, Literal["parameter", "buffer"]]] = [
        (name, tensor, "parameter") for name, tensor in module.named_parameters() if tensor.requires_grad
    ]
    kept = module.state_dict(keep_vars=True).keys()
    tensors += [
        (name, tensor, "buffer")
        for name, tensor in module.named_buffers()
        if tensor.is_floating_point() and name in kept
    ]
    specs, offset = [], 0
    for name, tensor, kind in tensors:
        specs.append(TensorSpec(name, tuple(tensor.shape), offset, kind, name.rpartition(".")[0]))
        offset += tensor.numel()
    return specs


def frozen_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that are not trained (`requires_grad` False), by name."""
    return {name: parameter for name, parameter in module.named_parameters() if not parameter.requires_grad}


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """Return the BLAKE2b-256 digest of tensors with their names, types and shapes, in hex; "" if there are none."""
    hashed = hashlib.blake2b(digest_size=32)
    for name, tensor in sorted(tensors.items()):
        hashed.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        hashed.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return hashed.hexdigest() if tensors else ""


def trainable_copy(module: nn.Module, device: str | None = None) -> nn.Module:
    """Return a copy of a module that shares its frozen parameters, so that a process stores them once.

    Args:
        device: device of the copy; frozen parameters on another device are copied, too. None: the module's device.
    """
    frozen = frozen_parameters(module).values()
    here = [each for each in frozen if device is None or each.device.type == torch.device(device).type]
    made = module_copy(module, here)
    return made if device is None else made.to(device)


def module_copy(module: nn.Module, shared: Iterable[Tensor] = ()) -> nn.Module:
    """Return a copy of a module, which may be pruned; the two share the tensors in `shared`."""
    return copy.deepcopy(module, {id(each): each for each in shared} | _computed(module))


def _computed(module: nn.Module) -> dict[int, Tensor]:
    """Return replacements, by id, for tensors that a module computes before each forward pass, as pruning does.

    Such tensors have the graph of that computation, which torch does not copy; the copy's own forward pass computes
    them again.
    """
    held = (value for each in module.modules() for value in vars(each).values())
    return {id(value): value.detach() for value in held if isinstance(value, Tensor) and not value.is_leaf}


def gather_group(x_n: Tensor, index_D: Tensor) -> Tensor:
    """Return a copy of a group's scalars, (..., D), out of x_n, (..., n)."""
    return x_n.index_select(-1, index_D.to(x_n.device))


def scatter_(x_n: Tensor, index_D: Tensor, value_D: Tensor) -> Tensor:
    """Write a group's scalars, (..., D), into x_n, (..., n), in place, and return x_n."""
    return x_n.index_copy_(-1, index_D.to(x_n.device), value_D)
