"""Problems that the rule book finds in settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpeer.config.federation import Federation
from fedpeer.config.problems import ConfigProblem
from fedpeer.config.rules import Combination, problems_of


def refusals(settings: Mapping[str, Any], engine: str = "") -> list[ConfigProblem]:
    """Return everything that is wrong with a well-typed federation, for its own algorithm."""
    return problems_of(Combination.of(Federation.stored(settings), engine))
