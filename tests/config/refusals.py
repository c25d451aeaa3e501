"""What the rule book says against settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpeer.config.federation import Federation
from fedpeer.config.problems import ConfigProblem
from fedpeer.config.rules import Combination, problems_of


def refusals(settings: Mapping[str, Any], engine: str = "") -> list[ConfigProblem]:
    """Everything that is wrong with a federation that is well-typed, by its own algorithm."""
    return problems_of(Combination.of(Federation.stored(settings), engine))
