"""Conversion of columns of text to numbers, classes and users; everything doubtful is reported. Reads no files.

Nothing is encoded, filled in or dropped silently. Text among the features, an empty cell or an invalid number is a
mistake with a place; only class labels and users may be text. A guess (classes or numbers to predict?) is shown to the
user in the data set's `source`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedpeer.data.dataset import Task
from fedpeer.data.own.mistakes import FileMistakes, check_chosen_names, nearest_of
from fedpeer.data.splits.cuts import checked_fraction, stratified

#: What a column of numbers is for: a feature, which may be left out, a target, or an input that a trained model needs.
ColumnRole = Literal["feature", "target", "input"]
#: A label column with more different whole numbers than this holds a quantity, not classes.
CLASSES_GUESSED_MAX = 50
#: Words of other programs for a missing value.
_NO_VALUE = ("nan", "na", "n/a", "#n/a", "null", "?", "-")
#: Those of them that are never a class's name.
_NO_LABEL = ("nan", "n/a", "#n/a", "null")
#: Words for a label that holds or does not, in addition to the numbers 1 and 0.
_MARKS = {"false": 0.0, "true": 1.0}
#: A number with a decimal comma, as in half of Europe; a point, a blank or an apostrophe may separate thousands.
_DECIMAL_COMMA = re.compile(r"([+-]?(?:\d+|\d{1,3}(?:[. \u00a0\u202f'’]\d{3})+)),(\d+)")
#: A number with separated thousands, by commas or by these marks; a single point is a decimal point.
_THOUSANDS = re.compile(r"([+-]?\d{1,3}(?:(?:,\d{3})+|(?:[ \u00a0\u202f'’]\d{3})+|(?:\.\d{3}){2,}))(\.\d+)?")


def column_numbers(
    cells: Sequence[str], rows: Sequence[int], column: str, mistakes: FileMistakes, *, role: ColumnRole = "feature"
) -> NDArray[np.float32]:
    """Return the cells of a column as float32, (N,); a cell that is not a finite number is a mistake at its place.

    Args:
        role: what the column is for, which decides the way out.
    """
    try:
        if "_" in "".join(cells):  # numpy reads 12_34 as 1234
            raise ValueError
        value_N = np.array(cells, dtype=np.float64)
    except ValueError:
        value_N = np.array([_number(cell) for cell in cells])
    with np.errstate(over="ignore"):
        narrow_N = value_N.astype(np.float32)
    for i in np.flatnonzero(~np.isfinite(narrow_N)).tolist():
        kind, problem = _not_a_number(cells[i], column, role)
        mistakes.add(f"row {rows[i]}, column {column}", problem, group=(column, kind))
    return narrow_N


def is_number(cell: str) -> bool:
    """Return whether a cell has a number, which may be infinite or `nan`."""
    return _read(cell) is not None


def _read(cell: str) -> float | None:
    """Return the number in a cell, or None if it has none; 12_34, which Python reads as 1234, is a name."""
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return None


def _number(cell: str) -> float:
    value = _read(cell)
    return np.nan if value is None else value


def _not_a_number(cell: str, column: str, role: ColumnRole) -> tuple[str, str]:
    leave_out = f"leave the column out with drop={column}"
    way_out = f"fill it in, delete the row, or {leave_out}" if role == "feature" else "fill it in or delete the row"
    if not cell.strip():
        return "empty", f"the cell is empty; {way_out}"
    if cell.strip().lower() in _NO_VALUE and _read(cell) is None:
        return "missing", f'"{cell.strip()}" stands for no value; {way_out}'
    value = _read(cell)
    if value is None and (meant := _meant(cell)):
        (mark, number), *others = meant.items()
        other = "".join(f" (or {another}, if it has {what})" for what, another in others)
        return "mark", f'"{cell.strip()}" has {mark}; write {number}{other}, and export the file that way'
    if value is None:
        encode = {
            "feature": f"encode it as numbers, or {leave_out}",
            "target": "encode it as numbers, or write task=classification",
            "input": "encode it as in the training",
        }[role]
        return "text", f'"{_shortened(cell)}" is text, and a network needs numbers; {encode}'
    return "infinite", f"{cell.strip()} is not a {'finite ' if value == value else ''}number in float32; {way_out}"


def _meant(cell: str) -> dict[str, str]:
    """Return the possible meanings of a number with the marks of other countries, in Python's form, by mark.

    >>> _meant("1.234,5"), _meant("1,234")
    ({'a decimal comma': '1234.5'}, {'a decimal comma': '1.234', 'thousands set off': '1234'})
    """
    found = {}
    if match := _DECIMAL_COMMA.fullmatch(cell.strip()):
        found["a decimal comma"] = f"{_digits(match[1])}.{match[2]}"
    if match := _THOUSANDS.fullmatch(cell.strip()):
        found["thousands set off"] = f"{_digits(match[1])}{match[2] or ''}"
    return found


def _digits(number: str) -> str:
    return re.sub(r"[^\d+-]", "", number)


def _shortened(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."


def guessed_task(label_N: Sequence[str]) -> Task:
    """Return classification if the labels are text or few different whole numbers, else regression.

    Numbers with the marks of other countries count as numbers; their mistakes are then found one by one.
    """
    there = [label for label in set(label_N) if not _missing(label)]
    read = [[label] if is_number(label) else list(_meant(label).values()) for label in there]
    if all(read):
        there = [meanings[0] for meanings in read]
    values = [_number(label) for label in there]
    few_and_whole = len(values) <= CLASSES_GUESSED_MAX and all(value.is_integer() for value in values)
    return "classification" if np.isnan(values).any() or few_and_whole else "regression"


def label_marks(cells: Sequence[str], rows: Sequence[int], column: str, mistakes: FileMistakes) -> NDArray[np.float32]:
    """Return the cells of a label's column as 1 (it holds) and 0, (N,); anything else is a mistake at its place."""
    found_N = np.array([_MARKS.get(cell.strip().lower(), _number(cell)) for cell in cells])
    value_N = found_N.astype(np.float32)
    for i in np.flatnonzero((found_N != 0) & (found_N != 1)).tolist():
        problem = f'"{_shortened(cells[i].strip())}" is neither 0 nor 1' if cells[i].strip() else "the label is missing"
        mistakes.add(f"row {rows[i]}, column {column}", f"{problem}; write 0 or 1, or delete the row", (column, "mark"))
    return value_N


def _missing(label: str) -> bool:
    """Return whether a label means a missing value; a class may be called na, but not NA, R's missing value."""
    return not label or label == "NA" or label.lower() in _NO_LABEL


def class_numbers(
    label_N: Sequence[str], rows: Sequence[int], column: str, classes: tuple[str, ...], mistakes: FileMistakes
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return class numbers (N,) and names; names are sorted by value if all are numbers, else by alphabet.

    `classes`, if given, fixes names and order: peers with separate files must agree on them.
    """
    check_chosen_names(classes, mistakes)
    for row, label in zip(rows, label_N, strict=True):
        if _missing(label) and label not in classes:
            told = f' ("{label}"; if that is a class, name all: classes=a+b+...)' if label else ""
            problem = f"the label is missing{told}; fill it in or delete the row"
            mistakes.add(f"row {row}, column {column}", problem, (column, "missing"))
        elif classes and label not in classes:
            near = nearest_of(label, classes)
            hint = f'did you mean "{near}"?' if near else f"classes are {', '.join(classes)}"
            mistakes.add(
                f"row {row}, column {column}", f'"{_shortened(label)}" is not a class; {hint}', (column, label)
            )
    found = sorted(set(label_N), key=_in_order)
    if not classes and len(found) == 1:
        mistakes.add(
            f"column {column}",
            f'all rows are of the class "{found[0]}"; name another column, or all classes with classes=a+b+...',
        )
    if len(found) > CLASSES_GUESSED_MAX and 2 * len(found) > len(label_N):
        mistakes.add(
            f"column {column}",
            f"{len(found)} different labels in {len(label_N)} rows are too many classes; name another column, or write "
            "task=regression if they are numbers to predict",
        )
    names = classes or tuple(found)
    place = {name: number for number, name in enumerate(names)}
    return np.array([place.get(label, -1) for label in label_N], dtype=np.int64), names


def _in_order(label: str) -> tuple[bool, float, str]:
    value = _number(label)
    return (True, 0.0, label) if np.isnan(value) else (False, value, label)


def users(
    name_N: Sequence[str], rows: Sequence[int], column: str, mistakes: FileMistakes
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return each example's user, (N,), and the names of the users."""
    for row, name in zip(rows, name_N, strict=True):
        if not name:
            mistakes.add(f"row {row}, column {column}", "the user is missing; fill it in or delete the row", column)
    names, user_N = np.unique(np.asarray(name_N, dtype=np.str_), return_inverse=True)
    return user_N.astype(np.int64), tuple(names.tolist())


def drawn_test_part(y: NDArray[np.generic], task: Task, test_fraction: float | None) -> NDArray[np.bool_] | None:
    """Draw a test part of that fraction, class by class, the same for the same labels; None without a fraction."""
    if test_fraction is None:
        return None
    kind_N = y if task == "classification" else np.zeros(len(y))
    return stratified(kind_N, checked_fraction(test_fraction), np.random.default_rng(0))


def described(task: Task, classes: Sequence[str], *, guessed: bool) -> str:
    """Return a phrase on how the labels were read, and whether that was guessed."""
    if task == "multi-label":
        return f"read as {len(classes)} labels" + (" (guessed)" if guessed else "")
    what = f"{len(classes)} classes" if task == "classification" else "numbers to predict"
    other = "regression" if task == "classification" else "classification"
    return f"read as {what}" + (f" (guessed; write task={other} if that is wrong)" if guessed else "")
