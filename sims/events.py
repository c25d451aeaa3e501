"""Progress events of a simulation: small frozen records without behavior.

The command line draws them, tests collect them. They report what has happened, never what to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class SimulationStarted:
    """The simulation has started: data are loaded, plans compiled, workers running.

    cells        the (method, seed) pairs still to do, in order
    parameters   scalars of the peers' networks, each size once, ascending
    at_once      at most so many cells run at once
    measure      the unit of `RoundDone.score_P`
    """

    run: str
    dataset: str
    peers: int
    rounds: int
    cells: tuple[tuple[str, int], ...]
    parameters: tuple[int, ...]
    workers: int
    device: str
    at_once: int = 1
    measure: Literal["accuracy", "error"] = "accuracy"


@dataclass(frozen=True, kw_only=True)
class MethodStarted:
    """A method has started with one seed, at `first_round` (1 unless resumed)."""

    method: str
    seed: int
    rounds: int
    first_round: int


@dataclass(frozen=True, kw_only=True)
class RoundDone:
    """A round is finished: trained, averaged and, if it was due, evaluated.

    score_P    accuracy as a fraction (classification) or error (regression) of each peer on its own test part; None
               if this round was not evaluated
    loss_P     mean loss of each peer on its own test part, likewise
    seconds    wall time of this round without evaluation
    bytes_sent, messages_sent   total over all peers in this round
    """

    method: str
    seed: int
    round: int
    rounds: int
    seconds: float
    score_P: tuple[float, ...] | None
    bytes_sent: int
    messages_sent: int
    loss_P: tuple[float, ...] | None = None


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
    """One of several distributed runs has begun; it prepares data and network before `MethodStarted`."""

    method: str
    seed: int


@dataclass(frozen=True, kw_only=True)
class RunLost:
    """The process or machine of a distributed run died; the run is repeated from its start, with the same result.

    round   the last round of which the leading process received an event; 0: none
    """

    method: str
    seed: int
    reason: str  # "its machine is lost"
    round: int

    @property
    def words(self) -> str:
        when = f" after round {self.round}" if self.round else ""
        return f"{self.reason}{when}; starting again"


@dataclass(frozen=True, kw_only=True)
class Remark:
    """A message for the user, such as a repaired share or an edge added to connect a group.

    progress   whether it tells only what is being done, such as starting a cluster
    """

    text: str
    progress: bool = False


SimulationEvent = (
    SimulationStarted | MethodStarted | RoundDone | MethodDone | WorkerReplaced | RunBegun | RunLost | Remark
)
