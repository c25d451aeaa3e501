"""`fedpeer init`: create a federation, and print the next commands.

`peer/runtime/peer_folder.py` writes the folders; `peer_options.py` derives the peers' addresses from the options.
"""

from __future__ import annotations

import errno
import os
import shlex
import socket
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpeer.config.problems import ConfigError, ConfigProblem

if TYPE_CHECKING:
    from fedpeer.peer.runtime.peer_folder import NewPeer

#: Peers whose next command is printed; the others' follow the same pattern.
_SHOWN_PEERS = 16
#: Columns of a line, as wide as the narrowest terminal.
_COLUMNS = 80
#: Peers of a simulation of the default data, whose file gives no number; others may have as many as they have users.
_DEFAULT_SIMULATED = 16

_NOTHING_WRITTEN = ", so nothing was written"


def _opt(help: str, metavar: str) -> Any:
    return typer.Option(help=help, metavar=metavar, show_default=False)


def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder.", show_default=False)] = Path(
        "federation"
    ),
    peers: Annotated[str | None, _opt("Number of peers, or their ids: 4, or north,south.", "N|A,B")] = None,
    hosts: Annotated[str | None, _opt("Machine of each peer; default 127.0.0.1.", "H1,H2")] = None,
    address: Annotated[
        list[str] | None,
        _opt(
            "Address of one peer, such as peer1=https://10.0.0.1:7401; none: nobody can connect to it; repeatable.",
            "ID=URL",
        ),
    ] = None,
    name: Annotated[str | None, _opt("Name of the federation; default: the folder's.", "NAME")] = None,
    port: Annotated[int, typer.Option(help="First port on each machine.", metavar="N")] = 7401,
    federation: Annotated[Path | None, _opt("Existing federation.yaml to copy.", "FILE")] = None,
    data: Annotated[str | None, _opt('Data of peer n, such as "csv:ward{n}.csv,label=outcome".', "NAME")] = None,
    dashboard_host: Annotated[
        str, typer.Option(help="Where dashboards listen; 0.0.0.0 admits browsers on other machines.", metavar="HOST")
    ] = "127.0.0.1",
) -> None:
    """Create a federation: its file, its authority, and a folder with configuration and keys for each peer.

    Without --data, each peer gets its part of a small data set, for a first try.
    """
    from fedpeer.cli.peer_options import host_of, ids_of, new_peers, places_of, sources_of
    from fedpeer.peer.runtime.peer_folder import federation_file, make_federation, refuse_existing

    refuse_existing(folder)
    problems: list[ConfigProblem] = []
    ids = ids_of(_count(peers, hosts, address or [], problems), problems)
    places = places_of(ids, hosts, address or [], port, problems)
    sources = sources_of(ids, data, problems)
    board = host_of(dashboard_host, "--dashboard-host", problems)
    called = name or folder.resolve().name
    models: dict[Path, Path] = {}
    if federation is None:
        if any(each.source.settings.get("kind") == "tokens" for each in sources):
            way_out = "write a federation file with one, such as network: lstm, and name it"
            problems.append(ConfigProblem((), f"tokens need a network that takes them; {way_out}", "--federation"))
        text = federation_file(called, max(len(ids), 1), source=sources[0].source if sources and data else None)
    else:
        called, text, models = _taken_over(federation, ids, name, data, problems)
    if problems:
        raise ConfigError("the command line", problems, _NOTHING_WRITTEN)
    new = new_peers(ids, places, sources, board)
    make_federation(folder, called, text, new, models)
    print("\n".join([*_made(folder, called, ids), "", *_next_commands(folder, new), *_ports_in_use(new)]))


def _made(folder: Path, called: str, ids: Sequence[str]) -> list[str]:
    """Return lines that describe the new folder."""
    several = ", ".join(ids) if len(ids) <= 3 else f"{ids[0]} ... {ids[-1]}"
    rows = [
        ("federation.yaml", "what all peers learn, and how"),
        ("roster.json", "which peers are members, signed by the authority"),
        ("authority", "the key that adds and removes peers; keep it here, and safe"),
        (several, "for each peer's machine: its config, its keys, both files"),
    ]
    width = max(len(what) for what, _ in rows)
    head = f'The federation "{called}" is in {folder}, with {len(ids)} peer{"s" if len(ids) > 1 else ""}:'
    return [head, "", *(f"  {what:<{width}}  {words}" for what, words in rows)]


def _ports_in_use(new: Sequence[NewPeer]) -> list[str]:
    """Return a paragraph about ports of peers on this machine that other programs hold now, or nothing."""
    from fedpeer.config.address import Endpoint, loopback

    wanted = [
        (Endpoint.read(place), words)
        for peer in new
        if loopback(peer.host)
        for place, words in ((peer.listen, peer.id), (peer.dashboard, f"{peer.id}'s dashboard"))
    ]
    taken = [f"{place.port} ({words})" for place, words in wanted if _in_use(place.host, place.port)]
    if not taken:
        return []
    named = ", ".join(taken[:_SHOWN_PEERS]) + (f" and {len(taken) - _SHOWN_PEERS} more" * (len(taken) > _SHOWN_PEERS))
    end = "end the other program before you start, or make the federation again with another --port"
    return ["", *textwrap.wrap(f"In use by another program now: {named}; {end}.", _COLUMNS)]


def _in_use(host: str, port: int) -> bool:
    try:
        with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
            return False
    except OSError as error:
        return error.errno == errno.EADDRINUSE


def _count(peers: str | None, hosts: str | None, addresses: Sequence[str], problems: list[ConfigProblem]) -> str:
    """Return `--peers`, or without it the number or the ids that follow from `--hosts` or `--address`."""
    if peers is not None:
        return peers
    if hosts is not None:
        return str(len(hosts.split(",")))
    if addresses:
        return ",".join(each.partition("=")[0] for each in addresses)
    problems.append(ConfigProblem((), "give the number of peers, such as --peers 4, or name their --hosts", "--peers"))
    return "1"


def _taken_over(
    file: Path, ids: Sequence[str], name: str | None, data: str | None, problems: list[ConfigProblem]
) -> tuple[str, str, dict[Path, Path]]:
    """Return the name and text of an existing federation file, and the trained models that it names by relative paths.

    What does not fit the other options is added to `problems`.

    Raises:
        ConfigError: the file is invalid.
        DataError, NetworkError: a model cannot be read.
    """
    from fedpeer.cli.config import ConfigSource, load
    from fedpeer.learning.anchors import anchored_federation, models_named
    from fedpeer.slicing.models import model_mistakes as wrong_models

    federation = load(ConfigSource.of_file(file), _NOTHING_WRITTEN, roster=True)
    if name is not None and name != federation.name:
        problems.append(
            ConfigProblem(
                (), f'{file} has the name "{federation.name}"; leave --name out, or change it there', "--name"
            )
        )
    wrong = wrong_models(federation.models(), list(ids))
    problems += [ConfigProblem((), f"{file}: {each.message}", "--federation") for each in wrong]
    simulation = federation.simulation
    usual = simulation.dataset.name == "digits" and simulation.split is None
    simulated = _DEFAULT_SIMULATED if simulation.peers is None and usual else simulation.peers
    if data is None and simulated is not None and len(ids) > simulated:
        text = f"{file} simulates {simulated} peers, but there are {len(ids)}; name each peer's data with --data"
        problems.append(ConfigProblem((), text, "--data"))
    anchored_federation(federation, file.parent)  # raises if a model cannot be read
    models = [Path(os.path.normpath(each)) for each in models_named(federation) if not each.expanduser().is_absolute()]
    for model in models:
        if ".." in model.parts:
            text = f"{file}: {model} is outside of its folder, where a copy has no place; write an absolute path"
            problems.append(ConfigProblem((), text, "--federation"))
    return federation.name, file.read_text(encoding="utf-8"), {model: file.parent / model for model in models}


def _next_commands(folder: Path, new: Sequence[NewPeer]) -> list[str]:
    """Return lines that say how to start each peer: here, or on its machine after its folder was copied."""
    from fedpeer.config.address import OUTBOUND, bracketed, loopback

    shown = new[:_SHOWN_PEERS]
    if all(loopback(each.host) for each in new):
        lines = ["All peers are on this machine. Start each in a terminal of its own:", ""]
        lines += [f"  {_start(folder / each.id, each.id)}" for each in shown]
    else:
        lines = ["Copy each folder to its machine, and start the peer there:", ""]
        for each in shown:
            start = _start(Path(each.id), each.id)
            if loopback(each.host):
                lines.append(f"  {each.id}: {_start(folder / each.id, each.id)}")
            elif each.listen == OUTBOUND:
                lines.append(f"  {each.id}: copy {folder / each.id} to its machine; there: {start}")
            else:
                lines += [
                    f"  {each.id}: {shlex.join(['scp', '-rp', str(folder / each.id), f'{bracketed(each.host)}:'])}",
                    f"  {'':<{len(each.id)}}  there: {start}",
                ]
    return lines if len(new) == len(shown) else [*lines, f"  ... and so on, to {new[-1].id}"]


def _start(folder: Path, peer: str) -> str:
    return shlex.join(["fedpeer", "start", "--config", str(folder / f"{peer}.yaml")])
