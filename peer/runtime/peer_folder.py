"""Folders that `fedpeer init` and `fedpeer join` write: everything a peer needs to start, in one folder to copy.

A peer's folder holds `peer3.yaml`, `federation.yaml`, `roster.json` and `keys/`. A folder is built beside its final
place and moved there whole and durable, so a mistake or a crash leaves nothing behind; nothing is ever overwritten.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from fedpeer.config.address import OUTBOUND, Endpoint, PeerUrl, all_interfaces, loopback
from fedpeer.config.choice import Choice
from fedpeer.config.peer_file import DataSettings
from fedpeer.config.settings import TABLES
from fedpeer.peer.runtime.authority import EnrolmentError, create_authority, write_private
from fedpeer.peer.runtime.certificates import dashboard_certificate, key_pem, peer_certificate, pem
from fedpeer.peer.runtime.invitation import Admission, Token
from fedpeer.peer.wire.roster import Roster, RosterEntry, sign, to_bytes
from fedpeer.runs.disk import flush_file, flush_folder, replacing

#: Most addresses of other peers in a new peer's file. One that answers is enough; with three, two may be down.
_SEEDS_MAX = 3
#: Difference between the ports of a peer and of its dashboard: 7403 and 7503.
DASHBOARD_OFFSET = 100

#: Texts that YAML reads unchanged without quotes: paths, host:port, URLs. They begin with a letter, `/` or `.`, or are
#: host:port in digits; no colon in them is followed by a space.
_PLAIN = re.compile(r"[A-Za-z/._][A-Za-z0-9/._:-]*[A-Za-z0-9/._-]|\d+\.\d+\.\d+\.\d+:\d+")
_WORDS = {"true", "false", "null", "yes", "no", "on", "off", ".nan", ".inf"}


@dataclass(frozen=True, slots=True)
class NewPeer:
    """Settings of one new peer: id, URL at which others reach it, where it and its dashboard listen, and its data."""

    id: str
    address: str
    listen: str
    dashboard: str
    data: DataSettings

    @property
    def host(self) -> str:
        return PeerUrl.read(self.address).host


def new_peer(
    peer: str, host: str, port: int, data: DataSettings, dashboard_host: str, listen: str | None = None
) -> NewPeer:
    """Return the settings of a peer at host and port.

    It listens on all interfaces, unless `host` is this machine, or nobody can connect to it.
    """
    own = Endpoint(host, port)
    url = PeerUrl("https", own)
    everywhere = str(own if loopback(host) else Endpoint(all_interfaces(host), port)) if url.reachable else OUTBOUND
    return NewPeer(peer, str(url), listen or everywhere, str(Endpoint(dashboard_host, port + DASHBOARD_OFFSET)), data)


def ports(hosts: Sequence[str], first: int) -> list[int]:
    """Return a port for each peer: `first` on every host, counting up if several peers share one."""
    seen: Counter[str] = Counter()
    found = []
    for host in hosts:
        found.append(first + seen[host])
        seen[host] += 1
    return found


def make_federation(
    folder: Path,
    name: str,
    federation: str,
    peers: Sequence[NewPeer],
    models: Mapping[Path, Path] = MappingProxyType({}),
) -> Roster:
    """Write a whole federation: authority, first roster, `federation.yaml` (its text), and a folder for each peer.

    Args:
        models: trained models to copy into the new folder and into each peer's, by their path there.
    """
    with new_folder(folder) as place:
        key, authority = create_authority(place, name)
        own = {each.id: Ed25519PrivateKey.generate() for each in peers}
        entries = tuple(RosterEntry(id=each.id, key=_public(own[each.id]), address=each.address) for each in peers)
        roster = sign(Roster(federation=name, authority=_public(key), number=1, entries=entries), key)
        (place / "federation.yaml").write_text(federation, encoding="utf-8")
        (place / "roster.json").write_bytes(to_bytes(roster))
        for each in peers:
            certificate = peer_certificate(authority, key, each.id, own[each.id].public_key(), each.host)
            (place / each.id).mkdir(mode=0o700)
            write_peer(place / each.id, each, own[each.id], Admission(certificate, authority, roster, federation))
        for beside in (place, *(place / each.id for each in peers)):
            for path, model in models.items():
                _put_beside(model, beside / path)
    return roster


def _put_beside(model: Path, place: Path) -> None:
    """Copy a model's file or folder to `place`; the files of a folder become hard links where that is possible."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if model.is_dir():
        shutil.copytree(model, place, copy_function=_linked)
    else:
        shutil.copyfile(model, place)


def _linked(file: str, place: str) -> None:
    try:
        os.link(file, place)
    except OSError:  # another file system, or one without links
        shutil.copyfile(file, place)


def write_peer(folder: Path, own: NewPeer, key: Ed25519PrivateKey, admission: Admission) -> None:
    """Write one peer's files into its (empty) folder."""
    keys = folder / "keys"
    keys.mkdir(mode=0o700)
    write_private(keys / f"{own.id}.key", key_pem(key))
    write_private(keys / f"{own.id}.token", secrets.token_urlsafe(32).encode() + b"\n")
    (keys / f"{own.id}.crt").write_bytes(pem(admission.certificate))
    (keys / "federation-ca.crt").write_bytes(pem(admission.authority))
    if not loopback(Endpoint.read(own.dashboard).host):
        board_key, board = dashboard_certificate(own.id, own.host)
        write_private(keys / f"{own.id}-dashboard.key", key_pem(board_key))
        (keys / f"{own.id}-dashboard.crt").write_bytes(pem(board))
    (folder / "federation.yaml").write_text(admission.federation, encoding="utf-8")
    (folder / "roster.json").write_bytes(to_bytes(admission.roster))
    (folder / f"{own.id}.yaml").write_text(_peer_file(own, admission.roster), encoding="utf-8")


#: The networks of a default `federation.yaml`: a perceptron, with the units of its hidden layers that are averaged, and
#: one for text.
_PERCEPTRON = """\
# The default layers fit the data. Write them out if your files may differ in their classes:
# {{mlp: {{layers: [561, 300, 100, 6], activation: relu}}}}
network: {network}

partial_models:
  # Global: all inputs, all outputs and four fifths of the hidden neurons are averaged among all peers.
  everyone: {{neurons: {{input: all, hidden1: {units[0]}, hidden2: {units[1]}, output: all}}}}
  # Semi-local, for peers whose tasks are more alike:
  # ward-a: {{depends_on: [everyone], neurons: {{hidden1: 40, hidden2: 15}}, members: [peer1, peer3]}}
  # Local: the remaining hidden neurons."""
_READER = """\
# A pretrained model in a folder instead, with adapters: {{hf: {{path: minilm, lora: 8}}}}
network: {network}

partial_models:
  # Global: everything is averaged among all peers.
  everyone: {{neurons: all}}"""


def federation_file(name: str, peers: int, *, source: Choice | None = None) -> str:
    """Return a default `federation.yaml`; its simulation has a known data set that the network can learn from.

    Args:
        source: the peers' data; tables need other layers and steps, and tables of text a network that reads it.
    """
    table, data = source is not None and source.name in TABLES, "dataset: digits, split: iid"
    if source is not None and table and "text" in source.settings:
        continued = "label" not in source.settings
        network = _READER.format(network="{transformer: {causal: true}}" if continued else "lstm")
        data = f"dataset: {{shakespeare: {{users: {peers}, each: {str(continued).lower()}}}}}"
    elif table:
        network = _PERCEPTRON.format(network="{mlp: {hidden: [64, 32], activation: relu}}", units=(51, 25))
    else:
        network = _PERCEPTRON.format(network="mlp", units=(240, 80))
    optimizer, batch, steps = ("{adam: {lr: 0.003}}", 16, "pass") if table else ("{sgd: {lr: 0.1}}", 10, 50)
    weights = "  class_weights: auto  # rare classes count more; none: all examples count the same\n" if table else ""
    return f"""\
# federation.yaml: what all peers of this federation agree on. Every peer has the same file, and peers compare it when
# they meet, so change it everywhere or nowhere.
#   fedpeer config check federation.yaml
#   fedpeer simulate --config federation.yaml      the same federation on this machine alone

name: {json.dumps(name, ensure_ascii=False)}
{network}

learning:
  optimizer: {optimizer}
  batch_size: {batch}
{weights}  steps_between_averaging: {steps}
  rounds: 30

gossip:
  protocol: push-sum
  # topology: k-regular:4        # the default: at most four neighbors, fewer in a smaller group
  # max_exchanges: 4             # the default: an averaging ends after that many exchanges, earlier in a small group

seed: 0

# The peers of a simulation and their data, which a peer can also use whose file says, for example, simulation: 3.
simulation: {{peers: {peers}, {data}}}
"""


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `folder` at the end, completely or not at all. Raises EnrolmentError."""
    refuse_existing(folder)
    with folder_writable(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            yield place
            for path in [*place.rglob("*"), place]:
                if path.is_file():
                    flush_file(path)
                else:
                    flush_folder(path)
            place.replace(folder)
            flush_folder(folder.parent)
        finally:
            shutil.rmtree(place, ignore_errors=True)


@contextmanager
def folder_writable(
    folder: Path, before: str = "", way: str = "make room there, or name another folder"
) -> Iterator[None]:
    """Turn an OSError into an EnrolmentError that says that the folder cannot be written.

    `before` is what has happened already, `way` the way out.
    """
    try:
        yield
    except OSError as problem:
        raise EnrolmentError(f"{before}{folder} cannot be written ({problem.strerror or problem}); {way}.") from None


def pending_key_file(folder: Path, token: Token) -> Path:
    """Return where the key of a peer that joins waits beside its future folder: `folder` may have another name then."""
    return folder.parent / f".{token.peer}-{hashlib.blake2b(token.secret, digest_size=8).hexdigest()}.key"


def pending_key(path: Path) -> Ed25519PrivateKey:
    """Return the key in this file, or a new one that is durable there before anybody hears of it.

    A peer that is stopped after its request joins with it at the next attempt: no other key is admitted any more.
    """
    if path.exists():
        key = load_pem_private_key(path.read_bytes(), password=None)
        assert isinstance(key, Ed25519PrivateKey), "it was written here"
        return key
    key = Ed25519PrivateKey.generate()
    with replacing(path) as temporary:
        temporary.unlink(missing_ok=True)
        write_private(temporary, key_pem(key))
    return key


def refuse_existing(folder: Path) -> None:
    """Raise EnrolmentError if something would be overwritten; an empty folder may be filled."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise EnrolmentError(f"{folder} already exists and is never overwritten; name another folder, or move it.")


def _peer_file(own: NewPeer, roster: Roster) -> str:
    elsewhere = [entry.address for entry in roster.entries if entry.id != own.id]
    others = [address for address in elsewhere if PeerUrl.read(address).reachable][:_SEEDS_MAX]
    where = f"""\
# Where this peer listens, and the address by which the others reach it (the roster's).
listen: {_flow(own.listen)}
address: {_flow(own.address)}"""
    if own.listen == OUTBOUND:
        where = f"""\
# Nobody can connect to this peer: it opens all its connections itself.
listen: {OUTBOUND}"""
    keys = {"certificate": f"keys/{own.id}.crt", "key": f"keys/{own.id}.key", "authority": "keys/federation-ca.crt"}
    part = own.data.part
    data = own.data.model_dump(mode="json") if part is None else {"simulation": part}
    board = {"listen": own.dashboard, "token_file": f"keys/{own.id}.token"}
    if not loopback(Endpoint.read(own.dashboard).host):
        board |= {"certificate": f"keys/{own.id}-dashboard.crt", "key": f"keys/{own.id}-dashboard.key"}
    return f"""\
# {own.id}.yaml: settings of {own.id} alone. Paths are relative to this file.
#   fedpeer config check {own.id}.yaml
#   fedpeer start --config {own.id}.yaml

federation: federation.yaml
id: {_flow(own.id)}

# Your data, which never leaves this machine, such as {{csv: ward.csv, label: outcome, test_fraction: 0.25}}.
# simulation: 3 stands for the data of the third peer in `fedpeer simulate --config federation.yaml`.
data: {_flow(data)}
device: auto                    # cuda, mps or cpu

{where}
# Peers to contact first.
seeds: {_flow(others)}

# For your browser and for `fedpeer status`.
dashboard: {_flow(board)}

# The identity of this peer. Anybody with the key can act as {own.id}, so keep it on this machine.
identity: {_flow(keys)}
roster: roster.json
"""


def _flow(value: object) -> str:
    """Return one line of YAML: JSON, which every YAML reader accepts, without quotes that a person would not write."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_flow(key)}: {_flow(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)


def _public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()
