"""Correctness of tracing: the map's statements about a network are checked on the network itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import prune

from fedpeer.slicing.flat import FlatLayout
from fedpeer.slicing.models import SlicingError
from fedpeer.slicing.network import NetworkMap
from fedpeer.slicing.trace import trace
from tests.slicing.zoo import ZOO, Bilinear, Branching, Specimen


def made(name: str) -> tuple[Specimen, nn.Module, NetworkMap]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = ZOO[name].build().double().eval()
    return ZOO[name], module, trace(module, ZOO[name].example())


def output(module: nn.Module, network: NetworkMap, x_n: Tensor, example: Tensor) -> Tensor:
    result: Tensor = functional_call(module, FlatLayout.of(network).unflatten(x_n), (example,))
    return result


def drawn(n: int) -> Tensor:
    """Return (n,) different values, positive because they are also used as variances."""
    return 0.1 + torch.rand(n, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def exchanged(network: NetworkMap, x_n: Tensor, part: int, a: int, b: int) -> Tensor:
    """Return the vector (n,) with neurons a and b of a part exchanged, with all scalars that the map gives to them."""

    def other(part_n: np.ndarray, neuron_n: np.ndarray) -> np.ndarray:
        here = part_n == part
        return np.where(here & (neuron_n == a), b, np.where(here & (neuron_n == b), a, neuron_n))

    def order(out_neuron_n: np.ndarray, in_neuron_n: np.ndarray) -> np.ndarray:
        return np.lexsort(
            (network.place_n, in_neuron_n, network.in_part_n, out_neuron_n, network.out_part_n, network.tensor_n)
        )

    now = order(network.out_neuron_n, network.in_neuron_n)
    then = order(other(network.out_part_n, network.out_neuron_n), other(network.in_part_n, network.in_neuron_n))
    result_n = x_n.clone()
    result_n[torch.from_numpy(now)] = x_n[torch.from_numpy(then)]
    return result_n


@pytest.mark.parametrize("name", ZOO)
def test_the_parts_are_found(name: str) -> None:
    specimen, _, network = made(name)
    assert {part.name: part.size for part in network.parts} == specimen.parts
    assert not [tensor.name for tensor in network.tensors if tensor.unsliceable]
    assert network.parts[network.part("output")].name == list(specimen.parts)[-1]
    assert sum(part.size for part in network.parts) == sum(specimen.parts.values())


@pytest.mark.parametrize("name", ZOO)
def test_exchanging_two_hidden_neurons_with_all_that_is_theirs_changes_nothing(name: str) -> None:
    specimen, module, network = made(name)
    ends = {network.part("input"), network.part("output")}
    x_n, example = drawn(network.n), specimen.example()
    expected = output(module, network, x_n, example)
    for at, part in enumerate(network.parts):
        if at in ends or part.size == 1:
            continue
        for a, b in specimen.same:
            moved_n = exchanged(network, x_n, at, a % part.size, b % part.size)
            assert not torch.equal(moved_n, x_n), part.name
            torch.testing.assert_close(output(module, network, moved_n, example), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet", "densenet", "separable", "lstm", "by-hand", "siamese"])
def test_exchanging_two_outputs_exchanges_them(name: str) -> None:
    specimen, module, network = made(name)
    x_n, example = drawn(network.n), specimen.example()
    before = output(module, network, x_n, example)
    after = output(module, network, exchanged(network, x_n, network.part("output"), 0, 1), example)
    torch.testing.assert_close(after[:, [1, 0]], before[:, :2], rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_exchanging_two_inputs_is_exchanging_them_in_the_data() -> None:
    for name, dim in (("mlp", 1), ("cnn", 1), ("resnet", 1), ("states", 2), ("by-hand", 2)):
        specimen, module, network = made(name)
        x_n, example = drawn(network.n), specimen.example()
        swapped = example.clone()
        swapped.select(dim, 0).copy_(example.select(dim, 1))
        swapped.select(dim, 1).copy_(example.select(dim, 0))
        moved_n = exchanged(network, x_n, network.part("input"), 0, 1)
        expected = output(module, network, x_n, example)
        torch.testing.assert_close(output(module, network, moved_n, swapped), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "layer", "after"), [("cnn", "0", "1"), ("cnn", "3", "3"), ("mlp", "0", "1"), ("lstm", "embed", "embed")]
)
def test_without_its_outgoing_weights_a_neuron_has_no_influence(name: str, layer: str, after: str) -> None:
    specimen, module, network = made(name)
    x_n, example = drawn(network.n), specimen.example()
    part, neuron = network.part(layer), 2
    cut_n = x_n.clone()
    cut_n[torch.from_numpy((network.in_part_n == part) & (network.in_neuron_n == neuron))] = 0

    def silence(_: nn.Module, __: object, result: Tensor) -> Tensor:
        result = result.clone()
        result.select(-1 if result.dim() < 4 else 1, neuron).zero_()
        return result

    handle = module.get_submodule(after).register_forward_hook(silence)
    silent = output(module, network, x_n, example)
    handle.remove()
    torch.testing.assert_close(output(module, network, cut_n, example), silent, rtol=1e-9, atol=1e-12)
    assert not torch.allclose(silent, output(module, network, x_n, example))


def test_a_flattened_channel_feeds_all_its_columns() -> None:
    _, _, network = made("cnn")
    head = next(tensor for tensor in network.tensors if tensor.name == "5.weight")
    in_neuron = network.in_neuron_n[head.span].reshape(head.shape)
    np.testing.assert_array_equal(in_neuron, np.broadcast_to(np.repeat(np.arange(4), 4), head.shape))
    np.testing.assert_array_equal(network.place_n[head.span].reshape(head.shape)[1], np.tile(np.arange(4), 4))


def test_running_statistics_belong_to_their_channel_and_counters_to_nobody() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    network = trace(module, torch.zeros(2, 3))
    assert [tensor.name for tensor in network.tensors[-2:]] == ["1.running_mean", "1.running_var"]
    assert network.n == sum(parameter.numel() for parameter in module.parameters()) + 8
    np.testing.assert_array_equal(network.out_neuron_n[-8:], [0, 1, 2, 3] * 2)


def test_a_layer_that_cannot_be_sliced_is_marked_and_the_others_are_sliced() -> None:
    network = trace(Bilinear(), torch.zeros(2, 5))
    marked = {tensor.module: tensor.unsliceable for tensor in network.tensors if tensor.unsliceable}
    assert marked == {"pairs": "slicing does not support the operation bilinear"}
    assert {part.name: part.size for part in network.parts} == {"input": 5, "into": 8, "pairs": 4, "head": 3}


def test_a_forward_pass_may_be_any_python_and_layers_that_it_did_not_reach_are_marked() -> None:
    network = trace(nn.Sequential(nn.Linear(4, 5), Branching(), nn.Linear(8, 2)), torch.ones(2, 4))
    reached = {True: "1.other", False: "1.inner"}[bool(network.tensors[2].unsliceable)]
    assert {tensor.module for tensor in network.tensors if tensor.unsliceable} == {
        "1.inner" if reached == "1.other" else "1.other"
    }
    head = next(tensor for tensor in network.tensors if tensor.name == "2.weight")
    assert (network.in_part_n[head.span].reshape(head.shape)[:, :4] == network.part(reached)).all()
    assert (network.in_part_n[head.span].reshape(head.shape)[:, 4:] == -1).all()


def test_frozen_parameters_are_in_no_vector_and_their_digest_is_kept() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    module[0].requires_grad_(False)
    network = trace(module, torch.zeros(2, 3))
    assert [tensor.name for tensor in network.tensors] == ["2.weight", "2.bias"]
    assert {part.name: part.size for part in network.parts} == {"0": 4, "2": 2}
    again = trace(module, torch.zeros(2, 3))
    with torch.no_grad():
        module.get_parameter("0.bias")[1] += 1e-6
    assert network.base == again.base != trace(module, torch.zeros(2, 3)).base
    assert trace(nn.Linear(3, 4), torch.zeros(2, 3)).base == ""


def test_buffers_that_are_not_saved_are_in_no_vector() -> None:
    _, _, network = made("grouped")
    assert "angles" not in {tensor.name for tensor in network.tensors}


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_tied_projected_shared_and_unused_parameters_are_marked_with_the_reason() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(9, 6)
            self.rnn = nn.LSTM(6, 5, proj_size=3)
            self.temperature = nn.Parameter(torch.ones(1))
            self.unused = nn.Linear(2, 2)
            self.widen = nn.Linear(3, 6)
            self.head = nn.Linear(6, 9)
            self.head.weight = self.embed.weight

        def forward(self, x: Tensor) -> Tensor:
            y, _ = self.rnn(self.embed(x))
            result: Tensor = self.head(self.widen(y) * self.temperature)
            return result

    network = trace(Odd(), torch.zeros(2, 4, dtype=torch.long))
    reasons = {tensor.name: tensor.unsliceable for tensor in network.tensors if tensor.unsliceable}
    assert "head.weight" in reasons["embed.weight"]
    assert "proj_size" in reasons["rnn.weight_ih_l0"]
    assert "share one" in reasons["temperature"]
    assert "unused.weight" in reasons
    assert {"widen.weight", "head.bias"}.isdisjoint(reasons)


def test_one_number_for_all_inputs_makes_no_one_neuron_of_them() -> None:
    network = trace(nn.Sequential(nn.PReLU(), nn.Linear(3, 4)), torch.zeros(2, 3))
    assert {tensor.name for tensor in network.tensors if tensor.unsliceable} == {"0.weight"}
    assert {part.name: part.size for part in network.parts} == {"input": 3, "1": 4}


def test_a_linear_layer_across_positions_is_no_layer_of_neurons_and_keeps_those_of_its_input() -> None:
    module = nn.Sequential(nn.Conv1d(2, 4, 1), nn.Linear(6, 3), nn.Flatten(), nn.Linear(12, 2))
    network = trace(module, torch.zeros(2, 2, 6))
    assert {tensor.module for tensor in network.tensors if tensor.unsliceable} == {"1"}
    assert {part.name: part.size for part in network.parts} == {"input": 2, "0": 4, "3": 2}


def test_a_weight_that_leads_back_and_one_that_is_computed_are_marked() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tied, self.body, self.head = nn.Parameter(torch.randn(7, 5)), nn.Linear(5, 6), nn.Linear(6, 2)
            self.a, self.b = nn.Parameter(torch.randn(6, 2)), nn.Parameter(torch.randn(2, 5))

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(x @ self.tied.T) @ self.tied
            x = nn.functional.linear(x, self.body.weight + self.a @ self.b)
            result: Tensor = self.head(x)
            return result

    network = trace(Odd(), torch.ones(2, 5))
    reasons = {tensor.name: tensor.unsliceable for tensor in network.tensors if tensor.unsliceable}
    assert reasons["tied"] == "it is used in both directions"
    assert reasons["body.weight"] == "a weight is computed from it"
    assert {"a", "b"} < set(reasons)
    assert {"head.weight", "head.bias"}.isdisjoint(reasons)


def test_heads_that_are_normalised_by_one_scale_stay_apart() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.o = (nn.Linear(5, 8) for _ in range(4))
            self.norm = nn.RMSNorm(4)
            self.head = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (layer(x).unflatten(-1, (2, 4)).transpose(1, 2) for layer in (self.q, self.k, self.v))
            mixed = nn.functional.scaled_dot_product_attention(self.norm(q), self.norm(k), v)
            result: Tensor = self.head(mixed.transpose(1, 2).flatten(2))
            return result

    network = trace(Scaled(), torch.randn(2, 3, 5))
    reasons = {tensor.name: tensor.unsliceable for tensor in network.tensors if tensor.unsliceable}
    assert reasons["norm.weight"] == "several neurons share one of its numbers"
    assert {part.name: part.size for part in network.parts} == {"input": 5, "q": 2, "head": 3}


def test_what_the_example_happens_to_mask_is_no_constant() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(3, 6), nn.Linear(6, 2)
            self.register_buffer("kept", torch.tensor([True, False, True, True, False, True]))

        def forward(self, x: Tensor) -> Tensor:
            h = self.body(x)
            h[:, self.kept] = 0
            h[torch.isnan(h)] = 0
            result: Tensor = self.head(h)
            return result

    network = trace(Odd(), torch.full((2, 3), torch.nan))
    head = next(tensor for tensor in network.tensors if tensor.name == "head.weight")
    np.testing.assert_array_equal(network.in_neuron_n[head.span].reshape(head.shape)[0], range(6))
    assert "kept" not in {tensor.name for tensor in network.tensors}


@pytest.mark.parametrize("way", ["mask", "rows", "multiply", "where", "put together"])
def test_masked_weights_keep_their_neurons(way: str) -> None:
    class Sparse(nn.Module):
        keep: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 2)
            self.register_buffer("keep", torch.arange(24).reshape(6, 4) % 3 > 0)

        def weight(self) -> Tensor:
            made = self.body.weight.clone()
            match way:
                case "mask":
                    made[~self.keep] = 0
                case "rows":
                    made[2:4] = 0
                case "multiply":
                    made = made * self.keep
                case "where":
                    made = torch.where(self.keep, made, 0.0)
                case "put together":
                    made = torch.zeros_like(made)
                    made[:2], made[2:] = self.body.weight[:2], self.body.weight[2:]
            return made

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.head(nn.functional.linear(x, self.weight(), self.body.bias))
            return result

    network = trace(Sparse(), torch.ones(2, 4))
    plain = trace(nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2)), torch.ones(2, 4))
    assert [part.size for part in network.parts] == [4, 6, 2]
    for name in ("out_part_n", "out_neuron_n", "in_part_n", "in_neuron_n"):
        np.testing.assert_array_equal(getattr(network, name), getattr(plain, name))


def test_a_pruned_network_is_traced_with_its_masks() -> None:
    module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    prune.random_unstructured(module[0], "weight", 0.5)  # type: ignore[no-untyped-call]
    network = trace(module, torch.ones(2, 4))
    assert not [tensor.name for tensor in network.tensors if tensor.unsliceable]
    mask, weights = (next(t for t in network.tensors if t.name == f"0.weight_{each}") for each in ("mask", "orig"))
    for found_n in (network.out_neuron_n, network.in_neuron_n):
        np.testing.assert_array_equal(found_n[mask.span], found_n[weights.span])


def test_writing_what_cannot_be_followed_marks_the_parameter() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head, self.scale = nn.Linear(4, 6), nn.Linear(6, 2), nn.Parameter(torch.ones(2, 6))

        def forward(self, x: Tensor) -> Tensor:
            h, scale = self.body(x), self.scale[: len(x)].clone()
            scale[h > 0] = 2
            result: Tensor = self.head(h * scale)
            return result

    network = trace(Odd(), torch.ones(2, 4))
    reasons = {tensor.name: tensor.unsliceable for tensor in network.tensors if tensor.unsliceable}
    assert reasons == {"scale": "a parameter is masked by values that are computed from neurons"}


def test_numbers_of_a_parameter_that_data_choose_mark_it() -> None:
    """Which numbers the traced example chooses says nothing about other examples."""

    class Chosen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.scale = nn.Linear(4, 6), nn.Parameter(torch.ones(6))

        def forward(self, x: Tensor) -> Tensor:
            h: Tensor = self.body(x)
            return h * self.scale[h[0] > -9.0].sum()

    network = trace(Chosen(), torch.ones(2, 4))
    reasons = {tensor.name: tensor.unsliceable for tensor in network.tensors if tensor.unsliceable}
    assert reasons == {"scale": "a parameter is masked by values that are computed from neurons"}


def test_an_example_of_the_wrong_shape_is_the_users_mistake() -> None:
    with pytest.raises(SlicingError, match=r"does not accept an example.*at 0"):
        trace(nn.Sequential(nn.Linear(3, 4)), torch.zeros(2, 5))


def test_tracing_changes_neither_the_module_nor_the_global_random_numbers() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.norm(x) + torch.randn(1, 3)
            return result

    module = Noisy().train()
    before, state = {k: v.clone() for k, v in module.state_dict().items()}, torch.random.get_rng_state()
    trace(module, torch.ones(4, 3))
    assert module.training
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
