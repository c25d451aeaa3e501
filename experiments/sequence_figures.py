"""Beyond the papers: networks over sequences, divided into a global and a local part.

- `LSTM`, on Shakespeare's roles. A neuron of an LSTM is a hidden unit with its four gates (`slicing/layers.py`), so the
  averaging level is the percentage of hidden units in the global model. Peers are the eight roles with the most lines;
  each window of 80 characters predicts the next one (LEAF, Caldas et al., 2018), and every peer has the same number of
  examples. Windows of a role overlap, as in LEAF, but no target of a test window is the target of a training window.
- `ATTENTION`, on figure 17's task: MNIST, two digits exchanged at 7 of 16 peers. An image is the sequence of its rows.
  Each block of the transformer has 4 heads and 400 hidden units; at level L the global model has L / 100 heads and L
  hidden units of each block. A head is a slice with its queries, keys, values and columns of the output projection
  (`slicing/products.py`).

The global model also has embedding and output, as the papers' perceptrons have inputs and outputs. The partial
averaging paper names recurrent networks as future work (section VII). The LSTM's optimizer and rate were chosen from
the lowest and the highest level with other seeds, the transformer's are usual ones; the claims were written down
before any run of the levels between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedpeer.experiments.claims import highest, lowest
from fedpeer.experiments.figure import Figure, FigureWorld, Scheme, labelled
from fedpeer.experiments.mnist_figures import EXAMPLES, SEVEN
from fedpeer.experiments.results import PaperClaim
from fedpeer.experiments.schemes import PM, best_is_partial

#: Averages all but the output layer, as in transfer learning.
_OWN_OUTPUT = "own output"
#: Training examples of each peer.
_NUMBERS = (100, 400, 1600)


@dataclass(frozen=True, kw_only=True)
class DividedNetwork:
    """A network with divided neurons, and the levels of the division.

    name      what it is called in a claim
    network   the network, as users write it
    rate      of Adam
    body      level -> neurons of the global model between input and output
    partial   levels between none and all
    whole     the level of all neurons
    """

    name: str
    network: str
    rate: float
    body: Mapping[int, Mapping[str, str | int]]
    partial: Sequence[int]
    whole: int

    @property
    def schemes(self) -> tuple[Scheme, ...]:
        """The schemes: averaging by level, and averaging all but the output layer."""
        return (
            self._scheme("0", "local"),
            *(self._scheme(str(level), "partial-averaging", {**self._ends(level), "output": "all"})
              for level in self.partial),
            self._scheme(str(self.whole), "full-averaging"),
            self._scheme(_OWN_OUTPUT, "partial-averaging", self._ends(self.whole)),
        )  # fmt: skip

    @property
    def claims(self) -> list[PaperClaim]:
        """The claims for each number of examples."""
        most = self.partial[-1]
        return [
            *(best_is_partial(EXAMPLES, number, self.partial, self.whole) for number in _NUMBERS),
            *(
                lowest(
                    f"{number:,} examples: learning alone is below all other levels",
                    _at("0", number),
                    [_at(str(level), number) for level in (*self.partial, self.whole)],
                    PM,
                )
                for number in _NUMBERS
            ),
            *(
                highest(
                    f"{number:,} examples: level {most} is above a local output layer on a common {self.name}",
                    [_at(str(most), number)],
                    [_at(_OWN_OUTPUT, number)],
                    PM,
                )
                for number in _NUMBERS
            ),
        ]

    def _ends(self, level: int) -> dict[str, str | int]:
        return {"input": "all", "embedding": "all", **self.body[level]}

    def _scheme(self, name: str, method: str, owned: Mapping[str, Any] | None = None) -> Scheme:
        models = {"everyone": {"neurons": owned}} if owned else None
        learning = {"optimizer": f"adam,lr={self.rate:g}", "batch_size": 10}
        return Scheme(name, method, models, self.network, learning=learning)


def _at(scheme: str, examples: int) -> str:
    return labelled(scheme, EXAMPLES, examples)


def _heads(level: int) -> dict[str, str | int]:
    """Return heads and hidden units of the two blocks at a level."""
    return {
        name: size
        for block in (1, 2)
        for name, size in ((f"block{block}.q", level // 100), (f"block{block}.up", level))
    }


_LSTM = DividedNetwork(
    name="LSTM",
    network="lstm:64",
    rate=0.01,
    body={percent: {"recurrent": "all" if percent == 100 else 64 * percent // 100} for percent in (25, 50, 75, 100)},
    partial=(25, 50, 75),
    whole=100,
)
_TRANSFORMER = DividedNetwork(
    name="transformer",
    network="transformer,width=32,heads=4,layers=2,hidden=400",
    rate=0.003,
    body={level: _heads(level) for level in (100, 200, 300, 400)},
    partial=(100, 200, 300),
    whole=400,
)

LSTM = Figure(
    name="lstm-slices",
    source="beyond the papers, LSTM slices",
    title="Next characters of eight roles: an LSTM's hidden units averaged in part",
    paper="the future work of Bouchra Pilet, Frey, Taiani, IDA 2021; data as in Caldas et al., LEAF, 2018",
    data=("shakespeare",),
    schemes=lambda examples: _LSTM.schemes,
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
    claims=_LSTM.claims,
    notes=(
        "Levels are percent of the 64 hidden units, each with its gates; embedding and output are averaged at all "
        "levels above 0, but for *own output*, where all of the LSTM is averaged and the output layer is not. 400 "
        "updates with ten examples each (Adam, rate 0.01, its state each peer's own), averaged after every 25th."
    ),
)
ATTENTION = Figure(
    name="attention-slices",
    source="beyond the papers, attention heads",
    title="A transformer's heads averaged in part: MNIST by rows, two digits exchanged at 7 of 16 peers",
    paper="figure 17 of Bouchra Pilet, Frey, Taiani, IDA 2021, with another network",
    data=("mnist",),
    schemes=lambda examples: _TRANSFORMER.schemes,
    settings=_NUMBERS,
    setting=EXAMPLES,
    world=lambda examples: FigureWorld(
        dataset="mnist,shape=image",
        split=f"blocks:{examples},test=1000/swap:8+9,on={SEVEN}",
        peers=16,
        updates=25,
        rounds=16,
    ),
    few=(("0", "100", "200", "300", "400"), (100, 1600)),
    few_runs=1,
    minutes=(2, 30, 100),
    log=True,
    claims=_TRANSFORMER.claims,
    notes=(
        "Levels are hidden units of each of the two blocks in the global model, of 400, with one head of four for each "
        "hundred. What is added along the sequence, and the output layer, are averaged at all levels above 0, but for "
        "*own output*, where all of the transformer is averaged and the output layer is not. 400 updates with ten "
        f"examples each (Adam, rate {_TRANSFORMER.rate:g}, its state each peer's own), averaged after every 25th."
    ),
)
