"""A peer's own file: types and ranges, the spellings of data, and contradictions."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from fedpeer.config.choice import Choice
from fedpeer.config.peer_file import DataSettings, PeerFile

#: `peer3.yaml` of the third ward, as YAML 1.2 reads it.
PEER3: dict[str, Any] = {
    "federation": "federation.yaml",
    "id": "peer3",
    "listen": "0.0.0.0:7403",
    "seeds": ["https://host1:7401"],
    "identity": {"certificate": "keys/peer3.crt", "key": "keys/peer3.key", "authority": "keys/federation-ca.crt"},
    "data": {"csv": "/data/ward3.csv", "label": "outcome", "test_fraction": 0.25},
    "device": "auto",
    "dashboard": {"listen": "127.0.0.1:7503", "token_file": "keys/peer3.token"},
}


def test_a_whole_file_is_understood_and_written_back() -> None:
    found = PeerFile.model_validate(PEER3)
    assert found.contradictions() == []
    assert found.data.source == Choice("csv", "/data/ward3.csv", {"label": "outcome"})
    assert (found.data.test_fraction, found.transport, found.discovery) == (0.25, "https", False)
    assert PeerFile.model_validate(found.model_dump(mode="json")) == found


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("id", "a b"),
        ("id", "../peer1"),
        ("id", "x" * 64),
        ("listen", "7403"),
        ("listen", "host"),
        ("listen", "host:99999"),
        ("listen", "user@host:7403"),
        ("seeds", ["host1:7401"]),
        ("seeds", ["https://host1:7401/path"]),
        ("seeds", "https://host1:7401"),
        ("device", "gpu"),
        ("transport", "http"),
        ("discovery", "yes"),
        ("data", {"test_fraction": 0.25, "csv": "x", "normalise": "max"}),
        ("data", {"csv": "x", "test_fraction": 1.5}),
        ("data", {"csv": "x", "test_fraction": "0.25"}),
        ("data", {"simulation": 0}),
        ("data", {"simulation": True}),
        ("data", {"simulation": 3, "test_fraction": 0.5}),
        ("identity", {"certificate": "a", "key": "b"}),
        ("dashboard", {"listen": "127.0.0.1:1"}),
        ("unheard_of", 1),
    ],
)
def test_out_of_range_unknown_or_of_another_type_is_refused_where_it_stands(path: str, value: object) -> None:
    with pytest.raises(ValidationError) as refusal:
        PeerFile.model_validate({**PEER3, path: value})
    assert refusal.value.errors()[0]["loc"][0] == path


@pytest.mark.parametrize(
    "spelled",
    [
        {"csv": "w.csv", "label": "o", "test_fraction": 0.3, "normalise": "minmax"},
        {"test_fraction": 0.3, "csv": "w.csv", "label": "o", "normalise": "minmax"},
        "csv:w.csv,label=o,test_fraction=0.3,normalise=minmax",
        {"csv": {"path": "w.csv", "label": "o", "test_fraction": 0.3, "normalise": "minmax"}},
    ],
)
def test_data_may_be_spelled_in_several_ways(spelled: object) -> None:
    found = DataSettings.model_validate(spelled)
    assert (found.source.name, found.source.settings["label"]) == ("csv", "o")
    assert (found.test_fraction, found.normalise, found.part) == (0.3, "minmax", None)
    assert DataSettings.model_validate(found.model_dump(mode="json")) == found


@pytest.mark.parametrize("spelled", [{"simulation": 3}, "simulation:3"])
def test_a_part_of_the_simulation_is_known_by_its_number(spelled: object) -> None:
    assert DataSettings.model_validate(spelled).part == 3


def test_a_known_data_set_needs_nothing_but_its_name() -> None:
    found = DataSettings.model_validate("digits")
    assert found.source == Choice("digits")
    assert DataSettings.model_validate(found.model_dump(mode="json")) == found


#: Settings of a peer without TLS.
PLAIN: dict[str, Any] = {"transport": "plain-http", "listen": "127.0.0.1:1", "address": None, "seeds": []}


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"identity": None}, ("identity",)),
        ({"seeds": ["http://host1:7401"]}, ("seeds", 0)),
        ({"transport": "plain-http", "seeds": []}, ("listen",)),
        ({"transport": "plain-http", "listen": "none", "seeds": []}, ("listen",)),
        ({"listen": "none", "discovery": True}, ("discovery",)),
        ({**PLAIN, "seeds": ["http://10.0.0.1:1"]}, ("seeds", 0)),
        ({**PLAIN, "address": "http://10.0.0.3:7403"}, ("address",)),
        ({**PLAIN, "address": "https://127.0.0.1:7403"}, ("address",)),
        ({"address": "http://10.0.0.3:7403"}, ("address",)),
        ({"dashboard": {"listen": "0.0.0.0:7503", "token_file": "t"}}, ("dashboard", "listen")),
        ({"dashboard": {"listen": "127.0.0.1:1", "token_file": "t", "key": "k"}}, ("dashboard",)),
        ({"dashboard": {"listen": "127.0.0.1:1", "token_file": "t"}, "listen": "127.0.0.1:1"}, ("dashboard", "listen")),
    ],
)
def test_what_contradicts_itself_is_named_with_its_place(changes: dict[str, Any], place: tuple[str | int, ...]) -> None:
    found = PeerFile.model_validate({**PEER3, **changes}).contradictions()
    assert [path for path, _ in found] == [place]


def test_plain_http_on_this_machine_needs_no_identity() -> None:
    local = {"transport": "plain-http", "listen": "[::1]:7403", "seeds": ["http://localhost:7401"], "identity": None}
    assert PeerFile.model_validate({**PEER3, **local}).contradictions() == []


def test_addresses_are_kept_in_one_spelling() -> None:
    written = {"listen": "[0:0::0]:7403", "seeds": ["https://[2001:DB8::0:5]:7401/", "https://Host1:7401"]}
    file = PeerFile.model_validate({**PEER3, **written})
    assert (file.listen, file.seeds) == ("[::]:7403", ["https://[2001:db8::5]:7401", "https://host1:7401"])


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("listen", "::1:7403", "write an IPv6 address in brackets"),
        ("listen", "[fe80::1%eth0]:7403", "has a scope id"),
        ("address", "https://[2001:db8::5]", "is not host:port"),
        ("address", "[2001:db8::5]:7401", "is not like https://host1:7400"),
        ("seeds", ["https://host1:70000"], "a port is at most 65535"),
        ("seeds", ["https://host1:0"], "has port 0"),
    ],
)
def test_a_wrong_address_is_one_sentence(key: str, value: object, words: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        PeerFile.model_validate({**PEER3, key: value})
    [found] = refusal.value.errors()
    assert found["loc"][0] == key
    assert words in found["msg"]


@pytest.mark.slow
def test_checking_a_file_needs_no_torch() -> None:
    """Neither checking a federation's file nor checking a peer's file imports torch."""
    code = (
        "import sys, fedpeer.config.federation as f, fedpeer.config.peer_file, fedpeer.cli.peer_config;"
        "f.Federation().digest(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_peer_to_which_nobody_connects_needs_no_port() -> None:
    found = PeerFile.model_validate({**PEER3, "listen": "none"})
    assert found.outbound
    assert found.contradictions() == []
    with pytest.raises(ValueError, match="not host:port"):
        PeerFile.model_validate({**PEER3, "dashboard": {"listen": "none", "token_file": "t"}})
