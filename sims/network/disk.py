"""A simulated disk with the faults of real ones.

It has the guarantees of a real peer's store (the last two snapshots and the entries after each; batches all or none),
but in memory and virtual time: a save begins, takes time by its bytes, and is durable when it has finished. Whether a
save survives a crash in between is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fedpeer.peer.state.events import Note, RejectEffect
from fedpeer.peer.state.saving import Recovered
from fedpeer.rejection import Rejection

#: As in a real peer: the newest snapshot, and the one that replaces it if it is damaged.
SNAPSHOTS_KEPT = 2


@dataclass(frozen=True, kw_only=True)
class DiskRules:
    """Duration of a save. The defaults are those of a plain solid-state disk with ticks of 25 ms.

    flush            ticks of every save (5 ms)
    bytes_per_tick   speed of writing (160 MB/s)
    longest          most additional ticks of a save; short times are more frequent than long ones; 0: none
    """

    flush: float = 0.2
    bytes_per_tick: float = 4e6
    longest: float = 0.0


@dataclass(frozen=True)
class _Stretch:
    """A snapshot and the entries after it."""

    snapshot: bytes | None = None
    entries: list[bytes] = field(default_factory=list)
    damaged: bool = False


class MemoryDisk:
    """One peer's disk, which outlives its processes."""

    def __init__(self, rules: DiskRules, draws: np.random.Generator) -> None:
        self._rules, self._draws = rules, draws
        self._kept = [_Stretch()]
        self._under_way: bytes | list[bytes] | None = None
        self._torn = False
        self.full_until = 0.0

    def append(self, entries: Sequence[bytes]) -> float:
        """Begin to save these entries; return the ticks until they are durable."""
        return self._begin(list(entries), sum(map(len, entries)))

    def snapshot(self, data: bytes) -> float:
        """Begin to save a whole state; return the ticks until it is durable."""
        return self._begin(data, len(data))

    def _begin(self, what: bytes | list[bytes], size: int) -> float:
        assert self._under_way is None, "one save at a time"
        self._under_way = what
        ticks = self._rules.flush + size / self._rules.bytes_per_tick
        return ticks + self._rules.longest ** float(self._draws.random()) if self._rules.longest else ticks

    def finish(self) -> None:
        """Finish the save under way: it is durable now."""
        assert self._under_way is not None, "nothing was begun"
        if isinstance(self._under_way, bytes):
            self._kept = [*self._kept[1 - SNAPSHOTS_KEPT :], _Stretch(self._under_way)]
        else:
            self._kept[-1].entries.extend(self._under_way)
        self._under_way = None

    def crash(self, draws: np.random.Generator) -> bool:
        """Crash the process or the machine; return whether a save under way survived."""
        survives = bool(draws.random() < 0.5) and self._under_way is not None
        if survives:
            self.finish()
        self._torn = isinstance(self._under_way, list)
        self._under_way = None
        return survives

    def recover(self) -> Recovered:
        """Return the content of the disk, as the next process finds it."""
        remarks: list[Note | RejectEffect] = []
        if self._torn:
            remarks.append(Note("info", "journal_torn", "the last save was not finished"))
            self._torn = False
        used = self._kept
        if used[-1].damaged:
            remarks.append(RejectEffect(Rejection("snapshot_corrupt", "the newest snapshot; the one before is used")))
            # As in a real store, the damaged snapshot is removed and the entries after it stay.
            used[-2:] = [replace(used[-2], entries=[*used[-2].entries, *used[-1].entries])]
        newest = used[-1]
        return Recovered(snapshot=newest.snapshot, entries=tuple(newest.entries), remarks=tuple(remarks))

    # ---- faults

    def damage(self) -> None:
        """Flip a bit of the newest snapshot, if an earlier one or the journal from the start can replace it."""
        if len(self._kept) == SNAPSHOTS_KEPT:
            self._kept[-1] = replace(self._kept[-1], damaged=True)

    def copy(self) -> MemoryDisk:
        """Return a backup."""
        other = MemoryDisk(self._rules, self._draws)
        other._kept = [replace(each, entries=list(each.entries)) for each in self._kept]
        return other
