"""Tables of four wards: scikit-learn's handwritten digits, split so that each ward has other digits more often.

They are real data in the form in which a practitioner has them: one CSV per ward, whose first line names the columns.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

WARDS = ("north", "east", "south", "west")
LABEL = "digit"
#: How much more often a ward has its own digits: 2.5 of ten classes each.
SKEW = 4.0


def write_tables(folder: Path, groups: tuple[str, ...] = WARDS) -> dict[str, Path]:
    """Write one CSV for each ward; together they are the whole data set, and no row is in two of them."""
    digits = load_digits()
    draws = np.random.Generator(np.random.PCG64(0))
    liking_WC = np.ones((len(groups), 10))
    for digit in range(10):
        liking_WC[digit % len(groups), digit] = SKEW
    chance_CW = (liking_WC / liking_WC.sum(0)).T
    owner_N = np.array([draws.choice(len(groups), p=chance_CW[digit]) for digit in digits.target])
    found = {}
    for number, ward in enumerate(groups):
        found[ward] = folder / f"{ward}.csv"
        mine_M = np.flatnonzero(owner_N == number)
        write(found[ward], [[*digits.data[row], digits.target[row]] for row in mine_M])
    return found


def write(path: Path, rows: list[list[float]], *, label: bool = True) -> None:
    """Write a table of pixels, with or without its label column."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"pixel{number}" for number in range(64)), *([LABEL] if label else [])])
        writer.writerows([int(cell) for cell in (row if label else row[:64])] for row in rows)
