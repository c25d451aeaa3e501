"""Peers whose own states hold the weight with which they begin each averaging: pFedVEM by gossip under faults.

Each peer puts the same value into every averaging, with a weight that is drawn once, at its first training, and is then
kept in its state only. So all estimates converge to one weighted mean, in closed form; with a peer that forgot its
weight, or confused it with that of another group, they would converge to another mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fedpeer.algorithms.draws import Draws
from fedpeer.peer.state.entries import LocalTrained
from fedpeer.peer.state.events import Effect, Evaluate, Persist
from fedpeer.sims.network.faults import Faults
from fedpeer.sims.world import World
from tests.faults.peer_cluster import HULL_SLACK, AddingTrainer, PeerCluster
from tests.reference import audit, judges

METHOD = "pfedvem-gossip"
#: The model with which a peer predicts, less the value that it puts in: the peers' own models are not the estimates.
APART = 5.0
#: Factor by which training takes longer than in other clusters, for fewer rounds in the same time.
PACE = 4.0


@dataclass(frozen=True, eq=False)
class Trusted(AddingTrainer):
    """A trainer whose state is a weight, drawn when there is none, and the number of its trainings."""

    draws: np.random.Generator = field(default_factory=np.random.default_rng)

    def train(self, round: int, x_n: Tensor, s_k: Tensor, fresh: bool) -> tuple[Tensor, Tensor]:
        weight, times = (self.draws.uniform(0.2, 20.0), 0.0) if fresh else _state(s_k)
        return self.start_n, torch.tensor([weight, times + 1], dtype=torch.float64).view(torch.uint8)

    def weight(self, state_k: Tensor, place_D: Tensor) -> float | None:
        """Return the weight in the group of these places, a different one for each group."""
        return weight_of(_state(state_k)[0], place_D)

    def models(self, x_n: Tensor, state_k: Tensor, fresh: bool) -> tuple[Tensor, Tensor | None]:
        return x_n if fresh else self.start_n + APART, x_n


def _state(s_k: Tensor) -> tuple[float, float]:
    weight, times = s_k.view(torch.float64).tolist()
    return weight, times


def weight_of(drawn: float, place_D: Tensor) -> float:
    """Return the weight in the group of these places."""
    return drawn if int(place_D[0]) == 0 else 30.0 / drawn


class Trust(PeerCluster):
    """One run of such peers.

    Attributes:
        estimated  by (peer, round), the estimate (n,) with which it was evaluated after that round
    """

    def __init__(self, made: World, faults: Faults) -> None:
        super().__init__(made, faults, fact=_fact, method=METHOD, pace=dict.fromkeys(made.peers, PACE))
        self._drifts = True  # what is put in changes with each training
        trainers = self.node_factory.trainers
        for peer, setup in self.node_factory.setups.items():
            trusted = trainers[peer]
            assert isinstance(trusted, Trusted)
            self.node_factory.setups[peer] = replace(setup, reader=trusted)
        self.estimated: dict[tuple[str, int], Tensor] = {}
        self.simulator.on_effect = self._said

    def _trainer(self, peer: str, adding: AddingTrainer) -> AddingTrainer:
        return Trusted(adding.start_n, draws=Draws(self.seed).numpy("weight", peer))

    def _said(self, peer: str, effect: Effect) -> None:
        if isinstance(effect, Evaluate):
            assert effect.server_n is not None
            self.estimated[peer, effect.round] = effect.server_n
            own_n = self.start[peer] + APART
            assert torch.equal(effect.x_n, own_n), f"{peer} is not evaluated with its own model"

    def weighted(self) -> Tensor:
        """Return the mean (n,) of all values put in, weighted by the weight that each peer drew first."""
        drawn = {peer: Draws(self.seed).numpy("weight", peer).uniform(0.2, 20.0) for peer in self.made.peers}
        mean_n = torch.empty(len(next(iter(self.start.values()))), dtype=torch.float64)
        for group in self.groups:
            place_D = self._places(self.made.peers[0], group)
            weight_P = torch.tensor([weight_of(drawn[peer], place_D) for peer in self.made.peers]).double()
            value_PD = torch.stack([self.start[peer][place_D].double() for peer in self.made.peers])
            mean_n[place_D] = weight_P @ value_PD / weight_P.sum()
        return mean_n

    def trained_in_turn(self) -> list[str]:
        """Return the trainings that did not continue from the state after the previous training."""
        wrong, last = [], dict.fromkeys(self.made.peers, 0)
        for tick, peer, (kind, *fact) in judges.durable(self.simulator.rows):
            if kind == "learnt":
                if fact != [last[peer] + 1]:
                    wrong.append(f"tick {tick}: {peer} has trained {fact[0]} times after {last[peer]}")
                last[peer] = fact[0]
        return wrong


def _fact(peer: str, effect: Effect) -> object:
    if isinstance(effect, Persist) and isinstance(effect.content, LocalTrained):
        return "learnt", int(_state(effect.content.s_k)[1])
    return audit.took(peer, effect)


#: Rounds after the faults until peers are in step again; by then shares of earlier averagings have arrived and been
#: added.
STRAGGLING = 8


def judge(cluster: Trust, rounds: int = 2) -> None:
    """Check that soon after the faults all estimates are the weighted mean at the end of every round."""
    cluster.healed()
    first = max(node.durable.round for node in cluster.nodes().values()) + 1
    after = range(first, first + STRAGGLING + rounds)
    wanted = {(peer, round) for peer in cluster.made.peers for round in after[-rounds:]}
    assert cluster.run(cluster.simulator.now + 3000.0, lambda: wanted <= cluster.estimated.keys()), cluster.phases()
    cluster.judge(also=cluster.trained_in_turn())
    truth_n = cluster.weighted()
    plain_n = torch.stack(list(cluster.start.values())).double().mean(0)
    assert float((truth_n - plain_n).abs().max()) > 1e-2, "the weights matter"
    far = {
        at: error
        for at, value_n in cluster.estimated.items()
        if at[1] in after and (error := float((value_n - truth_n).abs().max())) > HULL_SLACK
    }
    late = {at: error for at, error in far.items() if at[1] >= first + STRAGGLING}
    assert not late, f"{late} from the weighted mean, {far} since round {first}"
