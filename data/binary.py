"""Two classes made of many: one against the rest, as the papers on tasks of one peer each ask of activity data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedpeer.data.dataset import DataError, Dataset

#: What the other classes are called together.
_REST = "rest"


def against_the_rest(dataset: Dataset, positive: str | None) -> Dataset:
    """Class 1 where the label is `positive`, by name in any case, and class 0 elsewhere; None: all classes as they are.

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
