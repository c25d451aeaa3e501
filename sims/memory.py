"""Conversion of a world into the job and tensors of a vector run: examples in peer order, targets as peers see them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpeer.algorithms.batches import BatchView
from fedpeer.algorithms.steppers import choose
from fedpeer.config.choice import Choice
from fedpeer.data.held import PeerExamples
from fedpeer.learning.assembly import Assembly
from fedpeer.learning.class_weights import class_weight_of
from fedpeer.learning.groups import averaging_of
from fedpeer.learning.holdings import inputs_of
from fedpeer.learning.local_task import batch_view, budget, check_step
from fedpeer.learning.outer import outer_rules
from fedpeer.sims.vector.engine import VectorEngine
from fedpeer.sims.vector.workspace import LOCAL_COLUMNS, Job, JobNetwork, Workspace, WorkspacePart
from fedpeer.sims.world import World, plan_of
from fedpeer.slicing.flat import trainable_copy
from fedpeer.slicing.plan import Plan


def engine_of(
    world: World, method: Choice, *, job: Job | None = None, device: str = "cpu", **options: Any
) -> VectorEngine:
    """Return the vector engine of one method in this world.

    Args:
        job: an earlier result of `job_of`; None: made here.
        options: further arguments of the engine: workers, folder, replaced, refused, stop, open_executor.
    """
    plan = plan_of(world, method)
    return VectorEngine(
        method_job(job_of(world, device) if job is None else job, world, method, plan),
        plan,
        averaging_of(plan, world.federation, world.seed),
        workspace_of(world, plan, device if job is None else job.device),
        [each.drawn for each in world.assemblies],
        weights_P=start_weights(world),
        **options,
    )


def method_job(job: Job, world: World, method: Choice, plan: Plan) -> Job:
    """Return the world's job for one method; what peers keep for outer steps is a part of their states."""
    return replace(job, algorithm=method, outer=outer_rules(plan, world.federation))


def job_of(world: World, device: str) -> Job:
    """Return the job for workers in this world, with the federation's algorithm."""
    learning = world.federation.learning
    holdings = list(world.holdings().values())
    batches, steps = zip(*(budget(learning, len(held.train_M)) for held in holdings), strict=True)
    smallest, two = (_example(world, holdings[0], count) for count in (min(batches), 2))

    def network_of(assembly: Assembly) -> JobNetwork:
        module = trainable_copy(assembly.module, device)
        check_step(module, smallest[0].to(device))
        way, block = choose(
            module,
            assembly.layout,
            assembly.criterion,
            assembly.optimizer,
            batch_size=max(batches),
            device=device,
            peers=len(holdings),
            example=(two[0].to(device), two[1].to(device)),
        )
        return JobNetwork(module, assembly.layout, way, block)

    kinds = {id(each): number for number, each in enumerate(world.assemblies)}
    return Job(
        peers=world.peers,
        networks=tuple(map(network_of, world.assemblies)),
        network_P=tuple(kinds[id(world.assembly_of(peer))] for peer in world.peers),
        criterion=world.criterion,
        optimizer=world.optimizer,
        seed=world.seed,
        batch_P=batches,
        steps_P=steps,
        score_scale_P=tuple(held.score_scale for held in holdings),
        device=device,
        algorithm=learning.algorithm,
        learning=learning,
    )


def _example(world: World, held: PeerExamples, count: int) -> tuple[Tensor, Tensor]:
    """Return the inputs of the peer's first training examples, as stored, and their targets, as the peer sees them."""
    x = torch.from_numpy(np.ascontiguousarray(world.dataset.x[held.train_M[:count]]))
    return x.to(world.shape.dtype), torch.from_numpy(held.train_y[:count])


def workspace_of(world: World, plan: Plan, device: str) -> Callable[[], Workspace]:
    """Return a function that makes the workspace; on a CPU, without memory for the learned tensors."""
    holdings = list(world.holdings().values())
    train = _part([held.train_M for held in holdings], [held.train_y for held in holdings])
    test = _part([held.test_M for held in holdings], [held.test_y for held in holdings])
    valid = _part([held.valid_M for held in holdings], [held.valid_y for held in holdings])
    view = _stacked([batch_view(held, world.shape) for held in holdings])
    x_NF = inputs_of(world.dataset)
    index, rows = _columns(plan)
    weight_PC = _class_weights(world, holdings)

    def make() -> Workspace:
        longest = max(each.layout.n for each in world.assemblies)
        shape, where = (len(world.peers), plan.vectors * longest), "meta" if device == "cpu" else device
        x = torch.zeros(shape, device=where), torch.zeros(shape, device=where)
        moved = Workspace(x, x_NF, train, test, valid, view, index, rows, weight_PC)
        return moved if device == "cpu" else moved.to(device)

    return make


def start_weights(world: World) -> NDArray[np.float64] | None:
    """Return the weights with which each averaging starts, (P,); None: they are carried over.

    They are n_i / mean(n) under `weights: samples`, 1 under `restart`.
    """
    weights = world.federation.learning.weights
    if weights != "samples":
        return None if weights == "uniform" else np.ones(len(world.peers))
    counts = np.array([len(share.train_M) for share in world.split.shares], np.float64)
    return np.asarray(counts / counts.mean())


def _part(index: Sequence[NDArray[np.int64]], targets: Sequence[NDArray[np.generic]]) -> WorkspacePart:
    first = np.cumsum([0, *(len(each) for each in index)])
    return WorkspacePart(
        torch.from_numpy(np.concatenate(index).astype(np.int64)),
        torch.from_numpy(np.concatenate(targets)),
        tuple(int(each) for each in first),
    )


def _class_weights(world: World, holdings: Sequence[PeerExamples]) -> Tensor | None:
    """Return the weight of each class in each peer's loss, (P, C); None if there are none."""
    learning = world.federation.learning
    weights = [class_weight_of(learning, world.criterion, world.dataset.classes, held.train_y) for held in holdings]
    found = [each for each in weights if each is not None]
    return torch.stack(found) if found else None


def _stacked(views: Sequence[BatchView | None]) -> BatchView | None:
    """Stack the peers' views of the inputs; None if all see them unchanged. Either all peers have a scale or none."""
    if not any(views):
        return None
    filled = [BatchView() if view is None else view for view in views]
    maps = [view.feature_map_F for view in filled]
    size = next((len(each) for each in maps if each is not None), None)
    return BatchView(
        None if size is None else torch.stack([torch.arange(size) if each is None else each for each in maps]),
        *(
            None if filled[0].scale_F is None else torch.stack([getattr(view, name) for view in filled])
            for name in ("shift_F", "scale_F")
        ),
    )


def _columns(plan: Plan) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the members' columns and rows by group.

    Local parameters are the entries `LOCAL_COLUMNS` and 1, 2, ..., one for each kind of peer.
    """
    index, rows = {}, {}
    number = {peer: place for place, peer in enumerate(plan.peers)}
    for group in plan.groups:
        arrays = [group.indices[peer] for peer in group.members]
        same = all(each is arrays[0] for each in arrays)
        # If all members have the same indices, their order does not matter here, and ascending suits the cache.
        index[group.id] = torch.from_numpy(np.sort(arrays[0]) if same else np.stack(arrays))
        rows[group.id] = torch.tensor([number[peer] for peer in group.members])
    kinds: dict[int, list[str]] = {}
    for peer in plan.peers:
        kinds.setdefault(id(plan.local[peer]), []).append(peer)
    for place, members in enumerate(kinds.values(), start=1):
        if len(plan.local[members[0]]):
            index[f"{LOCAL_COLUMNS}{place}"] = torch.from_numpy(plan.local[members[0]])
            rows[f"{LOCAL_COLUMNS}{place}"] = torch.tensor([number[peer] for peer in members])
    return index, rows
