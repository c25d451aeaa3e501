"""The associative network in a federation: three methods, two engines, shared and local hidden units."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.optimizers import OptimizerError
from fedpeer.algorithms.registry import ALGORITHMS
from fedpeer.config.choice import Choice, ChoiceError, parse_choice
from fedpeer.config.federation import Federation
from fedpeer.networks.registry import NetworkError
from fedpeer.sims.network.engine import NetworkEngine
from fedpeer.sims.prepare import prepare_simulation
from fedpeer.sims.request import SimulationRequest
from fedpeer.sims.world import World
from tests.sims import worlds
from tests.sims.worlds import played, relative, same_bits

MODELS = {"everyone": {"neurons": {"input": "all", "hidden": 30, "output": "all"}}}


def federation(**settings: Any) -> Federation:
    """Return five peers, two of which know other completions; 50 visible, 40 hidden units, 30 of them shared."""
    base = {
        "network": "associative:40",
        "partial_models": MODELS,
        "learning": {"batch_size": 3, "steps_between_averaging": 2, "rounds": 3},
        "simulation": {"dataset": "associative,users=5", "peers": None, "split": None},
    }
    return worlds.federation(**{**base, **settings})


def world(**settings: Any) -> World:
    return worlds.world(federation(**settings))


def test_the_start_is_its_own_draw_and_common() -> None:
    made = world()
    assert made.federation.learning.start == Choice("torch")
    assert made.loss == "completion"
    x_n = made.start("peer1")
    assert torch.equal(x_n, made.start("peer2"))
    assert float(x_n.abs().max()) > 0.99
    assert float(x_n.abs().max()) <= 1
    assert str(world(network=None).federation.network) == "associative"


def test_local_hidden_units_keep_to_themselves_and_shared_ones_agree() -> None:
    made = world(gossip__protocol="exact")
    x_Pn = played(made, rounds=1, method="partial-averaging")
    alone_Pn = played(made, rounds=1, method="local")
    local = (made.network.out_part_n == 1) & (made.network.out_neuron_n >= 30)
    local |= (made.network.in_part_n == 1) & (made.network.in_neuron_n >= 30)
    at = torch.from_numpy(np.flatnonzero(local))
    assert len(at) == 2 * 10 * 50
    assert same_bits(x_Pn[:, at], alone_Pn[:, at]), "links of local hidden units, both ways"
    shared = torch.from_numpy(np.flatnonzero(~local))
    torch.testing.assert_close(x_Pn[:, shared], alone_Pn[:, shared].mean(0).expand(5, -1))
    assert not torch.equal(alone_Pn[0, shared], alone_Pn[2, shared])
    assert float(x_Pn.abs().max()) <= 1


@pytest.mark.parametrize("method", ["local", "partial-averaging", "full-averaging"])
def test_whole_peers_learn_what_the_vector_engine_learns(method: str) -> None:
    made = world()
    choice = parse_choice(method)
    nodes = NetworkEngine(made, choice)
    with worlds.engine(made, method) as vector, nodes:
        for _ in range(3):
            vector.step()
            nodes.step()
        assert relative(nodes.x_Pn, vector.x_Pn) <= 1e-5
        assert nodes.evaluate() == vector.evaluate()


def test_neither_workers_nor_blocks_nor_devices_change_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedpeer.algorithms import steppers

    made = world()
    expected = played(made)
    assert same_bits(played(made, workers=2), expected)
    assert same_bits(played(made, device="cpu:0"), expected), "one block of all"
    monkeypatch.setattr(steppers, "_BLOCKS_LEAST", 2)
    assert same_bits(played(made), expected)


def request(**settings: Any) -> SimulationRequest:
    method = parse_choice(settings.pop("method", "partial-averaging"))
    return SimulationRequest(federation=federation(**settings), methods=(method,), device="cpu", workers=1)


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"network": "mlp"}, ChoiceError, ["patterns to complete", "write network: associative"]),
        ({"learning__loss": "cross-entropy"}, ChoiceError, ["completion task", "choose completion"]),
        ({"learning__optimizer": "adam,lr=0.1"}, OptimizerError, ["Adam", "sgd,lr="]),
        ({"learning__optimizer": "sgd,lr=0.1,momentum=0.9"}, OptimizerError, ["SGD", "sgd,lr="]),
        ({"simulation__dataset": "digits"}, NetworkError, ["64 inputs", "10 outputs", "such as associative"]),
        (
            {"simulation__dataset": "digits", "network": "python:tests.experiments.test_associative:classifying"},
            ChoiceError,
            ["its own learning rule", "cross-entropy", "such as associative"],
        ),
    ],
    ids=str,
)
def test_what_does_not_go_with_it_is_refused(
    settings: dict[str, Any], error: type[Exception], words: list[str]
) -> None:
    models = MODELS if set(settings) & {"learning__loss", "learning__optimizer"} else {}
    with pytest.raises(error) as refusal:
        prepare_simulation(request(**{"partial_models": models, **settings}))
    assert all(re.search(re.escape(word), str(refusal.value)) for word in words), str(refusal.value)


class Classifying(torch.nn.Linear):
    """A classifier that claims to have a learning rule of its own."""

    def learn_(self, tensors: Any, patterns: Any, rate: float) -> None:
        raise AssertionError("nobody asks")


def classifying(input_shape: tuple[int, ...], outputs: int) -> torch.nn.Module:
    return Classifying(input_shape[0], outputs)


WITHOUT_GRADIENTS = (
    *("fedavg", "fedper", "ifca", "fedavgm", "fedadagrad", "fedadam", "fedyogi"),
    *("dfedavgm", "noloco", "choco-sgd"),
)
#: Words with which an algorithm that needs another kind of network rejects this one, with or without gradients.
ANOTHER_NETWORK = {
    **dict.fromkeys(("mocha", "cocoa", "minibatch-sdca", "minibatch-sgd"), "write network: linear"),
    "flexlora": "write learning.lora",
    "fedbn": "has no batch normalisation",
    "virtual-2019": "lateral-mlp",
}
TRAINING = [name for name in ALGORITHMS if name.split("-")[0] not in ("local", "partial", "full", "global")]


def refusal_of(method: str) -> str:
    with pytest.raises(AlgorithmError) as refusal:
        prepare_simulation(request(method=method, learning__steps_between_averaging=3))
    return str(refusal.value)


@pytest.mark.parametrize("method", WITHOUT_GRADIENTS)
def test_algorithms_that_need_no_gradients_run(method: str) -> None:
    prepare_simulation(request(method=method, learning__steps_between_averaging=3))


@pytest.mark.parametrize("method", [each for each in TRAINING if each not in {*WITHOUT_GRADIENTS, *ANOTHER_NETWORK}])
def test_algorithms_that_need_gradients_say_so(method: str) -> None:
    assert "its own learning rule" in refusal_of(method)


@pytest.mark.parametrize("method", ANOTHER_NETWORK)
def test_algorithms_that_need_another_kind_of_network_say_that_first(method: str) -> None:
    assert ANOTHER_NETWORK[method] in refusal_of(method)
