"""VIRTUAL, 2019: one client at a time is refined, in fixed order, with private layers beside the server's.

It is the algorithm of 2021 with one client a round, whose reference includes the whole prior, so that the product of
all factors counts the prior K times (2019, eq. (3)). Weights are drawn by flipout, 20 times a step. Lateral connections
and dropout belong to the network: `lateral-mlp,dropout=0.3`. Three refinements of each client are 3 K rounds.

Source: Corinzia, Buhmann, Variational Federated Multi-Task Learning, 2019, Algorithm 1, sections 2.3 and 4.2.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.draws import Draws
from fedpeer.algorithms.servers.virtual import Virtual
from fedpeer.algorithms.virtual import Exponent
from fedpeer.networks.bayesian import Estimator


@dataclass(frozen=True)
class SequentialVirtual(Virtual):
    """VIRTUAL with one client a round in fixed order, on the network lateral-mlp; settings as for virtual.

    Defaults that differ from those of virtual:

    Args:
        exponent: "1", the whole prior.
        estimator: "flipout".
        samples: 20 draws of the weights in each step.
    """

    _: KW_ONLY
    exponent: Exponent = "1"
    estimator: Estimator = "flipout"
    samples: int = 20

    def __post_init__(self) -> None:
        if not self.lateral:
            raise AlgorithmError(
                "virtual-2019 needs private layers beside the server's; write network: lateral-mlp, or take virtual"
            )
        super().__post_init__()

    def participants(self, round: int, clients: int, share: float, draws: Draws) -> tuple[int, ...]:
        """Return client (r - 1) mod K in round r; nothing is drawn."""
        return ((round - 1) % clients,)
