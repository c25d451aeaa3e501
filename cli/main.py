"""The entry point `fedpeer`: the commands, and what becomes of an error.

Each command lives in its own file and imports the rooms it needs inside its function, so that `fedpeer --help` is
quick. Exit codes: 0; 2 the user's mistake, told in one screen without a traceback; 1 our own, whose traceback goes
into a file; 75 what may pass by itself, such as a port in use or too little memory; 130 after Ctrl-C.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.main

import fedpeer
from fedpeer.cli import (
    config_commands,
    data_commands,
    demo,
    experiment_commands,
    federation_commands,
    init_command,
    runs_commands,
    simulate,
    slices,
    start,
    status,
    topology,
    update,
    use_commands,
)
from fedpeer.cli.errors import is_users_mistake, report_error, temporary, wrapped
from fedpeer.config.problems import ConfigError

EXIT_OURS, EXIT_USERS, EXIT_TEMPORARY, EXIT_STOPPED = 1, 2, 75, 130

app = typer.Typer(
    name="fedpeer",
    help="Learning together without pooling data: peers with different tasks teach each other, slice by slice.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
app.command("simulate")(simulate.simulate_command)
app.command("init")(init_command.init)
app.command("invite")(federation_commands.invite_command)
app.command("join")(federation_commands.join_command)
app.command("revoke")(federation_commands.revoke)
app.command("update")(update.update)
app.command("start")(start.start)
app.command("leave")(start.leave_command)
app.command("status")(status.status)
app.command("dashboard")(status.dashboard)
app.command("evaluate")(use_commands.evaluate_command)
app.command("predict")(use_commands.predict)
app.command("export")(use_commands.export)
app.add_typer(data_commands.app, name="data")
app.command("slices")(slices.slices_command)
app.add_typer(topology.app, name="topology")
app.add_typer(runs_commands.app, name="runs")
app.add_typer(experiment_commands.app, name="experiment")
app.add_typer(config_commands.app, name="config")
app.add_typer(demo.app, name="demo")


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def fedpeer_options(
    _version: Annotated[
        bool, typer.Option("--version", metavar="", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options of all commands; the text of the help is `app`'s."""


@app.command()
def version() -> None:
    """Print the version."""
    print(f"fedpeer {fedpeer.__version__}")


def main() -> None:
    """What `fedpeer` runs."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that is not UTF-8 gets ? and no traceback
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read our output has gone, as `head` does; nothing is wrong
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if code in (EXIT_STOPPED, EXIT_TEMPORARY):
        sys.stderr.flush()
        # Taking torch down can take a second, and somebody waits; what was loaded by half cannot be taken down at all.
        os._exit(code)
    sys.exit(code)


@cache
def _command() -> Any:
    """The tree of commands. Typer makes it from the functions' annotations, which takes longer than most mistakes."""
    return typer.main.get_command(app)


def run(arguments: Sequence[str]) -> int:
    """Carry out one command line and return the exit code; errors are told on standard error."""
    try:
        outcome: Any = _command()(args=list(arguments), prog_name="fedpeer", standalone_mode=False, obj=arguments)
    except ConfigError as error:
        return _told(report_error(error), EXIT_USERS)
    except _UsageError as error:
        return _told(_usage(error), EXIT_USERS)
    except (KeyboardInterrupt, typer.Abort):
        return _told("Stopped.", EXIT_STOPPED)
    except Exception as error:
        if is_users_mistake(error):
            return _told(wrapped(str(error)), EXIT_USERS)
        if words := temporary(error):
            return _told(wrapped(words), EXIT_TEMPORARY)
        return _told(_own_mistake(error, arguments), EXIT_OURS)
    return outcome if isinstance(outcome, int) else 0


#: Base of typer's errors about a command line; typer does not name it in public.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def _told(text: str, code: int) -> int:
    print(text, file=sys.stderr)
    return code


def _usage(error: Any) -> str:
    """Typer's complaint about the command line, and where the help is."""
    command = error.ctx.command_path if error.ctx else "fedpeer"
    return wrapped(f"{error.format_message()}\n\n  {command} --help  says what can be written.")


def _own_mistake(error: Exception, arguments: Sequence[str]) -> str:
    log = Path(tempfile.gettempdir()) / f"fedpeer-error-{time.strftime('%Y%m%d-%H%M%S')}.txt"
    words = f"fedpeer {fedpeer.__version__}: fedpeer {' '.join(arguments)}\n\n{traceback.format_exc()}"
    shown = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    try:
        log.write_text(words, encoding="utf-8")
    except OSError:
        return f"{words}\nThis is a mistake in fedpeer, not yours; please report it with the lines above."
    return f"This is a mistake in fedpeer, not yours: {shown}\nThe details for a report are in {log}"


if __name__ == "__main__":
    main()
