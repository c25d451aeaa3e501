"""The parts of a multi-layer perceptron whose layer sizes are in the settings, without building it."""

from __future__ import annotations

import numpy as np

from fedpeer.config.choice import Choice, bind_settings
from fedpeer.config.registries import choice_problem
from fedpeer.networks.registry import NETWORKS, WIDEST
from fedpeer.slicing.network import NetworkMap, Part, TensorSpec


def written_layers(choice: Choice | None) -> tuple[int, ...] | None:
    """Return the layer sizes of a multi-layer perceptron that has them in its settings; None for other networks."""
    if choice is None or choice.name != "mlp" or choice_problem(("network",), choice) is not None:
        return None
    sizes: tuple[int, ...] | None = bind_settings(choice, NETWORKS["mlp"]).get("layers")
    fit = sizes is not None and len(sizes) >= 2 and min(sizes) >= 1 and max(sizes[1:-1], default=1) <= WIDEST
    return sizes if fit else None


def plain_network(choice: Choice | None) -> NetworkMap | None:
    """Return the parts and tensors of a multi-layer perceptron with `written_layers`; None for other networks.

    It does not say which weights connect which neurons: names and sizes are enough to check whether claims fit.
    """
    sizes = written_layers(choice)
    if choice is None or sizes is None:
        return None
    bias = bind_settings(choice, NETWORKS["mlp"]).get("bias", True)
    names = ["input", *(f"hidden{depth}" for depth in range(1, len(sizes) - 1)), "output"]
    tensors: list[TensorSpec] = []
    for module, inputs, outputs in zip(names[1:], sizes, sizes[1:], strict=False):
        for kind, shape in (("weight", (outputs, inputs)), ("bias", (outputs,)))[: 1 + bias]:
            offset = tensors[-1].span.stop if tensors else 0
            tensors.append(TensorSpec(f"{module}.{kind}", shape, offset, "parameter", module))
    nowhere = np.zeros(tensors[-1].span.stop, dtype=np.int32)
    parts = tuple(Part(name, size) for name, size in zip(names, sizes, strict=True))
    return NetworkMap(parts, tuple(tensors), nowhere, nowhere, nowhere, nowhere)
