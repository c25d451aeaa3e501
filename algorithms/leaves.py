"""A state as named tensors, and back: what is kept, sent and stacked of any algorithm without knowing it.

States, broadcasts and updates are frozen dataclasses whose fields are tensors or such dataclasses again. Their tensors
are the *leaves*, named by the way to them (`factor.chi_D`). Whoever keeps, saves or sends a state sees leaves only; a
template, any state of the same kind, says what they are put together to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def leaves_of(state: Any) -> dict[str, Tensor]:
    """The tensors of a state by name, in the order of its fields.

    >>> from fedpeer.algorithms.servers.models import Local
    >>> {name: tuple(leaf.shape) for name, leaf in leaves(Local(torch.zeros(3), torch.tensor(5))).items()}
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
    """What the tensors of a state take."""
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves_of(state).values())


def rebuilt(template: T, tensors: Mapping[str, Tensor], path: str = "") -> T:
    """A state like the template with these leaves, of any shapes."""
    changed: dict[str, Any] = {}
    for field in fields(template):  # type: ignore[arg-type]
        value, name = getattr(template, field.name), path + field.name
        changed[field.name] = tensors[name] if isinstance(value, Tensor) else rebuilt(value, tensors, f"{name}.")
    return replace(template, **changed)  # type: ignore[type-var]


def map_leaves(function: Callable[..., Tensor], state: T, *others: T) -> T:
    """The state whose leaves are the function of those of states of one kind."""
    rows = [leaves_of(each) for each in (state, *others)]
    return rebuilt(state, {name: function(*(row[name] for row in rows)) for name in rows[0]})


def combined(state: Any) -> Tensor:
    """Return the leaves (..., D) of a state one after the other as (..., N); of a single one itself."""
    found = list(leaves_of(state).values())
    return found[0] if len(found) == 1 else torch.cat(found, -1)


def divided(template: T, values_N: Tensor) -> T:
    """Return the state whose leaves one after the other are values (..., N); the template is of one peer."""
    sizes = {name: len(leaf) for name, leaf in leaves_of(template).items()}
    return rebuilt(template, dict(zip(sizes, torch.split(values_N, [*sizes.values()], -1), strict=True)))


def stack_states(states: Sequence[T]) -> T:
    """Single states as one, with a new first dimension."""
    return map_leaves(lambda *each: torch.stack(each), *states)


def take_rows(state: T, rows: int | slice | Sequence[int]) -> T:
    """These rows of a stacked state; of one row (a number), a single state."""
    return map_leaves(lambda leaf: leaf[rows], state)
