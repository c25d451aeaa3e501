"""Event-triggered averaging (`gossip.drift`) in the vector engine.

Here are each peer's last averaged slices, and the peers that take part in each exchange.

Only the leading process needs it, between a round's training and its averaging. The rule is `gossip/event_trigger.py`.
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
from fedpeer.gossip.event_trigger import ActivePeers, active_peers, has_moved, triggered_matrix
from fedpeer.slicing.plan import Group, Plan


class EventTriggered:
    """The event triggers of all groups of a plan.

    x_Pn     each peer's slices as they were after the last averaging in which the peer took part, or at the start
    active   by group, the members that were active in each exchange of the last averaging, and at its end
    """

    def __init__(self, x_Pn: Tensor, plan: Plan, averaging: Mapping[str, Averaging]) -> None:
        self.x_Pn = x_Pn.clone()
        self.active: dict[str, list[ActivePeers]] = {}
        self._groups, self._averaging = plan.groups, averaging
        self._rows = {group.id: [plan.peers.index(peer) for peer in group.members] for group in plan.groups}

    def look(self, x_Pn: Tensor, round: int) -> None:
        """Determine the active members of the averaging of round 0, 1, ...: those that moved or will be triggered."""
        for group in self._groups:
            policy = self._averaging[group.id]
            moved = self._moved(x_Pn, group) if policy.due(round) else np.zeros(len(group.members), dtype=bool)
            self.active[group.id] = list(active_peers(policy.matrices(round), moved))

    def inactive(self, group: str) -> bool:
        """Return whether no member has moved, so that nothing changes."""
        return not self.active[group][0].any()

    def matrix(self, group: str, round: int) -> NDArray[np.float64] | csr_array:
        """Return the averaging's column-stochastic matrix, (M, M): the usual one if all are active from the start."""
        policy, active = self._averaging[group], self.active[group]
        return policy.matrix(round) if active[0].all() else triggered_matrix(policy.matrices(round), active)

    def settle(self, x_Pn: Tensor) -> None:
        """Record the slices after the averaging of all members that took part in it."""
        for group in self._groups:
            for (row, index_D), active in zip(self._places(group), self.active[group.id][-1], strict=True):
                if active:
                    self.x_Pn[row, index_D] = x_Pn[row, index_D]

    def snapshot(self) -> dict[str, Any]:
        """Return the state beside `x_Pn`, JSON-serializable."""
        return {group: [each.tolist() for each in active] for group, active in self.active.items()}

    def restore(self, x_Pn: Tensor, state: Mapping[str, Sequence[Sequence[bool]]]) -> None:
        self.x_Pn.copy_(x_Pn)
        self.active = {group: [np.array(each) for each in active] for group, active in state.items()}

    def _moved(self, x_Pn: Tensor, group: Group) -> ActivePeers:
        """Return which members have moved, (M,); row by row, since all rows together may be as large as x."""
        wide, drift = widest(x_Pn.device), self._averaging[group.id].drift
        if drift is None:  # other groups are event-triggered
            return np.ones(len(group.members), dtype=bool)
        return np.array(
            [
                bool(has_moved(x_Pn[row, index_D].to(wide), self.x_Pn[row, index_D].to(wide), drift))
                for row, index_D in self._places(group)
            ]
        )

    def _places(self, group: Group) -> list[tuple[int, Tensor]]:
        """Return each member's row and the columns of the group's scalars in it."""
        return [
            (row, torch.from_numpy(group.indices[member]).to(self.x_Pn.device))
            for row, member in zip(self._rows[group.id], group.members, strict=True)
        ]
