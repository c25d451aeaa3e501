"""One federation file, one seed, three engines: the same parameters.

Parity means: on the CPU, with values sent as float32 and no deadline missed, after five rounds
||a - b|| <= 1e-5 ||b|| for each peer. A loop and a batch over peers differ by some 2e-7 in this norm. For an algorithm
with a server, a and b are the peers' own models, and the server's model is compared by its loss on each peer's test
part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fedpeer.cli.simulate_options import options_of
from fedpeer.config.choice import parse_choice
from fedpeer.config.settings import EngineName
from fedpeer.runs.disk import read_json
from fedpeer.runs.folder import RunFolder
from fedpeer.sims.prepare import prepare_simulation
from fedpeer.sims.simulate import run_prepared
from tests.slicing.zoo import Normalized

pytestmark = pytest.mark.usefixtures("forked")

PARITY = 1e-5
ROUNDS = 5
PEERS = 4

SEMI_LOCAL = """
partial_models:
  everyone: {neurons: {input: all, hidden1: 6, output: all}}
  pair: {depends_on: [everyone], neurons: {hidden1: 3}, members: [peer1, peer2]}
  three: {depends_on: [everyone], neurons: {hidden1: 2}, members: [peer2, peer3, peer4]}
"""
EXACT = "{protocol: exact, deadline: 120, tick: 0.1}"
LED = "{protocol: coordinator, deadline: 120, tick: 0.1}"
#: The tolerance is far above PARITY, so that an engine with one exchange more or fewer differs.
PUSH_SUM = "{topology: ring, tolerance: 1e-3, deadline: 120, tick: 0.1}"
DIGITS = "dataset: digits, split: 'blocks:40,shuffle=true,test=50/swap:8+9,on=1-2'"
FEW = "{topology: ring, exchanges: 2, deadline: 120, tick: 0.1}"


def federation(
    gossip: str,
    learning: str = "",
    models: str = "",
    network: str = "mlp:64+12+10",
    data: str = DIGITS,
    peers: int = PEERS,
) -> str:
    """Return the text of a federation file; `learning` and `data` are pieces of a mapping on one line."""
    return f"""
name: parity
seed: 7
network: {{{network.replace(":", ": ", 1)}}}
{models}
learning: {{batch_size: 5, steps_between_averaging: 8, rounds: {ROUNDS}, {learning}}}
gossip: {gossip}
simulation: {{peers: {peers}, {data}}}
"""


CASES = {
    "exact": federation(EXACT),
    "push-sum": federation(PUSH_SUM),
    "push-pull": federation("{protocol: push-pull, exchanges: 3}"),
    # Four peers would have the mean after both exchanges, along whichever phases.
    "every second round, along phases": federation("{topology: one-peer-exponential, exchanges: 2, every: 2}", peers=5),
    "where a slice has drifted": federation("{topology: ring, exchanges: 3, drift: 0.04, deadline: 120, tick: 0.1}"),
    "drift of several groups, by samples": federation(
        "{topology: ring, exchanges: 2, drift: 0.05, deadline: 120, tick: 0.1}",
        "weights: samples",
        SEMI_LOCAL,
        data="dataset: digits, split: 'slicing:10'",
    ),
    "drift and the exact mean": federation("{protocol: exact, drift: 0.08, deadline: 120, tick: 0.1}"),
    "several groups": federation(FEW, models=SEMI_LOCAL),
    "momentum": federation(FEW, "optimizer: 'sgd,lr=0.1,momentum=0.9'"),
    "Adam": federation(FEW, "optimizer: 'adam,lr=0.01'"),
    "weights by samples": federation(
        "{topology: star, exchanges: 3}", "weights: samples", data="dataset: digits, split: 'slicing:10'"
    ),
    "single examples": federation(FEW, "batch_size: 1").replace("batch_size: 5, ", ""),
    "a coordinator": federation(LED),
    "a coordinator, every second round": federation("{protocol: coordinator, every: 2, deadline: 120, tick: 0.1}"),
    "coordinators of several groups": federation(
        LED, "weights: samples", SEMI_LOCAL, data="dataset: digits, split: 'slicing:10'"
    ),
    "a coordinator for one slice": federation(
        FEW,
        "weights: samples",
        SEMI_LOCAL.replace("members: [peer1, peer2]}", "members: [peer1, peer2], gossip: {protocol: coordinator}}"),
        data="dataset: digits, split: 'slicing:10'",
    ),
    "adapters over frozen layers": federation(
        FEW,
        "optimizer: 'adam,lr=0.01', lora: {rank: 3, targets: [hidden1]}, frozen: [output.weight]",
        "partial_models: {everyone: {neurons: {'*': all, '*.lora_A': 2}}, local: {parameters: ['*.bias']}}",
    ),
    "a graph that is drawn anew": federation(
        "{topology: 'el-local:1', exchanges: 2, deadline: 120, tick: 0.1}", "weights: restart"
    ),
    # By chance a peer receives nothing until it has 1/50 of its weight; others still wait for its shares.
    "a graph that leaves a peer out for a while": federation(
        "{topology: 'el-local:1', exchanges: 6, deadline: 120, tick: 0.1}"
    ).replace("seed: 7", "seed: 6"),
    "balanced classes": federation(
        FEW, "class_weights: balanced", data="dataset: digits, split: 'dirichlet:0.3', validation: 0.3"
    ),
    "associative": federation(
        FEW, network="associative: {hidden: 40}", data=f"dataset: 'associative,users={PEERS},train=20'"
    ),
}
#: Algorithms with a server: the method and further settings under `learning`.
SERVED = {
    "fedavg": ("fedavg", ""),
    "fedavg, some take part": ("fedavg", "participation: 0.6"),
    "fedavg, whoever goes too far is left out": ("fedavg", "farthest: 1.05"),
    "fedyogi, some take part": ("fedyogi,server_lr=0.01", "participation: 0.6"),
    "scaffold, some take part": ("scaffold", "participation: 0.6"),
    "apfl": ("apfl", ""),
    "fedala, some take part": ("fedala,passes=3", "participation: 0.6"),
    "fedper, all train": ("fedper", "participation: 0.6, everyone_trains: true"),
    "virtual": ("virtual", ""),
    "virtual, some take part": ("virtual", "participation: 0.6"),
    "mocha": ("mocha", ""),
    "mocha, some take part": ("mocha", "participation: 0.6"),
}
#: Algorithms without a server whose peers keep a state: how they average.
STATEFUL = {
    "noloco,gamma=0.9": "{protocol: push-pull, topology: complete, exchanges: 1, deadline: 120, tick: 0.1}",
    "choco-sgd,share=0.2": "{topology: ring, exchanges: 1, deadline: 120, tick: 0.1}",
    "dispfl,density=0.4": "{topology: ring, exchanges: 1, deadline: 120, tick: 0.1}",
}
#: Cases whose path other cases take too: with weights and groups, every second round, with some clients only, or in
#: `test_peers.py`.
ALSO_ELSEWHERE = {
    "exact", "where a slice has drifted", "single examples", "a coordinator",
    "fedavg", "fedavg, some take part", "apfl", "virtual", "mocha",
}  # fmt: skip
#: Networks with batch normalization: `learning.buffers`, and the method.
NORMALISED = {
    "buffers averaged": ("average", "full-averaging"),
    "buffers local": ("local", "full-averaging"),
    "fedbn": ("average", "fedbn"),
}


def mostly(cases: Iterable[str]) -> list[Any]:
    """Return the cases as parameters, and mark those that other cases cover as `soak`."""
    return [pytest.param(case, marks=[pytest.mark.soak] * (case in ALSO_ELSEWHERE)) for case in cases]


def parameters(file: Path, engine: EngineName, method: str) -> dict[str, Tensor]:
    """Return the parameters (n,) of each peer after the last round, as the run folder has them."""
    return played(file, engine, method)[0]


def played(
    file: Path, engine: EngineName, method: str, *, device: str = "cpu"
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Run a case; return the last row of measurements, and the parameters (n,) of each peer after the last round.

    Where examples are held out, those of the best round are beside these, by peer and round.
    """
    request = options_of({"compare": method, "engine": engine, "device": device, "workers": 1}, file)
    simulation = prepare_simulation(request)
    run = RunFolder.create(file.parent / engine / device, name="parity", settings=request.to_json(), environment={})
    run_prepared(simulation, run)
    last = run.rows()[-1]
    assert last["round"] == ROUNDS
    cell = str(parse_choice(method)), request.federation.seed
    found = {peer: _of_peer(run.models(*cell), peer) for peer in simulation.world.peers}
    if simulation.world.split.validates:
        best = run.models(*cell, best=True)
        rounds = read_json(best.with_name(f"{best.stem}-rounds.json"))
        found |= {f"{peer}, {each['round']}": _of_peer(best, peer) for peer, each in rounds.items()}
    return found, last


def _of_peer(models: Path, peer: str) -> Tensor:
    found = sorted(load_file(models).items())
    return torch.cat([value.reshape(-1) for name, value in found if name.startswith(f"{peer}/")])


def assert_the_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for peer, x_n in expected.items():
        assert float((found[peer] - x_n).norm() / x_n.norm()) <= PARITY, peer


def assert_the_same_scores(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Assert equal models, the server's too, on test and validation parts: losses differ where models do."""
    scores = [name for name in expected if name.endswith(("accuracy", "loss"))]
    assert scores == [name for name in found if name.endswith(("accuracy", "loss"))]
    for name in scores:
        assert found[name] == pytest.approx(expected[name], rel=PARITY), name


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Return the path of digits as images, for networks with channels."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    path = tmp_path / "digits.npz"
    np.savez(path, x=x.reshape(-1, 1, 8, 8).astype(np.float32) / 16, y=y)
    return path


Played = Callable[[str, EngineName], dict[str, Tensor]]


@pytest.fixture(scope="module")
def parameters_of(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Return a function that gives the parameters of a case by an engine, which runs it once for all tests."""

    @cache
    def found(case: str, engine: EngineName) -> dict[str, Tensor]:
        file = tmp_path_factory.mktemp("parity") / "federation.yaml"
        file.write_text(CASES[case])
        return parameters(file, engine, "full-averaging" if case == "momentum" else "partial-averaging")

    return found


@pytest.mark.slow
@pytest.mark.parametrize("case", mostly(CASES))
def test_whole_peers_in_virtual_time_give_the_numbers_of_the_vector_engine(case: str, parameters_of: Played) -> None:
    assert_the_same(parameters_of(case, "network"), parameters_of(case, "vector"))


@pytest.mark.slow
def test_several_labels_have_the_same_numbers_too(tmp_path: Path, images: Path) -> None:
    """The labels are the binary places of a digit, some of which are in the same example."""
    with np.load(images) as digits:
        marks_NC = digits["y"][:, None] >> np.arange(4) & 1
        np.savez(images, x=digits["x"].reshape(-1, 64), y=marks_NC.astype(bool))
    file = tmp_path / "federation.yaml"
    data = f"dataset: 'npz:{images}', normalise: none, split: 'blocks:40,shuffle=true,test=50'"
    file.write_text(federation(FEW, network="mlp:64+12+4", data=data))
    found, expected = (played(file, engine, "partial-averaging") for engine in ("network", "vector"))
    assert_the_same(found[0], expected[0])
    assert found[1]["accuracy"] == expected[1]["accuracy"]


@pytest.mark.slow
@pytest.mark.parametrize("case", NORMALISED)
def test_normalisation_has_the_same_numbers_too(case: str, tmp_path: Path, images: Path) -> None:
    file, (buffers, method) = tmp_path / "federation.yaml", NORMALISED[case]
    text = federation(
        FEW,
        f"start: torch, buffers: {buffers}",
        network="cnn: {channels: [4], hidden: [8], kernel: 3, norm: batch}",
        data=f"dataset: {{npz: {{path: {images}, kind: image}}}}, normalise: none, "
        "split: 'blocks:40,shuffle=true,test=50'",
    )
    file.write_text(text)
    assert_the_same(parameters(file, "network", method), parameters(file, "vector", method))


def normalised(input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    return Normalized(input_shape[0], outputs)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["network", pytest.param("processes", marks=pytest.mark.soak)])
def test_buffers_of_all_modules_stay_local_everywhere(where: EngineName, tmp_path: Path) -> None:
    file = tmp_path / "federation.yaml"
    text = federation(FEW, "start: torch, buffers: local").replace(
        "network: {mlp: 64+12+10}", "network: python:tests.sims.test_parity:normalised"
    )
    file.write_text(text)
    assert_the_same(parameters(file, where, "full-averaging"), parameters(file, "vector", "full-averaging"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        "associative",
        "a coordinator for one slice",  # beside slices without a coordinator
        pytest.param("several groups", marks=pytest.mark.soak),
        pytest.param("coordinators of several groups", marks=pytest.mark.soak),
        pytest.param("push-sum", marks=pytest.mark.soak),
        pytest.param("where a slice has drifted", marks=pytest.mark.soak),
        pytest.param("exact", marks=pytest.mark.soak),
        pytest.param("Adam", marks=pytest.mark.soak),
    ],
)
def test_real_processes_give_the_numbers_of_both(case: str, parameters_of: Played) -> None:
    found = parameters_of(case, "processes")
    assert_the_same(found, parameters_of(case, "vector"))
    assert_the_same(found, parameters_of(case, "network"))


@pytest.mark.slow
@pytest.mark.parametrize("where", ["network", pytest.param("processes", marks=pytest.mark.soak)])
def test_who_keeps_a_state_of_its_own_does_so_everywhere(where: EngineName, tmp_path: Path) -> None:
    """The models that peers predict with are the same; the estimates that they average are compared by their losses."""
    file, method = tmp_path / "federation.yaml", "pfedvem-gossip,head_lr=0.001"
    file.write_text(
        federation(
            "{topology: star, exchanges: 3, deadline: 120, tick: 0.1}", data="dataset: digits, split: 'slicing:10'"
        )
    )
    (found, last), (expected, last_expected) = (played(file, engine, method) for engine in (where, "vector"))
    assert_the_same(found, expected)
    assert "server_loss" in last
    assert_the_same_scores(last, last_expected)


@pytest.mark.slow
@pytest.mark.parametrize("method", STATEFUL)
@pytest.mark.parametrize("where", ["network", pytest.param("processes", marks=pytest.mark.soak)])
def test_who_keeps_a_state_beside_the_average_trains_alike_everywhere(
    where: EngineName, method: str, tmp_path: Path
) -> None:
    file = tmp_path / "federation.yaml"
    file.write_text(federation(STATEFUL[method]))
    assert_the_same(parameters(file, where, method), parameters(file, "vector", method))


def served(case: str, tmp_path: Path) -> tuple[Path, str]:
    """Write the file of a case; return it and its method."""
    file, (method, learning) = tmp_path / "federation.yaml", SERVED[case]
    gossip = "{deadline: 120, tick: 0.1}"
    if method == "mocha":  # linear models, and two classes
        path = _two_classes(tmp_path)
        data = f"dataset: {{npz: {{path: {path}}}}}, split: 'blocks:40,shuffle=true,test=50'"
        file.write_text(federation(gossip, f"loss: binary, {learning}", network="linear: {}", data=data))
    else:
        file.write_text(federation(gossip, learning, data=f"{DIGITS}, validation: 0.2"))
    return file, method


def _two_classes(folder: Path) -> Path:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    np.savez(folder / "digits.npz", x=x.astype(np.float32) / 16, y=(y < 5).astype(np.int64))
    return folder / "digits.npz"


@pytest.mark.slow
@pytest.mark.parametrize("case", mostly(SERVED))
def test_an_elected_coordinator_gives_the_numbers_of_a_server(case: str, tmp_path: Path) -> None:
    file, method = served(case, tmp_path)
    (found, last), (expected, last_expected) = (played(file, engine, method) for engine in ("network", "vector"))
    assert_the_same(found, expected)
    assert_the_same_scores(last, last_expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        "scaffold, some take part",
        pytest.param("virtual", marks=pytest.mark.soak),
        pytest.param("fedavg, some take part", marks=pytest.mark.soak),
        pytest.param("mocha", marks=pytest.mark.soak),
    ],
)
def test_real_processes_elect_one_with_the_same_numbers(case: str, tmp_path: Path) -> None:
    file, method = served(case, tmp_path)
    (found, last), (expected, last_expected) = (played(file, engine, method) for engine in ("processes", "vector"))
    assert_the_same(found, expected)
    assert_the_same_scores(last, last_expected)
