"""`fedpeer config check` and `fedpeer config schema`: a file is right or all that is wrong with it; and for editors."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Check a federation file; print its JSON Schema.", no_args_is_help=True)


@app.command()
def check(files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="federation.yaml")]) -> int:
    """Say whether files are right, or everything that is wrong with them.

    Nothing is started, downloaded or imported from the file.
    """
    from fedpeer.cli.config import Source, load
    from fedpeer.cli.errors import ConfigError, report

    wrong = 0
    for file in files:
        try:
            federation = load(Source.of_file(file))
        except ConfigError as error:
            wrong += 1
            print(report(error), file=sys.stderr)
        else:
            models = len(federation.partial_models)
            noun = "partial model" if models == 1 else "partial models"
            print(
                f'{file} is right: federation "{federation.name}", {models} {noun}, digest {federation.digest()[:16]}'
            )
    return 2 if wrong else 0


@app.command()
def schema() -> None:
    """Print the JSON Schema of federation.yaml, for editors that complete and check as you type."""
    from fedpeer.peer.core.federation import Federation

    print(json.dumps(Federation.model_json_schema(), indent=2))
