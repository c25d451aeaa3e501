"""Save, then speak: which effects may be carried out now, and what a peer gets back from its disk.

What has been said once may be said again at any time: a coordinator whose disk is slow still says that it is there, as
far as it was when it last could (`Outbox.again`).

A `Outbox` stands between a node and whoever carries out its effects, real or simulated. Effects go in as the node gives
them and come out in the same order, but nothing passes a `Persist` that is not durable yet. How bytes become durable,
and when, is not known here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fedpeer.peer.state.events import Effect, Note, Persist, RejectEffect, Send

#: Effects that may wait behind a save before the node is fed no more events. One event gives some ten effects (a save,
#: a share to each neighbour, an acknowledgement), so about ten events share one save of some milliseconds.
WAITING_MAX = 128


@dataclass(frozen=True, kw_only=True)
class Recovered:
    """What a disk kept.

    snapshot   the newest that can be read; None: there was none yet
    entries    saved after it, in order; read from the disk as they are iterated over, once
    whole      False: something that was durable once is gone, so the peer has lost memory
    spare      False: the newest snapshot was damaged, so no other stands behind the one that was read
    remarks    what was noticed, to be logged and counted
    """

    snapshot: bytes | None
    entries: Iterable[bytes]
    whole: bool = True
    spare: bool = True
    remarks: tuple[Note | RejectEffect, ...] = ()


class Outbox:
    """Holds back what must not be said yet.

    Whoever carries out effects saves `batch()`, as often as it takes, and then calls `saved()`.
    """

    def __init__(self) -> None:
        self._waiting: deque[Effect] = deque()  # begins with a Persist, or is empty
        self._saving: tuple[Persist, ...] = ()
        self._left: dict[tuple[str, str, str], Send] = {}  # by peer, group and kind, what left last and may stay true

    @property
    def full(self) -> bool:
        return len(self._waiting) >= WAITING_MAX

    @property
    def empty(self) -> bool:
        return not self._waiting

    def again(self, effects: Sequence[Effect]) -> tuple[list[Send], list[Effect]]:
        """Return what may be said at once, in the place of what a save would hold back; and what is left to `put`."""
        again, rest = list[Send](), list[Effect]()
        blocked = bool(self._waiting)
        for effect in effects:
            blocked = blocked or isinstance(effect, Persist)
            if blocked and isinstance(effect, Send) and effect.stays_true and (before := self._same(effect)):
                again.append(before)
            else:
                rest.append(effect)
        return again, rest

    def put(self, effects: Sequence[Effect]) -> list[Effect]:
        """Take over the effects of one step; those that may be carried out at once are returned."""
        self._waiting.extend(effects)
        return self._freed()

    def batch(self) -> tuple[Persist, ...]:
        """What to make durable next, in one go: all entries that wait, up to a snapshot, or one snapshot.

        The same again until `saved` is called; () when nothing waits.
        """
        if not self._saving:
            for effect in self._waiting:
                if not isinstance(effect, Persist):
                    continue
                if effect.kind == "snapshot":
                    self._saving = self._saving or (effect,)
                    break
                self._saving += (effect,)
        return self._saving

    def saved(self) -> list[Effect]:
        """The batch is durable: what it held back may be carried out, in this order."""
        assert self._saving, "nothing was being saved"
        freed: list[Effect] = []
        for persist in self._saving:
            freed += self._freed()
            assert self._waiting.popleft() is persist, "saved in the order in which they were asked for"
        self._saving = ()
        return freed + self._freed()

    def _same(self, send: Send) -> Send | None:
        """Return the last that has left and says as much, in the same lives."""
        before = self._left.get(_place(send))
        return before if before is not None and replace(before, message=send.message) == send else None

    def _freed(self) -> list[Effect]:
        freed = list[Effect]()
        while self._waiting and not isinstance(self._waiting[0], Persist):
            freed.append(self._waiting.popleft())
        for effect in freed:
            if isinstance(effect, Send) and effect.stays_true:
                self._left[_place(effect)] = effect
        return freed


def _place(send: Send) -> tuple[str, str, str]:
    assert send.stays_true is not None, "it may be said again"
    return send.to, *send.stays_true[:2]
