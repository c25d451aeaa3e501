"""Checks that a request suits its engine."""

from __future__ import annotations

from collections.abc import Sequence

from fedpeer.config.problems import ConfigError
from fedpeer.config.rules import KEYWORDS, Combination, Vocabulary, problems_of
from fedpeer.sims.ray.options import check_ray
from fedpeer.sims.request import SimulationRequest


def combination_of(request: SimulationRequest, objects: Sequence[str] = ()) -> Combination:
    """Return the request as a combination for the rules.

    Args:
        objects: the inputs given as Python objects: "data", "network".
    """
    return Combination(
        federation=request.federation,
        methods=request.methods,
        compared=True,
        engine=request.engine,
        several=len(request.methods) * len(request.seeds) > 1,
        device=request.device,
        faults=request.faults,
        address=request.address,
        shards=request.shards,
        objects=tuple(objects),
    )


def check_combination(together: Combination, words: Vocabulary = KEYWORDS) -> None:
    """Check that the settings can be combined.

    Raises:
        ConfigError: all problems; settings are named as in `words` (keys, options or keywords).
    """
    problems = problems_of(together, words)
    if problems:
        raise ConfigError("the simulation", problems)


def check_engine(request: SimulationRequest, objects: Sequence[str], words: Vocabulary = KEYWORDS) -> None:
    """Check that the engine supports the request.

    Raises:
        ConfigError, ChoiceError: the user's mistakes, with the way out.
    """
    check_combination(combination_of(request, objects), words)
    if request.engine == "ray":
        check_ray(request.address)
