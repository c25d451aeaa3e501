"""The pipeline over failing, slow, and real stores: order, group commit, and no output until a save succeeds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fedpeer.peer.runtime.store import Store, StoreError
from fedpeer.peer.runtime.writer import Pipeline
from fedpeer.peer.state.events import Effect, Note, Persist

#: Seconds that only a hang reaches; everything here takes far less.
LIMIT = 20.0


class FakeStore:
    """A store that keeps its saves in the order in which they became durable; it can fail `fails` times and be held."""

    def __init__(self, log: list[Any], fails: int = 0) -> None:
        self.log, self.fails, self.tries = log, fails, 0
        self.go, self.begun = threading.Event(), threading.Event()
        self.go.set()

    def append(self, entries: Sequence[bytes]) -> None:
        self._save([int(entry) for entry in entries])

    def snapshot(self, data: bytes) -> None:
        self._save(f"snapshot {int(data)}")

    def _save(self, what: Any) -> None:
        assert threading.current_thread() is not threading.main_thread()
        self.tries += 1
        self.begun.set()
        assert self.go.wait(LIMIT)
        if self.tries <= self.fails:
            raise StoreError("full")
        self.log.append(what)


def save(number: int, kind: Any = "entry") -> Persist:
    return Persist(kind, number)


def say(text: str) -> Note:
    return Note("info", "said", text)


def encode(persist: Persist) -> bytes:
    return str(persist.content).encode()


@asynccontextmanager
async def running(store: Any, log: list[Any], reports: list[str] | None = None) -> AsyncIterator[Pipeline]:
    def release(effect: Effect) -> None:
        assert isinstance(effect, Note)
        log.append(effect.text)

    received = [] if reports is None else reports
    pipeline = Pipeline(
        store, encode, release, lambda p: received.append("ok" if p is None else str(p)), retry_seconds=0
    )
    task = asyncio.create_task(pipeline.run())
    async with asyncio.timeout(LIMIT):
        try:
            yield pipeline
        finally:
            task.cancel()
            await asyncio.wait([task])


@pytest.mark.asyncio
async def test_effects_come_out_behind_their_saves() -> None:
    log: list[Any] = []
    async with running(FakeStore(log), log) as pipeline:
        pipeline.put([say("a"), save(1), save(2), say("b"), save(3, "snapshot"), say("c")])
        assert log == ["a"], "what waits for no save is not held up"
        await pipeline.settled()
        assert log == ["a", [1, 2], "b", "snapshot 3", "c"]
        pipeline.put([say("d")])
        assert log[-1] == "d"


@pytest.mark.asyncio
async def test_what_gathers_during_a_save_is_committed_together() -> None:
    log: list[Any] = []
    store = FakeStore(log)
    async with running(store, log) as pipeline:
        store.go.clear()
        pipeline.put([save(1), say("a")])
        await asyncio.to_thread(store.begun.wait, LIMIT)
        for number in range(2, 6):
            pipeline.put([save(number), say(f"after {number}")])
        assert log == []
        store.go.set()
        await pipeline.settled()
    assert log == [[1], "a", [2, 3, 4, 5], "after 2", "after 3", "after 4", "after 5"]
    assert store.tries == 2


@pytest.mark.asyncio
async def test_nothing_is_said_until_a_save_succeeds() -> None:
    log: list[Any] = []
    reports: list[str] = []
    store = FakeStore(log, fails=5)
    async with running(store, log, reports) as pipeline:
        pipeline.put([save(1), say("a"), save(2), say("b")])
        await pipeline.settled()
    assert log == [[1, 2], "a", "b"]
    assert reports == ["full"] * 5 + ["ok"]


@pytest.mark.asyncio
async def test_the_node_is_held_up_when_too_much_waits() -> None:
    log: list[Any] = []
    store = FakeStore(log)
    async with running(store, log) as pipeline:
        store.go.clear()
        number = 0
        while not pipeline.full:
            number += 1
            assert number < 1000
            pipeline.put([save(number), say(str(number))])
        store.go.set()
        await pipeline.settled()
    assert [each for each in log if isinstance(each, str)] == [str(n + 1) for n in range(number)]


@pytest.mark.asyncio
async def test_a_mistake_of_ours_ends_the_pipeline_and_says_nothing() -> None:
    log: list[Any] = []

    class Broken(FakeStore):
        def append(self, entries: Sequence[bytes]) -> None:
            raise AssertionError("ours")

    pipeline = Pipeline(Broken(log), encode, log.append, log.append)
    pipeline.put([save(1), say("never")])
    with pytest.raises(AssertionError, match="ours"):
        await asyncio.wait_for(pipeline.run(), LIMIT)
    assert log == []


@pytest.mark.asyncio
async def test_the_loop_goes_on_during_a_save() -> None:
    log: list[Any] = []
    store = FakeStore(log)
    async with running(store, log) as pipeline:
        store.go.clear()
        pipeline.put([save(1), say("a")])
        await asyncio.to_thread(store.begun.wait, LIMIT)
        await asyncio.sleep(0)  # the loop runs while the thread is still held
        assert log == []
        store.go.set()
        await pipeline.settled()
    assert log == [[1], "a"]


@pytest.mark.asyncio
async def test_with_a_real_store_everything_said_is_found_again(tmp_path: Path) -> None:
    log: list[Any] = []
    with Store.open(tmp_path) as store:
        store.recover()
        async with running(store, log) as pipeline:
            for number in range(30):
                pipeline.put([save(number, "snapshot" if number % 10 == 9 else "entry"), say(str(number))])
            await pipeline.settled()
    assert log == [str(number) for number in range(30)]
    with Store.open(tmp_path) as store:
        recovered = store.recover()
        assert recovered.snapshot == b"29"
        assert list(recovered.entries) == []
