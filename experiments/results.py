"""Results of an experiment, one `Measured` per cell, and claims about them. Pure.

Numbers are those of the last round, one per seed, so that two cells can be compared in pairs. The best round is given
too if it was chosen on validation examples, and never if it would have to be chosen on test examples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from fedpeer.runs.scores import METRICS, validated
from fedpeer.runs.summary import summarise

#: Statistic of every run with accuracies: the accuracy of the tenth of the peers with the lowest.
WORST = "worst tenth"
#: Metrics of the server's model.
_SERVERS = ("GM", "S")
#: Validation score of a peer that diverged.
_LOST = -1.0


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Results of one cell. A number that some seed lacks, as one that diverged may, is left out.

    label        the cell's label
    variant      the variant that was taken
    seeds        its finished seeds
    rounds       number of rounds
    peers        number of peers
    per_seed     metric (PM, MT, GM, S) -> score of the last round, a fraction, for each seed
    sent         bytes per round, of all peers together
    seconds      duration of all its runs, searches included, but not of runs shared from other experiments
    tried        variant -> its validation score
    folds        number of parts of the training examples of which each was held out in turn for these scores
    best         metric -> (mean, SEM or None) over seeds of the round with the best validation score
    late         metric of the server's model -> mean over the last rounds (`scores.LATE`), for each seed; only if these
                 were all evaluated
    statistics   name -> mean over the peers that have it (it is not 0) in the last round, for each seed, as given by
                 the algorithm or engine; "disagreement": the largest distance of peers from the mean of a group;
                 "loss", "loss by examples": mean test loss, see `_losses`; "worst tenth": accuracy of the tenth of the
                 peers with the lowest; "auc", "auc by examples" and the like: further metrics of the last models, if
                 any were wanted
    """

    label: str
    variant: str
    seeds: tuple[int, ...]
    rounds: int
    peers: int
    per_seed: Mapping[str, tuple[float, ...]]
    sent: float
    seconds: float
    tried: Mapping[str, float] = field(default_factory=dict)
    folds: int = 1
    best: Mapping[str, tuple[float, float | None]] = field(default_factory=dict)
    late: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    statistics: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        label: str,
        rows: Iterable[Mapping[str, Any]],
        *,
        variant: str,
        tried: Mapping[str, float],
        seconds: float,
        folds: int = 1,
    ) -> Measured:
        """Return the results of the rows of one method, of all its seeds."""
        rows = list(rows)
        (found,) = summarise(rows).values()
        scores = found["scores"]
        statistics = _statistics([row for row in rows if row["round"] == found["rounds"]]) | _losses(rows)
        return cls(
            label=label,
            variant=variant,
            seeds=tuple(found["seeds"]),
            rounds=found["rounds"],
            peers=len(found["accuracy_per_peer"]),
            per_seed={name: tuple(each["per_seed"]) for name, each in scores.items() if None not in each["per_seed"]},
            sent=found["bytes_sent"] / found["rounds"],
            seconds=seconds,
            tried=dict(tried),
            folds=folds,
            best={
                name: (each["best"], each["best_sem"])
                for name, each in scores.items()
                if each["best_by"] == "validation" and each["best"] is not None
            },
            late={
                name: tuple(scores[name]["late_per_seed"])
                for name in _SERVERS
                if scores.get(name, {}).get("late") is not None
            },
            statistics={name: values_S for name, values_S in statistics.items() if np.isfinite(values_S).all()},
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Measured:
        lists = {
            "seeds": tuple(data["seeds"]),
            "per_seed": {name: tuple(values) for name, values in data["per_seed"].items()},
            "best": {name: (mean, sem) for name, (mean, sem) in data["best"].items()},
            "late": {name: tuple(values) for name, values in data.get("late", {}).items()},
            "statistics": {name: tuple(values) for name, values in data["statistics"].items()},
        }
        return cls(**{**data, **lists})


#: The finished cells of an experiment by label.
CellResults = Mapping[str, Measured]


#: p of a claim that needs a test and cannot have one, since numbers are missing.
UNTESTED = math.nan


@dataclass(frozen=True)
class ClaimVerdict:
    """Verdict on a claim, before noise is considered.

    held    whether the numbers favour it; None: it cannot be checked
    words   by how much
    p       two-sided p-value of that; None: it needs no test; UNTESTED: it cannot be tested, so is not beyond noise
    runs    number of runs behind it; 0: it is about counts, which are the same in each run
    """

    held: bool | None
    words: str
    p: float | None = None
    runs: int = 0


@dataclass(frozen=True)
class PaperClaim:
    """A statement of the paper, or a criterion of its reproduction, that can be checked.

    text     the statement, as a sentence
    check    results -> verdict
    needs    labels of the cells that it needs
    about    labels of further cells; it compares those that were run
    printed  whether it is about the paper's exact numbers, and so is checked at the paper's own size only
    """

    text: str
    check: Callable[[CellResults], ClaimVerdict]
    needs: tuple[str, ...] = ()
    about: tuple[str, ...] = ()
    printed: bool = False


@dataclass(frozen=True)
class Middle:
    """Middle of some runs, as figures show it: the median, and the values below which 40 % and 60 % of them are.

    Source: the second and third quintile of partial averaging, 2021, section V, interpolated linearly.
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Middle:
        low, median, high = np.quantile(np.array(values, dtype=np.float64), (0.4, 0.5, 0.6))
        return cls(float(median), float(low), float(high))


def mean_and_sem(values: Sequence[float]) -> tuple[float, float | None]:
    """Return mean and standard error, which is None for a single value."""
    array = np.array(values, dtype=np.float64)
    return float(array.mean()), float(array.std(ddof=1) / math.sqrt(len(array))) if len(array) > 1 else None


def validation_score(rows: Sequence[Mapping[str, Any]], metric: str) -> float:
    """Return a variant's validation score in its last round: the mean over peers, seeds and folds; more is better.

    A peer that diverged scores below all others: the loss tells, as a model without numbers still gives some class as
    its answer, which may be right. Peers that hold out no example have no say, nor have those for which a metric of
    `ANSWER_METRICS`, such as "auc", is not defined.
    """
    last = max(row["round"] for row in rows)
    return float(np.mean([_validation_mean(row, metric) for row in rows if row["round"] == last]))


def _validation_mean(row: Mapping[str, Any], metric: str) -> float:
    """Return a row's mean validation score over peers."""
    prefix = METRICS[metric][0] if metric in METRICS else ""
    accuracy_P, loss_P = row[f"validation_{prefix}accuracy"], row[f"validation_{prefix}loss"]
    score_P = accuracy_P if metric in METRICS else row["validation_metrics"][metric]
    peers = zip(score_P, accuracy_P, loss_P, strict=True)
    found = [
        _LOST if loss is None else score
        for score, accuracy, loss in peers
        if accuracy is not None and (loss is None or score is not None)
    ]
    return float(np.mean(found)) if found else _LOST


def _statistics(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float, ...]]:
    """Return the statistics of the last rows, one per seed, in the order of the seeds."""
    rows = sorted(rows, key=lambda row: int(row["seed"]))
    names = rows[0].get("statistics", {})
    found = {name: tuple(_mean_where_it_is(row["statistics"][name]) for row in rows) for name in names}
    for name in rows[0].get("metrics") or {}:
        found[name] = tuple(_mean_where_defined(row["metrics"][name]) for row in rows)
        found[f"{name} by examples"] = tuple(_mean_where_defined(row["metrics"][name], row["tested"]) for row in rows)
    if all(row.get("accuracy") for row in rows):
        found[WORST] = tuple(_worst_tenth(row["accuracy"]) for row in rows)
    if all(row["disagreement"] for row in rows):
        left_SG = [np.array([*row["disagreement"].values()], dtype=np.float64) for row in rows]  # null becomes NaN
        found["disagreement"] = tuple(float(left_G.max()) for left_G in left_SG)
    return found


def _losses(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float, ...]]:
    """Return the mean test loss over peers and over test examples, one number per seed.

    It is the loss in the round whose mean loss is least on examples kept back, or in the last round if there are none.
    """
    alike, pooled = [], []
    for seed in sorted({row["seed"] for row in rows}):
        scored = [row for row in rows if row["seed"] == seed and row.get("loss")]
        if not scored or any(each is None for row in scored for each in row["loss"]):
            return {}
        judged = validated(scored, "loss")
        chosen = scored[int(np.nanargmin(judged))] if np.isfinite(judged).any() else scored[-1]
        alike.append(float(np.mean(chosen["loss"])))
        pooled.append(float(np.average(chosen["loss"], weights=chosen["tested"])))
    return {"loss": tuple(alike), "loss by examples": tuple(pooled)}


def _worst_tenth(accuracy_P: Sequence[float | None]) -> float:
    """Return the mean accuracy of the tenth of the peers with the lowest; the tenth is rounded up to whole peers."""
    worst_first = sorted(0.0 if each is None or not math.isfinite(each) else each for each in accuracy_P)
    return float(np.mean(worst_first[: math.ceil(len(worst_first) / 10)]))


def _mean_where_it_is(values: Sequence[float | None]) -> float:
    there = [value for value in values if value]
    return float(np.mean(there)) if there else 0.0


def _mean_where_defined(values: Sequence[float | None], weights: Sequence[float] | None = None) -> float:
    there = [number for number, value in enumerate(values) if value is not None]
    if not there:
        return math.nan
    each = None if weights is None else [weights[number] for number in there]
    return float(np.average([values[number] for number in there], weights=each))
