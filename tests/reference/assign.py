"""An assignment of neurons that is given explicitly instead of by claims of partial models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedpeer.slicing.assign import LOCAL_INDEX, Assignment
from fedpeer.slicing.models import ModelGraph, SlicingError
from fedpeer.slicing.network import NetworkMap


def layout_of_slices(
    network: NetworkMap, graph: ModelGraph, neurons: Mapping[str, Sequence[tuple[str, int] | None]]
) -> Assignment:
    """Build an assignment from each part's list of (model, index in the slice), one for each neuron; None: local.

    Parts that are not named are local.

    Raises:
        SlicingError: an unknown part, a list of the wrong length, or a model and index given to two neurons of a part.
    """
    owners = [np.full(part.size, LOCAL_INDEX, dtype=np.int32) for part in network.parts]
    indices = [np.zeros(part.size, dtype=np.int32) for part in network.parts]
    for name, cells in neurons.items():
        at = network.part(name)
        if len(cells) != network.parts[at].size:
            raise SlicingError(f"part {name} has {network.parts[at].size} neurons, but the layout has {len(cells)}")
        taken = [cell for cell in cells if cell is not None]
        if len(set(taken)) < len(taken):
            raise SlicingError(f"part {name}: the layout gives two neurons the same model and index")
        for neuron, cell in enumerate(cells):
            if cell is not None:
                owners[at][neuron], indices[at][neuron] = graph.order.index(cell[0]), cell[1]
    return Assignment(tuple(owners), tuple(indices), {})
