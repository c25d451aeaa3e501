"""Beyond the papers: a transformer's attention heads and hidden units divided into a global and a local part.

Figure 17 of the partial averaging paper with another network: MNIST, two digits exchanged at 7 of 16 peers. An image is
the sequence of its rows. Each block has 4 heads and 400 hidden units; at level L the global model has L / 100 heads and
L hidden units of each block. A head is a slice with its queries, keys, values and columns of the output projection
(`slicing/products.py`). The global model also has what is added along the sequence, and the output layer, as the
papers' perceptrons have inputs and outputs.

Optimizer and rate were chosen from levels 0 and 400 with other seeds; the claims were written down before any run of
the levels between.
"""

from __future__ import annotations

from fedpeer.experiments.claims import above, highest
from fedpeer.experiments.figure import Figure, FigureWorld, Scheme, labelled
from fedpeer.experiments.mnist_figures import EXAMPLES, SEVEN
from fedpeer.experiments.schemes import PM, best_is_partial

_HEADS, _HIDDEN, _BLOCKS = 4, 400, 2
_NETWORK = f"transformer,width=32,heads={_HEADS},layers={_BLOCKS},hidden={_HIDDEN}"
_LEARNING = {"optimizer": "adam,lr=0.003", "batch_size": 10}
_PARTIAL = (100, 200, 300)
#: Averages all but the output layer, as in transfer learning.
_OWN_OUTPUT = "own output"
_NUMBERS = (100, 400, 1600)


def _scheme(name: str, method: str, **owned: str | int) -> Scheme:
    models = {"everyone": {"neurons": owned}} if owned else None
    return Scheme(name, method, models, _NETWORK, learning=_LEARNING)


def _blocks(heads: int, hidden: int) -> dict[str, str | int]:
    owned: dict[str, str | int] = {"input": "all", "embedding": "all"}
    for number in range(1, _BLOCKS + 1):
        owned |= {f"block{number}.q": heads, f"block{number}.up": hidden}
    return owned


def _level(number: int) -> Scheme:
    return _scheme(str(number), "partial-averaging", **_blocks(_HEADS * number // _HIDDEN, number), output="all")


_SCHEMES = (
    _scheme("0", "local"),
    *map(_level, _PARTIAL),
    _scheme(str(_HIDDEN), "full-averaging"),
    _scheme(_OWN_OUTPUT, "partial-averaging", **_blocks(_HEADS, _HIDDEN)),
)


def _at(scheme: str, examples: int) -> str:
    return labelled(scheme, EXAMPLES, examples)


ATTENTION = Figure(
    name="attention-slices",
    source="beyond the papers, attention heads",
    title="A transformer's heads averaged in part: MNIST by rows, two digits exchanged at 7 of 16 peers",
    paper="figure 17 of Bouchra Pilet, Frey, Taiani, IDA 2021, with another network",
    data=("mnist",),
    schemes=lambda examples: _SCHEMES,
    settings=_NUMBERS,
    setting=EXAMPLES,
    world=lambda examples: FigureWorld(
        dataset="mnist",
        split=f"blocks:{examples},test=1000/swap:8+9,on={SEVEN}",
        peers=16,
        updates=25,
        rounds=16,
    ),
    few=(("0", "100", "200", "300", "400"), (100, 1600)),
    few_runs=1,
    minutes=(2, 30, 100),
    log=True,
    claims=[
        *(best_is_partial(EXAMPLES, number, _PARTIAL, _HIDDEN) for number in _NUMBERS),
        *(
            above(
                f"{number:,} examples: learning alone is below all other levels",
                _at("0", number),
                [_at(str(level), number) for level in (*_PARTIAL, _HIDDEN)],
                PM,
                more=False,
            )
            for number in _NUMBERS
        ),
        *(
            highest(
                f"{number:,} examples: level 300 is above a local output layer on a common transformer",
                [_at("300", number)],
                [_at(_OWN_OUTPUT, number)],
                PM,
            )
            for number in _NUMBERS
        ),
    ],
    notes=(
        "Levels are hidden units of each of the two blocks in the global model, of 400, with one head of four for each "
        "hundred. What is added along the sequence, and the output layer, are averaged at all levels above 0, but for "
        "*own output*, where all of the transformer is averaged and the output layer is not. 400 updates with ten "
        "examples each (Adam, its state each peer's own), averaged after every 25th."
    ),
)
