"""The status document: complete, bounded for every input, and strict JSON."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpeer.peer.runtime import status as module
from fedpeer.peer.runtime.counters import CURVE_POINTS, Curve
from fedpeer.peer.runtime.status import COUNTED, COUNTERS, LOG_LINES, OTHERS, REFUSAL_ROWS
from fedpeer.peer.state.events import Evaluated, Note
from fedpeer.peer.wire.rejections import REJECTIONS
from fedpeer.rejection import Rejection

from .fake_status import FakePeer

KEYS = {
    "schema", "federation", "peer", "version", "state", "mode", "round", "rounds", "uptime_s", "device", "incarnation",
    "life", "roster", "transport", "peers", "groups", "scores", "loss", "score_name", "traffic", "refusals", "counters",
    "timings", "lag_ms_p99", "log", "councils", "server_scores", "alone_s", "stalled_s", "carried", "metrics",
}  # fmt: skip
GROUP = {
    "id", "models", "members", "length", "edges", "round", "exchange", "weight", "start_weight", "disagreement",
    "waiting_for", "late", "bytes_sent", "bytes_received", "messages_sent", "messages_received", "neighbours",
    "written_off", "audit", "trail",
}  # fmt: skip


CONSENSUS_KEYS = {
    "id", "members", "coordinator", "term", "round", "counted", "voters", "voters_there", "votes", "paused",
    "waiting_for", "late", "bytes_sent", "bytes_received", "messages_sent", "messages_received",
}  # fmt: skip


def test_the_document_is_schema_1() -> None:
    peer = FakePeer()
    for _ in range(40):
        peer.round()
    status = peer.status.as_json()
    assert (status["schema"], set(status), set(status["groups"][0])) == (1, KEYS, GROUP)
    assert set(status["peers"][0]) == {"id", "state", "address", "round", "score", "heard_s"}
    assert set(status["counters"]) == set(COUNTERS)
    assert status["uptime_s"] == pytest.approx(40 * 7.3)
    assert json.loads(json.dumps(status, allow_nan=False))["scores"].keys() == set(peer.ids)
    assert (status["councils"], status["server_scores"]) == ([], [])


def test_coordinated_rounds_have_a_consensus_and_the_servers_scores() -> None:
    peer = FakePeer(served=True)
    for _ in range(40):
        peer.round()
    status = peer.status.as_json()
    (consensus,) = status["councils"]
    assert (status["groups"], set(status), set(consensus)) == ([], KEYS, CONSENSUS_KEYS)
    assert (consensus["coordinator"], consensus["term"], consensus["round"]) == ("peer3", 3, 40)
    assert consensus["messages_sent"] == 40
    own = [point[1] for point in status["scores"]["peer3"]]
    assert [point[1] for point in status["server_scores"]] == pytest.approx([0.95 * each for each in own])


def test_what_is_not_finite_is_null_and_not_a_broken_document() -> None:
    peer = FakePeer()
    peer.round()
    peer.status.evaluated(Evaluated(2, math.nan, math.inf, (math.nan, math.inf)))
    peer.status.look(replace(peer.status.view, groups=(replace(peer.groups()[0], disagreement=None, weight=math.nan),)))
    peer.log_effect(Note("info", "evaluated", "it diverged", {"loss": math.nan}))
    status = json.loads(json.dumps(peer.status.as_json(), allow_nan=False))
    assert status["loss"] is status["log"][-1]["fields"]["loss"] is None
    assert status["scores"]["peer3"][-1] == [2, None]
    assert status["groups"][0]["weight"] is None


@given(st.lists(st.integers(0, 50), max_size=1500))
def test_a_curve_is_thinned_and_keeps_its_ends(steps: list[int]) -> None:
    curve, seen, round = Curve(), {}, 0
    for number, step in enumerate(steps):
        round += step
        seen[round] = float(number)
        curve.add(round, number)
    assert len(curve.points) <= CURVE_POINTS
    assert all(seen[int(at)] == value for at, value in curve.points)
    rounds = [at for at, _ in curve.points]
    assert rounds == sorted(set(rounds))
    if seen:
        assert (rounds[0], rounds[-1]) == (min(seen), max(seen))


def test_a_long_curve_stays_even() -> None:
    curve = Curve()
    for round in range(1, 10_001):
        curve.add(round, 0.5)
    gaps = [b[0] - a[0] for a, b in zip(curve.points, curve.points[1:], strict=False)]
    assert CURVE_POINTS / 3 < len(curve.points) <= CURVE_POINTS
    assert max(gaps[:-1]) == min(gaps[:-1])


def test_an_earlier_round_is_no_news() -> None:
    curve = Curve()
    for round, value in ((5, 0.1), (3, 0.9), (5, 0.2)):
        curve.add(round, value)
    assert curve.points == [(5, 0.2)]


def test_another_peers_score_goes_on_until_it_changes() -> None:
    peer = FakePeer()
    peer.number = 1
    for round, score in ((1, 0.5), (2, 0.5), (3, 0.5), (4, 0.7)):
        view = peer.view(dict.fromkeys(peer.ids, score))
        peer.status.look(replace(view, peers=tuple(replace(each, round=round) for each in view.peers)))
    assert peer.status.as_json()["scores"]["peer1"] == [(1, 0.5), (3, 0.5), (4, 0.7)]


def test_who_leaves_the_roster_leaves_the_curves() -> None:
    peer = FakePeer()
    peer.round()
    view = peer.status.view
    peer.status.look(replace(view, peers=view.peers[1:], groups=()))
    assert set(peer.status.as_json()["scores"]) == set(peer.ids[1:])


def test_strangers_cannot_fill_the_table_of_refusals_and_none_is_lost() -> None:
    peer = FakePeer()
    for number in range(3 * REFUSAL_ROWS):
        peer.status.refused(Rejection("not_fedpeer", sender=f"stranger{number}\x1b[2J" + "x" * 10_000))
    rows = peer.status.as_json()["refusals"]
    assert len(rows) <= REFUSAL_ROWS + len(REJECTIONS)
    assert sum(row["count"] for row in rows) == 3 * REFUSAL_ROWS
    assert OTHERS in [row["sender"] for row in rows]
    assert all(row["sender"].isprintable() and len(row["sender"]) <= 100 for row in rows)
    assert rows[0]["kind"] == REJECTIONS["not_fedpeer"].kind


@pytest.mark.parametrize("what", COUNTED)
def test_what_is_to_be_counted_is(what: str) -> None:
    peer = FakePeer()
    for _ in range(3):
        peer.status.noted(Note("info", what, "it happened", {"weight": 0.25}))
    wanted = {counter: 3 if amount is None else 0.75 for counter, amount in COUNTED[what]}
    found = peer.status.as_json()["counters"]
    assert {name: value for name, value in found.items() if value} == wanted


def test_repeats_and_restarts_are_counters_too() -> None:
    peer = FakePeer()
    for _ in range(4):
        peer.status.refused(Rejection("repeated", sender="peer1"))
    peer.round()
    assert peer.status.view.life == 2
    found = peer.status.as_json()["counters"]
    assert (found["repeats"], found["restarts"]) == (4, 1)


def test_an_exchange_that_went_on_is_counted_for_its_group() -> None:
    peer = FakePeer()
    peer.round()
    for group in ("everyone", "everyone", "ward-a"):
        peer.status.noted(Note("info", "went_on_without", "...", {"group": group}))
    status = peer.status.as_json()
    assert [group["late"] for group in status["groups"]] == [2, 1]
    assert status["counters"]["late"] == 3


def test_bytes_are_counted_once_in_all_and_once_in_their_group() -> None:
    peer = FakePeer()
    peer.number = 1
    peer.status.look(peer.view(dict.fromkeys(peer.ids, 0.5)))
    peer.status.sent(10, "everyone")
    peer.status.sent(5)
    peer.status.received(7, "a group that is gone")
    status = peer.status.as_json()
    assert status["traffic"] == {"bytes_sent": 15, "bytes_received": 7, "messages_sent": 2, "messages_received": 1}
    assert [group["bytes_sent"] for group in status["groups"]] == [10, 0]


def test_the_log_keeps_its_last_lines() -> None:
    peer = FakePeer()
    for number in range(3 * LOG_LINES):
        peer.now += 1
        peer.log_effect(Note("info", f"what{number}", f"line {number}"))
    texts = [line["text"] for line in peer.status.as_json()["log"]]
    assert texts == [f"line {number}" for number in range(2 * LOG_LINES, 3 * LOG_LINES)]


def test_times_are_summed() -> None:
    peer = FakePeer()
    for seconds in (0.5, 1.5):
        peer.status.took("save", seconds)
    assert peer.status.as_json()["timings"]["save"] == {"count": 2, "sum": 2.0, "max": 1.5}
    assert set(peer.status.as_json()["timings"]) == set(module.TIMED)
