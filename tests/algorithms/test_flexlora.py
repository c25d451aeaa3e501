"""FlexLoRA: the adapters' mean product, cut to their rank, against a dense singular value decomposition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedpeer.algorithms.buffered import Buffered
from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.losses import LOSSES
from fedpeer.algorithms.optimizers import OptimizerChoice
from fedpeer.algorithms.servers.fedavg import FedAvg
from fedpeer.algorithms.servers.flexlora import FlexLora, best_factors
from fedpeer.algorithms.servers.models import Local, ServerModel
from fedpeer.algorithms.training_context import TrainingContext
from fedpeer.config.building import coordinated_of
from fedpeer.config.settings import LearningSettings
from fedpeer.networks.lora import Adapted, adapt


def context(module: nn.Module) -> TrainingContext:
    return TrainingContext.of(module, LOSSES["cross-entropy"], OptimizerChoice("SGD", {"lr": 0.1}))


def adapted() -> nn.Module:
    module = nn.Sequential(nn.Embedding(9, 6), nn.Conv1d(4, 5, 3), nn.Flatten(), nn.Linear(20, 7), nn.Linear(7, 3))
    return adapt(module, ["0", "1", "3"], rank=2, scale=1.0)


def clients(n: int, count: int = 3) -> Local:
    drawn = torch.randn(count, n, generator=torch.Generator().manual_seed(5))
    return Local(drawn, torch.tensor([10, 30, 60])[:count])


def products(module: nn.Module, own: TrainingContext, x_n: Tensor) -> dict[str, Tensor]:
    module.load_state_dict(own.layout.unflatten(x_n), strict=False)
    return {
        name: layer.change().detach().double().flatten(1)
        for name, layer in module.named_modules()
        if isinstance(layer, Adapted)
    }


@pytest.mark.parametrize(
    ("module", "layers"),
    [(adapted(), 3), (adapt(nn.Embedding(2, 6), ["*"], rank=2, scale=1.0), 1)],  # of two tokens, which are the rank
)
def test_the_server_has_the_best_approximation_of_the_mean_product(module: nn.Module, layers: int) -> None:
    own = context(module)
    updates, server = clients(own.layout.n), ServerModel(torch.zeros(own.layout.n))
    found_n = FlexLora(own).close(server, updates).model_n
    plain_n = FedAvg(own).close(server, updates).model_n
    each = [products(module, own, x_n) for x_n in updates.model_n]
    found, plain = products(module, own, found_n), products(module, own, plain_n)
    assert len(found) == layers
    for name, product in found.items():
        mean = 0.1 * each[0][name] + 0.3 * each[1][name] + 0.6 * each[2][name]
        u, values, vt = torch.linalg.svd(mean, full_matrices=False)
        torch.testing.assert_close(product, (u[:, :2] * values[:2]) @ vt[:2], rtol=1e-4, atol=1e-5)
        assert (product - mean).norm() < (plain[name] - mean).norm()
    for tensor in own.layout.tensors:
        if "lora" not in tensor.name:
            torch.testing.assert_close(found_n[tensor.span], plain_n[tensor.span], rtol=0, atol=0)


def test_of_one_client_it_is_what_that_client_sent() -> None:
    left, right = torch.randn(1, 7, 2, dtype=torch.float64), torch.randn(1, 2, 5, dtype=torch.float64)
    found = best_factors(torch.ones(1, dtype=torch.float64), left, right)
    torch.testing.assert_close(found[0] @ found[1], left[0] @ right[0])


def test_more_clients_than_a_layer_has_rows_are_no_difficulty() -> None:
    left, right = torch.randn(9, 4, 2, dtype=torch.float64), torch.randn(9, 2, 3, dtype=torch.float64)
    shares = torch.full((9,), 1 / 9, dtype=torch.float64)
    u, values, vt = torch.linalg.svd((left @ right).mean(0), full_matrices=False)
    first, second = best_factors(shares, left, right)
    torch.testing.assert_close(first @ second, (u[:, :2] * values[:2]) @ vt[:2])


def test_dimensions_that_the_product_does_not_have_can_still_learn() -> None:
    """Where both factors are 0, neither ever has a gradient again: as at the start, the right one must not be 0."""
    drawn = torch.Generator().manual_seed(3)
    for kept in (0, 1, 2):
        left = torch.randn(3, 7, 4, dtype=torch.float64, generator=drawn)
        right = torch.randn(1, 4, 5, dtype=torch.float64, generator=drawn).expand(3, -1, -1)
        left[:, :, kept:] = 0  # as in the first round, where left factors are 0 and examples are few
        shares = torch.tensor([0.1, 0.3, 0.6], dtype=torch.float64)
        first, second = best_factors(shares, left, right)
        mean = (shares[:, None, None] * left @ right).sum(0)
        torch.testing.assert_close(first @ second, mean)
        assert torch.linalg.matrix_rank(second) == 4, "the gradient of the left factor is that of the product times it"
        assert torch.linalg.matrix_rank(first, atol=1e-6) == kept


def test_updates_of_adapters_belong_to_one_round() -> None:
    """The server turns the factors in each round, so a change of older factors means another change of its own."""
    with pytest.raises(AlgorithmError, match=r"an update of flexlora belongs to one round; .* fedala$"):
        Buffered(FlexLora(context(adapted())), "flexlora")


def test_without_adapters_it_says_what_to_write() -> None:
    with pytest.raises(AlgorithmError, match=r"flexlora needs a network with adapters; write learning.lora"):
        FlexLora(context(nn.Linear(3, 2)))


def test_other_rules_than_the_mean_are_refused() -> None:
    learning = LearningSettings.model_validate({"algorithm": "flexlora", "aggregation": "median"})
    with pytest.raises(AlgorithmError, match=r"flexlora does not average updates; write learning.aggregation: mean"):
        coordinated_of(learning.algorithm, learning, replace(context(adapted()), clients=5), nowhere)


def nowhere(name: str) -> Any:
    raise AssertionError(f"nobody asked for {name}")
