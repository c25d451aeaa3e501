"""Checks of a client's update before it is aggregated; the coordinator makes them.

An update and its template, any update of the same algorithm, are leaves by name (`leaves.py`). An update is checked by
itself when it arrives (`fault`). If the federation asks for it (`learning.farthest`), the lengths of a round's updates
are compared when the round closes (`strayed`). Each finding is a rejection code and a sentence for the sender. Nothing
here raises: messages of other peers are data.

These checks find broken peers and obvious attacks. An attack that looks like an honest update passes them all; the
robust rules (`aggregation.py`) limit its effect.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from torch import Tensor

from fedpeer.algorithms.byzantine import JUDGES
from fedpeer.algorithms.precision import widest
from fedpeer.rejection import Rejection

#: The most examples that a client may report: more than any device holds, and few enough that float64 holds the sum
#: over 100,000 clients exactly.
EXAMPLES_MAX = 10**10

#: Most characters of a name from the wire that a message quotes.
_SHOWN = 60


def fault(
    update: Mapping[str, Tensor],
    template: Mapping[str, Tensor],
    *,
    counts: Sequence[str] = ("examples",),
    positive: Sequence[str] = (),
    examples_max: int = EXAMPLES_MAX,
) -> Rejection | None:
    """Return the first fault of a single client's update, or None.

    Args:
        counts: leaves that are numbers of examples, whole and from 1 to `examples_max`, if the template has them.
        positive: leaves whose numbers are all above 0, such as precisions, if the template has them.
        examples_max: largest number of examples; default `EXAMPLES_MAX`.
    """
    return (
        _unlike(update, template)
        or _not_finite(update)
        or _counts(update, [name for name in counts if name in template], examples_max)
        or _positive(update, [name for name in positive if name in template])
    )


def _unlike(update: Mapping[str, Tensor], template: Mapping[str, Tensor]) -> Rejection | None:
    """Return the first difference in name, shape or type from the template, or None."""
    for name in template:
        if name not in update:
            return Rejection("wrong_shape", f"{name} is missing")
    for name in update:
        if name not in template:
            return Rejection("wrong_shape", f"{name[:_SHOWN]!r} is unknown; an update has {', '.join(template)}")
    for name, wanted in template.items():
        if update[name].shape != wanted.shape:
            found = tuple(update[name].shape)
            return Rejection("wrong_shape", f"{name} has shape {found}, and should have {tuple(wanted.shape)}")
    for name, wanted in template.items():
        if update[name].dtype != wanted.dtype:
            return Rejection("wrong_dtype", f"{name} is {_type(update[name])}, and should be {_type(wanted)}")
    return None


def _type(leaf: Tensor) -> str:
    return str(leaf.dtype).removeprefix("torch.")


def _not_finite(update: Mapping[str, Tensor]) -> Rejection | None:
    for name, leaf in update.items():
        wrong = int((~leaf.isfinite()).sum())
        if wrong:
            return Rejection("not_finite", f"{name}: {wrong} of {leaf.numel()} numbers are NaN or infinite")
    return None


def _counts(update: Mapping[str, Tensor], names: Sequence[str], most: int) -> Rejection | None:
    for name in names:
        leaf = update[name].to(widest(update[name].device))
        if not ((leaf >= 1) & (leaf <= most) & (leaf == leaf.floor())).all():
            text = f"{name} = {_first(leaf):g}, and must be a whole number from 1 to {most:,}"
            return Rejection("bad_sample_count", text)
    return None


def _positive(update: Mapping[str, Tensor], names: Sequence[str]) -> Rejection | None:
    for name in names:
        low = update[name].min()
        if not low > 0:
            return Rejection("bad_precision", f"the least number of {name} is {float(low):g}, and all must be above 0")
    return None


def _first(leaf: Tensor) -> float:
    return float(leaf.flatten()[0])


def length(change: Mapping[str, Tensor]) -> float:
    """Return the Euclidean length of a client's change, with all of its leaves as one vector."""
    return math.sqrt(sum(float(leaf.to(widest(leaf.device)).square().sum()) for leaf in change.values()))


def strayed(changes: Mapping[str, Tensor], limit: float) -> list[Rejection | None]:
    """Return a rejection for each change (K, ...) that is longer than `limit` times the round's median, else None."""
    count = len(next(iter(changes.values())))
    return too_far([length({name: leaf[row] for name, leaf in changes.items()}) for row in range(count)], limit=limit)


def too_far(lengths: Sequence[float], *, limit: float) -> list[Rejection | None]:
    """Return a rejection for each update whose `length` is above `limit` times the round's median, else None.

    No update is rejected in a round of fewer than three, since a single client could choose their median, or if most
    updates have not moved at all.
    """
    middle = statistics.median(lengths) if len(lengths) >= JUDGES else 0.0
    if middle == 0:
        return [None] * len(lengths)
    return [
        Rejection("too_far", f"it moved by {each:.3g}; the limit is {limit * middle:.3g}, {limit:g} times the median")
        if each > limit * middle
        else None
        for each in lengths
    ]
