"""The paths without autograd against torch's autograd: `linear_stack` for any batch, `single_sample` compiled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import spectral_norm

from fedpeer.algorithms import linear_stack, single_sample
from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.losses import LOSSES, Loss
from fedpeer.networks.registry import mlp as build_mlp
from tests.algorithms.client_factory import CLOSE, batches, distance, in_torch, mlp, starts

CLOSED = [name for name, loss in LOSSES.items() if loss.delta is not None]
ACTIVATIONS = [nn.Sigmoid, nn.Tanh, nn.ReLU, nn.Identity]
LR = 0.1


def by_autograd(module: nn.Module, x_Bn: Tensor, block: Batches, loss: Loss) -> Tensor:
    rows = [
        in_torch(module, x_n, [block.peer(p)], loss, lambda ps: torch.optim.SGD(ps, lr=LR))
        for p, x_n in enumerate(x_Bn)
    ]
    return torch.stack(rows)


def trained(module: nn.Module, x_Bn: Tensor, block: Batches, loss: Loss) -> Tensor:
    layers = linear_stack.recognise(module)
    assert layers is not None
    x_Bn = x_Bn.clone()
    linear_stack.train_stack(layers, loss, x_Bn, block, LR)
    return x_Bn


def compiled(module: nn.Module, x_n: Tensor, one: Batches, loss: Loss) -> Tensor:
    layers = linear_stack.recognise(module)
    assert layers is not None
    x_n, inputs_SF = x_n.clone(), one.all_inputs().flatten(1)
    y_S = one.y.flatten(0, 1).numpy()
    single_sample.train_single_samples(
        single_sample.example_table(layers), loss, x_n.numpy(), inputs_SF.numpy(), y_S, LR
    )
    return x_n


def agree(found: Tensor, wanted: Tensor, start: Tensor) -> bool:
    """Return whether both are near in norm and far from their start, so that standing still is not agreement."""
    pairs = zip(found, wanted, start, strict=True)
    return all(distance(a, b) < CLOSE and distance(b, began) > 3e-3 for a, b, began in pairs)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("loss", CLOSED)
def test_a_block_takes_the_steps_of_autograd(loss: str, activation: type[nn.Module], bias: bool) -> None:
    module = mlp(activation=activation, bias=bias)
    x_Bn, block = starts(module, 3), batches(loss)
    assert agree(trained(module, x_Bn, block, LOSSES[loss]), by_autograd(module, x_Bn, block, LOSSES[loss]), x_Bn)


@pytest.mark.parametrize("loss", CLOSED)
def test_one_peer_takes_the_steps_of_its_block(loss: str) -> None:
    module = mlp()
    x_Bn, block = starts(module, 3), batches(loss)
    together = trained(module, x_Bn, block, LOSSES[loss])
    alone = torch.stack([trained(module, x_n, block.peer(p), LOSSES[loss]) for p, x_n in enumerate(x_Bn)])
    assert agree(alone, together, x_Bn)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("loss", CLOSED[1:])
def test_one_output_is_trained_like_several(loss: str, outputs: int) -> None:
    module = mlp((5, 4, outputs))
    x_Bn, block = starts(module, 2), batches(loss, peers=2, outputs=outputs)
    wanted = by_autograd(module, x_Bn, block, LOSSES[loss])
    assert agree(trained(module, x_Bn, block, LOSSES[loss]), wanted, x_Bn)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("loss", CLOSED)
def test_the_compiled_loop_takes_the_steps_of_autograd(loss: str, activation: type[nn.Module], bias: bool) -> None:
    module = mlp(activation=activation, bias=bias)
    x_Bn, block = starts(module, 2), batches(loss, peers=2, steps=6, size=1)
    found = torch.stack([compiled(module, x_n, block.peer(p), LOSSES[loss]) for p, x_n in enumerate(x_Bn)])
    assert agree(found, by_autograd(module, x_Bn, block, LOSSES[loss]), x_Bn)
    assert agree(found, trained(module, x_Bn, block, LOSSES[loss]), x_Bn)


@pytest.mark.parametrize("loss", CLOSED[1:])
def test_the_compiled_loop_trains_one_output(loss: str) -> None:
    module = mlp((5, 4, 1))
    x_1n, block = starts(module, 1), batches(loss, peers=1, steps=6, size=1, outputs=1)
    found = compiled(module, x_1n[0], block.peer(0), LOSSES[loss])[None]
    assert agree(found, by_autograd(module, x_1n, block, LOSSES[loss]), x_1n)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("features", [3, 21])
@pytest.mark.parametrize("loss", CLOSED)
def test_the_compiled_loop_passes_over_inputs_that_are_zero(loss: str, features: int, bias: bool) -> None:
    """The steps equal those of autograd, and weights of an input that is always zero do not change.

    Most inputs are zero, different ones in each example, and one example is all zeros.
    """
    module = mlp((features, 4, 3), bias=bias)
    x_1n, block = starts(module, 1), batches(loss, peers=1, steps=8, size=1, features=(features,))
    kept = torch.rand(block.x_NF.shape, generator=torch.Generator().manual_seed(1)) < 0.3
    kept[:, 1] = False
    kept[0] = False
    block = replace(block, x_NF=block.x_NF * kept, index=torch.arange(8)[None, :, None])
    assert 0 < np.count_nonzero(block.x_NF) <= single_sample.SPARSE_MOST * block.x_NF.numel()
    found = compiled(module, x_1n[0], block.peer(0), LOSSES[loss])[None]
    assert agree(found, by_autograd(module, x_1n, block, LOSSES[loss]), x_1n)
    layers = linear_stack.recognise(module)
    assert layers is not None
    unread = slice(layers[0].weight + 1, layers[0].weight + 4 * features, features)
    assert torch.equal(found[0, unread], x_1n[0, unread])


def test_images_are_flattened_first() -> None:
    module = build_mlp((2, 3), 4, layers=(6, 5, 4))
    x_Bn, block = starts(module, 2), batches(peers=2, features=(2, 3), outputs=4)
    wanted = by_autograd(module, x_Bn, block, LOSSES["cross-entropy"])
    assert agree(trained(module, x_Bn, block, LOSSES["cross-entropy"]), wanted, x_Bn)


def test_a_peers_own_view_of_the_inputs_is_trained_on() -> None:
    module, block = mlp(), batches()
    turned = replace(block, x_NF=block.x_NF.flip(1))
    x_Bn = starts(module, 3)
    found, wanted = (trained(module, x_Bn, each, LOSSES["cross-entropy"]) for each in (block, turned))
    assert distance(found, wanted) > 1e-3


@pytest.mark.parametrize("bias", [True, False])
def test_forward_is_the_module_itself(bias: bool) -> None:
    module = mlp(bias=bias)
    layers = linear_stack.recognise(module)
    assert layers is not None
    x_Bn, inputs = starts(module, 2), torch.randn(2, 8, 5)
    found = linear_stack.forward(layers, x_Bn, inputs)
    for x_n, seen, logits in zip(x_Bn, inputs, found, strict=True):
        torch.nn.utils.vector_to_parameters(x_n, module.parameters())
        torch.testing.assert_close(logits, module(seen))


def frozen() -> nn.Module:
    module = mlp()
    next(module.parameters()).requires_grad_(False)
    return module


def hooked() -> nn.Module:
    module = mlp()
    module[0].register_forward_hook(lambda module, inputs, output: 2 * output)
    return module


class Doubled(nn.Sequential):
    """A module that has the children of a stack and computes something else."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


@pytest.mark.parametrize(
    "module",
    [
        nn.Linear(3, 2),
        Doubled(nn.Linear(3, 2)),
        nn.Sequential(nn.Linear(3, 2), nn.Sigmoid()),
        nn.Sequential(nn.Linear(3, 4), nn.Linear(5, 2)),
        nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(3, 4), nn.Sigmoid(), nn.Tanh(), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(3, 4), nn.Flatten(), nn.Linear(4, 2)),
        nn.Sequential(nn.Sigmoid(), nn.Linear(3, 2)),
        nn.Sequential(*[nn.Linear(3, 3)] * 2),
        nn.Sequential(nn.Linear(3, 2)).double(),
        nn.Sequential(spectral_norm(nn.Linear(3, 2))),
        nn.Sequential(),
        frozen(),
        hooked(),
    ],
    ids=lambda module: type(module).__name__,
)
def test_what_is_not_such_a_stack_is_not_recognised(module: nn.Module) -> None:
    assert linear_stack.recognise(module) is None
