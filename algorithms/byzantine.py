"""The number of Byzantine clients that an aggregation rule tolerates, given the number of updates."""

from __future__ import annotations

#: With at least this many updates, one Byzantine client cannot choose their median.
JUDGES = 3


class RobustError(ValueError):
    """A rule cannot tolerate so many Byzantine clients among so few updates; the message names both and the way out."""


def check_liars(rule: str, updates: int, liars: int) -> None:
    """Check that f Byzantine clients cannot decide the result: all rules here are for n >= 2 f + 3 updates.

    Raises:
        RobustError: f < 0, or n < 2 f + 3 (Blanchard et al. 2017, proposition 1, needs 2 f + 2 < n; every rule requires
            the same margin, so that one rule can replace another).
    """
    if liars < 0:
        raise RobustError(f"{rule}: liars = {liars}: write 0 or more")
    if updates < 2 * liars + 3:
        most = (updates - 3) // 2
        way_out = f"lower liars to {most}" if most >= 0 else "take the plain mean"
        raise RobustError(
            f"{rule}: liars = {liars} needs 2 * liars + 3 = {2 * liars + 3} updates in a round, and there are "
            f"{updates}; {way_out}, or let more peers take part in a round"
        )
