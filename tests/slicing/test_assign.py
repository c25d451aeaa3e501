"""Assignment of neurons to partial models, and mistakes in claiming neurons."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Literal

import numpy as np
import pytest
import torch
from torch import nn

from fedpeer.slicing.assign import assign, assign_all
from fedpeer.slicing.models import ModelGraph, NeuronClaim, PartialModel, SlicingError
from fedpeer.slicing.network import NetworkMap
from fedpeer.slicing.trace import trace
from tests.reference.assign import layout_of_slices


def network(*sizes: int) -> NetworkMap:
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
    return trace(nn.Sequential(*layers), torch.zeros(1, sizes[0]))


NET = network(4, 6, 3)  # parts: input 4, "0" 6, "1" 3, which is also called output


def model(name: str, neurons: Mapping[str, NeuronClaim] | Literal["all"], *depends_on: str) -> PartialModel:
    return PartialModel(name, depends_on, neurons)


def test_lists_come_first_then_counts_in_canonical_order_then_the_rest() -> None:
    models = [model("rest", {"0": "all"}), model("b", {"0": 2}), model("a", {"0": 1}, "b"), model("z", {"0": (4, 0)})]
    for listed in itertools.permutations(models):
        graph = ModelGraph(listed)
        found = assign(NET, graph, "p")
        at = NET.part("0")
        names = [graph.order[owner] for owner in found.model_of_neuron[at]]
        assert names == ["z", "b", "b", "a", "z", "rest"]
        assert found.index_in_slice[at].tolist() == [1, 0, 1, 0, 0, 0]


def test_a_part_without_claims_and_what_is_left_are_local() -> None:
    found = assign(NET, ModelGraph([model("m", {"output": 2, "0": 0})]), "p")
    assert [owner.tolist() for owner in found.model_of_neuron] == [[-1] * 4, [-1] * 6, [0, 0, -1]]


def test_a_pattern_claims_of_all_parts_that_no_name_claims() -> None:
    found = assign(NET, ModelGraph([model("m", {"*": "all", "0": 2}), model("n", {"[01]*": 1})]), "p")
    owned = [[int((owner == at).sum()) for at in (0, 1)] for owner in found.model_of_neuron]
    assert owned == [[4, 0], [2, 1], [2, 1]]


def test_only_models_that_the_peer_implements_claim() -> None:
    graph = ModelGraph([model("m", {"0": 2}), PartialModel("other", neurons={"0": 6}, members=("q",))])
    assert (assign(NET, graph, "p").model_of_neuron[NET.part("0")] >= 0).sum() == 2


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ([model("a", {"0": 4}), model("b", {"0": 3})], "a 4 \\+ b 3 = 7 neurons are claimed, but 0 has 6"),
        ([model("a", {"0": -1})], "no negative numbers"),
        ([model("a", {"hidden": 4})], 'partial_models.a.neurons.hidden: the network has no part "hidden".*0 6'),
        ([model("a", {"ouput": 1})], 'did you mean "output"'),
        ([model("a", {"0": (1, 1)})], "neuron 1 is claimed by this list twice"),
        ([model("a", {"0": (1, 2)}), model("b", {"0": (2,)})], "neuron 2 is claimed by a too"),
        ([model("a", {"0": (6,)})], "there is no neuron 6; 0 has 0 to 5"),
        ([model("a", {"1": 1, "output": 1})], '"output" is "1"; name it once'),
        ([model("a", "all"), model("b", {"0": "all"})], 'a and b both claim "all" of 0'),
        ([model("a", {"0": (0, 1)}), model("b", {"0": 5})], "2 of them are listed by index"),
        ([PartialModel("a", modules=("*.norm",))], 'partial_models.a.modules: the network has no module "\\*.norm"'),
        ([PartialModel("a", modules=("5",))], 'partial_models.a.modules: the network has no module "5"'),
        ([PartialModel("a", modules=("0",)), PartialModel("b", modules=("0.bias",))], "0.bias is claimed by a too"),
        ([PartialModel("local", modules=("0",)), PartialModel("b", modules=("0",))], "claimed by local too"),
        ([PartialModel("a", parameters=("*.scale",))], r'a.parameters: the network has no parameter "\*.scale"'),
        (
            [PartialModel("local", parameters=("*.bias",)), PartialModel("b", parameters=("0.*",))],
            "partial_models.b.parameters: 0.bias is claimed by local too; a parameter can have one model only",
        ),
        ([model("a", {"hid*": 1})], r'no part of the network matches "hid\*" \(parts: input, 0, 1\)'),
    ],
)
def test_a_mistake_is_one_clear_message(models: list[PartialModel], message: str) -> None:
    with pytest.raises(SlicingError, match=message):
        assign(NET, ModelGraph(models), "p")


def test_all_mistakes_come_at_once() -> None:
    with pytest.raises(SlicingError) as error:
        assign(NET, ModelGraph([PartialModel("a", neurons={"0": 9, "nope": 1, "1": (7,)}, modules=("gone",))]), "p")
    assert len(str(error.value).splitlines()) == 4


def test_peers_that_are_alike_share_one_assignment() -> None:
    graph = ModelGraph([model("m", {"0": 2}), PartialModel("few", neurons={"0": 2}, members=("c",))])
    found = assign_all({"a": NET, "b": NET, "c": NET, "d": network(4, 6, 3)}, graph)
    assert found["a"] is found["b"]
    assert len({id(each) for each in found.values()}) == 3


def test_a_layout_is_taken_as_it_is_and_checked() -> None:
    graph = ModelGraph([model("m", {})])
    found = layout_of_slices(NET, graph, {"output": [("m", 1), None, ("m", 0)]})
    np.testing.assert_array_equal(found.model_of_neuron[2], [0, -1, 0])
    np.testing.assert_array_equal(found.index_in_slice[2], [1, 0, 0])
    with pytest.raises(SlicingError, match="has 3 neurons, but the layout has 1"):
        layout_of_slices(NET, graph, {"output": [("m", 0)]})
    with pytest.raises(SlicingError, match="two neurons the same"):
        layout_of_slices(NET, graph, {"output": [("m", 0), ("m", 0), None]})
