"""Looks up what a method shares. Imports torch for all algorithms but those of `local_training.py`."""

from __future__ import annotations

from typing import Any

from fedpeer.algorithms.contract import Method
from fedpeer.algorithms.registry import ALGORITHMS
from fedpeer.config.choice import Choice, call_choice


def method_of(choice: Choice) -> Method:
    """Return the method of that name with its settings; a user's own (`python:module:Class`) has a server.

    Raises:
        ChoiceError: unknown name or setting.
    """
    if choice.name == "python":
        return Method("with a coordinator")
    algorithm: Any = call_choice(choice, ALGORITHMS, "algorithm")
    method: Method = algorithm.func.method(**algorithm.keywords)
    return method
