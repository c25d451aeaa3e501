"""The order of the partial models, and every mistake that a user can make in defining it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpeer.slicing.models import ModelGraph, PartialModel, SlicingError, model_mistakes


@st.composite
def dags(draw: st.DrawFn) -> list[PartialModel]:
    """Draw up to six models, each depending on some of the models before it."""
    names = draw(st.permutations(["a", "b", "c", "d", "e", "f"]))[: draw(st.integers(1, 6))]
    return [
        PartialModel(name, tuple(draw(st.sets(st.sampled_from(names[:at]))) if at else ()))
        for at, name in enumerate(names)
    ]


def reachable(models: list[PartialModel], start: str) -> set[str]:
    """Return the closure by following the arrows: the slow reference."""
    direct = {model.name: model.depends_on for model in models}
    found: set[str] = set()
    todo = list(direct[start])
    while todo:
        name = todo.pop()
        found.add(name)
        todo += direct[name]
    return found


@pytest.mark.slow
@settings(max_examples=40)
@given(dags())
def test_the_closure_is_what_the_arrows_lead_to(models: list[PartialModel]) -> None:
    graph = ModelGraph(models)
    for model in models:
        assert graph.closure(model.name) == reachable(models, model.name)


@pytest.mark.slow
@settings(max_examples=40)
@given(dags(), st.data())
def test_the_reduced_set_is_the_definition_of_appendix_a(models: list[PartialModel], data: st.DataObject) -> None:
    graph = ModelGraph(models)
    chosen = data.draw(st.sets(st.sampled_from([model.name for model in models]), min_size=1))
    expected = {m for m in chosen if not any(m in reachable(models, lower) for lower in chosen)}
    assert graph.reduced(chosen) == expected
    assert expected


@pytest.mark.slow
@settings(max_examples=40)
@given(dags(), st.randoms(use_true_random=False))
def test_the_order_depends_on_the_models_only_and_keeps_to_the_arrows(
    models: list[PartialModel], random: object
) -> None:
    graph = ModelGraph(models)
    for listed in itertools.islice(itertools.permutations(models), 5):
        assert ModelGraph(listed).order == graph.order
    for a, b in itertools.product(graph.order, repeat=2):
        if graph.depends(a, b):
            assert graph.order.index(b) < graph.order.index(a)


def test_a_cycle_is_shown_as_a_path() -> None:
    with pytest.raises(SlicingError, match=r"partial_models\.a\.depends_on: a -> b -> c -> a is a cycle"):
        ModelGraph([PartialModel("a", ("b",)), PartialModel("b", ("c",)), PartialModel("c", ("a",))])
    with pytest.raises(SlicingError, match="a -> a is a cycle"):
        ModelGraph([PartialModel("a", ("a",))])


def test_an_unknown_name_gets_the_nearest_known() -> None:
    with pytest.raises(SlicingError, match='"everyon" is not a partial model here; did you mean "everyone"'):
        ModelGraph([PartialModel("everyone"), PartialModel("ward", ("everyon",))])


def test_who_implements_a_model_without_its_dependencies_sees_the_path() -> None:
    models = [
        PartialModel("everyone", members=("peer1", "peer2")),
        PartialModel("region", ("everyone",), members=("peer1", "peer3")),
        PartialModel("ward-a", ("region",), members=("peer3",)),
    ]
    found = [str(problem) for problem in model_mistakes(models, ["peer1", "peer2", "peer3"])]
    assert len(found) == 2
    assert (
        "partial_models.region.members: peer3 implements region -> everyone but is not a member of everyone" in found[0]
    )
    assert "peer3 implements ward-a -> region -> everyone but is not a member of everyone" in found[1]
    with pytest.raises(SlicingError, match="ward-a -> region -> everyone"):
        ModelGraph(models).implementers(["peer1", "peer2", "peer3"])


def test_a_missing_dependency_deep_in_one_of_two_branches_is_found() -> None:
    models = [
        PartialModel("base"),
        PartialModel("far", ("base",), members=("q",)),
        PartialModel("left", ("base",)),
        PartialModel("right", ("far",), members=("p",)),
        PartialModel("both", ("left", "right"), members=("p",)),
    ]
    found = [str(problem) for problem in model_mistakes(models, ["p", "q"])]
    assert any("both -> right -> far but" in line for line in found)


def test_all_mistakes_are_reported_at_once() -> None:
    models = [
        PartialModel("a&b"),
        PartialModel(" "),
        PartialModel("twice"),
        PartialModel("twice"),
        PartialModel("x", ("nowhere", "y")),
        PartialModel("y", ("x",)),
        PartialModel("local", ("x",)),
        PartialModel("z", ("local",)),
    ]
    found = "\n".join(map(str, model_mistakes(models)))
    for piece in (
        "partial_models.a&b: & and +",
        "empty name",
        "2 partial models",
        '"nowhere"',
        "x -> y -> x",
        '"local" is reserved',
        'no model can depend on "local"',
    ):
        assert piece in found
    assert len(model_mistakes(models)) == 7


def test_members_must_be_known_and_named_once() -> None:
    found = "\n".join(
        map(str, model_mistakes([PartialModel("m", members=("peer1", "peer1", "peer9"))], ["peer1", "peer2"]))
    )
    assert '"peer9" is not a peer here; did you mean' in found
    assert '"peer1" is listed 2 times' in found


@pytest.mark.parametrize("peers", [None, ["peer1"]])
def test_a_model_needs_members(peers: list[str] | None) -> None:
    """The mistake is found even without a number of peers, as in a federation of real peers."""
    models = [PartialModel("m", members=()), PartialModel("n", members=()), PartialModel("all")]
    first, second = map(str, model_mistakes(models, peers))
    assert first.startswith(
        "partial_models.m.members: the list is empty, so nobody averages this model; name its peers"
    )
    assert second.startswith("partial_models.n.members: ")


def test_implementers_keep_the_order_of_the_peers() -> None:
    graph = ModelGraph([PartialModel("all"), PartialModel("some", ("all",), members=("c", "a")), PartialModel("local")])
    assert graph.implementers(["c", "b", "a"]) == {"all": ("c", "b", "a"), "some": ("c", "a")}
    assert graph.implemented("b") == ("all",)
