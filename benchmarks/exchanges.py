"""`python -m benchmarks.exchanges [--quick]`: the effect of the number of exchanges, on four tasks.

Each task runs with 1, 2, 4 and 8 exchanges in each averaging, and with the number that a tolerance of 1e-4 needs, on
the default graph, with the same seeds. The table has accuracy and bytes, and the difference in accuracy from the
tolerance: the mean of the differences of equal seeds, with its standard error.
"""

from __future__ import annotations

import argparse
import csv
import os
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_breast_cancer

from fedpeer.runs.summary import count_text

SEEDS = (0, 1, 2, 3, 4)
WARDS = 5
METHODS = ("partial-averaging", "full-averaging")
#: Settings of `gossip`, by the name of their row; all others are compared with the last.
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    **{str(count): {"exchanges": count} for count in (1, 2, 4, 8)},
    "to 1e-4": {"tolerance": 1e-4},
}


@dataclass(frozen=True, eq=False)
class Trial:
    """One task: a name, and settings of a federation file that replace defaults."""

    name: str
    simulation: Mapping[str, Any]
    learning: Mapping[str, Any] = field(default_factory=dict)


TRIALS = (
    Trial("digits, 16 peers", {}),
    Trial(
        "MNIST, 16 peers", {"dataset": "mnist", "peers": 16, "split": "blocks:87,shuffle=true,test=87/swap:8+9,on=1-7"}
    ),
    Trial(
        "MNIST, 100 peers",
        {"dataset": "mnist", "peers": 100, "split": "blocks:87,shuffle=true,test=87/swap:8+9,on=1-44"},
    ),
    Trial(
        "a CSV, 5 wards",
        {"dataset": "csv:{folder}/wards.csv,label=diagnosis,user=ward"},
        {"batch_size": 16, "steps_between_averaging": "pass"},
    ),
)


@dataclass(frozen=True)
class Cell:
    """One run: a task, the row of the table, a seed."""

    trial: Trial
    setting: str
    seed: int


def play(cell: Cell, folder: Path) -> dict[str, dict[str, Any]]:
    """Return the summary of the run, by method."""
    import fedpeer

    simulation = dict(cell.trial.simulation)
    if "dataset" in simulation:
        simulation["dataset"] = str(simulation["dataset"]).format(folder=folder)
    results = fedpeer.simulate(
        federation={
            "learning": {"evaluate_every": 30, **cell.trial.learning},
            "gossip": dict(SETTINGS[cell.setting]),
            "simulation": simulation,
        },
        methods=METHODS,
        seeds=(cell.seed,),
        workers=1,
        out=folder / "runs",
    )
    found: dict[str, dict[str, Any]] = results.summary["methods"]
    return found


def table(trial: Trial, found: Mapping[Cell, Mapping[str, Mapping[str, Any]]], seeds: Sequence[int]) -> Table:
    """Return the table of one task; with a single seed it has no standard error."""
    drawn = Table(title=f"{trial.name}: {len(seeds)} seeds", title_justify="left")
    drawn.add_column("exchanges")
    for method in METHODS:
        for word in (method, "points", "sent"):
            drawn.add_column(word, justify="right")
    last = list(SETTINGS)[-1]
    for setting in SETTINGS:
        row = [setting]
        for method in METHODS:
            score_S = 100 * _per_seed(found, trial, setting, method, "accuracy_mean", seeds)
            points_S = score_S - 100 * _per_seed(found, trial, last, method, "accuracy_mean", seeds)
            sent = _per_seed(found, trial, setting, method, "bytes_sent", seeds).mean()
            row += [f"{score_S.mean():.2f} %", _text(points_S) if setting != last else "", count_text(sent, "B")]
        drawn.add_row(*row)
    return drawn


def _per_seed(
    found: Mapping[Cell, Mapping[str, Mapping[str, Any]]],
    trial: Trial,
    setting: str,
    method: str,
    key: str,
    seeds: Sequence[int],
) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([found[Cell(trial, setting, seed)][method][key] for seed in seeds], dtype=np.float64)


def _text(points_S: np.ndarray[Any, np.dtype[np.float64]]) -> str:
    if len(points_S) == 1:
        return f"{points_S[0]:+.2f}"
    return f"{points_S.mean():+.2f} ± {points_S.std(ddof=1) / np.sqrt(len(points_S)):.2f}"


def write_table(folder: Path) -> None:
    """Write scikit-learn's 569 biopsies, shuffled and dealt out to five wards, as `wards.csv`."""
    table = load_breast_cancer()
    order = np.random.default_rng(0).permutation(len(table.target))
    with (folder / "wards.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*table.feature_names, "diagnosis", "ward"])
        for place, row in enumerate(order):
            writer.writerow([*table.data[row], table.target_names[table.target[row]], f"ward{1 + place % WARDS}"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exchanges", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, without the hundred peers")
    quick = parser.parse_args().quick
    trials, seeds = (tuple(each for each in TRIALS if "100" not in each.name), SEEDS[:1]) if quick else (TRIALS, SEEDS)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory(prefix="fedpeer-exchanges-") as name, ProcessPoolExecutor() as pool:
        folder = Path(name)
        write_table(folder)
        for trial in trials:
            cells = [Cell(trial, setting, seed) for seed in seeds for setting in SETTINGS]
            found = dict(zip(cells, pool.map(play, cells, [folder] * len(cells)), strict=True))
            Console(width=110).print(table(trial, found, seeds))


if __name__ == "__main__":
    main()
