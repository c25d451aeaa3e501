"""The vector engine for peers that find their groups themselves: one plan before each search, and one after the last.

In the first `clustering.after` rounds a partial model with automatic members belongs to no peer. Then its groups are
found by the rules of `algorithms/assignment.py`, a plan with one partial model per group is compiled, and training
continues from the current parameters. Each such model is searched for by itself, after its own number of rounds. Where
a search needs trials, each peer keeps some of its examples back until the last of these. The messages that a search
would send are counted in the round after which it takes place. A search uses nothing that peers would not send each
other.
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
    groups_by_parts,
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
from fedpeer.learning.groups import averaging_among, gossip_of, plan_for
from fedpeer.sims.engine import Engine, RoundTimes
from fedpeer.sims.memory import start_weights, workspace_of
from fedpeer.sims.vector.clustering_task import ClusteringTask, Indices, kinds, split_network
from fedpeer.sims.vector.engine import VectorEngine
from fedpeer.sims.vector.workspace import Job, Workspace, WorkspacePart
from fedpeer.sims.world import World

#: Called after each round with searches, with the federation that contains the groups found so far.
_Found = Callable[[FederationSettings], None]


#: Groups that were found for a model, as indices of peers.
_Groups = tuple[tuple[int, ...], ...]


class _Comparison:
    """The comparison of the peers for one task, with the inputs of their sketches.

    Attributes:
        summed_PS    sum of the sketches so far, where peers are compared by updates
        start_PD     the compared parameters before the first training
    """

    def __init__(self, task: ClusteringTask, peers: int, draws: np.random.Generator) -> None:
        self.task, self.sketch = task, CountSketch.drawn(task.compared, task.clustering.sketch, draws)
        self.summed_PS = np.zeros((peers, self.sketch.size))
        self.start_PD = torch.zeros(task.compared_PD.shape)

    def compared(self, x_Pn: Tensor) -> Tensor:
        """Return the parameters (P, D) by which peers are compared."""
        return x_Pn.gather(1, torch.from_numpy(self.task.compared_PD).to(x_Pn.device))

    def add(self, trained_Pn: Tensor, x_Pn: Tensor) -> None:
        """Add how each peer's trained parameters differ from the average after them."""
        if self.task.side_2D is None:
            apart_PD = self.compared(trained_Pn) - self.compared(x_Pn)
            self.summed_PS += self.sketch(apart_PD.cpu().numpy().astype(np.float64))

    def sketches(self, x_Pn: Tensor) -> NDArray[np.float16]:
        """Return the sketches that the peers send, (P, S), or (P, K, S) in parts if they are not of updates."""
        if self.task.side_2D is None:
            return normalised_sketches(self.summed_PS)
        change_PD = (self.compared(x_Pn).cpu().double() - self.start_PD.cpu().double()).numpy()
        part_PKS = np.stack([self.sketch(self.task.moments_of(change_D)) for change_D in change_PD])
        return normalised_sketches(part_PKS.reshape(len(part_PKS), -1)).reshape(part_PKS.shape)


class ClusteringEngine(Engine):
    """An engine for peers that search for the groups with which they share partial models."""

    def __init__(
        self,
        job: Job,
        world: World,
        method: Choice,
        tasks: Sequence[ClusteringTask],
        found: _Found = lambda federation: None,
        **options: Any,
    ) -> None:
        """
        Args:
            tasks: what to find; all that need trials keep back the same share of the examples.
            found: called after each round with searches, with the federation that contains the groups found so far.
            options: further arguments of the vector engine: workers, folder, replaced, stop.
        """
        self._job, self._world, self._method = replace(job, algorithm=method), world, method
        self._found, self._options = found, options
        self._comparisons = [_Comparison(task, len(world.peers), world.draws.numpy("sketch")) for task in tasks]
        self._groups: dict[str, _Groups] = {}  # by partial model, of those that were searched for
        self._spent_P2 = np.zeros((len(world.peers), 2), np.int64)  # messages and bytes in the round of the last search
        self._back: WorkspacePart | None = None

    def __enter__(self) -> Self:
        self._engine = self._engine_under(self._world.federation).__enter__()
        for each in self._comparisons:
            each.start_PD = each.compared(self._engine.x_Pn)
        return self

    def __exit__(self, *raised: object) -> None:
        self._engine.__exit__(*raised)

    def step(self) -> RoundTimes:
        times = self._engine.step()
        self._add_up()
        if due := [each for each in self._left() if each.task.clustering.after == self._engine.round]:
            began = time.perf_counter()
            self._spent_P2[:] = np.array(self._engine.traffic).T
            self._groups |= {each.task.name: self._search(each) for each in due}
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
        if self.round not in [task.clustering.after for task in self._tasks]:
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
        peers see their data in the same way. If several models were searched for, each name ends with the model's.
        """
        found: dict[str, list[float]] = {}
        for task in self._tasks:
            if task.name not in self._groups:
                continue
            which = f" {task.name}" if len(self._tasks) > 1 else ""
            group_P = np.zeros(len(self._world.peers), np.int64)
            for number, members in enumerate(self._groups[task.name], 1):
                group_P[list(members)] = number
            found[f"group{which}"] = group_P.astype(float).tolist()
            hidden_P = kinds(self._world, task.clustering.by)
            if len(set(hidden_P)) > 1:
                from sklearn.metrics import adjusted_rand_score  # late: a second

                alone_P = np.where(group_P > 0, group_P, -1 - np.arange(len(group_P)))
                found[f"recovered{which}"] = [float(adjusted_rand_score(hidden_P, alone_P))] * len(group_P)
        return found

    def disagreement(self) -> dict[str, float]:
        return self._engine.disagreement()

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, state = self._engine.snapshot()
        search = {"found": dict(self._groups), "spent": self._spent_P2.tolist()}
        summed = {f"sketch {each.task.name}": torch.from_numpy(each.summed_PS) for each in self._comparisons}
        return {**tensors, **summed}, {**state, "search": search}

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        search, first = state["search"], self._tasks[0]
        if "groups" in search:  # of a release that searched for one model alone
            tensors = {**tensors, f"sketch {first.name}": tensors["sketch"]}
            search = {**search, "found": None if search["groups"] is None else {first.name: search["groups"]}}
        for each in self._comparisons:
            each.summed_PS = tensors[f"sketch {each.task.name}"].numpy().copy()
        self._spent_P2 = np.array(search["spent"], np.int64)
        self._groups = {name: tuple(map(tuple, found)) for name, found in (search["found"] or {}).items()}
        if self._groups:
            self._go_on(self._decided(), tensors, state)
        else:
            self._engine.restore(tensors, state)
        self.round = self._engine.round

    @property
    def _tasks(self) -> list[ClusteringTask]:
        return [each.task for each in self._comparisons]

    def _left(self) -> list[_Comparison]:
        """Return the comparisons of the models that have not been searched for."""
        return [each for each in self._comparisons if each.task.name not in self._groups]

    @cached_property
    def _stepper(self) -> Stepper:
        return self._job.stepper()

    def _engine_under(self, federation: FederationSettings) -> VectorEngine:
        """Return the vector engine under this federation's plan, with examples kept back if a search has trials."""
        world = self._world
        plan = plan_for(federation, world.networks, world.peers, self._method)
        memory = workspace_of(world, plan, self._job.device)

        tried = [each.task.clustering.kept_back for each in self._left() if each.task.side_2D is None]

        def partly() -> Workspace:
            workspace = memory()
            workspace.train, self._back = split_network(workspace.train, tried[0], world.draws, world.peers)
            return workspace

        # Too few members for the model's own graph are a mistake only where the user lists them (`averaging_of`).
        averaging = {
            group.id: averaging_among(group.members, group.id, gossip_of(plan, federation, group.id), world.seed)
            for group in plan.groups
        }
        return VectorEngine(
            self._job,
            plan,
            averaging,
            partly if tried else memory,
            [world.drawn],
            weights_P=start_weights(world),
            **self._options,
        )

    def _decided(self) -> FederationSettings:
        federation, peers = self._world.federation, self._world.peers
        for name, found in self._groups.items():
            federation = federation.decided(name, [[peers[member] for member in members] for members in found])
        return federation

    def _go_on(self, federation: FederationSettings, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Continue from this snapshot under another federation's plan."""
        engine = self._engine_under(federation).__enter__()
        weights = {id: state["weights"].get(id, value.tolist()) for id, value in engine.weights.items()}
        engine.restore(tensors, {**state, "weights": weights})
        self._engine.__exit__(None, None, None)
        self._engine = engine

    def _add_up(self) -> None:
        """Add to the sketches how each peer's trained parameters differ from the average after them."""
        if (trained_Pn := self._engine.trained_Pn) is not None:
            for each in self._left():
                each.add(trained_Pn, self._engine.x_Pn)

    def _search(self, comparison: _Comparison) -> _Groups:
        """Return the groups for a task, and count the messages of the search."""
        task, everyone = comparison.task, range(len(self._world.peers))
        overlay, sketches = task.overlay, comparison.sketches(self._engine.x_Pn)
        flood = flood_along(overlay)
        self._spend(everyone, flood.messages_P, flood.bytes_of(sketches[0].nbytes))
        if task.side_2D is not None:
            draws = self._world.draws.numpy("shuffles", task.name)
            return groups_by_parts(sketches, draws, task.clustering.groups)
        tree = merges(sketches)
        nodes = below(tree)
        losses = [self._trial(task, members) for members in nodes]
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

    def _trial(self, task: ClusteringTask, members: Sequence[int]) -> dict[int, NDArray[np.float64]]:
        """Return each member's losses on its kept-back examples, with the members' average in place of its own slice.

        A single member's parameters are unchanged, and nothing is sent.
        """
        world, x_Pn = self._world, self._engine.x_Pn
        weights_P = start_weights(world)
        weights_M = np.ones(len(members)) if weights_P is None else weights_P[list(members)]
        index_MD = torch.from_numpy(task.slice_PD[list(members)]).to(x_Pn.device)
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
        policy = averaging_among(names, f"{task.name} {names[0]}", world.federation.gossip, world.seed)
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
