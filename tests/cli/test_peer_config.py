"""`fedpeer config check peer1.yaml` reports all that is wrong with a peer's file, its keys and its data at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from ruamel.yaml import YAML

from fedpeer.cli.peer_config import load_peer
from fedpeer.peer.runtime.certificates import key_pem
from tests.cli.conftest import Fedpeer
from tests.cli.peers import federation_on_disk

WARD = "a,b,outcome\n1,2,ill\n3,4,well\n5,6,ill\n7,8,well\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return peer1.yaml of a valid federation, with its data beside it."""
    file = federation_on_disk(tmp_path / "wards", data={"csv": "ward.csv", "label": "outcome"})
    (file.parent / "ward.csv").write_text(WARD)
    return file


def change(file: Path, **settings: object) -> int:
    """Overwrite settings of a file; return its length."""
    data = {**YAML(typ="safe", pure=True).load(file.read_text()), **settings}
    return file.write_text(json.dumps({key: value for key, value in data.items() if value is not None}))


def test_a_right_file_is_right_and_its_paths_are_whole(fedpeer: Fedpeer, file: Path) -> None:
    found = fedpeer("config", "check", str(file))
    assert found.code == 0, found.err
    assert 'peer "peer1" of federation "wards", data csv' in " ".join(found.out.split())
    config = load_peer(file)
    assert config.file.data.source.value == str(file.parent / "ward.csv")
    assert config.file.state == str(file.parent / "peer1-state")
    assert config.file.identity is not None
    paths = (config.file.federation, config.file.roster, config.file.identity.key)
    assert all(Path(path).is_absolute() for path in paths)


def test_the_folder_of_its_own_pretrained_network_is_whole_too(file: Path) -> None:
    (file.parent / "bert").mkdir()
    (file.parent / "bert" / "config.json").write_text("{}")
    (file.parent / "bert" / "model.safetensors").write_bytes(b"numbers")
    federation = Path(load_peer(file).file.federation)
    models = {"everyone": {"neurons": "all"}}
    federation.write_text(
        json.dumps({**YAML(typ="safe", pure=True).load(federation.read_text()), "partial_models": models})
    )
    change(file, network="hf:bert,lora=2")
    network = load_peer(file).file.network
    assert network is not None
    assert network.value == str(file.parent / "bert")
    assert len(network.settings["digest"]) == 32


def key(file: Path) -> Path:
    return file.parent / "keys" / "peer1.key"


SLICED = "name: wards\nnetwork: mlp:2+5+2\npartial_models: {everyone: {neurons: {input: all, output: all}}}\n"
WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "C01 unknown setting": (lambda f: change(f, seedz=[]), "did you mean seeds?"),
    "C02 repeated key": (lambda f: f.write_text(f.read_text() + "\nid: peer1\n"), "already set at"),
    "C02 tag": (lambda f: f.write_text(f.read_text() + "\nstate: !!python/object:os.system x\n"), "plain values"),
    "C03 type": (lambda f: change(f, discovery="yes"), "write true or false"),
    "C03 missing": (lambda f: change(f, listen="0.0.0.0:7401", data=None), "must be written"),
    "C06 one place twice": (
        lambda f: change(f, listen="0.0.0.0:7601", dashboard={"listen": "127.0.0.1:7601", "token_file": "t"}),
        "the same address as listen",
    ),
    "C09 transport": (
        lambda f: change(f, transport="plain-http", listen="0.0.0.0:7401", seeds=[]),
        "plain-http works only on this machine",
    ),
    "C09 roster of https": (
        lambda f: change(f, transport="plain-http", seeds=[], address=None),
        "it has peer1 at https://127.0.0.1:7401, peer2 at https://127.0.0.1:7402, and plain-http needs http://",
    ),
    "C10 no key": (lambda f: key(f).unlink(), "cannot be read"),
    "C10 key readable by others": (lambda f: key(f).chmod(0o644), "chmod 600"),
    "C10 not Ed25519": (
        lambda f: key(f).write_bytes(key_pem(generate_private_key(SECP256R1()))),
        "does not hold an Ed25519 private key",
    ),
    "C10 not the roster's key": (lambda f: change(f, id="peer2"), "lists another key for peer2"),
    "C11 no data": (lambda f: (f.parent / "ward.csv").unlink(), "there is no file"),
    "C11 NaN": (lambda f: (f.parent / "ward.csv").write_text(WARD + "nan,1,ill\n"), "row 6, column a"),
    "C11 no column": (lambda f: change(f, data={"csv": "ward.csv", "label": "outcom"}), 'did you mean "outcome"?'),
    "no such data set": (lambda f: change(f, data="digit"), 'did you mean "digits"?'),
    "no such part": (lambda f: change(f, data={"simulation": 99}), "the simulation has 2 peers"),
    "no such network": (lambda f: change(f, network="mpl"), 'did you mean "mlp"?'),
    "a network of its own": (
        lambda f: change(f, network="mlp:2+9+2"),
        "write partial_models in the federation file to say which, or leave network out",
    ),
    "a network of its own, and an algorithm for one": (
        lambda f: (
            (f.parent / "federation.yaml").write_text(f"{SLICED}learning: {{algorithm: full-averaging}}\n")
            and change(f, network="mlp:2+9+2")
        ),
        "full-averaging needs the same network on all peers; choose local or partial-averaging, or leave network out",
    ),
    "no federation file": (lambda f: (f.parent / "federation.yaml").unlink(), "fedpeer init or join makes it"),
    "a wrong federation file": (
        lambda f: (f.parent / "federation.yaml").write_text("name: wards\nlearning: {rounds: 0}\n"),
        "1 or more",
    ),
    "token readable by others": (
        lambda f: (f.parent / "keys" / "peer1.token").chmod(0o604),
        "can be read by other users",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said(fedpeer: Fedpeer, file: Path, name: str) -> None:
    spoil, said = WRONG[name]
    (file.parent / "federation.yaml").write_text("name: wards\nnetwork: mlp:2+5+2\nsimulation: {peers: 2}\n")
    spoil(file)
    found = fedpeer("config", "check", str(file))
    assert (found.code, found.out) == (2, "")
    assert said in " ".join(found.err.split())


def test_real_peers_are_those_of_the_roster_and_not_of_the_simulation(fedpeer: Fedpeer, file: Path) -> None:
    """Their ids may be any, and there may be more of them than the file simulates."""
    federation = file.parent / "federation.yaml"
    federation.write_text(
        "network: mlp:2+5+2\npartial_models: {a: {neurons: {output: all}, members: [peer1, north, peer9]}}\n"
        "gossip: {topology: edges:peer1-north+north-peer9}\nsimulation: {peers: 2}\n"
    )
    for path in (file, federation):
        checked = fedpeer("config", "check", str(path))
        assert checked.code == 0, checked.err
    (file.parent / "roster.json").unlink()
    assert '"north" is not a peer here' in " ".join(fedpeer("config", "check", str(federation)).err.split())


def test_all_mistakes_are_told_at_once(fedpeer: Fedpeer, file: Path) -> None:
    for name in ("C03 type", "C10 no key", "C11 no data", "a wrong federation file"):
        WRONG[name][0](file)
    said = " ".join(fedpeer("config", "check", str(file)).err.split())
    for part in ("4 problems", "true or false", "peer1.key cannot be read", "no file", "1 problem too"):
        assert part in said, part


def test_nothing_that_the_file_names_is_imported(fedpeer: Fedpeer, file: Path, tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text("raise SystemExit('imported')")
    change(file, data={"python": "loud:data"})
    assert fedpeer("config", "check", str(file)).code == 0


def test_the_schema_of_a_peer_file(fedpeer: Fedpeer) -> None:
    schema = json.loads(fedpeer("config", "schema", "--peer").out)
    assert {"federation", "id", "data"} == set(schema["required"])
