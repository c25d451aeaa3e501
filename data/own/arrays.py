"""Users' own arrays: an .npz file, or the result of a user's function."""

from __future__ import annotations

import math
import os
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from fedpeer.data.dataset import NO_TOKEN, DataError, Dataset, InputKind, Task
from fedpeer.data.own.code import imported
from fedpeer.data.own.columns import CLASSES_GUESSED_MAX, described, drawn_test_part, users
from fedpeer.data.own.mistakes import FileMistakes, check_chosen_names, check_there

#: Readers of an array's header, by the version of the format.
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
#: Most bytes that one compressed byte can become: the limit of deflate.
_PACKED_MAX = 1032
#: Most classes: a larger number is an identifier mistaken for a class, and would need an output layer of that size.
_CLASSES_MAX = 10_000


def npz(
    *,
    path: str,
    task: Task | None = None,
    kind: InputKind | None = None,
    classes: tuple[str, ...] = (),
    test_fraction: float | None = None,
) -> Dataset:
    """NumPy .npz file with the arrays x and y and, optionally, user and test (true: for testing).

    Args:
        kind: features, image or tokens; default: guessed from the shape of x.
        classes: names of the class numbers in y, or of the columns of labels.
        test_fraction: fraction to draw for testing, also if there is an array test.

    Raises:
        DataError: with the array and index of every mistake.
    """
    check_there(path)
    known = ("x", "y", "user", "test")
    try:
        with open(path, "rb") as file:
            if file.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX:
                raise DataError(f"{path}: it holds one array; store x and y with numpy.savez(file, x=x, y=y)")
            if not zipfile.is_zipfile(file):  # numpy would take it for a pickle, and suggest an unsafe way to read it
                raise zipfile.BadZipFile("it is another kind of file, or ends early")
            file.seek(0)
            stored = np.load(file, allow_pickle=False)
            assert isinstance(stored, NpzFile), "what is neither an array nor a zip is a pickle, which is refused"
            with stored:
                for name in known:
                    _check_filled(stored, name)
                found = {name: stored[name] for name in known if name in stored}
                names = ", ".join(stored)
    except MemoryError as problem:
        raise DataError(f"{path}: this machine has too little memory for its arrays ({problem})") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as problem:
        raise DataError(
            f"{path}: it cannot be read as an .npz file of plain arrays ({problem or 'it ends early'}); "
            "write it with numpy.savez"
        ) from None
    missing = [name for name in ("x", "y") if name not in found]
    if missing:
        raise DataError(f"{path}: it has no array {' and no array '.join(missing)}; it has: {names or 'nothing'}")
    return _from_arrays(
        Path(path).stem, **found, source=path, task=task, kind=kind, classes=classes, test_fraction=test_fraction
    )


def _check_filled(stored: NpzFile, name: str) -> None:
    """Check that an array's header states the size of its bytes, before memory is allocated for it."""
    member = f"{name}.npy"
    if stored.zip is None or member not in stored.zip.namelist():
        return
    info = stored.zip.getinfo(member)
    with stored.zip.open(member) as file:
        version = npy.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f"{name} has version {version}, which plain arrays do not have")
        shape, _, dtype = _HEADERS[version](file)
        declared, there = math.prod(shape) * dtype.itemsize, info.file_size - file.tell()
    if not dtype.hasobject and (declared != there or info.file_size > _PACKED_MAX * info.compress_size + _PACKED_MAX):
        held = f"{info.compress_size:,} compressed" if declared == there else f"{max(there, 0):,}"
        raise ValueError(f"{name} has a header for shape {shape} of {dtype}, {declared:,} bytes, but {held} bytes")


def python_arrays(
    *,
    function: str,
    task: Task | None = None,
    kind: InputKind | None = None,
    classes: tuple[str, ...] = (),
    test_fraction: float | None = None,
) -> Dataset:
    """Your own function, `package.module:function`, that returns a Dataset, (x, y), or a PyTorch data set.

    It is imported and called without arguments, so only the peer's own user may name it. A PyTorch data set is anything
    with a length whose items are pairs (input, label). A Dataset has its own task and kind, which settings must not
    contradict; `classes` puts its classes in order, and `test_fraction` draws its test part.

    Raises:
        DataError: it cannot be imported, fails, or returns something else.
    """
    made = _called(function)
    return of_objects(made, function, "returned", task=task, kind=kind, classes=classes, test_fraction=test_fraction)


def of_objects(
    made: object,
    name: str = "data",
    verb: str = "is",
    *,
    task: Task | None = None,
    kind: InputKind | None = None,
    classes: tuple[str, ...] = (),
    test_fraction: float | None = None,
) -> Dataset:
    """Return a Dataset made from a Dataset, (x, y) or a PyTorch data set.

    Args:
        name: its name in errors.
        verb: "returned" in errors, if `name` names a function.

    Raises:
        DataError: it is something else, or `_from_arrays` finds mistakes.
    """
    if isinstance(made, Dataset):
        return _by_settings(_checked(made, name), name, task, kind, classes, test_fraction)
    pair = made if isinstance(made, tuple) else _stacked(f"{name} {verb}", made)
    if len(pair) != 2:
        raise DataError(f"{name} {verb} a tuple of {len(pair)}; it must be (x, y)")
    return _from_arrays(name, *pair, source=name, task=task, kind=kind, classes=classes, test_fraction=test_fraction)


def _checked(made: Dataset, name: str) -> Dataset:
    """Return a Dataset that a user has put together, with int64 numbers and a name of each user and subclass.

    Raises:
        DataError: all invalid fields at once, field by field.
    """
    mistakes = FileMistakes(name)
    title: object = made.name
    if not isinstance(title, str):
        mistakes.add("name", f"it is {title!r}; write text")
    listed = {field: getattr(made, field) for field in ("classes", "user_names", "subclass_names", "feature_names")}
    for field, names in listed.items():
        if not isinstance(names, tuple | list):
            mistakes.add(field, f"it is a {type(names).__name__}; write a tuple of names")
        elif (other := next((each for each in names if not isinstance(each, str)), None)) is not None:
            mistakes.add(field, f"{other!r} is no text; write tuple(map(str, {field}))")
    for field in ("x", "y", "user_N", "subclass_N", "test_N"):
        if (value := getattr(made, field)) is not None and not isinstance(value, np.ndarray):
            mistakes.add(field, f"it is a {type(value).__name__}; convert it with numpy.asarray({field})")
    mistakes.stop_if_any()
    x, y = _array(made.x, "x", mistakes), _array(made.y, "y", mistakes)
    if x.ndim < 2 or not x.size:
        mistakes.add("x", f"its shape is {x.shape}; it must be (examples, ...), and not empty")
    if not y.ndim:
        mistakes.add("y", f"its shape is {y.shape}; it must be (examples, ...)")
    mistakes.stop_if_any()
    wanted = np.dtype(np.int64 if made.input_kind == "tokens" else np.float32)
    if x.dtype != wanted:
        mistakes.add("x", f"it holds {x.dtype}; convert it with x.astype(numpy.{wanted})")
    if made.input_kind == "image" and x.ndim != 4:
        mistakes.add("x", f"its shape is {x.shape}; images have (examples, channels, height, width)")
    if made.input_kind != "tokens":
        _finite(x, "x", mistakes)
    elif x.dtype == wanted:
        _check_tokens(x, "x", 0, made.vocabulary, mistakes)
    if len(y) != len(x):
        mistakes.add("y", f"it has {len(y)} entries, but x has {len(x)}; the numbers must be equal")
    as_tuples = {field: tuple(names) for field, names in listed.items() if isinstance(names, list)}
    named = {**as_tuples, **_named(made, "user", mistakes), **_named(made, "subclass", mistakes)}
    test_N = made.test_N
    if test_N is not None and _one_each(test_N, "test_N", len(x), mistakes) and test_N.dtype != np.bool_:
        # 0 and 1 would index two examples, where True and False choose from all of them
        problem = f"it holds {test_N.dtype}; it must be True (for testing) and False: write test_N == 1"
        mistakes.add("test_N", problem)
    if made.input_kind == "features" and x.ndim == 2 and made.feature_names and len(made.feature_names) != x.shape[1]:
        mistakes.add(
            "feature_names", f"there are {len(made.feature_names)}, but x has {x.shape[1]} features; name each"
        )
    check_chosen_names(made.classes, mistakes)
    if made.task == "classification" and not made.classes:
        mistakes.add("classes", "there are none; name the classes in the order of their numbers in y")
    elif made.task in ("classification", "multi-label"):
        _targets(y, made.task, made.classes, mistakes)
        kept = np.dtype(np.int64 if made.task == "classification" else np.float32)
        if y.dtype != kept:
            mistakes.add("y", f"it holds {y.dtype}; convert it with y.astype(numpy.{kept})")
    elif made.task == "next-token" and (y.shape != x.shape or y.dtype != np.int64):
        mistakes.add("y", f"it holds {y.dtype} {y.shape}; next tokens are int64 in the shape of x, {x.shape}")
    elif made.task == "next-token":
        _check_tokens(y, "y", NO_TOKEN, made.vocabulary, mistakes)
    elif y.dtype.kind == "f":
        _finite(y, "y", mistakes)
    if made.task not in ("classification", "multi-label") and made.classes:
        mistakes.add("classes", f"there are classes, but task={made.task} has none; leave them out")
    mistakes.stop_if_any()
    return replace(made, **named) if named else made


def _by_settings(
    made: Dataset,
    name: str,
    task: Task | None,
    kind: InputKind | None,
    classes: tuple[str, ...],
    test_fraction: float | None,
) -> Dataset:
    """Return a checked Dataset with its classes in the order of the settings, and the test part that they ask for.

    Raises:
        DataError: the settings contradict the Dataset.
    """
    mistakes = FileMistakes(name)
    check_chosen_names(classes, mistakes)
    for setting, wanted, own in (("task", task, made.task), ("kind", kind, made.input_kind)):
        if wanted not in (None, own):
            mistakes.add(f"{setting}={wanted}", f'the Dataset says "{own}"; leave {setting} out, or change the Dataset')
    unknown = [each for each in made.classes if classes and each not in classes]
    absent = [each for each in classes if each not in made.classes] if made.task != "classification" else []
    if unknown:
        mistakes.add(
            f"classes={'+'.join(classes)}", f'"{unknown[0]}", a class of the Dataset, is not among them; add it'
        )
    if absent:
        mistakes.add(f"classes={'+'.join(classes)}", f'the Dataset has no label "{absent[0]}"; leave it out')
    if made.task == "completion" and test_fraction is not None:
        mistakes.add(
            f"test_fraction={test_fraction:g}", "incomplete patterns cannot be drawn; set test_N in the Dataset"
        )
    mistakes.stop_if_any()
    if classes and classes != made.classes:
        place_C = np.array([classes.index(each) for each in made.classes])
        y = made.y[:, np.argsort(place_C)] if made.y.ndim == 2 else place_C[made.y.astype(np.int64)]
        made = replace(made, y=y, classes=classes)
    if test_fraction is None:
        return made
    return replace(made, test_N=drawn_test_part(made.y, made.task, test_fraction))


def _named(made: Dataset, what: str, mistakes: FileMistakes) -> dict[str, Any]:
    """Return the fields that change for each example's user or subclass: numbers as int64, and names if there are none.

    Without names, the numbers themselves are the names.
    """
    field = f"{what}_N"
    number_N, names = getattr(made, field), getattr(made, f"{what}_names")
    if number_N is None or not _one_each(number_N, field, len(made.x), mistakes):
        return {}
    if number_N.dtype.kind not in "iu":
        names_first = f"{what}_names, {field} = numpy.unique({field}, return_inverse=True)"
        way_out = f"number them: {names_first}" if number_N.dtype.kind in "USO" else f"{field}.astype(numpy.int64)"
        mistakes.add(field, f"it holds {number_N.dtype}; convert it, {way_out}")
        return {}
    elif np.any(number_N < 0) or (names and np.any(number_N >= len(names))):
        known = f"those of {len(names)} names, " if names else ""
        mistakes.add(field, f"numbers from {number_N.min()} to {number_N.max()} are not {known}from 0 on")
    elif not names:
        found, place_N = np.unique(number_N, return_inverse=True)
        return {field: place_N.astype(np.int64), f"{what}_names": tuple(map(str, found.tolist()))}
    return {} if number_N.dtype == np.int64 else {field: number_N.astype(np.int64)}


def _one_each(marks: NDArray[np.generic], field: str, count: int, mistakes: FileMistakes) -> bool:
    """Return whether there is one mark for each example."""
    if marks.shape != (count,):
        mistakes.add(field, f"its shape is {marks.shape}, but x has {count} examples; it must be ({count},)")
    return marks.shape == (count,)


def _called(function: str) -> Any:
    factory = imported(function)
    try:
        return factory()
    except (Exception, SystemExit) as problem:  # whatever the user's function raises
        raise DataError(f"{function}: calling it without arguments failed: {_reason(problem)}") from problem


def _reason(problem: BaseException) -> str:
    return f"{type(problem).__name__}: {problem}"


def _way_out(items: object) -> str:
    """Return the way out for objects of a well-known type; "" for other types."""
    if isinstance(items, np.ndarray):
        return "give the targets beside it, (x, y)"
    if isinstance(items, os.PathLike):
        return f"name the file by its kind, such as csv:{items},label=NAME"
    if hasattr(items, "batch_size") and hasattr(items, "dataset"):  # a DataLoader
        return "give the data set itself, loader.dataset; batches are made by learning.batch_size"
    if isinstance(items, Mapping):
        return "give a pair, (x, y)"
    if hasattr(items, "columns"):  # a table of pandas, polars or pyarrow
        return 'take its columns as arrays, such as (frame[["age", "dose"]].to_numpy(), frame["ill"].to_numpy())'
    return ""


def _stacked(subject: str, items: Any) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    """Return the inputs and labels of all items of a map-style data set; `subject` begins the error's sentence."""
    try:
        pairs = [items[i] for i in range(len(items))]
        return np.stack([np.asarray(x) for x, _ in pairs]), np.stack([np.asarray(y) for _, y in pairs])
    except Exception as problem:  # whatever the user's items raise
        raise DataError(
            f"{subject} {type(items).__name__}, not a Dataset, (x, y), or items (input, label) of one shape: "
            f"{_way_out(items) or _reason(problem)}"
        ) from problem


def _from_arrays(
    name: str,
    x: object,
    y: object,
    *,
    source: str,
    user: object = None,
    test: object = None,
    task: Task | None = None,
    kind: InputKind | None = None,
    classes: tuple[str, ...] = (),
    test_fraction: float | None = None,
) -> Dataset:
    """Return a data set from arrays x (N, ...) and y (N,), or (N, outputs) for regression, (N, labels) for multi-label.

    Args:
        source: the file or function to name in errors.
        kind: default: guessed from the shape, (N, F) features, (N, H, W) or (N, C, H, W) images; never tokens.
            Features may have further dimensions, such as sequences (N, T, F).

    Raises:
        DataError: wrong shapes or lengths, values that are not finite, invalid class numbers; all at once.
    """
    mistakes = FileMistakes(source)
    if task in ("completion", "next-token"):
        raise mistakes.stop(
            f"task={task}",
            "x and y have classes, labels or numbers; return a fedpeer.Dataset from a function, python:module:function",
        )
    raw_x, raw_y = _array(x, "x", mistakes), _array(y, "y", mistakes)
    mistakes.stop_if_any()
    _check_shapes(raw_x, raw_y, {"user": user, "test": test}, mistakes)
    raw_y = raw_y[:, 0] if raw_y.ndim == 2 and raw_y.shape[1] == 1 else raw_y
    kind = kind or ("features" if raw_x.ndim == 2 else "image")
    kept_x = _inputs(raw_x, kind, mistakes)
    wanted = task or _guessed_task(raw_y, classes)
    check_chosen_names(classes, mistakes)
    kept_y, names = _targets(raw_y, wanted, classes, mistakes)
    user_N, user_names = (None, ()) if user is None else _users(user, mistakes)
    mistakes.stop_if_any()
    return Dataset(
        name=name,
        x=kept_x,
        y=kept_y,
        task=wanted,
        input_kind=kind,
        classes=names,
        user_N=user_N,
        user_names=user_names,
        test_N=np.asarray(test).ravel()
        if test is not None and test_fraction is None
        else drawn_test_part(kept_y, wanted, test_fraction),
        source=f"{source}, {described(wanted, names, guessed=task is None and not classes)}",
    )


def _check_shapes(
    x: NDArray[np.generic], y: NDArray[np.generic], others: Mapping[str, object], mistakes: FileMistakes
) -> None:
    """Raise a DataError if shapes or lengths are invalid."""
    if x.ndim < 2 or x.size == 0:
        wanted = "(examples, features) or (examples, channels, height, width), and not empty"
        mistakes.add("x", f"its shape is {x.shape}; it must be {wanted}")
    if y.ndim not in (1, 2):
        mistakes.add(
            "y", f"its shape is {y.shape}; it must be (examples,), or (examples, outputs) for numbers or labels"
        )
    mistakes.stop_if_any()
    lengths = {"y": len(y)} | {name: np.size(np.asarray(found)) for name, found in others.items() if found is not None}
    for name, length in lengths.items():
        if length != len(x):
            mistakes.add(name, f"it has {length} entries, but x has {len(x)}; the numbers must be equal")
    if others["test"] is not None and np.asarray(others["test"]).dtype != np.bool_:
        mistakes.add("test", "it must be an array of true (for testing) and false; store test == 1")
    mistakes.stop_if_any()


def _guessed_task(y: NDArray[np.generic], classes: tuple[str, ...]) -> Task:
    if y.ndim == 2 and y.dtype.kind == "b":
        return "multi-label"
    if classes:
        return "classification"
    value = y.astype(np.float64)
    few = y.dtype.kind in "iub" or len(np.unique(value)) <= CLASSES_GUESSED_MAX
    whole = bool(np.all(value == np.floor(value)))
    return "classification" if y.ndim == 1 and few and whole else "regression"


def _array(value: object, name: str, mistakes: FileMistakes) -> NDArray[np.generic]:
    try:
        array: NDArray[np.generic] = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as problem:  # the last from a tensor with a gradient
        mistakes.add(name, f"it cannot be converted to an array ({problem}); give all examples the same shape")
        return np.empty(0)
    if array.dtype.kind not in "biuf":
        ways = {"x": "encode it as numbers, as with x.astype(numpy.float32)"}
        ways["y"] = "number the classes: numpy.unique(y, return_inverse=True)"
        mistakes.add(name, f"it holds {array.dtype}, not numbers; {ways[name]}")
    if count := int(np.ma.getmaskarray(value).sum()) if isinstance(value, np.ma.MaskedArray) else 0:
        # numpy.asarray takes what is under the mask for values
        mistakes.add(
            name, f"{count} of its values {'is' if count == 1 else 'are'} masked; fill or leave out the examples"
        )
    return array


def _users(user: object, mistakes: FileMistakes) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    names = [str(name) for name in np.asarray(user).ravel().tolist()]
    return users(names, range(len(names)), "user", mistakes)


def _inputs(x: NDArray[np.generic], kind: InputKind, mistakes: FileMistakes) -> NDArray[np.generic]:
    if kind == "tokens":
        if x.ndim != 2 or x.dtype.kind not in "iu" or int(np.min(x)) < 0:
            mistakes.add(
                "x", f"tokens are whole numbers from 0, of shape (examples, length); found {x.dtype} {x.shape}"
            )
        return x.astype(np.int64)
    if kind == "image" and x.ndim not in (3, 4):
        text = f"its shape is {x.shape}, and images have (examples, channels, height, width)"
        way_out = (
            'for features of any shape, such as volumes, write kind=features (a Dataset with input_kind="features")'
        )
        mistakes.add("x", f"{text}; {way_out}")
    _finite(x, "x", mistakes)
    with np.errstate(over="ignore"):
        narrow = x.astype(np.float32)
    return narrow[:, None] if kind == "image" and x.ndim == 3 else narrow


def _check_tokens(array: NDArray[np.generic], name: str, least: int, vocabulary: int, mistakes: FileMistakes) -> None:
    """Note a token number that no vocabulary has, or not one of this size; 0: its size is not known."""
    first, last = int(np.min(array)), int(np.max(array))
    if first < least:
        mistakes.add(name, f"it holds {first}; numbers of tokens are {least} or more")
    if vocabulary and last >= vocabulary:
        mistakes.add(name, f"it holds token {last}, but the vocabulary is {vocabulary}; set it to {last + 1} or more")


def _finite(array: NDArray[np.generic], name: str, mistakes: FileMistakes) -> None:
    with np.errstate(over="ignore"):
        bad = np.argwhere(~np.isfinite(array.astype(np.float32)))
    if len(bad):
        place = ", ".join(map(str, bad[0]))
        value = array[tuple(bad[0])]
        others = f", nor are {len(bad) - 1} more" if len(bad) > 1 else ""
        mistakes.add(
            f"{name}[{place}]",
            f"{value} is not a finite number in float32{others}; clean the array",
        )


def _targets(
    y: NDArray[np.generic], task: Task, classes: tuple[str, ...], mistakes: FileMistakes
) -> tuple[NDArray[np.generic], tuple[str, ...]]:
    """Return the targets, (N,) or (N, outputs), and the names of the classes."""
    if task == "regression":
        _finite(y, "y", mistakes)
        return y.astype(np.float32), ()
    if task == "multi-label":
        return _marks(y, classes, mistakes)
    if y.ndim != 1:
        ways = "write task=regression for numbers, or task=multi-label for labels of 0 and 1"
        mistakes.add("y", f"its shape is {y.shape}, but an example has one class number; or {ways}")
        return y, ()
    value_N = y.astype(np.float64)
    count = len(classes) or _CLASSES_MAX
    bad = np.flatnonzero(~((value_N >= 0) & (value_N < count) & (value_N == np.floor(value_N))))
    if len(bad):
        more = f", and {len(bad) - 1} more" if len(bad) > 1 else ""
        way_out = "" if classes else "; number them, or for numbers to predict write task=regression"
        problem = f"{y[bad[0]]} is out of range{more}: class numbers are whole and from 0 to {count - 1}{way_out}"
        mistakes.add(f"y[{bad[0]}]", problem)
        return y, ()
    number_N = value_N.astype(np.int64)
    if not classes and len(np.unique(number_N)) == 1:
        mistakes.add("y", f"all examples are of class {number_N[0]}; there must be two classes or more")
    return number_N, classes or tuple(map(str, range(int(number_N.max()) + 1)))


def _marks(
    y: NDArray[np.generic], classes: tuple[str, ...], mistakes: FileMistakes
) -> tuple[NDArray[np.generic], tuple[str, ...]]:
    """Return which labels hold, (N, C), and the names of the labels."""
    if y.ndim != 2:
        mistakes.add("y", f"its shape is {y.shape}; task=multi-label has (examples, labels), with two labels or more")
        return y, ()
    if classes and len(classes) != y.shape[1]:
        mistakes.add("classes", f"there are {len(classes)} names, and {y.shape[1]} labels in y; name each")
    kept_NC = y.astype(np.float32)
    bad = np.argwhere((kept_NC != 0) & (kept_NC != 1))
    if len(bad):
        place = ", ".join(map(str, bad[0]))
        more = f", and {len(bad) - 1} more" if len(bad) > 1 else ""
        mistakes.add(f"y[{place}]", f"{y[tuple(bad[0])]} is neither 0 nor 1{more}; for numbers write task=regression")
    return kept_NC, classes or tuple(map(str, range(y.shape[1])))
