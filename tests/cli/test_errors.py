"""Which exceptions are the user's mistakes: they are known by name, so the names must be those of real classes."""

from __future__ import annotations

import importlib

import pytest

from fedpeer.cli.errors import _USERS_MISTAKES, is_users_mistake


@pytest.mark.parametrize("name", sorted(_USERS_MISTAKES))
def test_every_exception_named_here_exists(name: str) -> None:
    module, _, kind = name.rpartition(".")
    error = getattr(importlib.import_module(module), kind)
    assert is_users_mistake(error.__new__(error)), "whatever it is made of"


def test_other_exceptions_are_ours() -> None:
    assert not is_users_mistake(ValueError("no"))
