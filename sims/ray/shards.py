"""Actors that are watched: a dead one is seen, named and made anew, and what it was doing is done again.

The leading process sends calls and holds references to what comes of them; values go from one actor to another by the
object store. What an actor's method returns belongs to the leader, not to the actor, so it outlives that. Of each shard
the leader remembers the calls that make it what it was at the end of the last round, and those of the round under way
that changed it: a new actor is sent both, and goes on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import ray
from ray.exceptions import ObjectLostError, OutOfMemoryError, RayActorError, RayError, RayTaskError

import fedpeer
from fedpeer.sims.ray.cluster import Cluster
from fedpeer.sims.ray.ray_errors import PATIENCE_SECONDS, error_reason, error_text
from fedpeer.sims.vector.pool import DEATHS_PER_TASK_MAX, EngineError, StateLostError, Stopped

_DEAD = (RayActorError, OutOfMemoryError)


@dataclass(frozen=True)
class ShardCall:
    """A method of a shard with its arguments, which may be references; how many values it hands out beside its answer.

    changes   whether a new actor must do it too, until the next `settled`
    """

    shard: int
    method: str
    args: tuple[Any, ...] = ()
    values: int = 0
    changes: bool = False


class Shards:
    """The actors of one job. Use as a context manager."""

    def __init__(
        self,
        cluster: Cluster,
        beginnings: Sequence[tuple[Any, ...]],
        replaced: Callable[[str, str], None],
        stop: threading.Event,
    ) -> None:
        """`beginnings` are the arguments with which each shard begins."""
        self._cluster, self._replaced, self._stop = cluster, replaced, stop
        self._beginnings = [
            ShardCall(shard, "begin", (fedpeer.__version__, *args)) for shard, args in enumerate(beginnings)
        ]
        self._settled: list[tuple[ShardCall, ...]] = [() for _ in beginnings]
        self._since: list[list[ShardCall]] = [[] for _ in beginnings]
        self._deaths = [0] * len(beginnings)
        self._actors: list[Any] = []
        self.process_ids: list[int] = [0] * len(beginnings)

    def __enter__(self) -> Self:
        self._actors = [self._cluster.take() for _ in self._beginnings]
        late = f"waiting for {len(self)} shards to start; each needs a free CPU of the cluster"
        for number, (first,) in enumerate(self.run(self._beginnings, late=late)):
            self.process_ids[number] = self._get(first)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._cluster.give_back(self._actors)
        else:  # they may be at work on what nobody waits for any more
            self._cluster.end(self._actors)

    def __len__(self) -> int:
        return len(self._beginnings)

    def answers(self, calls: Sequence[ShardCall], *, stoppable: bool = True) -> list[Any]:
        """What the methods return. Raises as `run` does."""
        return [self._get(first) for first, *_ in self.run(calls, stoppable=stoppable)]

    def run(self, calls: Sequence[ShardCall], *, stoppable: bool = True, late: str = "") -> list[list[Any]]:
        """Make all calls, and wait until they are done: of each a reference to its answer, and to its values.

        `late` is said to the user if it takes long.

        Raises:
            Stopped: if the stop event is set meanwhile; what is not done is abandoned.
            EngineError: a method raised, or killed its actor DEATHS_PER_TASK_MAX times.
            StateLostError: what a call needs is nowhere any more.
        """
        sent = [(self._actors[call.shard], self._send(call)) for call in calls]
        waiting = {references[0]: number for number, (_, references) in enumerate(sent)}
        began = time.monotonic()
        while waiting:
            if stoppable and self._stop.is_set():
                raise Stopped
            if late and time.monotonic() - began > PATIENCE_SECONDS:
                self._cluster.remark(late)
                late = ""
            # The wait ends at an answer or a death; its limit is how late a stop may be noticed.
            ready, _ = ray.wait(list(waiting), timeout=0.2)
            for reference in ready:
                number = waiting.pop(reference)
                call = calls[number]
                try:
                    self._get(reference)
                except _DEAD as error:
                    if sent[number][0] is self._actors[call.shard]:  # and was not replaced for another call's sake
                        self._replace(call.shard, error, stoppable=stoppable)
                    sent[number] = self._actors[call.shard], self._send(call)
                    waiting[sent[number][1][0]] = number
                    continue
                if call.changes:
                    self._since[call.shard].append(call)
        return [references for _, references in sent]

    def settled(self, shard: int, *calls: ShardCall) -> None:
        """A round is over: from now on these calls make the shard what it is."""
        self._settled[shard], self._since[shard], self._deaths[shard] = calls, [], 0

    def _send(self, call: ShardCall) -> list[Any]:
        method = getattr(self._actors[call.shard], call.method)
        found = method.options(num_returns=1 + call.values).remote(*call.args)
        return list(found) if call.values else [found]

    def _get(self, reference: Any) -> Any:
        try:
            return ray.get(reference)
        except _DEAD:
            raise
        except ObjectLostError as error:  # also as the cause of a task's error
            raise StateLostError(error_text(error)) from None
        except RayTaskError as error:
            raise EngineError(f"a shard failed:\n{error_text(error)}") from None
        except RayError as error:
            raise EngineError(f"Ray failed: {error_text(error)}") from None

    def _replace(self, shard: int, error: Exception, *, stoppable: bool) -> None:
        """Another actor in the place of a dead one, brought to where that was."""
        again = [self._beginnings[shard], *self._settled[shard], *self._since[shard]]
        while True:
            self._deaths[shard] += 1
            reason = error_reason(error)
            if self._deaths[shard] >= DEATHS_PER_TASK_MAX or "creation task" in reason:
                raise EngineError(
                    f"shard{shard + 1} died {self._deaths[shard]} times in a round, the last by: {reason}"
                )
            self._replaced(f"shard{shard + 1}", reason)
            self._cluster.end([self._actors[shard]])
            self._actors[shard] = self._cluster.take()
            try:
                for number, call in enumerate(again):
                    answer = self._waited(self._send(call)[0], stoppable=stoppable)
                    if number == 0:
                        self.process_ids[shard] = answer
                return
            except _DEAD as again_dead:
                error = again_dead

    def _waited(self, reference: Any, *, stoppable: bool) -> Any:
        while not ray.wait([reference], timeout=0.2)[0]:
            if stoppable and self._stop.is_set():
                raise Stopped
            if len(self) > self._cluster.places:  # the machine is gone, and others have no CPU left
                raise StateLostError("a machine is lost, and with it the place for a shard")
        return self._get(reference)
