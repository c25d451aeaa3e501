"""MOCHA's time: how long MOCHA and its comparators take to solve the tasks' problem, on three networks.

The tasks are the activities of thirty people, sitting against the rest, with one fixed coupling (each task is drawn to
the mean of all). Time is the paper's model of it (`algorithms.mocha.comparators`): all operations of a round, and the
cost of its communication. A run is read when a share of the objective is left; all methods have the same objective.

Source: Smith, Chiang, Sanjabi, Talwalkar, Federated multi-task learning, NIPS 2017, section 5.3 (figure 1).
"""

from __future__ import annotations

import math

import numpy as np

from fedpeer.algorithms.mocha.comparators import NETWORKS
from fedpeer.experiments.claims import part_to_come_so_far, with_test
from fedpeer.experiments.columns import COLUMNS
from fedpeer.experiments.experiment import AtObjective
from fedpeer.experiments.figure import Figure, FigureWorld, Scheme, labelled
from fedpeer.experiments.results import CellResults, ClaimVerdict, PaperClaim

#: Features of one window of a person's signals.
_FEATURES = 561
_LEFT = "objective left, %"
_COUPLING = "omega=mean-regularised,lam=0.01,ridge=0.01"


def _scheme(name: str, method: str, rounds: int) -> Scheme:
    return Scheme(name, f"{method},{_COUPLING}", network="linear", learning={"rounds": rounds})


_SCHEMES = (
    _scheme("MOCHA", "mocha,passes=1", 60),
    _scheme("MOCHA, a tenth to a whole pass", "mocha,passes=1,low=0.1", 110),
    _scheme("CoCoA", "cocoa,theta=0.5", 15),
    _scheme("minibatch SDCA", "minibatch-sdca,beta=60", 600),
    _scheme("minibatch SGD", "minibatch-sgd,beta=0.3", 600),
)
_MOCHA, _BUDGETS, _COCOA, _SDCA, _SGD = (scheme.name for scheme in _SCHEMES)


def _at(name: str, left: int) -> str:
    return labelled(name, _LEFT, left)


def _sooner(name: str, other: str, network: str, left: int) -> PaperClaim:
    text = f"{name} leaves {left} % of the objective in fewer {COLUMNS[network].title} than {other}"
    return part_to_come_so_far(text, _at(name, left), _at(other, left), network, less=True)


def _by_3g(name: str, left: int, *, least: float = 0.0, most: float = math.inf) -> PaperClaim:
    """Claim by how much, at least or at most, 3G lengthens a method's time against Wi-Fi, by medians of its runs."""
    bound = f"at least {least:g} times" if math.isinf(most) else f"at most {most:g} times"
    label = _at(name, left)

    def check(results: CellResults) -> ClaimVerdict:
        if label not in results:
            return ClaimVerdict(None, f"{label} was not run")
        near, far = (COLUMNS[network].values(results[label]) for network in ("wifi", "3g"))
        if near is None or far is None:
            return ClaimVerdict(None, "it did not come so far in all runs")
        near_S, far_S = np.array(near), np.array(far)
        times = float(np.median(far_S) / np.median(near_S))
        margin_S = far_S - least * near_S if math.isinf(most) else most * near_S - far_S
        return with_test(least <= times <= most, f"{times:.2f} times", [margin_S])

    return PaperClaim(f"{name}: by 3G it takes {bound} as long as by Wi-Fi to {left} %", check, (label,))


TIME = Figure(
    name="mocha-time",
    source="MOCHA 2017, figure 1",
    title="Time until so much of the objective is left: thirty people's activities, a fixed coupling",
    paper="Smith, Chiang, Sanjabi, Talwalkar, Federated multi-task learning, NIPS 2017, section 5.3",
    data=("har",),
    schemes=lambda left: _SCHEMES,
    settings=(10, 15, 20, 30, 50),
    setting=_LEFT,
    lines="method",
    world=lambda left: FigureWorld(
        dataset="har,positive=sitting",
        split="user,test_fraction=0.25",
        peers=30,
        updates=1,
        rounds=60,  # each line has its own
        read_every=1,
        read=AtObjective(left / 100, _FEATURES),
        loss="binary",
    ),
    few=((_MOCHA, _COCOA, _SGD), (20, 50)),
    few_runs=1,
    minutes=(1, 5, 16),
    columns=("wifi", "lte", "3g"),
    claims=[
        *(
            _sooner(name, other, network, left)
            for network in NETWORKS
            for name, other, left in (
                (_MOCHA, _SDCA, 20),
                (_MOCHA, _SGD, 30),
                (_MOCHA, _COCOA, 20),
                (_MOCHA, _COCOA, 10),
                (_BUDGETS, _COCOA, 20),
                (_BUDGETS, _COCOA, 10),
            )
        ),
        _by_3g(_SDCA, 20, least=1.2),
        _by_3g(_SGD, 30, least=1.2),
        _by_3g(_MOCHA, 20, most=1.1),
        _by_3g(_BUDGETS, 20, most=1.1),
    ],
    notes=(
        "W steps alone, hinge loss, lambda 0.01. A whole pass is as many steps as a node has examples, so "
        "nodes with more of them are longer at it; a tenth to a whole pass is drawn for each node and round. "
        "CoCoA works until theta is 0.5; minibatches are of ten examples a node, scaled by beta 60 (SDCA) and "
        "0.3 / round (SGD): the best of 30, 60, 100, 300 and of 0.1, 0.3, 1, 3, 10 on the first split, where "
        "larger ones overshoot. Seconds are those of a machine with 10^9 operations a second for all nodes' "
        "steps together (of CoCoA as if all took as many as the slowest), and a round's communication counts "
        "for 10, 100 or 1000 numbers times 561 features. A line that has no number did not come so far in "
        "some of the runs."
    ),
)
