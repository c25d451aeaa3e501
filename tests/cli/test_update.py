"""`fedpeer update` refuses what cannot change and names the way that works; running peers adopt the other changes."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from safetensors.torch import save_file

from fedpeer.cli.update import _problems
from fedpeer.config.contract import contract_of, differences
from fedpeer.config.federation import Federation
from fedpeer.peer.runtime.agreement import state_of
from fedpeer.peer.runtime.authority import Authority
from fedpeer.peer.state.journal import held_of
from fedpeer.sims.processes.settling import free_ports
from tests.cli.conftest import Fedpeer
from tests.cli.test_federation_commands import inviting
from tests.forked import fedpeer_command
from tests.net.masses import mass_errors, state_in

#: Seconds after which a process counts as hanging, on a machine with other load.
PATIENCE = 240.0
FILE = """\
name: wards
network: {mlp: {layers: [64, 4, 10]}}
partial_models:
  everyone: {neurons: {input: all, hidden1: 2, output: all}}
learning: {LEARNING optimizer: {sgd: {lr: 0.05}}, batch_size: 4, steps_between_averaging: 5, rounds: ROUNDS}
gossip: {GOSSIP topology: complete, exchanges: 2, deadline: 60, gather: 30, tick: 0.02}
simulation: {peers: COUNT, dataset: digits, split: iid}
"""


@pytest.fixture
def made(fedpeer: Fedpeer) -> Path:
    return federation(fedpeer)


def federation(fedpeer: Fedpeer, peers: int = 2, learning: str = "", gossip: str = "", rounds: int = 40) -> Path:
    """Make a federation, with a copy of its file as new.yaml, and return its folder."""
    text = FILE.replace("LEARNING ", learning).replace("GOSSIP ", gossip)
    text = text.replace("COUNT", str(peers)).replace("ROUNDS", str(rounds))
    for name in ("federation.yaml", "new.yaml"):
        Path(name).write_text(text, encoding="utf-8")
    first = str(free_ports(peers))
    assert fedpeer("init", "fed", "--peers", str(peers), "--port", first, "--federation", "federation.yaml").code == 0
    return Path("fed").resolve()


def peers_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("peer*"))


def rewritten(*changes: tuple[str, str]) -> None:
    text = Path("new.yaml").read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    Path("new.yaml").write_text(text, encoding="utf-8")


# --------------------------------------------------------------------------------------------------- what is refused


def test_a_list_of_members_does_not_change_what_a_peer_was_invited_for() -> None:
    """It would be signed, and have no effect."""

    def wards(*members: str) -> Federation:
        models = {"everyone": {}, "ward": {"depends_on": ["everyone"], "members": list(members)}}
        return Federation.model_validate({"partial_models": models})

    entries = [
        SimpleNamespace(id=peer, models=models) for peer, models in (("a", None), ("b", None), ("c", ("everyone",)))
    ]
    authority = cast(Authority, SimpleNamespace(roster=SimpleNamespace(entries=entries)))
    for members, told in ((("a", "b"), []), (("a", "c"), ["partial_models.ward.members"])):
        differing = differences(contract_of(wards("a")), contract_of(wards(*members)))
        assert [each.dotted for each in _problems(authority, wards(*members), differing)] == told


def test_a_changed_network_is_refused_with_every_key_and_the_way_that_works(fedpeer: Fedpeer, made: Path) -> None:
    rewritten(("[64, 4, 10]", "[64, 5, 10]"), ("hidden1: 2", "hidden1: 3"), ("rounds: 40", "rounds: 50"))
    outcome = fedpeer("update", "new.yaml", "--in", "fed")
    said = " ".join(outcome.err.split())
    assert outcome.code == 2
    assert 'network is "mlp,layers=64+4+10" now and "mlp,layers=64+5+10" then, and it cannot change' in said
    assert "partial_models.everyone.neurons" in said
    assert "export the model (fedpeer export)" in said
    assert "learning.start: file:" in said
    assert "nothing was signed" in said
    assert "remove" not in said
    assert not (made / "contract.json").exists()


def test_nothing_is_signed_where_nothing_changes_or_the_data_would(fedpeer: Fedpeer, made: Path) -> None:
    assert "nothing differs from the contract in force" in fedpeer("update", "new.yaml", "--in", "fed").err
    rewritten(("split: iid", "split: dirichlet:0.5"), ("rounds: 40", "rounds: 50"))
    outcome = fedpeer("update", "new.yaml", "--in", "fed")
    assert outcome.code == 2
    assert "simulated peers" in " ".join(outcome.err.split())


TABLE = "a,b,outcome\n" + "".join(f"{n},{n % 3},{'ill' if n % 2 else 'well'}\n" for n in range(40))


@pytest.mark.parametrize("place", ["beside", "copied", "absolute", "home"])
def test_data_are_the_same_wherever_they_lie_and_however_their_path_is_written(
    place: str, fedpeer: Fedpeer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    text = FILE.replace("LEARNING ", "").replace("GOSSIP ", "").replace("COUNT", "2").replace("ROUNDS", "40")
    text = text.replace("[64, 4, 10]", "[2, 4, 2]").replace("dataset: digits", "dataset: 'csv:PATH,label=outcome'")
    Path("clinic.csv").write_text(TABLE)
    Path("federation.yaml").write_text(text.replace("PATH", "clinic.csv"))
    made = ["init", "fed", "--peers", "2", "--port", str(free_ports(2)), "--federation", "federation.yaml"]
    assert fedpeer(*made).code == 0
    shutil.copy("clinic.csv", "fed")
    Path("elsewhere").mkdir()
    path = {
        "beside": "clinic.csv",
        "copied": "same.csv",
        "absolute": str(tmp_path / "clinic.csv"),
        "home": "~/clinic.csv",
    }
    shutil.copy("clinic.csv", "elsewhere/same.csv")
    new = text.replace("PATH", path[place]).replace("rounds: 40", "rounds: 50")
    Path("elsewhere/new.yaml").write_text(new)
    done = fedpeer("update", "elsewhere/new.yaml", "--in", "fed")
    assert done.code == 0, done.err
    assert "rounds is 40 now and 50 then" in " ".join(done.out.split())


def test_other_data_are_refused_by_the_setting_that_names_them(fedpeer: Fedpeer, made: Path) -> None:
    rewritten(("dataset: digits", "dataset: watch"), ("rounds: 40", "rounds: 50"))
    refused = fedpeer("update", "new.yaml", "--in", "fed")
    assert refused.code == 2
    assert "simulation.dataset" in refused.err


@pytest.mark.parametrize(
    ("adapters", "weights", "same"),
    [(",lora=2", "weights", True), (",lora=2", "others", False), (",lora=4", "weights", False)],
    ids=["copied", "other weights", "other adapters"],
)
def test_a_peers_pretrained_model_is_the_same_wherever_it_lies(
    fedpeer: Fedpeer, adapters: str, weights: str, same: bool
) -> None:
    folder = federation(fedpeer)
    there = (folder / "federation.yaml", "model", ",lora=2", "weights"), (Path("new.yaml"), "copy", adapters, weights)
    for file, name, settings, content in there:
        model = file.parent / name
        model.mkdir()
        (model / "config.json").write_text("{}")
        (model / "model.safetensors").write_text(content)
        text = file.read_text(encoding="utf-8")
        file.write_text(
            text.replace("dataset: digits", f"dataset: digits, networks: {{peer2: 'hf:{name}{settings}'}}"),
            encoding="utf-8",
        )
    rewritten(("rounds: 40", "rounds: 50"))
    done = fedpeer("update", "new.yaml", "--in", "fed")
    assert done.code == (0 if same else 2), done.err
    assert ("simulation.networks" in done.err) is not same
    assert ("rounds is 40 now and 50 then" in " ".join(done.out.split())) is same


def test_data_that_cannot_be_read_are_named_and_not_called_others(fedpeer: Fedpeer) -> None:
    folder = federation(fedpeer)
    for file, path in ((folder / "federation.yaml", "clinic.csv"), (Path("new.yaml"), "/nowhere/clinic.csv")):
        text = file.read_text(encoding="utf-8")
        assert "dataset: digits" in text
        file.write_text(text.replace("dataset: digits", f"dataset: 'csv:{path},label=outcome'"), encoding="utf-8")
    rewritten(("rounds: 40", "rounds: 50"))
    refused = fedpeer("update", "new.yaml", "--in", "fed")
    said = " ".join(refused.err.split())
    assert refused.code == 2
    assert "simulation.dataset" in said
    assert "clinic.csv cannot be read (No such file or directory)" in said
    assert "simulated peers only" not in said


def test_numbers_rise_and_copies_in_the_peers_folders_follow(fedpeer: Fedpeer, made: Path) -> None:
    for number, rounds in ((1, 50), (2, 60)):
        Path("new.yaml").write_text(
            (made / "federation.yaml")
            .read_text(encoding="utf-8")
            .replace(f"rounds: {rounds - 10}", f"rounds: {rounds}"),
            encoding="utf-8",
        )
        outcome = fedpeer("update", "new.yaml", "--in", "fed")
        assert outcome.code == 0, outcome.err
        assert f"Contract {number} is in force" in outcome.out
        assert "No running peer was reached" in outcome.out
    for folder in (made, *(made / peer for peer in peers_of(made))):
        signed = json.loads((folder / "contract.json").read_bytes())
        assert signed["number"] == 2
        assert json.loads(signed["text"])["learning"]["rounds"] == 60
        assert "rounds: 60" in (folder / "federation.yaml").read_text(encoding="utf-8")


# ---------------------------------------------------------------------------------------------------- running peers


@contextmanager
def running(folder: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Run the federation's peers as processes, and kill those that still run at the end."""
    peers = dict[str, subprocess.Popen[bytes]]()
    for peer in peers_of(folder):
        with said_by(folder, peer).open("wb") as stderr:
            command = fedpeer_command("start", "--quiet", "--config", str(folder / peer / f"{peer}.yaml"))
            peers[peer] = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr)
    try:
        yield peers
    finally:
        for each in peers.values():
            each.kill()
            each.wait()


def said_by(folder: Path, peer: str) -> Path:
    """Return the file with the stderr of a peer's process."""
    return folder / peer / "stderr"


def lines(folder: Path, peer: str) -> list[dict[str, object]]:
    path = folder / peer / f"{peer}-state" / "log.jsonl"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def wait_for(folder: Path, what: str) -> None:
    """Poll until all logs have such a line: other processes write them, and no event reports that a file has grown."""
    until = time.monotonic() + PATIENCE
    while not all(any(line["what"] == what for line in lines(folder, peer)) for peer in peers_of(folder)):
        assert time.monotonic() < until, what
        time.sleep(0.05)


def ended(folder: Path, peers: dict[str, subprocess.Popen[bytes]]) -> None:
    """Wait until all peers have finished without an error."""
    for peer, process in peers.items():
        process.wait(PATIENCE)
        assert process.returncode == 0, (lines(folder, peer)[-5:], said_by(folder, peer).read_text(encoding="utf-8"))


def judge(folder: Path, number: int, rounds: int) -> None:
    """Check that all peers hold the contract of this number and did all its rounds, and that no mass is missing."""
    for peer in peers_of(folder):
        state = state_of(folder / peer / f"{peer}-state")
        assert state is not None
        held = held_of(state)
        assert held is not None
        assert (held.number, held.before) == (number, b"")
        assert state["round"] == rounds + 1
    errors = mass_errors([folder / peer / f"{peer}.yaml" for peer in peers_of(folder)])
    assert all(error < 1e-9 for error in errors.values()), errors


@pytest.mark.slow
def test_running_peers_go_over_and_a_finished_federation_goes_on(fedpeer: Fedpeer, made: Path) -> None:
    rewritten(
        ("rounds: 40", "rounds: 60"), ("lr: 0.05", "lr: 0.02, momentum: 0.5"), ("batch_size: 4", "batch_size: 8"),
        ("exchanges: 2", "exchanges: 3, wire: int8"), ("deadline: 60", "deadline: 50"),
    )  # fmt: skip
    with running(made) as peers:
        wait_for(made, "met")
        outcome = fedpeer("update", "new.yaml", "--in", "fed")
        assert outcome.code == 0, outcome.err
        assert "Sent to: " in outcome.out
        ended(made, peers)
    judge(made, 1, 60)
    assert state_in(made / "peer1" / "peer1.yaml").s_k.numel() > 0  # the state now contains momentum
    rewritten(("rounds: 60", "rounds: 70"), ("wire: int8", "protocol: push-pull"))
    assert fedpeer("update", "new.yaml", "--in", "fed").code == 0
    with running(made) as peers:
        ended(made, peers)
    judge(made, 2, 70)


@pytest.mark.slow
def test_who_joins_after_an_update_learns_with_the_others_and_copies_nothing(fedpeer: Fedpeer) -> None:
    """The newest contract and the model that the federation starts from come with the admission."""
    Path("models").mkdir()
    save_file({"hidden1.weight": torch.ones(4, 64), "hidden1.bias": torch.ones(4)}, "models/first.safetensors")
    folder = federation(fedpeer, 2, 'start: "file:models/first.safetensors", ', rounds=8)
    rewritten(("rounds: 8", "rounds: 12"), ("exchanges: 2", "exchanges: 3, wire: int8"))
    shutil.copytree("models", "elsewhere/models")
    Path("new.yaml").rename("elsewhere/new.yaml")
    updated = fedpeer("update", "elsewhere/new.yaml", "--in", "fed")
    assert updated.code == 0, updated.err
    port = free_ports(1)
    with inviting(folder, "--address", f"https://127.0.0.1:{port}", "--listen", "127.0.0.1:0") as (token, at):
        joined = fedpeer("join", token, "--data", "simulation:1", "--folder", str(folder / "peer5"))
        assert joined.code == 0, joined.err
        at.communicate(timeout=PATIENCE)
    assert json.loads((folder / "peer5" / "contract.json").read_bytes())["number"] == 1
    assert (folder / "peer5" / "models" / "first.safetensors").read_bytes() == Path(
        "models/first.safetensors"
    ).read_bytes()
    with running(folder) as peers:
        assert "peer5" in peers
        ended(folder, peers)
    judge(folder, 1, 12)
    assert not [line for peer in peers for line in lines(folder, peer) if line["what"] == "plan_mismatch"]


@pytest.mark.slow
def test_who_was_put_out_and_is_let_in_again_learns_on_with_its_old_state(fedpeer: Fedpeer) -> None:
    """A peer that is revoked and admitted again has a later incarnation, and all of its weight is accounted for."""
    folder = federation(fedpeer, 3, rounds=20)
    with running(folder) as peers:
        wait_for(folder, "round")
    address = json.loads((folder / "roster.json").read_bytes())["entries"][1]["address"]
    assert fedpeer("revoke", "peer2", "--in", "fed").code == 0
    (folder / "peer2").rename("before")
    with inviting(folder, "--address", address, "--listen", "127.0.0.1:0", peer="peer2") as (token, at):
        joined = fedpeer("join", token, "--data", "simulation:1", "--folder", str(folder / "peer2"))
        assert joined.code == 0, joined.err
        at.communicate(timeout=PATIENCE)
    shutil.copytree("before/peer2-state", folder / "peer2" / "peer2-state")
    with running(folder) as peers:
        ended(folder, peers)
    judge(folder, 0, 20)
    assert "admitted again" in str(next(line for line in lines(folder, "peer2") if line["what"] == "reborn")["text"])
    assert state_in(folder / "peer2" / "peer2.yaml").incarnation == 2


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize(
    ("learning", "gossip"),
    [("algorithm: fedavg,", ""), ("", "protocol: coordinator,"), ("mode: asynchronous,", "")],
    ids=["server", "coordinator", "asynchronous"],
)
def test_others_go_over_too(fedpeer: Fedpeer, learning: str, gossip: str) -> None:
    folder = federation(fedpeer, 3, f"{learning} ", f"{gossip} ")
    rewritten(("rounds: 40", "rounds: 60"), ("batch_size: 4", "batch_size: 8"), ("deadline: 60", "deadline: 50"))
    with running(folder) as peers:
        wait_for(folder, "met")
        assert fedpeer("update", "new.yaml", "--in", "fed").code == 0
        ended(folder, peers)
    judge(folder, 1, 60)


@pytest.mark.slow
@pytest.mark.soak
def test_partial_models_come_and_go_and_change_their_members(fedpeer: Fedpeer) -> None:
    """The slices of the other models stay, and the weight of a removed group is written off under its name."""
    folder = federation(fedpeer, 3)
    everyone = "  everyone: {neurons: {input: all, hidden1: 2, output: all}}\n"
    ward = "  ward: {neurons: {hidden1: 1}, members: [peer1, peer2]}\n"
    for number, (before, after, rounds) in enumerate(
        [
            (everyone, everyone + ward, 50),
            ("members: [peer1, peer2]", "members: [peer1, peer2, peer3]", 60),
            (ward.replace("peer2]", "peer2, peer3]"), "", 70),
        ],
        start=1,
    ):
        rewritten((before, after), (f"rounds: {rounds - 10}", f"rounds: {rounds}"))
        outcome = fedpeer("update", "new.yaml", "--in", "fed")
        assert outcome.code == 0, outcome.err
        with running(folder) as peers:
            ended(folder, peers)
        judge(folder, number, rounds)
        groups = set(state_in(folder / "peer1" / "peer1.yaml").groups)
        assert groups == ({"everyone", "ward"} if number < 3 else {"everyone"})
