"""The table of `benchmarks/exchanges.py`: differences at equal seeds; and the data table that its last task reads."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from rich.console import Console

from benchmarks.exchanges import METHODS, SETTINGS, TRIALS, Cell, table, write_table


def test_points_are_the_mean_of_the_differences_of_equal_seeds() -> None:
    """Seeds differ by far more than rows: only pairs show that one exchange is 0.2 and 0.4 points worse."""
    trial, seeds = TRIALS[0], (0, 1)
    below = {setting: (0.002, 0.004) if setting == "1" else (0.0, 0.0) for setting in SETTINGS}
    found = {
        Cell(trial, setting, seed): {
            method: {"accuracy_mean": 0.9 - 0.3 * seed - below[setting][seed], "bytes_sent": 2_000_000}
            for method in METHODS
        }
        for setting in SETTINGS
        for seed in seeds
    }
    console = Console(width=110, file=io.StringIO(), record=True)
    console.print(table(trial, found, seeds))
    (row,) = [line for line in console.export_text().splitlines() if line.split()[1:2] == ["1"]]
    assert row.count("-0.30 ± 0.10") == len(METHODS)
    assert row.count("74.70 %") == row.count("2 MB") == len(METHODS)


def test_the_wards_are_one_table_with_a_column_that_tells_them_apart(tmp_path: Path) -> None:
    write_table(tmp_path)
    with (tmp_path / "wards.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 569
    assert {row["ward"] for row in rows} == {f"ward{number}" for number in range(1, 6)}
    assert {row["diagnosis"] for row in rows} == {"benign", "malignant"}
