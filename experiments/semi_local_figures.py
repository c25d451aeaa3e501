"""Figures 20 and 21 of the partial averaging paper: semi-local models and the effect of dependencies (V.3.d, e)."""

from __future__ import annotations

from fedpeer.experiments.claims import highest
from fedpeer.experiments.figure import Figure, Models, Scheme, labelled
from fedpeer.experiments.schemes import (
    FULL,
    LOCAL,
    MINI,
    OPEN,
    PAPER,
    PM,
    among,
    dependent,
    level,
    mnist_scheme,
    neurons,
    worst,
)

_PAIRS = [(peer, peer + 1) for peer in range(1, 13, 2)]
GLOBAL_80: Models = {"everyone": {"neurons": neurons(80)}}
_GLOBAL_70: Models = {"everyone": {"neurons": {"input": "all", "hidden1": 220, "hidden2": 70, "output": "all"}}}


def _semi_local(name: str, models: Models) -> Scheme:
    return Scheme(name, "partial-averaging", models)


#: Neurons of a semi-local model beside those of the global one.
SEMI_LOCAL = {"hidden1": 50, "hidden2": 20}
IN_PAIRS: Models = {**GLOBAL_80, **among(_PAIRS, **SEMI_LOCAL)}
_FIG20 = ("0", "100", "100 within an order", "80", "80 + 20", "80 + 20 dependent")
FIG20 = Figure(
    number="20",
    title="Semi-local models: MNIST, all orders of three digits, two peers each",
    paper=PAPER,
    open=(*OPEN, "dataset", "split"),
    data=("mnist",),
    shares=("assignment",),
    schemes=lambda size: (
        LOCAL,
        FULL,
        _semi_local("100 within an order", among(_PAIRS)),
        level(80),
        _semi_local("80 + 20", IN_PAIRS),
        _semi_local("80 + 20 dependent", dependent(IN_PAIRS)),
    ),
    settings=(25, 50, 75, 100, 125, 150),
    setting=MINI,
    world=lambda size: mnist_scheme(size, 100, "permutations:3", peers=12, examples=200),
    few=(_FIG20, (50, 150)),
    minutes=(2, 7, 45),
    runs=20,
    claims=[
        each
        for size in (25, 50, 75, 100, 125, 150)
        for each in (
            highest(
                f"{MINI} {size}: a global and a dependent semi-local model are best",
                [labelled("80 + 20 dependent", MINI, size)],
                [labelled(other, MINI, size) for other in _FIG20[:-1]],
                PM,
            ),
            highest(
                f"{MINI} {size}: a semi-local model beside the global one helps",
                [labelled("80 + 20", MINI, size)],
                [labelled("80", MINI, size)],
                PM,
            ),
            worst(f"{MINI} {size}: no averaging is worst", "0", _FIG20, MINI, size),
        )
    ],
    notes=(
        "Whether no averaging is worst follows from the first weights, which the paper leaves open. From U(-1/2, 1/2) "
        "it is as bad as averaging everything, with standardised pixels too (--dataset mnist,pixels=standard, one "
        "run). With smaller ones (--start torch), from which networks learn less in these rounds, it is worst in each "
        "of three runs, as in the paper."
    ),
)

_CLASSES = [(1, 2), (3,), (4,)]
_ALL_THREE: Models = {
    **_GLOBAL_70,
    "alike1": {"neurons": {"hidden1": 80, "hidden2": 30}, "members": ["peer1", "peer2"]},
    "alike2": {"neurons": {"hidden1": 40, "hidden2": 15}, "members": ["peer3", "peer4"]},
}
_FIG21 = ("0", "100", "100 within an order", "80", "70 + 30 + 15", "70 + 30 + 15 dependent")
FIG21 = Figure(
    number="21",
    title="Global, semi-local and local: MNIST, two peers alike, one with two digits exchanged, one with four",
    paper=PAPER,
    open=OPEN,
    data=("mnist",),
    schemes=lambda size: (
        LOCAL,
        FULL,
        _semi_local("100 within an order", among(_CLASSES[:1])),
        level(80),
        _semi_local("70 + 30 + 15", _ALL_THREE),
        _semi_local("70 + 30 + 15 dependent", dependent(_ALL_THREE)),
    ),
    settings=(100, 200, 400, 600, 800),
    setting=MINI,
    world=lambda size: mnist_scheme(size, 50, "swap:8+9,on=3-4/swap:6+7,on=4", peers=4, examples=1000),
    few=(_FIG21, (200, 800)),
    minutes=(1, 3, 20),
    runs=20,
    claims=[
        each
        for size in (100, 200, 400, 600, 800)
        for each in (
            highest(
                f"{MINI} {size}: global, dependent semi-local and local together are best",
                [labelled("70 + 30 + 15 dependent", MINI, size)],
                [labelled(other, MINI, size) for other in _FIG21[:-1]],
                PM,
            ),
            worst(f"{MINI} {size}: 100 is worst", "100", _FIG21, MINI, size),
        )
    ],
)
