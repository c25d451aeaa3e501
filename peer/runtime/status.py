"""Status of a running peer: what it knows about itself and the federation, as one JSON document (schema 1).

`Status` only collects: facts that never change (`About`), the node's view (`NodeView`, passed about once a second), and
what happens in between (`evaluated`, `refused`, `noted`, `sent`, `received`, `took`). The dashboard, `fedpeer status`
and `/metrics` all show `as_json()`, so they cannot disagree. Nothing here decides, waits or writes.

Everything that comes from other peers is bounded here: curves are thinned, the log keeps its last lines, and rejections
are counted in a table of fixed size.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from fedpeer.peer.runtime.counters import Curve, DurationSummary, TrafficCounter
from fedpeer.peer.runtime.logs import NAME_MAX, LogLine, printable
from fedpeer.peer.state.events import Evaluated, Note
from fedpeer.peer.wire.rejections import REJECTIONS
from fedpeer.rejection import Rejection
from fedpeer.runs.disk import finite

SCHEMA = 1
#: Log lines kept: two screens of a tall window; the whole log is in the state folder.
LOG_LINES = 200
#: Rows (code, sender) of the table of rejections. Codes and roster ids are few; strangers may invent any number.
REFUSAL_ROWS = 200
#: Sender in the row of all senders that have no row of their own.
OTHERS = "(others)"

State = Literal["waiting", "gathering", "joining", "training", "averaging", "finished", "paused", "leaving"]
PeerState = Literal["me", "alive", "suspect", "dead", "finished", "left", "unknown"]

#: Notes that are also counted: by the note's name its counters, each with the field that is added up (None: add 1).
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
#: All counters, the derived ones first: starts of the process after the first, repeated transfers, and false claims
#: about this peer that it refuted.
COUNTERS = (
    "restarts",
    "repeats",
    "refuted",
    *(counter for counters in COUNTED.values() for counter, _ in counters),
)
#: What is timed: a durable save, the local steps of a round, an evaluation; in coordinated rounds also closing one as
#: its coordinator, and settling the client's state after it.
TimedWork = Literal["save", "train", "evaluate", "close", "settle"]
TIMED: tuple[TimedWork, ...] = get_args(TimedWork)


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Facts that do not change while the process runs.

    mode         synchronous or asynchronous
    rounds       number of rounds to learn
    transport    https or plain-http
    score_name   "accuracy" (a fraction, larger is better) or "error"
    """

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
    """One peer of the roster as this one sees it; `heard_s`: seconds since its last message, None if there was none."""

    id: str
    state: PeerState
    address: str
    round: int
    score: float | None = None
    heard_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """One averaging group of this peer.

    length            number of parameters averaged
    edges             of the current overlay, as pairs of peer ids
    round, exchange   of the current averaging
    weight            push-sum weight held here, with that of unacknowledged transfers
    start_weight      weight with which the peer started
    disagreement      relative distance between this peer's estimate and its neighbors' last ones; None: not known
    waiting_for       peers that are missing in this exchange
    written_off       net weight lost to earlier incarnations of neighbors and to revoked peers: what they had received
                      less what they had given
    audit             relative error of the weight held and in transit here, against what came in and went out (P1)
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

    coordinator    of this term; None: none that this peer knows
    round          last round applied here
    counted        clients whose updates counted in that round
    voters         peers that count for a majority
    voters_there   those of them that are reachable, including this peer
    votes          whether this peer may vote
    paused         whether rounds pause, since there is no coordinator
    waiting_for    clients whose updates are missing, if this peer coordinates
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

    lag_ms_p99   99th percentile of the event loop's lag, in milliseconds
    alone_s      seconds for which no peer has answered and the round has not advanced; 0: some peer answers
    stalled_s    seconds that this round's averaging has taken, if that is unusually long; else 0
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
    """One row of the table of rejections; `last`: seconds since 1970."""

    count: int = 0
    last: float = 0.0


class Status:
    """Everything that is shown of one running peer.

    Args:
        about: facts that do not change.
        clock: returns seconds since 1970, for display only; nothing is decided by it.
        ticking: returns seconds by a monotonic clock, for the uptime.

    `starts` is the number of processes started on this state folder, including this one.
    """

    def __init__(
        self, about: About, clock: Callable[[], float] = time.time, ticking: Callable[[], float] = time.monotonic
    ) -> None:
        self.about, self._clock, self._ticking, self._began = about, clock, ticking, ticking()
        self.view = NodeView(state="waiting", round=0, incarnation=1, life=1, roster=0, peers=(), groups=())
        self.starts = 1
        self._loss: float | None = None
        self._metrics: Mapping[str, float] = {}
        self._server = Curve()
        self._all = TrafficCounter()
        self.carries(0, 0)
        self._of_group: dict[str, TrafficCounter] = {}
        self._curves: dict[str, Curve] = {}
        self._trails: dict[str, Curve] = {}
        self._refused: dict[tuple[str, str], _Seen] = {}
        self._counters: dict[str, float] = dict.fromkeys(COUNTERS, 0)
        self._late: Counter[str] = Counter()
        self._timings: dict[str, DurationSummary] = {name: DurationSummary() for name in TIMED}
        self._log: deque[LogLine] = deque(maxlen=LOG_LINES)

    def look(self, view: NodeView) -> None:
        """Store the node's current view, in which each other peer's score goes on to its current round."""
        self.view = view
        for peer in view.peers:
            if peer.score is None or peer.id == self.about.peer:
                continue
            self._curves.setdefault(peer.id, Curve()).hold(peer.round, peer.score)
        roster, groups = {peer.id for peer in view.peers}, {group.id for group in view.groups}
        self._curves = {id: curve for id, curve in self._curves.items() if id in roster or id == self.about.peer}
        self._trails = {id: self._trails.get(id, Curve()) for id in groups}
        talked = groups | {consensus.id for consensus in view.consensus_by_group}
        self._of_group = {id: self._of_group.get(id, TrafficCounter()) for id in talked}
        for group in view.groups:
            self._trails[group.id].add(group.round, group.weight, group.disagreement)

    def evaluated(self, event: Evaluated) -> None:
        """Add this peer's own score of a round, and that of the server's model on its test part."""
        self._curves.setdefault(self.about.peer, Curve()).add(event.round, event.score)
        self._loss = event.loss
        self._metrics = event.metrics
        if event.server is not None:
            self._server.add(event.round, event.server[0])

    def sent(self, size: int, group: str = "") -> None:
        """Count a sent message of `size` bytes; `group` is the group that it belongs to, if any."""
        for traffic in self._traffic(group):
            traffic.sent.add(size)

    def received(self, size: int, group: str = "") -> None:
        """Count a received message of `size` bytes; `group` as in `sent`."""
        for traffic in self._traffic(group):
            traffic.received.add(size)

    def carries(self, connections: int, bytes: int) -> None:
        """Store how many connections of other peers this peer carries now, and their bytes since it started."""
        self._carried = {"connections": connections, "bytes": bytes}

    def _traffic(self, group: str) -> list[TrafficCounter]:
        own = self._of_group.get(group)
        return [self._all] if own is None else [self._all, own]

    def took(self, what: TimedWork, seconds: float) -> None:
        """Add the duration of a save, a round's training, an evaluation, or the end of a round."""
        timing = self._timings[what]
        timing.count += 1
        timing.sum += seconds
        timing.max = max(timing.max, seconds)

    def refused(self, rejection: Rejection) -> None:
        """Count a rejection; its log line arrives by `say`."""
        sender = printable(rejection.sender, NAME_MAX)
        key = (rejection.code, sender)
        if key not in self._refused and len(self._refused) >= REFUSAL_ROWS:
            key = (rejection.code, OTHERS)
        seen = self._refused.setdefault(key, _Seen())
        seen.count += 1
        seen.last = self._clock()

    def noted(self, note: Note) -> None:
        """Count a note if it is in `COUNTED`; its log line arrives by `say`."""
        for counter, amount in COUNTED.get(note.what, ()):
            value = 1 if amount is None else note.fields.get(amount, 0)
            assert isinstance(value, (int, float)), f"{note.what}.{amount} is a number"
            self._counters[counter] += value
        if note.what == "went_on_without":
            self._late[str(note.fields.get("group", ""))] += 1

    def say(self, line: LogLine) -> None:
        """Keep a line of the log; to be used as a sink of a `Log`."""
        self._log.append(line)

    def as_json(self) -> dict[str, Any]:
        """Return the whole status in JSON's types; numbers that are not finite are None."""
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
            "metrics": {name: finite(value) for name, value in self._metrics.items()},
            "peers": [{**_fields(peer), "score": finite(peer.score)} for peer in view.peers],
            "groups": [self._group(group) for group in view.groups],
            "scores": {id: curve.points for id, curve in sorted(self._curves.items())},
            "server_scores": self._server.points,
            "councils": [self._consensus_view(consensus) for consensus in view.consensus_by_group],
            "traffic": self._all.as_json(),
            "carried": self._carried,
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

    def _consensus_view(self, consensus: ConsensusView) -> dict[str, Any]:
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
    """Return the fields of a dataclass uncopied: `asdict` copies their values, which is a hundred times slower."""
    return {each.name: getattr(value, each.name) for each in fields(value)}
