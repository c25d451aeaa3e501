"""Comparison of fedpeer's results with the expected values of a golden case, leaf by leaf.

The rules are those of the README beside the golden cases, section "The runner". This module does not depend on fedpeer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

#: Contrasts that the product does not need: an adapter may leave them out.
CONTRASTS = (
    "naive_limit",
    "jensen_lower_bound",
    "algebraic_connectivity",
    "*_if_*",
    "relu_*",
    "minimiser_of_weighted_sum",
)
#: Names of leaves that list models, or the peers that implement a model, in any order.
SETS = ("R", "closure", "dependency_closure", "implementers")
#: Quantities that come out of an iteration have a looser tolerance of their own, where the file gives one.
LOOSER = {
    "optimum*": "atol_optimum",
    "subproblem_optimum": "atol_optimum",
    "theta*": "atol_optimum",
    "limit_*": "atol_limits",
    "naive_limit": "atol_limits",
    "fixed_point": "atol_fixed_point",
}
_WRONG = "_WRONG"


class _Missing:
    """A stand-in for a value that the adapter did not return."""

    def __repr__(self) -> str:
        return "nothing"


_MISSING = _Missing()


@dataclass(frozen=True)
class Leaf:
    """One compared value: its place, whether it agrees, the expected value, and the value found."""

    place: str
    agrees: bool
    expected: Any
    found: Any

    def __str__(self) -> str:
        return f"{self.place}: expected {self.expected}, found {self.found}"


def compare(expected: Mapping[str, Any], found: Any, tolerance: Mapping[str, Any]) -> list[Leaf]:
    """Return all leaves of `expected`, each compared with the value at the same place of `found`."""
    return list(_compare(expected, found, tolerance, ()))


def _compare(expected: Any, found: Any, tolerance: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[Leaf]:
    if isinstance(expected, dict):
        for name, value in expected.items():
            yield from _compare_named(name, value, found if isinstance(found, dict) else {}, tolerance, path)
    elif isinstance(expected, list) and _is_set(expected, path):
        agrees = isinstance(found, list) and len(found) == len(expected) and _members(found) == _members(expected)
        yield Leaf(_spelled(path), agrees, expected, found)
    elif isinstance(expected, list):
        items = found if isinstance(found, list) else []
        for at, value in enumerate(expected):
            item = items[at] if at < len(items) else _MISSING
            yield from _compare(value, item, tolerance, (*path, f"[{at}]"))
        for at in range(len(expected), len(items)):
            yield Leaf(_spelled((*path, f"[{at}]")), False, _MISSING, items[at])
    else:
        yield Leaf(_spelled(path), _agree(expected, found, _atol(path, tolerance)), expected, found)


def _compare_named(
    name: str, expected: Any, found: Mapping[str, Any], tolerance: Mapping[str, Any], path: tuple[str, ...]
) -> Iterator[Leaf]:
    plain = name.removesuffix(_WRONG)
    if plain not in found and any(fnmatchcase(plain, contrast) for contrast in CONTRASTS):
        return
    item = found.get(plain, _MISSING)
    if plain == name:
        yield from _compare(expected, item, tolerance, (*path, name))
        return
    # The value that a known mistake produces: the right answer must differ from it somewhere.
    differs = not all(leaf.agrees for leaf in _compare(expected, item, tolerance, (*path, plain)))
    yield Leaf(_spelled((*path, name)), item is not _MISSING and differs, f"anything but {expected}", item)


def _is_set(value: list[Any], path: tuple[str, ...]) -> bool:
    return any(name in SETS for name in path) and not any(isinstance(item, (list, dict)) for item in value)


def _members(items: list[Any]) -> frozenset[tuple[str, Any]]:
    return frozenset((type(item).__name__, str(item)) for item in items)


def _atol(path: tuple[str, ...], tolerance: Mapping[str, Any]) -> float:
    for pattern, key in LOOSER.items():
        if key in tolerance and any(fnmatchcase(name, pattern) for name in path):
            return float(tolerance[key])
    return float(tolerance.get("atol", 0.0))


def _agree(expected: Any, found: Any, atol: float) -> bool:
    numbers = all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in (expected, found))
    if numbers and isinstance(expected, float):
        return bool(expected == found or abs(found - expected) <= atol + 1e-9 * abs(expected))
    return bool(expected == found) and (numbers or type(expected) is type(found))


def _spelled(path: tuple[str, ...]) -> str:
    return ".".join(path).replace(".[", "[")
