"""`fedpeer start` and `fedpeer leave`: one real peer on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Config = Annotated[Path, typer.Option(help="The peer's own file, such as peer3.yaml.", metavar="FILE")]


def start(
    config: Config,
    quiet: Annotated[bool, typer.Option("--quiet", metavar="", help="Log into the state folder only.")] = False,
) -> int:
    """Run one real peer on this machine. Ctrl-C pauses it, and the same command goes on where it was."""
    return _run(config, quiet=quiet, leave=False)


def leave(config: Config) -> int:
    """Hand over everything that this peer holds to the others, and stop; a later start joins anew.

    Asks the peer that runs from this file to do so; if none runs, starts it for just that.
    """
    from fedpeer.cli.peer_config import load_peer
    from fedpeer.peer.shell.store import ask_to_leave

    file = load_peer(config, ", so nothing was done").file
    process = ask_to_leave(Path(file.state or ""))
    if process is not None:
        print(f"{file.id} (process {process}) hands over what it holds and stops; its log says how it went.")
        return 0
    return _run(config, quiet=False, leave=True)


def _run(config: Path, *, quiet: bool, leave: bool) -> int:
    from fedpeer.cli.peer_config import load_peer

    peer = load_peer(config, ", so nothing was started")
    import asyncio

    from fedpeer.peer.shell.process import Process, prepare

    prepared = prepare(peer.file, peer.federation)

    async def run() -> int:
        stop = await Process(prepared, quiet=quiet, leave=leave).run()
        typer.echo(f"{peer.file.id}: {stop.text}", err=True)
        return stop.code

    return asyncio.run(run())
