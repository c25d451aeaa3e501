"""The metric rows of each method as a `History`: means over seeds, round by round.

Pure: rows in, arrays out. Letters of shapes: S seeds, P peers, R evaluated rounds, T trained rounds. A row is

    {"method": "partial-averaging", "seed": 0, "round": 3, "seconds": 0.41, "accuracy": [P floats] or null,
     "error": [P] instead for regression, "loss": [P], "bytes_sent": [P], "messages_sent": [P],
     "disagreement": {group: float}, "weight": {group: [least, greatest]},
     "metrics": {name: [P floats or null]} in the last round, if any were wanted}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Measure = Literal["accuracy", "error"]
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class History:
    """One method of a run.

    seeds            the seeds with the most rounds; a seed that was interrupted earlier is left out of every mean
    scores_SP        (S, P) accuracy (0 to 1), or error, at the last evaluated round; (0, 0) if there was none
    round_R          (R,) evaluated rounds, counted from 1
    score_RP         (R, P) mean over seeds
    loss_RP          (R, P) mean loss on each peer's test part, mean over seeds; NaN if not recorded
    round_T          (T,) trained rounds
    bytes_T, messages_T   (T,) sums over peers, mean over seeds
    seconds_T        (T,) wall time of the round, mean over seeds
    disagreement     averaging group -> (T,) relative disagreement left, mean over seeds; NaN if not recorded
    weight           averaging group -> (T, 2) least and greatest push-sum weight over seeds; NaN if not recorded
    """

    method: str
    measure: Measure
    seeds: tuple[int, ...]
    scores_SP: Floats
    round_R: NDArray[np.int64]
    score_RP: Floats
    loss_RP: Floats
    round_T: NDArray[np.int64]
    bytes_T: Floats
    messages_T: Floats
    seconds_T: Floats
    disagreement: Mapping[str, Floats]
    weight: Mapping[str, Floats]


def histories(rows: Iterable[Mapping[str, Any]]) -> dict[str, History]:
    """Return the history of each method, in the order in which the methods first appear.

    If a round was recorded twice, the last row counts.
    """
    runs: dict[str, dict[int, dict[int, Mapping[str, Any]]]] = {}
    for row in rows:
        runs.setdefault(row["method"], {}).setdefault(row["seed"], {})[row["round"]] = row
    return {method: _history(method, seeds) for method, seeds in runs.items()}


def _history(method: str, seeds: Mapping[int, Mapping[int, Mapping[str, Any]]]) -> History:
    every = [row for rounds in seeds.values() for row in rounds.values()]
    measure: Measure = "error" if any("error" in row for row in every) else "accuracy"
    reached = {seed: max(rounds) for seed, rounds in seeds.items()}
    full = {seed: rounds for seed, rounds in sorted(seeds.items()) if reached[seed] == max(reached.values())}
    trained = sorted(set.intersection(*(set(rounds) for rounds in full.values())))
    by_round = {number: [rounds[number] for rounds in full.values()] for number in trained}
    evaluated = [n for n, rows in by_round.items() if all(row.get(measure) is not None for row in rows)]
    score_RSP = [_floats([row[measure] for row in by_round[n]]) for n in evaluated]
    loss_RSP = [
        _floats([row.get("loss") or [None] * score_SP.shape[1] for row in by_round[n]])
        for n, score_SP in zip(evaluated, score_RSP, strict=True)
    ]
    return History(
        method=method,
        measure=measure,
        seeds=tuple(full),
        scores_SP=score_RSP[-1] if evaluated else np.empty((0, 0)),
        round_R=np.array(evaluated, dtype=np.int64),
        score_RP=np.stack([score_SP.mean(axis=0) for score_SP in score_RSP]) if evaluated else np.empty((0, 0)),
        loss_RP=np.stack([loss_SP.mean(axis=0) for loss_SP in loss_RSP]) if evaluated else np.empty((0, 0)),
        round_T=np.array(trained, dtype=np.int64),
        bytes_T=_totals(by_round.values(), "bytes_sent"),
        messages_T=_totals(by_round.values(), "messages_sent"),
        seconds_T=_floats([np.mean([row.get("seconds") or 0.0 for row in rows]) for rows in by_round.values()]),
        disagreement={
            group: _floats([_disagreement(rows, group) for rows in by_round.values()])
            for group in _groups(every, "disagreement")
        },
        weight={
            group: _floats([_weights(rows, group) for rows in by_round.values()]) for group in _groups(every, "weight")
        },
    )


def _floats(values: Any) -> Floats:
    """Convert to float64; null becomes NaN."""
    return np.array(values, dtype=np.float64)


def _totals(rounds: Iterable[list[Mapping[str, Any]]], key: str) -> Floats:
    """Return the sums over peers, as means over seeds, (T,)."""
    return _floats([np.mean([sum(row.get(key) or [0]) for row in rows]) for rows in rounds])


def _groups(rows: list[Mapping[str, Any]], key: str) -> list[str]:
    return list(dict.fromkeys(group for row in rows for group in row.get(key) or {}))


def _disagreement(rows: list[Mapping[str, Any]], group: str) -> float:
    return float(np.mean(_floats([(row.get("disagreement") or {}).get(group) for row in rows])))


def _weights(rows: list[Mapping[str, Any]], group: str) -> tuple[float, float]:
    least_greatest_S2 = _floats([(row.get("weight") or {}).get(group) or (None, None) for row in rows])
    return float(least_greatest_S2[:, 0].min()), float(least_greatest_S2[:, 1].max())
