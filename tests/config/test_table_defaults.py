"""Defaults for tables of the user's own: settings that are not chosen suit a table, and chosen ones stay."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from fedpeer.config.choice import parse_choice
from fedpeer.config.contract import contract_of, named
from fedpeer.config.federation import Federation
from fedpeer.config.problems import ConfigError
from fedpeer.config.settings import TABLE_LEARNING, TABLE_NETWORK, TABLES, LearningSettings

TABLE = {"dataset": "csv:ward.csv,label=outcome"}


def of(**settings: Any) -> Federation:
    return Federation.model_validate({"simulation": TABLE, **settings})


def test_a_table_has_the_defaults_of_tables() -> None:
    for kind in TABLES:
        found = of(simulation={"dataset": f"{kind}:ward.{kind},label=outcome"})
        assert found.network == TABLE_NETWORK
        assert {name: getattr(found.learning, name) for name in TABLE_LEARNING} == TABLE_LEARNING
    for data in ("digits", "npz:wards.npz", "images:folder"):
        other = of(simulation={"dataset": data})
        assert (other.network, other.learning) == (None, LearningSettings()), "of the papers"


@pytest.mark.parametrize("label", [",label=verdict", ""])
def test_a_table_of_text_has_a_network_that_reads_tokens(label: str) -> None:
    """It is chosen when the data are there."""
    found = of(simulation={"dataset": f"csv:reviews.csv{label},text=review,tokenizer=minilm"})
    assert found.network is None
    assert found.learning.optimizer == TABLE_LEARNING["optimizer"]


@pytest.mark.parametrize(
    ("name", "value"), [("optimizer", "sgd,lr=0.1"), ("batch_size", 1), ("steps_between_averaging", 87)]
)
def test_a_setting_that_is_chosen_stays_although_it_is_another_default(name: str, value: Any) -> None:
    found = of(learning={name: value}).learning
    assert getattr(found, name) == (parse_choice(value) if name == "optimizer" else value)
    rest = TABLE_LEARNING.keys() - {name}
    assert {each: getattr(found, each) for each in rest} == {each: TABLE_LEARNING[each] for each in rest}


def test_a_network_stays_and_so_do_the_neurons_that_partial_models_name() -> None:
    assert of(network="mlp").network == parse_choice("mlp")
    claimed = of(partial_models={"everyone": {"neurons": {"input": "all", "hidden1": 240, "output": "all"}}})
    assert claimed.network is None, "a network with other hidden layers may not have so many neurons"


def test_they_are_defaults_so_a_federation_that_began_with_others_keeps_them() -> None:
    """Only settings that a file names change the contract of a running federation."""
    assert json.loads(named(of())) == {}
    assert json.loads(named(of(learning={"rounds": 7}))) == {"learning": {"rounds": 7}}
    begun = contract_of(Federation.model_validate({}))
    assert "class_weights" not in begun["learning"], "as before there were weights"
    assert Federation.stored({**begun, "simulation": TABLE}).learning == LearningSettings()


def test_a_config_error_goes_to_another_process_with_all_its_problems() -> None:
    with pytest.raises(ConfigError) as caught:
        of(learning={"batch_size": 0, "rounds": 0})
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.problems) == (str(caught.value), caught.value.problems)
    assert len(again.problems) == 2


def test_settings_that_are_handed_in_stay_as_they_are() -> None:
    mine = LearningSettings(rounds=7)
    found = of(learning=mine).learning
    assert (found.rounds, found.batch_size) == (7, TABLE_LEARNING["batch_size"])
    assert mine.batch_size == LearningSettings().batch_size == 1
