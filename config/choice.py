"""Choices with settings, `name[:value][,key=value]...`, as the command line and the files write them.

A registry is a plain dict from names to functions. The keyword-only parameters of a function are the settings of
that choice; `name:value` sets the first of them. So `k-regular:4`, `k-regular,degree=4` and, in YAML, `{k-regular: 4}`
and `{k-regular: {degree: 4}}` are the same choice, and a new choice takes one function and one line.

Pure: no IO, no torch.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import math
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

#: Fewest first letters of a name that can identify it.
_BEGINNING_MIN = 3
_Function = TypeVar("_Function", bound=Callable[..., Any])


class ChoiceError(ValueError):
    """An invalid choice; the message has what was found, what is allowed and the nearest known name."""


@dataclass(frozen=True)
class Choice:
    """One choice: its name, the value after the colon (None if there is none), and the settings after the commas."""

    name: str
    value: Any = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        head = self.name if self.value is None else f"{self.name}:{_spelled(self.value)}"
        return ",".join([head, *(f"{key}={_spelled(value)}" for key, value in self.settings.items())])


#: A piece of a choice's text: up to the next comma outside double quotes, which may begin a value or an item of one.
_PIECE = re.compile(r'(?:[:=+]\s*"(?:[^"]|"")*"|[^,])*')
#: The beginning of a setting that is given by name.
_NAMED = re.compile(r"\s*([\w-]+)\s*=")
_IN_QUOTES = re.compile(r'"(?:[^"]|"")*"')
#: An item of `a+b`, which may be in double quotes.
_ITEM = re.compile(r'\s*"(?:[^"]|"")*"\s*(?=\+|$)|[^+]*')


def _spelled(value: Any) -> str:
    """Return a value as text that is read as the same value: in double quotes if it has a comma or such, as in CSV."""
    if isinstance(value, (list, tuple)):
        return _quoted("+".join(_quoted(_plain(each), "+") for each in value), ",")
    return _quoted(_plain(value), ",")


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _quoted(text: str, mark: str) -> str:
    doubled = text.replace('"', '""')
    return f'"{doubled}"' if not text or mark in text or '"' in text or text != text.strip() else text


def _unquoted(text: str) -> str:
    bare = text.strip()
    return bare[1:-1].replace('""', '"') if _IN_QUOTES.fullmatch(bare) else bare


def _divided(text: str, piece: re.Pattern[str]) -> list[str]:
    """Divide a text into pieces that match `piece`, with one character between each two as separator."""
    found, end = [], -1
    while end < len(text):
        match = piece.match(text, end + 1)
        assert match is not None, "a piece may be empty"
        found.append(match[0])
        end = match.end()
    return found


def parse_choice(text: str) -> Choice:
    """Parse `name[:value][,key=value]`.

    >>> parse_choice("k-regular:4")
    Choice(name='k-regular', value='4', settings={})
    >>> str(parse_choice("fedprox,mu=0.1"))
    'fedprox,mu=0.1'
    >>> parse_choice('csv:"ward 3, new.csv",label=outcome').value
    'ward 3, new.csv'

    Raises:
        ChoiceError: if the text is empty, a setting has no `=`, or a setting is given twice.
    """
    head, *rest = [piece.strip() for piece in _divided(text, _PIECE)]
    name, colon, value = head.partition(":")
    if not name:
        raise ChoiceError(f'"{text}" has no name; write name, name:value or name:value,key=value')
    if colon and not value:
        raise ChoiceError(f'"{text}" has nothing after the colon; write {name} or {name}:value')
    settings: dict[str, Any] = {}
    for piece in rest:
        key, equals, setting = piece.partition("=")
        key = key.strip()
        if not equals or not key or not setting.strip():
            way_out = f'write key=value, or a value with a comma in double quotes: {name}:"a,b"'
            raise ChoiceError(f'"{piece}" in "{text}" is not a setting; {way_out}')
        if key in settings:
            raise ChoiceError(f'"{key}" is set twice in "{text}"; leave one')
        settings[key] = _unquoted(setting)
    return Choice(name.strip(), _unquoted(value) or None, settings)


def from_data(found: object) -> Choice:
    """Parse a choice from YAML: text as for `parse_choice`, `{name: value}` or `{name: {key: value}}`."""
    if isinstance(found, Choice):
        return found
    if isinstance(found, str):
        return parse_choice(found)
    if isinstance(found, Mapping) and len(found) == 1:
        name, inside = next(iter(found.items()))
        if not isinstance(name, str):
            raise ChoiceError(f"{name!r} is not a name")
        if isinstance(inside, Mapping):
            return Choice(name, None, dict(inside))
        return Choice(name, inside, {})
    if callable(found) and hasattr(found, "__name__"):
        module = found.__module__
        text = "found a Python object; write its name"
        if module == "__main__":  # a name that processes of training cannot import
            module, text = "loops", f"{text}, after putting it into a file, such as loops.py"
        raise ChoiceError(f"{text}, python:{module}:{found.__name__}")
    if isinstance(found, Mapping) and found:
        names = list(map(str, found))
        raise ChoiceError(
            f"found {', '.join(names)}, and a choice is one name; write its settings inside it, "
            f"{{{names[0]}: {{key: value}}}}"
        )
    raise ChoiceError(f"{_shown(found)} is not a choice; write name, name:value or {{name: {{key: value}}}}")


def _shown(found: object) -> str:
    if isinstance(found, Mapping):
        return f"{len(found)} names"
    plain = found is None or isinstance(found, bool | int | float | list | tuple)
    return f"{found!r}"[:80] if plain else f"an object of {type(found).__name__}"


def chain(found: object) -> tuple[Choice, ...]:
    """Parse several choices in a row: `a:1/b:2,key=value`, or in YAML also a list of choices."""
    pieces = found.split("/") if isinstance(found, str) else found
    if isinstance(pieces, (list, tuple)) and not pieces:
        raise ChoiceError("an empty list is no choice; write a name, or leave the setting out")
    return tuple(map(from_data, pieces)) if isinstance(pieces, (list, tuple)) else (from_data(pieces),)


def several(found: object) -> tuple[Choice, ...]:
    """Parse several choices side by side: `a,b,key=value,c`, or in YAML also a list of choices."""
    if isinstance(found, str):
        return tuple(map(parse_choice, side_by_side(found)))
    return tuple(map(from_data, found)) if isinstance(found, (list, tuple)) else (from_data(found),)


def side_by_side(text: str) -> list[str]:
    """Return the texts of the choices in `a,b,key=value,c`: a, b,key=value, and c."""
    pieces: list[str] = []
    for piece in _divided(text, _PIECE):
        if "=" in piece and pieces:
            pieces[-1] += f",{piece}"
        else:
            pieces.append(piece.strip())
    return pieces


def nearest_name(name: str, known: Sequence[str]) -> str:
    """Return `did you mean "x"?` with the nearest known name, or the list of known names if none is near.

    Case does not matter. If just one known name begins with these letters, it is the nearest.

    >>> nearest_name("CSV", ["csv", "npz"])
    'did you mean "csv"?'
    >>> nearest_name("choco", ["cocoa", "choco-sgd"])
    'did you mean "choco-sgd"?'
    """
    folded = {each.casefold(): each for each in known}
    longer = [each for each in folded if len(name) >= _BEGINNING_MIN and each.startswith(name.casefold())]
    near = longer if len(longer) == 1 else difflib.get_close_matches(name.casefold(), folded, n=1)
    return f'did you mean "{folded[near[0]]}"?' if near else "known: " + ", ".join(sorted(known))


def lookup(choice: Choice, registry: Mapping[str, _Function], what: str) -> _Function:
    """Return the function of the choice's name; raise a ChoiceError with the nearest name if there is none."""
    if choice.name not in registry:
        raise ChoiceError(f'there is no {what} "{choice.name}"; {nearest_name(choice.name, list(registry))}')
    return registry[choice.name]


def bind_settings(choice: Choice, function: Callable[..., Any]) -> dict[str, Any]:
    """Return the keyword arguments that the choice sets, checked and converted by the function's annotations.

    Raises:
        ChoiceError: unknown setting, value of the wrong type, or a value for a function that takes none.
    """
    keywords = _keywords(function)
    given = dict(choice.settings)
    if choice.value is not None:
        if not keywords:
            raise ChoiceError(f'"{choice.name}" takes no value, but "{choice}" has one')
        first, named = next(iter(keywords)), _NAMED.match(str(choice.value))
        if named and named[1] in keywords:
            way_out = f"write {str(choice).replace(':', ',', 1)}"
            raise ChoiceError(f'"{choice}" has a colon before a setting that has a name; {way_out}')
        if first in given:
            raise ChoiceError(f'"{choice}" sets {first} twice, after the colon and by name')
        given[first] = choice.value
    unknown = [key for key in given if key not in keywords]
    if unknown:
        hint = nearest_name(unknown[0], list(keywords)) if keywords else "it has no settings"
        raise ChoiceError(f'"{choice.name}" has no setting "{unknown[0]}"; {hint}')
    missing = [n for n, p in keywords.items() if p.default is inspect.Parameter.empty and n not in given]
    if missing:
        write = ",".join(f"{name}=..." for name in missing)
        raise ChoiceError(f'"{choice.name}" needs {" and ".join(missing)}; write {choice},{write}')
    return {
        keywords[key].name: _converted(value, _kind(function, key), f"{choice.name}: {key}")
        for key, value in given.items()
    }


@functools.cache  # a federation's check asks it thousands of times
def _keywords(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the settings of a function by the names that a choice gives them."""
    return {
        name.rstrip("_"): parameter  # `for_` is the setting `for`, which is a keyword of Python
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }


@functools.cache
def _kind(function: Callable[..., Any], setting: str) -> Any:
    """Resolve a setting's annotation in the module that defines it: for a class, that may be the module of a base.

    The other annotations are not resolved, because they may name types that are not imported at run time.
    """
    parameter = _keywords(function)[setting]
    key, annotation = parameter.name, parameter.annotation
    bases = inspect.getmro(function) if inspect.isclass(function) else ()
    home = next((each for each in bases if key in vars(each).get("__annotations__", {})), function)
    written = types.SimpleNamespace(__annotations__={key: annotation})
    return typing.get_type_hints(written, globalns=vars(sys.modules[home.__module__]))[key]


def call_choice(choice: Choice, registry: Mapping[str, _Function], what: str) -> functools.partial[Any]:
    """Return the function of the choice's name with the choice's settings bound to it.

    Raises:
        ChoiceError: as `lookup` and `bind_settings` do.
    """
    function = lookup(choice, registry, what)
    return functools.partial(function, **bind_settings(choice, function))


def plain_value(value: Any) -> Any:
    """Convert text for which there is no annotation: to a number, a boolean, a tuple for a+b, or the text itself.

    >>> plain_value("0.9+0.99"), plain_value("1e+5"), plain_value("true"), plain_value("relu")
    ((0.9, 0.99), 100000.0, True, 'relu')
    """
    if isinstance(value, (list, tuple)):
        return tuple(map(plain_value, value))
    if not isinstance(value, str):
        return value
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(value)
    return tuple(map(plain_value, value.split("+"))) if "+" in value else value


def own_function(choice: Choice) -> tuple[str, dict[str, Any]]:
    """Return the name and the settings of the user's function in a choice `python:module:function`.

    >>> own_function(parse_choice("python:wards:network,width=7"))
    ('wards:network', {'width': 7})
    """
    settings = {key: plain_value(value) for key, value in choice.settings.items()}
    return str(choice.value or settings.pop("function", "")), settings


def _converted(value: Any, wanted: Any, place: str) -> Any:
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (typing.Union, types.UnionType):
        if value is None or (isinstance(value, str) and value.lower() == "none" and type(None) in arguments):
            return None
        problems = []
        for each in arguments:
            if each is type(None):
                continue
            try:
                return _converted(value, each, place)
            except ChoiceError as problem:
                problems.append(str(problem))
        raise ChoiceError(problems[0])
    if origin is typing.Literal:
        for allowed in arguments:
            if str(value) == str(allowed):
                return allowed
        raise ChoiceError(f"{place} = {value}: allowed are {', '.join(map(str, arguments))}")
    if origin in (tuple, list, Sequence):
        pieces = list(map(_unquoted, _divided(value, _ITEM))) if isinstance(value, str) else value
        if not isinstance(pieces, (list, tuple)):
            pieces = [pieces]
        return tuple(_converted(piece, arguments[0], place) for piece in pieces)
    if wanted is bool:
        if isinstance(value, bool) or str(value).lower() in ("true", "false"):
            return str(value).lower() == "true"
        raise ChoiceError(f"{place} = {value}: write true or false")
    if wanted in (int, float):
        try:
            if isinstance(value, bool):
                raise ValueError
            number = float(value)
            if wanted is int and number != int(number):
                raise ValueError
        except (TypeError, ValueError, OverflowError):
            raise ChoiceError(f"{place} = {value}: write a {'whole ' if wanted is int else ''}number") from None
        if not math.isfinite(number):
            raise ChoiceError(f"{place} = {value}: write a finite number")
        return int(number) if wanted is int else number
    if isinstance(value, (list, tuple, Mapping)):
        raise ChoiceError(f"{place}: found {value!r:.80}; write one value, as text")
    return str(value)
