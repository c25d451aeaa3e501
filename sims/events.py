"""What a simulation tells whoever watches it: small frozen facts, no behaviour.

The command line draws them, tests collect them. They say what has happened, never what to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class SimulationStarted:
    """Data is loaded, plans are compiled, workers run. `cells` are the (method, seed) pairs still to do, in order."""

    run: str
    dataset: str
    peers: int
    rounds: int
    cells: tuple[tuple[str, int], ...]
    parameters: int  # scalars of one peer's network
    workers: int
    device: str
    at_once: int = 1  # cells under way at once, as far as there are so many
    measure: Literal["accuracy", "error"] = "accuracy"  # what `RoundDone.score_P` is


@dataclass(frozen=True, kw_only=True)
class MethodStarted:
    """One method begins with one seed, at `first_round` (1 unless resumed)."""

    method: str
    seed: int
    rounds: int
    first_round: int


@dataclass(frozen=True, kw_only=True)
class RoundDone:
    """A round is finished: trained, averaged and, if it was due, evaluated.

    score_P    accuracy as a fraction (classification) or error (regression) of each peer on its own test part; None
               when this round was not evaluated
    seconds    wall time of this round without evaluation
    bytes_sent, messages_sent   of all peers together, in this round
    """

    method: str
    seed: int
    round: int
    rounds: int
    seconds: float
    score_P: tuple[float, ...] | None
    bytes_sent: int
    messages_sent: int


@dataclass(frozen=True, kw_only=True)
class MethodDone:
    """All rounds of one method with one seed are done."""

    method: str
    seed: int


@dataclass(frozen=True, kw_only=True)
class WorkerReplaced:
    """A worker process died and another took over its work; the result is the same."""

    worker: str
    reason: str  # "killed by signal 9", "exit code 1"
    method: str
    seed: int
    round: int


@dataclass(frozen=True, kw_only=True)
class RunBegun:
    """A whole run of one method and one seed, one of several: its data and network come first, then `MethodStarted`."""

    method: str
    seed: int


@dataclass(frozen=True, kw_only=True)
class RunLost:
    """The process or machine of a whole run died; it is played again as it began, and the result is the same."""

    method: str
    seed: int
    reason: str  # "its machine is lost"
    round: int  # the last that was heard of

    @property
    def words(self) -> str:
        return f"{self.reason} after round {self.round}; played again" if self.round else f"{self.reason}; played again"


@dataclass(frozen=True, kw_only=True)
class Remark:
    """Something a user should know: a repaired share, an edge added to connect a group."""

    text: str


Event = SimulationStarted | MethodStarted | RoundDone | MethodDone | WorkerReplaced | RunBegun | RunLost | Remark
