"""Settings that peers agree on: types and ranges, and a digest that covers the contract and nothing else."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpeer.config.choice import Choice
from fedpeer.config.federation import Federation
from fedpeer.config.problems import ConfigError
from fedpeer.config.settings import MAX_EXCHANGES, LearningSettings
from fedpeer.learning.local_task import budget
from fedpeer.slicing.models import PartialModel

#: `federation.yaml` of three hospital wards, as YAML 1.2 reads it.
WARDS: dict[str, Any] = {
    "name": "wards",
    "network": {"mlp": {"layers": [561, 300, 100, 6], "activation": "sigmoid"}},
    "partial_models": {
        "everyone": {"neurons": {"input": "all", "hidden1": 250, "hidden2": 80, "output": "all"}},
        "ward-a": {
            "depends_on": ["everyone"],
            "neurons": {"hidden1": 50, "hidden2": [7, 8]},
            "members": ["peer1", "peer3"],
        },
    },
    "learning": {
        "algorithm": "partial-averaging",
        "loss": "cross-entropy",
        "optimizer": {"sgd": {"lr": 0.1, "momentum": 0.9}},
        "batch_size": 10,
        "steps_between_averaging": 50,
        "rounds": 100,
        "evaluate_every": 5,
        "weights": "uniform",
        "buffers": "average",
        "optimizer_state": "keep",
    },
    "gossip": {"protocol": "push-sum", "topology": "k-regular:4", "tolerance": 1e-4},
    "seed": 0,
    "simulation": {"peers": 16, "dataset": "har", "split": "user"},
}


def changed(path: str, value: object) -> dict[str, Any]:
    """Return WARDS with the value at a dotted path replaced."""
    first, _, rest = path.partition(".")
    if not rest:
        return {**WARDS, first: value}
    inside = dict(WARDS[first])
    names = rest.split(".")
    at: dict[str, Any] = inside
    for name in names[:-1]:
        at[name] = dict(at[name])
        at = at[name]
    at[names[-1]] = value
    return {**WARDS, first: inside}


def test_a_whole_file_is_understood() -> None:
    found = Federation.model_validate(WARDS)
    assert found.network == Choice("mlp", None, {"layers": [561, 300, 100, 6], "activation": "sigmoid"})
    assert found.gossip.topology == Choice("k-regular", "4")
    assert found.simulation.split == (Choice("user"),)
    assert found.models() == (
        PartialModel("everyone", (), {"input": "all", "hidden1": 250, "hidden2": 80, "output": "all"}, (), "all"),
        PartialModel("ward-a", ("everyone",), {"hidden1": 50, "hidden2": (7, 8)}, (), ("peer1", "peer3")),
    )


def test_an_empty_file_is_the_default_federation() -> None:
    found = Federation.model_validate({})
    assert (found.learning.rounds, found.learning.batch_size, found.learning.steps_between_averaging) == (30, 1, 87)
    assert found.learning.optimizer == Choice("sgd", None, {"lr": "0.1"})
    assert found.simulation.dataset == Choice("digits")
    assert found.models() == ()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("learning.rounds", 0),
        ("learning.rounds", "100"),
        ("learning.rounds", 1.5),
        ("learning.batch_size", True),
        ("learning.algoritm", "local"),
        ("learning.loss", "hinge"),
        ("learning.steps_between_averaging", 0),
        ("learning.optimizer", "sgd,lr"),
        ("learning.weights", "by-size"),
        ("gossip.tolerance", 0.0),
        ("gossip.tolerance", 1.0),
        ("gossip.tolerance", float("nan")),
        ("gossip.exchanges", 0),
        ("gossip.protocol", "flood"),
        ("partial_models.ward-a.neurons", {"hidden1": -1}),
        ("partial_models.ward-a.neurons", {"hidden1": "some"}),
        ("partial_models.ward-a.memberz", ["peer1"]),
        ("simulation.peers", 0),
        ("seed", -1),
        ("seed", 2**63),
        ("unheard_of", 1),
    ],
)
def test_out_of_range_unknown_or_of_another_type_is_refused_where_it_stands(path: str, value: object) -> None:
    with pytest.raises(ConfigError) as refusal:
        Federation.model_validate(changed(path, value))
    places = [problem.dotted for problem in refusal.value.problems]
    assert places
    assert all(place.startswith(path) for place in places), places


def shuffled(value: Any, random: Random) -> Any:
    """Return the same data with the keys of every mapping in another order."""
    if not isinstance(value, dict):
        return value
    keys = list(value)
    random.shuffle(keys)
    return {key: shuffled(value[key], random) for key in keys}


@pytest.fixture(scope="module")
def wanted() -> str:
    """The digest of the unchanged WARDS."""
    return Federation.model_validate(WARDS).digest()


@pytest.mark.slow
@settings(max_examples=20)
@given(random=st.randoms(use_true_random=False))
def test_the_digest_does_not_depend_on_the_order_of_keys(wanted: str, random: Random) -> None:
    assert Federation.model_validate(shuffled(WARDS, random)).digest() == wanted


def test_nor_on_the_order_of_the_settings_of_a_choice() -> None:
    turned = [changed("learning.optimizer", given) for given in ("sgd,lr=0.1,momentum=0.9", "sgd,momentum=0.9,lr=0.1")]
    assert {Federation.model_validate(each).digest() for each in (WARDS, *turned)} == {
        Federation.model_validate(WARDS).digest()
    }


@pytest.mark.parametrize("simulation", [{}, {"peers": 5, "dataset": "mnist", "normalise": "minmax"}])
def test_nor_on_how_it_is_simulated(simulation: dict[str, Any]) -> None:
    other = Federation.model_validate(changed("simulation", simulation))
    assert other.digest() == Federation.model_validate(WARDS).digest()
    assert other != Federation.model_validate(WARDS)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("name", "other"),
        ("network", "mlp"),
        ("network", {"mlp": {"layers": [561, 300, 101, 6], "activation": "sigmoid"}}),
        ("partial_models.ward-a.neurons", {"hidden1": 49}),
        ("partial_models.ward-a.members", ["peer1"]),
        ("learning.optimizer", "sgd,lr=0.2,momentum=0.9"),
        ("learning.rounds", 101),
        ("learning.buffers", "local"),
        ("gossip.topology", "ring"),
        ("gossip.tolerance", 1e-5),
        ("seed", 1),
    ],
)
def test_the_digest_covers_all_that_peers_must_agree_on(path: str, value: object) -> None:
    digest = Federation.model_validate(changed(path, value)).digest()
    assert digest != Federation.model_validate(WARDS).digest()
    assert len(digest) == 64


def test_a_stored_federation_of_another_release_is_refused_in_a_sentence() -> None:
    with pytest.raises(ConfigError, match="since another release wrote it") as caught:
        Federation.stored({"learning": {"rounds": 3, "later": 1}})
    assert [each.dotted for each in caught.value.problems] == ["learning.later"]


def test_what_is_dumped_is_read_back() -> None:
    found = Federation.model_validate(WARDS)
    again = Federation.model_validate(found.model_dump(mode="json"))
    assert again.digest() == found.digest()
    assert again.models() == found.models()


@pytest.mark.parametrize(
    ("gossip", "bound"),
    [
        ({}, MAX_EXCHANGES),
        ({"topology": "ring", "protocol": "push-pull", "wire": "int8"}, MAX_EXCHANGES),
        ({"max_exchanges": 9}, 9),
        ({"tolerance": 1e-4, "max_exchanges": 9}, 9),
        ({"tolerance": 1e-4}, None),
        ({"exchanges": 9}, None),
        ({"exchanges": None}, None),
        ({"max_exchanges": None}, None),
        ({"protocol": "exact"}, None),
        ({"protocol": "coordinator"}, None),
        ({"privacy": "noise"}, None),
    ],
    ids=str,
)
def test_exchanges_are_bounded_unless_something_else_is_asked_for(gossip: dict[str, Any], bound: int | None) -> None:
    found = Federation.model_validate({"gossip": gossip}).gossip
    assert found.max_exchanges == bound
    assert found.model_fields_set == set(gossip), "a default is not among the settings that the user named"


@pytest.mark.parametrize(
    ("learning", "wanted"),
    [
        ({}, (1, 87)),
        ({"batch_size": 8, "steps_between_averaging": 5}, (8, 5)),
        ({"batch_size": 8, "steps_between_averaging": "pass"}, (8, 3)),
        ({"batch_size": 8, "steps_between_averaging": "pass", "passes": 5}, (8, 15)),
        ({"batch_size": 50, "steps_between_averaging": "pass", "passes": 5}, (20, 5)),
    ],
)
def test_a_round_has_a_number_of_updates_or_of_passes(learning: dict[str, Any], wanted: tuple[int, int]) -> None:
    assert budget(LearningSettings.model_validate(learning), 20) == wanted
