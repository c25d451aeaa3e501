"""CPU against CUDA: the same federation and seed give the same parameters within 1e-4. Run by `make gpu`."""

from __future__ import annotations

import copy
import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.losses import LOSSES
from fedpeer.algorithms.optimizers import OptimizerChoice
from fedpeer.algorithms.precision import unrounded
from fedpeer.algorithms.steppers import Stepper, build_stepper
from fedpeer.config.choice import parse_choice
from fedpeer.data.dataset import Dataset
from fedpeer.data.own.code import imported
from fedpeer.learning.holdings import load_dataset
from fedpeer.networks.cnn import CNN
from fedpeer.peer.node.trainer import LocalTrainer
from fedpeer.sims.peers import local_tasks
from fedpeer.sims.world import World, build_world
from fedpeer.slicing.flat import FlatLayout
from tests.sims import test_parity
from tests.sims.worlds import engine, federation, relative, same_bits, world

CUDA = "cuda"
CLOSE = 1e-4

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


def digits(kind: Any) -> Dataset:
    found = load_dataset(federation().simulation.dataset)
    shape = {"features": (-1, 64), "image": (-1, 1, 8, 8), "tokens": (-1, 64)}[kind]
    x = found.x.reshape(shape)
    return dataclasses.replace(found, x=(x * 16).astype("int64") if kind == "tokens" else x, input_kind=kind)


def assert_the_same(made: World, method: str, rounds: int = 3) -> None:
    """Assert that a device gives the CPU's parameters and scores, and goes on from a snapshot with the same bits."""
    with engine(made, method) as there, engine(made, method, device=CUDA) as here:
        for number in range(rounds):
            if number == rounds - 1 and method != "global":
                tensors, state = here.snapshot()
                kept = {name: value.clone() for name, value in tensors.items()}
            there.step()
            here.step()
        assert relative(here.x_Pn.cpu(), there.x_Pn) < CLOSE
        np.testing.assert_allclose(here.evaluate(), there.evaluate(), rtol=1e-3, atol=0.021)  # one of 50 digits
        assert [loss for _, loss in here.evaluate()] == pytest.approx([loss for _, loss in there.evaluate()], rel=1e-3)
        if method == "global":
            return
        last: Tensor = here.x_Pn.clone()
        with engine(made, method, device=CUDA) as resumed:
            resumed.restore(kept, state)
            resumed.step()
            assert relative(resumed.x_Pn.cpu(), last.cpu()) < 1e-6


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("features", {}),
        ("features", {"learning__batch_size": 1}),
        ("features", {"learning__optimizer": "adam,lr=0.01"}),
        ("features", {"simulation__split": "blocks:40,shuffle=true,test=50/permutations:2"}),
        ("image", {"network": "cnn:4,hidden=8,kernel=3"}),
        ("image", {"network": "cnn:4+6,hidden=8,kernel=5", "learning__optimizer": "sgd,lr=0.1,momentum=0.9"}),
        ("image", {"network": "cnn:4,hidden=8,kernel=3,norm=batch"}),
        ("tokens", {"network": "lstm:6,embedding=4"}),
    ],
    ids=["stack", "single sample", "adam", "view", "mapped", "momentum", "loop with buffers", "lstm"],
)
@pytest.mark.parametrize("method", ["local", "partial-averaging"])
def test_a_gpu_gives_the_cpus_numbers(kind: str, settings: dict[str, Any], method: str) -> None:
    assert_the_same(build_world(federation(**settings), digits(kind), 0), method)


@pytest.mark.parametrize("case", test_parity.CASES)
def test_all_ways_of_averaging_have_the_cpus_numbers(case: str, tmp_path: Path) -> None:
    file = tmp_path / "federation.yaml"
    file.write_text(test_parity.CASES[case])
    method = "full-averaging" if case == "momentum" else "partial-averaging"
    (expected, there), (found, here) = (test_parity.played(file, "vector", method, device=d) for d in ("cpu", CUDA))
    for peer, x_n in expected.items():
        assert float((found[peer] - x_n).norm() / x_n.norm()) < CLOSE, peer
    assert here["loss"] == pytest.approx(there["loss"], rel=1e-3)


ALGORITHMS = (
    "global", "full-averaging", "d-psgd", "dfedavgm", "dfedalt", "dfedsalt", "gradient-tracking",
    "noloco", "choco-sgd", "dispfl",
    "pfedvem-gossip,head_lr=0.001",
    "fedavg", "fedprox", "scaffold",
    "fedavgm", "fedadagrad:0.01", "fedadam:0.01", "fedyogi:0.01",
    "fedper", "fedrep", "ifca", "per-fedavg", "pfedme", "ditto", "apfl", "fedala", "pfedbayes", "virtual", "pfedvem",
)  # fmt: skip


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_all_algorithms_have_the_cpus_numbers(algorithm: str) -> None:
    assert_the_same(world(federation(learning__participation=1.0 if "gossip" in algorithm else 0.5)), algorithm)


@pytest.mark.parametrize("rule", ["median", "trimmed-mean,liars=1", "krum,liars=1", "geometric-median"])
def test_robust_rules_have_the_cpus_numbers(rule: str) -> None:
    assert_the_same(world(federation(learning__algorithm="fedavg", learning__aggregation=rule)), "fedavg")


@pytest.mark.parametrize("algorithm", ["mocha", "cocoa", "minibatch-sdca", "minibatch-sgd"])
def test_dual_solvers_have_the_cpus_numbers(algorithm: str) -> None:
    found = digits("features")
    two = dataclasses.replace(found, y=np.less(found.y, 5).astype("int64"), classes=("low", "high"))
    settings = {"network": "linear", "learning__loss": "binary", "simulation__split": "blocks:40,shuffle=true,test=50"}
    assert_the_same(build_world(federation(**settings), two, 0), algorithm)


def test_many_peers_average_by_a_sparse_matrix() -> None:
    """The graph is a star, whose matrix is not its own transpose."""
    split = "blocks:12,shuffle=true,test=20"
    settings = {"learning__steps_between_averaging": 2, "gossip__topology": "star", "gossip__exchanges": 1}
    assert_the_same(world(federation(simulation__peers=60, simulation__split=split, **settings)), "partial-averaging")


def images_of(peers: int) -> tuple[Tensor, Tensor]:
    """Return images (peers, 50, 3, 32, 32) and classes, large enough for all of cuDNN's kernels."""
    drawn = torch.Generator().manual_seed(0)
    return torch.randn(peers, 50, 3, 32, 32, generator=drawn), torch.randint(10, (peers, 50), generator=drawn)


def network() -> nn.Module:
    torch.manual_seed(0)
    return CNN((3, 32, 32), 10, channels=(8, 16), hidden=(), kernel=5, norm="none", activation="relu", dropout=0.0)


@torch.no_grad()
def test_convolutions_are_those_of_float32() -> None:
    images, module = images_of(1)[0][0], network()
    expected, on_gpu = module.double()(images.double()), module.float().to(CUDA)
    with unrounded(CUDA):
        found = on_gpu(images.to(CUDA)).double().cpu()
    rounded = on_gpu(images.to(CUDA)).double().cpu()
    assert float((found - expected).norm() / expected.norm()) < 1e-5
    assert float((rounded - expected).norm() / expected.norm()) > 1e-4, "else nothing has to be done"


def test_a_block_has_float32s_gradients_and_the_same_bits_again() -> None:
    """A block of peers beside the loop on a CPU, in float64, for two of them."""
    peers, module = 64, network()
    layout, loss = FlatLayout.of(module), LOSSES["cross-entropy"]
    images, classes = images_of(peers)
    start_n = layout.flatten(module)
    start_Bn = torch.stack([start_n * (1 + 0.01 * peer) for peer in range(peers)])
    places = torch.arange(peers * 50).view(peers, 1, 50)

    def stepped(stepper: Stepper, first: int, device: str, dtype: torch.dtype) -> Tensor:
        x_Bn = start_Bn[:first].to(device, dtype).clone()
        x_NF = images.flatten(0, 1).to(device, dtype)
        work = Batches(x_NF, places[:first].to(device), classes[:first, None].to(device))
        stepper.train(x_Bn, x_Bn.new_zeros(first, 0), True, work, range(first))
        return x_Bn.cpu()

    one = OptimizerChoice("SGD", {"lr": 1.0})
    block = build_stepper("mapped", copy.deepcopy(module).to(CUDA), layout, loss, one)
    with unrounded(CUDA):
        found, again = (stepped(block, peers, CUDA, torch.float32) for _ in range(2))
    expected = stepped(build_stepper("loop", module.double(), layout, loss, one), 2, "cpu", torch.float64)
    assert same_bits(found, again)
    change, right = found[:2].double() - start_Bn[:2].double(), expected - start_Bn[:2].double()
    assert relative(change, right) < 1e-5


def test_a_peer_of_its_own_trains_there() -> None:
    made = build_world(federation(network="cnn:4,hidden=8,kernel=3"), digits("image"), 0)
    method, found = parse_choice("partial-averaging"), []
    for device in ("cpu", CUDA):
        trainer = LocalTrainer(local_tasks(made, device)["peer1"], method, imported, made.peers)
        x_n, s_k = trainer.start(), torch.zeros(trainer.state_size)
        for number in (1, 2):
            x_n, s_k = trainer.train(number, x_n, s_k, number == 1)
        found.append((x_n, trainer.evaluate(x_n)))
    (here_n, here), (there_n, there) = found
    assert relative(here_n[None], there_n[None]) < CLOSE
    assert here == pytest.approx(there, rel=1e-3)


@pytest.mark.parametrize("engine_name", ["vector", "processes"])
def test_the_command_trains_there(engine_name: str, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "fedpeer", "simulate", "--peers", "3", "--engine", engine_name, "--out", "runs"]
    settings = ["--rounds", "2", "--device", CUDA, "--compare", "partial-averaging"]
    subprocess.run([*words, *settings], cwd=tmp_path, check=True, timeout=300)
    (environment,) = (json.loads(path.read_text()) for path in tmp_path.glob("runs/*/environment.json"))
    assert (environment["device"], environment["device_name"]) == (CUDA, torch.cuda.get_device_name())
    (report,) = tmp_path.glob("runs/*/report.html")
    assert "Confusion matrix" in report.read_text(encoding="utf-8"), "the last models answer there, too"
