"""docs/scaling.md, then docs/operations.md, typed by an operator on two machines instead of a hundred.

The page's numbers of bytes are compared with those of whole peers. The machines are those of `machines.py`. Not tested:
the commands that are typed once for each machine (user, virtual environment), because there is no Python but this one;
and the image of the Containerfile, because it needs a registry.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from ruamel.yaml import YAML

from benchmarks.scaling import PARAMETERS, measure
from fedpeer.cli.main import run
from fedpeer.config.choice import parse_choice
from fedpeer.config.federation import Federation
from fedpeer.gossip.averaging import ACK_BYTES, MESSAGE_HEAD_BYTES, SHARE_EXTRA_BYTES
from fedpeer.learning.bandwidth import sending
from fedpeer.learning.holdings import load_dataset
from fedpeer.peer.runtime.authority import open_authority
from fedpeer.peer.runtime.identity import read_roster
from fedpeer.runs.environment import BUILT_FROM
from fedpeer.sims.network.engine import NetworkEngine
from fedpeer.sims.network.simulator import Simulator
from fedpeer.sims.processes.watch import JsonLinesReader
from fedpeer.sims.world import World, build_world, plan_of
from tests.docs.machines import Machines
from tests.docs.test_pages import loaded
from tests.forked import python
from tests.net.hosts import Hosts, HostsError, missing
from tests.net.peers import until

from .pages import OPERATIONS, REAL, ROOT, SCALING, blocks

DEPLOY = ROOT / "examples" / "deploy"
PEERS = ("peer1", "peer2")
#: Number of averaged weights in the page's federation, and number of exchanges in a round.
SHARED, EXCHANGES = 30 * 30 + 30 + 30 * 2 + 2, 2
#: Relative tolerance of the predicted bytes: a head and an acknowledgement take 290 to 320 bytes, of at least 3 kB.
CLOSE = 0.01
#: Time limit in seconds for one command, or for one of its effects, on a machine with other load.
PATIENCE_S = 240.0
#: Tests whether a port accepts a connection within a second.
KNOCK = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 1)"
#: Reads the metrics of a job as Prometheus does, with host, port, certificate and token.
SCRAPE = """
import socket, ssl, sys
from contextlib import contextmanager, suppress
from pathlib import Path

url, ca, name, token = sys.argv[1:]
host, port = url.split(":")
tls = ssl.create_default_context(cafile=ca)
with tls.wrap_socket(socket.create_connection((host, int(port)), 20), server_hostname=name) as line:
    asked = f"GET /metrics HTTP/1.1\\r\\nHost: {url}\\r\\nAuthorization: Bearer {Path(token).read_text().strip()}\\r\\n"
    line.sendall((asked + "Connection: close\\r\\n\\r\\n").encode())
    while piece := line.recv(65536):
        sys.stdout.write(piece.decode())
"""


class Operator:
    """Reader of the page, in the office."""

    def __init__(self, hosts: Hosts, machines: Machines, folder: Path) -> None:
        self.hosts, self.machines, self.folder = hosts, machines, folder

    def types(self, command: str, capsys: pytest.CaptureFixture[str]) -> str:
        """Run a command and return its output."""
        words = self._here(command)
        if command.startswith("fedpeer") and not REAL.match(command):
            assert run(shlex.split(words)[1:]) == 0, capsys.readouterr().err
            return capsys.readouterr().out
        return self.says("office", ["bash", "-c", words])

    def says(self, host: str, words: list[str], *, right: bool = True) -> str:
        """Run a command on a host and return its output; it must succeed if `right` is true, and fail otherwise."""
        process = self.hosts.start(
            host, words, folder=self.folder, out=subprocess.PIPE, err=subprocess.STDOUT, env=self.machines.environment
        )
        said = process.communicate(timeout=PATIENCE_S)[0].decode()
        assert (process.returncode == 0) is right, f"{words}\n{said}"
        return said

    def _here(self, command: str) -> str:
        """Return the command for two machines instead of a hundred, with the network of the hosts."""
        text = command.replace("10.0.0.250", self.hosts.address["office"]).replace("1 100 >", f"1 {len(PEERS)} >")
        return text.replace("10.0.0.", "10.77.0.")

    def lines(self, peer: str, file: str, place: str = "") -> list[dict[str, Any]]:
        """Return the lines of a file in a peer's state folder; `place` is the peer's folder, if it has another name."""
        state = f"/var/lib/fedpeer/{place or peer}/{peer}-state"
        return JsonLinesReader(self.machines.path(peer, f"{state}/{file}")).new()

    def done(self, peer: str) -> int:
        """Return the last round that the peer finished."""
        return max((row["round"] for row in self.lines(peer, "metrics.jsonl")), default=0)

    def learn(self, more: int = 2) -> None:
        """Wait until both peers have finished some more rounds together."""
        goal = {peer: self.done(peer) + more for peer in PEERS}
        until(lambda: all(self.done(peer) >= goal[peer] for peer in PEERS), f"rounds {goal}", PATIENCE_S)

    def logged(self, peer: str, what: str, place: str = "") -> list[str]:
        return [line["text"] for line in self.lines(peer, "log.jsonl", place) if line["what"] == what]

    def knocks(self, who: str, peer: str, port: int, *, opened: bool) -> None:
        self.says(who, [sys.executable, "-IS", "-c", KNOCK, self.hosts.address[peer], str(port)], right=opened)


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    if lacks := missing():
        pytest.skip(f"no hosts: {lacks}")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    with Hosts([*PEERS, "office", "stranger"]) as hosts:
        try:
            machines = Machines(hosts, list(PEERS), tmp_path)
        except HostsError as error:
            pytest.skip(f"no machines: {error}")
        yield Operator(hosts, machines, tmp_path)


def typed() -> Iterator[str]:
    """Yield the commands of both pages in their order."""
    for text in [*blocks(SCALING, "console"), *blocks(OPERATIONS, "console")]:
        for each in re.split(r"^\$ ", text, flags=re.M)[1:]:
            yield each.partition("\n")[0]


@pytest.mark.slow
def test_the_pages_with_two_machines(
    operator: Operator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(operator.folder)
    loaded(ROOT / "examples" / "wards.py")
    subprocess.run([*python(), str(ROOT / "examples" / "wards.py")], check=True, stdout=subprocess.DEVNULL)
    for number, peer in enumerate(PEERS, start=1):
        shutil.copy(f"ward{number}.csv", operator.machines.path(peer, "/srv/ward.csv"))
        pip = operator.machines.path(peer, "/opt/fedpeer/bin/pip")
        pip.write_text('#!/bin/sh\necho "$@" >> /opt/installed\n')
        pip.chmod(0o755)
    (page,) = (text for text in blocks(SCALING, "yaml") if text.startswith("# federation.yaml"))
    Path("federation.yaml").write_text(page, encoding="utf-8")

    then: dict[str, Callable[[str], None]] = {
        "fedpeer config check": lambda said: _has(said, 'is valid: federation "fleet", 1 partial model'),
        "fedpeer slices": lambda said: _has(said, "In each round a peer sends 34.1 kB in 8 messages."),
        "fedpeer init fleet ": lambda said: _has(said, 'The federation "fleet" is in fleet, with 2 peers'),
        "sh examples/deploy/distribute.sh fleet ": lambda said: _distributed(operator, said),
        "for host in": lambda said: _walled(operator),
        "sh examples/deploy/prometheus.sh": lambda said: _scraped(operator),
        "ssh -n root@10.0.0.1 runuser": lambda said: _has(said, "peer1 in fleet: "),
        "sh examples/deploy/rolling.sh": lambda said: _rolled(operator, said),
        "ssh -n root@10.0.0.2": lambda said: _left(operator, said),
        "fedpeer revoke": lambda said: _revoked(operator, said),
        "ssh -n root@10.0.0.1 cat /var/lib/fedpeer/peer1/roster.json": lambda said: _restored(),
        "fedpeer init fleet2 ": lambda said: _has(said, "is in fleet2, with 2 peers"),
        "sh examples/deploy/distribute.sh fleet2 ": lambda said: _changed_over(operator, said),
    }
    for command in typed():
        said = operator.types(command, capsys)
        for begins in [each for each in then if command.startswith(each)]:
            then.pop(begins)(said)
    assert not then, "what the page promises, and does not type"
    operator.says("office", ["ssh", "-n", f"root@{operator.hosts.address['peer1']}", "systemctl stop fedpeer@peer1"])
    assert _journal(operator, "peer1")[-1]["fields"]["code"] == 0
    assert "peer2" in "".join(operator.logged("peer1", "roster", "peer1.old"))


def _has(said: str, *words: str) -> None:
    text = " ".join(said.split())
    assert [each for each in words if each not in text] == [], text


def _distributed(operator: Operator, said: str) -> None:
    """Check that the peers were checked on their machines and started by the unit's own command, and learn together."""
    for peer in PEERS:
        _has(said, f'/var/lib/fedpeer/{peer}/{peer}.yaml is valid: peer "{peer}" of federation "fleet", data csv')
    operator.learn(4)
    for peer in PEERS:
        rows = [row["bytes_sent"] for row in operator.lines(peer, "metrics.jsonl")[1:]]
        # One neighbor, two exchanges. The prediction does not include the repeats that a slow machine sends in a
        # round. An acknowledgement may be in the row of the next round.
        shares = EXCHANGES * (4 * SHARED + SHARE_EXTRA_BYTES)
        assert (1 - CLOSE) * (shares - EXCHANGES * ACK_BYTES) <= min(rows) <= (1 + CLOSE) * shares
        key = operator.machines.path(peer, f"/var/lib/fedpeer/{peer}/keys/{peer}.key").stat()
        assert (key.st_mode & 0o777, key.st_uid) == (0o600, 990)
        assert operator.logged(peer, "met") == [f"met {other}" for other in PEERS if other != peer]


def _walled(operator: Operator) -> None:
    """Check that a peer in the table can connect, that another one cannot, and that the peers continue."""
    operator.learn()
    for peer, other in (PEERS, PEERS[::-1]):
        operator.knocks(other, peer, 7401, opened=True)
        operator.knocks("office", peer, 7401, opened=True)
        operator.knocks("office", peer, 7501, opened=True)
        operator.knocks(other, peer, 7501, opened=False)
        operator.knocks("stranger", peer, 7401, opened=False)


def _scraped(operator: Operator) -> None:
    """Check that each job reads its peer's metrics."""
    jobs = YAML(typ="safe").load(operator.folder / "prometheus.yml")["scrape_configs"]
    assert [job["job_name"] for job in jobs] == list(PEERS)
    for job in jobs:
        ((target,),) = (each["targets"] for each in job["static_configs"])
        tls, token = job["tls_config"], job["authorization"]["credentials_file"]
        words = [target, tls["ca_file"], tls["server_name"], token]
        found = operator.says("office", [sys.executable, "-IS", "-c", SCRAPE, *words])
        assert f'peer="{job["job_name"]}"' in found
        assert "fedpeer_group_sent_bytes_total" in found


def _rolled(operator: Operator, said: str) -> None:
    """Check that each peer was installed, paused, and continued from its state, through the firewall."""
    _has(said, "peer1 is back peer2 is back")
    for peer in PEERS:
        assert operator.machines.path(peer, "/opt/installed").read_text() == "install --quiet /usr/src/fedpeer\n"
        assert [line["fields"]["code"] for line in _journal(operator, peer) if line["what"] == "stopped"] == [0]
        assert any("going on in round" in text for text in operator.logged(peer, "resumed"))
    operator.learn()
    until(lambda: operator.done("peer1") >= 10, "the first evaluation, which writes the model", PATIENCE_S)


def _left(operator: Operator, said: str) -> None:
    _has(said, "is handing over what it holds and will stop")

    def gone() -> bool:
        return any(line["what"] == "stopped" and "left" in line["text"] for line in _journal(operator, "peer2"))

    until(gone, "peer2 leaves", PATIENCE_S)
    assert operator.logged("peer2", "written_off") == []


def _revoked(operator: Operator, said: str) -> None:
    _has(said, "peer2 has been removed: roster 2 has 1 peer.", "Sent to: peer1.")
    file = operator.machines.path("peer1", "/var/lib/fedpeer/peer1/roster.json")
    until(lambda: read_roster(file).number == 2, "the roster on peer1's disk", PATIENCE_S)


def _restored() -> None:
    """Check that the backup with the running peer's roster is an authority that can sign the next one."""
    authority = open_authority(Path("restored") / "fleet")
    assert (authority.roster.number, list(authority.roster.by_id)) == (2, ["peer1"])
    assert authority.roster == open_authority(Path("fleet")).roster


def _changed_over(operator: Operator, said: str) -> None:
    """Check that the peers learn together under another authority, from the model of the earlier one."""
    _has(said, "peer2.yaml is valid")
    assert open_authority(Path("fleet2")).roster.authority != open_authority(Path("fleet")).roster.authority
    operator.learn()
    for peer in PEERS:
        assert operator.logged(peer, "met") == [f"met {other}" for other in PEERS if other != peer]
        state = operator.machines.path(peer, f"/var/lib/fedpeer/{peer}")
        assert (state / "model.safetensors").read_bytes() == Path("model.safetensors").read_bytes()


def _journal(operator: Operator, peer: str) -> list[dict[str, Any]]:
    """Return the lines that the service logged."""
    return JsonLinesReader(operator.machines.path(peer, f"/var/lib/{peer}.journal")).new()


# ------------------------------------------------------------------------------------------------ what it says of bytes


@pytest.mark.parametrize(
    ("peers", "topology", "wire"),
    [(6, "k-regular:4", "float32"), *((4, "ring", each) for each in ("float64", "bfloat16", "int8", "top-k:0.1"))],
)
def test_the_formula_foretells_what_whole_peers_send(peers: int, topology: str, wire: str) -> None:
    """Shares and acknowledgements of some rounds count; with a coarser form, a channel's first transfer is float32."""
    rounds, exchanges = 2, 4
    world = _world(peers, {"topology": topology, "exchanges": exchanges, "wire": wire}, rounds=rounds)
    method = parse_choice("partial-averaging")
    plan = plan_of(world, method)
    (group,) = plan.groups
    counted = NetworkEngine(world, method)
    counted._simulator.keeps_rows = True
    with counted as engine:
        sent = [0] * peers
        for _ in range(rounds):
            engine.step()
            sent = [a + b for a, b in zip(sent, _averaging(engine._simulator), strict=True)]
    degree = 2 if topology == "ring" else 4
    foretold = sending(plan, world.federation, world.seed)
    each = {"float32": 4.0, "float64": 8.0, "bfloat16": 2.0, "int8": 1.02, "top-k:0.1": 0.8}[wire] * group.length
    first = max(0.0, 4 * group.length - each) if wire not in ("float32", "float64") else 0.0
    for peer, count in zip(world.peers, sent, strict=True):
        assert foretold[peer].messages == exchanges * degree
        assert foretold[peer].bytes == pytest.approx(exchanges * degree * (each + SHARE_EXTRA_BYTES), rel=0.005)
        assert count == pytest.approx(rounds * foretold[peer].bytes + degree * first, rel=CLOSE)


def _world(peers: int, gossip: dict[str, object], rounds: int = 3) -> World:
    federation = Federation.model_validate(
        {
            "network": "mlp:64+100+10",
            "learning": {"batch_size": 5, "steps_between_averaging": 2, "rounds": rounds},
            "gossip": gossip,
            "simulation": {"peers": peers, "split": "iid"},
        }
    )
    return build_world(federation, load_dataset(federation.simulation.dataset), federation.seed)


def _averaging(simulator: Simulator) -> list[int]:
    """Return the bytes of shares and acknowledgements that each peer sent since the last call."""
    found = dict.fromkeys(simulator.peers, 0)
    for row in simulator.rows:
        if row[1] == "said" and row[3] in ("Transfer", "Ack") and len(row) == 6:
            found[str(row[2])] += int(str(row[5]))
    simulator.rows.clear()
    return list(found.values())


def test_bytes_add_up_over_groups_and_a_coordinator_sends_what_all_others_do() -> None:
    models = {
        "everyone": {"neurons": {"input": "all", "hidden1": 50, "output": "all"}},
        "pair": {"depends_on": ["everyone"], "neurons": {"hidden1": 20}, "members": ["peer1", "peer2"]},
    }
    for protocol, shares in {"exact": {"peer1": (4, 1), "peer5": (4, 0)}, "coordinator": {"peer1": (4, 1)}}.items():
        federation = _world(5, {"protocol": protocol}).federation.model_copy(
            update={"partial_models": Federation.model_validate({"partial_models": models}).partial_models}
        )
        world = build_world(federation, load_dataset(federation.simulation.dataset), federation.seed)
        plan = plan_of(world, parse_choice("partial-averaging"))
        length = {group.id: group.length for group in plan.groups}
        found = sending(plan, federation, 0)
        for peer, (all_, pair) in shares.items():
            numbers = all_ * length["everyone"] + pair * length["pair"]
            head = MESSAGE_HEAD_BYTES if protocol == "coordinator" else SHARE_EXTRA_BYTES
            assert found[peer].bytes == 4 * numbers + (all_ + pair) * head


def test_a_coordinator_is_sent_and_sends_what_the_page_says() -> None:
    peers, model = 5, 4 * PARAMETERS
    costs = measure(peers)
    assert costs.upward == pytest.approx((peers - 1) * (model + 120), rel=CLOSE)
    assert costs.downward == pytest.approx((peers - 1) * (model + 95 + 15 * peers), rel=CLOSE)
    assert costs.beats.messages == pytest.approx(10 * (peers - 1), rel=CLOSE)
    assert costs.beats.bytes == pytest.approx(10 * (peers - 1) * 107, rel=0.06)
    assert costs.membership.messages == pytest.approx(8, abs=1)
    assert costs.membership.bytes < 8 * 3600
    assert costs.roster == pytest.approx(300 + 182 * peers, rel=0.05)


# --------------------------------------------------------------------------------------------------- files for machines


def test_the_unit_is_one_of_systemd_and_of_fedpeer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "fedpeer@.service")
    service = unit["Service"]
    program, command, option, file = shlex.split(service["ExecStart"])
    assert run([command, "--help"]) == 0
    assert option in capsys.readouterr().out.split()
    assert (Path(program).name, file) == ("fedpeer", "%i.yaml")
    assert getattr(signal, service["KillSignal"]) == signal.SIGTERM
    assert float(service["TimeoutStopSec"]) > 5, "a pause takes up to five seconds"
    assert (service["Restart"], service["RestartPreventExitStatus"]) == ("on-failure", "2")
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze to ask about the rest")
    here = tmp_path / "fedpeer@peer1.service"
    here.write_text((DEPLOY / "fedpeer@.service").read_text().replace(program, sys.executable))
    said = subprocess.run(["systemd-analyze", "verify", str(here)], capture_output=True, text=True, timeout=60)
    assert (said.returncode, said.stderr) == (0, "")


def test_every_command_of_the_container_file_is_real(capsys: pytest.CaptureFixture[str]) -> None:
    text = re.sub(r"\\\n\s*", " ", (DEPLOY / "Containerfile").read_text(encoding="utf-8"))
    steps = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    assert {name for name, _ in steps} <= {
        "ARG", "FROM", "COPY", "RUN", "ENV", "USER", "WORKDIR", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "CMD"
    }  # fmt: skip
    starts = [number for number, (name, _) in enumerate(steps) if name == "FROM"]
    making, image = steps[: starts[1]], steps[starts[1] :]
    assert [steps[number][1] for number in starts] == ["${BASE} AS build", "${BASE}"]
    of, making_of = dict(image), dict(making)
    given = dict(value.split("=", 1) for name, value in steps if name == "ARG")
    used = {name: text.count(f"${name}") + text.count(f"${{{name}}}") for name in given}
    assert used == {"BASE": 2, "INDEX": 2, "TORCH_INDEX": 1, "COMMIT": 2}
    assert f"/src/{BUILT_FROM}" in text
    version = re.search(r":(\d+)\.(\d+)-slim$", given["BASE"])
    assert version is not None
    assert (int(version[1]), int(version[2])) >= (3, 11), "what fedpeer requires"
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    assert re.findall(r"torch==\S+", making_of["RUN"]) == [each for each in pinned if each.startswith("torch==")]
    made = making_of["RUN"].partition("-m venv ")[2].split()[0]
    assert of["COPY"].split() == ["--from=build", made, made], "an environment works where it was made"
    assert f"PATH={made}/bin:" in of["ENV"]
    assert "useradd" in of["RUN"]
    assert of["USER"] == "fedpeer"
    assert of["STOPSIGNAL"] == service_signal()
    assert of["WORKDIR"] == of["VOLUME"] == "/peer"
    check = of["HEALTHCHECK"].partition("CMD ")[2].partition(" >")[0]
    shell, dash, start = json.loads(of["CMD"])
    assert (shell, dash) == ("sh", "-c"), "the peer's name comes from the environment"
    for words in (shlex.split(check), shlex.split(start.removeprefix("exec "))):
        assert words[0] == "fedpeer"
        assert run([words[1], "--help"]) == 0
        told = capsys.readouterr().out.split()
        assert [word for word in words[2:] if word.startswith("--") and word not in told] == []


def test_the_manifest_has_what_the_peers_folder_has(tmp_path: Path) -> None:
    """The manifest is valid for Kubernetes, and its copy has exactly the files that `fedpeer init` makes."""
    service, peers = YAML(typ="safe").load_all((DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8"))
    for manifest, version in ((service, "v1"), (peers, "apps/v1")):
        assert manifest["apiVersion"] == version
        kubernetes_validate.validate(manifest, "1.32", strict=True)  # raises if it is invalid
    pod = peers["spec"]["template"]
    assert service["spec"]["selector"] == peers["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    assert peers["spec"]["replicas"] == 1
    assert run(["init", str(tmp_path / "wards"), "--peers", "2", "--hosts", "10.0.0.1,10.0.0.2"]) == 0
    made = tmp_path / "wards" / "peer1"
    given = tmp_path / "given"
    given.mkdir()
    for file in (*made.glob("*.*"), *(made / "keys").iterdir()):  # a secret made of two folders is flat
        shutil.copy(file, given)
        (given / file.name).chmod(0o644)  # as in a mounted secret
    (copy,) = pod["spec"]["initContainers"]
    copying = copy["command"][-1].replace("/given", str(given))
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    for _ in range(2):
        subprocess.run([*copy["command"][:-1], copying], cwd=mounted, check=True)
    names = {file.relative_to(made) for file in made.rglob("*") if file.is_file()}
    assert {file.relative_to(mounted) for file in mounted.rglob("*") if file.is_file()} == names
    assert (mounted / "keys" / "peer1.key").stat().st_mode & 0o077 == 0
    assert run(["config", "check", str(mounted / "peer1.yaml")]) == 0


@contextmanager
def in_a_set(folder: Path, peer: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Run the command of a peer's container, with this program instead of fedpeer; end all its processes afterwards."""
    *_, peers = YAML(typ="safe").load_all((DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8"))
    (container,) = peers["spec"]["template"]["spec"]["containers"]
    program = folder / "fedpeer"
    program.write_text(f"#!/bin/sh\n{peer}\n")
    program.chmod(0o755)
    words = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", **environment}
    with subprocess.Popen(
        container["command"], env=words, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as set_:
        try:
            yield set_
        finally:
            with suppress(ProcessLookupError):
                os.killpg(set_.pid, signal.SIGKILL)


@pytest.mark.parametrize(("code", "again"), [(0, False), (2, False), (1, True), (75, True)])
def test_a_peer_in_a_set_is_started_again_only_where_that_helps(tmp_path: Path, code: int, again: bool) -> None:
    with in_a_set(tmp_path, f"exit {code}") as set_:
        if not again:
            assert set_.stdout is not None
            assert f"exit code {code}" in set_.stdout.readline()
            set_.terminate()
        assert set_.wait(timeout=PATIENCE_S) == code


def test_a_peer_in_a_set_is_paused_by_the_sets_signal(tmp_path: Path) -> None:
    peer = "trap 'echo paused; exit 0' TERM; echo started; while :; do sleep 0.05; done"
    with in_a_set(tmp_path, peer) as set_:
        assert set_.stdout is not None
        assert set_.stdout.readline() == "started\n"
        set_.terminate()
        assert set_.stdout.readline() == "paused\n"
        assert set_.wait(timeout=PATIENCE_S) == 0


def test_a_set_that_is_paused_while_the_peer_starts_does_not_leave_it_behind(tmp_path: Path) -> None:
    early = tmp_path / "early"
    early.write_text("trap '[[ $BASH_COMMAND != peer=* ]] || kill -TERM $$' DEBUG\n")  # before bash sets `peer`
    with in_a_set(tmp_path, "exec sleep 600", BASH_ENV=str(early)) as set_:
        assert set_.wait(timeout=PATIENCE_S) == 128 + signal.SIGTERM, "the end of the peer"


def test_the_compose_file_runs_the_container_file() -> None:
    (peer,) = YAML(typ="safe").load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"].values()
    assert (DEPLOY / peer["build"]["context"]).resolve() == ROOT
    assert (ROOT / peer["build"]["dockerfile"]).is_file()
    assert peer["network_mode"] == "host"
    assert {place.split(":")[-2 if place.endswith(":ro") else -1] for place in peer["volumes"]} == {"/peer", "/data"}


def service_signal() -> str:
    text = (DEPLOY / "fedpeer@.service").read_text(encoding="utf-8")
    found = re.search(r"^KillSignal=(\w+)$", text, re.M)
    assert found is not None
    return found[1]
