"""`fedpeer init`, `invite`, `join` and `revoke` as typed: their files are valid, and their output fits 80 columns."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from ruamel.yaml import YAML

from fedpeer.cli.config import ConfigSource, load
from fedpeer.cli.federation_commands import _models, _warn_of_code
from fedpeer.cli.peer_options import invited_at
from fedpeer.config.address import Endpoint, PeerUrl
from fedpeer.config.federation import Federation
from fedpeer.config.peer_file import PeerFile
from fedpeer.config.problems import ConfigProblem
from fedpeer.config.settings import TABLE_LEARNING
from fedpeer.peer.runtime import announce as announcing
from fedpeer.peer.runtime import enrolment, peer_folder
from fedpeer.peer.runtime.authority import Authority, change_roster, open_authority
from fedpeer.peer.runtime.certificates import pem, request
from fedpeer.peer.runtime.identity import examine_identity
from fedpeer.peer.runtime.invitation import Admission, Invitation, Token, read_admission
from fedpeer.peer.wire.roster import Roster, RosterEntry, admit, from_bytes
from tests.cli.conftest import Fedpeer
from tests.forked import fedpeer_command
from tests.ipv6 import needs_ipv6

WARD = "a,b,outcome\n1,2,ill\n3,4,well\n5,6,ill\n7,8,well\n"
#: Time limit in seconds for a whole command in its own process; it takes three on a quiet core.
PATIENCE = 60.0


def roster_in(folder: Path) -> Roster:
    return from_bytes((folder / "roster.json").read_bytes())


def peer_file(path: Path) -> PeerFile:
    return PeerFile.model_validate(YAML(typ="safe", pure=True).load(path.read_text()))


def one_line(text: str) -> str:
    return " ".join(text.split())


# ---------------------------------------------------------------------------------------------------------------- init


def test_every_file_that_init_writes_is_right(fedpeer: Fedpeer, tmp_path: Path) -> None:
    made = fedpeer("init", "wards", "--peers", "4")
    assert made.code == 0, made.err
    files = [str(path) for path in (tmp_path / "wards").rglob("*.yaml")]
    assert len(files) == 1 + 2 * 4
    checked = fedpeer("config", "check", *files)
    assert checked.code == 0, checked.err
    assert 'federation "wards"' in checked.out


def test_what_init_says_fits_the_screen_and_names_the_next_command(fedpeer: Fedpeer) -> None:
    here = fedpeer("init", "wards", "--peers", "16").out
    there = fedpeer("init", "far", "--hosts", "10.0.0.1,10.0.0.2", "--data", "csv:/data/w.csv,label=y").out
    for said in (here, there):
        assert max(map(len, said.splitlines())) <= 80
    assert "fedpeer start --config wards/peer16/peer16.yaml" in here
    assert "scp -rp far/peer2 10.0.0.2:" in there
    assert "fedpeer start --config peer2/peer2.yaml" in there


def test_a_folder_with_a_blank_is_quoted_in_the_next_command(fedpeer: Fedpeer) -> None:
    made = fedpeer("init", "two wards", "--hosts", "127.0.0.1,10.0.0.5").out
    assert "peer1: fedpeer start --config 'two wards/peer1/peer1.yaml'" in made
    assert "peer2: scp -rp 'two wards/peer2' 10.0.0.5:" in made


def test_ports_that_other_programs_hold_are_named(fedpeer: Fedpeer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = fedpeer("init", "busy", "--peers", "2", "--port", str(port - 1)).out
    assert f"In use by another program now: {port} (peer2)" in said
    assert "another --port" in " ".join(said.split())
    assert max(map(len, said.splitlines())) <= 80
    assert "In use" not in fedpeer("init", "idle", "--peers", "2", "--port", str(port - 1)).out


def test_one_machine_has_a_port_for_each_peer_and_each_dashboard(fedpeer: Fedpeer, tmp_path: Path) -> None:
    fedpeer("init", "wards", "--peers", "north,south", "--port", "8001")
    north, south = (peer_file(tmp_path / "wards" / peer / f"{peer}.yaml") for peer in ("north", "south"))
    assert (north.listen, south.listen) == ("127.0.0.1:8001", "127.0.0.1:8002")
    assert north.address == "https://127.0.0.1:8001"
    assert north.seeds == ["https://127.0.0.1:8002"]
    assert north.dashboard is not None
    assert north.dashboard.listen == "127.0.0.1:8101"
    assert north.data.part == 1
    assert south.data.part == 2


def test_several_machines_have_the_same_port_and_are_reached_from_everywhere(fedpeer: Fedpeer, tmp_path: Path) -> None:
    made = fedpeer(
        *("init", "wards", "--hosts", "10.0.0.1,10.0.0.1,fe80::5", "--address", "peer3=https://[fe80::6]:9000"),
        *("--data", "csv:/data/ward{n}-{id}.csv,label=outcome,test_fraction=0.4"),
    )
    assert made.code == 0, made.err
    files = [peer_file(tmp_path / "wards" / f"peer{n}" / f"peer{n}.yaml") for n in (1, 2, 3)]
    assert [file.address for file in files] == [
        "https://10.0.0.1:7401",
        "https://10.0.0.1:7402",
        "https://[fe80::6]:9000",
    ]
    assert [file.listen for file in files] == ["0.0.0.0:7401", "0.0.0.0:7402", "[::]:9000"]
    assert files[1].data.source.value == "/data/ward2-peer2.csv"
    assert files[1].data.test_fraction == 0.4
    assert [entry.address for entry in roster_in(tmp_path / "wards").entries] == [file.address for file in files]


def test_a_peer_to_which_nobody_can_connect_opens_its_connections_itself(fedpeer: Fedpeer, tmp_path: Path) -> None:
    made = fedpeer(
        *("init", "wards", "--hosts", "10.0.0.1,10.0.0.2,10.0.0.3"),
        *("--address", "peer2=none", "--address", "peer3=none"),
    )
    assert made.code == 0, made.err
    files = [peer_file(tmp_path / "wards" / f"peer{n}" / f"peer{n}.yaml") for n in (1, 2, 3)]
    assert [file.outbound for file in files] == [False, True, True]
    assert [file.seeds for file in files] == [[], ["https://10.0.0.1:7401"], ["https://10.0.0.1:7401"]]
    urls = [PeerUrl.read(entry.address) for entry in roster_in(tmp_path / "wards").entries]
    assert [url.reachable for url in urls] == [True, False, False]
    assert len(set(urls)) == 3
    assert "copy wards/peer2 to its machine" in one_line(made.out)
    assert "invalid" not in made.out
    checked = fedpeer("config", "check", "wards/peer2/peer2.yaml")
    assert checked.code == 0, checked.err


def test_dashboards_on_one_machine_have_ports_of_their_own_where_nobody_can_connect(
    fedpeer: Fedpeer, tmp_path: Path
) -> None:
    assert fedpeer("init", "w", "--peers", "3", "--address", "peer2=none", "--address", "peer3=none").code == 0
    files = [peer_file(tmp_path / "w" / f"peer{n}" / f"peer{n}.yaml") for n in (1, 2, 3)]
    assert len({file.dashboard.listen for file in files if file.dashboard is not None}) == 3


def test_whoever_invites_a_peer_to_which_nobody_can_connect_names_its_own_host(
    fedpeer: Fedpeer, tmp_path: Path
) -> None:
    fedpeer("init", "wards", "--peers", "1")
    problems: list[ConfigProblem] = []
    assert invited_at(roster_in(tmp_path / "wards"), "peer5", "none", None, None, problems) is None
    assert "nobody can connect to peer5; give --host" in problems[0].text
    found = invited_at(roster_in(tmp_path / "wards"), "peer5", "none", None, "office", [])
    assert found is not None
    assert tuple(map(str, found)) == ("https://peer5.invalid:7400", "0.0.0.0:7400", "office")


def test_literals_of_ipv6_and_names_are_written_as_each_place_wants_them(fedpeer: Fedpeer, tmp_path: Path) -> None:
    made = fedpeer(
        *("init", "wards", "--hosts", "[2001:db8::5],2001:DB8::0:6,North.example", "--dashboard-host", "[::]"),
        *("--data", "csv:/data/w.csv,label=y"),
    )
    assert made.code == 0, made.err
    hosts = ["2001:db8::5", "2001:db8::6", "north.example"]
    for n, (host, shown, everywhere) in enumerate(
        [(hosts[0], f"[{hosts[0]}]", "[::]"), (hosts[1], f"[{hosts[1]}]", "[::]"), (hosts[2], hosts[2], "0.0.0.0")], 1
    ):
        folder = tmp_path / "wards" / f"peer{n}"
        file = peer_file(folder / f"peer{n}.yaml")
        assert (file.address, file.listen) == (f"https://{shown}:7401", f"{everywhere}:7401")
        assert roster_in(folder).by_id[file.id].address == file.address
        assert file.dashboard is not None
        assert file.dashboard.listen == "[::]:7501"
        for certificate in (f"peer{n}.crt", f"peer{n}-dashboard.crt"):
            found = x509.load_pem_x509_certificate((folder / "keys" / certificate).read_bytes())
            names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            literals = [str(each) for each in names.get_values_for_type(x509.IPAddress)]
            assert host in [*literals, *names.get_values_for_type(x509.DNSName)]
            assert (host in literals) == (":" in host)
        target = f"'{shown}:'" if ":" in host else f"{shown}:"
        assert f"scp -rp wards/peer{n} {target}" in made.out


def test_a_host_with_a_scope_id_is_refused_with_the_way_out(fedpeer: Fedpeer, tmp_path: Path) -> None:
    wrong = fedpeer("init", "wards", "--hosts", "fe80::1%eth0", "--address", "peer2=https://[fe80::2%eth0]:7401")
    assert wrong.code == 2
    said = one_line(wrong.err)
    assert '"fe80::1%eth0" has a scope id' in said
    assert "or a host name" in said
    assert not list(tmp_path.iterdir())


def test_data_on_this_machine_are_found_from_where_init_was_said(fedpeer: Fedpeer, tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"ward{number}.csv").write_text(WARD)
    assert fedpeer("init", "wards", "--peers", "2", "--data", "csv:ward{n}.csv,label=outcome").code == 0
    checked = fedpeer("config", "check", "wards/peer1/peer1.yaml", "wards/peer2/peer2.yaml")
    assert checked.code == 0, checked.err
    written = load(ConfigSource.of_file(tmp_path / "wards" / "federation.yaml"))
    simulated = Federation.model_validate({"simulation": {"dataset": "csv:ward1.csv,label=outcome"}})
    for name in TABLE_LEARNING:
        assert str(getattr(written.learning, name)) == str(getattr(simulated.learning, name)), name
    assert str(written.network) == str(simulated.network), "tables are learned alike by init and by simulate"


@pytest.mark.parametrize(
    ("label", "network"), [("label=verdict,", "lstm"), ("", "transformer,causal=true")], ids=["label", "next tokens"]
)
def test_tables_of_text_get_a_network_that_reads_it(label: str, network: str, fedpeer: Fedpeer, tmp_path: Path) -> None:
    data = f"csv:reviews{{n}}.csv,{label}text=review,tokenizer=minilm"
    assert fedpeer("init", "wards", "--peers", "2", "--data", data).code == 0
    written = load(ConfigSource.of_file(tmp_path / "wards" / "federation.yaml"))
    assert str(written.network) == network
    assert [model.neurons for model in written.partial_models.values()] == ["all"]
    assert written.learning.batch_size == TABLE_LEARNING["batch_size"]
    assert str(written.simulation.dataset) == f"shakespeare,users=2,each={'false' if label else 'true'}"


def test_keys_are_their_owners_alone_and_fit_the_roster(fedpeer: Fedpeer, tmp_path: Path) -> None:
    fedpeer("init", "wards", "--peers", "2")
    groups = tmp_path / "wards"
    secret = [*groups.rglob("*.key"), *groups.rglob("*.token")]
    assert len(secret) == 1 + 2 * 2
    assert {path.stat().st_mode & 0o777 for path in secret} == {0o600}
    assert {path.parent.stat().st_mode & 0o777 for path in secret} == {0o700}
    assert len({path.read_bytes() for path in secret}) == len(secret)
    keys = groups / "peer2" / "keys"
    assert len((keys / "peer2.token").read_text().strip()) >= 32
    files = (keys / "peer2.crt", keys / "peer2.key", keys / "federation-ca.crt")
    identity, flaws = examine_identity("peer2", *files, roster_in(groups))
    assert identity is not None, flaws


def test_a_dashboard_beyond_this_machine_gets_a_certificate_for_browsers(fedpeer: Fedpeer, tmp_path: Path) -> None:
    fedpeer("init", "wards", "--hosts", "10.0.0.1", "--dashboard-host", "0.0.0.0")
    board = peer_file(tmp_path / "wards" / "peer1" / "peer1.yaml").dashboard
    assert board is not None
    assert board.certificate is not None
    found = x509.load_pem_x509_certificate((tmp_path / "wards" / "peer1" / board.certificate).read_bytes())
    assert isinstance(found.public_key(), EllipticCurvePublicKey)
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "10.0.0.1" in map(str, names.get_values_for_type(x509.IPAddress))
    assert "fedpeer config check" not in fedpeer("config", "check", "wards/peer1/peer1.yaml").err


def test_a_federation_file_is_taken_over_as_it_is(fedpeer: Fedpeer, tmp_path: Path) -> None:
    text = "name: ours   # a comment\nnetwork: mlp:64+30+10\npartial_models: {a: {members: [peer1, peer2]}}\n"
    (tmp_path / "mine.yaml").write_text(text)
    made = fedpeer("init", "wards", "--peers", "3", "--federation", "mine.yaml")
    assert made.code == 0, made.err
    assert (tmp_path / "wards" / "peer3" / "federation.yaml").read_text() == text
    assert roster_in(tmp_path / "wards").federation == "ours"
    few = fedpeer("init", "few", "--peers", "1", "--federation", "mine.yaml", "--name", "theirs")
    assert few.code == 2
    assert "peer2" in few.err
    assert '"ours"' in few.err
    assert not (tmp_path / "few").exists()


def test_a_simulation_may_have_a_peer_for_each_user_of_its_data(fedpeer: Fedpeer, tmp_path: Path) -> None:
    for text, code in (("simulation: {dataset: flights}\n", 0), ("seed: 1\n", 2)):
        (tmp_path / "mine.yaml").write_text(text)
        made = fedpeer("init", f"of{code}", "--peers", "17", "--federation", "mine.yaml")
        assert made.code == code, made.err
    assert "simulates 16 peers" in one_line(made.err)


def test_init_never_overwrites(fedpeer: Fedpeer, tmp_path: Path) -> None:
    (tmp_path / "wards").mkdir()
    assert fedpeer("init", "wards", "--peers", "1").code == 0, "an empty folder may be filled"
    before = (tmp_path / "wards" / "roster.json").read_bytes()
    again = fedpeer("init", "wards", "--peers", "1")
    assert again.code == 2
    assert "never overwritten; name another folder" in one_line(again.err)
    assert (tmp_path / "wards" / "roster.json").read_bytes() == before


def test_all_mistakes_of_a_command_line_are_told_at_once_and_leave_nothing(fedpeer: Fedpeer, tmp_path: Path) -> None:
    wrong = fedpeer(
        *("init", "wards", "--peers", "a,a,authority,b c", "--hosts", "h1,h 2", "--port", "70000"),
        *("--address", "x=https://h:1", "--address", "a=ftp://h:1", "--data", "csw:x.csv", "--dashboard-host", "?"),
    )
    assert wrong.code == 2
    said = one_line(wrong.err)
    for words in (
        '"authority" cannot be an id',
        '"b c" cannot be an id',
        "two peers have the same id",
        "write 1 to 65435",
        '"x" is not one of the peers',
        '"ftp://h:1" is not like https://',
        '"h 2" is not a host name or IP address',
        "4 peers and 2 hosts",
        'did you mean "csv"',
        '"?" is not a host name or IP address',
    ):
        assert words in said, words
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "such as --peers 4"),
        (["--peers", "0"], "write 1 to 1000"),
        (["--peers", "2", "--hosts", "h,h", "--address", "peer2=https://h:7401"], "two peers have the same address"),
        (["--peers", "2", "--address", "peer2=https://127.0.0.1:7501"], "another's dashboard port"),
        (["--peers", "1", "--address", "peer1=https://[::1]"], '"[::1]" is not host:port'),
        (["--peers", "1", "--address", "peer1=https://::1:7401"], "write an IPv6 address in brackets"),
        (["--peers", "1", "--address", "peer1=https://h:70000"], "a port is at most 65535"),
        (["--peers", "1", "--address", "peer1=https://h:65500"], "leaves no port for the dashboard"),
        (["--hosts", "::1,[::1]", "--address", "peer2=https://[0::1]:7401"], "two peers have the same address"),
        (["--peers", "1", "--data", "csv:x.csv"], "label"),
        (["--peers", "1", "--data", "npz:x.npz,kind=tokens"], "such as network: lstm"),
        (["--peers", "1", "--federation", "missing.yaml"], "missing.yaml"),
    ],
)
def test_one_mistake(fedpeer: Fedpeer, tmp_path: Path, arguments: list[str], words: str) -> None:
    wrong = fedpeer("init", "wards", *arguments)
    assert wrong.code == 2, wrong.out
    assert words in one_line(wrong.err)
    assert not (tmp_path / "wards").exists()


# ------------------------------------------------------------------------------------------------- invite, join, revoke


@contextmanager
def inviting(folder: Path, *arguments: str, peer: str = "peer5") -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Start `fedpeer invite` in its own process, and yield its token, once printed, and the process."""
    command = fedpeer_command("invite", peer, "--in", str(folder), *arguments)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment()
    ) as at:
        try:
            assert at.stdout is not None
            said = []
            for line in at.stdout:
                said.append(line)
                if line.startswith("fedpeer join "):
                    break
            else:
                pytest.fail("no token: " + "".join(said))
            yield line.split()[-1], at
        finally:
            at.kill()


def environment() -> dict[str, str]:
    return {**os.environ, "COLUMNS": "80", "OMP_NUM_THREADS": "1"}


@pytest.mark.slow
def test_invite_and_join_from_one_process_to_another(fedpeer: Fedpeer, tmp_path: Path) -> None:
    fedpeer("init", "wards", "--peers", "2")
    (tmp_path / "ward5.csv").write_text(WARD)
    with inviting(tmp_path / "wards", "--address", "https://127.0.0.1:7405", "--listen", "127.0.0.1:0") as (token, at):
        joined = fedpeer("join", token, "--data", "csv:ward5.csv,label=outcome")
        assert joined.code == 0, joined.err
        said, _ = at.communicate(timeout=PATIENCE)
    assert at.returncode == 0, said
    assert "peer5 has joined: roster 2 has 3 peers." in said
    assert "fedpeer start --config peer5/peer5.yaml" in joined.out
    checked = fedpeer("config", "check", "peer5/peer5.yaml")
    assert checked.code == 0, checked.err
    for folder in ("wards", "wards/peer1", "wards/peer2", "peer5"):
        assert roster_in(tmp_path / folder).number == 2
    file = peer_file(tmp_path / "peer5" / "peer5.yaml")
    assert (file.id, file.address, file.listen) == ("peer5", "https://127.0.0.1:7405", "127.0.0.1:7405")
    assert (tmp_path / "peer5" / "keys" / "peer5.key").stat().st_mode & 0o777 == 0o600
    late = fedpeer("join", token, "--folder", "again")
    assert late.code == 2
    assert "cannot be reached" in one_line(late.err)
    assert not (tmp_path / "again").exists()


@pytest.mark.slow
@needs_ipv6
def test_invite_and_join_over_ipv6(fedpeer: Fedpeer, tmp_path: Path) -> None:
    fedpeer("init", "wards", "--address", "peer1=https://[::1]:7401")
    with inviting(tmp_path / "wards", "--address", "https://[0::1]:7405", "--listen", "[::]:0") as (token, at):
        assert Endpoint.read(Token.read(token).listener).host == "::1"
        joined = fedpeer("join", token, "--dashboard-host", "[::1]")
        assert joined.code == 0, joined.err
        said, _ = at.communicate(timeout=PATIENCE)
    assert at.returncode == 0, said
    file = peer_file(tmp_path / "peer5" / "peer5.yaml")
    assert (file.address, file.listen, file.seeds) == (
        "https://[::1]:7405",
        "[::1]:7405",
        ["https://[::1]:7401"],
    )
    assert file.dashboard is not None
    assert file.dashboard.listen == "[::1]:7505"
    assert roster_in(tmp_path / "wards").by_id["peer5"].address == file.address


@pytest.mark.parametrize(
    ("address", "options", "listens", "reached"),
    [
        ("https://[::1]:7405", {}, "[::1]:7400", "::1"),
        ("https://127.0.0.1:7405", {}, "127.0.0.1:7400", "127.0.0.1"),
        ("https://10.0.0.5:7401", {"host": "[2001:DB8::1]"}, "[::]:7400", "2001:db8::1"),
        ("https://10.0.0.5:7401", {"host": "office"}, "0.0.0.0:7400", "office"),
        ("https://10.0.0.5:7401", {"listen": "[2001:db8::1]:1"}, "[2001:db8::1]:1", "2001:db8::1"),
    ],
)
def test_the_authority_listens_where_its_token_says(
    fedpeer: Fedpeer, tmp_path: Path, address: str, options: dict[str, str], listens: str, reached: str
) -> None:
    fedpeer("init", "wards", "--peers", "1")
    problems: list[ConfigProblem] = []
    found = invited_at(
        roster_in(tmp_path / "wards"), "peer5", address, options.get("listen"), options.get("host"), problems
    )
    assert not problems
    assert found is not None
    assert tuple(map(str, found)) == (address, listens, reached)


def test_ctrl_c_withdraws_an_invitation(fedpeer: Fedpeer, tmp_path: Path) -> None:
    import signal

    fedpeer("init", "wards", "--peers", "1")
    with inviting(tmp_path / "wards", "--address", "https://127.0.0.1:7405", "--listen", "127.0.0.1:0") as (token, at):
        at.send_signal(signal.SIGINT)
        said, _ = at.communicate(timeout=PATIENCE)
    assert at.returncode == 130
    assert "Withdrawn" in said
    assert fedpeer("join", token).code == 2
    assert roster_in(tmp_path / "wards").number == 1


def test_ctrl_c_after_the_admission_withdraws_nothing_and_the_others_are_told(
    fedpeer: Fedpeer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new peer may not have confirmed it, and the others reject it until they have its roster."""
    told = list[Roster]()

    async def admitting(authority: Authority, peer: str, url: str, *_: object) -> None:
        entry = RosterEntry(id=peer, key=bytes(32), address=url, models=None)
        change_roster(authority, lambda before, key: admit(before, entry, key))
        raise KeyboardInterrupt

    async def telling(_: Authority, roster: Roster, **__: object) -> dict[str, str]:
        told.append(roster)
        return {}

    monkeypatch.setattr(enrolment, "invite", admitting)
    monkeypatch.setattr(announcing, "announce", telling)
    fedpeer("init", "wards", "--peers", "1")
    found = fedpeer("invite", "peer5", "--address", "https://127.0.0.1:7405", "--in", "wards")
    assert "peer5 has joined: roster 2 has 2 peers" in found.out, found.err
    assert "has not confirmed" in one_line(found.out)
    assert [roster.number for roster in told] == [2]

    async def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(announcing, "announce", stopped)
    removed = one_line(fedpeer("revoke", "peer5", "--in", "wards").out)
    assert "peer5 has been removed: roster 3" in removed
    assert "Copy roster.json into the folder of one running peer" in removed


@pytest.mark.slow
def test_a_folder_that_is_there_is_not_joined_over_and_the_token_stays_good(fedpeer: Fedpeer, tmp_path: Path) -> None:
    fedpeer("init", "wards", "--peers", "1")
    (tmp_path / "peer5").mkdir()
    (tmp_path / "peer5" / "mine").touch()
    with inviting(tmp_path / "wards", "--address", "https://127.0.0.1:7405", "--listen", "127.0.0.1:0") as (token, at):
        assert "never overwritten" in one_line(fedpeer("join", token).err)
        joined = fedpeer("join", token, "--folder", "other")
        assert joined.code == 0, joined.err
        at.communicate(timeout=PATIENCE)
    assert "Name its data in" in joined.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["peer1", "--address", "https://h:1"], "peer1 is in the roster already"),
        (["authority", "--address", "https://h:1"], "cannot be an id"),
        (["peer5", "--address", "10.0.0.5:7401"], "is not like https://"),
        (["peer5", "--address", "https://127.0.0.1:7401"], "another peer has"),
        (["peer5", "--address", "https://h:1", "--expires", "30d"], "not a time from 1s to 7d"),
        (["peer5", "--address", "https://h:1", "--models", "everyon"], 'did you mean "everyone"'),
        (["peer5", "--address", "https://127.0.0.1:9", "--listen", "x"], "is not host:port"),
        (["peer5", "--address", "https://127.0.0.1:9", "--listen", "::1:7400"], "in brackets"),
        (["peer5", "--address", "https://127.0.0.1:9", "--host", "h:1"], '"h:1" is not a host name or IP address'),
        (["peer5", "--address", "https://[::1]"], '"[::1]" is not host:port'),
        (["peer5", "--address", "https://h:1", "--in", "."], "There is no authority"),
    ],
)
def test_a_wrong_invitation_is_said_to_be_so(
    fedpeer: Fedpeer, tmp_path: Path, arguments: list[str], words: str
) -> None:
    fedpeer("init", "wards", "--peers", "1")
    where = [] if "--in" in arguments else ["--in", "wards"]
    wrong = fedpeer("invite", *arguments, *where)
    assert wrong.code == 2
    assert words in one_line(wrong.err)
    assert roster_in(tmp_path / "wards").number == 1


def test_revoke_makes_the_next_roster_everywhere_here(fedpeer: Fedpeer, tmp_path: Path) -> None:
    fedpeer("init", "wards", "--peers", "3", "--port", "1")
    key = roster_in(tmp_path / "wards").by_id["peer2"].key
    done = fedpeer("revoke", "peer2", "--in", "wards")
    assert done.code == 0, done.err
    assert done.out.startswith("peer2 has been removed: roster 2 has 2 peers.")
    for folder in ("wards", "wards/peer1", "wards/peer2", "wards/peer3"):
        roster = roster_in(tmp_path / folder)
        assert (roster.number, list(roster.by_id), roster.revoked) == (2, ["peer1", "peer3"], (key,))
    assert "this key was revoked" in one_line(fedpeer("config", "check", "wards/peer2/peer2.yaml").err)
    assert fedpeer("config", "check", "wards/peer3/peer3.yaml").code == 0
    again = fedpeer("revoke", "peer2", "--in", "wards")
    assert again.code == 2
    assert "peer2 is not in the roster" in again.err


def test_an_authority_whose_key_others_can_read_signs_nothing(fedpeer: Fedpeer, tmp_path: Path) -> None:
    fedpeer("init", "wards", "--peers", "2")
    (tmp_path / "wards" / "authority" / "authority.key").chmod(0o644)
    done = fedpeer("revoke", "peer2", "--in", "wards")
    assert done.code == 2
    assert "chmod 600" in one_line(done.err)
    assert roster_in(tmp_path / "wards").number == 1


def test_who_was_admitted_and_has_no_folder_yet_joins_by_the_same_line(
    fedpeer: Fedpeer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fedpeer("init", "wards", "--peers", "1")
    authority = open_authority(tmp_path / "wards")
    invitation = Invitation(authority, "peer5", "https://127.0.0.1:7405", None, bytes(16), 60.0)
    token = Token(bytes(16), authority.roster.authority, "peer5", "127.0.0.1:7400")
    (tmp_path / "ward5.csv").write_text(WARD)
    line = ["join", str(token), "--folder", "there", "--data", "csv:ward5.csv,label=outcome"]

    async def model(token: Token, place: Path) -> bool:
        assert invitation.model(json.dumps({"secret": token.secret.hex()}).encode(), 0.0) is None
        return False

    async def ask(token: Token, key: Ed25519PrivateKey) -> Admission:
        wanted = {"secret": token.secret.hex(), "request": pem(request(key, token.peer)).decode()}
        answer = invitation.answer(json.dumps(wanted).encode(), 0.0)
        assert isinstance(answer, bytes)
        return read_admission(answer, token, key)

    def full(folder: Path, *_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(enrolment, "fetch_model", model)

    async def confirm(token: Token) -> None:
        assert invitation.confirm(json.dumps({"secret": token.secret.hex()}).encode()) is None

    monkeypatch.setattr(enrolment, "join_federation", ask)
    monkeypatch.setattr(enrolment, "confirm", confirm)
    with monkeypatch.context() as no_room:
        no_room.setattr(peer_folder, "write_peer", full)
        outcome = fedpeer(*line)
    assert outcome.code == 2
    assert one_line(outcome.err) == (
        "peer5 was admitted, but there cannot be written (No space left on device); make room there and run the same "
        "line again while fedpeer invite waits, three minutes at most; after that run fedpeer revoke peer5 there and "
        "invite it again."
    )
    assert not (tmp_path / "there").exists()
    assert [path.stat().st_mode & 0o777 for path in tmp_path.glob(".peer5-*.key")] == [0o600]
    again = fedpeer(*line)
    assert again.code == 0, again.err
    assert roster_in(tmp_path / "there") == authority.roster
    assert fedpeer("config", "check", "there/peer5.yaml").code == 0, "its key is the one that was admitted"
    assert not [*tmp_path.glob(".peer5-*")]


def test_own_edges_have_to_reach_whoever_is_invited_and_all_who_are_left(fedpeer: Fedpeer, tmp_path: Path) -> None:
    """With a roster that they do not connect no peer can be started."""
    (tmp_path / "mine.yaml").write_text("gossip: {topology: edges:a-b+b-c}\nsimulation: {peers: 3}\n")
    made = fedpeer("init", "wards", "--peers", "a,b,c", "--federation", "mine.yaml", "--port", "1")
    assert made.code == 0, made.err
    invited = fedpeer("invite", "d", "--address", "https://127.0.0.1:9", "--in", "wards")
    assert invited.code == 2
    assert "(a, b, c); (d); add edges between them by fedpeer update, and then invite it" in one_line(invited.err)
    removed = fedpeer("revoke", "b", "--in", "wards")
    assert removed.code == 0, removed.err
    assert "the edges leave 2 peers in 2 parts: (a); (c)" in one_line(removed.out)
    assert "edges" not in fedpeer("revoke", "c", "--in", "wards").out


def test_a_new_peer_implements_what_its_partial_models_depend_on(tmp_path: Path) -> None:
    """A roster without that leaves no peer able to start."""
    (tmp_path / "federation.yaml").write_text(
        "partial_models: {everyone: {}, ward: {depends_on: [everyone]}, room: {depends_on: [ward]}}\n"
    )
    for written, told in (
        ("room", '"room" depends on everyone and ward; name what it depends on, too'),
        ("ward,everyone", ""),
    ):
        problems = list[ConfigProblem]()
        assert _models(tmp_path / "federation.yaml", written, problems) == tuple(written.split(","))
        assert "".join(each.text for each in problems) == told


def test_code_in_the_federation_file_is_named_with_what_allows_it(capsys: pytest.CaptureFixture[str]) -> None:
    learning = {"algorithm": "python:loops:Mine", "loss": "python:losses.mine:soft"}
    _warn_of_code(Federation.model_validate({"learning": learning}), Path("peer3.yaml"))
    said = one_line(capsys.readouterr().out)
    assert "The federation's algorithm and loss are Python code: python:loops:Mine, python:losses.mine:soft." in said
    assert "allow_python: [loops, losses] into peer3.yaml" in said


def test_a_token_with_a_slip_is_told_before_anything_is_asked(fedpeer: Fedpeer) -> None:
    assert "not a whole token" in one_line(fedpeer("join", "fedpeer-abc").err)
