"""Figure 27 of the partial averaging paper: an associative network completes patterns, 15 peers (section V.5).

All visible neurons and some of the hidden ones are averaged; level 0 is local training. Two choices that the paper
leaves open: all peers start from the same draw of U(-1, 1), and two of them learn another completion of the first of
the three classes of patterns. Classes 0 and 2 overlap, as the paper's coordinates are taken modulo 50; class 1 has
coordinates of its own.
"""

from __future__ import annotations

from fedpeer.experiments.claims import highest
from fedpeer.experiments.experiment import AtRound
from fedpeer.experiments.figure import Figure, FigureWorld, Scheme, labelled
from fedpeer.experiments.schemes import COUNT, PAPER, PM, best_is_partial, claimed, worst

_NETWORK = "associative:400,threshold=0.5"
_NUMBERS = (10, 20, 30, 40)
_LEVELS = (0, 100, 200, 300, 350, 400)


def _level(number: int) -> Scheme:
    if number in (0, 400):
        return Scheme(str(number), "full-averaging" if number else "local", network=_NETWORK)
    return claimed(str(number), _NETWORK, input="all", hidden=number, output="all")


def _at(number: int, level: int) -> str:
    return labelled(str(level), COUNT, number)


FIG27 = Figure(
    number="27",
    title="Associative network: patterns completed from their halves, 15 peers",
    paper=PAPER,
    open=("start", "dataset"),
    data=("associative",),
    schemes=lambda read: tuple(map(_level, _LEVELS)),
    settings=_NUMBERS,
    setting=COUNT,
    world=lambda read: FigureWorld(
        dataset="associative",
        split="user",
        peers=15,
        updates=3,
        rounds=_NUMBERS[-1],
        read=AtRound(read),
        loss="completion",
    ),
    few=(tuple(map(str, _LEVELS)), _NUMBERS),
    few_runs=3,
    runs=100,
    minutes=(1, 1, 20),
    across=True,
    claims=[
        *(
            highest(
                f"{COUNT} {number}: the best level is 300 or 350",
                [_at(number, 300), _at(number, 350)],
                [_at(number, other) for other in (0, 100, 200, 400)],
                PM,
            )
            for number in _NUMBERS
        ),
        *(best_is_partial(COUNT, number, (100, 200, 300, 350), 400) for number in _NUMBERS),
        *(
            worst(f"{COUNT} {number}: averaging everything is worst", "400", tuple(map(str, _LEVELS)), COUNT, number)
            for number in _NUMBERS[:3]
        ),
    ],
    notes=(
        "Which of the three classes of patterns two peers complete otherwise is open in the paper. By default it is "
        "the first, whose patterns overlap with those of the third; --dataset associative,changed=1 takes the second, "
        "which has coordinates of its own. Then from 30 mini-batches on all levels up to 300 are at 100 %, and "
        "averaging everything is below, as in the paper; but none of these levels is best, as 300 and 350 are there."
    ),
)
