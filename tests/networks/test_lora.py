"""Adapters: they begin without effect, their sum with the layer is a plain layer again, and the layers stay frozen."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpeer.config.choice import Choice
from fedpeer.config.federation import Federation
from fedpeer.learning.groups import plan_for
from fedpeer.networks.lora import Adapted, ProjectedAttention, adapt, freeze, merged
from fedpeer.networks.registry import NetworkError
from fedpeer.slicing.flat import FlatLayout, trainable_copy
from fedpeer.slicing.trace import trace


class Encoder(nn.Module):
    """Tokens, two layers of torch's encoder, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1]).to(self.head.weight)
        seen = self.encoder(self.embed(tokens), mask, src_key_padding_mask=(tokens == 0).to(mask) * -30)
        result: Tensor = self.head(seen[:, -1])
        return result


def images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1, stride=2), nn.ReLU(), nn.Conv2d(6, 4, (1, 2), bias=False), nn.Flatten(),
        nn.Linear(24, 3),
    )  # fmt: skip


CASES: dict[str, tuple[Callable[[], nn.Module], list[str], Tensor]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)), ["0", "2"], torch.randn(4, 5)),
    "images": (images, ["*"], torch.randn(4, 2, 6, 5)),
    "encoder": (Encoder, ["embed", "encoder.layers.*"], torch.tensor([[3, 1, 4, 1], [5, 8, 2, 0]])),
    "alone": (lambda: nn.Linear(5, 3), [""], torch.randn(4, 5)),
}


def with_effect(module: nn.Module) -> nn.Module:
    """Fill all adapters with random numbers, so that they change something."""
    for name, each in module.named_parameters():
        if name.endswith("lora_B.weight"):
            nn.init.normal_(each)
    return module


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_adapters_begin_without_effect_and_are_the_sum_of_two_weights(name: str, training: bool) -> None:
    build, targets, x = CASES[name]
    plain = build().train(training)
    adapted = adapt(copy.deepcopy(plain), targets, rank=2, scale=0.5).train(training)
    torch.testing.assert_close(adapted(x), plain(x))
    answers = with_effect(adapted)(x)
    assert not torch.allclose(answers, plain(x))
    again = merged(adapted).train(training)
    torch.testing.assert_close(again(x), answers, rtol=1e-4, atol=1e-5)
    assert {name: each.shape for name, each in again.state_dict().items()} == {
        name: each.shape for name, each in plain.state_dict().items()
    }


def test_a_factor_s_product_is_what_is_added() -> None:
    layer = nn.Linear(5, 7)
    adapted = with_effect(Adapted(copy.deepcopy(layer), 2, 0.25))
    assert isinstance(adapted, Adapted)
    a, b = adapted.get_parameter("lora_A.weight"), adapted.get_parameter("lora_B.weight")
    torch.testing.assert_close(adapted.change(), 0.25 * b @ a)
    assert torch.linalg.matrix_rank(adapted.change().detach()) == 2


def test_only_the_factors_are_in_the_vector_and_a_copy_has_the_same_base() -> None:
    module = adapt(nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)), ["0"], 2, 1.0)
    assert [tensor.name for tensor in FlatLayout.of(module).tensors] == [
        "0.lora_A.weight", "0.lora_B.weight", "2.weight", "2.bias"
    ]  # fmt: skip
    twin = trainable_copy(module)
    assert twin.get_parameter("0.base.weight") is module.get_parameter("0.base.weight")
    assert twin.get_parameter("0.lora_A.weight") is not module.get_parameter("0.lora_A.weight")


def test_dimensions_of_the_rank_are_neurons_and_heads_stay_what_they_are() -> None:
    linear = trace(adapt(nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)), ["0"], 2, 1.0), torch.zeros(1, 5))
    assert {part.name: part.size for part in linear.parts} == {"input": 5, "0.lora_A": 2, "0.lora_B": 7, "2": 3}
    encoder = trace(adapt(Encoder(), ["encoder.layers.0.self_attn"], 2, 1.0), torch.ones(1, 4, dtype=torch.long))
    sizes = {part.name: part.size for part in encoder.parts}
    assert sizes["encoder.layers.0.self_attn.q_proj.lora_A"] == 2
    assert sizes["encoder.layers.0.self_attn.q_proj.lora_B"] == 2  # heads
    assert not [tensor for tensor in encoder.tensors if tensor.unsliceable]


def test_projections_take_masks_and_other_orders_as_torch_s_attention_does() -> None:
    attention = nn.MultiheadAttention(8, 2, kdim=5, vdim=3)
    query, key, value = torch.randn(4, 3, 8), torch.randn(6, 3, 5), torch.randn(6, 3, 3)
    masked = torch.rand(3 * 2, 4, 6) < 0.3
    padded = torch.tensor([[False] * 6, [False] * 4 + [True] * 2, [False] * 5 + [True]])
    both = {"attn_mask": masked, "key_padding_mask": padded}
    for own in ({}, {"attn_mask": masked}, {"key_padding_mask": padded}, both):
        expected, _ = attention(query, key, value, need_weights=False, **own)
        found, _ = ProjectedAttention(attention)(query, key, value, **own)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    alone = (query[:, 1], key[:, 1], value[:, 1])  # one example, without a batch
    for own in ({}, {"attn_mask": masked[2:4], "key_padding_mask": padded[1]}):
        expected, _ = attention(*alone, need_weights=False, **own)
        torch.testing.assert_close(ProjectedAttention(attention)(*alone, **own)[0], expected, rtol=1e-4, atol=1e-5)


class Tied(nn.Module):
    """A head that has the weight of the embedding, and a second one that is the same module."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.body, self.head = nn.Embedding(9, 5), nn.Linear(5, 5), nn.Linear(5, 9)
        self.head.weight = self.embed.weight
        self.again = self.body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.again(torch.tanh(self.body(self.embed(x)))).mean(1))
        return result


class TiedByFunction(Tied):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(self.body(self.embed(x)).mean(1), self.embed.weight, self.head.bias)


@pytest.mark.parametrize("build", [Tied, TiedByFunction])
@pytest.mark.parametrize("targets", [["embed"], ["head"], ["embed", "head"], ["*"], ["again"]])
def test_a_weight_of_several_layers_has_one_adapter_that_changes_it_for_all(
    build: Callable[[], nn.Module], targets: list[str]
) -> None:
    plain, x = build(), torch.tensor([[3, 1, 4], [5, 8, 2]])
    adapted = with_effect(adapt(copy.deepcopy(plain), targets, 2, 0.5))
    factors = [name for name, each in adapted.named_parameters() if each.requires_grad and "lora" in name]
    assert len(factors) == (4 if targets == ["*"] else 2)
    changed = {name: owner.change() for name, owner in adapted.named_modules() if isinstance(owner, Adapted)}
    expected = copy.deepcopy(plain)
    with torch.no_grad():
        for name, change in changed.items():
            expected.get_parameter(f"{name}.weight").add_(change)
    torch.testing.assert_close(adapted(x), expected(x))
    again = merged(adapted)
    torch.testing.assert_close(again(x), expected(x))
    assert {name for name, _ in again.named_parameters()} == {name for name, _ in plain.named_parameters()}


def test_tied_convolutions_keep_windows_of_their_own() -> None:
    class Windows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.near, self.wide = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(2, 3, 3, stride=2)
            self.wide.weight = self.near.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.near(x).mean((2, 3)) + self.wide(x).mean((2, 3))
            return result

    adapted, x = with_effect(adapt(Windows(), ["near"], 2, 0.5)), torch.randn(4, 2, 7, 7)
    torch.testing.assert_close(adapted(x), merged(adapted)(x), rtol=1e-4, atol=1e-5)


def test_the_factors_of_a_tied_weight_are_averaged_whole() -> None:
    network = trace(adapt(Tied(), ["embed"], 2, 1.0), torch.ones(1, 3, dtype=torch.long))
    shared = [tensor.name for tensor in network.tensors if "it is the same tensor as" in tensor.unsliceable]
    assert {"embed.lora_A.weight", "embed.lora_B.weight"} < set(shared)
    federation = Federation.model_validate({"partial_models": {"everyone": {"neurons": "all"}}})
    [group] = plan_for(federation, network, ["a", "b"], Choice("partial-averaging")).groups
    assert group.length == network.n


def test_a_tied_parameter_is_frozen_by_each_of_its_names() -> None:
    module = Tied()
    freeze(module, ["head.weight", "again"])
    assert [name for name, each in module.named_parameters() if each.requires_grad] == ["head.bias"]


@pytest.mark.parametrize(
    ("targets", "rank", "message"),
    [
        (["nope"], 2, r'targets: no layer that can have an adapter is named "nope"; there are 0, 2'),
        (["0"], 6, r"rank = 6 is larger than the rank of 0, 5"),
    ],
)
def test_a_mistake_names_the_setting_and_the_way_out(targets: list[str], rank: int, message: str) -> None:
    with pytest.raises(NetworkError, match=message):
        adapt(nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)), targets, rank, 1.0)
    with pytest.raises(NetworkError, match="in groups"):
        adapt(nn.Sequential(nn.Conv2d(4, 4, 3, groups=2)), ["0"], 1, 1.0)


def test_parameters_are_frozen_by_name_by_module_and_by_pattern() -> None:
    module = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
    freeze(module, ["0", "*.bias"])
    assert [name for name, each in module.named_parameters() if each.requires_grad] == ["2.weight"]
    with pytest.raises(NetworkError, match=r'learning.frozen: no parameter is named "nope"; there are 0.weight'):
        freeze(module, ["nope"])
    with pytest.raises(NetworkError, match=r'no parameter is named "2.weigth"; did you mean "2.weight"\?'):
        freeze(module, ["2.weigth"])


def test_weights_that_are_computed_anew_have_no_adapter_and_are_not_taken_for_one_another() -> None:
    """A parametrization makes another tensor at each access, which may have the memory address of the previous one."""
    module = nn.Sequential(*(nn.Linear(4, 4) for _ in range(8)))
    for layer in list(module)[:7]:
        nn.utils.parametrizations.weight_norm(layer)
    with pytest.raises(NetworkError, match="0 computes its weight from other parameters"):
        adapt(module, ["*"], 2, 1.0)
    adapted = adapt(module, ["7"], 2, 1.0)
    assert [isinstance(layer, Adapted) for layer in adapted.children()] == [False] * 7 + [True]


def test_an_embedding_that_computes_something_else_has_no_adapter() -> None:
    class Scaled(nn.Embedding):
        def forward(self, input: Tensor) -> Tensor:
            return 4 * super().forward(input)

    module = nn.Sequential(Scaled(9, 6), nn.Linear(6, 9, bias=False))
    with pytest.raises(NetworkError, match="0 is a Scaled, which computes something else"):
        adapt(module, ["0"], 2, 1.0)
    module[1].weight = module[0].weight
    with pytest.raises(NetworkError, match="0 is a Scaled, which computes something else"):
        adapt(module, ["1"], 2, 1.0)


def test_an_adapted_layer_has_the_attributes_of_the_layer() -> None:
    adapted: Any = adapt(nn.Conv2d(2, 3, 3, padding=1), [""], 2, 1.0)
    assert (adapted.out_channels, adapted.padding) == (3, (1, 1))
    assert copy.deepcopy(adapted).out_channels == 3
    with pytest.raises(AttributeError, match="out_features"):
        _ = adapted.out_features
