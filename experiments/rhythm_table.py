"""Beyond the papers: slices that are averaged at their own pace, with outer steps or without.

The network is cut into two slices that all peers share: `low`, the input and most of the first hidden layer, and `top`,
which depends on it. Together they are the paper's level 80, so that one rhythm for both is partial averaging as in all
other experiments. Schemes were chosen with seeds 100 to 102; claims were written down before any other run. The goal
was a quarter of the bytes of the default (four exchanges after each round) at no more than 0.5 points.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpeer.experiments.claims import above, in_order, part_of
from fedpeer.experiments.experiment import Cell, Experiment, RunSize
from fedpeer.experiments.results import PaperClaim
from fedpeer.experiments.short_requests import experiment_options

#: Name -> network, `simulation` and `learning` of a federation file.
_DATA: Mapping[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]] = {
    "digits": ("mlp:64+300+100+10", {"dataset": "digits", "peers": 16}, {"rounds": 30, "steps_between_averaging": 87}),
    "MNIST": (
        "mlp:784+300+100+10",
        {"dataset": "mnist", "split": "blocks:200,test=1000", "peers": 16},
        {"rounds": 60, "steps_between_averaging": 100},
    ),
}
_LOW, _TOP = {"input": "all", "hidden1": 250}, {"hidden2": 80, "output": "all"}
#: SlowMo's outer steps.
_SLOWMO = "sgd,lr=1.0,momentum=0.5"


def _every(rounds: int, outer: str = "none") -> dict[str, Any]:
    """Return a slice's rhythm, with one exchange each time."""
    return {"gossip": {"every": rounds, "exchanges": 1}, "outer": outer}


_DEFAULT, _ALONE = "four exchanges, each round", "nothing"
_ONE, _FOURTH = "one exchange, each round", "one exchange, every fourth round"
_OUTER, _APART = f"{_FOURTH}, outer steps", "low every fourth, top every second round, outer steps"
_EACH, _LOW_ONLY = f"{_ONE}, outer steps", "low every fourth, top each round"
#: Scheme -> settings of low and top.
_SCHEMES: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    _DEFAULT: ({}, {}),
    _ONE: (_every(1), _every(1)),
    _EACH: (_every(1, _SLOWMO), _every(1, _SLOWMO)),
    _FOURTH: (_every(4), _every(4)),
    _OUTER: (_every(4, _SLOWMO), _every(4, _SLOWMO)),
    _LOW_ONLY: (_every(4), _every(1)),
    _APART: (_every(4, _SLOWMO), _every(2, _SLOWMO)),
}


def _cell(size: RunSize, data: str, scheme: str) -> Cell:
    network, simulation, learning = _DATA[data]
    low, top = _SCHEMES.get(scheme, ({}, {}))
    request = experiment_options(
        "local" if scheme == _ALONE else "partial-averaging",
        size,
        learning=learning,
        simulation=simulation,
        network=network,
        partial_models={
            "low": {"neurons": _LOW, **low},
            "top": {"neurons": _TOP, "depends_on": ["low"], **top},
        },
        evaluations=1,
    )
    return Cell(label=f"{data}, {scheme}", variants={"": request})


def _cells(size: RunSize) -> tuple[Cell, ...]:
    names = ("digits",) if size.few else tuple(_DATA)
    return tuple(_cell(size, data, scheme) for data in names for scheme in (_ALONE, *_SCHEMES))


def _claims(data: str) -> tuple[PaperClaim, ...]:
    def label(scheme: str) -> str:
        return f"{data}, {scheme}"

    thrifty = (_ONE, _FOURTH, _OUTER, _APART)
    return (
        *(
            claim
            for scheme in thrifty
            for claim in (
                part_of(
                    f"{data}: {scheme}: at most a quarter of the default's bytes",
                    label(scheme),
                    label(_DEFAULT),
                    "sent",
                    most=0.25,
                ),
                above(
                    f"{data}: {scheme}: no more than 0.5 points below the default",
                    label(scheme),
                    [label(_DEFAULT)],
                    "PM",
                    by=-0.5,
                ),
            )
        ),
        in_order(
            f"{data}: in every fourth round, outer steps are better than none",
            (label(_OUTER), label(_FOURTH)),
            "PM",
            more=True,
        ),
        in_order(
            f"{data}: with outer steps, low every fourth and top every second round is better than both every fourth "
            "round",
            (label(_APART), label(_OUTER)),
            "PM",
            more=True,
        ),
    )


TABLE = Experiment(
    name="slice-rhythms",
    title="Slices averaged at their own pace, with outer steps: sixteen peers, digits and MNIST",
    source="beyond the papers, rhythms and outer steps by slice",
    paper="SlowMo: Wang, Tantia, Ballas, Rabbat, ICLR 2020; DiLoCo: Douillard et al., 2023; slices: Bouchra Pilet, "
    "Frey, Taiani, IDA 2021",
    data=("digits", "mnist"),
    columns=("PM", "sent"),
    sizes={
        "quick": RunSize(rounds=30, seeds=2, few=True, minutes=1, differs="Digits alone."),
        "default": RunSize(rounds=30, seeds=10, minutes=6),
        "full": RunSize(rounds=30, seeds=20, minutes=12),
    },
    cells=_cells,
    claims=tuple(claim for data in _DATA for claim in _claims(data)),
    notes=(
        "Digits: 16 peers with 87 examples each, 8 and 9 exchanged for seven of them, 30 rounds of 87 steps. MNIST: 16 "
        "peers with 200 examples each, 60 rounds of 100 steps. One example a step, SGD with rate 0.1, push-sum on a "
        "4-regular graph. *low* has the input and 250 of 300 neurons of the first layer, *top* 80 of 100 of the second "
        "and the output; the rest is local. Outer steps are SlowMo's, with rate 1 and momentum 1/2."
    ),
)
