"""The actors of a job: one that dies is reported and replaced, and its calls are repeated.

The leading process sends calls and holds references to their results; values go from one actor to another by the object
store. The result of an actor's method belongs to the leading process, not to the actor, so it outlives the actor. For
each shard the leading process records the calls that restore its state at the end of the last round, and the calls of
the current round that changed it. A new actor gets both, and continues.
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
    """A call of a shard's method.

    args      its arguments, which may be references
    values    number of values that it returns besides its answer
    changes   whether it changes the shard, so that a new actor must repeat it, until the next `settled`
    """

    shard: int
    method: str
    args: tuple[Any, ...] = ()
    values: int = 0
    changes: bool = False


class Shards:
    """The actors of one job. A context manager."""

    def __init__(
        self,
        cluster: Cluster,
        beginnings: Sequence[tuple[Any, ...]],
        replaced: Callable[[str, str], None],
        stop: threading.Event,
    ) -> None:
        """
        Args:
            beginnings: by shard, the arguments of its first call, `begin`.
        """
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
        else:  # they may still be busy with abandoned calls
            self._cluster.end(self._actors)

    def __len__(self) -> int:
        return len(self._beginnings)

    def answers(self, calls: Sequence[ShardCall]) -> list[Any]:
        """Make all calls and return their answers. Raises as `run` does."""
        return [self._get(first) for first, *_ in self.run(calls)]

    def run(self, calls: Sequence[ShardCall], *, stoppable: bool = True, late: str = "") -> list[list[Any]]:
        """Make all calls, wait until they are done, and return for each the references to its answer and its values.

        Args:
            late: a remark for the user if it takes long.

        Raises:
            Stopped: the stop event was set; unfinished calls are abandoned.
            EngineError: a method raised an exception, or an actor died DEATHS_PER_TASK_MAX times in a round.
            StateLostError: the arguments of a call are lost.
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
            # The wait ends at an answer or a death; its timeout bounds how late a stop is noticed.
            ready, _ = ray.wait(list(waiting), timeout=0.2)
            for reference in ready:
                number = waiting.pop(reference)
                call = calls[number]
                try:
                    self._get(reference)
                except _DEAD as error:
                    if sent[number][0] is self._actors[call.shard]:  # not yet replaced because of another call
                        self._replace(call.shard, error, stoppable=stoppable)
                    sent[number] = self._actors[call.shard], self._send(call)
                    waiting[sent[number][1][0]] = number
                    continue
                if call.changes:
                    self._since[call.shard].append(call)
        return [references for _, references in sent]

    def settled(self, shard: int, *calls: ShardCall) -> None:
        """Record, at the end of a round, the calls that restore the shard from now on."""
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
        """Replace a dead actor by another, and restore its state there."""
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
            if len(self) > self._cluster.places:  # its machine is lost, and the others have no free CPU
                raise StateLostError("a machine is lost, and no other has a free CPU for its shard")
        return self._get(reference)
