"""DFedAvgM: local steps of SGD with momentum, which starts anew in each round, and then an average with the neighbors.

With x a peer's average, y its model during the local steps, and theta the momentum, each step is

    y+ = y - lr g(y) + theta (y - y-)          from y = y- = x

(y- is the model one step before), which are the steps of `sgd,momentum=theta` from a velocity of 0. One exchange of
push-sum on a graph on which all peers have equally many neighbors is the paper's average by a symmetric matrix.

Source: Sun, Li, Wang, Decentralized Federated Averaging, 2021 (IEEE TPAMI 2023), Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.local_training import FullAveraging


@dataclass(frozen=True)
class DFedAvgM(FullAveraging):
    """The whole network is averaged; local steps are SGD with momentum, which starts from zero in each round."""

    def __post_init__(self) -> None:
        optimizer = self.context.optimizer
        if optimizer.momentum is None:
            raise AlgorithmError(
                f"DFedAvgM takes steps of SGD with momentum, but learning.optimizer is {optimizer.kind} with "
                f"{', '.join(optimizer.settings)}; write sgd,lr=...,momentum=0.9"
            )
        object.__setattr__(self, "context", replace(self.context, optimizer_state="reset"))
