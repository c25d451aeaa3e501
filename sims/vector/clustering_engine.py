"""The vector engine for peers that find their groups themselves: it runs under one plan, and after the search under
another.

In the first `clustering.after` rounds the partial model with automatic members belongs to no peer, and each peer keeps
some of its examples back. Then groups are found by the rules of `algorithms/assignment.py`, a plan with one partial
model per group is compiled, and training continues from the current parameters with all examples. The messages that the
search would send are counted in the round after which it takes place. The search uses nothing that peers would not send
each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpeer.algorithms.assignment import (
    GAIN_BYTES,
    CountSketch,
    Gain,
    below,
    groups,
    merges,
    merges_taken,
    missed,
    normalised_sketches,
)
from fedpeer.algorithms.evaluation import losses
from fedpeer.algorithms.steppers import Stepper
from fedpeer.config.choice import Choice
from fedpeer.config.settings import FederationSettings
from fedpeer.gossip.averaging import traffic
from fedpeer.gossip.flooding import flood_along
from fedpeer.learning.groups import averaging_among, averaging_of, plan_for
from fedpeer.sims.engine import Engine, RoundTimes
from fedpeer.sims.memory import start_weights, workspace_of
from fedpeer.sims.vector.clustering_task import ClusteringTask, Indices, kinds, split_network
from fedpeer.sims.vector.engine import VectorEngine
from fedpeer.sims.vector.workspace import Job, Workspace, WorkspacePart
from fedpeer.sims.world import World

#: Called once with the federation that contains the groups found.
_Found = Callable[[FederationSettings], None]


class ClusteringEngine(Engine):
    """An engine for peers that search for the groups with which they share a partial model."""

    def __init__(
        self,
        job: Job,
        world: World,
        method: Choice,
        task: ClusteringTask,
        found: _Found = lambda federation: None,
        **options: Any,
    ) -> None:
        """
        Args:
            found: called once with the federation that contains the groups found.
            options: further arguments of the vector engine: workers, folder, replaced, stop.
        """
        self._job, self._world, self._method, self._task = replace(job, algorithm=method), world, method, task
        self._found, self._options = found, options
        length, size = task.compared_PD.shape[1], task.clustering.sketch
        self._sketch = CountSketch.drawn(length, size, world.draws.numpy("sketch"))
        self._sketch_PS = np.zeros((len(world.peers), self._sketch.size))
        self._groups: tuple[tuple[int, ...], ...] | None = None  # indices of peers; None: not found yet
        self._spent_P2 = np.zeros((len(world.peers), 2), np.int64)  # messages and bytes in the round of the search
        self._back: WorkspacePart | None = None

    def __enter__(self) -> Self:
        self._engine = self._engine_under(self._world.federation, before_search=True).__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        self._engine.__exit__(*raised)

    def step(self) -> RoundTimes:
        times = self._engine.step()
        if self._groups is None:
            self._add_up()
            if self._engine.round == self._task.clustering.after:
                began = time.perf_counter()
                self._groups = self._search()
                federation = self._decided()
                self._go_on(federation, *self._engine.snapshot())
                self._found(federation)
                times = replace(times, average=times.average + time.perf_counter() - began)
        self.round = self._engine.round
        return times

    @property
    def weights(self) -> dict[str, NDArray[np.float64]]:
        return self._engine.weights

    @property
    def traffic(self) -> tuple[list[int], list[int]]:
        """Messages and bytes that each peer sent in the last finished round, for averaging and the search."""
        if self.round != self._task.clustering.after:
            return self._engine.traffic
        return self._spent_P2[:, 0].tolist(), self._spent_P2[:, 1].tolist()

    @property
    def x_Pn(self) -> Tensor:
        return self._engine.x_Pn

    def evaluate(self, *, validation: bool = False) -> list[tuple[float, float]]:
        return self._engine.evaluate(validation=validation)

    def statistics(self) -> dict[str, list[float]]:
        """Return the number of each peer's group, 0 for none, and the adjusted Rand index of the groups.

        The index compares the groups with the peers' true kinds (1: all found, 0: as by chance); it is left out if all
        peers see their data in the same way.
        """
        if self._groups is None:
            return {}
        group_P = np.zeros(len(self._world.peers), np.int64)
        for number, members in enumerate(self._groups, 1):
            group_P[list(members)] = number
        found = {"group": group_P.astype(float).tolist()}
        hidden_P = kinds(self._world)
        if len(set(hidden_P)) > 1:
            from sklearn.metrics import adjusted_rand_score  # late: a second

            alone_P = np.where(group_P > 0, group_P, -1 - np.arange(len(group_P)))
            found["recovered"] = [float(adjusted_rand_score(hidden_P, alone_P))] * len(group_P)
        return found

    def disagreement(self) -> dict[str, float]:
        return self._engine.disagreement()

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, state = self._engine.snapshot()
        search = {"groups": self._groups, "spent": self._spent_P2.tolist()}
        return {**tensors, "sketch": torch.from_numpy(self._sketch_PS)}, {**state, "search": search}

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        self._sketch_PS = tensors["sketch"].numpy().copy()
        found = state["search"]["groups"]
        self._spent_P2 = np.array(state["search"]["spent"], np.int64)
        if found is None:
            self._engine.restore(tensors, state)
        else:
            self._groups = tuple(map(tuple, found))
            self._go_on(self._decided(), tensors, state)
        self.round = self._engine.round

    @cached_property
    def _stepper(self) -> Stepper:
        return self._job.stepper()

    def _engine_under(self, federation: FederationSettings, *, before_search: bool = False) -> VectorEngine:
        """Return the vector engine under this federation's plan; before the search, with examples kept back."""
        world = self._world
        plan = plan_for(federation, world.networks, world.peers, self._method)
        memory = workspace_of(world, plan, self._job.device)

        def partly() -> Workspace:
            workspace = memory()
            share = self._task.clustering.kept_back
            workspace.train, self._back = split_network(workspace.train, share, world.draws, world.peers)
            return workspace

        return VectorEngine(
            self._job,
            plan,
            averaging_of(plan, federation, world.seed),
            partly if before_search else memory,
            [world.drawn],
            weights_P=start_weights(world),
            **self._options,
        )

    def _decided(self) -> FederationSettings:
        assert self._groups is not None, "groups are found"
        peers = self._world.peers
        named = [[peers[member] for member in members] for members in self._groups]
        return self._world.federation.decided(self._task.name, named)

    def _go_on(self, federation: FederationSettings, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Continue from this snapshot under another federation's plan."""
        engine = self._engine_under(federation).__enter__()
        weights = {id: state["weights"].get(id, value.tolist()) for id, value in engine.weights.items()}
        engine.restore(tensors, {**state, "weights": weights})
        self._engine.__exit__(None, None, None)
        self._engine = engine

    def _add_up(self) -> None:
        """Add to the sketches how each peer's trained parameters differ from the average after them."""
        before_Pn = self._engine.trained_Pn
        if before_Pn is not None:
            index_PD = torch.from_numpy(self._task.compared_PD).to(before_Pn.device)
            apart_PD = before_Pn.gather(1, index_PD) - self._engine.x_Pn.gather(1, index_PD)
            self._sketch_PS += self._sketch(apart_PD.cpu().numpy().astype(np.float64))

    def _search(self) -> tuple[tuple[int, ...], ...]:
        """Return the groups, and count what the search sends."""
        everyone, overlay = range(len(self._world.peers)), self._task.overlay
        self._spend(everyone, *map(np.array, self._engine.traffic))
        flood, sketches_PS = flood_along(overlay), normalised_sketches(self._sketch_PS)
        self._spend(everyone, flood.messages_P, flood.bytes_of(sketches_PS[0].nbytes))
        tree = merges(sketches_PS)
        nodes = below(tree)
        losses = [self._trial(members) for members in nodes]
        usual = [losses[peer][peer].mean() for peer in everyone]
        tried = [{peer: missed(loss_M, usual[peer]) for peer, loss_M in each.items()} for each in losses]
        gains = [
            Gain.all(Gain.of(tried[node][peer], tried[merge][peer]) for node in pair for peer in nodes[node])
            for merge, pair in enumerate(tree, len(everyone))
        ]
        self._spend(everyone, flood.messages_P, flood.bytes_of(0))  # a peer floods the gains of all its trials together
        for members in nodes[len(everyone) :]:
            gained_P = flood_along(overlay, members).items_P * GAIN_BYTES
            self._spend(everyone, np.zeros_like(gained_P), gained_P)
        return groups(tree, merges_taken(gains))

    def _trial(self, members: Sequence[int]) -> dict[int, NDArray[np.float64]]:
        """Return each member's losses on its kept-back examples, with the members' average in place of its own slice.

        A single member's parameters are unchanged, and nothing is sent.
        """
        world, x_Pn = self._world, self._engine.x_Pn
        weights_P = start_weights(world)
        weights_M = np.ones(len(members)) if weights_P is None else weights_P[list(members)]
        index_MD = torch.from_numpy(self._task.slice_PD[list(members)]).to(x_Pn.device)
        mean_D = torch.zeros(index_MD.shape[1], dtype=torch.float64)
        for weight, peer, index_D in zip(weights_M / weights_M.sum(), members, index_MD, strict=True):
            mean_D += weight * x_Pn[peer, index_D].cpu()
        found = {}
        for peer, index_D in zip(members, index_MD, strict=True):
            x_n = x_Pn[peer].clone()
            x_n[index_D] = mean_D.to(x_n)
            found[peer] = self._losses(peer, x_n)
        if len(members) == 1:
            return found
        names = [world.peers[peer] for peer in members]
        policy = averaging_among(names, f"{self._task.name} {names[0]}", world.federation.gossip, world.seed)
        messages, amount = zip(*traffic(policy, len(mean_D)), strict=True)
        self._spend(members, np.array(messages), np.array(amount))
        return found

    def _losses(self, peer: int, x_n: Tensor) -> NDArray[np.float64]:
        workspace, view = self._engine.workspace, self._engine.workspace.seen_by([peer])
        assert self._back is not None, "the search has begun"
        examples = workspace.examples(self._back, peer)
        found_M = losses(self._stepper, self._job.criterion, x_n, examples, None if view is None else view.of(0))
        return found_M.cpu().numpy().astype(np.float64)

    def _spend(self, peers: Sequence[int], messages: Indices, amount: Indices) -> None:
        self._spent_P2[list(peers)] += np.stack([messages, amount], axis=1)
