"""Converts plain values to typed settings, or to sentences about all mistakes in their types and ranges.

pydantic finds the mistakes; the sentences are written here and are the same for files, options and Python.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from fedpeer.config.choice import nearest_name
from fedpeer.config.problems import ConfigProblem, Path, found_text

#: Context in which settings are read without the rules of `rules.py`: the caller checks these later, or did before.
UNCHECKED = {"unchecked": True}

#: What the user should write, by pydantic's name of the error.
_WANTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "settings (key: value)",
    "model_type": "settings (key: value)",
    "none_required": "nothing",
    "greater_than_equal": "{ge} or more",
    "greater_than": "more than {gt}",
    "less_than_equal": "{le} or less",
    "less_than": "less than {lt}",
    "string_too_short": "at least {min_length} character",
    "string_too_long": "at most {max_length} characters",
    "string_pattern_mismatch": "letters, digits, dots and hyphens, at most 63",
    "too_short": "at least {min_length} of them",
    "is_instance_of": "a path",
    "invalid_key": "text",
    "too_long": "at most {max_length} of them",
    "assignment_type": "alike",
}


_M = typing.TypeVar("_M", bound=BaseModel)


def typed(model: type[_M], data: Mapping[str, Any]) -> tuple[_M | None, list[ConfigProblem]]:
    """Return the typed settings, and all mistakes in their types, ranges and names.

    Settings with mistakes are left out and the rest is read again, so that the checks across settings can go on; None
    if that is impossible too.
    """
    try:
        return model.model_validate(data, context=UNCHECKED), []
    except ValidationError as error:
        problems = _problems(model, data, error.errors(include_url=False))
    try:
        right = _without(data, [problem.path for problem in problems])
        return model.model_validate(right, context=UNCHECKED), problems
    except ValidationError:
        return None, problems


def _problems(model: type[BaseModel], data: Mapping[str, Any], errors: list[ErrorDetails]) -> list[ConfigProblem]:
    """Return one problem per place: pydantic gives an error for each alternative ("all", a number, a list)."""
    at: dict[Path, list[ErrorDetails]] = {}
    for error in errors:
        at.setdefault(_path(data, error), []).append(error)
    deepest = [path for path in at if not any(other[: len(path)] == path for other in at if len(other) > len(path))]
    return [ConfigProblem(path, _words(model, path, at[path])) for path in deepest]


def _path(data: Any, error: ErrorDetails) -> Path:
    """Return pydantic's location without the names of the alternatives that it tried."""
    path: list[str | int] = []
    for key in error["loc"]:
        known = isinstance(data, Mapping) and key in data
        if known or (isinstance(data, list) and isinstance(key, int) and key < len(data)):
            path.append(key)
            data = data[key]
    return (*path, error["loc"][-1]) if error["type"] == "missing" else tuple(path)


def _words(model: type[BaseModel], path: Path, errors: list[ErrorDetails]) -> str:
    error = errors[0]
    if error["type"] == "extra_forbidden":
        return _unknown(model, path)
    if error["type"] == "missing":
        return "missing; it has no default, so it must be written"
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    wanted = [each for each in errors if not each["type"].endswith("_type")] if len(errors) > 1 else errors
    in_range = [each for each in wanted if each["type"] not in ("literal_error", "int_from_float")]
    alternatives = in_range or errors
    words = dict.fromkeys(_wanted(each) for each in alternatives)
    return f"found {_found(error['input'])}; write {' or '.join(words)}"


def _wanted(error: ErrorDetails) -> str:
    if error["type"] == "literal_error":
        return str(error["ctx"]["expected"]).replace("'", '"')
    return _WANTED.get(error["type"], "another value").format(**error.get("ctx", {}))


def _found(value: Any) -> str:
    if isinstance(value, str):
        return f'"{found_text(value)}" (text)' if value else "empty text"
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "nothing"
    if isinstance(value, (list, Mapping)):
        return ("a list" if value else "an empty list") if isinstance(value, list) else "settings"
    return found_text(value)


def _unknown(model: type[BaseModel], path: Path) -> str:
    """Return `unknown setting; ...` with the nearest name here, the same name elsewhere, or all names known here."""
    *parents, name = path
    here = fields_at(model, parents)
    near = nearest_name(str(name), here)
    if not near.startswith("did you mean"):
        elsewhere = [dotted for dotted in _all_fields(model) if dotted.rpartition(".")[2] == name]
        return f"unknown setting; {f'did you mean {elsewhere[0]}?' if elsewhere else f'{near}'}"
    meant = near.split('"')[1]
    return f"unknown setting; did you mean {'.'.join(map(str, [*parents, meant]))}?"


def fields_at(model: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """Return the names of the settings under a path."""
    keys = iter(path)
    for key in keys:
        annotation = model.model_fields[str(key)].annotation if str(key) in model.model_fields else None
        if typing.get_origin(annotation) is dict:
            annotation = typing.get_args(annotation)[1]
            next(keys, None)  # a name that the user chose
        inner = _settings_in(annotation)
        if inner is None:
            return []
        model = inner
    return list(model.model_fields)


def _settings_in(annotation: Any) -> type[BaseModel] | None:
    """Return the settings under a key of this type; None if the type has none."""
    kinds = (annotation, *typing.get_args(annotation))
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


def _all_fields(model: type[BaseModel], prefix: str = "") -> list[str]:
    names = []
    for name, info in model.model_fields.items():
        names.append(prefix + name)
        inner = None if typing.get_origin(info.annotation) is dict else _settings_in(info.annotation)
        if inner is not None:
            names += _all_fields(inner, f"{prefix}{name}.")
    return names


def _without(data: Any, paths: Sequence[Path], here: Path = ()) -> Any:
    """Return a copy of nested plain data without the values at these paths."""
    if isinstance(data, Mapping):
        return {k: _without(v, paths, (*here, k)) for k, v in data.items() if (*here, k) not in paths}
    if isinstance(data, list):
        return [_without(v, paths, (*here, n)) for n, v in enumerate(data) if (*here, n) not in paths]
    return data
