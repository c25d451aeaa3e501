"""Averaging schemes of the partial averaging paper's figures, and the claims that several figures share.

The paper's averaging level is the number of neurons of the second hidden layer in the global model (`FIRST`): level 0
is local training, 100 is one model for all. Its "mini-batch" is the number of local steps, with one example each,
between two averagings. Averages are exact means, as in the paper.

Two choices that the paper leaves open: the loss is cross-entropy, and all peers start from the same draw of
U(-1/2, 1/2). With squared error and today's usual, smaller, initial weights a sigmoid network hardly trains in these
budgets.

Source: Bouchra Pilet, Frey, Taiani, Simple, Efficient and Convenient Decentralized Multi-Task Learning for Neural
Networks, IDA 2021, section V.1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fedpeer.experiments.claims import highest, lowest
from fedpeer.experiments.figure import CLASSIC, FigureWorld, Models, Scheme, labelled
from fedpeer.experiments.results import PaperClaim

PAPER = (
    "Bouchra Pilet, Frey, Taiani, Simple, Efficient and Convenient Decentralized Multi-Task Learning for Neural "
    "Networks, IDA 2021"
)
#: Settings that the paper leaves open: `learning.loss` and `learning.start`.
OPEN = ("loss", "start")
#: Neurons of the second hidden layer in the global model -> neurons of the first.
FIRST = {0: 0, 15: 50, 30: 100, 60: 200, 80: 250, 100: 300}

LEVELS = tuple(map(str, FIRST))

#: Column that figures show: mean accuracy of the peers' own models.
PM = "PM"
#: Names of settings.
MINI, COUNT = "mini-batch size", "mini-batches"
LOCAL, FULL = Scheme("0", "local"), Scheme("100", "full-averaging")


def claimed(name: str, network: str = CLASSIC, **owned: Any) -> Scheme:
    """Return a scheme whose global model has these neurons."""
    return Scheme(name, "partial-averaging", {"everyone": {"neurons": owned}}, network)


def level(number: int, network: str = CLASSIC) -> Scheme:
    """Return the scheme of an averaging level of the classic layout."""
    if number in (0, 100):
        return replace(FULL if number else LOCAL, network=network)
    return Scheme(str(number), "partial-averaging", {"everyone": {"neurons": neurons(number)}}, network)


def neurons(number: int) -> dict[str, Any]:
    """Return the neurons of a model of this level, 784-L1-L2-k."""
    return {"input": "all", "hidden1": FIRST[number], "hidden2": number, "output": "all"}


def levels(*numbers: int, network: str = CLASSIC) -> Callable[[int], Sequence[Scheme]]:
    """Return a function that gives these levels, or all if none is named, for every setting."""
    schemes = [level(number, network) for number in numbers or FIRST]
    return lambda setting: schemes


def among(groups: Sequence[Sequence[int]], **owned: Any) -> Models:
    """Return a semi-local model of these neurons (none named: all) for each group of peers, numbered from 1."""
    return {
        f"group{number}": {"neurons": owned or "all", "members": [f"peer{peer}" for peer in group]}
        for number, group in enumerate(groups, 1)
    }


def dependent(models: Models) -> Models:
    """Return the models with every semi-local one depending on the global one."""
    return {name: each if name == "everyone" else {**each, "depends_on": ["everyone"]} for name, each in models.items()}


def mnist_scheme(
    updates: int, rounds: int, difference: str, *, peers: int = 16, examples: int = 3500, **more: Any
) -> FigureWorld:
    """Return MNIST in consecutive blocks of the official order, tested on the first 1000 test images (section V.3)."""
    split = "/".join(part for part in (f"blocks:{examples},test=1000", difference) if part)
    return FigureWorld(dataset="mnist", split=split, peers=peers, updates=updates, rounds=rounds, **more)


def worst(text: str, scheme: str, schemes: Sequence[str], setting: str, value: int) -> PaperClaim:
    """Claim that a scheme is below every other of its figure at a setting; `schemes` has all names, its own too."""
    others = [labelled(name, setting, value) for name in schemes if name != scheme]
    return lowest(text, labelled(scheme, setting, value), others, PM)


def best_is_partial(setting: str, value: int, partial: Sequence[int], whole: int, *, apart: bool = False) -> PaperClaim:
    """Claim that the best of these levels is above local training and one model for all, at a setting (claim A)."""
    names = ", ".join(map(str, partial[:-1])) + f" or {partial[-1]}"
    return highest(
        f"{setting} {value:,}: level {names} is above levels 0 and {whole}" + (", bars apart" if apart else ""),
        [labelled(str(each), setting, value) for each in partial],
        [labelled(str(each), setting, value) for each in (0, whole)],
        PM,
        apart=apart,
    )
