"""What an experiment measured: one `Measured` a cell, and the numbers that a table shows of it. Pure: rows in.

Numbers are those of the last round, one a seed, so that two cells can be compared in pairs. Beside them stands the best
round where that was chosen on examples kept back from training, and never where it would be chosen on test examples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from fedpeer.runs.scores import METRICS
from fedpeer.runs.summary import summarise


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One cell.

    variant   the settings that were taken; tried: what each variant scored on what was kept back
    per_seed  metric (PM, MT, GM, S) -> last round, a fraction for each seed
    best      metric -> (mean, SEM or None) over seeds of the round that was best on what was kept back
    statistics   of the algorithm or engine -> mean over the peers that have it (it is not 0), in the last round, for
              each seed; "disagreement": how far peers were from the mean of a group, where that was furthest
    sent      bytes in a round, of all peers together
    seconds   that all its runs took, the search too; those of other experiments that count as its own are not in it
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
    best: Mapping[str, tuple[float, float | None]] = field(default_factory=dict)
    statistics: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, label: str, rows: Iterable[Mapping[str, Any]], *, variant: str, tried: Mapping[str, float], seconds: float
    ) -> Measured:
        """Of the rows of one method, of all its seeds."""
        rows = list(rows)
        (found,) = summarise(rows).values()
        scores = found["scores"]
        return cls(
            label=label,
            variant=variant,
            seeds=tuple(found["seeds"]),
            rounds=found["rounds"],
            peers=len(found["accuracy_per_peer"]),
            per_seed={name: tuple(each["per_seed"]) for name, each in scores.items()},
            sent=found["bytes_sent"] / found["rounds"],
            seconds=seconds,
            tried=dict(tried),
            best={
                name: (each["best"], each["best_sem"])
                for name, each in scores.items()
                if each["best_by"] == "validation"
            },
            statistics=_statistics([row for row in rows if row["round"] == found["rounds"]]),
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Measured:
        lists = {
            "seeds": tuple(data["seeds"]),
            "per_seed": {name: tuple(values) for name, values in data["per_seed"].items()},
            "best": {name: (mean, sem) for name, (mean, sem) in data["best"].items()},
            "statistics": {name: tuple(values) for name, values in data["statistics"].items()},
        }
        return cls(**{**data, **lists})


#: The finished cells of an experiment by label.
Results = Mapping[str, Measured]


@dataclass(frozen=True)
class ClaimVerdict:
    """Whether a sentence held, None where it cannot be told, and by how much, in words."""

    held: bool | None
    words: str


@dataclass(frozen=True)
class PaperClaim:
    """A sentence of the paper, or of what counts as having reproduced it, and how it is checked.

    needs    cells without which nothing can be said
    printed  whether it is about the paper's very numbers, so that it is judged at the paper's own size only
    """

    text: str
    check: Callable[[Results], ClaimVerdict]
    needs: tuple[str, ...] = ()
    printed: bool = False


@dataclass(frozen=True)
class Column:
    """A number of a cell as a table shows it.

    metric   that it is made of, or a statistic; "" for the bytes of a round
    shown    of a fraction or of bytes, the number that is printed
    meant    what it is, for the foot of a table
    axis     what is written at the axis of a figure; "": the title
    most     that it can be, as it is shown, where a figure's axis goes from nought to that
    log      whether a figure's axis is logarithmic
    """

    title: str
    metric: str
    shown: Callable[[float], float]
    meant: str
    digits: int = 1
    axis: str = ""
    most: float | None = None
    log: bool = False

    def values(self, cell: Measured) -> tuple[float, ...] | None:
        """One a seed; None where the cell has no such number."""
        if not self.metric:
            return (self.shown(cell.sent),)
        found = cell.per_seed.get(self.metric, cell.statistics.get(self.metric))
        return None if found is None else tuple(map(self.shown, found))

    def best(self, cell: Measured) -> tuple[float, float | None] | None:
        """Mean and SEM of the best round."""
        if self.metric not in cell.best:
            return None
        mean, sem = cell.best[self.metric]
        return self.shown(mean), None if sem is None else abs(self.shown(sem) - self.shown(0.0))


def _percent(fraction: float) -> float:
    return 100 * fraction


COLUMNS: Mapping[str, Column] = {
    **{
        name: Column(name, name, _percent, meant=words, axis="accuracy, %")
        for name, words in {
            "PM": "the peers' own models, each peer counted the same",
            "MT": "the peers' own models, weighted by test sizes",
            "GM": "the server's model, each peer counted the same",
            "S": "the server's model, weighted by test sizes",
        }.items()
    },
    "error": Column(
        "error",
        "PM",
        lambda fraction: 100 * (1 - fraction),
        meant="of the peers' own models, the plain mean over peers",
        digits=2,
        axis="error, %",
    ),
    "sent": Column(
        "MB a round",
        "",
        lambda number: number / 1e6,
        meant="all that is said in a round, by all together",
        digits=2,
    ),
    "update": Column(
        "KB an update",
        "update bytes",
        lambda number: number / 1e3,
        meant="what a client sends in a round, mean over the clients that were asked",
    ),
    "megabytes": Column(
        "MB in all",
        "megabytes",
        float,
        meant="what all peers together had sent until the mean accuracy was reached",
        axis="MB sent until then",
    ),
    "seconds": Column(
        "virtual seconds",
        "virtual seconds",
        float,
        meant="until all rounds were done, mean over the peers",
        digits=2,
    ),
    **{
        network: Column(
            f"seconds by {name}",
            network,
            float,
            meant="of all rounds until then, in the paper's model of time",
            digits=3,
            axis=f"seconds by {name}, estimated",
            log=True,
        )
        for network, name in (("wifi", "Wi-Fi"), ("lte", "LTE"), ("3g", "3G"))
    },
    "recovered": Column(
        "recovered",
        "recovered",
        float,
        meant="adjusted Rand index of the groups that were found with those that were hidden",
        digits=2,
        axis="adjusted Rand index",
        most=1.0,
    ),
    "disagreement": Column(
        "disagreement, %",
        "disagreement",
        _percent,
        meant="the greatest distance of a peer from the mean, as a part of the mean's length",
        digits=2,
    ),
}


@dataclass(frozen=True)
class Middle:
    """The middle of some runs, as figures show it: the median, and the points below which 40 % and 60 % of them are.

    Source: the second and third quintile of partial averaging, 2021, section V, linear between neighbours.
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Middle:
        low, median, high = np.quantile(np.array(values, dtype=np.float64), (0.4, 0.5, 0.6))
        return cls(float(median), float(low), float(high))


def mean_and_sem(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and standard error, None for a single value."""
    array = np.array(values, dtype=np.float64)
    return float(array.mean()), float(array.std(ddof=1) / math.sqrt(len(array))) if len(array) > 1 else None


def validation_score(rows: Sequence[Mapping[str, Any]], metric: str) -> float:
    """What a variant scored on examples kept back, in its last round: the mean over peers and seeds; more is better.

    A variant that diverged scores below all others.
    """
    prefix, _ = METRICS[metric]
    last = max(row["round"] for row in rows)
    name = f"validation_{prefix}accuracy"
    found = [float(np.mean([_known(each) for each in row[name]])) for row in rows if row["round"] == last]
    return float(np.mean(found))


def _statistics(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float, ...]]:
    """Of the last rows, one a seed, in the order of the seeds."""
    rows = sorted(rows, key=lambda row: int(row["seed"]))
    names = rows[0].get("statistics", {})
    found = {name: tuple(_mean_where_it_is(row["statistics"][name]) for row in rows) for name in names}
    if all(row["disagreement"] for row in rows):
        found["disagreement"] = tuple(max(row["disagreement"].values()) for row in rows)
    return found


def _mean_where_it_is(values: Sequence[float | None]) -> float:
    there = [value for value in values if value]
    return float(np.mean(there)) if there else 0.0


def _known(score: float | None) -> float:
    return -1.0 if score is None or not math.isfinite(score) else score
