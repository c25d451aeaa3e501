"""End of a command: its exit code, and the error message on standard error.

Exit codes: 0 success; 2 a mistake of the user, reported on one screen without a traceback; 1 a bug in fedpeer, whose
traceback goes to a file; 75 an error that may pass by itself, such as a port in use, a full disk or too little memory;
130 after Ctrl-C.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer

import fedpeer
from fedpeer.cli.errors import forbidden, is_users_mistake, report_error, temporary, wrapped
from fedpeer.config.problems import ConfigError
from fedpeer.exit_codes import EXIT_OURS, EXIT_STOPPED, EXIT_TEMPORARY, EXIT_USERS

#: Base class of typer's errors about a command line, which typer does not export.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def outcome_of(command: Callable[[], object], arguments: Sequence[str]) -> int:
    """Run a command and return its exit code; an error report quotes `arguments` as the command line."""
    try:
        outcome = command()
    except ConfigError as error:
        return _printed(report_error(error), EXIT_USERS)
    except _UsageError as error:
        return _printed(_usage(error), EXIT_USERS)
    except (KeyboardInterrupt, typer.Abort):
        return _printed("Stopped.", EXIT_STOPPED)
    except Exception as error:
        if is_users_mistake(error):
            return _printed(wrapped(str(error)), EXIT_USERS)
        if words := forbidden(error):
            return _printed(wrapped(words), EXIT_USERS)
        if words := temporary(error):
            return _printed(wrapped(words), EXIT_TEMPORARY)
        return _printed(_own_mistake(error, arguments), EXIT_OURS)
    return outcome if isinstance(outcome, int) else 0


def _printed(text: str, code: int) -> int:
    with contextlib.suppress(OSError):  # nobody can read it, and the exit code says it, too
        print(text, file=sys.stderr)
    return code


def flush_streams() -> None:
    """Flush both standard streams before the process ends.

    Text that standard error does not take is dropped, or Python would end with a code of its own. The rest of standard
    output is dropped, too, if its reader has stopped reading, as `head` does: that is not an error.
    """
    for stream, passes in ((sys.stdout, BrokenPipeError), (sys.stderr, OSError)):
        if stream is None:  # the process was started without it
            continue
        try:
            stream.flush()
        except passes:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _usage(error: Any) -> str:
    """Return typer's message about the command line, and the command that shows the help."""
    command = error.ctx.command_path if error.ctx else "fedpeer"
    return wrapped(f"{error.format_message()}\n\n  {command} --help  shows the usage.")


def _own_mistake(error: Exception, arguments: Sequence[str]) -> str:
    log = Path(tempfile.gettempdir()) / f"fedpeer-error-{time.strftime('%Y%m%d-%H%M%S')}.txt"
    words = f"fedpeer {fedpeer.__version__}: fedpeer {' '.join(arguments)}\n\n{traceback.format_exc()}"
    shown = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    try:
        log.write_text(words, encoding="utf-8")
    except OSError:
        return f"{words}\nThis is a bug in fedpeer; please report it with the lines above."
    return f"This is a bug in fedpeer: {shown}\nPlease report it with the details in {log}"
