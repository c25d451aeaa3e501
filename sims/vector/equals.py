"""What a worker does for equals that keep a state of their own: train some peers, score some peers.

The parameters in x are the peers' estimates, which are averaged as ever. States are leaves in the workspace on two
sides, kept and read as those of a server's clients are (`clients.py`); since all peers train in each round, the
present ones lie on the same side for all, that of the optimiser state of other algorithms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedpeer.algorithms.leaves import leaves, rebuilt
from fedpeer.algorithms.probing import small
from fedpeer.algorithms.servers.models import Model
from fedpeer.algorithms.steppers import Stepper
from fedpeer.algorithms.workbench import Workbench
from fedpeer.config.building import AnyAlgorithm, algorithm_of
from fedpeer.config.choice import Choice
from fedpeer.config.federation import LearningSettings
from fedpeer.config.methods import method_of
from fedpeer.data.own.code import imported
from fedpeer.sims.vector.clients import Examined, rows_of, scores, work_of, workbench, write_rows
from fedpeer.sims.vector.workspace import Job, Keeping, Workspace
from fedpeer.slicing.plan import Plan


@dataclass(frozen=True)
class Advance:
    """A round's training of these peers: side `x_source` of x and side `s_source` of states -> the other sides."""

    peers: tuple[int, ...]
    round: int
    x_source: int
    s_source: int


@dataclass(frozen=True)
class Appraise:
    """Score these peers' own models and their estimates on their test parts, or on what was kept back."""

    peers: tuple[int, ...]
    x_source: int
    s_source: int
    validation: bool


def keeping_of(choice: Choice, learning: LearningSettings) -> Keeping | None:
    """What a worker must know of an algorithm of equals; None: of local training."""
    if method_of(choice).own_weights:
        return Keeping(choice, learning, None)
    return None


def equals_of(keeping: Keeping, bench: Workbench) -> AnyAlgorithm:
    """The algorithm, on a bench."""
    return algorithm_of(keeping.algorithm, keeping.learning, bench, imported)


def rehearsed(job: Job, keeping: Keeping, plan: Plan, workspace: Workspace, start_n: Tensor, stepper: Stepper) -> Any:
    """The state that a peer begins with. One is trained a little, so that whatever does not fit shows before anything
    else is begun.

    Raises:
        ChoiceError, AlgorithmError: what does not fit, and what to change.
    """
    algorithm = equals_of(keeping, workbench(job, stepper, workspace))
    batches, keys = work_of(job, workspace, [0], 1)
    state = algorithm.start_client(start_n, torch.tensor(workspace.train.count(0)))
    trained, _ = algorithm.train(state, algorithm.start_averaged(start_n), small(batches.peer(0)), keys)
    for group in plan.groups:
        algorithm.weights(trained, group.indices[group.members[0]])
    return state


def states(workspace: Workspace, template: Any, side: int) -> Any:
    """The states (P, ...) of all peers on one side; not copied."""
    return rebuilt(template, {name: workspace.leaves[f"client {side} {name}"] for name in leaves(template)})


def advance(job: Job, workspace: Workspace, algorithm: AnyAlgorithm, task: Advance) -> None:
    """Train a block, and write estimates and states."""
    batches, keys = work_of(job, workspace, task.peers, task.round)
    estimate_Bn = workspace.x[task.x_source][list(task.peers)]
    client = _block(job, workspace, task.peers, task.s_source)
    state, sent = algorithm.train(client, Model(estimate_Bn), batches, keys)
    workspace.x[1 - task.x_source][list(task.peers)] = sent.model_n
    write_rows(workspace, state, task.peers, [1 - task.s_source] * len(task.peers))


def appraise(job: Job, workspace: Workspace, stepper: Stepper, algorithm: AnyAlgorithm, task: Appraise) -> Examined:
    """Score a block."""
    state = _block(job, workspace, task.peers, task.s_source)
    estimate_Bn = workspace.x[task.x_source][list(task.peers)]
    own_Bn = algorithm.personal_model(state)
    estimated = scores(job, workspace, stepper, task.peers, estimate_Bn, validation=task.validation)
    return Examined(
        own=estimated
        if own_Bn is None
        else scores(job, workspace, stepper, task.peers, own_Bn, validation=task.validation),
        server=estimated,
        statistics={name: each.tolist() for name, each in algorithm.statistics(state, Model(estimate_Bn)).items()},
    )


def _block(job: Job, workspace: Workspace, peers: Sequence[int], side: int) -> Any:
    assert job.keeping is not None, "there are states to be read"
    return rows_of(workspace, job.keeping.state, peers, [side] * len(peers))
