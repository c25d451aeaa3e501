"""Scores that a run reached by a time, and the cost of reaching a goal. Pure: rows in, rows out.

Asynchronous peers finish a round at different times, so a round is not a time. A row has the time at which each peer
finished that round and the score of its model then; at any time a peer's score is that of its last finished round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedpeer.algorithms.mocha.comparators import METHODS, NETWORKS, seconds_of
from fedpeer.experiments.experiment import AtAccuracy, AtObjective, AtRound, AtSecond, Moment
from fedpeer.sims.network.engine import SECONDS

#: Statistic of a row made by `at_accuracy`: 10^6 bytes sent by all peers together.
MEGABYTES = "megabytes"
#: What rounding may take from a mean accuracy: that of 0.82 and 0.98 is a little below 0.9.
_ROUNDING = 1e-9

_Row = Mapping[str, Any]


def read_at(rows: Sequence[_Row], moment: Moment) -> list[_Row]:
    """Return the rows of one method up to a moment; the last row of each seed is the state then."""
    match moment:
        case AtRound(round):
            return [row for row in rows if row["round"] <= round]
        case AtSecond(second):
            return at_second(rows, second)
        case AtAccuracy(accuracy):
            return at_accuracy(rows, accuracy)
        case AtObjective():
            return at_objective(rows, moment)


def _by_seed(rows: Sequence[_Row]) -> list[list[_Row]]:
    found: dict[int, list[_Row]] = {}
    for row in rows:
        found.setdefault(row["seed"], []).append(row)
    return [*found.values()]


def at_second(rows: Sequence[_Row], second: float) -> list[_Row]:
    """Return one row per seed with each peer's last score up to a second of virtual time.

    Bytes and messages are those of the rounds that all peers had finished. The row counts as round 1, so that seeds can
    be compared although their rounds differ.

    Args:
        rows: rows of one method; every peer has finished an evaluated round by then.
        second: virtual time in s.
    """
    return [_at(found, second) for found in _by_seed(rows)]


def at_accuracy(rows: Sequence[_Row], accuracy: float) -> list[_Row]:
    """Return one row per seed: its first evaluated round whose mean accuracy over peers reaches a goal.

    It has the bytes and messages of all rounds until then, and counts as round 1. A seed that never reaches the goal
    gives its last round, and then no seed has the statistic `MEGABYTES`.

    Args:
        rows: rows of one method.
        accuracy: the goal, a fraction.
    """
    found: list[dict[str, Any]] = []
    everywhere = True
    for of_seed in _by_seed(rows):
        scored = [row for row in of_seed if row["accuracy"] is not None]
        reached = next((row for row in scored if float(np.mean(row["accuracy"])) >= accuracy - _ROUNDING), None)
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


def at_objective(rows: Sequence[_Row], wanted: AtObjective) -> list[_Row]:
    """Return one row per seed: the first round that begins with an objective as small as wanted.

    It has the seconds of the rounds until then in MOCHA's model of time, by network, and counts as round 1. A seed that
    never reaches the goal gives its last round, and then no seed has seconds.

    Args:
        rows: rows of one of `METHODS`, with every round evaluated; the statistic "primal" is each client's part of the
            objective at the start of a round, "steps" the number of steps that it took in it.
        wanted: the goal.
    """
    found: list[dict[str, Any]] = []
    seconds: list[dict[str, list[float]]] = []
    for of_seed in _by_seed(rows):
        method = of_seed[0]["method"].partition(",")[0]
        assert method in METHODS, f"{method} has no model of time"
        objective_R = np.array([sum(row["statistics"]["primal"]) for row in of_seed])
        reached = np.flatnonzero(objective_R <= wanted.share * objective_R[0])
        before = int(reached[0]) if len(reached) else len(of_seed) - 1
        found.append({**of_seed[before], "round": 1, "statistics": {}})
        if len(reached):
            steps_RT = np.array([row["statistics"]["steps"] for row in of_seed[:before]], np.int64)
            ends = {network: seconds_of(method, network, steps_RT, wanted.features) for network in NETWORKS}
            seconds.append({network: [float(ends_R[-1])] for network, ends_R in ends.items()})
    if len(seconds) == len(found):
        for row, of_networks in zip(found, seconds, strict=True):
            row["statistics"] = of_networks
    return [*found]


def _at(rows: Sequence[_Row], second: float) -> _Row:
    """Return the row of one seed at a second."""
    scored = [row for row in rows if row["accuracy"] is not None]
    last = [_last(scored, peer, second) for peer in range(len(scored[0]["accuracy"]))]
    over = max((row["round"] for row in scored if max(row["statistics"][SECONDS]) <= second), default=0)
    return {
        **scored[0],
        "round": 1,
        "accuracy": [row["accuracy"][peer] for peer, row in enumerate(last)],
        "loss": [row["loss"][peer] for peer, row in enumerate(last)],
        "statistics": {SECONDS: [row["statistics"][SECONDS][peer] for peer, row in enumerate(last)]},
        "disagreement": {},  # that of the first round is not of these models
        **{
            name: [sum(row[name][peer] for row in rows if row["round"] <= over) for peer in range(len(last))]
            for name in ("bytes_sent", "messages_sent")
        },
    }


def _last(rows: Sequence[_Row], peer: int, second: float) -> _Row:
    """Return the last row whose round a peer had finished by a second."""
    there = [row for row in rows if row["statistics"][SECONDS][peer] <= second]
    assert there, f"after {second:g} virtual seconds peer {peer + 1} had not finished an evaluated round"
    return there[-1]
