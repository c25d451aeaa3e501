"""Averaging triggered by drift, under faults: whole peers that move at different paces, and sleep when they have not.

Each peer moves a little further in its own direction with every training, one of them ten times as fast as the others.
The distance that may remain after the faults follows from the threshold alone: no peer moves further than `DRIFT` from
the result of its last averaging without calling for the next one, which wakes all peers.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedpeer.algorithms.draws import Draws
from fedpeer.peer.state.events import Effect, Send
from fedpeer.peer.wire.messages import Transfer
from fedpeer.sims.network.faults import Faults
from fedpeer.sims.world import World
from tests.faults.peer_cluster import AddingTrainer, PeerCluster, world

#: The threshold, and the distance that a training moves, as fractions of the length of the moved vector.
DRIFT, FAST, SLOW = 0.05, 0.02, 0.002
#: Disagreement that five exchanges on a ring leave, and more where the threshold was passed a round late.
LEFT = 0.02


def drifting_world(peers: int = 4, **settings: object) -> World:
    return world(peers, **({"gossip__drift": DRIFT} | settings))


@dataclass(frozen=True, eq=False)
class Wanderer(AddingTrainer):
    """A trainer that adds the same step (n,) in each training."""

    step_n: Tensor = field(default_factory=lambda: torch.zeros(0))

    def train(self, round: int, x_n: Tensor, s_k: Tensor, fresh: bool) -> tuple[Tensor, Tensor]:
        return x_n + self.step_n, s_k


class Drifting(PeerCluster):
    """One run of peers that average by drift.

    Attributes:
        said  by sender, the number of transfers that were sent, by whether they were empty
    """

    def __init__(self, made: World, faults: Faults) -> None:
        super().__init__(made, faults, drift=SLOW)
        self.said: dict[str, Counter[bool]] = {peer: Counter() for peer in made.peers}
        self._repeats: set[tuple[str, str, int]] = set()
        self.simulator.on_effect = self._said

    def _trainer(self, peer: str, adding: AddingTrainer) -> AddingTrainer:
        """Return a trainer that begins where all begin, and moves in a drawn direction."""
        draws = Draws(self.seed)
        start_n = torch.from_numpy(draws.numpy("together").uniform(0.5, 1.5, len(adding.start_n))).float()
        way_n = torch.from_numpy(draws.numpy("way", peer).normal(size=len(start_n))).float()
        far = (FAST if peer == "peer1" else SLOW) * float(start_n.norm() / way_n.norm())
        return Wanderer(start_n, step_n=far * way_n)

    def _said(self, peer: str, effect: Effect) -> None:
        match effect:
            case Send(to=to, message=Transfer(share=share)) if (peer, to, share.seq) not in self._repeats:
                self._repeats.add((peer, to, share.seq))
                self.said[peer][share.nothing] += 1

    def apart(self) -> float:
        """Return the largest distance between two estimates, in lengths of the first."""
        (group,) = self.groups
        estimates = [durable.estimate_D(group) for durable in self.durable_states().values()]
        return max(float((one_D - other_D).norm() / one_D.norm()) for one_D in estimates for other_D in estimates)

    def judge_drift(self, exchanges: int) -> None:
        """Check that, so many exchanges after the faults, all are as near as the threshold allows, and stay so."""
        self.healed()
        self.exchange(exchanges)
        for _ in range(4):
            far = self.apart()
            assert far <= 2 * DRIFT + 2 * FAST + LEFT, f"{far} apart after exchange {self.exchanged()}"
            self.exchange(7)
        self.judge()
        for peer, counts in self.said.items():
            assert counts[True] > 0, f"{peer} never slept"
            assert counts[False] > 0, f"{peer} never gave"
