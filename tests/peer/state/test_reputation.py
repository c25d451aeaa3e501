"""Ten suspicious rejections in a minute pause an edge, twice as long each time; harmless ones cost nothing."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpeer.peer.state.reputation import Reputation
from fedpeer.peer.wire.rejections import REJECTIONS

TICK_S = 0.025
MINUTE = 2_400  # ticks
HOUR = 60 * MINUTE
SUSPICIOUS, HARMLESS, FATAL = "not_finite", "early", "bad_signature"


def after(codes: list[tuple[str, int]], standing: Reputation | None = None, tick_s: float = TICK_S) -> Reputation:
    standing = standing or Reputation()
    for code, now in codes:
        standing = standing.after(code, now, tick_s)
    return standing


def test_nine_are_borne_and_the_tenth_pauses_for_a_minute() -> None:
    nine = after([(SUSPICIOUS, tick) for tick in range(9)])
    assert nine.listens(9)
    ten = nine.after(SUSPICIOUS, 9, TICK_S)
    assert not ten.listens(9)
    assert not ten.listens(9 + MINUTE - 1)
    assert ten.listens(9 + MINUTE)


def test_what_comes_during_a_pause_neither_extends_it_nor_counts_after_it() -> None:
    flood = after([(SUSPICIOUS, tick) for tick in range(1_000)])
    assert flood.paused_until == 9 + MINUTE
    assert flood.pauses == 1
    assert flood.after(SUSPICIOUS, 9 + MINUTE, TICK_S).listens(9 + MINUTE)


def test_only_the_last_minute_counts() -> None:
    spread = after([(SUSPICIOUS, tick) for tick in range(0, 20 * MINUTE, MINUTE // 9 + 1)])
    assert spread.listens(20 * MINUTE)
    assert spread.pauses == 0
    assert len(spread.recent) < 10
    exactly = after([(SUSPICIOUS, 0), *[(SUSPICIOUS, MINUTE)] * 9])
    assert exactly.listens(MINUTE), "the first is a minute old"
    assert not after([(SUSPICIOUS, 1), *[(SUSPICIOUS, MINUTE)] * 9]).listens(MINUTE)


def test_pauses_double_up_to_an_hour_and_begin_anew_after_an_hour_of_peace() -> None:
    standing, now, lengths = Reputation(), 0, []
    for _ in range(9):
        standing = after([(SUSPICIOUS, now)] * 10, standing)
        lengths.append(standing.paused_until - now)
        now = standing.paused_until
    assert lengths == [MINUTE * minutes for minutes in (1, 2, 4, 8, 16, 32, 60, 60, 60)]
    again = after([(SUSPICIOUS, now + HOUR - 1)] * 10, standing)
    assert again.paused_until == now + HOUR - 1 + HOUR
    peaceful = after([(SUSPICIOUS, now + HOUR)] * 10, standing)
    assert peaceful.paused_until == now + HOUR + MINUTE


def test_seconds_become_ticks_by_the_length_of_a_tick() -> None:
    assert after([(SUSPICIOUS, 5)] * 10, tick_s=1.0).paused_until == 65
    assert after([(SUSPICIOUS, 5)] * 10, tick_s=7.0).paused_until == 5 + 9, "rounded up"


@pytest.mark.parametrize("code", [code for code, row in REJECTIONS.items() if row.kind in "ho"])
def test_what_an_honest_peer_can_cause_costs_nothing(code: str) -> None:
    assert after([(code, 0)] * 100) == Reputation()


def test_what_no_honest_peer_can_send_closes_the_edge_for_good() -> None:
    closed = after([(FATAL, 7)])
    assert not closed.listens(7)
    assert not closed.listens(10**9)


@given(st.lists(st.tuples(st.sampled_from([SUSPICIOUS, HARMLESS]), st.integers(0, MINUTE // 2)), max_size=60))
def test_a_bounded_memory_counts_as_a_list_of_everything_would(steps: list[tuple[str, int]]) -> None:
    times = list(itertools.accumulate(gap for _, gap in steps))
    standing, seen, until = Reputation(), [], 0  # the slow reference: all suspicious ticks since the last pause
    pauses = 0
    for (code, _), now in zip(steps, times, strict=True):
        standing = standing.after(code, now, TICK_S)
        if code == SUSPICIOUS and now >= until:
            seen.append(now)
            if len([tick for tick in seen if now - tick < MINUTE]) == 10:
                until, pauses, seen = now + min(MINUTE * 2**pauses, HOUR), pauses + 1, []
        assert standing.listens(now) is (now >= until)
        assert len(standing.recent) < 10
