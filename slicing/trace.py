"""Tracing: find the neurons of a torch module, and the weights between them, by following its forward pass.

The module is traced symbolically (torch.fx) and run once with an example. Each value is accompanied by its *shadow*: an
integer tensor of the same shape that holds, for each element, the neuron it comes from. `layers.py` and `rules.py`
define the effect of each operation on neurons. A layer that cannot be sliced is marked with the reason, and tracing
continues: it is an error only if a partial model asks for a slice of that layer.

The user's module is not changed: a copy is run, in evaluation mode, on the CPU.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from fedpeer.slicing.cells import Ids, MixedError, NetworkMapBuilder
from fedpeer.slicing.flat import tensor_specs
from fedpeer.slicing.models import SlicingError
from fedpeer.slicing.network import NONE, NetworkMap
from fedpeer.slicing.rules import call_function, call_module
from fedpeer.slicing.shadows import Neurons, Shadow, TracedCall, Weights, fresh, parameters_in, tensor_leaves


def trace(module: nn.Module, example_input: Tensor) -> NetworkMap:
    """Map each scalar of a module's flat vector to its neurons.

    Floating-point buffers (running statistics) are part of the vector, after the parameters; integer counters are not.

    Args:
        module: any module; layers that cannot be sliced are marked, and can be owned whole.
        example_input: (B, *F) a batch as the module takes it; only its first example is used.

    Raises:
        SlicingError: the module does not accept such an input.
    """
    module = copy.deepcopy(module).cpu().eval()
    builder = NetworkMapBuilder(tensor_specs(module))
    tied = _tied(module)
    for first, others in tied.items():
        builder.spoil([first], f"it is the same tensor as {', '.join(others)}")
    # A forward pass that draws random numbers must not change those of the caller.
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        graph, untraceable = _symbolic(module)
        for path, reason in untraceable.items():
            builder.spoil(_under(builder, path), f"its forward pass cannot be traced: {reason}", path)
        if graph is None:
            return builder.network(np.zeros(0, dtype=np.int64))
        walker = _Walker(graph, builder, {other: first for first, others in tied.items() for other in others})
        walker.run(example_input[:1].cpu())
    return builder.network(walker.outputs)


class _Walker(fx.Interpreter):
    """An interpreter that runs the graph and computes the shadow of each value."""

    def __init__(self, graph: fx.GraphModule, builder: NetworkMapBuilder, tied: Mapping[str, str]) -> None:
        super().__init__(graph)
        self.extra_traceback = False
        self.outputs: Ids = np.zeros(0, dtype=np.int64)
        self._builder, self._tied = builder, tied
        self._spans = {tensor.name: tensor for tensor in builder.tensors}
        self._shadows: dict[fx.Node, Shadow] = {}

    def run_node(self, n: fx.Node) -> Any:
        try:
            value = super().run_node(n)
        except Exception as error:  # a user's network may raise anything
            at = f" at {n.target}" if n.op == "call_module" else ""
            raise SlicingError(
                f"the network does not accept an example of the data: {_first_line(error)}{at}; "
                "choose a network and data that fit each other"
            ) from error
        self._shadows[n] = self._follow(n, value)
        return value

    def _follow(self, node: fx.Node, value: Any) -> Shadow:
        if node.op == "placeholder":
            return self._input(value) if isinstance(value, Tensor) else None
        if node.op == "get_attr":
            return self._weights(str(node.target), value) if isinstance(value, Tensor) else None
        args, kwargs = map_arg((node.args, node.kwargs), self._shadow)
        if node.op == "output":
            ends = [leaf.ids.numpy().ravel() for leaf in tensor_leaves(args) if isinstance(leaf, Neurons)]
            self.outputs = np.concatenate([self.outputs, *ends])
            return None
        call = TracedCall(self._builder, self._name(node, args), value)
        try:
            if node.op == "call_module":
                module = self.module.get_submodule(str(node.target))
                own = self._own(str(node.target), module)
                return call_module(call, module, own, args, kwargs)
            if node.op == "call_method":
                name = str(node.target)
                return call_function(call, name, lambda x, *a, **k: getattr(x, name)(*a, **k), args, kwargs)
            assert callable(node.target)
            return call_function(call, node.target.__name__, node.target, args, kwargs)
        except (MixedError, RuntimeError, TypeError, ValueError) as why:
            # The last three come from a call with arguments that its rule does not expect.
            if node.op == "call_module":
                path = str(node.target)
                self._builder.spoil(_under(self._builder, path), _first_line(why), path)
            self._builder.spoil(self._owners((args, kwargs)), _first_line(why))
            return fresh(call)

    def _shadow(self, node: fx.Node) -> Any:
        """Return the shadow of an argument, or its value if it has no shadow."""
        shadow = self._shadows[node]
        return self.env[node] if shadow is None else shadow

    def _input(self, value: Tensor) -> Neurons:
        # Tokens are indices of neurons, not neurons; an embedding creates those.
        name = "input" if value.is_floating_point() else "input.positions"
        return Neurons(torch.from_numpy(self._builder.born(name, value.numel(), loose=True)).reshape(value.shape))

    def _weights(self, name: str, value: Tensor) -> Weights:
        spec = self._spans.get(self._tied.get(name, name))
        if spec is None or spec.name in self._builder.unsliceable:
            return Weights((torch.full(value.shape, NONE),))
        return Weights((torch.arange(spec.offset, spec.offset + spec.size).reshape(spec.shape),))

    def _own(self, path: str, module: nn.Module) -> dict[str, Weights]:
        tensors = {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}
        return {
            name: self._weights(f"{path}.{name}", tensor)
            for name, tensor in tensors.items()
            if tensor.is_floating_point()
        }

    def _owners(self, tree: Any) -> list[str]:
        """Return the names of the tensors whose parameters are among these shadows."""
        places = [index.ravel().numpy() for index in parameters_in(tree)]
        return self._builder.owners(np.concatenate([np.zeros(0, dtype=np.int64), *places]))

    def _name(self, node: fx.Node, args: Any) -> str:
        """Return the name of the part that the operation produces: its module's path, or that of its weight's owner."""
        if node.op == "call_module":
            return str(node.target)
        owners = self._owners(args)
        return (self._spans[owners[0]].module or owners[0]) if owners else node.name


class _Tracer(fx.Tracer):
    """A tracer through the user's own modules, except the opaque ones, that remembers the first one that failed."""

    def __init__(self, opaque: Mapping[str, str]) -> None:
        super().__init__()
        self._opaque = opaque
        self.failed: str | None = None

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return module_qualified_name in self._opaque or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception:
            self.failed = self.failed if self.failed is not None else self.path_of_module(m)
            raise


def _symbolic(module: nn.Module) -> tuple[fx.GraphModule | None, dict[str, str]]:
    """Return the graph of the forward pass, and the modules that cannot be traced through, with the reason for each.

    The graph is None if the module itself cannot be traced.
    """
    opaque: dict[str, str] = {}
    defaults = {
        name: parameter.default
        for name, parameter in list(inspect.signature(module.forward).parameters.items())[1:]
        if parameter.default is not inspect.Parameter.empty
    }
    while True:
        tracer = _Tracer(opaque)
        try:
            return fx.GraphModule(module, tracer.trace(module, concrete_args=defaults)), opaque
        except Exception as error:  # a user's forward pass may raise anything when it is given symbols for numbers
            path = tracer.failed or ""
            if path in opaque:
                return None, {"": opaque[path]}
            opaque[path] = _first_line(error)
            if not path:
                return None, opaque


def _tied(module: nn.Module) -> dict[str, list[str]]:
    """Return the parameters that have several names, as the first name and the others."""
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {first: others for first, *others in names.values() if others}


def _under(builder: NetworkMapBuilder, path: str) -> list[str]:
    return [tensor.name for tensor in builder.tensors if not path or f"{tensor.name}.".startswith(f"{path}.")]


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
