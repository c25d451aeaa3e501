"""`fedpeer invite`, `join` and `revoke`: add and remove one peer, and send the new roster to the others.

`peer/runtime/` does the work (`enrolment.py`, `authority.py`, `announce.py`); here are options and messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpeer.cli.errors import wrapped
from fedpeer.config.choice import nearest_name, own_function
from fedpeer.config.problems import ConfigError, ConfigProblem, found_text
from fedpeer.exit_codes import EXIT_STOPPED

if TYPE_CHECKING:
    from fedpeer.config.federation import Federation
    from fedpeer.peer.runtime.authority import Authority
    from fedpeer.peer.runtime.invitation import Token
    from fedpeer.peer.wire.roster import Roster
    from fedpeer.peer.wire.signed_contract import SignedContract

#: Longest time that an invitation is open, in s: a week, as a secret should not wait longer in a mailbox.
_EXPIRES_MAX = 7 * 24 * 3600
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
#: Data in a new peer's file until its owner names the real ones.
_UNKNOWN_DATA = "csv:data.csv,label=label"
#: File of the fetched start model, until the federation file says where it belongs.
MODEL = "model.part"

Folder = Annotated[
    Path, typer.Option("--in", metavar="FOLDER", help="Folder of the authority; default: this one.", show_default=False)
]


def _opt(help: str, metavar: str) -> Any:
    return typer.Option(help=help, metavar=metavar, show_default=False)


def invite_command(
    peer: Annotated[str, typer.Argument(metavar="ID", help="The new peer's id.")],
    address: Annotated[
        str,
        typer.Option(
            help="Where others will reach it, such as https://10.0.0.5:7401; none: nobody can.", metavar="URL"
        ),
    ],
    folder: Folder = Path(),
    expires: Annotated[
        str, typer.Option(help="How long the invitation is valid: 30m, 1h, up to 7d.", metavar="TIME")
    ] = "1h",
    listen: Annotated[str | None, _opt("Where this command waits for it; default port 7400.", "HOST:PORT")] = None,
    host: Annotated[str | None, _opt("Host under which the new peer reaches this machine.", "HOST")] = None,
    models: Annotated[str | None, _opt("Partial models it implements; default: by federation.yaml.", "A,B")] = None,
) -> int:
    """Invite one more peer: print a token for it and wait until it joins.

    Run it where the authority's key is. Ctrl-C withdraws the invitation.
    """
    from fedpeer.cli.peer_options import invited_at
    from fedpeer.peer.runtime.authority import open_authority
    from fedpeer.peer.runtime.enrolment import invite as wait_for

    authority = open_authority(folder)
    problems: list[ConfigProblem] = []
    seconds = _seconds(expires, problems)
    known = _models(folder / "federation.yaml", models, problems)
    start = _start(folder)
    _reached(folder / "federation.yaml", authority.roster, peer, known, problems)
    place = invited_at(authority.roster, peer, address, listen, host, problems)
    if place is None or problems:
        raise ConfigError("the command line", problems, ", so nobody was invited")

    def show(token: Token) -> None:
        print(f"Run this on the machine of {peer}, once, within {expires}:\n\nfedpeer join {token}\n")
        print(wrapped(f"Whoever has the token can join as {peer}. Waiting; Ctrl-C withdraws it."), flush=True)

    url, own, reached = place
    try:
        roster, arrived = asyncio.run(
            wait_for(authority, peer, str(url), known, str(own), reached, seconds, show, start)
        )
    except KeyboardInterrupt:
        roster, arrived = authority.roster, False
        if peer not in roster.by_id:
            print("\nWithdrawn.", file=sys.stderr)
            return EXIT_STOPPED
    delivered = sent(authority, roster, without=peer)
    print(f"\n{peer} has joined: roster {roster.number} has {len(roster.entries)} peers.")
    if not arrived:
        text = f"Its machine has not confirmed that. If its folder is not there, run  fedpeer revoke {peer}  and invite"
        print(wrapped(f"{text} it again."))
    print("\n".join(delivery_lines(delivered)))
    return 0


def join_command(
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="The token that fedpeer invite printed.")],
    folder: Annotated[Path | None, _opt("New folder for the peer; default: its id.", "FOLDER")] = None,
    data: Annotated[str | None, _opt("The peer's data, such as csv:ward5.csv,label=outcome.", "NAME")] = None,
    listen: Annotated[str | None, _opt("Where the peer listens; default: its address's port.", "HOST:PORT")] = None,
    dashboard_host: Annotated[str, typer.Option(help="Where the dashboard listens.", metavar="HOST")] = "127.0.0.1",
) -> None:
    """Join a federation with a token: create a key, get a certificate, write the peer's folder.

    The private key never leaves this machine. If the command is stopped halfway, run it again.
    """
    from fedpeer.cli.peer_options import data_of, host_of, joined_peer, listens_at, local
    from fedpeer.peer.runtime.contract_file import contract_file, write_contract
    from fedpeer.peer.runtime.enrolment import NotAdmittedError, confirm, fetch_model
    from fedpeer.peer.runtime.enrolment import join_federation as ask
    from fedpeer.peer.runtime.invitation import Token
    from fedpeer.peer.runtime.peer_folder import folder_writable, new_folder, pending_key, pending_key_file, write_peer
    from fedpeer.peer.runtime.roster_history import history_file, write_history

    problems: list[ConfigProblem] = []
    invitation = Token.read(token)
    source = data_of(data or _UNKNOWN_DATA, problems)
    own_place = listens_at(listen, problems)
    board = host_of(dashboard_host, "--dashboard-host", problems)
    if source is None or problems:
        raise ConfigError("the command line", problems, ", so the token was not used")
    place = folder or Path(invitation.peer)
    waiting = pending_key_file(place, invitation)
    with new_folder(place) as building:
        has_model = asyncio.run(fetch_model(invitation, building / MODEL))
        key = pending_key(waiting)
        try:
            admission = asyncio.run(ask(invitation, key))
        except NotAdmittedError:
            waiting.unlink()
            raise
        own = joined_peer(admission.roster.by_id[invitation.peer], local(source) if data else source, board, own_place)
        way = "make room there and run the same line again while  fedpeer invite  waits, three minutes at most; after "
        way += f"that run  fedpeer revoke {invitation.peer}  there and invite it again"
        with folder_writable(place, f"{invitation.peer} was admitted, but ", way):
            write_peer(building, own, key, admission)
            if admission.contract is not None:
                write_contract(contract_file(building / "roster.json"), admission.contract)
            if admission.earlier:
                write_history(history_file(building / "roster.json"), admission.earlier)
            if has_model:
                _put_model(building)
    waiting.unlink()
    asyncio.run(confirm(invitation))
    file = place / f"{invitation.peer}.yaml"
    print(f'{invitation.peer} is now a member of "{admission.roster.federation}". Its folder is {place}.\n')
    if data is None:
        print(f"  Name its data in {file} (data: ...), then run")
    print(f"  fedpeer config check {shlex.quote(str(file))}\n  fedpeer start --config {shlex.quote(str(file))}")
    _warn_of_code(_federation(place / "federation.yaml"), file)


def revoke(
    peer: Annotated[str, typer.Argument(metavar="ID", help="The peer to remove.")],
    folder: Folder = Path(),
) -> None:
    """Remove a peer from the federation, at once and permanently; its id may be given to another key later.

    Run it where the authority's key is.
    """
    from fedpeer.peer.runtime.authority import change_roster, open_authority
    from fedpeer.peer.wire.roster import expel

    authority = open_authority(folder)
    roster = change_roster(authority, lambda old, key: expel(old, peer, key))
    left = len(roster.entries)
    print(f"{peer} has been removed: roster {roster.number} has {left} peer{'s' * (left != 1)}.", flush=True)
    print("\n".join(delivery_lines(sent(authority, roster))))
    with contextlib.suppress(ConfigError):  # the peer is removed, whatever is wrong with the file
        for why in _apart(_federation(folder / "federation.yaml"), {each.id: each.models for each in roster.entries}):
            text = f"{why}. Change them by fedpeer update while peers are running: none can be started again with them."
            print(wrapped(f"\nThe federation file's own edges do not suit that: {text}"))


def sent(
    authority: Authority, roster: Roster, *, without: str = "", contract: SignedContract | None = None
) -> Mapping[str, str]:
    """Send a signed roster, or contract, to the peers except `without`; return for each "", or why it did not get it.

    Ctrl-C ends the sending, but what is signed holds: no other command would send it.
    """
    from fedpeer.peer.runtime.announce import announce  # imports torch

    try:
        return asyncio.run(announce(authority, roster, without=without, contract=contract))
    except KeyboardInterrupt:
        return {entry.id: "stopped before it answered" for entry in roster.entries if entry.id != without}


def delivery_lines(delivered: Mapping[str, str], file: str = "roster.json") -> list[str]:
    """Return lines that say which peers have the new roster (or contract), and how the others get it.

    Args:
        delivered: peer id -> why it could not be sent to that peer, or "".
        file: name of the file to copy if no peer was reached.
    """
    reached = [peer for peer, why in delivered.items() if not why]
    if reached:
        lines = [f"Sent to: {', '.join(reached)}. The peers pass it on to the others."]
    elif delivered:
        words = f"No running peer was reached. Copy {file} into the folder of one running peer"
        lines = [f"{words}; it passes it on to the others. (Copies in folders here are up to date.)"]
    else:
        lines = []
    return [wrapped(line) for line in [*lines, *(f"  {peer}: {why}" for peer, why in delivered.items() if why)]]


def _seconds(text: str, problems: list[ConfigProblem]) -> float:
    found = re.fullmatch(r"(\d{1,6})([smhd])", text)
    seconds = int(found[1]) * _UNITS[found[2]] if found else 0
    if not 1 <= seconds <= _EXPIRES_MAX:
        problems.append(
            ConfigProblem((), f'"{found_text(text)}" is not a time from 1s to 7d; write 30m, 1h or 2d', "--expires")
        )
    return seconds


def _federation(file: Path) -> Federation:
    from fedpeer.cli.config import ConfigSource, load

    return load(ConfigSource.of_file(file), roster=True)


def _reached(
    file: Path, roster: Roster, peer: str, models: tuple[str, ...] | None, problems: list[ConfigProblem]
) -> None:
    """Add a problem if the federation file's own edges leave a new peer apart: no peer could start with its roster."""
    federation, before = _federation(file), {entry.id: entry.models for entry in roster.entries}
    if not any(_apart(federation, before)):
        for why in _apart(federation, {**before, peer: models}):
            text = f"{why} by fedpeer update, and then invite it"
            problems.append(ConfigProblem((), text, "ID"))


def _apart(federation: Federation, peers: Mapping[str, Sequence[str] | None]) -> Iterator[str]:
    """Yield what `groups_apart` does, without importing torch where no group has edges of its own."""
    slices = [model.gossip.topology for model in federation.partial_models.values() if model.gossip is not None]
    if any(topology is not None and topology.name == "edges" for topology in (federation.gossip.topology, *slices)):
        from fedpeer.learning.groups import groups_apart

        yield from groups_apart(federation, peers)


def _models(file: Path, written: str | None, problems: list[ConfigProblem]) -> tuple[str, ...] | None:
    """Return the partial models that a new peer implements, or None.

    Each must be in the federation file, and so must those on which it depends be among them: no peer could start with a
    roster in which one is missing.
    """
    from fedpeer.slicing.models import ModelGraph

    graph = ModelGraph(_federation(file).models())
    if written is None:
        return None
    names = tuple(name.strip() for name in written.split(","))
    for name in names:
        if name not in graph.models:
            text = f'there is no partial model "{found_text(name)}"; {nearest_name(name, graph.order)}'
            problems.append(ConfigProblem((), text, "--models"))
        elif lacking := [each for each in graph.order if each in graph.closure(name) - {*names}]:
            text = f'"{name}" depends on {" and ".join(lacking)}; name what it depends on, too'
            problems.append(ConfigProblem((), text, "--models"))
    return names


def _start(folder: Path) -> Path | None:
    """Return the file of the federation's start model, which the new peer needs too, or None."""
    from fedpeer.learning.anchors import located, start_file

    path = start_file(_federation(folder / "federation.yaml"))
    return None if path is None or not located(path, folder).is_file() else located(path, folder)


def _put_model(folder: Path) -> None:
    """Move the fetched start model to the path in the federation file, if that is inside the peer's folder."""
    from fedpeer.learning.anchors import located, start_file

    path = start_file(_federation(folder / "federation.yaml"))
    place = folder.resolve() if path is None else located(path, folder)
    if place != folder.resolve() and place.is_relative_to(folder.resolve()) and not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        (folder / MODEL).replace(place)


def _warn_of_code(federation: Federation, file: Path) -> None:
    """Tell the user if the received federation file names code, which runs only if the peer's file allows it."""
    learning = federation.learning
    named = {
        "network": federation.network,
        "algorithm": learning.algorithm,
        "loss": learning.loss,
        "optimizer": learning.optimizer,
    }
    code = {what: choice for what, choice in named.items() if choice is not None and choice.name == "python"}
    if code:
        packages = dict.fromkeys(own_function(each)[0].partition(":")[0].partition(".")[0] for each in code.values())
        whose, what = " and ".join(code), ", ".join(map(str, code.values()))
        text = f"The federation's {whose} {'is' if len(code) == 1 else 'are'} Python code: {what}. If you have this"
        print(wrapped(f"\n{text} code and trust it, write allow_python: [{', '.join(packages)}] into {file}."))
