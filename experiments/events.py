"""Events of an experiment, beside those of its runs."""

from __future__ import annotations

from dataclasses import dataclass

from fedpeer.experiments.results import Measured
from fedpeer.sims.events import SimulationEvent


@dataclass(frozen=True, kw_only=True)
class Begun:
    """An experiment begins.

    runs       number of runs in all
    finished   number of runs that are finished already
    at_once    most runs under way at once
    """

    runs: int
    finished: int
    at_once: int = 1


@dataclass(frozen=True, kw_only=True)
class OfRun:
    """An event of one run.

    run   the cell's label and which of its runs: a seed, or a variant of a search
    """

    run: str
    event: SimulationEvent


@dataclass(frozen=True, kw_only=True)
class CellDone:
    """All runs of a cell are finished."""

    measured: Measured


#: An event of an experiment. A run has `RunBegun`, `MethodStarted`, some `RoundDone`, `MethodDone`.
ExperimentEvent = Begun | OfRun | CellDone | SimulationEvent
