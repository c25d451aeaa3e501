"""Reader of new examples for a trained model: the same features, or text, as in its training, without labels."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from fedpeer.data.dataset import TextColumn
from fedpeer.data.own.columns import column_numbers
from fedpeer.data.own.mistakes import FileMistakes, nearest_of
from fedpeer.data.own.table import arrow_numbers, arrow_text, batches, long_cells, not_text, parquet_table
from fedpeer.data.own.text import tokens_of


def read_inputs(
    file: TextIO, name: str, features: Sequence[str], shape: tuple[int, ...], delimiter: str = ","
) -> NDArray[np.float32]:
    """Read examples, (N, *shape), from a CSV whose first line names the columns.

    Args:
        name: name of the file in the messages.
        features: names of the feature columns, which may be in any order; other columns are skipped. Empty: every
            column is a feature, in order.

    Raises:
        DataError: missing columns, or cells that are not numbers; all at once, with row and column.
    """
    mistakes = FileMistakes(name)
    reader = csv.reader(file, delimiter=delimiter, strict=True)
    with _csv_mistakes(file, reader, mistakes):
        header = [cell.strip() for cell in next(reader, [])]
        columns = _columns(header, features, math.prod(shape), mistakes)
        found = [
            np.stack(
                [column_numbers([row[c] for row in rows], lines, header[c], mistakes, role="input") for c in columns],
                axis=1,
            )
            for lines, rows in batches(reader, len(header), mistakes)
        ]
    mistakes.stop_if_any()
    if not found:
        raise mistakes.stop("", "there are column names but no rows")
    return np.concatenate(found).reshape(-1, *shape)


def read_texts(file: TextIO, name: str, text: TextColumn, delimiter: str = ",") -> NDArray[np.int64]:
    """Read texts as token numbers, (N, T), from a CSV whose first line names the columns.

    Args:
        name: name of the file in the messages.
        text: the column, and how it becomes tokens; other columns are skipped.

    Raises:
        DataError: there is no such column, or the tokenizer cannot be read.
    """
    mistakes = FileMistakes(name)
    reader = csv.reader(file, delimiter=delimiter, strict=True)
    with _csv_mistakes(file, reader, mistakes):
        header = [cell.strip() for cell in next(reader, [])]
        (column,) = _columns(header, [text.column], 1, mistakes)
        texts = [row[column] for _, rows in batches(reader, len(header), mistakes) for row in rows]
    mistakes.stop_if_any()
    if not texts:
        raise mistakes.stop("", "there are column names but no rows")
    return tokens_of(texts, text, continued=False).x_NT


def read_parquet(
    path: str, features: Sequence[str], shape: tuple[int, ...], text: TextColumn | None
) -> NDArray[np.float32] | NDArray[np.int64]:
    """Read examples from a Parquet file: numbers, (N, *shape), or token numbers, (N, T), if there is a column of text.

    Raises:
        DataError: as of `read_inputs` and `read_texts`; row 1 is the first row of the data.
    """
    mistakes = FileMistakes(path)
    table = parquet_table(path, mistakes)
    header, rows = table.column_names, list(range(1, table.num_rows + 1))
    count = math.prod(shape) if text is None else 1
    columns = _columns(header, features if text is None else [text.column], count, mistakes, line="")
    if not rows:
        raise mistakes.stop("", "there are column names but no rows")
    if text is not None:
        return tokens_of(arrow_text(table.column(columns[0]), text.column, mistakes), text, continued=False).x_NT
    found = [arrow_numbers(table.column(c), rows, header[c], mistakes, role="input") for c in columns]
    mistakes.stop_if_any()
    return np.stack(found, axis=1).reshape(-1, *shape)


@contextmanager
def _csv_mistakes(file: TextIO, reader: Any, mistakes: FileMistakes) -> Iterator[None]:
    """Report a CSV reader's errors in the user's words; cells may have any length."""
    try:
        with long_cells():
            yield
    except csv.Error as problem:
        raise mistakes.stop(f"row {reader.line_num}", f"it cannot be read as CSV ({problem})") from None
    except UnicodeDecodeError:
        if file.name == mistakes.file:
            raise not_text(file.name, mistakes) from None
        raise mistakes.stop("", "it is not UTF-8 text; save the file as UTF-8") from None


def _columns(
    header: Sequence[str], features: Sequence[str], count: int, mistakes: FileMistakes, line: str = "row 1"
) -> list[int]:
    """Return the indices of the feature columns in the model's order; raise a DataError if any is missing."""
    if not any(header):
        raise mistakes.stop("", "the file is empty; its first line must name the columns")
    if not features:
        if len(header) != count:
            raise mistakes.stop(line, f"it has {len(header)} columns, but the model takes {count} inputs")
        return list(range(count))
    for feature in features:
        if feature not in header:
            near = nearest_of(feature, header)
            hint = f'; did you mean "{near}"?' if near else ""
            mistakes.add(line, f'there is no column "{feature}", which the model needs{hint}', "missing")
        elif header.count(feature) > 1:
            mistakes.add(line, f'several columns are called "{feature}"; give each its own name', "twice")
    mistakes.stop_if_any()
    return [header.index(feature) for feature in features]
