"""Judges of a simulated run's history that use nothing but its rows.

`fedpeer.sims.network.history` defines the rows. Each judge returns one sentence for each violation, and none if all is
well.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedpeer.sims.network.history import Row

#: Violations that a judge lists before it stops.
SHOWN_MAX = 10


def digest(rows: Iterable[Row]) -> str:
    """Return the hex BLAKE2b of a history: equal for equal runs, on any machine and with any hash seed."""
    found = hashlib.blake2b(digest_size=16)
    for row in rows:
        found.update(repr(row).encode())
        found.update(b"\n")
    return found.hexdigest()


def saved_before_said(rows: Iterable[Row]) -> list[str]:
    """Check that every save requested before an effect is durable when the effect is carried out."""
    wrong: list[str] = []
    waiting: dict[str, deque[int]] = defaultdict(deque)  # for each such effect, the number of saves before it
    options: dict[str, int] = defaultdict(int)
    saved: dict[str, int] = defaultdict(int)
    for tick, what, peer, *rest in rows:
        if what == "asked":
            if rest[0] == "say":
                waiting[peer].append(options[peer])
            else:
                options[peer] += 1
        elif what == "saved":
            saved[peer] += rest[0]
        elif what == "said":
            if not waiting[peer] or waiting[peer].popleft() > saved[peer]:
                wrong.append(f"tick {tick}: {peer} says {rest[0]} before the save that contains it")
        elif what == "kill":
            waiting[peer].clear()
            options[peer] = saved[peer] = 0
    return wrong[:SHOWN_MAX]


def durable(rows: Iterable[Row]) -> list[Row]:
    """Return (tick, peer, fact) of every save with a fact, when it became durable and in that order."""
    facts: list[Row] = []
    options: dict[str, deque[Any]] = defaultdict(deque)
    for tick, what, peer, *rest in rows:
        if what == "asked" and rest[0] != "say":
            options[peer].append(rest[1] if len(rest) > 1 else None)
        elif what in ("saved", "kill"):
            for _ in range(rest[0]):
                fact = options[peer].popleft()
                if fact is not None:
                    facts.append((tick, peer, fact))
            if what == "kill":
                options[peer].clear()
    return facts


def taken_once_and_in_order(facts: Iterable[Row]) -> list[str]:
    """Check the durable facts ("took", channel, number): on each channel 1, 2, 3, ... A channel is identified
    by any value: the receiver with its incarnation, the sender with its own, the group."""
    wrong = []
    last: dict[Any, int] = defaultdict(int)
    for tick, peer, fact in facts:
        if fact[0] != "took":
            continue
        _, channel, number = fact
        if number != last[peer, channel] + 1:
            wrong.append(f"tick {tick}: {peer} takes number {number} of {channel} after {last[peer, channel]}")
        last[peer, channel] = number
    return wrong[:SHOWN_MAX]


def conserved(rows: Iterable[Row], tolerance: float) -> list[str]:
    """Check rows (tick, "mass", group, there, put in): the sum held and in transit is the sum put in, up to a relative
    tolerance."""
    return [
        f"tick {tick}: {group} has {there!r} of {put_in!r}"
        for tick, what, group, *rest in rows
        if what == "mass"
        for there, put_in in [rest]
        if not abs(there - put_in) <= tolerance * abs(put_in)
    ][:SHOWN_MAX]


def inside(rows: Iterable[Row], hulls: Mapping[str, tuple[float, float]], slack: float = 0.0) -> list[str]:
    """Check rows (tick, "estimate", peer, group, least, most): no element leaves the hull of what was put in."""
    wrong = []
    for tick, what, peer, *rest in rows:
        if what != "estimate":
            continue
        group, least, most = rest
        low, high = hulls[group]
        if not (low - slack <= least and most <= high + slack):
            wrong.append(f"tick {tick}: {peer}'s estimate of {group} reaches from {least} to {most}")
    return wrong[:SHOWN_MAX]


def refused(rows: Iterable[Row]) -> dict[str, int]:
    """Return how often each rejection was made."""
    counts: dict[str, int] = defaultdict(int)
    for _, what, _, *rest in rows:
        if what == "refused":
            counts[rest[0]] += 1
    return dict(sorted(counts.items()))


def only_harmless(rows: Iterable[Row], kinds: Mapping[str, str]) -> list[str]:
    """Check that honest peers under faults make no rejection that counts against the rejected one (kinds s and x)."""
    return [f"{code} was uttered {count} times" for code, count in refused(rows).items() if kinds[code] in "sx"]


def judged(*findings: Sequence[str]) -> None:
    """Raise AssertionError with everything found wrong."""
    wrong = [sentence for each in findings for sentence in each]
    assert not wrong, "\n".join(wrong)
