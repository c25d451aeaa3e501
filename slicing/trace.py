"""Tracing: find the neurons of a torch module, and the weights between them, by following its forward pass.

The module is run once with an example, and each call of a torch function is intercepted (`TorchFunctionMode`), so that
the forward pass may be any Python. Each tensor is accompanied by its *shadow*: an integer tensor of the same shape with
the neuron from which each element comes. `layers.py`, `products.py` and `rules.py` define the effect of each operation
on neurons. A layer that cannot be sliced is marked with the reason, and tracing continues: it is an error only if a
partial model asks for a slice of that layer.

The user's module is not changed: a copy is run, in evaluation mode, on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedpeer.slicing.cells import Ids, MixedError, NetworkMapBuilder
from fedpeer.slicing.flat import digest_of, frozen_parameters, tensor_specs, trainable_copy
from fedpeer.slicing.models import SlicingError
from fedpeer.slicing.network import NONE, NetworkMap
from fedpeer.slicing.rules import call_function, plain_name
from fedpeer.slicing.shadows import Neurons, Shadow, TracedCall, Weights, fresh, parameters_in, replaced, tensor_leaves


def trace(module: nn.Module, example_input: Tensor) -> NetworkMap:
    """Map each scalar of a module's flat vector to its neurons.

    Floating-point buffers (running statistics) are part of the vector, after the parameters; frozen parameters,
    integer counters and buffers that `state_dict` leaves out are not.

    Args:
        module: any module; layers that cannot be sliced are marked, and can be owned whole.
        example_input: (B, *F) a batch as the module takes it; only its first example is used.

    Raises:
        SlicingError: the module does not accept such an input.
    """
    module = trainable_copy(module, "cpu").eval()
    builder = NetworkMapBuilder(tensor_specs(module))
    for first, others in _tied(module).items():
        builder.spoil([first], f"it is the same tensor as {', '.join(others)}")
    for path, layer in module.named_modules():
        if getattr(layer, "parametrizations", None):
            builder.spoil(_under(builder, path), "its parameters are computed from others", path)
    follower = _Follower(module, builder)
    example = example_input[:1].cpu()
    # A forward pass that draws random numbers must not change the caller's.
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        outputs = follower.run(example)
    frozen = frozen_parameters(module)
    count = sum(parameter.numel() for parameter in frozen.values())
    return replace(builder.network(outputs), base=digest_of(frozen), frozen=count)


class _Follower(TorchFunctionMode):
    """A mode that computes the shadow of each tensor while the forward pass creates it."""

    def __init__(self, module: nn.Module, builder: NetworkMapBuilder) -> None:
        super().__init__()
        self._module, self._builder = module, builder
        self._spans = {tensor.name: tensor for tensor in builder.tensors}
        #: Id of a tensor -> the tensor, so that no other tensor gets its id, and its shadow.
        self._shadows: dict[int, tuple[Tensor, Shadow]] = {}
        #: The modules whose forward pass is under way, outermost first.
        self._running: list[tuple[str, nn.Module]] = []
        for name, parameter in module.named_parameters():
            self._remember(parameter, self._weights(name, parameter))
        for name, tensor in module.named_buffers():
            if name in self._spans:
                self._remember(tensor, self._weights(name, tensor))

    def run(self, example: Tensor) -> Ids:
        """Run the module, and return the neurons of its outputs."""
        for path, layer in self._module.named_modules():
            layer.register_forward_pre_hook(self._entering(path))
            layer.register_forward_hook(self._leaving)
        self._remember(example, self._input(example))
        try:
            with self:
                outputs = self._module(example)
        except Exception as error:  # a user's network may raise anything
            at = f" at {self._running[-1][0]}" if self._running and self._running[-1][0] else ""
            raise SlicingError(
                f"the network does not accept an example of the data: {_first_line(error)}{at}; "
                "choose a network and data that fit each other"
            ) from error
        shadows = [self._shadow(leaf) for leaf in tensor_leaves(outputs)]
        ends = [shadow.ids.numpy().ravel() for shadow in shadows if isinstance(shadow, Neurons)]
        return np.concatenate([np.zeros(0, dtype=np.int64), *ends])

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        value = func(*args, **(kwargs or {}))
        self._follow(func, args, dict(kwargs or {}), value)
        return value

    def _follow(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any], value: Any) -> None:
        """Give the results of an operation their shadows."""
        seen, named = replaced((args, kwargs), self._shadow)
        if not any(isinstance(leaf, (Neurons, Weights)) for leaf in tensor_leaves((seen, named))):
            return
        name = plain_name(func)
        if name == "setitem":  # it returns nothing
            value = args[0]
        if not any(isinstance(leaf, Tensor) for leaf in tensor_leaves(value)):
            return
        call = TracedCall(self._builder, self._part_name(func, seen), value, args)
        try:
            self._remember(value, call_function(call, name, func, seen, named))
        except (MixedError, RuntimeError, TypeError, ValueError, IndexError, AttributeError) as why:
            # All errors but the first come from a call with arguments that its rule does not expect.
            self._builder.spoil(self._owners((seen, named)), _first_line(why))
            self._remember(value, fresh(call))

    def _shadow(self, leaf: Any) -> Any:
        """Return the shadow of a tensor, or the value itself if it has no shadow."""
        known = self._shadows.get(id(leaf)) if isinstance(leaf, Tensor) else None
        return leaf if known is None else known[1]

    def _remember(self, value: Any, shadow: Shadow) -> None:
        """Store the shadow of a tensor, or of each tensor in a result of several tensors."""
        if isinstance(value, Tensor):
            if shadow is None:
                self._shadows.pop(id(value), None)
            else:
                self._shadows[id(value)] = (value, shadow)
        elif isinstance(value, (tuple, list)) and isinstance(shadow, (tuple, list)):
            for one, its in zip(value, shadow, strict=True):
                self._remember(one, its)

    def _input(self, value: Tensor) -> Neurons:
        # Tokens are indices of neurons, not neurons; an embedding creates those.
        name = "input" if value.is_floating_point() else "input.positions"
        return Neurons(torch.from_numpy(self._builder.born(name, value.numel(), loose=True)).reshape(value.shape))

    def _weights(self, name: str, value: Tensor) -> Weights:
        spec = self._spans.get(name)
        if spec is None or spec.name in self._builder.unsliceable:
            return Weights((torch.full(value.shape, NONE),))
        return Weights((torch.arange(spec.offset, spec.offset + spec.size).reshape(spec.shape),))

    def _owners(self, tree: Any) -> list[str]:
        """Return the names of the tensors whose parameters are among these shadows."""
        places = [index.ravel().numpy() for index in parameters_in(tree)]
        return self._builder.owners(np.concatenate([np.zeros(0, dtype=np.int64), *places]))

    def _part_name(self, func: Callable[..., Any], args: Any) -> str:
        """Return the name of the part that the operation creates: the path of its layer, or of its weight's owner."""
        path, layer = self._running[-1] if self._running else ("", self._module)
        if type(layer).__module__.startswith("torch.nn.") and path:
            return path
        owners = self._owners(args)
        return (self._spans[owners[0]].module or owners[0]) if owners else func.__name__

    def _entering(self, path: str) -> Callable[[nn.Module, Any], None]:
        def hook(layer: nn.Module, _: Any) -> None:
            self._running.append((path, layer))

        return hook

    def _leaving(self, layer: nn.Module, args: Any, result: Any) -> None:
        while self._running.pop()[1] is not layer:  # layers inside it that ended with an error, which it caught
            pass


def _tied(module: nn.Module) -> dict[str, list[str]]:
    """Return the parameters with several names: first name -> all other names."""
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {first: others for first, *others in names.values() if others}


def _under(builder: NetworkMapBuilder, path: str) -> list[str]:
    return [tensor.name for tensor in builder.tensors if not path or f"{tensor.name}.".startswith(f"{path}.")]


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
