"""A peer on its own has the same first weights, two rounds and score as the same peer in the vector engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedpeer.algorithms.local_training import TrainingState
from fedpeer.config.choice import Choice
from fedpeer.data.dataset import Dataset
from fedpeer.learning.holdings import load_dataset
from fedpeer.peer.node.trainer import LocalTrainer
from fedpeer.sims.memory import job_of, workspace_of
from fedpeer.sims.peers import local_tasks
from fedpeer.sims.vector.tasks import EvaluateBlock, TrainBlock, Worker
from fedpeer.sims.vector.workspace import States
from fedpeer.sims.world import World, build_world, plan_of
from tests.sims.worlds import federation, relative, start_of, trainer_of

DIGITS = load_dataset(Choice("digits"))
IMAGES = replace(DIGITS, x=DIGITS.x.reshape(-1, 1, 8, 8), input_kind="image")
NUMBERS = Dataset(
    name="numbers",
    x=np.random.default_rng(0).normal(5, 3, (400, 4)).astype(np.float32),
    y=np.random.default_rng(1).normal(-7, 20, (400, 2)).astype(np.float32),
    task="regression",
    input_kind="features",
)
WORLDS: dict[str, tuple[Dataset, dict[str, Any]]] = {
    "closed gradients": (DIGITS, {}),
    "one example an update": (DIGITS, {"learning__batch_size": 1, "learning__steps_between_averaging": 12}),
    "a pass": (DIGITS, {"learning__steps_between_averaging": "pass", "simulation__split": "dirichlet:0.5"}),
    "momentum": (DIGITS, {"learning__optimizer": "sgd,lr=0.1,momentum=0.9"}),
    "momentum forgotten": (
        DIGITS,
        {"learning__optimizer": "sgd,lr=0.1,momentum=0.9", "learning__optimizer_state": "reset"},
    ),
    "dropout": (DIGITS, {"network": "mlp:64+12+10,dropout=0.3"}),
    "a draw for each": (DIGITS, {"learning__common_start": False}),
    "scales of their own": (
        DIGITS,
        {"simulation__normalise": "standard", "simulation__split": "blocks:40,shuffle=true/pixels"},
    ),
    "squared error": (DIGITS, {"learning__loss": "squared-error"}),
    "convolutions": (IMAGES, {"network": "cnn,channels=2,hidden=6,norm=batch"}),
    "numbers": (
        NUMBERS,
        {"network": "mlp:4+6+2", "simulation__split": "iid", "simulation__normalise": "standard"},
    ),
}


def context(made: World) -> Worker:
    """Return a worker of the vector engine, on plain tensors."""
    job = job_of(made, "cpu")
    stepper = job.stepper()
    workspace = workspace_of(made, plan_of(made, Choice("partial-averaging")), "cpu")()
    x_Pn = start_of(made)
    workspace.x = (x_Pn, torch.zeros_like(x_Pn))
    begun = TrainingState(torch.zeros(len(x_Pn), stepper.state_size), torch.zeros(len(x_Pn), dtype=torch.bool))
    again = TrainingState(torch.zeros_like(begun.optimizer_k), torch.zeros_like(begun.trained))
    workspace.states = (States((begun, again), begun, torch.arange(len(x_Pn))),)
    return Worker(job, workspace, [stepper])


def two_rounds(trainer: LocalTrainer) -> tuple[torch.Tensor, torch.Tensor]:
    x_n, s_k = trainer.train(1, trainer.start(), torch.zeros(trainer.state_size), True)
    return trainer.train(2, x_n, s_k, False)


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLDS)
def test_a_learner_is_a_peer_of_the_vector_engine(name: str) -> None:
    dataset, settings = WORLDS[name]
    made = build_world(federation(**settings), dataset, 0)
    worker, alone = context(made), [trainer_of(made, peer) for peer in made.peers]
    workspace = worker.workspace
    assert torch.equal(torch.stack([trainer.start() for trainer in alone]), workspace.x[0])
    for round in (1, 2):
        for peer in range(len(made.peers)):
            worker.do(TrainBlock((peer,), (round - 1,), round, round - 1))
    x_Pn, s_Pk = (torch.stack(rows) for rows in zip(*map(two_rounds, alone), strict=True))
    assert relative(x_Pn, workspace.x[0]) < 1e-6
    torch.testing.assert_close(s_Pk, worker.states.clients[0].optimizer_k, rtol=1e-5, atol=1e-6)
    wanted = worker.do(EvaluateBlock(tuple(range(len(made.peers))), (0,) * len(made.peers), validation=False)).own
    found = [trainer.evaluate(x_n) for trainer, x_n in zip(alone, workspace.x[0], strict=True)]
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_algorithms_have_the_network_on_the_peers_device() -> None:
    """Its frozen parameters are used there. Torch's device without numbers stands for a GPU."""
    task = local_tasks(build_world(federation(learning__frozen=["*.bias"]), DIGITS, 0), "meta")["peer1"]
    assert {each.device.type for each in task.context().module.parameters()} == {"meta"}


def test_training_changes_nothing_that_was_handed_in() -> None:
    made = build_world(federation(learning__optimizer="sgd,lr=0.1,momentum=0.9"), DIGITS, 0)
    trainer = trainer_of(made, "peer2")
    x_n, s_k = trainer.start(), torch.zeros(trainer.state_size)
    once, again = (trainer.train(1, x_n, s_k, True) for _ in range(2))
    assert torch.equal(x_n, trainer.start())
    assert not s_k.any()
    assert torch.equal(once[0], again[0])
    assert trainer.examples == 40
