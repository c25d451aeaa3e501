"""What an experiment is: cells to be played, the paper's numbers for them, and sentences that are to hold.

A cell is one method on one data set, a line of the paper's table. Where its settings are to be searched it has several
variants, of which the best on examples kept back from training is taken; test examples decide nothing. Everything here
is plain data, so that listing experiments loads neither torch nor data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from fedpeer.experiments.results import PaperClaim
from fedpeer.sims.request import SimulationRequest

SizeName = Literal["quick", "default", "full"]


def stem(name: str, size: SizeName, overrides: Mapping[str, str]) -> str:
    """What its folder and the files of its page are called: fig22-default, or fig22-default-squared-error."""
    return "-".join([name, size, *(re.sub(r"[^a-z0-9.]+", "-", value.lower()) for value in overrides.values())])


#: Share of each peer's training examples by which variants are compared.
SEARCH_VALIDATION = 0.2


@dataclass(frozen=True, kw_only=True)
class RunSize:
    """How large an experiment is made.

    peers     how many, where the data set does not say
    passes    over a peer's examples in a round
    seeds     how often all is repeated, with seeds 0, 1, ...
    searches  whether variants are searched; if not, the first is taken
    search_seeds   seeds over which a variant's score on what was kept back is averaged
    few       whether a figure has a few of its points only
    otherwise settings of `learning` that the paper leaves open and that were chosen otherwise, by name
    minutes   that it takes on two cores, roughly
    differs   what of it is not as in the paper, in a sentence; "" for nothing
    """

    rounds: int
    seeds: int
    minutes: float
    peers: int | None = None
    passes: int = 1
    searches: bool = False
    search_seeds: int = 1
    few: bool = False
    overrides: Mapping[str, str] = field(default_factory=dict)
    differs: str = ""


@dataclass(frozen=True)
class Place:
    """Where a cell stands in a figure: on which line, and where along the axis."""

    line: str
    x: float


@dataclass(frozen=True)
class AtRound:
    """After that round."""

    round: int


@dataclass(frozen=True)
class AtSecond:
    """After that second of virtual time, whichever round each peer is in then (network engine)."""

    second: float


@dataclass(frozen=True)
class AtAccuracy:
    """After the first round in which the mean accuracy, a fraction, is reached."""

    accuracy: float


@dataclass(frozen=True)
class AtObjective:
    """After the first round that leaves so little of the objective of related tasks, a share of what it is at the start
    (MOCHA and what it is compared with); examples have so many features."""

    share: float
    features: int


#: When a run is read, where that is not at its end. `moments.read_at` does it.
Moment: TypeAlias = AtRound | AtSecond | AtAccuracy | AtObjective


@dataclass(frozen=True, kw_only=True)
class Axes:
    """How an experiment is drawn: a point is the median of a cell's runs, its bar goes from 40 % to 60 % of them.

    number  the paper's, such as "17"; "" for a figure that the paper has not
    runs    of the paper, for a point; of the largest size, where no paper has it
    lines   what a line stands for
    x       what is on the axis
    log     whether the axis is logarithmic
    ticks   names of the places 0, 1, ... on the axis, whose points are not joined by lines; none: x is a number
    """

    number: str = ""
    runs: int
    lines: str
    x: str
    log: bool = False
    ticks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One line of a table.

    variants  settings by name, all with the same seeds; the first is taken where nothing is searched
    judged    metric of `runs.scores.METRICS` by which a variant is chosen
    theirs    what the paper has for this line, by column, as it is printed
    place     where it stands in a figure
    read      when it is read, where that is not at its end: cells that ask for the same run share it
    """

    label: str
    variants: Mapping[str, SimulationRequest]
    judged: str = "PM"
    published: Mapping[str, str] = field(default_factory=dict)
    place: Place | None = None
    read: Moment | None = None

    def searching(self, variant: str, seeds: int) -> SimulationRequest:
        """The variant as it is compared with others: some examples are kept back."""
        request = self.variants[variant]
        options = request.federation.simulation
        kept_back = options.model_copy(update={"validation": options.validation or SEARCH_VALIDATION})
        federation = request.federation.model_copy(update={"simulation": kept_back})
        return replace(request, federation=federation, seeds=tuple(range(seeds)))


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table of a paper.

    source    in a few words, for lists
    paper     its authors, title and year
    data      names of the data sets that it needs
    columns   of the table, names of `results.COLUMNS`
    sizes     how large it can be made
    cells     what is played at a size
    claims    what the paper says of it, in sentences that can be checked
    notes     what a reader of the table should know
    figure    how it is drawn, if it is a figure; else it is a table
    open      settings of `learning` that the paper leaves open, so that a user may choose them otherwise
    reads     names of experiments of which it is a summary: their finished runs count as its own, at whatever size
              they were played, and its page is drawn anew with theirs
    shares    names of experiments with which it has some runs in common: those that are finished count too
    """

    name: str
    title: str
    source: str
    paper: str
    data: tuple[str, ...]
    columns: tuple[str, ...]
    sizes: Mapping[SizeName, RunSize]
    cells: Callable[[RunSize], tuple[Cell, ...]]
    claims: tuple[PaperClaim, ...]
    notes: str = ""
    figure: Axes | None = None
    open: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    shares: tuple[str, ...] = ()

    @property
    def others(self) -> tuple[str, ...]:
        """All whose finished runs count as its own."""
        return (*self.reads, *self.shares)
