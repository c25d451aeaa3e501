"""Five wards' tables to try real peers with: `ward1.csv` ... `ward5.csv`, one a peer, with the same columns.

The rows are real: 569 biopsies, the breast cancer data that comes with scikit-learn, shuffled and dealt out.

Run it with:  python examples/wards.py
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

WARDS = 5


def write_wards(folder: Path) -> list[Path]:
    """Write the tables; their first line names the columns, the last column is `diagnosis`."""
    table = load_breast_cancer()
    order = np.random.default_rng(0).permutation(len(table.target))
    columns = [*(str(name).replace(" ", "_") for name in table.feature_names), "diagnosis"]
    paths = [folder / f"ward{number}.csv" for number in range(1, WARDS + 1)]
    for first, path in enumerate(paths):
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            for row in order[first::WARDS]:
                writer.writerow([*table.data[row], table.target_names[table.target[row]]])
    return paths


if __name__ == "__main__":
    print("\n".join(map(str, write_wards(Path()))))
