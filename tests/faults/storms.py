"""Faults of all kinds after a calm beginning, in which all peers meet and begin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedpeer.sims.network.faults import FaultKind, Faults, draw_faults

#: Ticks after the calm in which any fault may happen.
STORM = 300.0
#: All faults of a process or a disk that lose no memory.
KINDS: tuple[FaultKind, ...] = ("kill", "flip", "pause", "step", "full")


def stormy(seed: int, peers: Sequence[str], kinds: Sequence[FaultKind] = KINDS, *, calm: float) -> Faults:
    """Return the faults of this seed, after so many calm ticks."""
    faults = draw_faults(seed, peers, STORM, kinds)
    return replace(
        faults,
        cuts=tuple(replace(cut, begin=cut.begin + calm, end=cut.end + calm) for cut in faults.cuts),
        acts=tuple(replace(act, tick=act.tick + calm) for act in faults.acts),
        heal=calm + STORM,
    )
