"""Definition of an experiment: cells to run, the paper's numbers for them, and claims to check.

A cell is one method on one data set, a line of the paper's table. If its settings are searched, it has several
variants, and the best on validation examples is taken; test examples decide nothing. Everything here is plain data, so
that listing experiments loads neither torch nor data.
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
    """Return the name of an experiment's folder and page files: fig22-default, or fig22-default-squared-error."""
    return "-".join([name, size, *(re.sub(r"[^a-z0-9.]+", "-", value.lower()) for value in overrides.values())])


#: Fraction of each peer's training examples that a search keeps for validation.
SEARCH_VALIDATION = 0.2


@dataclass(frozen=True, kw_only=True)
class RunSize:
    """Size of an experiment.

    rounds         number of rounds
    seeds          number of repetitions, with seeds 0, 1, ...
    minutes        rough time on two cores
    peers          number of peers, if the data set does not determine it
    passes         passes over a peer's examples per round
    searches       whether variants are searched; if not, the first is taken
    search_seeds   number of seeds over which a variant's validation score is averaged
    few            whether a figure has only a few of its points
    overrides      settings that the paper leaves open and that the user chose, by name
    differs        how it differs from the paper, as a sentence; "" for not at all
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
    """Position of a cell in a figure: its line, and its place along the axis."""

    line: str
    x: float


@dataclass(frozen=True)
class AtRound:
    """The end of a round."""

    round: int


@dataclass(frozen=True)
class AtSecond:
    """A second of virtual time, whichever round each peer is in then (network engine)."""

    second: float


@dataclass(frozen=True)
class AtAccuracy:
    """The end of the first round that reaches a mean accuracy, a fraction."""

    accuracy: float


@dataclass(frozen=True)
class AtObjective:
    """The end of the first round that leaves at most a share of the objective (MOCHA and its comparators).

    share      fraction of the initial objective
    features   number of features of an example
    """

    share: float
    features: int


#: When a run is read, if not at its end; see `moments.read_at`.
Moment: TypeAlias = AtRound | AtSecond | AtAccuracy | AtObjective


@dataclass(frozen=True, kw_only=True)
class Axes:
    """Axes of a figure, in which a point is the median of a cell's runs and its bar spans 40 % to 60 % of them.

    number  the paper's number of the figure, such as "17"; "" if no paper has it
    runs    runs per point in the paper, or of the largest size if no paper has it
    lines   what distinguishes the lines
    x       title of the axis
    log     whether the axis is logarithmic
    ticks   names of the places 0, 1, ... on the axis, whose points are not joined by lines; empty: x is a number
    """

    number: str = ""
    runs: int
    lines: str
    x: str
    log: bool = False
    ticks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One line of a table, or one point of a figure.

    label       its name
    variants    requests by name, all with the same seeds; without a search the first is taken
    judged      metric by which a variant is chosen: one of `runs.scores.METRICS`, or one of the request's further
                metrics, if more of it is better
    folds       number of parts in which a search cuts each peer's training examples, each held out in turn (k-fold
                cross-validation); 1: it holds out `SEARCH_VALIDATION` of them once
    found       the variant that an earlier search found, to be taken without a search; "": the first
    published   the paper's numbers for this line, by column, as printed
    place       its position in a figure
    read        when a run is read, if not at its end; cells with the same request share its run
    """

    label: str
    variants: Mapping[str, SimulationRequest]
    judged: str = "PM"
    folds: int = 1
    found: str = ""
    published: Mapping[str, str] = field(default_factory=dict)
    place: Place | None = None
    read: Moment | None = None

    def searching(self, variant: str, seeds: int) -> list[SimulationRequest]:
        """Return the requests by which a search scores a variant, one per fold, each with `seeds` seeds."""
        request = self.variants[variant]
        simulation = request.federation.simulation
        share = 1 / self.folds if self.folds > 1 else simulation.validation or SEARCH_VALIDATION
        kept_back = [simulation.model_copy(update={"validation": share, "fold": fold}) for fold in range(self.folds)]
        federations = [request.federation.model_copy(update={"simulation": each}) for each in kept_back]
        return [replace(request, federation=each, seeds=tuple(range(seeds))) for each in federations]

    @property
    def unsearched(self) -> str:
        """The variant that is taken without a search."""
        return self.found or next(iter(self.variants))


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or figure of a paper.

    name      its name on the command line
    title     title of its page
    source    the paper and table, in a few words, for lists
    paper     the paper's authors, title and year
    data      names of the data sets that it needs
    sizes     its sizes, by name
    columns   columns of the table, keys of `columns.COLUMNS`
    cells     size -> the cells to run
    claims    the paper's statements about it, as claims that can be checked
    notes     what a reader of the table should know
    figure    axes, if it is a figure instead of a table
    open      settings that the paper leaves open, which a user may override
    reads     names of experiments that it summarizes: their finished runs, of any size, count as its own, and its page
              is rewritten with theirs
    shares    names of experiments with which it has some runs in common, whose finished runs count as its own
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
        """Names of all experiments whose finished runs count as its own."""
        return (*self.reads, *self.shares)
