"""The rule book: settings that do not go together, whichever interface they come from."""

from __future__ import annotations

from typing import Any

import pytest

from fedpeer.config.choice import Choice, parse_choice
from fedpeer.config.federation import Federation
from fedpeer.config.problems import ConfigError, Path
from fedpeer.config.rules import PEERS, RULES, Combination, problems_of, used_by
from tests.config.refusals import refusals


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ({"learning": {"mode": "asynchronous", "weights": "samples"}}, ("learning", "mode")),
        ({"learning": {"mode": "asynchronous"}, "gossip": {"protocol": "exact"}}, ("learning", "mode")),
        ({"learning": {"passes": 5}}, ("learning", "passes")),
        ({"learning": {"passes": 5, "steps_between_averaging": "pass"}}, None),
        ({"gossip": {"deadline": 0.01}}, ("gossip", "deadline")),
        ({"gossip": {"wire": "float16"}}, ("gossip", "wire")),
        ({"gossip": {"wire": "float32/gzip"}}, ("gossip", "wire")),
        ({"gossip": {"wire": "top-k"}}, ("gossip", "wire")),
        ({"learning": {"mode": "asynchronous"}}, None),
        ({"gossip": {"wire": "top-k:0.1/zstd,level=5"}}, None),
    ],
)
def test_how_peers_take_turns_and_what_they_send(settings: dict[str, Any], place: Path | None) -> None:
    found = refusals(settings)
    assert [problem.path for problem in found] == ([] if place is None else [place])


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        (
            {
                "learning": {"algorithm": "fedavg", "aggregation": "krum:2", "participation": 0.5},
                "simulation": {"peers": 12},
            },
            "aggregation",
        ),
        (
            {
                "learning": {"algorithm": "fedavg", "aggregation": "krum:2", "participation": 0.5},
                "simulation": {"peers": 13},
            },
            None,
        ),
        (
            {"learning": {"aggregation": "krum:2"}},
            None,
        ),  # the number of participants is known only with the data
        ({"learning": {"aggregation": "krum:2", "privacy": "gaussian"}}, "privacy"),
        ({"learning": {"aggregation": "krum:2", "privacy": "gaussian,where=client"}}, None),
        ({"learning": {"farthest": 3.0, "privacy": "gaussian"}}, "privacy"),
        ({"learning": {"farthest": 3.0}, "simulation": {"peers": 2}}, "farthest"),
        ({"learning": {"farthest": 3.0}, "simulation": {"peers": 3}}, None),
        ({"learning": {"farthest": 3.0, "participation": 0.3}, "simulation": {"peers": 8}}, "farthest"),
        ({"learning": {"farthest": 3.0, "participation": 0.3125}, "simulation": {"peers": 8}}, None),
        ({"learning": {"farthest": 3.0, "aggregation_goal": 2}, "simulation": {"peers": 8}}, "farthest"),
        ({"learning": {"farthest": 3.0, "aggregation_goal": 3}, "simulation": {"peers": 8}}, None),
        ({"learning": {"farthest": 3.0, "privacy": "gaussian,where=client"}}, None),
    ],
)
def test_who_may_lie_and_what_is_hidden(settings: dict[str, Any], place: str | None) -> None:
    found = refusals({**settings, "learning": {"algorithm": "fedavg", **settings["learning"]}})
    assert [problem.path for problem in found] == ([] if place is None else [("learning", place)])


@pytest.mark.parametrize("learning", [{"aggregation": "median"}, {"privacy": "gaussian"}, {"farthest": 10}])
def test_peers_that_are_equals_have_nobody_who_aggregates(learning: dict[str, Any]) -> None:
    assert [problem.path for problem in refusals({"learning": learning})] == [("learning", each) for each in learning]
    methods = (Choice("local"), Choice("fedavg"))
    together = Combination(federation=Federation.stored({"learning": learning}), methods=methods, compared=True)
    assert problems_of(together) == [], "a simulation may compare them with an algorithm with a server"


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({}, None),
        ({"learning": {"algorithm": "full-averaging", "weights": "samples"}}, None),
        ({"learning": {"mode": "asynchronous"}}, ("learning", "mode")),
        ({"gossip": {"protocol": "coordinator", "wire": "int8"}}, ("gossip", "wire")),
        ({"gossip": {"protocol": "coordinator", "wire": "float32/zstd"}}, ("gossip", "wire")),
    ],
)
def test_a_coordinator_takes_averages_round_by_round_as_they_are(changes: dict[str, Any], place: Path | None) -> None:
    settings = {"gossip": {"protocol": "coordinator"}} | changes
    assert [problem.path for problem in refusals(settings, PEERS)] == ([] if place is None else [place])


@pytest.mark.parametrize(
    ("learning", "place"),
    [
        ({"algorithm": "fedavg", "aggregation": "median", "privacy": "gaussian,where=client"}, None),
        ({"algorithm": "python:mypkg.mine:Slow"}, None),
        ({"algorithm": "fedavg", "mode": "asynchronous"}, ("learning", "mode")),
    ],
)
def test_real_peers_play_algorithms_with_a_server(learning: dict[str, Any], place: Path | None) -> None:
    assert [problem.path for problem in refusals({"learning": learning}, PEERS)] == ([] if place is None else [place])


#: A network of one peer's own.
OTHER = {"peer5": "mlp:64+9+10"}
KIN = {"everyone": {"neurons": {"hidden1": 4}}, "kin": {"members": "alike", "neurons": {"hidden1": 4}}}
MANY: dict[str, Any] = {f"partial-model-{number:02}": {} for number in range(40)}
NOISY = {"privacy": "noise"}


def slice_of(gossip_of_slice: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """Return settings with a partial model that is averaged in a way of its own."""
    model = {"neurons": {"input": "all", "output": "all"}, "gossip": gossip_of_slice}
    return {"network": "mlp:64+4+10", "partial_models": {"core": model}, **settings}


def stepping(**settings: Any) -> dict[str, Any]:
    """Return settings with a partial model that takes outer steps."""
    model = {"neurons": {"input": "all", "output": "all"}, "outer": "nesterov"}
    return {"network": "mlp:64+4+10", "partial_models": {"core": model}, **settings}


#: Each rule, and settings, methods and options of a run that break it.
BREAKING: dict[str, dict[str, Any]] = {
    "a tolerance and a number of exchanges": {"gossip": {"tolerance": 1e-3, "exchanges": 4}},
    "a number of exchanges and a bound on it": {"gossip": {"max_exchanges": 3, "exchanges": 4}},
    "neither a tolerance nor a number of exchanges": {"gossip": {"tolerance": None}},
    "a slice with a tolerance and a number of exchanges": slice_of({"tolerance": 1e-3, "exchanges": 4}),
    "a slice with a bound on exchanges, and no tolerance of its own": slice_of({"max_exchanges": 3}),
    "a slice with a coordinator, and a graph or exchanges of its own": slice_of(
        {"protocol": "coordinator", "topology": "star"}
    ),
    "a slice with a rhythm, exchanges or a deadline of its own, and asynchronous averaging": slice_of(
        {"every": 2}, learning={"mode": "asynchronous"}
    ),
    "a slice with gossip of its own, and an algorithm that does not average partial models": slice_of(
        {"every": 2}, methods=["full-averaging", "fedavg"]
    ),
    "an outer optimizer, and an algorithm that averages no model, or not a model alone": {
        "learning": {"outer": "nesterov"},
        "methods": ["full-averaging", "gradient-tracking"],
    },
    "an outer optimizer of a slice, and an algorithm that does not average partial models": stepping(
        methods=["full-averaging"]
    ),
    "an outer optimizer, and asynchronous peers": stepping(learning={"mode": "asynchronous"}),
    "an outer optimizer, and event-triggered averaging": stepping(gossip={"drift": 0.1}),
    "an outer optimizer, and members that the peers find": {
        "network": "mlp:64+8+10",
        "partial_models": KIN,
        "learning": {"outer": "sgd"},
    },
    "a slice with one exchange, and event-triggered averaging": slice_of(
        {"exchanges": 1}, gossip={"exchanges": 2, "drift": 0.1}
    ),
    "a coordinator and a wire encoding other than float32": {"gossip": {"protocol": "coordinator", "wire": "int8"}},
    "a slice with a coordinator and a wire encoding other than float32": slice_of(
        {"protocol": "coordinator"}, gossip={"wire": "int8"}
    ),
    "a topology that the peers cannot form": {"gossip": {"topology": "k-regular:9"}, "simulation": {"peers": 9}},
    "a noise phase with push-pull": {"gossip": {**NOISY, "protocol": "push-pull"}},
    "a noise phase on a graph that is drawn anew": {"gossip": {**NOISY, "topology": "el-oracle"}},
    "asynchronous peers on a graph that is drawn anew": {
        "gossip": {"topology": "el-local:1"},
        "learning": {"mode": "asynchronous"},
    },
    "a noise phase with a coordinator": {"gossip": {**NOISY, "protocol": "coordinator"}},
    "a noise phase in asynchronous averaging": {"gossip": NOISY, "learning": {"mode": "asynchronous"}},
    "a noise phase and sparse values (top-k)": {"gossip": {**NOISY, "wire": "top-k:0.1"}},
    "a noise phase and sparse values (top-k) of a slice": slice_of({"wire": "top-k:0.1"}, gossip=NOISY),
    "a noise phase and an algorithm that sends everything to a server": {
        "gossip": NOISY,
        "methods": ["local", "fedavg"],
    },
    "event-triggered averaging with a coordinator": {"gossip": {"drift": 0.1, "protocol": "coordinator"}},
    "event-triggered averaging with a noise phase": {"gossip": {"drift": 0.1, **NOISY}},
    "event-triggered averaging in one exchange": {"gossip": {"drift": 0.1, "exchanges": 1}},
    "passes and a number of local steps": {"learning": {"passes": 2}},
    "class weights and a loss of something else": {
        "learning": {"class_weights": "balanced", "loss": "huber", "batch_size": 8}
    },
    "class weights and an algorithm with a loss of its own": {
        "learning": {"class_weights": "balanced", "batch_size": 8},
        "methods": ["local", "mocha", "pfedvem-gossip"],
    },
    "class weights and a network with its own learning rule": {
        "learning": {"class_weights": "balanced", "batch_size": 8},
        "network": "associative",
    },
    "class weights and batches of one example": {"learning": {"class_weights": "balanced"}},
    "a deadline shorter than a tick": {"gossip": {"deadline": 0.01}},
    "asynchronous averaging with weights that start anew": {"learning": {"mode": "asynchronous", "weights": "samples"}},
    "asynchronous averaging by another protocol than push-sum": {
        "learning": {"mode": "asynchronous"},
        "gossip": {"protocol": "exact"},
    },
    "asynchronous peers and a server": {"learning": {"mode": "asynchronous"}, "methods": ["fedavg"]},
    "asynchronous peers and an algorithm with its own push-sum weights": {
        "learning": {"mode": "asynchronous"},
        "methods": ["pfedvem-gossip"],
    },
    "asynchronous peers and averages of more than models": {
        "learning": {"mode": "asynchronous"},
        "methods": ["gradient-tracking"],
    },
    "averages of more than models with weights by samples": {
        "learning": {"weights": "samples"},
        "methods": ["gradient-tracking"],
    },
    "averages that are divided by one another with a coarse wire encoding": {
        "gossip": {"wire": "int8/zstd"},
        "methods": ["choco-sgd", "dispfl"],
    },
    "averages that are divided by one another with a noise phase": {"gossip": NOISY, "methods": ["dispfl"]},
    "more Byzantine clients than the rule tolerates among those that take part": {
        "learning": {"aggregation": "krum:2"},
        "methods": ["fedavg"],
        "simulation": {"peers": 6},
    },
    "a bound on updates among fewer than three": {
        "learning": {"farthest": 3.0, "participation": 0.25},
        "methods": ["fedavg"],
        "simulation": {"peers": 8},
    },
    "noise for a sum of updates and an aggregation rule without a sum": {
        "learning": {"aggregation": "median", "privacy": "gaussian"},
        "methods": ["fedavg"],
    },
    "noise for a sum of updates and a bound on updates": {
        "learning": {"farthest": 3.0, "privacy": "gaussian"},
        "methods": ["fedavg"],
    },
    "an aggregation rule without a server": {"learning": {"aggregation": "median"}},
    "noise on updates without a server": {"learning": {"privacy": "gaussian"}},
    "a bound on updates without a server": {"learning": {"farthest": 3.0}},
    "an aggregation goal without a server": {"learning": {"aggregation_goal": 3}},
    "an aggregation goal and a draw of participants": {
        "learning": {"algorithm": "fedavg", "aggregation_goal": 3, "participation": 0.5}
    },
    "an aggregation goal above the number of peers": {
        "learning": {"algorithm": "fedavg", "aggregation_goal": 9},
        "simulation": {"peers": 8},
        "engine": "network",
    },
    "an aggregation goal without time": {
        "learning": {"algorithm": "fedavg", "aggregation_goal": 3},
        "engine": "vector",
    },
    "partial models that contradict one another, the network or the peers": {
        "partial_models": {"a": {"depends_on": ["b"]}}
    },
    "members of several partial models to be found with different examples": {
        "partial_models": {**KIN, "more": {"members": "alike,kept_back=0.5", "neurons": {"hidden1": 2}}}
    },
    "members to be found after the last round": {"partial_models": KIN, "learning": {"rounds": 9}},
    "members to be found while no model is averaged by all": {"partial_models": {"kin": KIN["kin"]}},
    "members to be found for a model that owns nothing": {
        "partial_models": {"everyone": {}, "kin": {"members": "alike"}}
    },
    "groups to be found, and a model with the name of one": {"partial_models": {**KIN, "kin1": {}}},
    "members to be found, and event-triggered averaging": {"partial_models": KIN, "gossip": {"drift": 0.1}},
    "members to be found, and your own edges": {
        "partial_models": KIN,
        "gossip": {"topology": "edges:peer1-peer2"},
    },
    "networks of peers that do not exist": {"partial_models": KIN, "simulation": {"peers": 4, "networks": OTHER}},
    "several networks for one peer": {
        "partial_models": {"pair": {"members": ["peer1", "peer5"]}},
        "simulation": {"networks": {**OTHER, "pair": "mlp:4"}},
    },
    "different networks, and no partial models": {"simulation": {"networks": OTHER}},
    "different networks, and an algorithm for one network": {
        "partial_models": {"everyone": {"neurons": "all"}},
        "simulation": {"networks": OTHER},
        "methods": ["fedavg"],
    },
    "different networks, and members to be found": {"partial_models": KIN, "simulation": {"networks": OTHER}},
    "an algorithm that is named twice": {"methods": ["local", "local"]},
    "faults without a network": {"faults": "7", "engine": "processes"},
    "the address of a cluster without Ray": {"address": "auto", "engine": "network"},
    "shards without Ray": {"shards": 2, "engine": "vector"},
    "asynchronous peers without messages": {"learning": {"mode": "asynchronous"}, "engine": "vector"},
    "wire encodings without messages": {"gossip": {"wire": "int8"}, "engine": "vector"},
    "a slice's wire encoding without messages": slice_of({"wire": "int8"}, engine="vector"),
    "a noise phase on shards of Ray": {"gossip": NOISY, "engine": "ray"},
    "event-triggered averaging on shards of Ray": {"gossip": {"drift": 0.1}, "engine": "ray"},
    "an accelerator and Ray": {"device": "cuda", "engine": "ray", "several": True},
    "an accelerator and peers in virtual time": {"device": "cuda", "engine": "network"},
    "members to be found by whole peers": {"partial_models": KIN, "engine": "network"},
    "members to be found by real peers": {"partial_models": KIN, "engine": PEERS},
    "different networks on a Ray cluster": {
        "partial_models": {"everyone": {"neurons": "all"}},
        "simulation": {"networks": OTHER},
        "engine": "ray",
        "shards": 2,
    },
    "pooled examples, and peers with separate examples": {"methods": ["global"], "engine": "network"},
    "pooled examples, and real peers": {"methods": ["global"], "engine": PEERS},
    "a fold without validation": {"simulation": {"dataset": "csv:ward.csv,label=outcome", "fold": 1}},
    "a fold that validation does not leave": {"simulation": {"validation": 0.2, "fold": 5}},
    "partial models too large for messages": {"partial_models": MANY, "engine": "network"},
    "partial models too large for messages of real peers": {"partial_models": MANY, "engine": PEERS},
    "Python objects and processes": {"objects": ("data",), "engine": "processes"},
    "more than 64 processes": {"simulation": {"peers": 65}, "engine": "processes"},
}


def combination(given: dict[str, Any]) -> Combination:
    settings = {name: value for name, value in given.items() if name in Federation.model_fields}
    options = {name: value for name, value in given.items() if name not in (*settings, "methods")}
    methods = tuple(map(parse_choice, given.get("methods", ["partial-averaging"])))
    return Combination(federation=Federation.stored(settings), methods=methods, compared=True, **options)


def test_every_rule_has_an_example_and_a_name_of_its_own() -> None:
    assert [rule.name for rule in RULES] == list(BREAKING)


@pytest.mark.parametrize("name", BREAKING)
def test_what_breaks_a_rule_is_told_where_it_stands(name: str) -> None:
    found = [problem for problem in problems_of(combination(BREAKING[name])) if problem.rule == name]
    assert found
    assert all(problem.path and problem.text and "{" not in problem.text for problem in found)


@pytest.mark.parametrize("method", ["gradient-tracking", "noloco", "choco-sgd", "dispfl"])
@pytest.mark.parametrize(
    "learning", [{"outer": "nesterov"}, {"weights": "samples"}, {"mode": "asynchronous"}], ids=lambda each: str(*each)
)
def test_what_needs_averages_of_models_alone_is_refused_for_others(method: str, learning: dict[str, Any]) -> None:
    (problem,) = problems_of(combination({"learning": learning, "methods": [method]}))
    assert problem.path[-1] == next(iter(learning))
    assert problem.text.startswith(f"{method} ")
    assert problems_of(combination({"learning": learning, "methods": ["full-averaging"]})) == []


def test_an_algorithm_of_a_cell_is_sent_to_a_file() -> None:
    """Training processes import it by name, and have another `__main__`."""
    with pytest.raises(ConfigError, match=r"into a file, such as loops\.py, and name it python:loops:Warmed"):
        Federation.model_validate({"learning": {"algorithm": "python:__main__:Warmed"}})


@pytest.mark.parametrize("weight", ["-1", "0", "nan", "10000000"])
def test_a_weight_of_a_class_that_is_none_is_named(weight: str) -> None:
    with pytest.raises(ConfigError, match=r"learning.class_weights +ill=.*: write a weight of more than 0"):
        Federation.model_validate({"learning": {"class_weights": f"well=1,ill={weight}"}})


@pytest.mark.parametrize("method", ["mocha", "cocoa", "minibatch-sgd", "pfedvem", "pfedvem-gossip", "global,lam=0.1"])
def test_losses_of_their_own_take_no_class_weights(method: str) -> None:
    """The error names each algorithm with a loss of its own, and none that trains by `learning.loss`."""
    learning = {"class_weights": {"ill": 3.0}, "batch_size": 8}
    others = ["global", "fedavg", "virtual", "ditto", "python:mine:Own"]
    (problem,) = problems_of(combination({"learning": learning, "methods": [method, *others]}))
    assert problem.text.startswith(f"{method} trains by a loss of its own")


def test_a_slices_topology_is_looked_at_like_the_federations() -> None:
    members = ["peer1", "peer2", "peer3"]
    for topology, text in (("rings", "ring"), ("k-regular:3", "there are only 3 peers"), ("k-regular:0", "degree")):
        settings = slice_of({"topology": topology}, simulation={"peers": 9})
        settings["partial_models"]["core"]["members"] = members
        (problem,) = refusals(settings)
        assert problem.path == ("partial_models", "core", "gossip", "topology")
        assert text in problem.text
    settings["partial_models"]["core"]["gossip"] = {"topology": "k-regular:2"}
    assert refusals(settings) == []


@pytest.mark.parametrize(
    "own", [{"topology": "star"}, {"wire": "int8"}, {"drift": 0.1}, {"protocol": "push-sum"}], ids=str
)
def test_asynchronous_slices_may_have_what_needs_no_rounds(own: dict[str, Any]) -> None:
    assert refusals(slice_of(own, learning={"mode": "asynchronous"})) == []
    assert refusals(slice_of({"mode": "asynchronous", **own})) == []


@pytest.mark.parametrize(
    ("own", "settings"),
    [
        ({"mode": "synchronous", "every": 2, "deadline": 5.0, **NOISY}, {}),
        ({"mode": "synchronous", "protocol": "coordinator"}, {}),
        ({"mode": "synchronous", "protocol": "exact"}, {}),
    ],
    ids=str,
)
def test_a_slice_may_have_rounds_where_the_others_have_none(own: dict[str, Any], settings: dict[str, Any]) -> None:
    assert refusals(slice_of(own, learning={"mode": "asynchronous"}, **settings), PEERS) == []


def test_outer_steps_need_slices_with_rounds() -> None:
    settings = slice_of({"mode": "asynchronous"}, learning={"outer": "nesterov"})
    (problem,) = refusals(settings)
    assert problem.path == ("partial_models", "core", "outer")
    settings["partial_models"]["core"]["outer"] = "none"
    assert refusals(settings) == []


@pytest.mark.parametrize("engine", ["vector", "ray"])
def test_an_asynchronous_slice_needs_an_engine_with_messages(engine: str) -> None:
    (problem,) = refusals(slice_of({"mode": "asynchronous"}), engine)
    assert (problem.path, problem.rule) == (
        ("partial_models", "core", "gossip"),
        "asynchronous peers without messages",
    )
    assert refusals(slice_of({"mode": "asynchronous"}), "network") == []
    assert refusals(slice_of({"mode": "synchronous", "deadline": 5.0}), engine) == []


@pytest.mark.parametrize(
    ("own", "settings"),
    [
        ({"drift": 0.1}, {"gossip": NOISY}),
        ({"drift": 0.1, **NOISY}, {}),
        (NOISY, {"gossip": {"drift": 0.1}}),
        (NOISY, {"gossip": {"protocol": "push-pull"}}),
        ({"protocol": "push-pull"}, {"gossip": NOISY}),
        ({"protocol": "exact"}, {"learning": {"mode": "asynchronous"}}),
        (NOISY, {"learning": {"mode": "asynchronous"}}),
        (NOISY, {"gossip": {"wire": "top-k:0.1"}}),
        ({"privacy": "noise,pushes=0"}, {}),
        ({"drift": 0.1}, {"learning": {"outer": "nesterov"}}),
        ({"drift": 0.1, "exchanges": 1}, {}),
        ({"drift": 0.1}, {"gossip": {"exchanges": 1}}),
        ({"topology": "el-oracle"}, {"gossip": NOISY}),
        (NOISY, {"gossip": {"topology": "el-local"}}),
        ({"topology": "el-local"}, {"learning": {"mode": "asynchronous"}}),
        ({"deadline": 0.01}, {}),
        ({"deadline": 5.0}, {"learning": {"mode": "asynchronous"}}),
        ({"mode": "asynchronous", "exchanges": 2}, {}),
        ({"mode": "asynchronous"}, {"learning": {"weights": "samples"}}),
        ({"mode": "asynchronous"}, {"gossip": {"protocol": "exact"}}),
        ({"mode": "asynchronous", "protocol": "coordinator"}, {}),
        ({"mode": "asynchronous"}, {"gossip": NOISY}),
        ({"mode": "asynchronous", **NOISY}, {}),
        ({"protocol": "coordinator", "exchanges": 1}, {}),
        ({"tolerance": 1e-3}, {"gossip": {"protocol": "coordinator"}}),
        ({"protocol": "coordinator", "wire": "int8"}, {}),
        ({"protocol": "coordinator"}, {"gossip": {"wire": "bfloat16"}}),
        ({"wire": "int8"}, {"gossip": {"protocol": "coordinator"}}),
        ({"protocol": "coordinator", "drift": 0.1}, {}),
        ({"protocol": "coordinator"}, {"gossip": {"drift": 0.1}}),
        ({"protocol": "coordinator"}, {"gossip": NOISY}),
        (NOISY, {"gossip": {"protocol": "coordinator"}}),
        ({"protocol": "coordinator"}, {"learning": {"mode": "asynchronous"}}),
        ({"wire": "int8/gzip"}, {}),
        ({"wire": "top-k:2"}, {}),
    ],
    ids=str,
)
def test_a_slices_drift_and_encoding_are_looked_at_like_the_federations(
    own: dict[str, Any], settings: dict[str, Any]
) -> None:
    (problem,) = refusals(slice_of(own, **settings))
    assert problem.path[:3] in {("partial_models", "core", "gossip"), ("learning", "outer")}
    assert refusals(slice_of({"drift": 0.1, "wire": "int8/zstd"})) == []


@pytest.mark.parametrize(
    ("own", "gossip"),
    [
        ({"protocol": "coordinator"}, {"topology": "star", "exchanges": 2}),
        ({"protocol": "coordinator", "every": 2, "wire": "float32"}, {"wire": "int8"}),
        ({"protocol": "coordinator", "privacy": "none"}, NOISY),
        ({"protocol": "push-sum", "topology": "star", "wire": "int8", "drift": 0.1}, {"protocol": "coordinator"}),
        ({"protocol": "push-sum", **NOISY}, {"protocol": "coordinator"}),
        ({"every": 2, "deadline": 5.0}, {"protocol": "coordinator"}),
    ],
    ids=str,
)
def test_one_slice_may_have_a_coordinator_and_another_one_exchange_shares(
    own: dict[str, Any], gossip: dict[str, Any]
) -> None:
    assert refusals(slice_of(own, gossip=gossip), PEERS) == []


def test_a_simulation_may_compare_a_slices_own_gossip_with_other_methods() -> None:
    together = combination({**slice_of({"every": 2}), "methods": ["partial-averaging", "full-averaging", "fedavg"]})
    assert problems_of(together) == []


def test_outer_steps_and_drift_are_in_the_way_of_each_other_in_one_slice_only() -> None:
    settings = stepping()
    other = {"depends_on": ["core"], "neurons": {"hidden1": 2}, "members": ["peer1", "peer2"], "gossip": {"drift": 0.1}}
    settings["partial_models"]["other"] = other
    assert not refusals(settings)
    (problem,) = refusals({**settings, "learning": {"outer": "sgd"}})
    assert problem.path == ("partial_models", "other", "gossip", "drift")
    other["outer"] = "sgd"
    (problem,) = refusals(settings)
    assert problem.path == ("partial_models", "other", "outer")


def test_an_outer_optimizer_is_refused_where_it_is_written() -> None:
    (problem,) = refusals(stepping(learning={"algorithm": "fedavg"}))
    assert problem.path == ("partial_models", "core", "outer")
    (problem,) = refusals({"learning": {"outer": "nesterov", "algorithm": "local"}})
    assert problem.path == ("learning", "outer")
    for outer, text in (("adam", "nesterov"), ("nesterov,lr=0", "lr = 0"), ("sgd,momentum=1", "momentum = 1")):
        settings = stepping()
        settings["partial_models"]["core"]["outer"] = outer
        (problem,) = refusals(settings)
        assert (problem.path, text in problem.text) == (("partial_models", "core", "outer"), True), problem.text
        (problem,) = refusals({"learning": {"outer": outer}})
        assert (problem.path, text in problem.text) == (("learning", "outer"), True), problem.text


def test_a_simulation_may_compare_outer_steps_with_methods_that_take_none() -> None:
    together = combination(stepping(methods=["partial-averaging", "full-averaging", "local", "fedavg"]))
    assert problems_of(together) == []


SERVED: dict[str, Any] = {"aggregation": "median", "privacy": "gaussian", "farthest": 3.0, "aggregation_goal": 3}


@pytest.mark.parametrize(
    ("settings", "lost"),
    [
        (slice_of({"every": 2}), {"local", "full-averaging", "fedavg"}),
        (stepping(), {"local", "full-averaging", "fedavg"}),
        ({"learning": {"outer": "nesterov"}}, {"local", "fedavg"}),
        ({"gossip": {"privacy": "noise"}}, {"fedavg"}),
        *(({"learning": {key: SERVED[key]}}, {"local", "partial-averaging", "full-averaging"}) for key in SERVED),
    ],
)
def test_each_of_the_methods_that_are_compared_is_a_federation_by_itself(
    settings: dict[str, Any], lost: set[str]
) -> None:
    """A method's federation drops the settings that the method does not use, and no others."""
    together = combination({**settings, "methods": ["local", "partial-averaging", "full-averaging", "fedavg"]})
    assert problems_of(together) == []
    for method in together.methods:
        federation = used_by(method, together.federation)
        assert problems_of(Combination.of(federation, PEERS)) == []
        kept = federation.model_copy(update={"learning": federation.learning.model_copy(update={"algorithm": "any"})})
        asked = together.federation
        asked = asked.model_copy(update={"learning": asked.learning.model_copy(update={"algorithm": "any"})})
        assert (kept != asked) == (method.name in lost), method


def test_a_rule_is_not_asked_about_what_is_wrong_by_itself() -> None:
    found = refusals({"learning": {"aggregation": "medium", "privacy": "gaussian,clip=0"}})
    assert [(problem.dotted, problem.rule) for problem in found] == [
        ("learning.aggregation", ""),
        ("learning.privacy", ""),
    ]


def test_settings_that_are_dumped_are_read_back() -> None:
    federation = Federation.model_validate({"gossip": {"exchanges": 4}, "simulation": {"peers": 3}})
    assert Federation.model_validate(federation.model_dump(mode="json")) == federation


@pytest.mark.parametrize(("goal", "liars", "works"), [(None, 2, True), (7, 2, True), (4, 2, False)])
def test_a_rule_has_to_tolerate_its_liars_among_as_many_updates_as_close_a_round(
    goal: int | None, liars: int, works: bool
) -> None:
    learning = {"algorithm": "fedavg", "aggregation": f"krum,liars={liars}", "aggregation_goal": goal}
    found = problems_of(combination({"learning": learning, "simulation": {"peers": 8}, "methods": ["fedavg"]}))
    assert (not found) is works, [problem.text for problem in found]


def test_parameters_are_something_that_a_model_owns() -> None:
    models = {"everyone": {}, "kin": {"members": "alike", "parameters": ["*.bias"]}}
    assert Federation.model_validate({"partial_models": models}).automatic == ("kin",)


def test_claims_of_adapters_are_no_claims_of_the_written_layers() -> None:
    """Only the network that has the adapters shows whether the numbers of neurons fit."""
    settings = {
        "network": "mlp:64+12+10",
        "partial_models": {"everyone": {"neurons": {"hidden1.lora_A": 2}}},
        "learning": {"lora": {"rank": 2, "targets": ["hidden1"]}},
    }
    assert Federation.model_validate(settings).learning.changes_network


def test_claims_are_looked_at_in_each_peers_own_network() -> None:
    models = {
        "everyone": {"neurons": {"hidden1": 20}},
        "large": {"neurons": {"hidden1": 20}, "members": ["peer2", "peer3"]},
    }
    settings = {"network": "mlp:64+30+10", "partial_models": models}
    fitting = {"peers": 4, "networks": {"large": "mlp:64+50+10"}}
    Federation.model_validate({**settings, "simulation": fitting})
    with pytest.raises(ConfigError, match=r"(?s)40.*neurons.*are.*claimed,.*hidden1.*has.*30(?!.*in.the.network)"):
        Federation.model_validate({**settings, "simulation": {"peers": 4}})
    smaller = {"peers": 4, "networks": {"large": "mlp:64+50+10", "peer4": "mlp:64+15+10"}}
    with pytest.raises(ConfigError, match=r"(?s)20 neurons are.*hidden1 has.*15.*\(in the network of\s+peer4\)"):
        Federation.model_validate({**settings, "simulation": smaller})


def test_a_network_of_one_peer_that_does_not_exist_is_told_with_its_place() -> None:
    misspelled = {"simulation": {"peers": 4, "networks": {"peer2": "mpl:64+50+10"}}}
    with pytest.raises(ConfigError, match=r"(?s)simulation\.networks\.peer2.*mpl.*mlp"):
        Federation.model_validate({"network": "mlp:64+30+10", **misspelled})
