"""One class against the rest: the use of activity data in papers with one task per peer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedpeer.data.dataset import DataError, Dataset

#: Name of all other classes together.
_REST = "rest"


def against_the_rest(dataset: Dataset, positive: str | None) -> Dataset:
    """Return the data set with class 1 for the class named `positive` (in any case) and 0 for others; None: unchanged.

    Raises:
        DataError: there is no such class.
    """
    if positive is None:
        return dataset
    named = [number for number, name in enumerate(dataset.classes) if name.casefold() == positive.casefold()]
    if not named:
        raise DataError(f'{dataset.name}: there is no class "{positive}"; known: {", ".join(dataset.classes)}')
    y = (dataset.y == named[0]).astype(np.int64)
    return replace(dataset, y=y, classes=(_REST, dataset.classes[named[0]]))
