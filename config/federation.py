"""The federation that all peers agree on: the settings of `federation.yaml`, for simulations and real peers alike.

A `Federation` is always valid: wherever its settings come from, every rule of `rules.py` is checked, with the same
sentences. Only settings that were checked when they were written are read without the rules (`stored`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import ModelWrapValidatorHandler, ValidationError, ValidationInfo, model_validator

from fedpeer.config.contract import with_neutral
from fedpeer.config.problems import ConfigError
from fedpeer.config.reading import UNCHECKED, typed
from fedpeer.config.settings import FederationSettings


class Federation(FederationSettings):
    """The content of `federation.yaml`.

    Raises:
        ConfigError: all mistakes in single settings and in their combinations.
    """

    @model_validator(mode="wrap")
    @classmethod
    def _by_the_rules(cls, found: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        if info.context is UNCHECKED or isinstance(found, cls):
            return handler(found)
        from fedpeer.config.rules import Combination, problems_of  # late: stored settings need no registries

        try:
            made = handler(found)
            problems = problems_of(Combination.of(made))
        except ValidationError:
            partly, problems = typed(cls, found)
            problems += [] if partly is None else problems_of(Combination.of(partly))
        if problems:
            raise ConfigError("the federation", problems)
        return made

    @classmethod
    def stored(cls, settings: Mapping[str, Any]) -> Self:
        """Return a federation from settings that were checked when they were written, as in a run.

        Raises:
            ConfigError: settings that this release does not have, or that are out of its range.
        """
        made, problems = typed(cls, with_neutral(settings))
        if made is None or problems:
            raise ConfigError("the stored federation", problems, ", since another release wrote it")
        return made
