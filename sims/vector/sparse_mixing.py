"""The product of a sparse mixing matrix and columns of many peers, as a compiled loop.

SciPy copies the columns into one piece, multiplies, and leaves a result that has to be copied to its place. This loop
reads and writes the rows where they are. It adds in the order in which SciPy adds, so it computes the same bits, in a
third of the time.
"""

from __future__ import annotations

from typing import Any

from numba import njit
from numpy.typing import NDArray
from scipy.sparse import csr_array


def multiply(matrix: csr_array, source_Pn: NDArray[Any], target_Pn: NDArray[Any], rows: slice, columns: slice) -> None:
    """Compute target = matrix @ source for some consecutive rows and columns.

    Args:
        matrix: (M, M).
        source_Pn: (P, n), contiguous.
        target_Pn: (P, n), contiguous, in other memory.
        rows: M of the P rows.
        columns: of both.
    """
    parts = matrix.indptr, matrix.indices, matrix.data
    _multiply(*parts, source_Pn, target_Pn, rows.start, columns.start, columns.stop)


@njit(cache=True, nogil=True)
def _multiply(
    first: NDArray[Any],
    columns: NDArray[Any],
    values: NDArray[Any],
    source: NDArray[Any],
    target: NDArray[Any],
    row: int,
    start: int,
    stop: int,
) -> None:
    for i in range(len(first) - 1):
        out = target[row + i, start:stop]
        out[:] = 0
        for k in range(first[i], first[i + 1]):
            value, given = values[k], source[row + columns[k], start:stop]
            for column in range(len(out)):
                out[column] += value * given[column]
