"""What a run had reached after so many seconds of virtual time, or needed to be so accurate. Pure: rows in, rows out.

Peers that wait for nobody finish a round at different moments, so a round is no time. A row says of each peer when it
had finished that round, and how its model scored then; at any moment a peer is as good as its last model of a round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedpeer.sims.network.engine import SECONDS

#: Statistic of a row made by `at_accuracy`: 10^6 bytes that all peers together had sent.
MEGABYTES = "megabytes"

Row = Mapping[str, Any]


def at_second(rows: Sequence[Row], second: float) -> list[Row]:
    """One row a seed, as if it had been evaluated then: of each peer what it scored last until that second.

    rows    of one method; every peer has finished an evaluated round by then

    The bytes and messages are those of the rounds that all peers had finished; the round is counted as the first, so
    that seeds compare whatever their rounds were.
    """
    by_seed: dict[int, list[Row]] = {}
    for row in rows:
        by_seed.setdefault(row["seed"], []).append(row)
    return [_at(found, second) for found in by_seed.values()]


def at_accuracy(rows: Sequence[Row], accuracy: float) -> list[Row]:
    """One row a seed: that of the first evaluated round after which the mean accuracy of the peers was so high, with
    the bytes and messages of all rounds until then; counted as the first round. Of a seed that never came so far its
    last round, and then nothing is said of the bytes of any seed.

    rows    of one method; accuracy    a fraction
    """
    by_seed: dict[int, list[Row]] = {}
    for row in rows:
        by_seed.setdefault(row["seed"], []).append(row)
    found: list[dict[str, Any]] = []
    everywhere = True
    for of_seed in by_seed.values():
        scored = [row for row in of_seed if row["accuracy"] is not None]
        reached = next((row for row in scored if float(np.mean(row["accuracy"])) >= accuracy), None)
        everywhere &= reached is not None
        last = scored[-1] if reached is None else reached
        sent = {
            name: np.sum([row[name] for row in of_seed if row["round"] <= last["round"]], axis=0).tolist()
            for name in ("bytes_sent", "messages_sent")
        }
        found.append({**last, **sent, "round": 1, "statistics": {}})
    if everywhere:
        for row in found:
            row["statistics"] = {MEGABYTES: [sum(row["bytes_sent"]) / 1e6]}
    return [*found]


def _at(rows: Sequence[Row], second: float) -> Row:
    """Of one seed."""
    scored = [row for row in rows if row["accuracy"] is not None]
    last = [_last(scored, peer, second) for peer in range(len(scored[0]["accuracy"]))]
    over = max((row["round"] for row in scored if max(row["statistics"][SECONDS]) <= second), default=0)
    return {
        **scored[0],
        "round": 1,
        "accuracy": [row["accuracy"][peer] for peer, row in enumerate(last)],
        "loss": [row["loss"][peer] for peer, row in enumerate(last)],
        "statistics": {SECONDS: [row["statistics"][SECONDS][peer] for peer, row in enumerate(last)]},
        **{
            name: [sum(row[name][peer] for row in rows if row["round"] <= over) for peer in range(len(last))]
            for name in ("bytes_sent", "messages_sent")
        },
    }


def _last(rows: Sequence[Row], peer: int, second: float) -> Row:
    """The last of the rows that a peer had finished until then."""
    there = [row for row in rows if row["statistics"][SECONDS][peer] <= second]
    assert there, f"after {second:g} virtual seconds peer {peer + 1} had not finished an evaluated round"
    return there[-1]
