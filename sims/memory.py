"""From a world to the tensors of a vector run: examples in peer order, targets as peers see them, first weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedpeer.algorithms.batches import View
from fedpeer.algorithms.draws import guarded
from fedpeer.algorithms.losses import LOSSES
from fedpeer.algorithms.optimizers import OptimizerChoice
from fedpeer.algorithms.start import STARTS
from fedpeer.algorithms.steppers import choose
from fedpeer.data.normalise import NORMALISERS, Normaliser
from fedpeer.networks.registry import NetworkError
from fedpeer.peer.core.choice import Choice, bind, lookup, plain
from fedpeer.sims.vector.workspace import Job, Part, Workspace
from fedpeer.sims.world import World
from fedpeer.slicing.plan import Plan


def job_of(world: World, device: str) -> Job:
    """What a worker must know about this world."""
    learning = world.federation.learning
    counts = [len(share.train_M) for share in world.split.shares]
    batches = [min(learning.batch_size, count) for count in counts]
    if learning.steps_between_averaging == "pass":
        steps = [math.ceil(count / batch) for count, batch in zip(counts, batches, strict=True)]
    else:
        steps = [learning.steps_between_averaging] * len(counts)
    optimizer = optimizer_of(learning.optimizer)
    module = copy.deepcopy(world.module).to(device)
    example = tuple(each.to(device) for each in _example(world))
    _check_step(module, world, min(batches), device)
    way, block = choose(
        module,
        world.layout,
        LOSSES[world.loss],
        optimizer,
        batch_size=max(batches),
        device=device,
        peers=len(counts),
        example=(example[0], example[1]),
    )
    return Job(
        peers=world.peers,
        module=module,
        layout=world.layout,
        loss=world.loss,
        optimizer=optimizer,
        optimizer_state=learning.optimizer_state,
        seed=world.seed,
        batch_P=tuple(batches),
        steps_P=tuple(steps),
        score_scale_P=tuple(float(each.scale_F.reshape(-1)[0]) for each in _targets(world)) if _numbers(world) else (),
        device=device,
        way=way,
        block=block,
    )


def _check_step(module: nn.Module, world: World, batch: int, device: str) -> None:
    """Try one forward pass as in training, with as many examples as a batch has: some layers refuse a batch of one."""
    module = copy.deepcopy(module).train()
    x, _ = _example(world, batch)
    with guarded(0), torch.no_grad():
        try:
            module(x.to(device))
        except (RuntimeError, ValueError, IndexError) as problem:
            raise NetworkError(
                f"the network cannot be trained with learning.batch_size = {batch}: {problem}; "
                "choose another batch size or another network"
            ) from None


def _example(world: World, count: int = 2) -> tuple[Tensor, Tensor]:
    """Real examples (two, or as many as asked for) with their targets, as the first peer sees them."""
    share = world.split.shares[0]
    x = torch.from_numpy(np.ascontiguousarray(world.dataset.x[share.train_M[:count]]))
    y = torch.from_numpy(np.ascontiguousarray(world.split.labels(world.dataset, 0)[:count]))
    return (x if world.dataset.input_kind == "tokens" else x.float()), (y.float() if _numbers(world) else y.long())


def optimizer_of(choice: Choice) -> OptimizerChoice:
    """`sgd,lr=0.1,momentum=0.9` as torch takes it: numbers and truth values, not words."""
    settings = {key: plain(value) for key, value in choice.settings.items()}
    if choice.value is not None:
        settings["lr"] = plain(choice.value)
    return OptimizerChoice.named(choice.name, settings)


def workspace_of(world: World, plan: Plan, device: str) -> Callable[[int], Workspace]:
    """A function that makes the workspace, given the size of a peer's optimiser state."""
    dataset, split = world.dataset, world.split
    tokens = dataset.input_kind == "tokens"
    x_NF = torch.from_numpy(np.ascontiguousarray(dataset.x)).to(torch.int64 if tokens else torch.float32)
    normalisers = _targets(world) if _numbers(world) else None
    train = _part(world, [share.train_M for share in split.shares], False, normalisers)
    test = _part(world, [share.test_M for share in split.shares], True, normalisers)
    index, rows = _columns(world, plan)

    def make(state_size: int) -> Workspace:
        shapes = ((len(world.peers), world.layout.n), (len(world.peers), state_size))
        where = "meta" if device == "cpu" else device
        x, s = ((torch.zeros(shape, device=where), torch.zeros(shape, device=where)) for shape in shapes)
        moved = Workspace(x, s, x_NF, train, test, _view(world), index, rows)
        return moved if device == "cpu" else moved.to(device)

    return make


def start_of(world: World) -> Callable[[Tensor], None]:
    """Fills the initial parameters: one draw for all peers, or one for each."""
    choice = world.federation.learning.start
    assert choice is not None, "filled in by `build`"
    function = lookup(choice, STARTS, "start")
    settings = bind(choice, function)

    def fill(x_Pn: Tensor) -> None:
        if world.federation.learning.common_start:
            x_Pn.copy_(function(world.module, world.layout, world.draws, "", **settings).expand_as(x_Pn))
            return
        for number, peer in enumerate(world.peers):
            x_Pn[number].copy_(function(world.module, world.layout, world.draws, peer, **settings))

    return fill


def sample_weights(world: World) -> NDArray[np.float64] | None:
    """n_i / mean(n), with which each averaging starts under `weights: samples`."""
    if world.federation.learning.weights == "uniform":
        return None
    counts = np.array([len(share.train_M) for share in world.split.shares], np.float64)
    return np.asarray(counts / counts.mean())


def _numbers(world: World) -> bool:
    return world.dataset.task == "regression"


def _rule(world: World) -> str:
    assert world.federation.simulation.normalise is not None, "filled in by `build`"
    return world.federation.simulation.normalise


def _targets(world: World) -> list[Normaliser]:
    """Each peer's scale of regression targets, fitted on its own training examples."""
    fit = NORMALISERS[_rule(world)]
    return [fit(world.split.labels(world.dataset, p).reshape(-1, 1)) for p in range(len(world.peers))]


def _part(world: World, held: list[NDArray[np.int64]], test: bool, targets: list[Normaliser] | None) -> Part:
    labels = []
    for p in range(len(world.peers)):
        y = world.split.labels(world.dataset, p, test=test)
        labels.append(y.astype(np.int64) if targets is None else targets[p].apply(y))
    first = np.cumsum([0, *(len(each) for each in held)])
    return Part(
        torch.from_numpy(np.concatenate(held).astype(np.int64)),
        torch.from_numpy(np.concatenate(labels)),
        tuple(int(each) for each in first),
    )


def _view(world: World) -> View | None:
    """How peers see the inputs, or None if all see them as they are."""
    shares, rule = world.split.shares, _rule(world)
    features = math.prod(world.dataset.input_shape)
    feature_map = shift = scale = None
    if any(share.feature_map_F is not None for share in shares):
        same = np.arange(features)
        feature_map = np.stack([same if s.feature_map_F is None else s.feature_map_F for s in shares])
    if rule != "none" and world.dataset.input_kind != "tokens":
        fitted = [NORMALISERS[rule](world.split.inputs(world.dataset, p)) for p in range(len(shares))]
        shape = world.dataset.input_shape
        shift = np.stack([np.broadcast_to(each.shift_F, shape).reshape(-1) for each in fitted])
        scale = np.stack([np.broadcast_to(each.scale_F, shape).reshape(-1) for each in fitted])
    if feature_map is None and shift is None:
        return None
    return View(
        *(
            None if each is None else torch.from_numpy(np.ascontiguousarray(each))
            for each in (feature_map, shift, scale)
        )
    )


def _columns(world: World, plan: Plan) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """For each group its members' rows and columns, and for what is local: "local 1", ... one entry a kind of peer."""
    index, rows = {}, {}
    number = {peer: place for place, peer in enumerate(plan.peers)}
    for group in plan.groups:
        arrays = [group.indices[peer] for peer in group.members]
        alike = all(each is arrays[0] for each in arrays)
        # Where all members agree the order does not matter here, and ascending is kinder to the cache.
        index[group.id] = torch.from_numpy(np.sort(arrays[0]) if alike else np.stack(arrays))
        rows[group.id] = torch.tensor([number[peer] for peer in group.members])
    kinds: dict[int, list[str]] = {}
    for peer in plan.peers:
        kinds.setdefault(id(plan.local[peer]), []).append(peer)
    for place, members in enumerate(kinds.values(), start=1):
        if len(plan.local[members[0]]):
            index[f"local {place}"] = torch.from_numpy(plan.local[members[0]])
            rows[f"local {place}"] = torch.tensor([number[peer] for peer in members])
    return index, rows
