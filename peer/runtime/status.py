"""What a running peer knows about itself and the federation, as one JSON document (schema 1).

`Status` only gathers: facts that never change (`About`), what the node looks like now (`NodeView`, handed in about once
a second), and what happens in between (`evaluated`, `refused`, `noted`, `sent`, `received`, `took`). The dashboard,
`fedpeer status` and `/metrics` all show `as_json()`, so they cannot disagree. Nothing here decides, waits or writes.

Everything that comes from other peers is bounded here: curves are thinned, the log keeps its last lines, and refusals
are counted in a table of fixed size.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from fedpeer.peer.runtime.counters import Curve, DurationSummary, TrafficCounter, finite
from fedpeer.peer.runtime.logs import NAME_MAX, LogLine, printable
from fedpeer.peer.state.events import Evaluated, Note
from fedpeer.peer.wire.rejections import REJECTIONS
from fedpeer.rejection import Rejection

SCHEMA = 1
#: Log lines shown: two screens of a tall window; the whole log is in the state folder.
LOG_LINES = 200
#: Rows (code, sender) of the refusals table. Codes and roster ids are few; strangers may invent senders without end.
REFUSAL_ROWS = 200
#: Who stands for all senders that find no row of their own.
OTHERS = "(others)"

State = Literal["waiting", "gathering", "joining", "training", "averaging", "finished", "paused", "leaving"]
PeerState = Literal["me", "alive", "suspect", "dead", "finished", "left", "unknown"]

#: Notes that are counted as well as logged: the note's name, the counters, and the field that is added up (None: 1).
COUNTED: Mapping[str, tuple[tuple[str, str | None], ...]] = {
    "written_off": (("write_offs", None), ("written_off_weight", "weight")),
    "went_on_without": (("late", None),),
    "caught_up": (("caught_up", None),),
    "reborn": (("memory_lost", None),),
    "reborn_neighbour": (("neighbours_reborn", None),),
    "membership": (("membership_changes", None),),
    "edge_paused": (("edges_paused", None),),
    "link_down": (("links_down", None),),
    "refused": (("refused_by_others", None),),
    "coordinator": (("coordinators", None),),
    "alone": (("alone", None),),
    "rounds_stalled": (("rounds_stalled", None),),
    "weight_astray": (("weights_astray", None),),
    "rounds_paused": (("pauses", None),),
    "round_void": (("rounds_void", None),),
    "update_void": (("updates_void", None),),
}
#: All counters, the derived ones first: starts of the process after the first, transfers that came again, and false
#: claims about this peer that it answered.
COUNTERS = (
    "restarts",
    "repeats",
    "refuted",
    *(counter for counters in COUNTED.values() for counter, _ in counters),
)
#: What is timed: a durable save, the local steps of a round, an evaluation; in coordinated rounds also to close one as
#: its coordinator, and to settle what the client keeps of it.
Timed = Literal["save", "train", "evaluate", "close", "settle"]
TIMED: tuple[Timed, ...] = get_args(Timed)


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What does not change while the process runs. `mode`: synchronous or asynchronous; `transport`: https or
    plain-http; `score_name`: what a score is, "accuracy" (a fraction, larger is better) or "error"."""

    federation: str
    peer: str
    version: str
    mode: str
    rounds: int
    device: str
    transport: str
    score_name: Literal["accuracy", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerView:
    """One peer of the roster as this one sees it; `heard_s`: seconds since it was last heard, None: never."""

    id: str
    state: PeerState
    address: str
    round: int
    score: float | None = None
    heard_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """One averaging group of this peer.

    length         parameters averaged
    edges          of the overlay as it is now, pairs of peer ids
    weight         push-sum weight held here; `start_weight`: with which the peer came in
    disagreement   relative distance between this peer's estimate and what its neighbours sent last; None: not known
    waiting_for    who is missing in this exchange
    written_off    weight that earlier incarnations of neighbours, and who was put out, had of it, less what they had
                   given
    audit          relative error of what is held and under way here against what came in and went out (P1)
    """

    id: str
    models: tuple[str, ...]
    members: tuple[str, ...]
    length: int
    edges: tuple[tuple[str, str], ...]
    neighbours: tuple[str, ...]
    round: int
    exchange: int
    weight: float
    start_weight: float = 1.0
    disagreement: float | None = None
    waiting_for: tuple[str, ...] = ()
    written_off: float = 0.0
    audit: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsensusView:
    """Coordinated rounds in one group, as this peer sees them.

    coordinator   who coordinates in this term; None: nobody that this peer knows of
    round         the last one that is in force here
    counted       who has a part in its result, and was told so by it
    voters        who count for a majority; `voters_there`: those of them who are there, this peer among them
    votes         whether this peer may vote
    paused        whether rounds pause, since nobody coordinates
    waiting_for   where this peer coordinates: whose updates are missing
    """

    id: str
    members: tuple[str, ...]
    coordinator: str | None
    term: int
    round: int
    counted: tuple[str, ...]
    voters: tuple[str, ...]
    voters_there: tuple[str, ...]
    votes: bool
    paused: bool
    waiting_for: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """The node at one moment.

    alone_s     seconds for which nobody has answered and the round number stays; 0: somebody is there
    stalled_s   seconds for which this round's averaging lasts, where that is remarkable; else 0
    """

    state: State
    round: int
    incarnation: int
    life: int
    roster: int
    peers: tuple[PeerView, ...]
    groups: tuple[GroupView, ...]
    lag_ms_p99: float = 0.0
    consensus_by_group: tuple[ConsensusView, ...] = ()
    alone_s: float = 0.0
    stalled_s: float = 0.0


@dataclass(slots=True)
class _Seen:
    """One row of the refusals table; `last`: seconds since 1970."""

    count: int = 0
    last: float = 0.0


class Status:
    """Everything that can be seen of one running peer.

    Args:
        about: what does not change.
        clock: seconds since 1970, for the eye only; nothing is decided by it.
        ticking: seconds by a clock that never goes back, for the uptime.

    `starts`: how many processes there have been on this state folder, with this one.
    """

    def __init__(
        self, about: About, clock: Callable[[], float] = time.time, ticking: Callable[[], float] = time.monotonic
    ) -> None:
        self.about, self._clock, self._ticking, self._began = about, clock, ticking, ticking()
        self.view = NodeView(state="waiting", round=0, incarnation=1, life=1, roster=0, peers=(), groups=())
        self.starts = 1
        self._loss: float | None = None
        self._server = Curve()
        self._all = TrafficCounter()
        self._of_group: dict[str, TrafficCounter] = {}
        self._curves: dict[str, Curve] = {}
        self._trails: dict[str, Curve] = {}
        self._refused: dict[tuple[str, str], _Seen] = {}
        self._counters: dict[str, float] = dict.fromkeys(COUNTERS, 0)
        self._late: Counter[str] = Counter()
        self._timings: dict[str, DurationSummary] = {name: DurationSummary() for name in TIMED}
        self._log: deque[LogLine] = deque(maxlen=LOG_LINES)

    def look(self, view: NodeView) -> None:
        """Take up how the node is now. Another peer's score is a new point of its curve when it changes."""
        self.view = view
        for peer in view.peers:
            if peer.score is None or peer.id == self.about.peer:
                continue
            curve = self._curves.setdefault(peer.id, Curve())
            if not curve.points or curve.points[-1][1] != peer.score:
                curve.add(peer.round, peer.score)
        roster, groups = {peer.id for peer in view.peers}, {group.id for group in view.groups}
        self._curves = {id: curve for id, curve in self._curves.items() if id in roster or id == self.about.peer}
        self._trails = {id: self._trails.get(id, Curve()) for id in groups}
        talked = groups | {consensus.id for consensus in view.consensus_by_group}
        self._of_group = {id: self._of_group.get(id, TrafficCounter()) for id in talked}
        for group in view.groups:
            self._trails[group.id].add(group.round, group.weight, group.disagreement)

    def evaluated(self, event: Evaluated) -> None:
        """This peer's own score of a round, and that of the server's model on its test part."""
        self._curves.setdefault(self.about.peer, Curve()).add(event.round, event.score)
        self._loss = event.loss
        if event.server is not None:
            self._server.add(event.round, event.server[0])

    def sent(self, size: int, group: str = "") -> None:
        """A message of so many bytes has left; `group`: the averaging group that it was for."""
        for traffic in self._traffic(group):
            traffic.sent.add(size)

    def received(self, size: int, group: str = "") -> None:
        """A message of so many bytes was taken in."""
        for traffic in self._traffic(group):
            traffic.received.add(size)

    def _traffic(self, group: str) -> list[TrafficCounter]:
        own = self._of_group.get(group)
        return [self._all] if own is None else [self._all, own]

    def took(self, what: Timed, seconds: float) -> None:
        """A save, a round's training or an evaluation is done."""
        timing = self._timings[what]
        timing.count += 1
        timing.sum += seconds
        timing.max = max(timing.max, seconds)

    def refused(self, rejection: Rejection) -> None:
        """Count a rejection; its line comes by `say`."""
        sender = printable(rejection.sender, NAME_MAX)
        key = (rejection.code, sender)
        if key not in self._refused and len(self._refused) >= REFUSAL_ROWS:
            key = (rejection.code, OTHERS)
        seen = self._refused.setdefault(key, _Seen())
        seen.count += 1
        seen.last = self._clock()

    def noted(self, note: Note) -> None:
        """Count a note, if it is one that is counted; its line comes by `say`."""
        for counter, amount in COUNTED.get(note.what, ()):
            value = 1 if amount is None else note.fields.get(amount, 0)
            assert isinstance(value, (int, float)), f"{note.what}.{amount} is a number"
            self._counters[counter] += value
        if note.what == "went_on_without":
            self._late[str(note.fields.get("group", ""))] += 1

    def say(self, line: LogLine) -> None:
        """Keep a line of the log; made to be one of the sinks of a `Log`."""
        self._log.append(line)

    def as_json(self) -> dict[str, Any]:
        """All of it in JSON's own types, no number that is not finite among them."""
        view, about = self.view, self.about
        return {
            "schema": SCHEMA,
            **_fields(about),
            **{
                key: getattr(view, key)
                for key in ("state", "round", "incarnation", "life", "roster", "lag_ms_p99", "alone_s", "stalled_s")
            },
            "uptime_s": round(self._ticking() - self._began, 1),
            "loss": finite(self._loss),
            "peers": [{**_fields(peer), "score": finite(peer.score)} for peer in view.peers],
            "groups": [self._group(group) for group in view.groups],
            "scores": {id: curve.points for id, curve in sorted(self._curves.items())},
            "server_scores": self._server.points,
            "councils": [self._council(consensus) for consensus in view.consensus_by_group],
            "traffic": self._all.as_json(),
            "refusals": self._refusals(),
            "counters": self._counted(),
            "timings": {name: _fields(timing) for name, timing in self._timings.items()},
            "log": [line.as_json() for line in self._log],
        }

    def _group(self, group: GroupView) -> dict[str, Any]:
        return {
            **_fields(group),
            **{key: finite(getattr(group, key)) for key in ("weight", "disagreement", "written_off", "audit")},
            "late": self._late[group.id],
            **self._of_group[group.id].as_json(),
            "trail": self._trails[group.id].points,
        }

    def _council(self, consensus: ConsensusView) -> dict[str, Any]:
        return {**_fields(consensus), "late": self._late[consensus.id], **self._of_group[consensus.id].as_json()}

    def _refusals(self) -> list[dict[str, Any]]:
        return [
            {"code": code, "kind": REJECTIONS[code].kind, "sender": sender, "count": seen.count, "last": seen.last}
            for (code, sender), seen in sorted(self._refused.items())
        ]

    def _counted(self) -> dict[str, float]:
        def times(code: str) -> int:
            return sum(seen.count for (each, _), seen in self._refused.items() if each == code)

        written_off = self._counters["written_off_weight"] + sum(group.written_off for group in self.view.groups)
        return {
            **self._counters,
            "restarts": self.starts - 1,
            "repeats": times("repeated"),
            "refuted": times("refuted"),
            "written_off_weight": finite(written_off) or 0.0,
        }


def _fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass as they are: `asdict` copies what is inside, a hundred times slower."""
    return {each.name: getattr(value, each.name) for each in fields(value)}
