"""Beyond the papers: the hidden units of an LSTM divided into a global and a local part, on Shakespeare's roles.

A neuron of an LSTM is a hidden unit with its four gates (`slicing/layers.py`), so the averaging level here is the
percentage of hidden units in the global model; the model also has embedding and output, as the papers' perceptrons have
inputs and outputs. Peers are the eight roles with the most lines; each window of 80 characters predicts the next one
(LEAF, Caldas et al., 2018), and every peer has the same number of examples. Windows of a role overlap, as in LEAF, but
no target of a test window is the target of a training window.

The partial averaging paper names recurrent networks as future work (section VII). Optimizer and rate were chosen from
levels 0 and 100 with other seeds; the claims were written down before any run of the levels between.
"""

from __future__ import annotations

from fedpeer.experiments.claims import above, highest
from fedpeer.experiments.figure import Figure, FigureWorld, Scheme, labelled
from fedpeer.experiments.mnist_figures import EXAMPLES
from fedpeer.experiments.schemes import PM, best_is_partial

_HIDDEN = 64
_NETWORK = f"lstm:{_HIDDEN}"
_LEARNING = {"optimizer": "adam,lr=0.01", "batch_size": 10}
_PARTIAL = (25, 50, 75)
#: Averages all but the output layer, as in transfer learning.
_OWN_OUTPUT = "own output"
_NUMBERS = (100, 400, 1600)


def _scheme(name: str, method: str, **owned: str | int) -> Scheme:
    models = {"everyone": {"neurons": owned}} if owned else None
    return Scheme(name, method, models, _NETWORK, learning=_LEARNING)


def _level(percent: int) -> Scheme:
    units = _HIDDEN * percent // 100
    return _scheme(str(percent), "partial-averaging", input="all", embedding="all", recurrent=units, output="all")


_SCHEMES = (
    _scheme("0", "local"),
    *map(_level, _PARTIAL),
    _scheme("100", "full-averaging"),
    _scheme(_OWN_OUTPUT, "partial-averaging", input="all", embedding="all", recurrent="all"),
)


def _at(scheme: str, examples: int) -> str:
    return labelled(scheme, EXAMPLES, examples)


LSTM = Figure(
    name="lstm-slices",
    source="beyond the papers, LSTM slices",
    title="Next characters of eight roles: an LSTM's hidden units averaged in part",
    paper="the future work of Bouchra Pilet, Frey, Taiani, IDA 2021; data as in Caldas et al., LEAF, 2018",
    data=("shakespeare",),
    schemes=lambda examples: _SCHEMES,
    settings=_NUMBERS,
    setting=EXAMPLES,
    world=lambda examples: FigureWorld(
        dataset="shakespeare,users=8,samples=8000",
        split=f"user/truncate:{examples},test=500",
        peers=8,
        updates=25,
        rounds=16,
    ),
    few=(("0", "25", "50", "75", "100"), (100, 1600)),
    few_runs=1,
    minutes=(2, 10, 32),
    log=True,
    claims=[
        *(best_is_partial(EXAMPLES, number, _PARTIAL, 100) for number in _NUMBERS),
        *(
            above(
                f"{number:,} examples: learning alone is below all other levels",
                _at("0", number),
                [_at(str(level), number) for level in (*_PARTIAL, 100)],
                PM,
                more=False,
            )
            for number in _NUMBERS
        ),
        *(
            highest(
                f"{number:,} examples: level 75 is above a local output layer on a common LSTM",
                [_at("75", number)],
                [_at(_OWN_OUTPUT, number)],
                PM,
            )
            for number in _NUMBERS
        ),
    ],
    notes=(
        "Levels are percent of the 64 hidden units, each with its gates; embedding and output are averaged at all "
        "levels above 0, but for *own output*, where all of the LSTM is averaged and the output layer is not. 400 "
        "updates with ten examples each (Adam, rate 0.01, its state each peer's own), averaged after every 25th."
    ),
)
