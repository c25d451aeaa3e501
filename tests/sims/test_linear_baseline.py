"""The linear model of each peer's own, beside scikit-learn's on arrays made by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import balanced_accuracy_score

from fedpeer.config.choice import Choice
from fedpeer.config.federation import Federation
from fedpeer.learning.holdings import load_dataset
from fedpeer.sims.linear_baseline import linear_scores
from fedpeer.sims.world import World, build_world


def world_of(folder: Path, *, numbers: bool = False, **learning: object) -> World:
    draws = np.random.default_rng(3)
    x = draws.normal(5, [2.0, 30.0], (120, 2))
    signal = x[:, 0] - x[:, 1] / 15 + draws.normal(size=120)
    y = [f"{each:.4f}" if numbers else ("high" if each > 4 else "low") for each in signal]
    lines = [f"{a:.4f},{b:.4f},{target}" for (a, b), target in zip(x, y, strict=True)]
    (folder / "ward.csv").write_text("\n".join(["a,b,outcome", *lines]) + "\n")
    task = ",task=regression" if numbers else ""
    options = {"dataset": f"csv:{folder / 'ward.csv'},label=outcome{task}", "peers": 3, "split": "iid"}
    federation = Federation.model_validate({"simulation": options, "learning": learning})
    return build_world(federation, load_dataset(federation.simulation.dataset), 0)


@pytest.mark.parametrize("numbers", [False, True])
def test_it_is_fitted_to_a_peers_own_examples_on_its_own_scale(tmp_path: Path, numbers: bool) -> None:
    made = world_of(tmp_path, numbers=numbers)
    found = linear_scores(made)
    assert found is not None
    for number, score in enumerate(found.scores):
        share = made.split.shares[number]
        train_x, test_x = (made.dataset.x[rows].astype(np.float64) for rows in (share.train_M, share.test_M))
        train_y, test_y = (np.asarray(made.dataset.y[rows]) for rows in (share.train_M, share.test_M))
        shift, scale = train_x.mean(0), train_x.std(0)
        train_x, test_x = (train_x - shift) / scale, (test_x - shift) / scale
        if numbers:
            least, wide = float(train_y.mean()), float(train_y.std())
            answers = Ridge().fit(train_x, (train_y.astype(np.float64) - least) / wide).predict(test_x) * wide + least
            assert score == pytest.approx(np.sqrt(((answers - test_y) ** 2).mean()), rel=1e-4)
        else:
            alike = LogisticRegression(class_weight="balanced").fit(train_x, train_y)
            assert score == alike.score(test_x, test_y)
            assert found.balanced is not None
            assert found.balanced[number] == balanced_accuracy_score(test_y, alike.predict(test_x))
    assert (found.balanced is None) == numbers


def test_it_has_the_weights_of_classes_that_the_peers_have(tmp_path: Path) -> None:
    """Only their ratios count: the penalty stays."""
    plain = linear_scores(world_of(tmp_path, class_weights="none"))
    assert plain is not None
    assert plain.balanced is None
    made = world_of(tmp_path, class_weights={"high": 40.0, "low": 5.0})
    found = linear_scores(made)
    assert found is not None
    assert found.scores != plain.scores
    held = made.held(0)
    assert held.inputs is not None
    train_x, test_x = (held.inputs.apply(made.dataset.x[rows]) for rows in (held.train_M, held.test_M))
    number = {name: place for place, name in enumerate(made.dataset.classes)}
    share = np.where(held.train_y == number["high"], 8.0, 1.0)
    model = LogisticRegression().fit(train_x, held.train_y, sample_weight=share / share.mean())
    assert found.scores[0] == model.score(test_x, held.test_y)


@pytest.mark.filterwarnings("error")
def test_a_class_for_nearly_each_row_gives_no_warning_of_another_library(tmp_path: Path) -> None:
    rows = [f"{number},{number % 7},patient{number // 2}" for number in range(200)]
    (tmp_path / "ward.csv").write_text("\n".join(["a,b,who", *rows]) + "\n")
    options = {"dataset": f"csv:{tmp_path / 'ward.csv'},label=who", "peers": 2, "split": "iid"}
    federation = Federation.model_validate({"simulation": options})
    made = build_world(federation, load_dataset(federation.simulation.dataset), 0)
    assert all(len(set(made.held(peer).train_y)) > len(made.held(peer).train_y) / 2 for peer in (0, 1)), (
        "classes for more than half of the rows"
    )
    found = linear_scores(made)
    assert found is not None
    assert len(found.scores) == 2


def test_of_labels_it_is_one_model_for_each(tmp_path: Path) -> None:
    draws = np.random.default_rng(3)
    x = draws.normal(size=(120, 2))
    marks = [x[:, 0] > 0.3, x[:, 0] + x[:, 1] > draws.normal(size=120), np.zeros(120, bool)]
    lines = [",".join(f"{value:.4f}" for value in row) for row in np.column_stack([x, *marks])]
    (tmp_path / "ward.csv").write_text("\n".join(["a,b,fever,cough,never", *lines]) + "\n")
    data = f"csv:{tmp_path / 'ward.csv'},labels=fever+cough+never"
    federation = Federation.model_validate({"simulation": {"dataset": data, "peers": 3, "split": "iid"}})
    made = build_world(federation, load_dataset(federation.simulation.dataset), 0)
    found = linear_scores(made)
    assert found is not None
    for number, score in enumerate(found.scores):
        held = made.held(number)
        assert held.inputs is not None
        train_x, test_x = (
            held.inputs.apply(made.dataset.x[rows]).astype(np.float64) for rows in (held.train_M, held.test_M)
        )
        two = [LogisticRegression().fit(train_x, held.train_y[:, i]).score(test_x, held.test_y[:, i]) for i in (0, 1)]
        assert score == pytest.approx((sum(two) + 1.0) / 3), "nobody has the third label, and everybody knows it"


def test_other_data_have_none(tmp_path: Path) -> None:
    digits = Federation.model_validate({"simulation": {"peers": 2, "split": "iid"}})
    data = load_dataset(digits.simulation.dataset)
    assert linear_scores(build_world(digits, data, 0)) is None
    words = replace(data, x=(data.x[:, 26:30] * 16).astype(np.int64), input_kind="tokens", feature_names=())
    of_files = digits.simulation.model_copy(update={"dataset": Choice("csv", "words.csv", {"label": "number"})})
    tokens = Federation.model_validate({"network": "lstm,hidden=5,embedding=3"}).model_copy(
        update={"simulation": of_files}
    )
    assert linear_scores(build_world(tokens, words, 0)) is None, "numbers of tokens are no quantities"
