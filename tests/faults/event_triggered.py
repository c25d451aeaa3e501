"""Averaging by drift under faults: whole peers that move at different paces, and sleep where they have not.

Each goes a little further in its own direction with every training, one of them ten times as fast as the others. What
may be apart when faults are over follows from the threshold alone: nobody goes further than `DRIFT` from where its last
averaging left it without calling for the next one, in which all are woken.
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

#: The threshold, and what a training moves, in lengths of what is moved.
DRIFT, FAST, SLOW = 0.05, 0.02, 0.002
#: What five exchanges on a ring leave of a disagreement, and more where the threshold was passed a round late.
LEFT = 0.02


def drifting_world(peers: int = 4, **settings: object) -> World:
    return world(peers, **({"gossip__drift": DRIFT} | settings))


@dataclass(frozen=True, eq=False)
class Wanderer(AddingTrainer):
    """Adds the same step (n,) in each training."""

    step_n: Tensor = field(default_factory=lambda: torch.zeros(0))

    def train(self, round: int, x_n: Tensor, s_k: Tensor, fresh: bool) -> tuple[Tensor, Tensor]:
        return x_n + self.step_n, s_k


class Drifting(PeerCluster):
    """One run.

    Attributes:
        said  by sender, transfers that were said with something in them and with nothing, by whether there was nothing
    """

    def __init__(self, made: World, faults: Faults) -> None:
        super().__init__(made, faults, drift=SLOW)
        self.said: dict[str, Counter[bool]] = {peer: Counter() for peer in made.peers}
        self._repeats: set[tuple[str, str, int]] = set()
        self.simulator.on_effect = self._said

    def _trainer(self, peer: str, adding: AddingTrainer) -> AddingTrainer:
        """All begin together, and go where their draws say."""
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
        """The furthest that two estimates are apart, in lengths of the first."""
        (group,) = self.groups
        estimates = [durable.estimate_D(group) for durable in self.durable_states().values()]
        return max(float((one_D - other_D).norm() / one_D.norm()) for one_D in estimates for other_D in estimates)

    def judge_drift(self, exchanges: int) -> None:
        """After heal: so many exchanges later all are as near as the threshold says, and stay so."""
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
