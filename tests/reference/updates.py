"""Updates of single clients, put together as a coordinator puts them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from fedpeer.algorithms.leaves import stack_states

Update = TypeVar("Update")


def in_peer_order(updates: Mapping[str, Update]) -> Update:
    """Return the updates of single clients, by peer, as one (K, ...) in the order of the peers' ids."""
    return stack_states([updates[peer] for peer in sorted(updates)])
