"""What an experiment tells whoever watches it, beside what its runs tell."""

from __future__ import annotations

from dataclasses import dataclass

from fedpeer.experiments.results import Measured
from fedpeer.sims.events import Event


@dataclass(frozen=True, kw_only=True)
class Begun:
    """An experiment begins: how many runs it has in all, and how many of them are finished already.

    at_once    runs under way at once, as far as there are so many
    """

    runs: int
    finished: int
    at_once: int = 1


@dataclass(frozen=True, kw_only=True)
class OfRun:
    """What a run tells; `run` is the cell's label and which of its runs: a seed, or a variant that is tried."""

    run: str
    event: Event


@dataclass(frozen=True, kw_only=True)
class CellDone:
    """All runs of a cell are finished."""

    measured: Measured


#: Of each run `RunBegun`, `MethodStarted`, some `RoundDone`, `MethodDone`.
Told = Begun | OfRun | CellDone | Event
