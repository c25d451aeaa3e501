"""From golden inputs to the functions of `data/` and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedpeer.data.splits import cut


def random_slicing(inputs: dict[str, Any]) -> dict[str, Any]:
    """Case 13: examples of one kind, cut at given places."""
    parts = [part.tolist() for part in cut(np.array(inputs["order"], dtype=np.int64), inputs["cut_indices"])]
    return {"parts": parts, "sizes": [len(part) for part in parts]}


ADAPTERS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {"13_random_slicing": random_slicing}
