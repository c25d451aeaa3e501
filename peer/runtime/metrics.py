"""`/metrics`: a peer's status in the format of Prometheus.

Nothing is counted here. A collector of the peer's own registry (there is no global one) converts the status document to
metric families at every request, so page, terminal and Prometheus show the same numbers. `METRICS` is the table of all
of them. Every rejection code of `peer/wire/rejections.py` is present with 0 from the start, so that an alert can be
written before the first one happens. A test compares table, codes and documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from fedpeer.peer.runtime.status import PeerState, State
from fedpeer.peer.wire.rejections import REJECTIONS

_Status = Mapping[str, Any]
#: One value of a metric and the values of its labels; a value of None is left out.
_Sample = tuple[tuple[str, ...], Any]


@dataclass(frozen=True, slots=True)
class _Row:
    """One metric.

    family    counter, gauge or summary
    labels    their names
    meaning   its help text
    samples   returns its samples from the status document
    """

    family: Any
    labels: tuple[str, ...]
    meaning: str
    samples: Callable[[_Status], Iterable[_Sample]]


def _one(*path: str) -> Callable[[_Status], Iterable[_Sample]]:
    """Return a function that yields the value at a path of the document."""

    def samples(status: _Status) -> Iterable[_Sample]:
        value: Any = status
        for key in path:
            value = value[key]
        yield (), value

    return samples


def _each_group(value: Callable[[Mapping[str, Any]], Any]) -> Callable[[_Status], Iterable[_Sample]]:
    return lambda status: [((group["id"],), value(group)) for group in status["groups"]]


def _each_consensus(value: Callable[[Mapping[str, Any]], Any]) -> Callable[[_Status], Iterable[_Sample]]:
    return lambda status: [((consensus["id"],), value(consensus)) for consensus in status["councils"]]


def _each(value: Callable[[Mapping[str, Any]], Any]) -> Callable[[_Status], Iterable[_Sample]]:
    """Return a function that yields a value of every averaging group and of every group with coordinated rounds."""
    return lambda status: [((each["id"],), value(each)) for each in (*status["groups"], *status["councils"])]


def _info(status: _Status) -> Iterable[_Sample]:
    yield tuple(str(status[label]) for label in _INFO), 1


def _state(status: _Status) -> Iterable[_Sample]:
    return [((state,), int(status["state"] == state)) for state in get_args(State)]


def _score(status: _Status) -> Iterable[_Sample]:
    for point in status["scores"].get(status["peer"], [])[-1:]:
        yield (status["score_name"],), point[1]


def _server_score(status: _Status) -> Iterable[_Sample]:
    for point in status["server_scores"][-1:]:
        yield (status["score_name"],), point[1]


def _metric(status: _Status) -> Iterable[_Sample]:
    return [((name,), value) for name, value in status["metrics"].items() if value is not None]


def _voters(status: _Status) -> Iterable[_Sample]:
    for consensus in status["councils"]:
        there = len(consensus["voters_there"])
        yield (consensus["id"], "there"), there
        yield (consensus["id"], "missing"), len(consensus["voters"]) - there


def _peers(status: _Status) -> Iterable[_Sample]:
    states = [peer["state"] for peer in status["peers"]]
    return [((state,), states.count(state)) for state in get_args(PeerState)]


def _refused(status: _Status) -> Iterable[_Sample]:
    counts = dict.fromkeys(REJECTIONS, 0)
    for row in status["refusals"]:
        counts[row["code"]] += row["count"]
    return [((code, REJECTIONS[code].kind), count) for code, count in counts.items()]


def _events(status: _Status) -> Iterable[_Sample]:
    return [((event,), count) for event, count in status["counters"].items() if event != _WEIGHT]


def _durations(status: _Status) -> Iterable[_Sample]:
    return [((what,), timing) for what, timing in status["timings"].items()]


_INFO = ("federation", "peer", "version", "mode", "device", "transport")
_WEIGHT = "written_off_weight"
_C, _G, _S = CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily

#: All metrics by name. Prometheus adds `_total` to counters, `_count` and `_sum` to summaries.
METRICS: Mapping[str, _Row] = {
    "fedpeer_info": _Row(_G, _INFO, "facts about this peer, as labels; always 1", _info),
    "fedpeer_up_seconds": _Row(_G, (), "seconds since this process started", _one("uptime_s")),
    "fedpeer_state": _Row(_G, ("state",), "1 for the peer's current state, else 0", _state),
    "fedpeer_round": _Row(_G, (), "current round of the peer", _one("round")),
    "fedpeer_rounds": _Row(_G, (), "number of rounds to learn", _one("rounds")),
    "fedpeer_incarnation": _Row(_G, (), "1, plus one for each time that memory was lost", _one("incarnation")),
    "fedpeer_roster": _Row(_G, (), "number of the roster in force", _one("roster")),
    "fedpeer_score": _Row(_G, ("name",), "accuracy (a fraction) or error on the peer's own test part", _score),
    "fedpeer_server_score": _Row(_G, ("name",), "score of the server's model on the same test part", _server_score),
    "fedpeer_loss": _Row(_G, (), "mean loss on the peer's own test part", _one("loss")),
    "fedpeer_metric": _Row(
        _G, ("name",), "further metrics of the peer's model on its own test part (`metrics` in its file)", _metric
    ),
    "fedpeer_peers": _Row(_G, ("state",), "peers of the roster by state", _peers),
    "fedpeer_weight": _Row(_G, ("group",), "push-sum weight held", _each_group(lambda g: g["weight"])),
    "fedpeer_weight_ratio": _Row(
        _G,
        ("group",),
        "push-sum weight held, relative to the weight with which the peer started",
        _each_group(lambda g: g["weight"] / g["start_weight"]),
    ),
    "fedpeer_alone_seconds": _Row(
        _G, (), "seconds for which no other peer has answered and the round has not advanced; else 0", _one("alone_s")
    ),
    "fedpeer_stalled_seconds": _Row(
        _G,
        (),
        "seconds that the averaging of this round has taken, if that is unusually long; else 0",
        _one("stalled_s"),
    ),
    "fedpeer_disagreement": _Row(
        _G, ("group",), "relative distance from the neighbors' estimates", _each_group(lambda g: g["disagreement"])
    ),
    "fedpeer_mass_audit_error": _Row(
        _G, ("group",), "relative error of the mass held and in transit here", _each_group(lambda g: g["audit"])
    ),
    "fedpeer_waiting": _Row(
        _G, ("group",), "members that an exchange or a round waits for", _each(lambda g: len(g["waiting_for"]))
    ),
    "fedpeer_late": _Row(
        _C, ("group",), "exchanges and rounds that continued without some of their members", _each(lambda g: g["late"])
    ),
    "fedpeer_term": _Row(_G, ("group",), "term of the election of a coordinator", _each_consensus(lambda c: c["term"])),
    "fedpeer_coordinates": _Row(
        _G,
        ("group",),
        "1 while this peer coordinates rounds, else 0",
        lambda status: [((c["id"],), int(c["coordinator"] == status["peer"])) for c in status["councils"]],
    ),
    "fedpeer_round_in_force": _Row(
        _G, ("group",), "last coordinated round that is applied here", _each_consensus(lambda c: c["round"])
    ),
    "fedpeer_paused": _Row(
        _G,
        ("group",),
        "1 while rounds pause for lack of a coordinator, else 0",
        _each_consensus(lambda c: int(c["paused"])),
    ),
    "fedpeer_voters": _Row(_G, ("group", "state"), "voters by state: there, or missing", _voters),
    "fedpeer_sent_bytes": _Row(_C, (), "bytes of messages sent", _one("traffic", "bytes_sent")),
    "fedpeer_received_bytes": _Row(_C, (), "bytes of messages accepted", _one("traffic", "bytes_received")),
    "fedpeer_sent_messages": _Row(_C, (), "messages sent", _one("traffic", "messages_sent")),
    "fedpeer_received_messages": _Row(_C, (), "messages accepted", _one("traffic", "messages_received")),
    "fedpeer_carried_connections": _Row(
        _G, (), "connections that it carries between other peers", _one("carried", "connections")
    ),
    "fedpeer_carried_bytes": _Row(_C, (), "bytes that it has carried between other peers", _one("carried", "bytes")),
    "fedpeer_group_sent_bytes": _Row(
        _C, ("group",), "bytes of messages sent for a group", _each(lambda g: g["bytes_sent"])
    ),
    "fedpeer_group_received_bytes": _Row(
        _C, ("group",), "bytes of messages accepted for a group", _each(lambda g: g["bytes_received"])
    ),
    "fedpeer_refused": _Row(_C, ("code", "kind"), "messages and connections rejected", _refused),
    "fedpeer_events": _Row(_C, ("event",), "events of this peer, and of other peers that it observed", _events),
    "fedpeer_written_off_weight": _Row(_G, (), "push-sum weight written off", _one("counters", _WEIGHT)),
    "fedpeer_lag_seconds": _Row(
        _G,
        (),
        "lag of the event loop, 99th percentile",
        lambda status: [((), status["lag_ms_p99"] / 1000)],
    ),
    "fedpeer_duration_seconds": _Row(
        _S, ("what",), "time of saves, training and evaluation, and of closing and settling rounds", _durations
    ),
}


class Metrics(Collector):
    """The metrics of one peer.

    Args:
        status: the status document, as `Status.as_json`.
    """

    def __init__(self, status: Callable[[], _Status]) -> None:
        self._status = status
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def __call__(self) -> tuple[bytes, str]:
        """Return the body of `/metrics` and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_PLAIN_0_0_4

    def describe(self) -> Iterable[Metric]:
        """Return the families without samples, so that registering needs no status."""
        return [row.family(name, row.meaning, labels=row.labels) for name, row in METRICS.items()]

    def collect(self) -> Iterator[Metric]:
        """Yield all families with their samples, from one status document."""
        status = self._status()
        for name, row in METRICS.items():
            family = row.family(name, row.meaning, labels=row.labels)
            for labels, value in row.samples(status):
                if isinstance(value, Mapping):
                    family.add_metric(labels, count_value=value["count"], sum_value=value["sum"])
                elif value is not None:
                    family.add_metric(labels, value)
            yield family
