"""The data of a report, read from the folder of a run, which may be incomplete. Draws nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedpeer.runs.canvas import PALETTE
from fedpeer.runs.folder import RunFolder
from fedpeer.runs.history import History, histories
from fedpeer.runs.index import RunStatus
from fedpeer.runs.summary import summarise

#: Fixed colour numbers; every other method gets the next free one, in the order of the run.
_COLOURS = {"local": 0, "partial-averaging": 1, "full-averaging": 2}
#: The same shapes as `plots.MARKERS`.
_MARKS = "●■◆▲▼✚✖★"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything that the sections of the report need.

    methods    as in `summary.json`, or computed from the rows so far
    linear     as in `summary.json`: "model", "mean" and "per_peer" of a linear model of each peer's own; empty: none
    colours    colour number of each method, the same in every picture
    last       the last row; None if there is none
    statistics method -> name -> an algorithm's own numbers, one per peer, at the last evaluated round
    relations  method -> {"peers": [P ids], "matrix": [P][P]}: how related the peers' tasks are
    answers    method -> "classes", "confusion" and, with metrics, "reliability" (`answers.json`)
    timeline   method -> rounds and weights of all peers over virtual time, and the faults (`timeline.json`)
    """

    id: str
    status: RunStatus
    started: str
    seconds: float | None
    settings: Mapping[str, Any]
    environment: Mapping[str, Any]
    methods: Mapping[str, Mapping[str, Any]]
    histories: Mapping[str, History]
    linear: Mapping[str, Any]
    colours: Mapping[str, int]
    last: Mapping[str, Any] | None
    split: Mapping[str, Any] | None
    plan: Mapping[str, Any]
    graphs: Sequence[Mapping[str, Any]]
    statistics: Mapping[str, Mapping[str, Sequence[float | None]]]
    relations: Mapping[str, Mapping[str, Any]]
    answers: Mapping[str, Mapping[str, Any]]
    timeline: Mapping[str, Mapping[str, Any]]

    @property
    def evaluated(self) -> list[tuple[int, History]]:
        """Colour number and history of each method that was evaluated at least once."""
        return [(self.colours[m], history) for m, history in self.histories.items() if len(history.round_R)]

    @property
    def peers(self) -> list[str]:
        count = max((history.scores_SP.shape[1] for history in self.histories.values()), default=0)
        if self.split and len(self.split["peers"]) == count:
            return [str(peer["id"]) for peer in self.split["peers"]]
        return [f"peer{place}" for place in range(1, count + 1)]

    @property
    def names(self) -> list[str]:
        """The peers' names in pictures and sentences: their users if each has the data of one, else their ids."""
        shares = self.split["peers"] if self.split else ()
        users = [str(share.get("note") or "") for share in shares]
        return users if all(users) and len(set(users)) == len(self.peers) else self.peers

    def mark(self, method: str) -> str:
        colour = self.colours[method]
        return f'<span class=mark style="--c:var(--m{colour % PALETTE})">{_MARKS[colour % PALETTE]}</span>'


def gather_facts(run: RunFolder) -> Facts:
    """Read the folder of a run.

    Raises:
        RunError: a file of the run is damaged.
    """
    rows = run.rows()
    record, settings = run.read("run") or {}, run.read("settings") or {}
    by_method = histories(rows)
    summary = run.read("summary") or {}
    methods = summary.get("methods") or summarise(rows)
    others = [method for method in dict.fromkeys((*methods, *by_method)) if method not in _COLOURS]
    return Facts(
        id=run.id,
        status=run.status,
        started=record.get("started", ""),
        seconds=record.get("seconds"),
        settings=settings,
        environment=run.read("environment") or {},
        methods=methods,
        linear=summary.get("linear") or {},
        histories=by_method,
        colours=_COLOURS | {method: place for place, method in enumerate(others, start=len(_COLOURS))},
        last=rows[-1] if rows else None,
        split=run.read("split"),
        plan=run.read("plan") or {},
        graphs=(run.read("graphs") or {}).get("groups", ()),
        statistics={row["method"]: row["statistics"] for row in rows if row.get("statistics")},
        relations=run.read("relations") or {},
        answers=run.read("answers") or {},
        timeline=run.read("timeline") or {},
    )
