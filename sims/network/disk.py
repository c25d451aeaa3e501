"""A simulated disk that keeps what was saved and forgets what was not, with the faults that disks have.

It keeps its promises as the store of a real peer does (last two snapshots and the entries after each, batches all or
none), but in memory and in virtual time: a save is begun, takes as long as its bytes do, and is durable when it is
finished. A crash in between keeps it or loses it, as drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fedpeer.peer.state.events import Note, RejectEffect
from fedpeer.peer.state.saving import Recovered
from fedpeer.rejection import Rejection

#: As in a real peer: the newest snapshot, and the one that stands in for it.
SNAPSHOTS_KEPT = 2


@dataclass(frozen=True, kw_only=True)
class DiskRules:
    """How long a save takes: `flush` ticks for each, and its bytes. 5 ms and 160 MB/s with ticks of 25 ms, a plain
    solid-state disk. `longest`: ticks that a save may take beyond that, short times more often than long ones; 0: none.
    """

    flush: float = 0.2
    bytes_per_tick: float = 4e6
    longest: float = 0.0


@dataclass(frozen=True)
class _Stretch:
    """A snapshot and what was saved after it."""

    snapshot: bytes | None = None
    entries: list[bytes] = field(default_factory=list)
    damaged: bool = False


class MemoryDisk:
    """One peer's disk; outlives its processes."""

    def __init__(self, rules: DiskRules, draws: np.random.Generator) -> None:
        self._rules, self._draws = rules, draws
        self._kept = [_Stretch()]
        self._under_way: bytes | list[bytes] | None = None
        self._torn = False
        self.full_until = 0.0

    def append(self, entries: Sequence[bytes]) -> float:
        """Begin to save these; in how many ticks they are durable."""
        return self._begin(list(entries), sum(map(len, entries)))

    def snapshot(self, data: bytes) -> float:
        """Begin to save a whole state; in how many ticks it is durable."""
        return self._begin(data, len(data))

    def _begin(self, what: bytes | list[bytes], size: int) -> float:
        assert self._under_way is None, "one save at a time"
        self._under_way = what
        ticks = self._rules.flush + size / self._rules.bytes_per_tick
        return ticks + self._rules.longest ** float(self._draws.random()) if self._rules.longest else ticks

    def finish(self) -> None:
        """What was begun is durable."""
        assert self._under_way is not None, "nothing was begun"
        if isinstance(self._under_way, bytes):
            self._kept = [*self._kept[1 - SNAPSHOTS_KEPT :], _Stretch(self._under_way)]
        else:
            self._kept[-1].entries.extend(self._under_way)
        self._under_way = None

    def crash(self, draws: np.random.Generator) -> bool:
        """The process or the machine dies. Whether a save that was under way is there all the same."""
        survives = bool(draws.random() < 0.5) and self._under_way is not None
        if survives:
            self.finish()
        self._torn = isinstance(self._under_way, list)
        self._under_way = None
        return survives

    def recover(self) -> Recovered:
        """What the next process finds."""
        remarks: list[Note | RejectEffect] = []
        if self._torn:
            remarks.append(Note("info", "journal_torn", "the last save was not finished"))
            self._torn = False
        used = self._kept
        if used[-1].damaged:
            remarks.append(RejectEffect(Rejection("snapshot_corrupt", "the newest snapshot; the one before is used")))
            # As a real store does: the damaged one is removed, what was saved after it stays.
            used[-2:] = [replace(used[-2], entries=[*used[-2].entries, *used[-1].entries])]
        newest = used[-1]
        return Recovered(snapshot=newest.snapshot, entries=tuple(newest.entries), remarks=tuple(remarks))

    # ---- faults

    def damage(self) -> None:
        """A bit of the newest snapshot flips, if there is one and one before it, or the beginning, stands in for it."""
        if len(self._kept) == SNAPSHOTS_KEPT:
            self._kept[-1] = replace(self._kept[-1], damaged=True)

    def copy(self) -> MemoryDisk:
        """A backup."""
        other = MemoryDisk(self._rules, self._draws)
        other._kept = [replace(each, entries=list(each.entries)) for each in self._kept]
        return other
