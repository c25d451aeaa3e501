"""Local training as a function: nothing passed in is changed, and one peer is a block of one."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import Tensor

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.local_training import LocalTraining, TrainingState
from fedpeer.algorithms.losses import LOSSES
from fedpeer.algorithms.optimizers import OptimizerChoice
from fedpeer.algorithms.servers.models import ServerModel
from fedpeer.algorithms.steppers import Way
from fedpeer.algorithms.training_context import TrainingContext
from tests.algorithms.client_factory import CLOSE, batches, distance, in_torch, mlp, starts

MODULE = mlp()
LOSS = LOSSES["cross-entropy"]
MOMENTUM = OptimizerChoice("SGD", {"lr": 0.1, "momentum": 0.9})


def training(way: Way, state: Literal["keep", "reset"] = "keep") -> LocalTraining:
    optimizer = MOMENTUM if way in ("loop", "mapped") else OptimizerChoice("SGD", {"lr": 0.1})
    return LocalTraining(replace(TrainingContext.of(MODULE, LOSS, optimizer, way=way), optimizer_state=state))


def begun(trainer: LocalTraining, x_Bn: Tensor) -> TrainingState:
    return trainer.start_client(x_Bn, torch.tensor(1))


def sizes(way: Way) -> int:
    return 1 if way == "single sample" else 6


WAYS: list[Way] = ["single sample", "stack", "mapped", "loop"]


@pytest.mark.parametrize("way", WAYS)
def test_nothing_passed_in_is_changed(way: Way) -> None:
    trainer, block, x_Bn = training(way), batches(size=sizes(way)), starts(MODULE, 3)
    state = begun(trainer, x_Bn)
    state, change = trainer.train(state, ServerModel(x_Bn), block, (1, 2, 3))
    held = [x_Bn, state.optimizer_k, change.model_n, block.x_NF, block.index, block.y]
    before = [each.clone() for each in held]
    later, again = trainer.train(state, change, block, (1, 2, 3))
    assert not torch.equal(again.model_n, change.model_n)
    assert all(torch.equal(a, b) for a, b in zip(held, before, strict=True))
    assert bool(later.trained.all())


@pytest.mark.parametrize("way", ["single sample", "stack", pytest.param("mapped", marks=pytest.mark.soak), "loop"])
def test_one_peer_is_a_block_of_one(way: Way) -> None:
    trainer, block = training(way), batches(peers=1, size=sizes(way))
    x_1n = starts(MODULE, 1)
    alone, together = begun(trainer, x_1n[0]), begun(trainer, x_1n)
    assert alone.optimizer_k.shape == (trainer.context.stepper.state_size,)
    assert together.optimizer_k.shape == (1, trainer.context.stepper.state_size)
    for _ in range(2):
        alone, one = trainer.train(alone, ServerModel(x_1n[0]), block.peer(0), (1,))
        together, many = trainer.train(together, ServerModel(x_1n), block, (1,))
        assert torch.equal(one.model_n, many.model_n[0])
        assert torch.equal(alone.optimizer_k, together.optimizer_k[0])


def rounds() -> tuple[Batches, Batches]:
    return batches(seed=2), batches(seed=3)


# In `make test`, `test_steppers.py` holds mapped blocks against the loop, over two rounds with kept state.
@pytest.mark.slow
@pytest.mark.parametrize("way", [pytest.param("mapped", marks=pytest.mark.soak), "loop"])
def test_kept_state_is_one_uninterrupted_run_and_reset_state_is_none(way: Way) -> None:
    x_Bn = starts(MODULE, 3)
    ends = {}
    for keeping in ("keep", "reset"):
        trainer = training(way, "keep" if keeping == "keep" else "reset")
        state, change = begun(trainer, x_Bn), None
        for block in rounds():
            state, change = trainer.train(state, change or ServerModel(x_Bn), block, (1, 2, 3))
        assert change is not None
        ends[keeping] = change.model_n
    for p, x_n in enumerate(x_Bn):
        one, two = (block.peer(p) for block in rounds())
        kept = in_torch(MODULE, x_n, [one, two], LOSS, lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9))
        half = in_torch(MODULE, x_n, [one], LOSS, lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9))
        fresh = in_torch(MODULE, half, [two], LOSS, lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9))
        assert distance(ends["keep"][p], kept) < CLOSE
        assert distance(ends["reset"][p], fresh) < CLOSE
        assert distance(kept, fresh) > 1e-3
