"""The entry point `fedpeer`: the commands.

Each command lives in its own file and imports the rooms it needs inside its function, so that `fedpeer --help` is
quick. What becomes of an error is in `outcome.py`.
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
    runs_commands,
    simulate,
    slices,
    start,
    status,
    topology,
    update,
    use_commands,
)
from fedpeer.cli.outcome import EXIT_STOPPED, EXIT_TEMPORARY, outcome_of
from fedpeer.cli.setting_options import WithDefaults

app = typer.Typer(
    name="fedpeer",
    help="Decentralized multi-task learning: peers keep their data and average slices of their neural networks.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
app.command("simulate", cls=WithDefaults)(simulate.simulate_command)
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
    whole = {"args": list(arguments), "prog_name": "fedpeer", "standalone_mode": False, "obj": arguments}
    return outcome_of(lambda: _command()(**whole), arguments)


if __name__ == "__main__":
    main()
