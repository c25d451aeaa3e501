"""The grammar `name[:value][,key=value]`, and binding a choice to a function's settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpeer.config.choice import (
    Choice,
    ChoiceError,
    bind_settings,
    chain,
    from_data,
    lookup,
    nearest_name,
    parse_choice,
    plain_value,
)

WORD = st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True)
#: Text that may follow a colon or an equals sign: anything.
VALUE = st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1)


@pytest.mark.slow
@settings(max_examples=50)
@given(WORD, st.none() | VALUE, st.dictionaries(WORD, VALUE, max_size=3))
def test_parsing_what_is_spelled_gives_it_back(name: str, value: str | None, given_to_it: dict[str, str]) -> None:
    choice = Choice(name, value, given_to_it)
    assert parse_choice(str(choice)) == choice


@pytest.mark.slow
@settings(max_examples=50)
@given(st.lists(VALUE, min_size=1, max_size=3))
def test_a_list_that_is_spelled_is_bound_as_it_was(items: list[str]) -> None:
    def columns(*, drop: tuple[str, ...]) -> None: ...

    for choice in (Choice("columns", None, {"drop": items}), Choice("columns", items)):
        assert bind_settings(parse_choice(str(choice)), columns) == {"drop": tuple(items)}


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("ring", Choice("ring")),
        ('csv:"a,b=c.csv", label = "height, cm"', Choice("csv", "a,b=c.csv", {"label": "height, cm"})),
        ('csv,label="a ""b"" c",x=1', Choice("csv", None, {"label": 'a "b" c', "x": "1"})),
        ('csv:6"pipes.csv,label=12"', Choice("csv", '6"pipes.csv', {"label": '12"'})),
        ("k-regular:4", Choice("k-regular", "4")),
        ("fedprox,mu=0.1", Choice("fedprox", None, {"mu": "0.1"})),
        (" dirichlet : 0.3 , at-least = 5 ", Choice("dirichlet", "0.3", {"at-least": "5"})),
        ("python:mypkg.nets:build", Choice("python", "mypkg.nets:build")),
        ("csv,where=a=b", Choice("csv", None, {"where": "a=b"})),
    ],
)
def test_parse(text: str, choice: Choice) -> None:
    assert parse_choice(text) == choice


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no name"),
        (":4", "has no name"),
        ("ring:", "nothing after the colon; write ring"),
        ("a,b", '"b" in "a,b" is not a setting; write key=value'),
        ("a,=1", "is not a setting"),
        ("a,b=", "is not a setting"),
        ("a,b=1,b=2", '"b" is set twice'),
    ],
)
def test_what_is_not_in_the_grammar_is_refused(text: str, words: str) -> None:
    with pytest.raises(ChoiceError, match=words):
        parse_choice(text)


def test_values_are_spelled_as_the_grammar_reads_them() -> None:
    assert str(Choice("mlp", (64, 300, 10), {"bias": True, "rate": 0.5})) == "mlp:64+300+10,bias=true,rate=0.5"


@pytest.mark.parametrize(
    ("data", "choice"),
    [
        ("k-regular:4", Choice("k-regular", "4")),
        ({"k-regular": 4}, Choice("k-regular", 4)),
        ({"k-regular": {"degree": 4}}, Choice("k-regular", None, {"degree": 4})),
        (Choice("ring"), Choice("ring")),
    ],
)
def test_yaml_says_the_same(data: object, choice: Choice) -> None:
    assert from_data(data) == choice


@pytest.mark.parametrize("data", [3, None, ["ring"], {"a": 1, "b": 2}, {}, {1: 2}])
def test_other_data_is_no_choice(data: object) -> None:
    with pytest.raises(ChoiceError):
        from_data(data)


def test_settings_beside_a_name_are_told_where_they_belong() -> None:
    with pytest.raises(ChoiceError, match=r"found csv, label, .*write its settings inside it, \{csv: \{key: value\}\}"):
        from_data({"csv": "ward.csv", "label": "outcome"})


def test_chains_are_joined_by_a_stroke_or_listed() -> None:
    wanted = (Choice("dirichlet", "0.3"), Choice("swap", None, {"peers": "7"}))
    assert chain("dirichlet:0.3/swap,peers=7") == chain(["dirichlet:0.3", "swap,peers=7"]) == wanted
    assert chain({"iid": None}) == (Choice("iid"),)
    with pytest.raises(ChoiceError, match="leave the setting out"):
        chain([])


def nothing() -> None: ...


def everything(
    place: int,
    *,
    degree: int = 4,
    rate: float = 0.5,
    sizes: tuple[int, ...] | None = None,
    kind: Literal["lstm", "gru"] = "lstm",
    keep: bool = False,
    label: str = "",
    levels: Literal[1, 2] = 1,
    limit: int | float | None = None,
) -> None: ...


def needing(*, degree: int) -> None: ...


@pytest.mark.parametrize(
    ("data", "bound"),
    [
        ("x", {}),
        ("x:4", {"degree": 4}),
        ("x,degree=4", {"degree": 4}),
        ({"x": 4}, {"degree": 4}),
        ({"x": {"degree": 4.0}}, {"degree": 4}),
        ("x,rate=1e-4", {"rate": 1e-4}),
        ({"x": {"rate": 1}}, {"rate": 1.0}),
        ("x,sizes=64+300+10", {"sizes": (64, 300, 10)}),
        ({"x": {"sizes": [64, "300"]}}, {"sizes": (64, 300)}),
        ("x,sizes=64", {"sizes": (64,)}),
        ({"x": {"sizes": 64}}, {"sizes": (64,)}),
        ("x,sizes=none", {"sizes": None}),
        ({"x": {"sizes": None}}, {"sizes": None}),
        ("x,kind=gru", {"kind": "gru"}),
        ("x,levels=2", {"levels": 2}),
        ("x,keep=true", {"keep": True}),
        ({"x": {"keep": False}}, {"keep": False}),
        ("x,label=12", {"label": "12"}),
        ("x,limit=0.5", {"limit": 0.5}),
        ("x,limit=3", {"limit": 3}),
    ],
)
def test_settings_are_converted_by_the_functions_annotations(data: object, bound: dict[str, Any]) -> None:
    found = bind_settings(from_data(data), everything)
    assert found == bound
    assert [type(value) for value in found.values()] == [type(value) for value in bound.values()]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("x,degree=four", ["degree = four", "whole number"]),
        ("x,degree=1.5", ["degree = 1.5", "whole number"]),
        ("x,degree=inf", ["degree = inf"]),
        ({"x": {"degree": True}}, ["degree = True", "whole number"]),
        ("x,rate=fast", ["rate = fast", "write a number"]),
        ("x,rate=nan", ["rate = nan", "finite"]),
        ("x,sizes=64+x", ["sizes = x", "whole number"]),
        ("x,kind=rnn", ["kind = rnn", "lstm, gru"]),
        ({"x": {"label": [["a", "b"]]}}, ["label: found [['a', 'b']]", "one value"]),
        ("x,keep=yes", ["keep = yes", "true or false"]),
        ("x,degre=4", ['"degre"', 'did you mean "degree"?']),
        ("x,zzz=4", ['"zzz"', "known: degree"]),
        ("x:4,degree=4", ["degree twice"]),
        ("x:rate=0.1,degree=4", ["colon before a setting that has a name", "write x,rate=0.1,degree=4"]),
    ],
)
def test_a_setting_that_cannot_be_taken_names_itself_and_the_way_out(data: object, words: list[str]) -> None:
    with pytest.raises(ChoiceError) as refusal:
        bind_settings(from_data(data), everything)
    assert all(word in str(refusal.value) for word in ["x", *words]), refusal.value


def test_a_function_without_settings_takes_none() -> None:
    assert bind_settings(parse_choice("x"), nothing) == {}
    for text in ("x:4", "x,degree=4"):
        with pytest.raises(ChoiceError, match=r"takes no value|has no settings"):
            bind_settings(parse_choice(text), nothing)


def test_a_setting_without_default_is_asked_for() -> None:
    with pytest.raises(ChoiceError, match=r"write x,degree=\.\.\."):
        bind_settings(parse_choice("x"), needing)
    assert bind_settings(parse_choice("x:2"), needing) == {"degree": 2}


def test_lookup_names_the_nearest_choice_or_all() -> None:
    registry: Mapping[str, Any] = {"ring": nothing, "k-regular": everything}
    assert lookup(parse_choice("k-regular:4"), registry, "topology") is everything
    with pytest.raises(ChoiceError, match=r'there is no topology "k-regluar"; did you mean "k-regular"\?'):
        lookup(parse_choice("k-regluar:4"), registry, "topology")
    with pytest.raises(ChoiceError, match="known: k-regular, ring"):
        lookup(parse_choice("zzz"), registry, "topology")
    assert nearest_name("rnig", ["ring", "star"]) == 'did you mean "ring"?'
    assert nearest_name("choco", ["cocoa", "choco-sgd"]) == 'did you mean "choco-sgd"?'


@pytest.mark.parametrize(("name", "meant"), [("RING", "ring"), ("Sgd", "SGD"), ("adamw", "AdamW")])
def test_a_name_in_other_capitals_is_near(name: str, meant: str) -> None:
    assert nearest_name(name, ["ring", "SGD", "AdamW"]) == f'did you mean "{meant}"?'


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("3", 3),
        ("1e+5", 1e5),
        ("-0.5", -0.5),
        ("True", True),
        ("0.9+0.99", (0.9, 0.99)),
        ("relu", "relu"),
        (["1", 2], (1, 2)),
    ],
)
def test_a_text_without_an_annotation_stands_for_what_it_looks_like(text: object, meaning: object) -> None:
    found = plain_value(text)
    assert (found, type(found)) == (meaning, type(meaning))


@pytest.mark.parametrize(
    "choice",
    [parse_choice('csv:a.csv,drop=""'), Choice("csv", "a.csv", {"drop": [""]}), parse_choice('csv:a.csv,drop=""+id')],
)
def test_a_column_without_a_name_is_found_again_in_the_text_of_a_choice(choice: Choice) -> None:
    def csv(*, path: str, drop: tuple[str, ...]) -> None: ...

    again = parse_choice(str(choice))
    assert bind_settings(again, csv) == bind_settings(choice, csv)
    assert bind_settings(again, csv)["drop"][0] == ""


def test_each_item_may_be_quoted() -> None:
    """The first and the last quote are of two items, and not of one value."""

    def columns(*, classes: tuple[str, ...], drop: tuple[str, ...]) -> None: ...

    choice = parse_choice('csv,classes="A+"+"B-",drop=x+"a, b"')
    assert bind_settings(choice, columns) == {"classes": ("A+", "B-"), "drop": ("x", "a, b")}


def test_a_class_of_a_cell_is_to_be_put_into_a_file() -> None:
    """Its name there, __main__, is none that a process of training could import."""
    loop = type("Loop", (), {"__module__": "__main__"})
    with pytest.raises(ChoiceError, match=r"into a file, such as loops.py, python:loops:Loop$"):
        from_data(loop)
