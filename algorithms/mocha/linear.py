"""A client's examples as a task of MOCHA: a network of one linear layer with one output, and signs for classes.

The network's weights in their flat order are the task's w_t (F,): its bias, if it has one, is the weight of a feature
that is always 1, and is regularised like the others. The authors' program has no bias (`linear:bias=false`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.mocha.dual import DualTask
from fedpeer.algorithms.training_context import TrainingContext


def check_linear(context: TrainingContext, name: str, *, squared: bool) -> None:
    """Check that the context's network and loss suit a task.

    Args:
        name: the algorithm, for the message.
        squared: whether the local loss takes any numbers as labels.

    Raises:
        AlgorithmError: they do not; the message says what to write.
    """
    layers = [
        each for each in context.module.modules() if not list(each.children()) and not isinstance(each, nn.Flatten)
    ]
    if len(layers) != 1 or not isinstance(layers[0], nn.Linear) or layers[0].out_features != 1:
        raise AlgorithmError(
            f"{name} learns linear models with one output; write network: linear, and for two classes loss: binary"
        )
    if not context.loss.classifies and not squared:
        raise AlgorithmError(f"{name}: this loss is for two classes; for numbers write loss=squared")


def task_of(context: TrainingContext, batches: Batches, *, averaged: bool) -> DualTask:
    """Return all examples of one client as a task, in float64 on the CPU, which the local solver is compiled for."""
    x, y = batches.everything()
    x_SF, y_S = (each.reshape(len(y), -1).to("cpu", torch.float64) for each in (x, y))
    if context.layout.n > x_SF.shape[1]:
        x_SF = torch.cat([x_SF, torch.ones(len(x_SF), 1, dtype=torch.float64)], dim=1)
    y_S = y_S.reshape(-1)
    labels_S = 2 * y_S - 1 if context.loss.classifies else y_S
    return DualTask.averaged(x_SF, labels_S) if averaged else DualTask.summed(x_SF, labels_S)


def number_of(batches: Batches) -> Tensor:
    """Return the clients' numbers, () or (B,), which are also the numbers of their tasks."""
    assert batches.number is not None, "a task has its client's number"
    return batches.number
