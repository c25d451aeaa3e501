"""The `fedpeer` program: its tree of commands.

Each command has a file of its own and imports the packages that it needs inside its function, so that `fedpeer --help`
is quick. `outcome.py` turns exceptions into exit codes.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from functools import cache
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
    new_command,
    runs_commands,
    simulate,
    slices,
    start,
    status,
    topology,
    update,
    use_commands,
)
from fedpeer.cli.outcome import flush_streams, outcome_of
from fedpeer.cli.setting_options import WithDefaults
from fedpeer.exit_codes import EXIT_STOPPED, EXIT_TEMPORARY

app = typer.Typer(
    name="fedpeer",
    help="Decentralized multi-task learning: peers keep their data and average slices of their neural networks.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
app.command("simulate", cls=WithDefaults)(simulate.simulate_command)
app.command("new")(new_command.new)
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
        bool,
        typer.Option(
            "--version", metavar="", help="Print the version and commit.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Take the options of all commands; the help text is that of `app`."""


@app.command()
def version() -> None:
    """Print the version and, where it is known, the commit."""
    from fedpeer.runs.environment import source_commit

    commit = source_commit()
    print(f"fedpeer {fedpeer.__version__}" + (f" (commit {commit})" if commit else ""))


def main() -> None:
    """Run the command line of this process and exit with its code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that is not UTF-8 shows ? instead of a traceback
    code = run(sys.argv[1:])
    flush_streams()
    if code in (EXIT_STOPPED, EXIT_TEMPORARY):
        # A normal exit can spend a second on unloading torch, and fails if torch is only half loaded.
        os._exit(code)
    sys.exit(code)


@cache
def _command() -> Any:
    """Return the tree of commands, cached: building it from annotations takes longer than reporting most errors."""
    return typer.main.get_command(app)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; errors go to standard error."""
    whole = {"args": list(arguments), "prog_name": "fedpeer", "standalone_mode": False, "obj": arguments}
    return outcome_of(lambda: _command()(**whole), arguments)


if __name__ == "__main__":
    main()
