"""A network of one's own on a table of one's own: a residual network with batch normalisation, sliced by layer names.

The table holds 569 real biopsies (the breast cancer data that comes with scikit-learn), written as a CSV as clinics
would have it: measurements, the hospital, the diagnosis. The hospitals are made up: each of the eight sees another
range of cell symmetry. Each brings its inputs to a common scale by its own examples, so the same number means another
thing elsewhere, and one model for all of them does worse than each alone.

Nothing of fedpeer appears in the network's own code.

Run it with:  python examples/own_module.py
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn

import fedpeer


class Block(nn.Module):
    """x + W2 relu(W1 norm(x))"""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.widen = nn.Linear(width, 2 * width)
        self.narrow = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = self.narrow(torch.relu(self.widen(self.norm(x))))
        return x + change


class Residual(nn.Module):
    """A stem, two blocks, a head."""

    def __init__(self, features: int, classes: int, width: int = 32) -> None:
        super().__init__()
        self.stem = nn.Linear(features, width)
        self.block1 = Block(width)
        self.block2 = Block(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.block2(self.block1(self.stem(x))))
        return logits


#: The residual stream is one part, "stem": whatever is added together has the same neurons.
FEDERATION: dict[str, Any] = {
    "partial_models": {
        "everyone": {"neurons": {"input": "all", "stem": 26, "block1.widen": 48, "block2.widen": 48, "output": "all"}}
    },
    "learning": {
        "optimizer": {"adam": {"lr": 0.002}},
        "batch_size": 16,
        "steps_between_averaging": "pass",
        "rounds": 15,
    },
    "gossip": {"topology": "complete", "exchanges": 1},
    "simulation": {"split": "user,test_fraction=0.5", "normalise": "standard"},
}


def write_table(path: Path) -> None:
    """569 rows: 30 measurements, hospital, diagnosis."""
    cancer = load_breast_cancer()
    names = [str(name).replace(" ", "_") for name in cancer.feature_names]
    symmetry_N = cancer.data[:, names.index("mean_symmetry")]
    hospital_N = np.searchsorted(np.quantile(symmetry_N, np.arange(1, 8) / 8), symmetry_N)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow([*names, "hospital", "diagnosis"])
        for row, hospital, diagnosis in zip(cancer.data, hospital_N, cancer.target, strict=True):
            table.writerow([*row, "ABCDEFGH"[hospital], cancer.target_names[diagnosis]])


def main(folder: Path = Path(), rounds: int = 15, seeds: Sequence[int] = range(3)) -> fedpeer.Results:
    """Write the table, learn, and use one hospital's model in plain PyTorch."""
    table = folder / "clinic.csv"
    write_table(table)
    federation = {**FEDERATION, "learning": {**FEDERATION["learning"], "rounds": rounds}}
    results = fedpeer.simulate(
        f"csv:{table},label=diagnosis,user=hospital",
        Residual(features=30, classes=2),
        federation=federation,
        seeds=seeds,
        out=folder / "fedpeer-runs",
    )
    for method in ("local", "partial-averaging", "full-averaging"):
        print(f"{method:18} {100 * results.score(method):5.1f} %")
    print(f"report: {results.folder / 'report.html'}")

    network = Residual(features=30, classes=2)
    network.load_state_dict(results.state_dict("partial-averaging", "peer1"), strict=False)
    network.eval()
    print(network(torch.zeros(1, 30)).softmax(-1))  # inputs on peer1's own scale: 0 is its mean
    return results


if __name__ == "__main__":
    main()
