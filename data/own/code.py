"""Code of a user's own, named `package.module:function`: found, imported, or refused. Nobody else imports by name.

A name in a person's own file may be imported. A name in a file that somebody else wrote (a federation file that came
with `fedpeer join`) is imported only if the person has named its top package.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from fedpeer.data.dataset import DataError


def imported(name: str) -> Callable[..., Any]:
    """The function `package.module:function`, looked for in the current folder too, as `python -m` does.

    Raises:
        DataError: it is not written so, cannot be imported, or is not there.
    """
    module_name, colon, function = name.partition(":")
    if not (module_name and colon and function):
        raise DataError(f'"{name}" is not a function; write package.module:function')
    here = os.getcwd()
    if here not in sys.path:  # workers inherit it
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except Exception as problem:  # whatever the user's module raises while it is imported
        missing = isinstance(problem, ModuleNotFoundError)
        hint = "; start fedpeer in its folder, put that on PYTHONPATH, or install it" if missing else ""
        said = f"{type(problem).__name__}: {problem}"
        raise DataError(f"{name}: importing {module_name} failed: {said}{hint}") from problem
    found: Callable[..., Any] | None = getattr(module, function, None)
    if not callable(found):
        raise DataError(f"{name}: {module_name} ({module.__file__}) has no function {function}")
    return found


def check_allowed(
    name: str, allowed: Sequence[str], where: str, leave: str = "write allow_python: [{}] into this peer's own file"
) -> None:
    """For a name in a file that may be somebody else's, which `where` describes: is its top package allowed?

    `leave` says how to allow it, with {} for the package.

    Raises:
        DataError: it is not.
    """
    top = name.partition(":")[0].partition(".")[0]
    if top not in allowed:
        raise DataError(f"{where} names code to be run here, python:{name}; if you trust it, {leave.format(top)}")
