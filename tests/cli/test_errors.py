"""Which exceptions are the user's mistakes: they are known by name, so the names must be those of real classes."""

from __future__ import annotations

import importlib

import pytest

from fedpeer.cli.errors import _USERS_MISTAKES, is_users_mistake


@pytest.mark.parametrize("name", sorted(_USERS_MISTAKES))
def test_every_exception_named_here_exists(name: str) -> None:
    module, _, kind = name.rpartition(".")
    assert is_users_mistake(getattr(importlib.import_module(module), kind)("it says what to do"))


def test_other_exceptions_are_ours() -> None:
    assert not is_users_mistake(ValueError("no"))
