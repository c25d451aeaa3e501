"""Accuracy after cuts and freezes, against undisturbed runs of the same seeds: the table in docs/reliability.md.

Five peers learn digits that are unevenly divided among them, in 100 rounds of a second. A fault of half a minute begins
in round 6, where accuracy still rises steeply, and ends in round 36; one of five minutes lasts for 43 rounds of seven
seconds. The length of rounds makes no difference to an undisturbed run, so there is one for all cases.

    pytest tests/sims/network/test_isolation.py -m soak -s
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from fedpeer.config.choice import parse_choice
from fedpeer.config.federation import Federation
from fedpeer.sims.network.engine import NetworkEngine
from fedpeer.sims.network.faults import faults_from
from fedpeer.sims.network.links import LinkRules
from tests.sims import worlds

SEEDS = range(10)
ROUNDS = 100
#: Factors by which steps of a millisecond take longer, so that rounds of ten steps take a second, and seven.
SECOND, SEVEN = 100, 700
#: Points by which the mean may differ from that of the undisturbed runs.
POINTS = 1.0

CALM = "undisturbed"
#: By case: the faults, and the factor by which steps take longer.
CASES: dict[str, tuple[str, int]] = {
    CALM: ("", 1),
    "one cut off, 5 s": ("cut:1,at=5,for=5", SECOND),
    "one cut off, 30 s": ("cut:1,at=5,for=30", SECOND),
    "one is not heard, 30 s": ("oneway:1,at=5,for=30", SECOND),
    "one hears nothing, 30 s": ("oneway:1,at=5,for=30,direction=in", SECOND),
    "one frozen, 5 s": ("freeze:2,at=5,for=5", SECOND),
    "one frozen, 30 s": ("freeze:2,at=5,for=30", SECOND),
    "two of five cut off, 30 s": ("cut:1+2,at=5,for=30", SECOND),
    "two of five cut off, 30 s, and twice as slow": ("slow:1+2,times=200/cut:1+2,at=5,for=30", SECOND),
    "two of five cut off, 30 s, and twice as fast": ("slow:3-5,times=200/cut:1+2,at=5,for=30", SECOND),
    "one cut off, 5 min": ("cut:1,at=21,for=300", SEVEN),
}


def accuracy(case: str, seed: int) -> float:
    """Return the mean accuracy of the peers after the last round, in percent."""
    federation = Federation.model_validate(
        {
            "network": "mlp:64+16+10",
            "learning": {
                "optimizer": "sgd,lr=0.5",
                "batch_size": 8,
                "steps_between_averaging": 10,
                "rounds": ROUNDS,
                "evaluate_every": ROUNDS,
            },
            "gossip": {"topology": "complete", "exchanges": 2, "tolerance": None},
            "simulation": {"peers": 5, "split": "dirichlet:0.3"},
        }
    )
    made, method = worlds.world(federation, seed), parse_choice("full-averaging")
    kinds, times = CASES[case]
    faults = faults_from("/".join(filter(None, [f"slow:1-5,times={times}", kinds])), made.peers)
    faults = replace(faults, seed=seed, links=LinkRules(delay=0.2, jitter=0.5))
    with NetworkEngine(made, method, faults=faults) as nodes:
        for _ in range(ROUNDS):
            nodes.step()
        return 100 * float(np.mean([score for score, _ in nodes.evaluate()]))


@cache
def accuracies(case: str) -> NDArray[np.float64]:
    return np.array([accuracy(case, seed) for seed in SEEDS])


@pytest.mark.soak
@pytest.mark.parametrize("case", list(CASES)[1:])
def test_who_was_alone_costs_less_than_a_point_of_accuracy(case: str) -> None:
    """Each case is a line of the table; the undisturbed runs, the reference, are made once in a process."""
    calm, found = accuracies(CALM), accuracies(case)
    apart = found - calm
    told = f"{apart.mean():+.2f} ± {stats.sem(apart):.2f}" if apart.any() else "0"
    print(f"\n| {CALM} | {calm.mean():.2f} ± {stats.sem(calm):.2f} | |", flush=True)
    print(f"| {case} | {found.mean():.2f} ± {stats.sem(found):.2f} | {told} |", flush=True)
    assert abs(apart.mean()) <= POINTS
