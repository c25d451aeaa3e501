"""The compiled plan against the paper's definition, weight by weight, and against the paper's section III."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call

from fedpeer.slicing.assign import assign_all
from fedpeer.slicing.flat import FlatLayout, gather_group, scatter_
from fedpeer.slicing.models import ModelGraph, PartialModel, SlicingError
from fedpeer.slicing.network import NetworkMap
from fedpeer.slicing.plan import Plan, compile_plan
from fedpeer.slicing.trace import trace
from tests.golden.adapters import averaged
from tests.slicing.zoo import ZOO, Bilinear

PEERS = ("p1", "p2", "p3", "p4")
SIZES = {"p1": (3, 7, 6, 2), "p2": (3, 5, 8, 2), "p3": (3, 7, 6, 2), "p4": (3, 9, 9, 2)}


def mlp(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


KNOWN = {sizes: trace(mlp(*sizes), torch.zeros(1, 3)) for sizes in SIZES.values()}
NETWORKS = {peer: KNOWN[sizes] for peer, sizes in SIZES.items()}


@st.composite
def families(draw: st.DrawFn) -> list[PartialModel]:
    """Draw up to four models over the peers; members of a model are members of all models that it depends on."""
    models: list[PartialModel] = []
    members: dict[str, set[str]] = {}
    free = {"0": 5, "2": 6}
    for name in draw(st.permutations(["k", "l", "m", "n"]))[: draw(st.integers(1, 4))]:
        above = draw(st.sets(st.sampled_from([model.name for model in models]))) if models else set()
        possible = set(PEERS).intersection(*(members[each] for each in above))
        who = draw(st.sets(st.sampled_from(sorted(possible)))) if possible else set()
        neurons: dict[str, int] = {}
        for part in free:
            neurons[part] = draw(st.integers(0, free[part]))
            free[part] -= neurons[part]
        claims: dict[str, int | str] = dict(neurons)
        if not models:
            claims |= {"input": "all"} if draw(st.booleans()) else {}
            claims |= {"output": "all"} if draw(st.booleans()) else {}
        members[name] = who
        models.append(PartialModel(name, tuple(above), claims, members=tuple(who)))  # type: ignore[arg-type]
    return models


def slow_twin(graph: ModelGraph, plan: Plan, cross_model: bool) -> dict[str, dict[tuple[object, ...], list[int]]]:
    """Apply the paper's rule, scalar by scalar: group id -> identity of the scalar -> peers that average it there."""
    assignments = assign_all(NETWORKS, graph)
    implementers = graph.implementers(PEERS)
    found: dict[str, dict[tuple[object, ...], list[int]]] = {}
    for number, peer in enumerate(PEERS):
        network, mine = NETWORKS[peer], assignments[peer]
        for scalar in range(network.n):
            cells = [(network.out_part_n[scalar], network.out_neuron_n[scalar])]
            if network.in_part_n[scalar] >= 0:
                cells.append((network.in_part_n[scalar], network.in_neuron_n[scalar]))
            owners = [mine.model_of_neuron[part][neuron] for part, neuron in cells]
            if min(owners) < 0:
                continue
            names = {graph.order[owner] for owner in owners}
            names = {m for m in names if not any(graph.depends(lower, m) for lower in names)}
            holders = [each for each in PEERS if all(each in implementers[m] for m in names)]
            if len(holders) < 2 or (len(names) > 1 and not cross_model):
                continue
            identity = tuple(
                (
                    network.parts[part].name,
                    graph.order[mine.model_of_neuron[part][neuron]],
                    int(mine.index_in_slice[part][neuron]),
                )
                for part, neuron in cells
            )
            tensor = network.tensors[network.tensor_n[scalar]].name
            found.setdefault("+".join(sorted(names)), {}).setdefault((tensor, *identity), []).append(number)
    return found


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(families(), st.booleans())
def test_the_plan_is_the_papers_rule_scalar_by_scalar(models: list[PartialModel], cross_model: bool) -> None:
    graph = ModelGraph(models)
    plan = compile_plan(NETWORKS, graph, cross_model=cross_model)
    expected = slow_twin(graph, plan, cross_model)
    assert {group.id: group.length for group in plan.groups} == {each: len(held) for each, held in expected.items()}
    for group in plan.groups:
        assert {tuple(who) for who in expected[group.id].values()} == {tuple(PEERS.index(p) for p in group.members)}


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(families(), st.booleans())
def test_each_scalar_is_in_exactly_one_group_or_local(models: list[PartialModel], cross_model: bool) -> None:
    plan = compile_plan(NETWORKS, ModelGraph(models), cross_model=cross_model)
    for peer in PEERS:
        held = [group.indices[peer] for group in plan.groups_of(peer)] + [plan.local[peer]]
        np.testing.assert_array_equal(np.sort(np.concatenate(held)), np.arange(NETWORKS[peer].n))


@pytest.mark.slow
@settings(deadline=None, max_examples=20)
@given(families(), st.booleans(), st.integers(0, 2**31))
def test_averaging_conserves_the_sum_and_leaves_what_is_in_no_group_bit_identical(
    models: list[PartialModel], cross_model: bool, seed: int
) -> None:
    plan = compile_plan(NETWORKS, ModelGraph(models), cross_model=cross_model)
    draws = torch.Generator().manual_seed(seed)
    start = {peer: torch.randn(NETWORKS[peer].n, generator=draws, dtype=torch.float64) for peer in PEERS}
    after = averaged(plan, start)
    for peer in PEERS:
        local = torch.from_numpy(plan.local[peer])
        assert torch.equal(gather_group(after[peer], local), gather_group(start[peer], local))
    for group in plan.groups:
        before_D, after_D = (
            sum(gather_group(values[peer], torch.from_numpy(group.indices[peer])) for peer in group.members)
            for values in (start, after)
        )
        torch.testing.assert_close(torch.as_tensor(after_D), torch.as_tensor(before_D), rtol=0, atol=1e-12)


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(families(), st.data())
def test_the_plan_does_not_depend_on_the_order_in_which_models_are_listed(
    models: list[PartialModel], data: st.DataObject
) -> None:
    one = compile_plan(NETWORKS, ModelGraph(models), cross_model=True)
    other = compile_plan(NETWORKS, ModelGraph(data.draw(st.permutations(models))), cross_model=True)
    assert [(g.id, g.members, g.digest) for g in one.groups] == [(g.id, g.members, g.digest) for g in other.groups]
    for a, b in zip(one.groups, other.groups, strict=True):
        for peer in a.members:
            np.testing.assert_array_equal(a.indices[peer], b.indices[peer])


SEMI_LOCAL = ModelGraph(
    [
        PartialModel("everyone", neurons={"input": "all", "0": 3, "2": 2, "output": "all"}),
        PartialModel("pair", ("everyone",), {"0": 2, "2": 1}, members=("p1", "p4")),
        PartialModel("trio", ("everyone",), {"0": 0, "2": 2}, members=("p1", "p2", "p4")),
    ]
)


@pytest.mark.parametrize("cross_model", [False, True])
def test_a_step_and_an_average_is_a_step_on_the_sum_of_losses_with_the_rate_shared(cross_model: bool) -> None:
    """Section III: SGD on L = sum of the peers' losses; the rate of a scalar is divided by its number of holders."""
    plan = compile_plan(NETWORKS, SEMI_LOCAL, cross_model=cross_model)
    assert {group.id for group in plan.groups} == {"everyone", "pair", "trio", *(["pair+trio"] if cross_model else [])}
    draws, rate = torch.Generator().manual_seed(3), 0.2
    data = {
        p: (torch.randn(9, 3, generator=draws).double(), torch.randn(9, 2, generator=draws).double()) for p in PEERS
    }
    modules = {peer: mlp(*SIZES[peer]) for peer in PEERS}

    def loss(peer: str, x_n: Tensor) -> Tensor:
        tensors = FlatLayout.of(NETWORKS[peer]).unflatten(x_n)
        predicted = functional_call(modules[peer], tensors, (data[peer][0],))
        return torch.as_tensor((predicted - data[peer][1]).square().mean())

    start = {p: torch.randn(NETWORKS[p].n, generator=draws, dtype=torch.float64) for p in PEERS}
    x = averaged(plan, start)
    # The single system: a vector M with each group's values once, then each peer's local ones.
    places: dict[str, Tensor] = {}
    holders: list[int] = []
    pieces: list[Tensor] = []
    for peer in PEERS:
        places[peer] = torch.full((NETWORKS[peer].n,), -1)
    for group in plan.groups:
        here = torch.arange(group.length) + len(holders)
        for peer in group.members:
            places[peer][torch.from_numpy(group.indices[peer])] = here
        pieces.append(gather_group(x[group.members[0]], torch.from_numpy(group.indices[group.members[0]])))
        holders += [len(group.members)] * group.length
    for peer in PEERS:
        local = torch.from_numpy(plan.local[peer])
        places[peer][local] = torch.arange(len(local)) + len(holders)
        pieces.append(gather_group(x[peer], local))
        holders += [1] * len(local)
    whole = torch.cat(pieces)
    for _ in range(3):
        stepped = {}
        for peer in PEERS:
            x_n = x[peer].clone().requires_grad_()
            (gradient_n,) = torch.autograd.grad(loss(peer, x_n), x_n)
            stepped[peer] = x[peer] - rate * gradient_n
        x = averaged(plan, stepped)
        variable = whole.clone().requires_grad_()
        total = torch.stack([loss(peer, variable[places[peer]]) for peer in PEERS]).sum()
        (gradient,) = torch.autograd.grad(total, variable)
        whole = whole - rate / torch.tensor(holders, dtype=torch.float64) * gradient
        for peer in PEERS:
            torch.testing.assert_close(x[peer], whole[places[peer]], rtol=1e-10, atol=1e-12)


def test_gather_then_scatter_is_the_identity_with_and_without_leading_dimensions() -> None:
    plan = compile_plan(NETWORKS, SEMI_LOCAL)
    for group in plan.groups:
        index_D = torch.from_numpy(group.indices["p1"])
        x_Pn = torch.randn(5, NETWORKS["p1"].n, generator=torch.Generator().manual_seed(0))
        before = x_Pn.clone()
        assert torch.equal(scatter_(x_Pn, index_D, gather_group(x_Pn, index_D)), before)
        value_PD = torch.arange(5 * group.length, dtype=torch.float32).reshape(5, -1)
        assert torch.equal(gather_group(scatter_(x_Pn, index_D, value_PD), index_D), value_PD)
        assert torch.equal(gather_group(x_Pn[2], index_D), value_PD[2])


@pytest.mark.parametrize("name", ZOO)
def test_full_averaging_is_one_group_of_everything_and_no_averaging_is_none(name: str) -> None:
    network = trace(ZOO[name].build().double(), ZOO[name].example())
    networks = {"a": network, "b": network}
    plan = compile_plan(networks, ModelGraph([PartialModel("everyone", neurons="all")]))
    assert [(group.id, group.members, group.length) for group in plan.groups] == [("everyone", ("a", "b"), network.n)]
    assert compile_plan(networks, ModelGraph([])).groups == ()
    assert len(compile_plan(networks, ModelGraph([])).local["a"]) == network.n


def test_a_convolution_is_sliced_by_channel_with_the_columns_that_it_feeds() -> None:
    """Sizes counted by hand: kernel 3x3 from 2 inputs, 2x2 kernels, 4 pixels a channel after flattening, 5 outputs."""
    network = trace(ZOO["cnn"].build().double(), ZOO["cnn"].example())
    claims = {"input": "all", "0": 3, "3": 2, "output": "all"}
    plan = compile_plan({"a": network, "b": network}, ModelGraph([PartialModel("m", neurons=claims)]))  # type: ignore[arg-type]
    assert plan.groups[0].length == 3 * 2 * 9 + 3 + 2 * 3 * 4 + 2 + 5 * 2 * 4 + 5


def test_peers_whose_slices_differ_are_refused_with_the_first_difference() -> None:
    everything = ModelGraph([PartialModel("everyone", neurons={"0": "all"}), PartialModel("far", ("everyone",))])
    with pytest.raises(SlicingError, match=r'p1 and p2 cannot average "everyone".*7 and 5 scalars.*0\.bias into 0\['):
        compile_plan(NETWORKS, everything)


def test_two_peers_who_compile_alone_agree_on_the_digest_and_on_the_order() -> None:
    """A real peer knows the networks of other peers only by the digest."""
    graph = ModelGraph([PartialModel("m", neurons={"input": "all", "0": 4, "2": 2})])
    small, large = (compile_plan({p: NETWORKS[q], f"{p}x": NETWORKS[q]}, graph) for p, q in (("a", "p1"), ("b", "p4")))
    assert small.groups[0].digest == large.groups[0].digest
    fewer = ModelGraph([PartialModel("m", neurons={"input": "all", "0": 3, "2": 2})])
    assert compile_plan(NETWORKS, fewer).groups[0].digest != small.groups[0].digest


def test_a_peer_alone_with_its_network_has_the_groups_of_a_plan_that_knows_all_networks() -> None:
    """It also knows the members of groups whose slices do not fit its own network."""
    base = PartialModel("base", neurons={"input": "all", "0": 4, "2": 2})
    graph = ModelGraph([base, PartialModel("big", ("base",), {"0": 4}, members=("p1", "p4"))])
    whole = compile_plan({**NETWORKS, "p3": NETWORKS["p2"], "p1": NETWORKS["p4"]}, graph)
    for me, network in (("p2", NETWORKS["p2"]), ("p4", NETWORKS["p4"])):
        networks = dict.fromkeys(PEERS, network)
        own = compile_plan(networks, graph, assign_all(networks, graph, me))
        found, wanted = ({group.id: group for group in plan.groups} for plan in (own, whole))
        assert {id: each.members for id, each in found.items()} == {id: each.members for id, each in wanted.items()}
        for group in whole.groups_of(me):
            assert (found[group.id].digest, found[group.id].length) == (group.digest, group.length)
            np.testing.assert_array_equal(found[group.id].indices[me], group.indices[me])
        np.testing.assert_array_equal(own.local[me], whole.local[me])
    small = dict.fromkeys(PEERS, NETWORKS["p2"])
    with pytest.raises(SlicingError, match=r"base 4 \+ big 4 = 8 neurons are claimed, but 0 has 5"):
        assign_all(small, graph, "p1")


def test_modules_are_named_or_match_a_pattern() -> None:
    block = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    network = trace(nn.Sequential(block, nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))), torch.zeros(1, 3))
    networks = {"a": network, "b": network}

    def shared(*modules: str) -> list[str]:
        plan = compile_plan(networks, ModelGraph([PartialModel("m", modules=modules)]))
        held = set(plan.groups[0].indices["a"])
        return [each.name for each in network.tensors if held.issuperset(range(each.span.start, each.span.stop))]

    assert shared("0") == ["0.0.weight", "0.0.bias", "0.1.weight", "0.1.bias"]
    assert shared("*.1") == ["0.1.weight", "0.1.bias", "1.1.weight", "1.1.bias"]
    assert shared("*.0.weight", "1.1") == ["0.0.weight", "1.0.weight", "1.1.weight", "1.1.bias"]
    assert shared("0*") == shared("0")


def test_a_module_can_be_owned_whole_and_is_what_its_layer_holds() -> None:
    network = trace(Bilinear(), torch.zeros(1, 5))
    networks = dict.fromkeys(("a", "b", "c"), network)
    models = [
        PartialModel("base", modules=("into", "pairs")),
        PartialModel("head-ab", neurons={}, modules=("head",), members=("a", "b")),
    ]
    plan = compile_plan(networks, ModelGraph(models))
    held = {group.id: {network.tensors[t].name for t in network.tensor_n[group.indices["a"]]} for group in plan.groups}
    assert held["head-ab"] == {"head.weight", "head.bias"}
    assert {name.split(".")[0] for name in held["base"]} == {"into", "pairs"}
    assert len(plan.local["a"]) == 0
    assert len(plan.local["c"]) == 4 * 3 + 3


def test_parameters_are_owned_by_name_or_pattern_and_are_stronger_than_modules_and_neurons() -> None:
    network = trace(mlp(3, 7, 6, 2), torch.zeros(1, 3))
    networks = dict.fromkeys(("a", "b"), network)
    models = [
        PartialModel("all", neurons="all"),
        PartialModel("middle", modules=("2",), depends_on=("all",)),
        PartialModel("local", parameters=("*.bias",)),
    ]
    plan = compile_plan(networks, ModelGraph(models))
    held = {group.id: {network.tensors[t].name for t in network.tensor_n[group.indices["a"]]} for group in plan.groups}
    assert held == {"all": {"0.weight", "4.weight"}, "middle": {"2.weight"}}
    local = {network.tensors[t].name for t in network.tensor_n[plan.local["a"]]}
    assert local == {"0.bias", "2.bias", "4.bias"}


def test_a_parameter_that_only_some_members_own_whole_is_named_with_its_owner() -> None:
    networks = dict.fromkeys(("a", "b", "c"), trace(mlp(3, 7, 6, 2), torch.zeros(1, 3)))
    models = [PartialModel("all", neurons="all"), PartialModel("bias", parameters=("2.bias",), members=("b", "c"))]
    with pytest.raises(SlicingError, match=r'"bias" owns 2\.bias whole; give it all members of "all" or none'):
        compile_plan(networks, ModelGraph(models))


def test_a_model_of_which_nothing_is_averaged_is_said() -> None:
    """Weights from the inputs of `half` lead into neurons of `base` alone; cut by dependency they are its own."""
    networks = dict.fromkeys(("a", "b"), trace(mlp(3, 7, 6, 2), torch.zeros(1, 3)))

    def said(*depends_on: str, cross_model: bool = False) -> list[str]:
        base = PartialModel("base", neurons={"input": 2, "0": "all"})
        half = PartialModel("half", depends_on, neurons={"input": 1})
        return compile_plan(networks, ModelGraph([base, half]), cross_model=cross_model).unshared()

    assert [text.split(":")[0] for text in said()] == ['partial model "half" averages nothing']
    assert said("base") == said(cross_model=True) == []


def test_peers_whose_frozen_parameters_differ_cannot_average() -> None:
    def network(seed: int) -> NetworkMap:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = mlp(3, 7, 6, 2)
        module[0].requires_grad_(False)
        return trace(module, torch.zeros(1, 3))

    same = compile_plan({"a": network(0), "b": network(0)}, ModelGraph([PartialModel("m", neurons="all")]))
    assert same.groups[0].length == 6 * 7 + 6 + 2 * 6 + 2
    with pytest.raises(SlicingError, match='a and b cannot average "m": their frozen parameters differ'):
        compile_plan({"a": network(0), "b": network(1)}, ModelGraph([PartialModel("m", neurons="all")]))


def test_a_module_owned_whole_lines_up_whoever_owns_its_neurons() -> None:
    network = KNOWN[SIZES["p1"]]
    models = [
        PartialModel("base", modules=("2",)),
        PartialModel("first", neurons={"0": (0, 1), "2": (2, 3)}, members=("a", "b")),
        PartialModel("other", neurons={"0": (5, 2), "2": (0, 1)}, members=("c", "d")),
    ]
    plan = compile_plan(dict.fromkeys("abcd", network), ModelGraph(models))
    base = plan.groups[0]
    weight, bias = (next(t for t in network.tensors if t.name == name) for name in ("2.weight", "2.bias"))
    expected = np.r_[bias.offset : bias.offset + bias.size, weight.offset : weight.offset + weight.size]
    assert (base.id, base.members) == ("base", tuple("abcd"))
    for peer in "abcd":
        np.testing.assert_array_equal(base.indices[peer], expected)
    other_shape = {"a": network, "b": KNOWN[SIZES["p2"]]}
    with pytest.raises(SlicingError, match=r"a has 2\.bias\[6\], b has 2\.bias\[8\]"):
        compile_plan(other_shape, ModelGraph(models[:1]))


def test_what_cannot_be_sliced_and_nobody_claims_is_an_error_with_both_ways_out() -> None:
    networks = dict.fromkeys(("a", "b"), trace(Bilinear(), torch.zeros(1, 5)))
    neurons = PartialModel("m", neurons={"into": 3})
    with pytest.raises(SlicingError, match=r"pairs cannot be sliced .*modules: \[pairs\].*local: \{modules"):
        compile_plan(networks, ModelGraph([neurons]))
    kept = compile_plan(networks, ModelGraph([neurons, PartialModel("local", modules=("pairs",))]))
    assert kept.groups[0].length == 3
    owned = compile_plan(networks, ModelGraph([PartialModel("m", neurons={"into": 3}, modules=("pairs",))]))
    assert owned.groups[0].length == 3 + 4 * 8 * 8 + 4


@pytest.mark.slow
def test_a_thousand_alike_peers_share_the_work_and_the_arrays() -> None:
    network = trace(nn.Sequential(nn.Linear(784, 300), nn.Linear(300, 100), nn.Linear(100, 10)), torch.zeros(1, 784))
    networks: Mapping[str, NetworkMap] = {f"peer{k}": network for k in range(1, 1025)}
    began = time.process_time()
    plan = compile_plan(networks, ModelGraph([PartialModel("m", neurons={"input": "all", "0": 250, "1": 80})]))
    assert time.process_time() - began < 2
    assert len(plan.groups[0].members) == 1024
    assert len({id(index) for index in plan.groups[0].indices.values()}) == 1
    assert len({id(index) for index in plan.local.values()}) == 1
