"""The four scores of a method with a server, in the last and the best round. Pure: rows in.

    model             weighted by test sizes   each peer counts the same
    the server's      S                        GM
    the peer's own    MT                       PM

The main score is that of the last round. The server's model of one round depends on the round's participants, so the
mean over the last `LATE` rounds is beside it if all of these were evaluated (`learning.evaluate_last`). The best round
is chosen on validation examples (`simulation.validation`) or, without any, on the test data itself: then the score is
optimistic, and the report says so.

Sources: Corinzia, Beuret, Buhmann, Variational Federated Multi-Task Learning, 2019, section IV.C (S, MT); Zhu, Ma,
Blaschko, Confidence-aware Personalized Federated Learning via Variational Expectation Maximization, CVPR 2023, section
5.1 (GM, PM).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedpeer.runs.disk import finite
from fedpeer.runs.history import Measure

#: Name -> (prefix of the row's scores, whether weighted by test sizes).
METRICS = {"PM": ("", False), "MT": ("", True), "GM": ("server_", False), "S": ("server_", True)}
#: Last rounds over which a score is averaged beside that of the last one.
LATE = 10


def read_scores(rows: Iterable[Mapping[str, Any]], measure: Measure) -> dict[str, dict[str, Any]]:
    """Return the score of each metric in one method's rows, in the last and the best round: mean and SEM over seeds.

    `best_by` is "validation" or "test". "late" is the mean over the last `LATE` rounds, if all were evaluated. Only the
    seeds with the most rounds count. A number is None, as it is null in `summary.json`, where a peer diverged.
    """
    by_seed: dict[int, dict[int, Mapping[str, Any]]] = {}
    for row in rows:
        if row.get(measure) is not None and row.get("tested") is not None:
            by_seed.setdefault(row["seed"], {})[row["round"]] = row
    if not by_seed:
        return {}
    last = max(max(rounds) for rounds in by_seed.values())
    full = [[rounds[n] for n in sorted(rounds)] for _, rounds in sorted(by_seed.items()) if max(rounds) == last]
    found = {}
    for name, (prefix, pooled) in METRICS.items():
        if all(f"{prefix}{measure}" in row for history in full for row in history):
            found[name] = _over_seeds([_last_and_best(history, prefix, measure, pooled) for history in full])
            found[name]["best_by"] = _chosen_by(full[0], prefix, measure)
            if all(len(history) >= LATE and history[-LATE]["round"] == last - LATE + 1 for history in full):
                late_S = np.array([_late(history, prefix, measure, pooled) for history in full])
                found[name] |= {
                    "late": finite(late_S.mean()),
                    "late_sem": _sem(late_S),
                    "late_per_seed": [finite(score) for score in late_S],
                }
    return found


def _late(history: Sequence[Mapping[str, Any]], prefix: str, measure: Measure, pooled: bool) -> float:
    scores = [_mean(row[f"{prefix}{measure}"], row["tested"] if pooled else None) for row in history[-LATE:]]
    return float(np.mean(scores))


def _last_and_best(history: Sequence[Mapping[str, Any]], prefix: str, measure: Measure, pooled: bool) -> list[float]:
    tested = [_mean(row[f"{prefix}{measure}"], row["tested"] if pooled else None) for row in history]
    judged = validated(history, f"{prefix}{measure}") or tested
    known = [number for number, score in enumerate(judged) if math.isfinite(score)] or [len(judged) - 1]
    best = (max if measure == "accuracy" else min)(known, key=judged.__getitem__)
    return [tested[-1], tested[best]]


def best_models(rows: Iterable[Mapping[str, Any]], measure: Measure) -> dict[str, Any]:
    """Return the scores of the peers' models of their best rounds, mean over seeds; empty without validation examples.

    mean       over peers; a peer without validation examples counts with its last model; None if such a model diverged
    per_peer   one number per peer, or None
    peers      number of peers with validation examples

    The best round has the best validation score; of equal ones that of smaller loss, and then the first
    (`learning.models.BestRound`, by which the models themselves are kept).
    """
    by_seed: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row.get(measure) is not None and row.get(f"validation_{measure}") is not None:
            by_seed.setdefault(row["seed"], []).append(row)
    if not by_seed:
        return {}
    score_SP, peers = [], 0
    for history in by_seed.values():
        score_RP, rank_RP, loss_RP = (
            np.array([row[name] for row in history], dtype=np.float64)  # null becomes NaN
            for name in (measure, f"validation_{measure}", "validation_loss")
        )
        rank_RP = rank_RP if measure == "accuracy" else -rank_RP
        there_RP = np.isfinite(rank_RP) & np.isfinite(loss_RP)
        rank_RP, loss_RP = np.where(there_RP, rank_RP, -np.inf), np.where(there_RP, loss_RP, np.inf)
        leading_RP = there_RP & (rank_RP == rank_RP.max(axis=0))
        best_P = np.where(leading_RP, loss_RP, np.inf).argmin(axis=0)
        best_P = np.where(there_RP.any(axis=0), best_P, len(history) - 1)
        score_SP.append(score_RP[best_P, np.arange(len(best_P))])
        peers = max(peers, int(there_RP.any(axis=0).sum()))
    if not peers:
        return {}
    score_P = np.mean(score_SP, axis=0)
    return {"mean": finite(score_P.mean()), "per_peer": [finite(score) for score in score_P], "peers": peers}


def validated(history: Sequence[Mapping[str, Any]], score: str) -> list[float]:
    """Return each round's mean validation score over the peers that hold out an example; empty without such peers.

    The other peers have no score in any round. A peer that diverged has no score in some rounds: their means are NaN.
    """
    name = f"validation_{score}"
    if not all(name in row for row in history):
        return []
    score_RP = np.array([row[name] for row in history], dtype=np.float64)  # null becomes NaN
    there_P = np.isfinite(score_RP).any(axis=0)
    return [float(score_P.mean()) for score_P in score_RP[:, there_P]] if there_P.any() else []


def _chosen_by(history: Sequence[Mapping[str, Any]], prefix: str, measure: Measure) -> str:
    return "validation" if validated(history, f"{prefix}{measure}") else "test"


def _mean(values: Sequence[float], weights: Sequence[float] | None) -> float:
    return float(np.average(np.array(values, dtype=np.float64), weights=weights))


def _over_seeds(found: Sequence[Sequence[float]]) -> dict[str, Any]:
    final_S, best_S = np.array(found, dtype=np.float64).T
    return {
        "final": finite(final_S.mean()),
        "final_sem": _sem(final_S),
        "best": finite(best_S.mean()),
        "best_sem": _sem(best_S),
        "per_seed": [finite(score) for score in final_S],
    }


def _sem(values_S: Any) -> float | None:
    return finite(values_S.std(ddof=1) / math.sqrt(len(values_S))) if len(values_S) > 1 else None
