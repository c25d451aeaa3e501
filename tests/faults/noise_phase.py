"""Phases of noise under faults: whole peers that tell masked shares first, and whose masses are exact all the same.

What peers hold in the middle of an average means nothing by itself, so estimates are looked at where they are used:
when a round is over. Each average begins with noise of its own, so they are as near to the mean as one brings them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpeer.gossip.reductions import FLOAT32
from fedpeer.peer.state.events import Effect, Evaluate, Send
from fedpeer.peer.wire.messages import Transfer
from fedpeer.sims.network.faults import Faults
from fedpeer.sims.world import World
from tests.faults.peer_cluster import HULL_SLACK, PeerCluster, world

#: As large as what the values are apart.
NOISE = "noise,pushes=2,scale=1.0"
#: How many times as long as others they train, for fewer rounds in the same time.
PACE = 4.0
#: Rounds after heal in which shares of earlier averages may still come.
STRAGGLING = 4


def noise_phase_world(peers: int = 4, **settings: object) -> World:
    """Everybody with everybody, so that one exchange behind the phase gives the mean."""
    options = {"gossip__topology": "complete", "gossip__exchanges": 2, "gossip__privacy": NOISE}
    return world(peers, **(options | {"learning__evaluate_every": 1} | settings))


@dataclass(frozen=True)
class Said:
    """A share as it left its sender for the first time."""

    sender: str
    to: str
    round: int
    exchange: int
    estimate_D: Tensor


class NoisePhaseCluster(PeerCluster):
    """One run.

    Attributes:
        used  by (peer, round), the parameters (n,) that it was evaluated with
        told  all shares, in the order in which they were said
    """

    def __init__(self, made: World, faults: Faults) -> None:
        super().__init__(made, faults, pace=dict.fromkeys(made.peers, PACE))
        self.used: dict[tuple[str, int], Tensor] = {}
        self.told: list[Said] = []
        self._repeats: set[tuple[str, str, int]] = set()
        self.simulator.on_effect = self._said

    def _said(self, peer: str, effect: Effect) -> None:
        match effect:
            case Evaluate(round=round, x_n=x_n):
                self.used[peer, round] = x_n
            case Send(to=to, message=Transfer(share=share)) if (peer, to, share.seq) not in self._repeats:
                self._repeats.add((peer, to, share.seq))
                value_D = FLOAT32.unpack(share.payload, len(self.truth[self.groups[0]]))
                self.told.append(Said(peer, to, share.round, share.exchange, value_D / share.weight))

    def masked_shares(self) -> Iterator[Said]:
        """Shares of the first exchange of each round."""
        return (each for each in self.told if each.exchange == 0)

    def value_D(self, peer: str) -> Tensor:
        """(D,) what this peer brought in."""
        return self.start[peer][self._places(peer, self.groups[0])].double()

    def judge_means(self, rounds: int = 2) -> None:
        """After heal: so many rounds, after which all use the mean of what was brought in."""
        self.healed()
        first = max(node.durable.round for node in self.nodes().values()) + STRAGGLING
        wanted = {(peer, first + number) for peer in self.made.peers for number in range(rounds)}
        assert self.run(self.simulator.now + 2000.0, lambda: wanted <= self.used.keys()), self.phases()
        self.judge()
        (group,) = self.groups
        for peer, round in sorted(wanted):
            error = float((self.used[peer, round][self._places(peer, group)] - self.truth[group]).abs().max())
            assert error <= HULL_SLACK, f"{peer} uses what is {error} from the mean after round {round}"


def correlation(a_N: Tensor, b_N: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a_N.double(), b_N.double()]))[0, 1])
