"""What is asked for by `gossip.drift`, and whether it fits how values are averaged.

Averages are taken where something has moved, and not where nothing has (`event_trigger.py` has the rule). Nothing here
needs torch, so that a federation file is checked without it.
"""

from __future__ import annotations

#: Exchanges in which who was woken gives weight back to who woke it.
EXCHANGES_MIN = 2


class DriftError(ValueError):
    """A drift that cannot be played; the message says what to write instead."""


def unfit(protocol: str, *, exchanges: int | None, noise: bool) -> str | None:
    """Why averaging by drift does not go with this protocol, number of exchanges (None: it follows from a tolerance)
    and phase of noise, if so."""
    if protocol == "coordinator":
        return "a coordinator takes the mean of all members, moved or not; write protocol: push-sum or exact"
    if noise:
        return "who is quiet tells no noise, and its first true share would be bare; write privacy: none"
    if exchanges is not None and exchanges < EXCHANGES_MIN and protocol != "exact":
        return f"who is woken gives back in a later exchange; write exchanges: {EXCHANGES_MIN} or more"
    return None
