"""Averaging by drift (`gossip.drift`) in the vector engine: what each peer last had, who has moved, who is woken.

Only the leader needs it, between a round's training and its averaging. The rule is `gossip/event_trigger.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from fedpeer.algorithms.precision import widest
from fedpeer.gossip.averaging import Averaging
from fedpeer.gossip.event_trigger import Awake, has_moved, wakings, woken_matrix
from fedpeer.slicing.plan import Group, Plan


class EventTriggered:
    """All groups of a plan.

    x_Pn    each slice as its peer had it at the end of the last averaging in which it took part, or at the start
    awake   by group, which members were awake in each exchange of the last averaging, and at its end
    """

    def __init__(self, x_Pn: Tensor, plan: Plan, averaging: Mapping[str, Averaging]) -> None:
        self.x_Pn = x_Pn.clone()
        self.active: dict[str, list[Awake]] = {}
        self._groups, self._averaging = plan.groups, averaging
        self._rows = {group.id: [plan.peers.index(peer) for peer in group.members] for group in plan.groups}

    def look(self, x_Pn: Tensor, round: int) -> None:
        """Before the averaging of round 0, 1, ...: who has moved, and who will be woken."""
        for group in self._groups:
            matrices = self._averaging[group.id].matrices(round)
            self.active[group.id] = list(wakings(matrices, self._moved(x_Pn, group)))

    def inactive(self, group: str) -> bool:
        """Whether nobody has moved, so that everything stays as it is."""
        return not self.active[group][0].any()

    def matrix(self, group: str, round: int) -> NDArray[np.float64] | csr_array:
        """(M, M) column-stochastic: the usual one where all are awake from the first exchange on."""
        policy, active = self._averaging[group], self.active[group]
        return policy.matrix(round) if active[0].all() else woken_matrix(policy.matrices(round), active)

    def settle(self, x_Pn: Tensor) -> None:
        """The averaging is over: who took part in it remembers what it has now."""
        for group in self._groups:
            for (row, index_D), active in zip(self._places(group), self.active[group.id][-1], strict=True):
                if active:
                    self.x_Pn[row, index_D] = x_Pn[row, index_D]

    def snapshot(self) -> dict[str, Any]:
        """A JSON-able state beside `x_Pn`."""
        return {group: [each.tolist() for each in active] for group, active in self.active.items()}

    def restore(self, x_Pn: Tensor, state: Mapping[str, Sequence[Sequence[bool]]]) -> None:
        self.x_Pn.copy_(x_Pn)
        self.active = {group: [np.array(each) for each in active] for group, active in state.items()}

    def _moved(self, x_Pn: Tensor, group: Group) -> Awake:
        """(M,), one row after the other: all together may be as large as x."""
        wide, drift = widest(x_Pn.device), self._averaging[group.id].drift
        assert drift is not None, "groups average by drift, or none does"
        return np.array(
            [
                bool(has_moved(x_Pn[row, index_D].to(wide), self.x_Pn[row, index_D].to(wide), drift))
                for row, index_D in self._places(group)
            ]
        )

    def _places(self, group: Group) -> list[tuple[int, Tensor]]:
        """Of each member its row, and where the group's scalars lie in it."""
        return [
            (row, torch.from_numpy(group.indices[member]).to(self.x_Pn.device))
            for row, member in zip(self._rows[group.id], group.members, strict=True)
        ]
