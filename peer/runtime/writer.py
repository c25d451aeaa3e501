"""The thread that saves, and the order of effects around it: nothing is sent before the save that it relies on.

A `Pipeline` feeds a node's effects through an `Outbox` (`state/saving.py`), saves what is to be durable in a thread of
its own, and passes on every other effect in its turn. Saves that arrive while one is in progress are collected and
written together. If saving fails, everything after it waits, and the same is tried again until it succeeds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from fedpeer.peer.runtime.store import StoreError
from fedpeer.peer.runtime.transient import RETRY_SECONDS, pauses
from fedpeer.peer.state.events import Effect, Persist
from fedpeer.peer.state.saving import Outbox


class Saves(Protocol):
    """The part of a store that a pipeline needs; both methods raise StoreError and may then be called again."""

    def append(self, entries: Sequence[bytes]) -> None: ...

    def snapshot(self, data: bytes) -> object: ...


class Pipeline:
    """Carries out a node's effects in their order. Call `put` on the event loop that `run` runs on."""

    def __init__(
        self,
        store: Saves,
        encode: Callable[[Persist], bytes],
        release: Callable[[Effect], None],
        report: Callable[[StoreError | None], None],
        *,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        """
        Args:
            store: where to save.
            encode: returns the bytes of an entry or snapshot; called in the thread, so do not change it after `put`.
            release: carries out one effect, at once; never a Persist.
            report: called with each failure of a save, and with None when one succeeds after that.
            retry_seconds: first pause before a failed save is repeated.
        """
        self._store, self._encode, self._release, self._report = store, encode, release, report
        self._retry_seconds = retry_seconds
        self._outbox, self._failing = Outbox(), False
        self._asked, self._settled = asyncio.Event(), asyncio.Event()
        self._settled.set()

    @property
    def full(self) -> bool:
        """True if the node must get no more events until everything is `settled` or the next effect comes out."""
        return self._outbox.full

    def put(self, effects: Sequence[Effect]) -> None:
        """Add the effects of one step. Those that wait for no save are carried out before this returns."""
        again, rest = self._outbox.again(effects)
        free = self._outbox.put(rest)
        if not self._outbox.empty:
            self._settled.clear()
            self._asked.set()
        for effect in (*again, *free):
            self._release(effect)

    async def settled(self) -> None:
        """Wait until everything put in is saved and carried out; the caller sets a time limit."""
        await self._settled.wait()

    async def run(self) -> None:
        """Save until cancelled; a save in progress is finished first. A bug of ours ends it."""
        with ThreadPoolExecutor(1, "fedpeer-save") as thread:
            while True:
                await self._asked.wait()
                self._asked.clear()
                while batch := self._outbox.batch():
                    await self._save(batch, thread)
                    for effect in self._outbox.saved():
                        self._release(effect)
                self._settled.set()

    async def _save(self, batch: tuple[Persist, ...], thread: ThreadPoolExecutor) -> None:
        for pause in pauses(self._retry_seconds):
            try:
                await asyncio.get_running_loop().run_in_executor(thread, self._write, batch)
            except StoreError as problem:
                self._failing = True
                self._report(problem)
                await asyncio.sleep(pause)
            else:
                break
        if self._failing:
            self._failing = False
            self._report(None)

    def _write(self, batch: tuple[Persist, ...]) -> None:
        if batch[0].kind == "snapshot":
            self._store.snapshot(self._encode(batch[0]))
        else:
            self._store.append([self._encode(persist) for persist in batch])
