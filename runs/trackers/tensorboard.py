"""TensorBoard: event files in a folder, one folder for each series. Nothing is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpeer.runs.trackers.tracker import Series, Tracker


def tensorboard(*, folder: str | None = None) -> Tracker:
    """Write event files for TensorBoard into `folder`; default: `tensorboard` in the folder of the run or the state."""
    return _TensorBoard(folder)


@dataclass(frozen=True)
class _TensorBoard:
    folder: str | None

    def open(self, series: Series, parameters: Mapping[str, object]) -> _Events:
        from torch.utils import tensorboard as library

        path = series.home / "tensorboard" if self.folder is None else Path(self.folder) / series.group
        continued = series.first > 1
        make: Any = library.SummaryWriter  # it has no types
        writer = make(str(path / series.name), purge_step=series.first if continued else None)
        if not continued:
            rows = "\n".join(f"| {name} | {value} |" for name, value in parameters.items())
            writer.add_text("settings", f"| setting | value |\n| --- | --- |\n{rows}", 0)
        return _Events(writer)


@dataclass(frozen=True)
class _Events:
    writer: Any

    def add(self, values: Mapping[str, float], round: int) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        # One event with all numbers of the round: an event each, as `add_scalar` writes, takes several times as long.
        numbers = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self.writer.file_writer.add_summary(Summary(value=numbers), round)

    def close(self) -> None:
        self.writer.close()
