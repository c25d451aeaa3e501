"""Noise phases under faults: whole peers that send masked shares first, and whose masses stay exact.

The value that a peer holds in the middle of an averaging means nothing by itself, so estimates are checked where they
are used: when a round is over. Each averaging begins with noise of its own, so estimates come as near to the mean as
one averaging brings them.
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

#: Noise as large as the differences between the peers' values.
NOISE = "noise,pushes=2,scale=1.0"
#: Factor by which training takes longer than in other clusters, for fewer rounds in the same time.
PACE = 4.0
#: Rounds after the end of the faults in which shares of earlier averagings may still arrive.
STRAGGLING = 4


def noise_phase_world(peers: int = 4, **settings: object) -> World:
    """Return a world on a complete graph, so that one exchange after the noise phase gives the mean."""
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
    """One run of peers with noise phases.

    Attributes:
        used  by (peer, round), the parameters (n,) that it was evaluated with
        told  all shares, in the order in which they were sent
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
        """Return the shares of the first exchange of each round."""
        return (each for each in self.told if each.exchange == 0)

    def value_D(self, peer: str) -> Tensor:
        """Return the value (D,) that this peer put in."""
        return self.start[peer][self._places(peer, self.groups[0])].double()

    def judge_means(self, rounds: int = 2) -> None:
        """Check that after the faults all peers use the mean of the values put in, for so many rounds."""
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
