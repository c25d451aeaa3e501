"""Peers' states on the disk: pages are returned to the system, and checkpoints hold what changed.

Clients that never trained have no state there.
"""

from __future__ import annotations

import json
import mmap
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from benchmarks.watched import watched
from fedpeer.config.choice import parse_choice
from fedpeer.runs.disk import RunError
from fedpeer.runs.folder import RunFolder
from fedpeer.sims.footprint import footprint, memory_of
from fedpeer.sims.prepare import prepare_simulation
from fedpeer.sims.record import begin_record
from fedpeer.sims.request import SimulationRequest
from fedpeer.sims.simulate import run_prepared
from fedpeer.sims.vector import resident
from fedpeer.sims.vector.workspace import Handle, Workspace, WorkspacePart, on_disk
from tests.forked import python
from tests.sims.test_served_engine import drawn, played
from tests.sims.worlds import engine, federation, same_bits, world

WIDE = {"network": "mlp:64+400+10", "simulation__peers": 12, "learning__participation": 0.17}


def stored(leaf: Handle) -> int:
    """Return the bytes that the file of a leaf takes on the disk."""
    return Path(leaf.path).stat().st_blocks * 512


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_who_never_trained_takes_no_room(tmp_path: Path, algorithm: str) -> None:
    made = world(federation(**WIDE))
    row = 4 * made.layout.n
    with engine(made, algorithm, folder=tmp_path) as running:
        (files,) = running._handles.tree["states"]
        assert stored(files.clients[0].model_n) == 0
        assert row <= stored(files.first.model_n) < 1.2 * row, "all begin alike"
        running.step()
        both = sum(stored(side.model_n) for side in files.clients)
        assert 2 * row <= both < 2.5 * row, "two have trained"
        running.evaluate()
        running.snapshot()
        assert sum(stored(side.model_n) for side in files.clients) == both, "looking takes no room"


def test_who_never_trained_is_what_it_began_with(tmp_path: Path) -> None:
    """Each client keeps its own number of examples, and its own start if it has one."""
    for own in ({"simulation__split": "slicing:10"}, {"learning__common_start": False}):
        made = world(federation(learning__participation=0.5, simulation__peers=4, **own))
        with engine(made, "fedper") as running:
            running.step()
            idle = [peer for peer in range(4) if peer not in drawn(made, 1)]
            first = running._session.states
            counts = first.first.examples[first.first_P[idle]].tolist()
            assert counts == [len(made.split.shares[peer].train_M) for peer in idle]
            common = made.federation.learning.common_start
            for peer in idle:
                assert torch.equal(running.x_Pn[peer], made.drawn("" if common else made.peers[peer]))


@pytest.mark.skipif(not hasattr(mmap, "MADV_DONTNEED"), reason="the system has no such call")
def test_pages_that_are_given_back_are_gone_from_the_process_and_whole_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident, "RESIDENT_MAX", 2**20)
    monkeypatch.setattr(resident, "EVERY_SECONDS", 0.001)
    nothing = WorkspacePart(torch.zeros(0, dtype=torch.int64), torch.zeros(0), (0,))
    x = torch.zeros(64, 2**18, device="meta")
    plain = Workspace((x, x), torch.ones(3, 2), nothing, nothing, nothing, None, {}, {})
    memory = on_disk(plain, tmp_path).open()
    x_Pn = memory.x[0]
    values_n = torch.arange(2**18, dtype=torch.float32)
    for peer, x_n in enumerate(x_Pn):
        x_n.copy_(values_n + peer)
    touched = mapped_bytes()
    assert touched > 64 * 2**20
    with resident.given_back(memory):
        deadline = time.monotonic() + 20
        while mapped_bytes() > touched - 60 * 2**20 and time.monotonic() < deadline:
            time.sleep(0.001)
        assert mapped_bytes() < touched - 60 * 2**20
        assert all(torch.equal(x_n, values_n + peer) for peer, x_n in enumerate(x_Pn))
        x_Pn[5] = 7
    assert bool((x_Pn[5] == 7).all())


def mapped_bytes() -> int:
    """Return the number of bytes of mapped files in this process's memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssFile")) * 1024


@pytest.mark.parametrize("algorithm", ["scaffold", "partial-averaging"])
def test_giving_pages_back_changes_no_bit(monkeypatch: pytest.MonkeyPatch, algorithm: str) -> None:
    """This runs in the main process; a worker does the same, but its constants cannot be patched by a test."""
    made = world(federation(learning__participation=0.5))

    def found() -> Tensor:
        if algorithm == "scaffold":
            return played(made, algorithm)[0]
        with engine(made, algorithm) as running:
            for _ in range(3):
                running.step()
                running.disagreement()
            return running.x_Pn.clone()

    kept = found()
    monkeypatch.setattr(resident, "RESIDENT_MAX", 0)
    monkeypatch.setattr(resident, "EVERY_SECONDS", 0.0001)
    assert same_bits(kept, found())


def test_what_a_run_takes_on_the_disk_is_foretold_and_refused_where_there_is_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All clients train, so the numbers are certain.

    Each client needs the two sides of its state and its update, and the models are stored once more.
    """
    options = SimulationRequest(
        federation=federation(network="mlp:64+400+10", simulation__peers=12),
        methods=(parse_choice("scaffold"), parse_choice("full-averaging")),
        device="cpu",
        workers=1,
    )
    simulation = prepare_simulation(options)
    model = 4 * simulation.world.layout.n
    found = footprint(simulation)
    assert found is not None
    assert found.states == 12 * (2 * 2 * model + 2 * model + model), "SCAFFOLD's model and control variate, twice"
    assert found.disk == found.states + 2 * 12 * 2 * model + 2 * 12 * model
    validating = federation(network="mlp:64+400+10", simulation__peers=12, simulation__validation=0.2)
    with_best = footprint(prepare_simulation(replace(options, federation=validating)))
    assert with_best is not None
    assert with_best.memory == found.memory + 12 * model, "the best models so far"
    assert with_best.disk == found.disk + 2 * 12 * model + 12 * model, "those of each method, and one version more"
    with engine(simulation.world, "scaffold", folder=tmp_path) as running:
        for _ in range(2):  # the second side is written by the second round
            running.step()
        assert bool(running.x_Pn.isfinite().all())
        stored_bytes = sum(
            file.stat().st_blocks * 512
            for file in next(tmp_path.glob("work-*")).iterdir()
            if file.name.startswith(("x.", "states."))
        )
        assert stored_bytes == pytest.approx(found.states, rel=0.2), "a server and first states beside it"
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=found.disk - 1))
    with pytest.raises(RunError, match=r"needs up to .* on the disk, and .*runs has .* free; choose another folder"):
        begin_record(tmp_path / "runs", simulation, "fedpeer simulate")
    assert not (tmp_path / "runs").exists(), "a mistake leaves nothing behind"


OUTER: dict[str, dict[str, Any]] = {
    "none": {},
    "outer steps": {"learning__outer": {"nesterov": {"lr": 0.7, "momentum": 0.9}}},
    "outer steps of the optimizer's state": {"learning__outer": "sgd", "learning__optimizer": "adam,lr=0.01"},
    "starts of their own": {"learning__outer": "sgd", "learning__common_start": False},
}


@pytest.mark.parametrize("case", OUTER)
def test_states_between_peers_are_foretold_with_what_outer_steps_keep(tmp_path: Path, case: str) -> None:
    options = SimulationRequest(
        federation=federation(network="mlp:64+400+10", simulation__peers=12, **OUTER[case]),
        methods=(parse_choice("full-averaging"),),
        device="cpu",
        workers=1,
    )
    simulation = prepare_simulation(options)
    found = footprint(simulation)
    assert found is not None
    with engine(simulation.world, "full-averaging", folder=tmp_path) as running:
        for _ in range(2):
            running.step()
        files = next(tmp_path.glob("work-*")).iterdir()
        stored_bytes = sum(file.stat().st_blocks * 512 for file in files if file.name.startswith(("x.", "states.")))
        tensors, _ = running.snapshot()
        saved = sum(each.numel() * each.element_size() for each in tensors.values())
    assert stored_bytes == pytest.approx(found.states, rel=0.2), "a first state that all share is beside it"
    assert found.disk - found.states - 12 * 4 * simulation.world.layout.n == pytest.approx(2 * saved, rel=0.01)


def test_memory_is_foretold_as_it_was_measured() -> None:
    """The measurements are the cells of docs/results/learning-scale.md."""
    path = Path(__file__).parents[2] / "docs" / "results" / "learning-scale.json"
    for row in json.loads(path.read_text(encoding="utf-8")):
        states = sum(row["parts"][part] for part in ("parameters", "peers' states and updates"))
        many = row["peers"] == 10_000  # their states are given back at the end of a round, so this is only a bound
        told = memory_of(row["peers"], workers=2, inputs=70_000 * 784 * 4, states=10**12 if many else states)
        if many:
            assert told >= row["peak_bytes"], row["line"]
        else:
            assert told == pytest.approx(row["peak_bytes"], rel=0.2), (row["line"], row["peers"])


@pytest.mark.soak  # minutes: 2,000 peers of 266,610 parameters, 2.1 GB of models at the end
@pytest.mark.parametrize("algorithm", ["fedavg", "fedper"])
def test_two_thousand_peers_stay_within_a_fifth_of_what_ten_thousand_may_take(tmp_path: Path, algorithm: str) -> None:
    """8 GiB for 10,000 peers means 1.6 GiB for all processes of this run, at most half a GiB of it mapped files."""
    config = tmp_path / "many.yaml"
    config.write_text(
        "network: mlp:784+300+100+10\n"
        "learning: {batch_size: 6, steps_between_averaging: pass, rounds: 5, evaluate_every: 5, participation: 0.05}\n"
        "simulation: {dataset: mnist, split: 'blocks:6,test=20,shuffle=true'}\n"
    )
    command = ["simulate", "--config", str(config), "--peers", "2000", "--compare", algorithm, "--quiet", "--json"]
    found = watched([sys.executable, "-m", "fedpeer", *command, "--out", str(tmp_path / "runs")], private=1.0)
    assert found.status == 0
    assert found.peak < 1.6 * 2**30
    assert found.files < 0.5 * 2**30


ASKED = SimulationRequest(
    federation=federation(**WIDE | {"learning__rounds": 6, "learning__evaluate_every": 2}), device="cpu", workers=1
)
#: Script that runs until the third round and its checkpoint are done, and then kills itself.
KILLED = """
import json, os, signal, sys
from pathlib import Path
import fedpeer.sims.simulate as module
from fedpeer.runs.folder import RunFolder
from fedpeer.sims.prepare import prepare_simulation
from fedpeer.sims.request import SimulationRequest

module.CHECKPOINT_SECONDS, module.CHECKPOINT_SHARE = 0.0, 0.0

class Dying(RunFolder):
    def save_checkpoint(self, tensors, state):
        super().save_checkpoint(tensors, state)
        if state["recorded"] == 3:
            os.kill(os.getpid(), signal.SIGKILL)

asked = SimulationRequest.from_json(json.loads(sys.argv[1]))
module.run_prepared(prepare_simulation(asked), Dying.open(Path(sys.argv[2]), "last"))
"""


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["scaffold", pytest.param("fedper", marks=pytest.mark.soak)])
def test_killed_and_resumed_it_gives_the_numbers_of_an_uninterrupted_run(tmp_path: Path, algorithm: str) -> None:
    from tests.sims.test_simulate import folder, measured

    options = SimulationRequest.from_json(ASKED.to_json() | {"methods": [algorithm]})
    whole, killed = folder(tmp_path / "whole", options), folder(tmp_path / "killed", options)
    killed.finish({}, "interrupted")
    run_prepared(prepare_simulation(options), whole)
    ended = subprocess.run([*python(), "-c", KILLED, json.dumps(options.to_json()), str(tmp_path / "killed")])
    assert ended.returncode == -signal.SIGKILL
    assert list(killed.path.glob("work-*")), "what it had on the disk is left"
    with safe_open(killed.path / "checkpoint.safetensors", framework="numpy") as file:
        held = {name.split()[1] for name in file.keys() if name.startswith("client ")}  # noqa: SIM118
    made = world(options.federation)
    assert held == {str(peer) for number in (1, 2, 3) for peer in drawn(made, number)}, "those that have trained"
    assert len(held) < 12
    again = RunFolder.open(tmp_path / "killed", killed.id)
    run_prepared(prepare_simulation(options), again)
    assert measured(again) == measured(whole)
    names = [run.models(algorithm, 0) for run in (whole, again)]
    with safe_open(names[0], framework="pt") as one, safe_open(names[1], framework="pt") as other:
        assert set(one.keys()) == set(other.keys())
        for name in one.keys():  # noqa: SIM118
            assert torch.equal(one.get_tensor(name), other.get_tensor(name))
    assert not list(again.path.glob("work-*"))
