"""Conversion of a state to named tensors and back, so that code can keep, send and stack any algorithm's state.

States, broadcasts and updates are frozen dataclasses whose fields are tensors or such dataclasses again. Their tensors
are the *leaves*, each named by its path (`factor.chi_D`). Code that keeps, saves or sends a state sees only the leaves;
a template, any state of the same class, tells how to put them back together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def leaves_of(state: Any) -> dict[str, Tensor]:
    """Return the tensors of a state by name, in the order of its fields.

    >>> from fedpeer.algorithms.servers.models import Local
    >>> {name: tuple(leaf.shape) for name, leaf in leaves_of(Local(torch.zeros(3), torch.tensor(5))).items()}
    {'model_n': (3,), 'examples': ()}
    """
    found: dict[str, Tensor] = {}
    for field in fields(state):
        value = getattr(state, field.name)
        if isinstance(value, Tensor):
            found[field.name] = value
        else:
            found |= {f"{field.name}.{name}": leaf for name, leaf in leaves_of(value).items()}
    return found


def byte_count(state: Any) -> int:
    """Return the size of a state's tensors in bytes."""
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves_of(state).values())


def rebuilt(template: T, tensors: Mapping[str, Tensor], path: str = "") -> T:
    """Return a state like the template with these tensors as leaves, of any shapes."""
    changed: dict[str, Any] = {}
    for field in fields(template):  # type: ignore[arg-type]
        value, name = getattr(template, field.name), path + field.name
        changed[field.name] = tensors[name] if isinstance(value, Tensor) else rebuilt(value, tensors, f"{name}.")
    return replace(template, **changed)  # type: ignore[type-var]


def map_leaves(function: Callable[..., Tensor], state: T, *others: T) -> T:
    """Return the state whose leaves are the function's results for the leaves of these states, all of one class."""
    rows = [leaves_of(each) for each in (state, *others)]
    return rebuilt(state, {name: function(*(row[name] for row in rows)) for name in rows[0]})


def combined(state: Any) -> Tensor:
    """Return the leaves (..., D) of a state, concatenated to (..., N); a single leaf is returned as it is."""
    found = list(leaves_of(state).values())
    return found[0] if len(found) == 1 else torch.cat(found, -1)


def divided(template: T, values_N: Tensor) -> T:
    """Return the state whose concatenated leaves are the values (..., N); the template is a single peer's state."""
    sizes = {name: len(leaf) for name, leaf in leaves_of(template).items()}
    return rebuilt(template, dict(zip(sizes, torch.split(values_N, [*sizes.values()], -1), strict=True)))


def stack_states(states: Sequence[T]) -> T:
    """Return single states as one state, with a new first dimension."""
    return map_leaves(lambda *each: torch.stack(each), *states)


def take_rows(state: T, rows: int | slice | Sequence[int]) -> T:
    """Return these rows of a stacked state; a single number gives a single state."""
    return map_leaves(lambda leaf: leaf[rows], state)
