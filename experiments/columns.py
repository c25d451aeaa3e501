"""Columns of tables and figures: what they show of a cell's results, in which unit, and how they are explained."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fedpeer.experiments.results import WORST, Measured
from fedpeer.runs.scores import LATE, METRICS


@dataclass(frozen=True)
class Column:
    """A number of a cell as a table shows it.

    title    heading of the column
    metric   a metric or a statistic; "" for the bytes of a round
    shown    converts a fraction or bytes to the printed number
    meant    explanation below the table
    digits   decimals
    axis     title of a figure's axis; "": `title`
    most     upper end of a figure's axis, which then begins at zero
    log      whether a figure's axis is logarithmic
    whole    whether bytes are of all rounds together
    late     whether it is the mean over the last `LATE` rounds
    counted  whether it is counted, as bytes are, and not estimated, so that a claim about it has no test
    unit     unit of differences; "": none
    """

    title: str
    metric: str
    shown: Callable[[float], float]
    meant: str
    digits: int = 1
    axis: str = ""
    most: float | None = None
    log: bool = False
    whole: bool = False
    late: bool = False
    counted: bool = False
    unit: str = "points"

    def values(self, cell: Measured) -> tuple[float, ...] | None:
        """Return the cell's number for each seed, or None if it has none."""
        if not self.metric:
            return (self.shown(cell.sent * (cell.rounds if self.whole else 1)),)
        found = cell.late.get(self.metric) if self.late else self._last(cell)
        return None if found is None else tuple(map(self.shown, found))

    def _last(self, cell: Measured) -> tuple[float, ...] | None:
        return cell.per_seed.get(self.metric, cell.statistics.get(self.metric))

    @property
    def has_best(self) -> bool:
        """True if it is a score of the last round; a page can show the best round's beside it."""
        return self.metric in METRICS and not self.late

    def best(self, cell: Measured) -> tuple[float, float | None] | None:
        """Return mean and SEM of the best round, or None if the cell has none."""
        if not self.has_best or self.metric not in cell.best:
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
    **{
        f"late {name}": Column(
            f"{name} of the last {LATE} rounds",
            name,
            _percent,
            meant="their mean, since that of one round depends on who took part in it",
            late=True,
        )
        for name in ("GM", "S")
    },
    "auc": Column(
        "AUC",
        "auc",
        float,
        meant="area under the ROC curve of the peers' own models, mean over the peers whose test part has both classes",
        digits=3,
        unit="",
    ),
    "auc by examples": Column(
        "AUC by examples",
        "auc by examples",
        float,
        meant="the same, these peers weighted by test sizes",
        digits=3,
        unit="",
    ),
    "error": Column(
        "error",
        "PM",
        lambda fraction: 100 * (1 - fraction),
        meant="of the peers' own models, the plain mean over peers",
        digits=2,
        axis="error, %",
    ),
    **{
        name: Column(
            title,
            name,
            float,
            meant=f"mean loss on the test parts, {words}, in the round that is best on examples kept back",
            digits=4,
            unit="",
        )
        for name, title, words in (
            ("loss", "log loss", "each peer counted the same"),
            ("loss by examples", "log loss by examples", "weighted by test sizes"),
        )
    },
    "bits": Column(
        "bits per character",
        "loss",
        lambda nats: nats / math.log(2),
        meant="cross-entropy of the next character on the test parts, each peer counted the same, in the round that is "
        "best on examples kept back",
        digits=3,
        unit="",
    ),
    "sent": Column(
        "MB a round",
        "",
        lambda number: number / 1e6,
        meant="all that is said in a round, by all together",
        digits=2,
        counted=True,
        unit="MB",
    ),
    "all": Column(
        "MB of all rounds",
        "",
        lambda number: number / 1e6,
        meant="all that is said in the whole run, by all together",
        whole=True,
        counted=True,
        unit="MB",
    ),
    "worst": Column(
        "worst tenth",
        WORST,
        _percent,
        meant="the own models of the tenth of the peers that have the least accuracy, mean over these",
        axis="accuracy, %",
    ),
    "update": Column(
        "KB an update",
        "update bytes",
        lambda number: number / 1e3,
        meant="what a client sends in a round, mean over the clients that were asked",
        counted=True,
        unit="KB",
    ),
    "megabytes": Column(
        "MB in all",
        "megabytes",
        float,
        meant="what all peers together had sent until the mean accuracy was reached",
        axis="MB sent until then",
        unit="MB",
    ),
    "seconds": Column(
        "virtual seconds",
        "virtual seconds",
        float,
        meant="until all rounds were done, mean over the peers",
        digits=2,
        unit="virtual seconds",
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
            unit="s",
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
        unit="",
    ),
    **{
        f"recovered {name}": Column(
            f"recovered by {name}",
            f"recovered {name}",
            float,
            meant=f"adjusted Rand index of the groups by {name} that were found with those that were hidden",
            digits=2,
            unit="",
        )
        for name in ("view", "code")
    },
    "disagreement": Column(
        "disagreement, %",
        "disagreement",
        _percent,
        meant="the greatest distance of a peer from the mean, as a part of the mean's length",
        digits=2,
    ),
}
