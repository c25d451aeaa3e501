"""Base class of the engines of whole peers, which read the peers' reports and train nothing themselves."""

from __future__ import annotations

import threading
from abc import ABC
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedpeer.config.choice import Choice
from fedpeer.config.methods import method_of
from fedpeer.sims.engine import Engine
from fedpeer.sims.world import World, plan_of

#: Deadlines of an exchange within which some peer makes progress, whatever happens to others: a peer waits for at most
#: one deadline in each exchange, and starts again after a crash.
DEADLINES_MAX = 3


class PeersEngine(Engine, ABC):
    """An engine whose peers are whole: simulated nodes or real processes."""

    def __init__(self, world: World, method: Choice, stop: threading.Event | None = None) -> None:
        self._world, self._plan = world, plan_of(world, method)
        self._stop = stop or threading.Event()
        self._unit = _weight_unit(world, method)
        self._weights = {group.id: np.ones(len(group.members)) for group in self._plan.groups}
        self._traffic = ([0] * len(world.peers), [0] * len(world.peers))

    @property
    def weights(self) -> dict[str, NDArray[np.float64]]:
        return self._weights

    @property
    def traffic(self) -> tuple[list[int], list[int]]:
        return self._traffic

    def _report(self, weight: Callable[[str, str], float], traffic: tuple[list[int], list[int]]) -> None:
        """Take over a round's weights, asked by (peer, group), and its traffic."""
        for group in self._plan.groups:
            weights = [weight(peer, group.id) for peer in group.members]
            self._weights[group.id] = np.array(weights) / self._unit(weights)
        self._traffic = traffic


def stacked(models: Sequence[Tensor]) -> Tensor:
    """Stack models (n,) as rows; shorter ones, of smaller networks, end with zeros."""
    return pad_sequence(list(models), batch_first=True)


def _weight_unit(world: World, method: Choice) -> Callable[[Sequence[float]], float]:
    """Return a function from the weights that a group's members report to the unit of these weights.

    With this unit runs can be compared with each other:

    - Under `weights: samples` peers report weights in examples, and the unit is their mean over all peers.
    - If an algorithm has weights of its own, the unit is their mean over the group's members.
    - Otherwise it is 1.
    """
    if method_of(method).own_weights:
        return lambda weights: float(np.mean(weights))
    if world.federation.learning.weights != "samples":
        return lambda weights: 1.0
    examples = float(np.mean([len(share.train_M) for share in world.split.shares]))
    return lambda weights: examples
