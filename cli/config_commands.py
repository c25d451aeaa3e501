"""`fedpeer config check` and `fedpeer config schema`: check settings files, and print their schema for editors."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Check federation and peer files; print their JSON Schema.", no_args_is_help=True)


@app.command("check")
def check_command(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Federation or peer files, such as federation.yaml.")
    ],
) -> int:
    """Check whether files are valid, and list everything that is wrong with them.

    Nothing is started, downloaded or imported from the file.
    """
    from fedpeer.cli.errors import report_error
    from fedpeer.config.problems import ConfigError

    wrong = 0
    for file in files:
        try:
            print(f"{file} is valid: {_described(file)}")
        except ConfigError as error:
            wrong += 1
            print(report_error(error), file=sys.stderr)
    return 2 if wrong else 0


def _described(file: Path) -> str:
    """Return a description of a valid file, in one line.

    Raises:
        ConfigError: everything that is wrong with it.
    """
    from fedpeer.cli.config import ConfigSource, load
    from fedpeer.cli.peer_config import is_peer_file, load_peer

    source = ConfigSource.of_file(file)
    if is_peer_file(source.data):
        config = load_peer(file)
        return f'peer "{config.file.id}" of federation "{config.federation.name}", data {config.file.data.source.name}'
    federation = load(source, roster=(file.parent / "roster.json").exists())  # as `init` and `join` put it beside
    models = len(federation.partial_models)
    noun = "partial model" if models == 1 else "partial models"
    return f'federation "{federation.name}", {models} {noun}, digest {federation.digest()[:16]}'


@app.command()
def schema(
    peer: Annotated[
        bool, typer.Option("--peer", metavar="", help="Print the schema of a peer's own file instead.")
    ] = False,
) -> None:
    """Print the JSON Schema of federation.yaml, for editors that complete and check as you type."""
    from fedpeer.config.federation import Federation
    from fedpeer.config.peer_file import PeerFile

    print(json.dumps((PeerFile if peer else Federation).model_json_schema(), indent=2))
