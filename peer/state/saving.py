"""Save, then send: which effects may be carried out now, and what a peer recovers from its disk.

An `Outbox` is between a node and the real or simulated driver that carries out its effects. Effects come out in the
order in which the node gives them, and none passes a `Persist` that is not durable yet. How and when bytes become
durable is not decided here.

A message that was sent once may be sent again at any time: a coordinator whose disk is slow still sends its last
heartbeat (`Outbox.again`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fedpeer.peer.state.events import Effect, Note, Persist, RejectEffect, Send

#: Effects that may wait behind a save before the node gets no more events. One event gives about ten effects (a save, a
#: share to each neighbor, an acknowledgement), so about ten events share one save of some milliseconds.
WAITING_MAX = 128


@dataclass(frozen=True, kw_only=True)
class Recovered:
    """State that was read from a disk.

    snapshot   newest readable snapshot; None: there was none yet
    entries    entries saved after it, in order; read from the disk while they are iterated over, once
    whole      False: something that was durable is lost, so the peer has lost memory
    spare      False: the newest snapshot was damaged, so no older one is left behind the one that was read
    remarks    notes and rejections to be logged and counted
    """

    snapshot: bytes | None
    entries: Iterable[bytes]
    whole: bool = True
    spare: bool = True
    remarks: tuple[Note | RejectEffect, ...] = ()


class Outbox:
    """Queue that holds back effects that must not be carried out yet.

    The driver makes `batch()` durable, with as many attempts as it takes, and then calls `saved()`.
    """

    def __init__(self) -> None:
        self._waiting: deque[Effect] = deque()  # begins with a Persist, or is empty
        self._saving: tuple[Persist, ...] = ()
        self._left: dict[tuple[str, str, str], Send] = {}  # by peer, group and kind, the last such message sent

    @property
    def full(self) -> bool:
        return len(self._waiting) >= WAITING_MAX

    @property
    def empty(self) -> bool:
        return not self._waiting

    def again(self, effects: Sequence[Effect]) -> tuple[list[Send], list[Effect]]:
        """Return messages to repeat at once in place of those that a save holds back, and the effects left to `put`."""
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
        """Take over the effects of one step; return those that may be carried out at once."""
        self._waiting.extend(effects)
        return self._freed()

    def batch(self) -> tuple[Persist, ...]:
        """Return the next effects to make durable together: all waiting entries up to a snapshot, or one snapshot.

        The result stays the same until `saved` is called; () if nothing waits.
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
        """Return the effects that the batch held back, in order; it is durable now."""
        assert self._saving, "nothing was being saved"
        freed: list[Effect] = []
        for persist in self._saving:
            freed += self._freed()
            assert self._waiting.popleft() is persist, "saved in the order in which they were asked for"
        self._saving = ()
        return freed + self._freed()

    def _same(self, send: Send) -> Send | None:
        """Return the last message of this kind to this peer, if it was sent between the same incarnations."""
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
