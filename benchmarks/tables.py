"""`python -m benchmarks.tables [--quick]`: compare settings of network and training on tables, with linear models.

Real tables from scikit-learn are written as CSV files and divided among peers: as hospitals differ (`clinic`: each sees
another range of one measurement), by field (`mines`, which needs the data set `landmine`), or at random. Each row of
the result is a choice of settings. Its columns are:

- linear: the mean score of each peer's own linear model, which has the row's examples and weights of classes;
- a method: its mean score over seeds, less that of the linear models (accuracy in points; for numbers, the error in
  percent of the linear models' error);
- best round: the same for the models that partial averaging keeps, where examples are held out;
- balanced: the balanced accuracy of the last models of partial averaging, as it is.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn import datasets

from fedpeer.config.choice import parse_choice
from fedpeer.learning.holdings import load_dataset

METHODS = ("local", "partial-averaging", "full-averaging")
#: Tables of numbers, without classes.
NUMBERS = ("diabetes",)

#: Settings by the name of their row; {} means the defaults.
CHOICES: Mapping[str, Mapping[str, Any]] = {
    "the papers'": {
        "network": "mlp",
        "learning": {"optimizer": "sgd,lr=0.1", "batch_size": 1, "steps_between_averaging": 87},
    },
    "the default": {},
    "no weights of classes": {"learning": {"class_weights": "none"}},
    "nothing held out": {"simulation": {"validation": 0.0}},
    "a tenth held out": {"simulation": {"validation": 0.1}},
    "Adam 0.001": {"learning": {"optimizer": "adam,lr=0.001"}},
    "Adam 0.01": {"learning": {"optimizer": "adam,lr=0.01"}},
    "SGD with momentum": {"learning": {"optimizer": "sgd,lr=0.02,momentum=0.9"}},
    "AdamW, decay 0.1": {"learning": {"optimizer": "adamw,lr=0.003,weight_decay=0.1"}},
    "32 hidden": {"network": "mlp,hidden=32,activation=relu"},
    "128 and 64 hidden": {"network": "mlp,hidden=128+64,activation=relu"},
}


def _written(folder: Path, name: str, x: Any, y: Sequence[object], user: Sequence[object] | None = None) -> str:
    path = folder / f"{name}.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        columns = [f"x{place}" for place in range(x.shape[1])]
        writer.writerow([*columns, "y", *(["site"] if user is not None else [])])
        for number, row in enumerate(x):
            whose = [] if user is None else [user[number]]
            writer.writerow([*(f"{value:.6g}" for value in row), y[number], *whose])
    return f"csv:{path},label=y" + (",user=site" if user is not None else "")


def clinic(folder: Path) -> dict[str, Any]:
    """Divide biopsies among eight hospitals by cell symmetry: each has another range of it, and 35 training rows."""
    found = datasets.load_breast_cancer()
    place = np.argsort(np.argsort(found.data[:, 8]))
    site = [f"site{8 * rank // len(place)}" for rank in place]
    named = [str(found.target_names[y]) for y in found.target]
    return {"dataset": _written(folder, "clinic", found.data, named, site), "split": "user,test_fraction=0.5"}


def two_sites(folder: Path) -> dict[str, Any]:
    """Divide the same biopsies at random among two sites, 142 training rows each."""
    found = datasets.load_breast_cancer()
    named = [str(found.target_names[y]) for y in found.target]
    return {"dataset": _written(folder, "two", found.data, named), "peers": 2, "split": "iid,test_fraction=0.5"}


def wines(folder: Path) -> dict[str, Any]:
    """Divide wines of three classes at random among four peers, 22 training rows each."""
    found = datasets.load_wine()
    named = [f"kind{y}" for y in found.target]
    return {"dataset": _written(folder, "wines", found.data, named), "peers": 4, "split": "iid,test_fraction=0.5"}


def skewed_digits(folder: Path) -> dict[str, Any]:
    """Divide digits, a table of 64 columns, among sixteen peers: few classes each, about 56 training rows each."""
    found = datasets.load_digits()
    named = [f"digit{y}" for y in found.target]
    split = "dirichlet:0.3,test_fraction=0.5"
    return {"dataset": _written(folder, "digits", found.data, named), "peers": 16, "split": split}


def mines(folder: Path) -> dict[str, Any]:
    """Take mines and clutter in 29 fields, some 380 training rows each, of which 6 % are mines."""
    found = load_dataset(parse_choice("landmine"))
    assert found.user_N is not None, "a field for each row"
    named, field = [found.classes[y] for y in found.y], [f"field{user:02}" for user in found.user_N]
    return {"dataset": _written(folder, "mines", found.x, named, field)}


def diabetes(folder: Path) -> dict[str, Any]:
    """Divide diabetes patients, whose progression is a number, at random among four peers, 55 training rows each."""
    found = datasets.load_diabetes(scaled=False)
    table = _written(folder, "diabetes", found.data, [f"{y:g}" for y in found.target])
    return {"dataset": f"{table},task=regression", "peers": 4, "split": "iid,test_fraction=0.5"}


TABLES: Mapping[str, Callable[[Path], dict[str, Any]]] = {
    "clinic": clinic,
    "two sites": two_sites,
    "wines": wines,
    "digits": skewed_digits,
    "mines": mines,
    "diabetes": diabetes,
}


def measured(job: tuple[str, str, int, str]) -> dict[str, float]:
    """Return the mean score of each method, and of the linear models, for (table, choice, seed, folder)."""
    import torch

    import fedpeer

    torch.set_num_threads(1)
    table, choice, seed, folder = job
    chosen = CHOICES[choice]
    simulation = {**TABLES[table](Path(folder)), **chosen.get("simulation", {})}
    settings = {**chosen, "simulation": simulation | ({} if table in NUMBERS else {"metrics": ["balanced-accuracy"]})}
    with tempfile.TemporaryDirectory() as out:
        found = fedpeer.simulate(federation=settings, methods=METHODS, seeds=[seed], workers=1, device="cpu", out=out)
        result = found.summary["methods"]["partial-averaging"]
        best = result.get("best_models", {}).get("mean")  # null if a peer diverged
        return {
            **{method: found.score(method) for method in METHODS},
            "best round": math.nan if best is None else best,
            "balanced": math.nan if table in NUMBERS else result["metrics"]["balanced-accuracy"]["mean"],
            "linear": found.summary["linear"]["mean"],
        }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--choices", nargs="+", choices=CHOICES, default=list(CHOICES))
    options = parser.parse_args()
    seeds = range(1 if options.quick else 5)
    with tempfile.TemporaryDirectory() as root, ProcessPoolExecutor(os.cpu_count()) as pool:
        jobs: list[tuple[str, str, int, str]] = []
        for table in options.tables:
            for choice in options.choices:
                for seed in seeds:
                    folder = Path(root) / str(len(jobs))
                    folder.mkdir()
                    jobs.append((table, choice, seed, str(folder)))
        found = dict(zip((job[:3] for job in jobs), pool.map(measured, jobs), strict=True))
    for table in options.tables:
        Console(width=110).print(_shown(table, options.choices, seeds, found), "")


def _shown(
    table: str, choices: Sequence[str], seeds: Sequence[int], found: Mapping[tuple[str, str, int], Mapping[str, float]]
) -> Table:
    error = table in NUMBERS
    shown = Table(title=f"{table}: beside a linear model of each peer's own", title_justify="left")
    shown.add_column("settings")
    for column in ("linear", *METHODS, "best round", "balanced"):
        shown.add_column(column, justify="right")
    for choice in choices:
        linear_S = np.array([found[table, choice, seed]["linear"] for seed in seeds])
        cells = [f"{linear_S.mean():.4g}" if error else f"{100 * linear_S.mean():.1f} %"]
        for column in (*METHODS, "best round"):
            score_S = np.array([found[table, choice, seed][column] for seed in seeds])
            beside_S = 100 * (score_S / linear_S - 1) if error else 100 * (score_S - linear_S)
            spread = f" ± {beside_S.std(ddof=1) / len(seeds) ** 0.5:.1f}" if len(seeds) > 1 else ""
            cells.append("–" if np.isnan(score_S).any() else f"{beside_S.mean():+.1f}{spread}" + " %" * error)
        balanced = np.mean([found[table, choice, seed]["balanced"] for seed in seeds])
        shown.add_row(choice, *cells, "–" if error else f"{100 * balanced:.1f} %")
    return shown


if __name__ == "__main__":
    main()
