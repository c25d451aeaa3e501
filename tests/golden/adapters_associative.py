"""Adapters of the associative network's golden cases: completion and learning (07a), the generator of vectors (07b)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpeer.algorithms.losses import completed
from fedpeer.data.associative import vectors
from fedpeer.networks.associative import Associative

Case = dict[str, Any]


def associative_network(inputs: Case) -> Case:
    """Compute case 07a."""
    hidden_HV, output_VH = _double(inputs["hidden_weight"]), _double(inputs["visible_weight"])
    module = Associative(len(output_VH), len(hidden_HV), threshold=inputs["threshold"]).double()
    weights = {"hidden.weight": hidden_HV, "output.weight": output_VH}
    patterns_SV = _double(inputs["training_patterns"])

    def shown() -> Case:
        return {"hidden_weight": hidden_HV.tolist(), "visible_weight": output_VH.tolist()}

    def completion() -> Case:
        module.load_state_dict(weights)
        hidden_H = module.hidden(_double(inputs["completion_input"]).unsqueeze(0))
        return {"hidden": _whole(hidden_H), "visible": _whole(module.output(hidden_H))}

    found: Case = {"completion_before": completion(), "after_each_pattern": []}
    for pattern_V in patterns_SV:
        module.load_state_dict(weights)
        hidden_H = module.hidden(pattern_V.unsqueeze(0))
        module.learn_(weights, pattern_V.unsqueeze(0), inputs["learning_rate"])
        found["after_each_pattern"].append({"hidden": _whole(hidden_H), **shown()})
    found["completion_after"] = completion()
    for _ in range(inputs["passes"] - 1):
        module.learn_(weights, patterns_SV, inputs["learning_rate"])
    found["after_20_passes"] = {**shown(), "completion": completion()}
    found["success"] = [bool(completed(_double(a), _double(c))) for c, a in inputs["success_cases"]]
    return found


def vector_generator(inputs: Case) -> Case:
    """Compute case 07b."""
    return {"cases": [_generated(**case) for case in inputs["cases"]]}


def _generated(k: int, modified: bool, z: int, **sizes: int) -> Case:
    number, changed = np.array([k]), np.array([modified])
    whole, noisy, noisy_part = (each[0] for each in vectors(number, z=z, changed_K=changed, **sizes))
    clean_part = vectors(number, z=0, changed_K=changed, **sizes)[2][0]
    named = {"full_clean": whole, "full_noisy": noisy, "input_clean": clean_part, "input_noisy": noisy_part}
    return {f"{name}_ones": np.flatnonzero(bits).tolist() for name, bits in named.items()}


def _double(numbers: Any) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def _whole(units: Tensor) -> list[int]:
    return [int(unit) for unit in units.flatten().tolist()]


ADAPTERS: dict[str, Callable[[Case], Case]] = {
    "07a_associative_network": associative_network,
    "07b_vector_generator": vector_generator,
}
