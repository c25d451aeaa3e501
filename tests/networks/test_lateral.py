"""Lateral connections against equation 4 written out, and their shared and private parts."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fedpeer.networks.bayesian import BayesianLayer, bayesian, drawn_noise, sampled, split_parameters
from fedpeer.networks.lateral import LateralMLP


def network(dropout: float = 0.0) -> LateralMLP:
    net = LateralMLP([4, 3, 5, 2], activation="relu", dropout=dropout).double()
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw, dtype=torch.float64))
    return net


def by_hand(net: LateralMLP, x: Tensor) -> Tensor:
    """Compute equation 4, one example and one unit at a time."""
    p = {name: tensor.tolist() for name, tensor in net.named_parameters()}
    rows = []
    for example in x.tolist():
        server = client = example
        for name in ("hidden1", "hidden2", "output"):
            least = -math.inf if name == "output" else 0.0
            of, at = f"client.{name}", range(len(server))
            through = [max(server[j] + p[f"{of}.shift.weight"][j], 0.0) for j in at]
            new_client, new_server = [], []
            for k in range(len(p[f"server.{name}.bias"])):
                lateral = sum(p[f"{of}.lateral.weight"][k][j] * through[j] for j in at)
                own = sum(p[f"{of}.own.weight"][k][j] * client[j] for j in at)
                new_client.append(max(own + p[f"{of}.gate.weight"][k] * lateral + p[f"{of}.own.bias"][k], least))
                z = sum(p[f"server.{name}.weight"][k][j] * server[j] for j in at)
                new_server.append(max(z + p[f"server.{name}.bias"][k], least))
            server, client = new_server, new_client
        rows.append(client)
    return torch.tensor(rows, dtype=torch.float64)


def example() -> Tensor:
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def test_the_prediction_is_equation_4() -> None:
    net = network()
    torch.testing.assert_close(net(example()), by_hand(net, example()))


def test_with_closed_gates_the_server_is_not_heard() -> None:
    net = network()
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if "gate" in name:
                parameter.zero_()
    own = [net.get_submodule(f"client.{name}.own") for name in ("hidden1", "hidden2", "output")]
    alone = nn.Sequential(own[0], nn.ReLU(), own[1], nn.ReLU(), own[2])
    torch.testing.assert_close(net(example()), alone(example()))


def test_the_server_does_not_hear_the_client() -> None:
    net = network()
    before = net.activations(example())[0]
    with torch.no_grad():
        for parameter in net.client.parameters():
            parameter.zero_()
    assert all(torch.equal(a, b) for a, b in zip(before, net.activations(example())[0], strict=True))


def test_all_of_it_can_be_gaussian_and_names_say_what_is_shared() -> None:
    net = network()
    gaussian = bayesian(net, estimator="flipout", sigma=1e-3)
    mu, rho = split_parameters(gaussian)
    assert list(mu) == list(rho) == [name for name, _ in net.named_parameters()]
    assert {name.partition(".")[0] for name in mu} == {"server", "client"}
    layers = [module for module in gaussian.modules() if isinstance(module, BayesianLayer)]
    assert len(layers) == 3 + 3 * 4
    noise = drawn_noise(torch.Generator().manual_seed(3))
    first, second = sampled(gaussian, example(), noise), sampled(gaussian, example(), noise)
    assert 0 < (first - net(example())).abs().max() < 0.5
    assert not torch.equal(first, second)


def test_dropout_stands_before_every_layer() -> None:
    """If all inputs are dropped, only the biases are left."""
    net = network(dropout=0.999999999)
    bias = {name: tensor.detach() for name, tensor in net.named_parameters()}
    server, client = net.train().activations(torch.ones(2, 4, dtype=torch.float64))
    torch.testing.assert_close(server[0], bias["server.hidden1.bias"].relu().expand(2, 3))
    torch.testing.assert_close(server[2], bias["server.output.bias"].expand(2, 2))
    layer = net.client["hidden1"]
    silent = layer(torch.zeros(2, 4, dtype=torch.float64), torch.zeros(2, 4, dtype=torch.float64)).relu()
    torch.testing.assert_close(client[0], silent)
    torch.testing.assert_close(net.eval()(example()), by_hand(net, example()))
