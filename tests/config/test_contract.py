"""Contracts: their content, the peers that each setting concerns, and the report where two contracts differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpeer.config import contract as module
from fedpeer.config.choice import parse_choice
from fedpeer.config.contract import (
    KEYS,
    NEW_FEDERATION,
    HeldContract,
    Key,
    changed_by_hand,
    contract_digest,
    contract_of,
    differences,
    federation_of,
    group_digest,
    named,
    overlaid,
    refusal,
    text_of,
)
from fedpeer.config.federation import Federation
from fedpeer.config.registries import choice_problem
from fedpeer.config.settings import MAX_EXCHANGES, GossipSettings, LearningSettings, PartialModelSettings

FILE: dict[str, Any] = {
    "network": {"mlp": {"layers": [64, 4, 10]}},
    "partial_models": {
        "everyone": {"neurons": {"input": "all", "hidden1": 2, "output": "all"}},
        "ward": {"depends_on": ["everyone"], "neurons": {"hidden1": 1}, "members": ["peer1", "peer2"]},
        "lab": {"neurons": {"hidden1": 1}, "members": ["peer3", "peer4"]},
    },
    "learning": {"optimizer": {"sgd": {"lr": 0.1}}, "rounds": 30},
}
#: The digest that commit 499fa2e gave this file.
OLD_DIGEST = "1b8259e6c1e4cc4c06b054bdfb872255fde95b4fc2c737396b1c4c06f4e08eb1"


def federation(**changed: Any) -> Federation:
    """Return the federation of the file, with settings changed by paths such as learning__rounds."""
    data = json.loads(json.dumps(FILE))
    for path, value in changed.items():
        *parents, name = path.split("__")
        inside = data
        for each in parents:
            inside = inside.setdefault(each, {})
        inside[name] = value
    return Federation.model_validate(data)


def held(file: Federation, number: int = 0) -> HeldContract:
    return HeldContract(number, text_of(contract_of(file), str(file.learning.algorithm)), named(file))


def test_every_setting_has_a_row_that_says_whom_it_concerns() -> None:
    """A new setting needs a row in `KEYS`, with `since` and the value that changes nothing."""
    own = [f"partial_models.*.{name}" for name in PartialModelSettings.model_fields]
    learning = [f"learning.{name}" for name in LearningSettings.model_fields]
    gossip = [f"gossip.{name}" for name in GossipSettings.model_fields]
    top = set(Federation.model_fields) - {"learning", "gossip", "partial_models", "simulation"}
    assert {*top, *own, *learning, *gossip} <= set(KEYS)


def test_the_spelling_is_that_of_the_release_before() -> None:
    """That release had no bound on exchanges; now a file has none if it names a tolerance."""
    file = federation(gossip__tolerance=1e-4)
    assert contract_digest(text_of(contract_of(file), str(file.learning.algorithm))).hex() == OLD_DIGEST


def test_a_later_setting_enters_only_where_it_is_not_neutral(monkeypatch: pytest.MonkeyPatch) -> None:
    """`gossip.tick` stands for a setting that was added later."""
    later = Key("conduct", True, "", since="9", neutral=0.025)
    monkeypatch.setitem(module.KEYS, "gossip.tick", later)
    assert "tick" not in contract_of(federation())["gossip"]
    assert contract_of(federation(gossip__tick=0.05))["gossip"]["tick"] == 0.05
    assert federation_of(contract_of(federation()), federation()).gossip.tick == 0.025
    (one,) = differences(contract_of(federation()), contract_of(federation(gossip__tick=0.05)))
    assert (one.path, one.mine, one.theirs) == ("gossip.tick", 0.025, 0.05)


def test_a_contract_gives_its_federation_again() -> None:
    file = federation(learning__batch_size=7, gossip__exchanges=3, gossip__topology="ring")
    again = federation_of(json.loads(held(file).text), file)
    assert again.model_dump(mode="json") == file.model_dump(mode="json")
    assert held(again).text == held(file).text


# -------------------------------------------------------------------------------------------------- whom it concerns


@pytest.mark.parametrize(
    "changed",
    [
        {"learning__rounds": 31},
        {"learning__optimizer": "sgd,lr=0.5"},
        {"learning__batch_size": 8},
        {"gossip__deadline": 5.0},
        {"partial_models__lab__neurons": {"hidden1": 0}},
        {"partial_models__lab__members": ["peer3"]},
        {"name": "other"},
    ],
    ids=str,
)
def test_what_concerns_others_only_is_not_in_a_groups_part(changed: dict[str, Any]) -> None:
    mine, theirs = contract_of(federation()), contract_of(federation(**changed))
    assert mine != theirs
    assert group_digest(mine, "ward", has_server=False) == group_digest(theirs, "ward", has_server=False)


def test_how_a_slice_is_averaged_concerns_its_own_group_only() -> None:
    """It does not concern a group whose model depends on that slice. A file without it has the earlier digests."""
    plain = contract_of(federation())
    own = contract_of(federation(partial_models__everyone__gossip={"every": 3, "topology": "star"}))
    assert own["partial_models"]["everyone"]["gossip"] == {"every": 3, "topology": "star"}
    assert "gossip" not in own["partial_models"]["ward"]
    found = {
        group
        for group in ("everyone", "ward", "lab")
        if group_digest(plain, group, has_server=False) != group_digest(own, group, has_server=False)
    }
    assert found == {"everyone"}
    again = federation_of(json.loads(text_of(own, "partial-averaging")), federation())
    assert contract_of(again) == own


def test_what_is_frozen_and_adapted_concerns_every_group_and_cannot_change() -> None:
    plain = contract_of(federation())
    assert not {"frozen", "lora"} & plain["learning"].keys()
    for name, value in (("frozen", ["hidden1.*"]), ("lora", {"rank": 2, "targets": ["hidden1"]})):
        own = contract_of(federation(**{f"learning__{name}": value}))
        assert all(
            group_digest(plain, group, has_server=False) != group_digest(own, group, has_server=False)
            for group in ("everyone", "ward")
        )
        (one,) = differences(plain, own)
        assert (one.path, one.changes) == (f"learning.{name}", False)
        again = federation_of(json.loads(text_of(own, "partial-averaging")), federation())
        assert contract_of(again) == own


def test_a_slices_rhythm_may_change_while_the_federation_runs() -> None:
    first, then = (contract_of(federation(partial_models__ward__gossip={"every": every})) for every in (2, 4))
    for mine, theirs in ((first, then), (contract_of(federation()), then), (then, contract_of(federation()))):
        (one,) = differences(mine, theirs)
        assert (one.path, one.changes) == ("partial_models.ward.gossip", True)


def test_weights_of_classes_are_one_setting_of_the_contract() -> None:
    """Whatever their form: a file without them has the earlier digest, and a new file's weights replace the old."""
    old, new = {"ham": 1.0, "spam": 5.0}, {"spam": 2.0}
    files = [federation(learning__batch_size=8, **more) for more in (
        {}, {"learning__class_weights": "balanced"}, {"learning__class_weights": old}, {"learning__class_weights": new}
    )]  # fmt: skip
    contracts = [contract_of(file) for file in files]
    assert [each["learning"].get("class_weights") for each in contracts] == [None, "balanced", old, new]
    for before, file in zip(files, files, strict=True):
        for after, contract in zip(files, contracts, strict=True):
            assert overlaid(held(before), after)["learning"] == contract["learning"]
        again = federation_of(contract_of(file), file).learning.class_weights
        assert again == file.learning.class_weights


def test_outer_steps_concern_whom_they_are_averaged_with() -> None:
    """A file without outer steps has the earlier digests; a slice's own outer steps concern its own group only."""
    plain = contract_of(federation())
    assert "outer" not in plain["learning"]
    assert "outer" not in plain["partial_models"]["ward"]
    of_all = contract_of(federation(learning__outer="nesterov"))
    own = contract_of(federation(partial_models__everyone__outer="sgd,momentum=0.5"))
    changed = {
        id: {
            group
            for group in ("everyone", "ward", "lab")
            if group_digest(plain, group, has_server=False) != group_digest(contract, group, has_server=False)
        }
        for id, contract in (("all", of_all), ("own", own))
    }
    assert changed == {"all": {"everyone", "ward", "lab"}, "own": {"everyone"}}
    for contract, path in ((of_all, "learning.outer"), (own, "partial_models.everyone.outer")):
        (one,) = differences(plain, contract)
        assert (one.path, one.changes) == (path, True)
        again = federation_of(json.loads(text_of(contract, "partial-averaging")), federation())
        assert contract_of(again) == contract


@pytest.mark.parametrize("has_server", [False, True])
def test_a_release_without_a_later_setting_has_the_same_part(has_server: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting that is added, and has its neutral value, changes no digest."""
    mine = contract_of(federation())
    known, later = group_digest(mine, "everyone", has_server=has_server), "learning.aggregation_goal"
    monkeypatch.setattr(module, "KEYS", {path: key for path, key in KEYS.items() if path != later})
    assert group_digest(mine, "everyone", has_server=has_server) == known


@pytest.mark.parametrize(
    "changed",
    [
        {"gossip__exchanges": 3},
        {"gossip__wire": "int8"},
        {"seed": 1},
        {"learning__mode": "asynchronous"},
        {"network": {"mlp": {"layers": [64, 4, 10], "activation": "relu"}}},
        {"partial_models__ward__members": ["peer1", "peer3"]},
        {"partial_models__everyone__neurons": {"input": "all", "hidden1": 3, "output": "all"}},
    ],
    ids=str,
)
def test_what_decides_how_a_group_averages_is_in_its_part(changed: dict[str, Any]) -> None:
    mine, theirs = contract_of(federation()), contract_of(federation(**changed))
    assert group_digest(mine, "ward", has_server=False) != group_digest(theirs, "ward", has_server=False)


def test_training_concerns_all_where_a_servers_rounds_are_made_of_it() -> None:
    mine, theirs = contract_of(federation()), contract_of(federation(learning__batch_size=8))
    assert group_digest(mine, "everyone", has_server=True) != group_digest(theirs, "everyone", has_server=True)
    longer = contract_of(federation(learning__rounds=60))
    assert group_digest(mine, "everyone", has_server=True) == group_digest(longer, "everyone", has_server=True)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def mine() -> dict[str, Any]:
    """The contract of the unchanged file."""
    return contract_of(federation())


@pytest.mark.slow
@given(theirs=st.dictionaries(st.sampled_from(["learning", "gossip", "partial_models", "seed", "x"]), JSON, max_size=4))
def test_whatever_a_stranger_calls_its_contract_can_be_compared(mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert all(each.words().isprintable() and each.way() for each in differences(mine, theirs))
    assert len(group_digest(theirs, "ward", has_server=False)) == 32


# ---------------------------------------------------------------------------------------------------- what differs


def test_every_key_that_differs_is_named_with_both_values_and_whether_it_may_change() -> None:
    theirs = federation(
        learning__rounds=60,
        learning__optimizer="sgd,lr=0.5",
        gossip__deadline=5.0,
        network={"mlp": {"layers": [64, 5, 10]}},
        partial_models__new={"neurons": {"hidden1": 1}},
    )
    found = {each.path: each for each in differences(contract_of(federation()), contract_of(theirs))}
    assert list(found) == ["gossip.deadline", "learning.optimizer", "learning.rounds", "network", "partial_models.new"]
    assert {path for path, each in found.items() if not each.changes} == {"network"}
    assert (found["learning.rounds"].mine, found["learning.rounds"].theirs) == (30, 60)
    text = refusal(list(found.values()))
    for words in ("learning.rounds is 30 in the state and 60 in the file", "fedpeer update", "learning.start: file:"):
        assert words in text
    assert "remove" not in text


def test_an_algorithms_settings_may_change_and_not_which_one_it_is() -> None:
    before = contract_of(federation(learning__algorithm="fedprox,mu=0.1"))
    (same,) = differences(before, contract_of(federation(learning__algorithm="fedprox,mu=0.2")))
    (other,) = differences(before, contract_of(federation(learning__algorithm="scaffold")))
    assert same.changes
    assert not other.changes
    own, faster, another = (
        contract_of(federation(learning__algorithm=f"python:loops:{each}")) for each in ("A", "A,rate=2", "B")
    )
    assert [each.changes for later in (faster, another) for each in differences(own, later)] == [True, False]


def test_a_models_name_may_have_dots() -> None:
    def contract(**models: Any) -> dict[str, Any]:
        return contract_of(federation(partial_models=models))

    before = contract(**{"v1.gossip": {"members": ["peer1"]}})
    for changed, changes in (({"members": ["peer2"]}, True), ({"neurons": {"hidden1": 1}}, False)):
        after = contract(**{"v1.gossip": {"members": ["peer1"], **changed}})
        assert [each.changes for each in differences(before, after)] == [changes]
    (added,) = differences(contract(), before)
    assert (added.path, added.changes) == ("partial_models.v1.gossip", True)


def test_how_averages_are_reached_may_change_but_for_a_coordinator_and_what_was_promised() -> None:
    before = contract_of(federation())
    for changed in ({"protocol": "push-pull"}, {"wire": "int8"}, {"drift": 0.1}, {"max_exchanges": 5}):
        (found,) = differences(before, contract_of(federation(gossip=changed)))
        assert found.changes, changed
    for path, value, why in (
        ("gossip__protocol", "coordinator", "weights (held or in transit)"),
        ("gossip__privacy", "noise", "cannot be masked later"),
        ("learning__mode", "asynchronous", "rounds of different peers would not match"),
    ):
        differing = {each.path: each for each in differences(before, contract_of(federation(**{path: value})))}
        differing.pop("gossip.max_exchanges", None)  # its default depends on these settings
        ((_, found),) = differing.items()
        assert not found.changes
        assert why in found.way()
        assert NEW_FEDERATION in refusal([found])


def test_a_slices_mode_does_not_change_as_the_federations_does_not() -> None:
    def contract(gossip: dict[str, Any] | None, mode: str) -> dict[str, Any]:
        return contract_of(federation(partial_models__own={"gossip": gossip}, learning__mode=mode))

    for one, other, mode, changes in (
        (None, {"mode": "asynchronous"}, "synchronous", False),
        ({"mode": "synchronous"}, None, "asynchronous", False),
        ({"mode": "asynchronous"}, None, "asynchronous", True),
        ({"every": 2}, {"every": 2, "privacy": "none"}, "synchronous", True),
    ):
        (found,) = differences(contract(one, mode), contract(other, mode))
        assert (found.path, found.changes) == ("partial_models.own.gossip", changes)
        assert changes or "rounds of different peers would not match" in found.way()


def test_a_slices_deadline_is_each_peers_own_business() -> None:
    """Peers go on averaging while it changes, as they do while the federation's deadline changes."""

    def contract(gossip: dict[str, Any] | None) -> dict[str, Any]:
        return contract_of(federation(partial_models__own={"gossip": gossip}))

    for one, other in ((None, {"deadline": 5.0}), ({"every": 2}, {"every": 2, "deadline": 5.0})):
        assert group_digest(contract(one), "own", has_server=False) == group_digest(
            contract(other), "own", has_server=False
        )
        (found,) = differences(contract(one), contract(other))
        assert (found.path, found.changes) == ("partial_models.own.gossip", True)
    parts = [
        group_digest(contract(each), "own", has_server=False) for each in ({"every": 2}, {"every": 3, "deadline": 5.0})
    ]
    assert parts[0] != parts[1]


@pytest.mark.parametrize(
    ("before", "after", "of_all", "changes"),
    [
        ({"every": 2}, {"protocol": "coordinator", "every": 2}, "push-sum", False),
        ({"protocol": "coordinator"}, None, "push-sum", False),
        ({"protocol": "push-sum"}, None, "coordinator", False),
        ({"protocol": "coordinator"}, {"protocol": "coordinator", "deadline": 3.0}, "push-sum", True),
        ({"protocol": "coordinator"}, {"deadline": 3.0}, "coordinator", True),
        ({"protocol": "exact"}, None, "push-sum", True),
    ],
    ids=str,
)
def test_a_slice_keeps_its_coordinator_as_the_federation_does(
    before: dict[str, Any] | None, after: dict[str, Any] | None, of_all: str, changes: bool
) -> None:
    contracts = (
        contract_of(federation(partial_models__own={"gossip": each}, gossip__protocol=of_all))
        for each in (before, after)
    )
    (found,) = differences(*contracts)
    assert found.path == "partial_models.own.gossip"
    assert found.changes is changes
    assert changes or "cannot be converted" in found.way()


@pytest.mark.parametrize(
    ("own", "of_all", "every", "changes"),
    [
        (None, "coordinator", (1, 2), False),
        ({"protocol": "coordinator"}, "push-sum", (1, 2), False),
        ({"protocol": "coordinator", "every": 3}, "push-sum", (1, 2), True),
        ({"every": 3}, "push-sum", (1, 2), True),
        (({"every": 2}, {"every": 4}), "coordinator", (1, 1), False),
        (({"protocol": "coordinator"}, {"protocol": "coordinator", "every": 4}), "push-sum", (1, 1), False),
        (({"protocol": "coordinator"}, {"protocol": "coordinator", "every": 2}), "push-sum", (2, 2), True),
    ],
    ids=str,
)
def test_a_coordinator_averages_as_often_as_it_did(
    own: Any, of_all: str, every: tuple[int, int], changes: bool
) -> None:
    """Its rounds are numbered by averagings: with `every: 5` instead of 1 the eighth would follow on round 40."""
    both = own if isinstance(own, tuple) else (own, own)
    contracts = (
        contract_of(
            federation(partial_models__own={"gossip": each}, gossip__protocol=of_all, gossip__every=of_federation)
        )
        for each, of_federation in zip(both, every, strict=True)
    )
    (found,) = differences(*contracts)
    assert found.changes is changes
    assert changes or "counts its averagings" in found.way()


# -------------------------------------------------------------------------------------------------------- going on


def test_a_running_federation_keeps_the_defaults_that_it_began_with() -> None:
    """The previous release had another default deadline, which is in the contract and not in the file."""
    file = federation()
    earlier = contract_of(file)
    earlier["gossip"]["deadline"] = 12.0
    began = HeldContract(0, text_of(earlier, "partial-averaging"), named(file))
    assert changed_by_hand(began, file) == []
    assert overlaid(began, federation(learning__rounds=31))["gossip"]["deadline"] == 12.0
    (only,) = changed_by_hand(began, federation(learning__rounds=31))
    assert only.path == "learning.rounds"
    (said,) = changed_by_hand(began, federation(gossip__deadline=30.0))
    assert (said.path, said.mine, said.theirs) == ("gossip.deadline", 12.0, 30.0)


def test_a_running_federation_is_not_bounded_by_the_default_of_a_later_release() -> None:
    file = federation()
    earlier = contract_of(federation(gossip__tolerance=1e-4))
    began = HeldContract(0, text_of(earlier, "partial-averaging"), named(file))
    assert changed_by_hand(began, file) == []
    assert overlaid(began, federation(learning__rounds=31))["gossip"] == earlier["gossip"]


@pytest.mark.parametrize(
    ("before", "after", "bound"),
    [
        ({}, {"tolerance": 1e-6}, None),
        ({}, {"exchanges": 2}, None),
        ({"tolerance": 1e-6}, {}, MAX_EXCHANGES),
        ({"max_exchanges": 3}, {"tolerance": 1e-6, "max_exchanges": 3}, 3),
        ({}, {"deadline": 5.0}, MAX_EXCHANGES),
    ],
    ids=str,
)
def test_a_bound_on_exchanges_follows_what_the_file_names(
    before: dict[str, Any], after: dict[str, Any], bound: int | None
) -> None:
    began = held(federation(gossip=before))
    file = federation(gossip=after)
    made = overlaid(began, file)
    assert made["gossip"].get("max_exchanges") == bound
    assert made["gossip"] == contract_of(file)["gossip"]


def test_what_a_file_named_and_names_no_more_is_as_in_any_new_file() -> None:
    (found,) = changed_by_hand(held(federation(learning__batch_size=7)), federation())
    assert (found.path, found.mine, found.theirs) == ("learning.batch_size", 7, 1)


def test_a_file_that_was_not_touched_is_right_whatever_is_in_force() -> None:
    later = held(federation(learning__rounds=60))
    assert changed_by_hand(HeldContract(2, later.text, named(federation())), federation()) == []


def test_a_pretrained_network_is_named_by_its_digest() -> None:
    """Each machine may have it at another path; another model, or other adapters, are another contract."""

    def network(text: str) -> Federation:
        return federation(network=text)

    here = network("hf:/models/here,lora=4,digest=ab")
    there, other = network("hf:/there/model,lora=4,digest=ab"), network("hf:/models/here,lora=4,digest=cd")
    assert contract_of(here) == contract_of(there)
    assert "/models" not in json.dumps(contract_of(here))
    assert federation_of(contract_of(here), there).network == there.network
    [difference] = differences(contract_of(here), contract_of(other))
    assert (difference.path, difference.changes) == ("network", False)
    assert federation_of(contract_of(other), there).network != there.network


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("hf", "needs path"),
        ("hf:model,rank=4", 'no setting "rank"'),
        ("hf:model,lora=-1", "write the rank of the adapters, or 0 for none"),
        ("hf:model,lora=2,alpha=0", "alpha = 0: write a number above 0"),
        ("hf:model,targets=query", "are for adapters; add lora=8"),
        ("hf:model,lora=2,adapter=there", "leave out lora, alpha and targets"),
    ],
)
def test_mistakes_in_a_pretrained_network(choice: str, message: str) -> None:
    problem = choice_problem(("network",), parse_choice(choice))
    assert problem is not None
    assert message in problem.text


def test_paths_of_this_machine_are_not_in_it(tmp_path: Path) -> None:
    here = contract_of(federation(simulation__dataset=f"npz:{tmp_path}/a.npz"))
    assert here == contract_of(federation())
