"""Users' own tables: CSV and Parquet.

One column is the label, or several columns are labels that hold or do not. The other columns are features, which are
all numbers, or a single column of text.
"""

from __future__ import annotations

import csv as csv_format
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedpeer.data.dataset import DataError, Dataset, Task, TextColumn
from fedpeer.data.own.columns import (
    ColumnRole,
    class_numbers,
    column_numbers,
    described,
    drawn_test_part,
    guessed_task,
    is_number,
    label_marks,
    users,
)
from fedpeer.data.own.mistakes import FileMistakes, check_there, nearest_of, opening
from fedpeer.data.own.text import text_column, tokens_of

#: The tasks of a table; patterns to complete have their own loaders.
_TableTask = Literal["classification", "multi-label", "regression", "next-token"]
#: Rows converted at once: enough for numpy to be quick, few enough to keep the text of a big file out of memory.
BATCH_ROWS = 10_000
_PARQUET = b"PAR1"
#: First bytes of files that are not CSV, and what the user can do with them.
_NO_TEXT = {
    b"PK": "it is an Excel or other zip file; save the sheet as CSV UTF-8",
    b"\xd0\xcf\x11\xe0": "it is an Excel file; save the sheet as CSV UTF-8",
    b"\x1f\x8b": "it is compressed; unpack it first",
    _PARQUET: "it is a Parquet file; write parquet:FILE instead of csv:FILE",
    b"\xff\xfe": "it is UTF-16 text; save it as UTF-8",
    b"\xfe\xff": "it is UTF-16 text; save it as UTF-8",
}
#: Most characters of a cell: any number that a C long holds. Python's own limit is 131,072, less than a book.
_CELL_MAX = 2**31 - 1
#: Prefix of the columns that pandas makes of a table's index.
_INDEX = "__index_level_"


@dataclass(frozen=True, kw_only=True)
class WantedColumns:
    """The user's settings about columns.

    path    the file, for messages
    label   the column to predict; None: there are `labels`, or the next tokens of the text are predicted
    labels  the columns of labels that hold or do not, if there are several labels
    text    the column of text; None: the features are numbers

    Raises:
        DataError: the settings contradict each other.
    """

    path: str
    label: str | None
    labels: tuple[str, ...]
    task: Task | None
    classes: tuple[str, ...]
    user: str | None
    drop: tuple[str, ...]
    test_fraction: float | None
    text: TextColumn | None

    def __post_init__(self) -> None:
        if self.labels or self.task == "multi-label":
            self._check_labels()
        elif self.label is None and self.text is None:
            raise DataError(f"{self.path}: the column to predict is not named; add label=NAME")
        if not self.targets and self.task not in (None, "next-token"):
            raise DataError(f"{self.path}: task={self.task} needs a column to predict; add label=NAME")
        if self.label is not None and self.task == "next-token":
            raise DataError(f"{self.path}: task=next-token predicts the text itself; leave out label={self.label}")

    def _check_labels(self) -> None:
        problem = None
        if self.label is not None:
            problem = f"label={self.label} is one column and labels= are several; leave one of the two out"
            if not self.labels:
                problem = "task=multi-label needs the columns of the labels; write labels=NAME+NAME instead of label"
        elif len(self.labels) < 2:
            problem = "labels= names the columns of several labels, of 0 and 1; for one column write label=NAME"
        elif len(set(self.labels)) < len(self.labels):
            problem = f"labels={'+'.join(self.labels)} names a column twice"
        elif self.task not in (None, "multi-label"):
            problem = f"labels= are several for a row, which is task=multi-label and not {self.task}; leave task out"
        elif self.classes:
            problem = "labels= are named by their columns; leave classes out"
        if problem:
            raise DataError(f"{self.path}: {problem}")

    @property
    def targets(self) -> tuple[str, ...]:
        """The columns to predict."""
        return self.labels if self.label is None else (self.label,)

    def features(self, header: Sequence[str]) -> list[str]:
        others = {*self.targets, self.user, *self.drop, None if self.text is None else self.text.column}
        return [name for name in header if name not in others]


@dataclass(kw_only=True)
class _Columns:
    """A table while it is read: features as numbers, batch by batch; labels, users and texts as text."""

    rows: list[int] = field(default_factory=list)  # the line of the file on which each row begins
    targets: dict[str, list[str]] = field(default_factory=dict)  # by column
    users: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    batches: list[NDArray[np.float32]] = field(default_factory=list)  # each (rows, F)


def csv(
    *,
    path: str,
    label: str | None = None,
    labels: tuple[str, ...] = (),
    task: _TableTask | None = None,
    classes: tuple[str, ...] = (),
    user: str | None = None,
    drop: tuple[str, ...] = (),
    test_fraction: float | None = None,
    delimiter: str = ",",
    text: str | None = None,
    tokenizer: str | None = None,
    length: int = 128,
) -> Dataset:
    """CSV file (UTF-8) whose first line names the columns.

    Args:
        label: the column to predict; with `text` it may be left out, and the next tokens of the text are predicted.
        labels: instead of it several columns, each a label that holds (1) or does not (0).
        user: the column with the user of each row.
        drop: columns to leave out.
        classes: the class names in order; peers with separate files must agree on them.
        delimiter: one character, or "tab".
        text: the column with the text of each row, instead of numbers (extra `fedpeer[hf]`).
        tokenizer: folder of the model whose tokenizer reads the text.
        length: tokens of an example; longer texts are cut.

    Raises:
        DataError: with file, row (line of the file) and column of every mistake.
    """
    wanted = WantedColumns(
        path=path,
        label=label,
        labels=labels,
        task=task,
        classes=classes,
        user=user,
        drop=drop,
        test_fraction=test_fraction,
        text=text_column(text, tokenizer, length),
    )
    mistakes = FileMistakes(path)
    separator = separator_of(delimiter)
    check_there(path)
    try:
        with opening(path), long_cells(), open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv_format.reader(file, delimiter=separator, strict=True)
            try:
                return _read_csv(reader, separator, wanted, mistakes)
            except csv_format.Error as problem:
                raise mistakes.stop(f"row {reader.line_num}", f"it cannot be read as CSV ({problem})") from None
    except UnicodeDecodeError:
        raise not_text(path, mistakes) from None


@contextmanager
def long_cells() -> Iterator[None]:
    """Accept cells of any length, such as a column of books; other users of Python's reader keep their limit."""
    before = csv_format.field_size_limit(_CELL_MAX)
    try:
        yield
    finally:
        csv_format.field_size_limit(before)


def separator_of(delimiter: str) -> str:
    """Return the character between two cells; the user may write "tab" for it."""
    separator = {"tab": "\t", "\\t": "\t"}.get(delimiter, delimiter)
    if len(separator) != 1:
        raise DataError(f'delimiter = "{delimiter}": use one character, or the word tab')
    return separator


def _read_csv(reader: Any, separator: str, wanted: WantedColumns, mistakes: FileMistakes) -> Dataset:
    header = [name.strip() for name in next(reader, [])]
    if not any(header):
        raise mistakes.stop("", "the file is empty; its first line must name the columns")
    _check_header(header, wanted, mistakes, separator)
    features = wanted.features(header)
    place = {name: number for number, name in enumerate(header)}
    columns = _Columns()
    for lines, rows in batches(reader, len(header), mistakes):
        cells = list(zip(*rows, strict=True))
        columns.rows += lines
        for name in wanted.targets:
            columns.targets.setdefault(name, []).extend(cell.strip() for cell in cells[place[name]])
        if wanted.user is not None:
            columns.users += [cell.strip() for cell in cells[place[wanted.user]]]
        if wanted.text is not None:
            columns.texts += cells[place[wanted.text.column]]
        else:
            columns.batches.append(
                np.stack([column_numbers(cells[place[name]], lines, name, mistakes) for name in features], axis=1)
            )
    return _assembled(features, columns, wanted, mistakes)


def batches(reader: Any, width: int, mistakes: FileMistakes) -> Iterator[tuple[list[int], list[list[str]]]]:
    """Yield batches of rows as wide as the header, with the line on which each row begins; skip blank lines."""
    numbered = _numbered(reader, width, mistakes)
    while batch := list(itertools.islice(numbered, BATCH_ROWS)):
        yield [line for line, _ in batch], [row for _, row in batch]


def _numbered(reader: Any, width: int, mistakes: FileMistakes) -> Iterator[tuple[int, list[str]]]:
    begins = reader.line_num + 1
    for row in reader:
        if len(row) == width:
            yield begins, row
        elif row:
            mistakes.add(f"row {begins}", f"it has {len(row)} cells, but the first line names {width}", "ragged")
        begins = reader.line_num + 1


def not_text(path: str, mistakes: FileMistakes) -> DataError:
    """Return the error for a file that is not UTF-8 text, by its first bytes."""
    with open(path, "rb") as file:
        begins = file.read(4)
    for mark, told in _NO_TEXT.items():
        if begins.startswith(mark):
            return mistakes.stop("", told)
    return mistakes.stop(f"row {_line_not_utf8(path)}", "it is not UTF-8 text; save the file as UTF-8")


def _line_not_utf8(path: str) -> int:
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                return number
    return 1


def parquet(
    *,
    path: str,
    label: str | None = None,
    labels: tuple[str, ...] = (),
    task: _TableTask | None = None,
    classes: tuple[str, ...] = (),
    user: str | None = None,
    drop: tuple[str, ...] = (),
    test_fraction: float | None = None,
    text: str | None = None,
    tokenizer: str | None = None,
    length: int = 128,
) -> Dataset:
    """Parquet file (extra `fedpeer[parquet]`); settings as for `csv`; row 1 is the first row of the data."""
    wanted = WantedColumns(
        path=path,
        label=label,
        labels=labels,
        task=task,
        classes=classes,
        user=user,
        drop=drop,
        test_fraction=test_fraction,
        text=text_column(text, tokenizer, length),
    )
    mistakes = FileMistakes(path)
    table = parquet_table(path, mistakes)
    _check_header(table.column_names, wanted, mistakes)
    features = wanted.features(table.column_names)
    rows = list(range(1, table.num_rows + 1))
    columns = _Columns(rows=rows)
    columns.targets |= {name: arrow_text(table.column(name), name, mistakes) for name in wanted.targets}
    for name, cells in ((user, columns.users), (text, columns.texts)):
        cells += [] if name is None else arrow_text(table.column(name), name, mistakes)
    values = [arrow_numbers(table.column(name), rows, name, mistakes) for name in features]
    columns.batches += [np.stack(values, axis=1)] if values else []
    return _assembled(features, columns, wanted, mistakes)


def is_parquet(path: str) -> bool:
    """Return whether a file is Parquet by its first bytes."""
    with open(path, "rb") as file:
        return file.read(len(_PARQUET)) == _PARQUET


def parquet_table(path: str, mistakes: FileMistakes) -> Any:
    """Read a Parquet file as an Arrow table.

    Raises:
        DataError: pyarrow is not installed, or the file cannot be read.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise mistakes.stop("", "reading Parquet needs pyarrow; run pip install fedpeer[parquet]") from None
    check_there(path)
    try:
        return pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as problem:
        raise mistakes.stop("", f"it cannot be read as Parquet ({problem})") from None


def arrow_text(column: Any, name: str, mistakes: FileMistakes) -> list[str]:
    """Return an Arrow column as text; a missing value is empty.

    Raises:
        DataError: it is not text.
    """
    import pyarrow
    import pyarrow.types

    times = pyarrow.types.is_temporal(column.type) and not pyarrow.types.is_duration(column.type)
    try:
        if times:  # Python has no nanoseconds, and no year 10,000
            column = column.cast(pyarrow.string())
        return ["" if value is None else str(value).strip() for value in column.to_pylist()]
    except ValueError as problem:  # Arrow's own errors, and text that is not UTF-8
        raise mistakes.stop(f"column {name}", f"it cannot be read as text ({problem}); convert it") from None


def arrow_numbers(
    column: Any, rows: Sequence[int], name: str, mistakes: FileMistakes, *, role: ColumnRole = "feature"
) -> NDArray[np.float32]:
    """Return an Arrow column as numbers; note the cells that are none."""
    import pyarrow
    import pyarrow.types

    numeric = (pyarrow.types.is_floating, pyarrow.types.is_integer, pyarrow.types.is_boolean)
    if not column.null_count and any(is_a(column.type) for is_a in numeric):
        with np.errstate(over="ignore"):
            value_N = np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float32)
        if np.isfinite(value_N).all():
            return value_N
    if pyarrow.types.is_boolean(column.type):  # true is a number here, and not the text that it is in a CSV
        column = column.cast(pyarrow.int8())
    return column_numbers(arrow_text(column, name, mistakes), rows, name, mistakes, role=role)


def _check_header(header: Sequence[str], wanted: WantedColumns, mistakes: FileMistakes, separator: str = "") -> None:
    """Raise a DataError with all mistakes in the column names; Parquet (no `separator`) has no header line."""
    line = "row 1" if separator else ""
    if separator and len(header) == 1:
        others = {
            ";": 'try delimiter=";"',
            "\t": 'try delimiter="tab"',
            "|": 'try delimiter="|"',
            ",": "leave delimiter out",
        }
        advice = next((advice for mark, advice in others.items() if mark in header[0] and mark != separator), None)
        if advice:
            raise mistakes.stop(line, f'there is one column, "{header[0]}"; {advice}')
    unnamed = [name for name in wanted.targets if name not in header]
    numbers = [name for name in header if is_number(name)]
    unlike_names = len(numbers) == len(header) and not all(map(str.isdecimal, numbers))  # columns may be called 0, 1, 2
    fractions = [name for name in numbers if not name.isdecimal()]  # a row with text in several columns has them, too
    if separator and (unlike_names or (unnamed and (fractions or len(numbers) >= max(1, len(header) - 1)))):
        found = ", ".join(header[:4]) + (", ..." if len(header) > 4 else "")
        lacks = f'it has no column "{unnamed[0]}" and ' if unnamed else "it "
        text = f"{lacks}looks like a row of examples ({found})"
        raise mistakes.stop(line, f"{text}; write a line with the names of the columns above it")
    for twice in sorted({name for name in header if name and header.count(name) > 1}):
        where = ", ".join(str(place + 1) for place, each in enumerate(header) if each == twice)
        mistakes.add(line, f'columns {where} are all called "{twice}"; give each its own name')
    named = {"label": wanted.label, "user": wanted.user, "text": None if wanted.text is None else wanted.text.column}
    several = {"labels": wanted.labels, "drop": wanted.drop}
    for setting, name in [*named.items(), *((setting, name) for setting, each in several.items() for name in each)]:
        if name and name not in header:
            near = nearest_of(name, header)
            hint = f'did you mean "{near}"?' if near else "there are: " + ", ".join(header[:20])
            mistakes.add(f"{setting}={name}", f"there is no such column; {hint}")
        elif name in wanted.targets and setting in ("user", "text", "drop"):
            advice = "leave it out of drop" if setting == "drop" else "name another one"
            mistakes.add(f"{setting}={name}", f"this column is to be predicted; {advice}")
    nameless = [str(place) for place, name in enumerate(header, 1) if not name and name not in wanted.drop]
    if nameless:
        which = f"column {nameless[0]} has" if len(nameless) == 1 else f"columns {', '.join(nameless[:8])} have"
        mistakes.add(line, f'{which} no name; name each, or leave out what has none with drop="" (an index of pandas)')
    features = wanted.features(header)
    for index in [name for name in features if name.startswith(_INDEX)]:
        mistakes.add(line, f"{index} is the index of a pandas table and no feature; leave it out with drop={index}")
    if wanted.text is not None and features:
        more = f"{', '.join(features[:8])} {'are' if len(features) > 1 else 'is'} neither label, user nor text"
        mistakes.add(line, f"{more}; leave out what is not learned from with drop={'+'.join(features)}")
    elif wanted.text is None and not features:
        mistakes.add(line, "no column is left as a feature")
    mistakes.stop_if_any()


def _assembled(features: list[str], columns: _Columns, wanted: WantedColumns, mistakes: FileMistakes) -> Dataset:
    if not columns.rows:
        mistakes.stop_if_any()
        raise mistakes.stop("", "there are column names but no rows")
    y, task, names = _label_targets(columns, wanted, mistakes)
    user_N, user_names = users(columns.users, columns.rows, wanted.user, mistakes) if wanted.user else (None, ())
    mistakes.stop_if_any()
    source = _source(task, names, wanted, mistakes)
    if wanted.text is None:
        x: NDArray[np.generic] = np.concatenate(columns.batches)
        vocabulary, padding = 0, None
    else:
        tokens = tokens_of(columns.texts, wanted.text, continued=task == "next-token")
        if not len(tokens.x_NT):
            raise mistakes.stop(f"column {wanted.text.column}", "no text has two tokens, so there is none to predict")
        x, vocabulary, padding = tokens.x_NT, tokens.vocabulary, tokens.padding
        y = y if tokens.y_NT is None else tokens.y_NT
        user_N = None if user_N is None else user_N[tokens.row_N]
        if tokens.cut:
            source += f"; {tokens.cut} of {len(columns.texts)} texts were cut to {wanted.text.length} tokens"
    return Dataset(
        name=Path(mistakes.file).stem,
        x=x,
        y=y,
        task=task,
        input_kind="features" if wanted.text is None else "tokens",
        classes=names,
        user_N=user_N,
        user_names=user_names,
        test_N=drawn_test_part(y, task, wanted.test_fraction),
        feature_names=tuple(features),
        vocabulary=vocabulary,
        padding=padding,
        text=wanted.text,
        source=source,
    )


def _label_targets(
    columns: _Columns, wanted: WantedColumns, mistakes: FileMistakes
) -> tuple[NDArray[np.generic], Task, tuple[str, ...]]:
    """Return the targets in the columns of labels, the task, and the names of the classes or labels."""
    if wanted.labels:
        marks = [label_marks(columns.targets[name], columns.rows, name, mistakes) for name in wanted.labels]
        return np.stack(marks, axis=1), "multi-label", wanted.labels
    if wanted.label is None:
        return np.empty(0, np.int64), "next-token", ()
    cells = columns.targets[wanted.label]
    task = wanted.task or ("classification" if wanted.classes else guessed_task(cells))
    guessed = wanted.task is None and task == "regression"
    if guessed and len(cells) > 1 and len({*cells}) == 1:
        problem = f"all rows have {cells[0]}; name another column, or write task=regression"
        mistakes.add(f"column {wanted.label}", problem)
    if task == "classification":
        y, names = class_numbers(cells, columns.rows, wanted.label, wanted.classes, mistakes)
        return y, task, names
    return column_numbers(cells, columns.rows, wanted.label, mistakes, role="target"), task, ()


def _source(task: Task, names: Sequence[str], wanted: WantedColumns, mistakes: FileMistakes) -> str:
    """Return the source of the examples as text, and how their targets were read."""
    if wanted.labels:
        return f"{mistakes.file}, columns {', '.join(wanted.labels)} {described(task, names, guessed=False)}"
    if wanted.label is None:
        assert wanted.text is not None, "checked when the settings were read"
        return f"{mistakes.file}, the next tokens of column {wanted.text.column}"
    guessed = wanted.task is None and not wanted.classes
    return f"{mistakes.file}, column {wanted.label} {described(task, names, guessed=guessed)}"
