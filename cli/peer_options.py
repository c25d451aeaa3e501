"""Options that describe the peers of a federation: their ids, addresses and data.

Functions append to `problems` rather than raise, so that one report has all mistakes of a command line. Nothing is
written here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import ValidationError

from fedpeer.cli.anchors import anchored
from fedpeer.config.choice import ChoiceError
from fedpeer.config.peer_file import DataSettings, endpoint, loopback
from fedpeer.config.peer_id import is_id
from fedpeer.config.problems import ConfigProblem, found_text
from fedpeer.config.registries import choice_problem
from fedpeer.config.rules import peer_ids
from fedpeer.peer.runtime.enrolment import INVITATION_PORT, route_to
from fedpeer.peer.runtime.invitation_files import DASHBOARD_OFFSET, InvitedPeer, invited_peer, ports
from fedpeer.peer.wire.roster import AUTHORITY, Entry, Roster, is_url

#: Peers of one `init`: each is a folder that somebody copies to a machine.
_PEERS_MAX = 1000
#: Largest peer port, so that its dashboard's port is valid too.
_PORT_MAX = 65535 - DASHBOARD_OFFSET


def ids_of(peers: str, problems: list[ConfigProblem]) -> list[str]:
    """Return the ids of `--peers`: `4` means peer1 to peer4; else the ids themselves, separated by commas."""
    if peers.isascii() and peers.isdigit():
        if 1 <= int(peers) <= _PEERS_MAX:
            return peer_ids(int(peers))
        problems.append(
            ConfigProblem((), f"found {found_text(peers)}; write 1 to {_PEERS_MAX}, or ids such as a,b,c", "--peers")
        )
        return []
    ids = [each.strip() for each in peers.split(",")]
    for each in ids:
        if not is_id(each) or each == AUTHORITY:
            text = f'"{found_text(each)}" cannot be an id; use letters, digits, dots and hyphens, at most 63'
            problems.append(ConfigProblem((), text, "--peers"))
    if len(set(ids)) < len(ids):
        problems.append(ConfigProblem((), "two peers have the same id; give each its own", "--peers"))
    return ids


def places_of(
    ids: Sequence[str], hosts: str | None, addresses: Sequence[str], first: int, problems: list[ConfigProblem]
) -> list[tuple[str, int]]:
    """Return host and port of each peer: ports count up on each host, and `--address` overrides both."""
    if not 1 <= first <= _PORT_MAX:
        problems.append(ConfigProblem((), f"found {first}; write 1 to {_PORT_MAX}", "--port"))
    own = _addresses(ids, addresses, problems)
    named = [host.strip().strip("[]") for host in hosts.split(",")] if hosts else ["127.0.0.1"] * len(ids)
    for host in dict.fromkeys(named):
        is_host(host, "--hosts", problems)
    if len(named) != len(ids):
        text = f"there are {len(ids)} peers and {len(named)} hosts; name one for each, repeating it if peers share it"
        problems.append(ConfigProblem((), text, "--hosts"))
        return []
    found = [
        own.get(peer, place) for peer, place in zip(ids, zip(named, ports(named, first), strict=True), strict=True)
    ]
    if len(set(found)) < len(found):
        problems.append(ConfigProblem((), "two peers have the same address; give each its own", "--address"))
    if {(host, port + DASHBOARD_OFFSET) for host, port in found} & set(found):
        text = f"a peer's port is another's dashboard port (port + {DASHBOARD_OFFSET}) on the same host; use --address"
        problems.append(ConfigProblem((), text, "--hosts"))
    return found


def is_host(host: str, option: str, problems: list[ConfigProblem]) -> None:
    """Add a problem unless the text is a host name or an IP address."""
    if not is_url(f"https://{_bracketed(host)}:{_PORT_MAX}"):
        problems.append(ConfigProblem((), f'"{found_text(host)}" is not a host name or IP address', option))


def _addresses(
    ids: Sequence[str], addresses: Sequence[str], problems: list[ConfigProblem]
) -> Mapping[str, tuple[str, int]]:
    found = {}
    for written in addresses:
        peer, _, url = written.partition("=")
        parts = urlsplit(url) if is_url(url) else None
        if peer not in ids:
            text = f'"{found_text(peer)}" is not one of the peers; write it like {ids[0] if ids else "peer1"}=https://10.0.0.1:7401'
            problems.append(ConfigProblem((), text, "--address"))
        elif parts is None or parts.scheme != "https" or not 1 <= (parts.port or 0) <= _PORT_MAX:
            text = f'"{found_text(url)}" is not like https://10.0.0.1:7401'
            problems.append(ConfigProblem((), text, "--address"))
        else:
            found[peer] = (parts.hostname or "", parts.port or 0)
    return found


def sources_of(ids: Sequence[str], data: str | None, problems: list[ConfigProblem]) -> list[DataSettings]:
    """Return each peer's data; in `data`, {n} stands for the peer's number and {id} for its id."""
    found = []
    for number, peer in enumerate(ids, start=1):
        source = data_of((data or "simulation:{n}").replace("{n}", str(number)).replace("{id}", peer), problems)
        if source is None:
            return []  # the other peers have the same problem
        found.append(source)
    return found


def invited_peers(
    ids: Sequence[str], places: Sequence[tuple[str, int]], sources: Sequence[DataSettings], dashboard_host: str
) -> list[InvitedPeer]:
    """Return what `init` writes for each peer."""
    return [
        invited_peer(peer, host, port, local(source) if loopback(host) else source, dashboard_host)
        for peer, (host, port), source in zip(ids, places, sources, strict=True)
    ]


def data_of(text: str, problems: list[ConfigProblem]) -> DataSettings | None:
    """Return the data that `--data` names, or None and a problem. Only the peer's machine can check the file."""
    try:
        found = DataSettings.model_validate(text)
    except ChoiceError as error:
        problems.append(ConfigProblem((), str(error), "--data"))
        return None
    except ValidationError as error:
        words = "; ".join(str(each.get("ctx", {}).get("error", each["msg"])) for each in error.errors())
        problems.append(ConfigProblem((), words, "--data"))
        return None
    if found.part is None and (wrong := choice_problem(("simulation", "dataset"), found.source)) is not None:
        problems.append(ConfigProblem((), wrong.text, "--data"))
        return None
    return found


def local(data: DataSettings) -> DataSettings:
    """Return the data with an absolute path, for a peer on this machine: relative paths start from this folder."""
    return data.model_copy(update={"source": anchored(data.source, Path())})


def invited_ids(
    roster: Roster, peer: str, address: str, listen: str | None, host: str | None, problems: list[ConfigProblem]
) -> tuple[str, str] | None:
    """Return where the authority listens for a new peer (host:port), and the host by which that peer reaches it."""
    if not is_id(peer) or peer == AUTHORITY:
        text = f'"{found_text(peer)}" cannot be an id; use letters, digits, dots and hyphens, at most 63'
        problems.append(ConfigProblem((), text, "ID"))
    elif peer in roster.by_id:
        problems.append(
            ConfigProblem((), f"{peer} is in the roster already; choose another id, or revoke it first", "ID")
        )
    if not is_url(address) or urlsplit(address).scheme != "https":
        problems.append(ConfigProblem((), f'"{found_text(address)}" is not like https://10.0.0.5:7401', "--address"))
        return None
    if address in {entry.address for entry in roster.entries}:
        problems.append(ConfigProblem((), f"another peer has {address}; give each its own", "--address"))
    new = urlsplit(address).hostname or ""
    own = listens_at(listen or f"{'127.0.0.1' if loopback(new) else '0.0.0.0'}:{INVITATION_PORT}", problems)
    if own is None:
        return None
    reached = host or (route_to(new) if own[0] in ("0.0.0.0", "::") else own[0])
    if reached is None:
        text = f"{new} cannot be looked up; give --host, the name or address under which it reaches this machine"
        problems.append(ConfigProblem((), text, "--host"))
        return None
    return f"{_bracketed(own[0])}:{own[1]}", reached


def joined_peer(entry: Entry, data: DataSettings, dashboard_host: str, listen: str | None) -> InvitedPeer:
    """Return what `join` writes for a peer that was admitted with this roster entry."""
    parts = urlsplit(entry.address)
    assert parts.hostname is not None, "a roster's addresses are checked"
    assert parts.port is not None, "a roster's addresses are checked"
    return invited_peer(entry.id, parts.hostname, parts.port, data, dashboard_host, listen)


def listens_at(listen: str | None, problems: list[ConfigProblem]) -> tuple[str, int] | None:
    """Return host and port of `--listen`, or None if it is not given or invalid."""
    try:
        return None if listen is None else endpoint(listen)
    except ValueError as error:
        problems.append(ConfigProblem((), str(error), "--listen"))
        return None


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
