"""Weights & Biases: a run for each series, sent to its server or kept in files (offline)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fedpeer.runs.trackers.tracker import Series, Tracker


def wandb(
    *,
    project: str = "fedpeer",
    mode: Literal["online", "offline", "disabled"] | None = None,
    entity: str | None = None,
) -> Tracker:
    """Log to Weights & Biases; offline: into the run's folder, for `wandb sync`; default: as wandb is set up."""
    return _Wandb(project, mode, entity)


@dataclass(frozen=True)
class _Wandb:
    project: str
    mode: Literal["online", "offline", "disabled"] | None
    entity: str | None

    def open(self, series: Series, parameters: Mapping[str, object]) -> _Logged:
        import wandb as library

        run = library.init(
            project=self.project,
            entity=self.entity,
            mode=self.mode,
            id=hashlib.blake2b(series.id.encode(), digest_size=8).hexdigest(),
            name=series.name,
            group=series.group,
            config=dict(parameters),
            dir=str(series.home),
            resume="allow",
            reinit="create_new",
            settings=library.Settings(silent=True, console="off"),
        )
        return _Logged(run)


@dataclass(frozen=True)
class _Logged:
    run: Any

    def add(self, values: Mapping[str, float], round: int) -> None:
        self.run.log(dict(values), step=round)

    def close(self) -> None:
        self.run.finish()
