"""What a run had reached after so many seconds of virtual time, or needed to come so far. Pure: rows in, rows out.

Peers that wait for nobody finish a round at different moments, so a round is no time. A row says of each peer when it
had finished that round, and how its model scored then; at any moment a peer is as good as its last model of a round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedpeer.algorithms.mocha.comparators import METHODS, NETWORKS, seconds_of
from fedpeer.experiments.experiment import AtAccuracy, AtObjective, AtRound, AtSecond, Moment
from fedpeer.sims.network.engine import SECONDS

#: Statistic of a row made by `at_accuracy`: 10^6 bytes that all peers together had sent.
MEGABYTES = "megabytes"

_Row = Mapping[str, Any]


def read_at(rows: Sequence[_Row], moment: Moment) -> list[_Row]:
    """The rows of one method as they were at that moment; what is read of them is the last of each seed."""
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
    """One row a seed, as if it had been evaluated then: of each peer what it scored last until that second.

    rows    of one method; every peer has finished an evaluated round by then

    The bytes and messages are those of the rounds that all peers had finished; the round is counted as the first, so
    that seeds compare whatever their rounds were.
    """
    return [_at(found, second) for found in _by_seed(rows)]


def at_accuracy(rows: Sequence[_Row], accuracy: float) -> list[_Row]:
    """One row a seed: that of the first evaluated round after which the mean accuracy of the peers was so high, with
    the bytes and messages of all rounds until then; counted as the first round. Of a seed that never came so far its
    last round, and then nothing is said of the bytes of any seed.

    rows    of one method; accuracy    a fraction
    """
    found: list[dict[str, Any]] = []
    everywhere = True
    for of_seed in _by_seed(rows):
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


def at_objective(rows: Sequence[_Row], wanted: AtObjective) -> list[_Row]:
    """One row a seed: that of the round before which the objective was so small, with the seconds that the rounds until
    then take in MOCHA's model of time, by network; counted as the first round. Of a seed that never came so far its
    last round, and then nothing is said of the seconds of any seed.

    rows    of one of `METHODS`, every round evaluated; "primal" is each client's part of the objective where a round
            began, and "steps" are those that it took in it
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


def _last(rows: Sequence[_Row], peer: int, second: float) -> _Row:
    """The last of the rows that a peer had finished until then."""
    there = [row for row in rows if row["statistics"][SECONDS][peer] <= second]
    assert there, f"after {second:g} virtual seconds peer {peer + 1} had not finished an evaluated round"
    return there[-1]
