"""Figures 8 to 16 of the partial averaging paper: handwriting, each peer a writer (section V.2).

The figures are the paper's if LEAF's FEMNIST is on this machine. Otherwise the peers are writers of MNIST's digits
(QMNIST names the writer of each), who have at most 130 digits: the three variants are then one task, with the sizes of
variant D, but 95 digits to train on instead of 100.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from fedpeer.data.registry import describe_dataset
from fedpeer.experiments.claims import falls, highest
from fedpeer.experiments.experiment import AtRound
from fedpeer.experiments.figure import CLASSIC, Figure, FigureWorld, Models, Scheme, labelled
from fedpeer.experiments.schemes import (
    COUNT,
    FIRST,
    LOCAL,
    OPEN,
    PAPER,
    PM,
    best_is_partial,
    claimed,
    level,
    levels,
    neurons,
)

_Variant = Literal["all", "merged", "digits"]
_LETTERS = {"all": "A", "merged": "M", "digits": "D"}
_VARIANTS: tuple[_Variant, ...] = ("all", "merged", "digits")
_NUMBERS = (30, 60, 100, 200, 400, 1000)
#: The numbers of mini-batches for which a short run is enough.
_SOON = _NUMBERS[:4]
_IN_GROUP = "peers in a group"
#: The writers of figures 14 to 16, who are in groups of 2 to all of them.
_GROUPED_WRITERS = 64


@dataclass(frozen=True)
class _Writers:
    """One variant: its data, and its sizes in figures 8 to 13 and in figures 14 to 16.

    variant    the variant
    dataset    the data set that has it
    classes    number of classes
    tests      test examples per writer
    examples   training examples per writer, for both groups of figures
    updates    local steps per round, for both groups of figures
    """

    variant: _Variant
    dataset: str
    classes: int
    tests: int
    examples: tuple[int, int]
    updates: tuple[int, int]

    def world(self, test: int, peers: int, rounds: int, read: int | None = None) -> FigureWorld:
        """Return the settings for the `peers` writers with the most examples, cut to this variant's sizes."""
        examples = self.examples[test]
        fraction = (self.tests + 0.5) / (examples + self.tests)
        split = f"user,test_fraction={fraction:.4f}/truncate:{examples},test={self.tests}"
        return FigureWorld(
            dataset=self.dataset,
            split=split,
            peers=peers,
            updates=self.updates[test],
            rounds=rounds,
            read=None if read is None else AtRound(read),
        )

    @property
    def network(self) -> str:
        return CLASSIC.removesuffix("10") + str(self.classes)

    @property
    def name(self) -> str:
        """Name of the data, for titles."""
        femnist = f"FEMNIST-{_LETTERS[self.variant]}"
        return f"MNIST by writer for {femnist}" if self.dataset == "qmnist" else femnist

    @property
    def data(self) -> tuple[str, ...]:
        return (self.dataset.partition(",")[0],)


def _writers(variant: _Variant) -> _Writers:
    if not describe_dataset("femnist").here:
        return _Writers(variant, "qmnist", 10, 30, (95, 95), (50, 50))
    if variant == "digits":
        return _Writers(variant, "femnist,variant=digits", 10, 30, (100, 100), (50, 50))
    classes = 62 if variant == "all" else 47
    return _Writers(variant, f"femnist,variant={variant}", classes, 60, (360, 350), (180, 175))


def _level_figure(number: str, writers: _Writers) -> Figure:
    return Figure(
        number=number,
        title=f"Averaging level: {writers.name}, 16 writers",
        paper=PAPER,
        open=OPEN,
        data=writers.data,
        shares=_in_common(number, writers),
        schemes=levels(network=writers.network),
        settings=_NUMBERS,
        setting=COUNT,
        world=lambda read: writers.world(0, 16, _SOON[-1] if read in _SOON else _NUMBERS[-1], read),
        few=(("0", "60", "80", "100"), _SOON),
        minutes=(1, 10, 35),
        across=True,
        claims=[
            *(best_is_partial(COUNT, number, (60, 80), 100, apart=True) for number in _NUMBERS[3:]),
            *(best_is_partial(COUNT, number, (15, 30, 60, 80), 100) for number in _NUMBERS),
        ],
        notes=_note(writers),
    )


def _scheme_figure(number: str, writers: _Writers) -> Figure:
    network = writers.network
    wholes = (
        claimed("784-300-100-0", network, input="all", hidden1="all", hidden2="all"),
        claimed("784-300-0-0", network, input="all", hidden1="all"),
        claimed(f"0-300-100-{writers.classes}", network, hidden1="all", hidden2="all", output="all"),
        claimed(f"0-0-100-{writers.classes}", network, hidden2="all", output="all"),
    )
    schemes = (level(0, network), level(80, network), level(100, network), *wholes)
    return Figure(
        number=number,
        title=f"Parts of layers or whole layers: {writers.name}, 16 writers",
        paper=PAPER,
        open=OPEN,
        data=writers.data,
        shares=_in_common(number, writers),
        schemes=lambda read: schemes,
        settings=_NUMBERS,
        setting=COUNT,
        world=lambda read: writers.world(0, 16, _SOON[-1] if read in _SOON else _NUMBERS[-1], read),
        few=(tuple(each.name for each in schemes), _SOON[-1:]),
        minutes=(1, 12, 40),
        log=True,
        claims=[
            highest(
                f"{COUNT} {number:,}: level 80 is above every scheme of whole layers, that of all layers too",
                [labelled("80", COUNT, number)],
                [labelled(name, COUNT, number) for name in ("100", *(each.name for each in wholes))],
                PM,
            )
            for number in _NUMBERS
        ],
        notes=f"{_note(writers)} Of whole layers the paper names all but the last; the other schemes are ours.".strip(),
    )


def _grouped(number: int, size: int, network: str) -> Scheme:
    """Return the scheme of a level among groups of `size` peers, each with a model of its own."""
    if not number:
        return replace(LOCAL, network=network)
    models: Models = {
        f"group{first // size + 1}": {
            "neurons": "all" if number == 100 else neurons(number),
            "members": [f"peer{peer}" for peer in range(first + 1, first + size + 1)],
        }
        for first in range(0, _GROUPED_WRITERS, size)
    }
    return Scheme(str(number), "partial-averaging", models, network)


def _group_figure(number: str, writers: _Writers) -> Figure:
    sizes = (2, 4, 8, 16, 32, 64)
    return Figure(
        number=number,
        title=f"Number of peers: {writers.name}, 64 writers in groups",
        paper=PAPER,
        open=OPEN,
        data=writers.data,
        shares=_in_common(number, writers),
        schemes=lambda size: [_grouped(each, size, writers.network) for each in FIRST],
        settings=sizes,
        setting=_IN_GROUP,
        world=lambda size: writers.world(1, _GROUPED_WRITERS, 200),
        few=(("0", "80", "100"), (4, 64)),
        minutes=(4, 35, 120),
        log=True,
        claims=[
            falls(
                "80: larger groups help, from 2 writers to 64",
                labelled("80", _IN_GROUP, sizes[0]),
                labelled("80", _IN_GROUP, sizes[-1]),
                PM,
                most=0.0,
            ),
            falls(
                "100: larger groups lose, from 4 writers to 64",
                labelled("100", _IN_GROUP, 4),
                labelled("100", _IN_GROUP, 64),
                PM,
                least=0.0,
            ),
        ],
        notes=_note(writers),
    )


def _in_common(number: str, writers: _Writers) -> tuple[str, ...]:
    """Return the figures with common runs: levels and whole layers of one variant, or of all if they are one task."""
    own = int(number)
    block = next(block for block in (range(8, 14), range(14, 17)) if own in block)
    same = [each for each in block if each != own]
    return tuple(f"fig{each}" for each in same if writers.dataset == "qmnist" or (each - own) % len(_VARIANTS) == 0)


def _note(writers: _Writers) -> str:
    if writers.dataset != "qmnist":
        return ""
    return (
        "LEAF's FEMNIST is not on this machine: the peers are writers of MNIST's digits (qmnist), 95 digits each to "
        "train on, 30 to test on, mini-batches of 50, so that the figures of the three variants are one task."
    )


FIG8, FIG9, FIG10 = (_level_figure(str(8 + at), _writers(each)) for at, each in enumerate(_VARIANTS))
FIG11, FIG12, FIG13 = (_scheme_figure(str(11 + at), _writers(each)) for at, each in enumerate(_VARIANTS))
FIG14, FIG15, FIG16 = (_group_figure(str(14 + at), _writers(each)) for at, each in enumerate(_VARIANTS))
