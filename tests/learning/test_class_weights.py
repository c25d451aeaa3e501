"""Weights of classes from settings and a peer's own examples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedpeer.algorithms.losses import LOSSES
from fedpeer.config.choice import ChoiceError, parse_choice
from fedpeer.config.federation import Federation
from fedpeer.config.problems import ConfigError
from fedpeer.config.settings import LearningSettings
from fedpeer.learning.class_weights import check_class_names, class_weight_of
from fedpeer.learning.holdings import outfit
from fedpeer.sims import api
from fedpeer.sims.memory import job_of, workspace_of
from fedpeer.sims.peers import local_tasks
from fedpeer.sims.vector.pooled import PooledEngine
from fedpeer.sims.world import plan_of
from tests.learning.test_holdings import peer, table
from tests.sims.worlds import engine, federation, trainer_of, world

CLASSES = ("ham", "spam", "7")
Y = np.array([0, 0, 0, 1])


def learning(class_weights: object) -> LearningSettings:
    return LearningSettings.model_validate({"class_weights": class_weights, "batch_size": 8})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("none", None),
        ("balanced", [4 / (2 * 3), 4 / 2, 0.0]),
        ("auto", [4 / (2 * 3), 4 / 2, 0.0]),
        ({"spam": 5}, [1.0, 5.0, 1.0]),
        ({"ham": 0.5, 7: 2}, [0.5, 1.0, 2.0]),
        ("spam=5,7=2", [1.0, 5.0, 2.0]),
    ],
)
def test_each_form(given: object, expected: list[float] | None) -> None:
    found = class_weight_of(learning(given), LOSSES["cross-entropy"], CLASSES, Y)
    assert (found if found is None else found.tolist()) == (expected and pytest.approx(expected))


def test_auto_has_none_where_they_are_not_taken_or_have_no_effect() -> None:
    rule, numbers = learning("auto"), np.array([0.5, 2.0])
    for name in ("mean-squared-error", "multi-label", "next-token"):
        assert class_weight_of(rule, LOSSES[name], (), numbers) is None
    two = class_weight_of(rule, LOSSES["binary"], CLASSES[:2], Y)
    assert two is not None
    assert two.tolist() == pytest.approx([4 / (2 * 3), 4 / 2])
    own = replace(LOSSES["cross-entropy"], name="python:mine:loss")
    assert class_weight_of(rule, own, CLASSES, Y) is None
    single = rule.model_copy(update={"batch_size": 1})
    assert class_weight_of(single, LOSSES["cross-entropy"], CLASSES, Y) is None


@pytest.mark.parametrize(
    "given", ["even", {"ham": 0}, {"ham": -1}, {"ham": "much"}, {}, "ham=lots", "ham=1,ham=2", {True: 1}, 3]
)
def test_what_are_no_weights_is_refused(given: object) -> None:
    with pytest.raises(ConfigError) as caught:
        Federation.model_validate({"learning": {"class_weights": given, "batch_size": 8}})
    assert {problem.path[:2] for problem in caught.value.problems} == {("learning", "class_weights")}


def test_a_class_that_the_data_do_not_have_is_named() -> None:
    with pytest.raises(ChoiceError, match='no class "spm"; did you mean "spam"'):
        check_class_names(learning({"spm": 2}), CLASSES)


@pytest.mark.parametrize("rule", ["balanced", "auto"])
def test_each_peer_balances_its_own_examples(tmp_path: Path, rule: str) -> None:
    """A simulated peer, a whole peer and one of the vector engine have the same weights; a real peer has its file's."""
    options = federation(learning__class_weights=rule, learning__batch_size=8, simulation__split="dirichlet:0.3")
    made = world(options)
    of_engine = workspace_of(made, plan_of(made, parse_choice("local")), "cpu")().class_weight_PC
    assert of_engine is not None
    for number, (local_task, weight_C) in enumerate(zip(local_tasks(made).values(), of_engine, strict=True)):
        y = made.held(number).train_y
        count_C = np.bincount(y.astype(np.int64), minlength=10)
        expected = [len(y) / ((count_C > 0).sum() * count) if count else 0.0 for count in count_C]
        assert weight_C.tolist() == pytest.approx(expected)
        assert local_task.class_weight is not None
        assert torch.equal(local_task.class_weight, weight_C)
        assert local_task.batches(1).class_weight is local_task.class_weight
    assert len({tuple(row) for row in of_engine.tolist()}) == len(made.peers)
    wards = Federation.model_validate({"learning": {"class_weights": {"ill": 3.0}, "batch_size": 8}})
    own = outfit(peer({"csv": table(tmp_path), "label": "outcome"}), wards, "cpu").local_task
    assert own.class_weight is not None
    assert sorted(own.class_weight.tolist()) == [1.0, 3.0]


def test_the_best_round_is_chosen_with_the_weights_and_the_test_part_has_none() -> None:
    """Otherwise the best round could be one that overlooks a rare class: nearly all others would be right."""
    made = world(
        federation(
            learning__class_weights="balanced",
            learning__batch_size=8,
            simulation__split="dirichlet:0.3",
            simulation__validation=0.3,
        )
    )
    space = workspace_of(made, plan_of(made, parse_choice("local")), "cpu")()
    assert space.class_weight_PC is not None
    for number, local_task in enumerate(local_tasks(made).values()):
        held_out = space.scored(number, validation=True, weighted=True)
        assert held_out.weight_M is not None
        assert torch.equal(held_out.weight_M, space.class_weight_PC[number][held_out.y_M])
        assert space.scored(number, validation=False, weighted=True).weight_M is None
        assert local_task.valid_part.weight_M is not None
        assert torch.equal(local_task.valid_part.weight_M, held_out.weight_M)
        assert local_task.test_part.weight_M is None


def test_examples_held_out_have_no_weights_if_the_algorithm_trains_without_them() -> None:
    options = federation(
        learning__class_weights="auto",
        learning__batch_size=8,
        simulation__split="dirichlet:0.3",
        simulation__validation=0.3,
    )
    made, method = world(options), "python:tests.algorithms.test_own_training:FullGradient"
    with engine(made, method) as running:
        scores = running.evaluate(validation=True)
    for name, score in zip(made.peers, scores, strict=True):
        trainer, x_n = trainer_of(made, name, method), made.start(name)
        plain, weighted = (
            trainer.local_task.evaluate(x_n, validation=True, weighted=weighted) for weighted in (False, True)
        )
        assert plain != weighted
        assert trainer.validate(x_n) == plain
        assert score == pytest.approx(plain)


def test_tables_balance_their_classes_and_show_it(tmp_path: Path) -> None:
    """A table of numbers has no classes, so nothing is refused there."""
    lines = [f"{n % 7},{n % 3},{'ill' if n % 5 == 0 else 'well'},{n % 11}" for n in range(120)]
    (tmp_path / "ward.csv").write_text("\n".join(["a,b,outcome,days", *lines]) + "\n")
    plain: dict[str, Any] = {"learning": {"rounds": 1}, "simulation": {"peers": 2, "split": "iid"}}
    for label, wanted in (("outcome,drop=days", ["balanced-accuracy"]), ("days,drop=outcome,task=regression", [])):
        data = {**plain, "simulation": {**plain["simulation"], "dataset": f"csv:{tmp_path}/ward.csv,label={label}"}}
        found = api.simulate(federation=data, methods=["local"], workers=1, device="cpu", out=tmp_path / "runs")
        assert list(found.summary["methods"]["local"].get("metrics", {})) == wanted
        assert ("balanced_accuracy" in found.summary["linear"]) == bool(wanted)
    data["learning"] = {"rounds": 1, "class_weights": "balanced"}
    with pytest.raises(ChoiceError, match="a regression task, which has no classes"):
        api.simulate(federation=data, methods=["local"], workers=1, device="cpu", out=tmp_path / "runs")


def test_rare_classes_are_found_in_python(tmp_path: Path) -> None:
    """One of twenty examples is of the rare class, so without weights its recall is low."""
    draws = np.random.default_rng(0)
    y = (np.arange(800) % 20 == 0).astype(np.int64)
    x = (draws.normal(size=(800, 2)) + 1.5 * y[:, None]).astype(np.float32)
    settings: dict[str, Any] = {
        "learning": {"batch_size": 16, "steps_between_averaging": "pass", "rounds": 2, "optimizer": "sgd,lr=0.5"},
        "simulation": {"peers": 2, "split": "iid", "metrics": ["balanced-accuracy"]},
    }
    found = []
    for weights in ("none", "balanced"):
        settings["learning"]["class_weights"] = weights
        result = api.simulate(
            (x, y), "linear", federation=settings, methods=["full-averaging"], workers=1, device="cpu", out=tmp_path
        )
        found.append(result.summary["methods"]["full-averaging"]["metrics"]["balanced-accuracy"]["mean"])
    assert found[1] > found[0] + 0.15


@pytest.mark.parametrize("rule", ["balanced", "auto"])
def test_pooled_examples_are_balanced_together(rule: str) -> None:
    made = world(federation(learning__class_weights=rule, learning__batch_size=8, simulation__split="dirichlet:0.3"))
    method = parse_choice("global")
    pooled = PooledEngine(job_of(made, "cpu"), workspace_of(made, plan_of(made, method), "cpu")(), made.drawn(""))
    y = np.concatenate([made.held(number).train_y for number in range(6)]).astype(np.int64)
    assert pooled._class_weight is not None
    assert pooled._class_weight.tolist() == pytest.approx((len(y) / (10 * np.bincount(y))).tolist())
