"""Disagreement of the models that peers hold.

The vector engine measures the averaged vectors in place, if these are the models.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedpeer.algorithms.precision import widest
from fedpeer.slicing.plan import Plan


def disagreement_of(plan: Plan, peers: Sequence[str], x_Pn: Tensor) -> dict[str, float]:
    """Return each group's largest distance of a member from the members' mean, relative to the mean's norm.

    Args:
        peers: ids of the rows of x_Pn.
        x_Pn: (P, n) models.
    """
    wide_Pn, found = x_Pn.to(widest(x_Pn.device)), {}
    rows = {peer: row for row, peer in enumerate(peers)}
    for group in plan.groups:
        # With several averaged vectors, each as long as the model, only the first has the model's indices.
        places = [group.indices[p][: group.length // plan.vectors] for p in group.members]
        each = zip(group.members, places, strict=True)
        values_MD = torch.stack([wide_Pn[rows[p]][torch.from_numpy(index_D).to(wide_Pn.device)] for p, index_D in each])
        mean_D = values_MD.mean(0)
        found[group.id] = float((values_MD - mean_D).norm(dim=1).max() / mean_D.norm().clamp(min=1e-30))
    return found
