"""Save, then speak: which effects may be carried out now, and what a peer gets back from its disk.

A `Outbox` stands between a node and whoever carries out its effects, real or simulated. Effects go in as the node gives
them and come out in the same order, but nothing passes a `Persist` that is not durable yet. How bytes become durable,
and when, is not known here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedpeer.peer.core.events import Effect, Note, Persist, Refuse

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
    remarks: tuple[Note | Refuse, ...] = ()


class Outbox:
    """Holds back what must not be said yet.

    Whoever carries out effects saves `batch()`, as often as it takes, and then calls `saved()`.
    """

    def __init__(self) -> None:
        self._waiting: deque[Effect] = deque()  # begins with a Persist, or is empty
        self._saving: tuple[Persist, ...] = ()

    @property
    def full(self) -> bool:
        return len(self._waiting) >= WAITING_MAX

    @property
    def empty(self) -> bool:
        return not self._waiting

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

    def _freed(self) -> list[Effect]:
        freed = []
        while self._waiting and not isinstance(self._waiting[0], Persist):
            freed.append(self._waiting.popleft())
        return freed
