"""Import of users' own code, `package.module:function`, if it is allowed. No other module imports by name.

A name in a user's own file may be imported. A name in another person's file (a federation file from `fedpeer join`) is
imported only if the user has allowed its top package.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedpeer.data.dataset import DataError


def imported(name: str) -> Callable[..., Any]:
    """Import the function `package.module:function`; the current folder is searched too, as by `python -m`.

    Raises:
        DataError: the name has another form, or the function cannot be imported or does not exist.
    """
    module_name, colon, function = name.partition(":")
    if not (module_name and colon and function):
        raise DataError(f'"{name}" is not a function; write package.module:function')
    if "/" in module_name or module_name.endswith(".py"):
        wanted = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise DataError(f"{name}: {module_name} is a file; write the module's name, as {wanted}:{function}")
    here = os.getcwd()
    if here not in sys.path:  # worker processes inherit sys.path
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as problem:  # any error of the user's module at import
        missing = isinstance(problem, ModuleNotFoundError)
        hint = "; start fedpeer in its folder, put that on PYTHONPATH, or install it" if missing else ""
        reason = f"{type(problem).__name__}: {problem}"
        raise DataError(f"{name}: importing {module_name} failed: {reason}{hint}") from problem
    found: Callable[..., Any] | None = getattr(module, function, None)
    if not callable(found):
        raise DataError(f"{name}: {module_name} ({module.__file__}) has no function {function}")
    return found


def loader_with(code: Mapping[str, Callable[..., Any]]) -> Callable[[str], Callable[..., Any]]:
    """Return a loader of functions by name: it looks among the Python objects that were passed, and else imports."""
    return lambda name: code[name] if name in code else imported(name)


def check_allowed(
    name: str, allowed: Sequence[str], where: str, leave: str = "write allow_python: [{}] into this peer's own file"
) -> None:
    """Check that the top package of a name is allowed, in a file that another person may have written.

    Args:
        where: the file, for the error.
        leave: how the user can allow the package, with {} for its name.

    Raises:
        DataError: the package is not allowed.
    """
    top = name.partition(":")[0].partition(".")[0]
    if top not in allowed:
        raise DataError(f"{where} names code to be run here, python:{name}; if you trust it, {leave.format(top)}")
