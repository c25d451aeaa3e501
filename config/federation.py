"""What all peers agree on: the settings of `federation.yaml`, for simulations and real peers alike.

A `Federation` that is there has passed through the rule book: wherever its settings come from, what does not go
together is refused with the same sentences. Only what was checked when it was written is read without (`stored`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import ModelWrapValidatorHandler, ValidationError, ValidationInfo, model_validator

from fedpeer.config.problems import ConfigError
from fedpeer.config.reading import UNCHECKED, typed
from fedpeer.config.settings import FederationSettings


class Federation(FederationSettings):
    """The content of `federation.yaml`.

    Raises:
        ConfigError: everything that is wrong with the settings, each by itself and together.
    """

    @model_validator(mode="wrap")
    @classmethod
    def _by_the_rules(cls, found: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        if info.context is UNCHECKED or isinstance(found, cls):
            return handler(found)
        from fedpeer.config.rules import Combination, problems_of  # late: what is stored needs no registries

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
        """Return settings that were checked when they were written: a run's, a signed contract's.

        Raises:
            ValidationError: a setting that this release does not have, or out of its range.
        """
        return cls.model_validate(settings, context=UNCHECKED)
