"""Peer-to-peer rounds of the vector engine: every group averages, and parameters in no group are copied over.

A round goes from one side of x to the other and back: all peers train (side A -> side B), and the results are mixed
(B -> A). If a round has no averaging, the next one starts from side B.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpeer.algorithms.leaves import leaves_of
from fedpeer.config.methods import method_of
from fedpeer.gossip.averaging import Averaging, traffic
from fedpeer.gossip.noise_phase import masked_shares, noise_key
from fedpeer.sims.peers import secret_of
from fedpeer.sims.vector.event_triggered import EventTriggered
from fedpeer.sims.vector.rounds import Session, Tensors
from fedpeer.sims.vector.tasks import Disagreement, Keep, Mix, Mixing, WorkerTask
from fedpeer.sims.vector.workspace import LOCAL_COLUMNS, other
from fedpeer.slicing.plan import Group, Plan

#: Scalars in a block of columns over all members of a group. A block is one task, whose message costs as much as
#: averaging a twentieth of the block.
_MIXED_AT_ONCE = 1024 * 1024
#: An effective matrix with a smaller share of non-zero entries is kept sparse.
_SPARSE_BELOW = 0.1
#: Leaves of the states whose name in a checkpoint is not "state NAME", with that name.
_STORED = {"optimizer_k": "s"}
#: A block of columns of a group: the group's id, first column, end.
Columns = tuple[str, int, int]


class GossipRounds:
    """The rounds of all groups of a plan."""

    def __init__(
        self,
        session: Session,
        plan: Plan,
        averaging: Mapping[str, Averaging],
        weights_P: NDArray[np.float64] | None = None,
    ) -> None:
        """
        Args:
            weights_P: push-sum weights at the start of each averaging (`weights: samples` or `restart`); None: carried
                over.
        """
        self._session, self._plan, self._averaging, self._starts_with = session, plan, averaging, weights_P
        self._members = {g.id: [plan.peers.index(p) for p in g.members] for g in plan.groups}
        self.weights = {id: np.ones(len(rows)) for id, rows in self._members.items()}
        self.source = 0
        self._own_weights = method_of(session.job.algorithm).own_weights
        self._noise: dict[str, NDArray[np.float64]] = {}
        self._triggers: EventTriggered | None = None
        self._mixes = columns(plan)
        self._keeps = [name for name in session.workspace.index if name.startswith(LOCAL_COLUMNS)]

    def begin(self) -> None:
        if any(policy.drift is not None for policy in self._averaging.values()):
            self._triggers = EventTriggered(self._session.workspace.x[0], self._plan, self._averaging)

    def averages(self, number: int) -> bool:
        """Return whether round 1, 2, ... ends with an averaging."""
        return any(each.due(number - 1) for each in self._averaging.values())

    def open(self, number: int) -> Sequence[int]:
        return range(len(self._session.job.peers))

    def close(self, number: int, trained: Sequence[int]) -> None:
        session, mixed = self._session, self.averages(number)
        if mixed:
            self._prepare_mixing(number)
            source = 1 - self.source
            mixes: list[WorkerTask] = [Mix(group, a, b, source) for group, a, b in self._mixes]
            session.run(mixes + [Keep(index, source) for index in self._keeps])
            self._add_noise()
            if self._triggers is not None:
                self._triggers.settle(session.workspace.x[self.source])
            self.weights = self._mixed_weights
        else:
            self.source = 1 - self.source
        session.sides[:] = [other(side) for side in session.sides]
        session.executor.finished(trained, session.sides_of(trained), self.source, mixed=mixed)

    def traffic(self, round: int) -> tuple[list[int], list[int]]:
        peers = len(self._session.job.peers)
        messages, amount = [0] * peers, [0] * peers
        for group in self._plan.groups:
            if not self._averaging[group.id].due(round - 1):
                continue
            active = self._triggers.active[group.id] if self._triggers is not None else ()
            sent = traffic(self._averaging[group.id], group.length, round - 1, active=active)
            for row, (count, size) in zip(self._members[group.id], sent, strict=True):
                messages[row] += count
                amount[row] += size
        return messages, amount

    def disagreement(self) -> dict[str, float]:
        model = {group.id: group.length // self._plan.vectors for group in self._plan.groups}
        tasks = [Disagreement(group, a, b, self.source) for group, a, b in self._mixes if b <= model[group]]
        distance: dict[str, NDArray[np.float64]] = {}
        norm: dict[str, float] = {}
        for task, (part_M, part) in zip(tasks, self._session.run(tasks), strict=True):
            distance[task.group] = distance.get(task.group, 0.0) + part_M
            norm[task.group] = norm.get(task.group, 0.0) + part
        return {group: float(np.sqrt(distance[group].max() / max(norm[group], 1e-30))) for group in distance}

    def snapshot(self, *, trained: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
        session, everybody = self._session, range(len(self._session.job.peers))
        sides = [other(side) for side in session.sides] if trained else session.sides
        tensors = {"x": session.workspace.x[1 - self.source if trained else self.source]}
        for number, part in enumerate(session.parts):
            for name, leaf in leaves_of(part.states.of(everybody, sides)).items():
                tensors[_stored(number, name)] = leaf
        weights = {group: value.tolist() for group, value in self.weights.items()}
        state: dict[str, Any] = {"trained": trained, "weights": weights}
        if self._triggers is not None:
            tensors, state = tensors | {"last": self._triggers.x_Pn}, state | {"awake": self._triggers.snapshot()}
        return tensors, state

    def restore(self, tensors: Tensors, state: Mapping[str, Any]) -> None:
        session, self.source = self._session, 0
        session.workspace.x[1 if state["trained"] else 0].copy_(tensors["x"])
        begun = state["trained"] or state["round"] > 0
        # If training is done, the sides from which it was done; their contents are not read again.
        session.sides[:] = [1 if state["trained"] else 0] * len(session.sides)
        for number, part in enumerate(session.parts):
            for name, leaf in leaves_of(part.states.clients[0]).items():
                stored = tensors.get(_stored(number, name))
                if (
                    stored is None
                ):  # releases before 0.4 kept whether there is a state of the optimizer as the round's number
                    leaf.fill_(begun)
                else:
                    leaf.copy_(stored)
        if self._triggers is not None:
            self._triggers.restore(tensors["last"], state["awake"])
        self.weights = {group: np.array(value) for group, value in state["weights"].items()}
        session.executor.resume(session.sides)

    def _start_weights(self, group: Group) -> NDArray[np.float64]:
        """Return the members' weights at the start of this round's averaging, (M,), in units of their mean."""
        if self._own_weights:
            members = self._members[group.id]
            sides = [other(side) for side in self._session.sides_of(members)]
            own_M = self._session.executor.weights(group.id, members, sides)
            assert own_M is not None, "the algorithm says that it has weights of its own"
            return np.asarray(own_M / own_M.mean())
        if self._starts_with is not None:
            return self._starts_with[self._members[group.id]]
        return self.weights[group.id]

    def _prepare_mixing(self, number: int) -> None:
        """Send the workers this round's matrices T = diag(1 / w') M diag(w), which act on estimates.

        The noise that a noise phase leaves in the estimates, diag(1 / w') M B, is added after mixing.
        """
        self._mixed_weights = {}
        self._noise = {}
        if self._triggers is not None:
            self._triggers.look(self._session.workspace.x[1 - self.source], number - 1)
        for group in self._plan.groups:
            policy, mixing = self._averaging[group.id], _untouched(len(group.members))
            if not policy.due(number - 1):  # only other groups are due
                self._mixed_weights[group.id] = self.weights[group.id]
                self._session.executor.set_mixing(group.id, mixing)
                continue
            weights = self._start_weights(group)
            if self._triggers is not None and self._triggers.inactive(group.id):
                after = weights
            elif policy.exact:  # every mean contains all masked shares, so their noise cancels
                mixing = weights / weights.sum()
                # Peers that exchange shares end with equal weights; a coordinator leaves each peer its own.
                after = weights if policy.coordinator is not None else np.full_like(weights, weights.mean())
            else:
                matrix = self._matrix(group.id, number - 1)  # gossip counts rounds from 0
                masked, noise_MD = self._made_up(group, policy, number, weights)
                after = matrix @ masked
                mixing = _scaled(matrix, 1.0 / after, weights)
                if noise_MD is not None:
                    self._noise[group.id] = (matrix @ noise_MD) / after[:, None]
            self._mixed_weights[group.id] = after
            self._session.executor.set_mixing(group.id, mixing)

    def _matrix(self, group: str, round: int) -> Any:
        if self._triggers is not None:
            return self._triggers.matrix(group, round)
        return self._averaging[group].matrix(round)

    def _made_up(
        self, group: Group, policy: Averaging, number: int, weights: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
        """Return the weights after the noise phase of a round, (M,), and B, (M, D): noise received less noise sent."""
        if policy.noise is None or not policy.masked:
            return weights, None
        noise_MD = np.zeros((len(group.members), group.length))
        for exchange, matrix in enumerate(policy.masked_matrices(number - 1)):
            for sender, peer in enumerate(group.members):
                key = noise_key(secret_of(self._session.job.draws, peer), group.id, number, exchange, 1, 0)
                column = matrix[:, [sender]].tocoo()
                for receiver, fraction in zip(column.row.tolist(), column.data.tolist(), strict=True):
                    if receiver != sender:
                        drawn_D = masked_shares(key, group.members[receiver], group.length, policy.noise.scale)
                        share_D = (drawn_D * weights[sender] * fraction).float().numpy()
                        noise_MD[sender] -= share_D
                        noise_MD[receiver] += share_D
            weights = np.asarray(matrix @ weights)
        return weights, noise_MD

    def _add_noise(self) -> None:
        target = self._session.workspace.x[self.source]
        for group in self._plan.groups:
            if group.id in self._noise:
                for row, member, noise_D in zip(
                    self._members[group.id], group.members, self._noise[group.id], strict=True
                ):
                    index_D = torch.from_numpy(group.indices[member]).to(target.device)
                    target[row, index_D] += torch.from_numpy(noise_D).to(target)


def _stored(network: int, leaf: str) -> str:
    """Return a state leaf's name in a checkpoint, for peers with the job's network of this number."""
    return _STORED.get(leaf, f"state {leaf}") if network == 0 else f"state {network} {leaf}"


def _untouched(members: int) -> Mixing:
    """Return the identity matrix, which leaves all members' values unchanged."""
    return scipy.sparse.csr_array(scipy.sparse.eye_array(members))


def columns(plan: Plan) -> list[Columns]:
    """Return blocks of columns of every group, each within one vector and all of about the same size."""
    found = []
    for group in plan.groups:
        most, length = max(1024, _MIXED_AT_ONCE // len(group.members)), group.length // plan.vectors
        width = math.ceil(length / math.ceil(length / most))
        for first in range(0, group.length, length):
            last = first + length
            found += [(group.id, a, min(a + width, last)) for a in range(first, last, width)]
    return found


def _scaled(matrix: Any, left: NDArray[np.float64], right: NDArray[np.float64]) -> Mixing:
    if scipy.sparse.issparse(matrix):
        if matrix.nnz > _SPARSE_BELOW * matrix.shape[0] ** 2:
            matrix = matrix.toarray()
        else:
            return scipy.sparse.csr_array(scipy.sparse.diags_array(left) @ matrix @ scipy.sparse.diags_array(right))
    return np.asarray(left[:, None] * np.asarray(matrix) * right[None, :])
