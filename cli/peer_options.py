"""Options that describe the peers of a federation: their ids, addresses and data.

Functions append to `problems` rather than raise, so that one report has all mistakes of a command line. Nothing is
written here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from fedpeer.config.address import OUTBOUND, Endpoint, PeerUrl, all_interfaces, loopback, read_host, unspecified
from fedpeer.config.choice import ChoiceError
from fedpeer.config.peer_file import DataSettings
from fedpeer.config.peer_id import is_id
from fedpeer.config.problems import ConfigProblem, found_text
from fedpeer.config.registries import choice_problem
from fedpeer.config.rules import peer_ids
from fedpeer.learning.anchors import anchored
from fedpeer.peer.runtime.enrolment import INVITATION_PORT, route_to
from fedpeer.peer.runtime.peer_folder import DASHBOARD_OFFSET, NewPeer, new_peer, ports
from fedpeer.peer.wire.roster import AUTHORITY, Roster, RosterEntry

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
) -> list[Endpoint]:
    """Return host and port of each peer: ports count up on each host, and `--address` overrides both."""
    if not 1 <= first <= _PORT_MAX:
        problems.append(ConfigProblem((), f"found {first}; write 1 to {_PORT_MAX}", "--port"))
    own = _addresses(ids, addresses, problems)
    nowhere = {peer for peer, url in own.items() if not url.reachable}
    written = [host.strip() for host in hosts.split(",")] if hosts else ["127.0.0.1"] * len(ids)
    read = {host: host_of(host, "--hosts", problems) for host in dict.fromkeys(written)}
    named = [read[host] for host in written]
    if len(named) != len(ids):
        text = f"there are {len(ids)} peers and {len(named)} hosts; name one for each, repeating it if peers share it"
        problems.append(ConfigProblem((), text, "--hosts"))
        return []
    counted = {peer: Endpoint(host, port) for peer, host, port in zip(ids, named, ports(named, first), strict=True)}
    own |= {peer: PeerUrl.nowhere(peer, counted[peer].port) for peer in nowhere}
    found = [own[peer].endpoint if peer in own else counted[peer] for peer in ids]
    if len(set(found)) < len(found):
        problems.append(ConfigProblem((), "two peers have the same address; give each its own", "--address"))
    if {Endpoint(host, port + DASHBOARD_OFFSET) for host, port in found} & set(found):
        text = f"a peer's port is another's dashboard port (port + {DASHBOARD_OFFSET}) on the same host; use --address"
        problems.append(ConfigProblem((), text, "--hosts"))
    return found


def host_of(text: str, option: str, problems: list[ConfigProblem]) -> str:
    """Return the host that an option names, or the text itself and a problem."""
    try:
        return read_host(text)
    except ValueError as error:
        problems.append(ConfigProblem((), str(error), option))
        return text


def _address(peer: str, text: str, problems: list[ConfigProblem]) -> PeerUrl | None:
    """Return the URL that `--address` names for a peer, or None and a problem."""
    if text == OUTBOUND:
        return PeerUrl.nowhere(peer)
    try:
        url = PeerUrl.read(text.removesuffix("/"))
        if url.scheme != "https":
            raise ValueError(f'"{found_text(text)}" is not like https://10.0.0.1:7401')
        if url.port > _PORT_MAX:
            raise ValueError(
                f"{url} leaves no port for the dashboard (port + {DASHBOARD_OFFSET}); write 1 to {_PORT_MAX}"
            )
    except ValueError as error:
        problems.append(ConfigProblem((), str(error), "--address"))
        return None
    return url


def _addresses(ids: Sequence[str], addresses: Sequence[str], problems: list[ConfigProblem]) -> dict[str, PeerUrl]:
    found = {}
    for written in addresses:
        peer, _, url = written.partition("=")
        if peer not in ids:
            text = f'"{found_text(peer)}" is not one of the peers; write it like {ids[0] if ids else "peer1"}=https://10.0.0.1:7401'
            problems.append(ConfigProblem((), text, "--address"))
        elif (read := _address(peer, url, problems)) is not None:
            found[peer] = read
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


def new_peers(
    ids: Sequence[str], places: Sequence[Endpoint], sources: Sequence[DataSettings], dashboard_host: str
) -> list[NewPeer]:
    """Return the content of each peer's folder, for `init` to write."""
    return [
        new_peer(peer, host, port, local(source) if loopback(host) else source, dashboard_host)
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


def invited_at(
    roster: Roster, peer: str, address: str, listen: str | None, host: str | None, problems: list[ConfigProblem]
) -> tuple[PeerUrl, Endpoint, str] | None:
    """Return the new peer's URL, where the authority listens for it, and the host by which it reaches the authority."""
    if not is_id(peer) or peer == AUTHORITY:
        text = f'"{found_text(peer)}" cannot be an id; use letters, digits, dots and hyphens, at most 63'
        problems.append(ConfigProblem((), text, "ID"))
    elif peer in roster.by_id:
        problems.append(
            ConfigProblem((), f"{peer} is in the roster already; choose another id, or revoke it first", "ID")
        )
    url, own = _address(peer, address, problems), listens_at(listen, problems)
    named = None if host is None else host_of(host, "--host", problems)
    if url is None or (own is None and listen is not None):
        return None
    if url in {PeerUrl.read(entry.address) for entry in roster.entries}:
        problems.append(ConfigProblem((), f"another peer has {url}; give each its own", "--address"))
    routed = route_to(url.host) if url.reachable else None
    reached = named or (routed if own is None or unspecified(own.host) else own.host)
    if reached is None:
        cannot = f"{url.host} cannot be looked up" if url.reachable else f"nobody can connect to {peer}"
        text = f"{cannot}; give --host, the name or address under which it reaches this machine"
        problems.append(ConfigProblem((), text, "--host"))
        return None
    if own is None:
        own = Endpoint(reached if loopback(reached) else all_interfaces(reached), INVITATION_PORT)
    return url, own, reached


def joined_peer(entry: RosterEntry, data: DataSettings, dashboard_host: str, listen: Endpoint | None) -> NewPeer:
    """Return the folder's content, for `join` to write, of a peer that was admitted with this roster entry."""
    host, port = PeerUrl.read(entry.address).endpoint
    return new_peer(entry.id, host, port, data, dashboard_host, None if listen is None else str(listen))


def listens_at(listen: str | None, problems: list[ConfigProblem]) -> Endpoint | None:
    """Return host and port of `--listen`, or None if it is not given or invalid."""
    try:
        return None if listen is None else Endpoint.read(listen)
    except ValueError as error:
        problems.append(ConfigProblem((), str(error), "--listen"))
        return None
