"""Rates and floors compared with slow, obvious computations of them; the lag of a blocked loop."""

from __future__ import annotations

import asyncio
import selectors
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpeer.peer.runtime.limits import Allowance, Limits, pace
from fedpeer.peer.runtime.loop_lag import LoopLag
from tests.peer.runtime.loop_lag import slow_callbacks


@given(st.integers(1, 20), st.lists(st.floats(0, 3), max_size=200))
def test_no_stretch_of_time_has_more_than_its_rate_and_one_burst(rate: int, gaps: list[float]) -> None:
    now, allowance, taken = 0.0, Allowance(rate, 0.0), list[float]()
    for gap in gaps:
        now += gap
        if allowance.take(now):
            taken.append(now)
    for first, began in enumerate(taken):
        for count, ended in enumerate(taken[first:], start=1):
            assert count <= rate + (ended - began) * rate + 1e-6


def test_whoever_keeps_to_the_rate_is_never_turned_away() -> None:
    allowance = Allowance(4.0, 0.0)
    assert all(allowance.take(each * 0.25) for each in range(1, 1000))


class Leaping(selectors.DefaultSelector):
    """A selector that does not wait: the loop's clock jumps to the end of the wait."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += timeout or 0.0
        return super().select(0)


class Virtual(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.leaping = Leaping()
        super().__init__(self.leaping)

    def time(self) -> float:
        return self.leaping.now


def paced(limits: Limits, moves: list[tuple[float, int]], slack: float = 0.0) -> float:
    """Return the virtual seconds until `pace` gives up on a body with these moves, each of them (gap, bytes)."""

    async def move() -> float:
        try:
            async with pace(limits, slack) as moved:
                for gap, count in moves:
                    await asyncio.sleep(gap)
                    moved(count)
                await asyncio.sleep(1e6)
        except TimeoutError:
            pass
        return asyncio.get_running_loop().time()

    with asyncio.Runner(loop_factory=Virtual) as runner:
        return runner.run(move())


LIMITS = Limits(floor_s=10.0, floor_bytes_per_s=100.0)


@pytest.mark.parametrize(
    ("moves", "ends", "latest"),
    [
        pytest.param([], 10.0, 11.0, id="nothing"),
        pytest.param([(1.0, 1)] * 100, 10.0 + 10 / 100, 11.0 + 11 / 100, id="a byte a second"),
        pytest.param([(1.0, 100)] * 100, 110.0, 111.0, id="just the floor"),
        pytest.param([(0.0, 10**9)], 10.0, 11.0, id="a burst earns no standstill"),
        pytest.param([(5.0, 10**6)] * 4, 30.0, 31.0, id="fast, with pauses"),
        pytest.param([(1.0, 50)] * 100, 19.5, 22.0, id="half the floor"),
    ],
)
def test_a_body_has_as_long_as_the_floor_gives_it(moves: list[tuple[float, int]], ends: float, latest: float) -> None:
    """The deadline after each move is 10 s after the earlier of the move and the time that the floor would need, and at
    the latest 11 s after it."""
    assert ends - 0.51 <= paced(LIMITS, moves) <= latest + 0.51  # a move may come just at the deadline
    assert paced(LIMITS, moves, slack=5.0) >= ends + 5.0 - 0.51


@pytest.mark.parametrize("peers", [1, 16, 60, 61, 100, 1000])
def test_a_roster_has_room_for_a_small_and_a_bulk_connection_of_all_others(peers: int) -> None:
    limits = Limits.among(peers)
    assert limits.connections >= 2 * (peers - 1)
    assert replace(limits, connections=Limits().connections) == Limits(), "nothing else changes"
    assert (limits == Limits()) is (peers <= 60), "as long as the usual number is enough, it stays"


def test_lag_is_how_late_the_loop_is() -> None:
    async def run() -> tuple[float, float]:
        lag = LoopLag()
        lag.start()
        idle = lag.p99()
        await asyncio.sleep(0.06)
        for _ in range(2):
            time.sleep(0.2)
            await asyncio.sleep(0)
        await asyncio.sleep(0.06)
        lag.stop()
        return idle, lag.p99()

    idle, held_up = asyncio.run(run())
    assert idle == 0.0
    assert 0.1 < held_up < 2.0


def test_a_callback_that_blocks_is_seen() -> None:
    async def block() -> None:
        time.sleep(0.06)

    with slow_callbacks() as slow:
        asyncio.run(asyncio.sleep(0.06))
    assert slow == []
    with slow_callbacks() as slow:
        asyncio.run(block())
    assert len(slow) == 1
    assert "block" in slow[0]
