"""Exceptions that are the user's mistakes: they are listed by name, so each name must be that of a real class."""

from __future__ import annotations

import errno
import importlib
import os
from collections.abc import Callable

import numpy as np
import pytest
import torch

from fedpeer.cli.errors import _TEMPORARY, _USERS_MISTAKES, forbidden, is_users_mistake, temporary
from fedpeer.cli.outcome import outcome_of


@pytest.mark.parametrize("name", sorted(_TEMPORARY))
def test_what_another_start_may_find_otherwise_is_told_apart(name: str) -> None:
    module, _, kind = name.rpartition(".")
    error = getattr(importlib.import_module(module), kind)("a sentence")
    assert temporary(error) == "a sentence"
    assert not is_users_mistake(error)


def no_room() -> None:
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


@pytest.mark.parametrize(
    "greedy",
    [
        pytest.param(lambda: torch.empty(1 << 60), id="torch"),
        pytest.param(lambda: np.empty(1 << 55), id="numpy"),
        pytest.param(lambda: bytes(1 << 62), id="python"),
        pytest.param(no_room, id="system"),
    ],
)
def test_too_little_memory_is_known_by_whoever_says_it(greedy: Callable[[], object]) -> None:
    with pytest.raises((MemoryError, RuntimeError, OSError)) as caught:
        greedy()
    assert temporary(caught.value).startswith("there is too little memory (")
    assert not temporary(RuntimeError("shapes do not fit")), "others are our own mistakes"
    assert not temporary(OSError(errno.EACCES, os.strerror(errno.EACCES)))


@pytest.mark.parametrize("name", ["ENOSPC", "EROFS"])
def test_a_disk_that_takes_nothing_is_no_mistake_of_ours(name: str) -> None:
    number = getattr(errno, name)
    said = temporary(OSError(number, os.strerror(number), "fedpeer-runs/1/metrics.jsonl"))
    assert said.startswith(f"fedpeer-runs/1/metrics.jsonl: {os.strerror(number)}; make room there")
    assert temporary(OSError(number, os.strerror(number))).startswith("the disk: ")


@pytest.mark.parametrize("name", sorted(_USERS_MISTAKES))
def test_every_exception_named_here_exists(name: str) -> None:
    module, _, kind = name.rpartition(".")
    error = getattr(importlib.import_module(module), kind)
    assert is_users_mistake(error.__new__(error)), "whatever it is made of"


def test_a_file_that_may_not_be_used_is_the_users_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    """This holds for every command that meets such a file: `new`, `init` and `predict` only check whether it exists."""

    def denied() -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "locked/x")

    assert outcome_of(denied, ["new", "locked/x"]) == 2
    assert capsys.readouterr().err.startswith("locked/x: permission denied; check the permissions")
    assert forbidden(PermissionError(errno.EACCES, "a port")) == ""


def test_other_exceptions_are_ours() -> None:
    assert not is_users_mistake(ValueError("no"))
