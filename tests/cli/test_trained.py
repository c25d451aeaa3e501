"""Data for an evaluation are read as in the training, and errors name the words that the user wrote."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from fedpeer.cli.trained import _peer_of, examples_in
from fedpeer.config.choice import Choice
from fedpeer.data.dataset import DataError
from fedpeer.data.own import npz
from fedpeer.learning.assembly import DataShape
from fedpeer.learning.models import Card, Model
from fedpeer.runs.folder import RunFolder


def _model(task: str, classes: tuple[str, ...] = (), **shape: Any) -> Model:
    shape = {"input_shape": (2,), "input_kind": "features", "targets": 1, "vocabulary": 0, **shape}
    shaped = DataShape(name="ward", task=cast(Any, task), classes=len(classes), **shape)
    card = Card(
        network=Choice("mlp"),
        loss="binary",
        seed=0,
        shape=shaped,
        classes=classes,
        features=(),
        peers={},
    )
    return cast(Model, SimpleNamespace(card=card))


def _said(choice: Choice, model: Model) -> str:
    with pytest.raises(DataError) as found:
        examples_in(choice, model)
    return str(found.value)


def _table(tmp_path: Path, text: str) -> str:
    (tmp_path / "ward.csv").write_text(text)
    return str(tmp_path / "ward.csv")


MARKS = "a,b,fever,cough\n1,2,0,1\n2,3,1,0\n4,1,1,1\n"


@pytest.mark.parametrize(
    ("model", "trained"),
    [
        (_model("regression"), "numbers to predict"),
        (_model("classification", ("ill", "well")), "the classes ill, well"),
    ],
)
def test_settings_that_nobody_wrote_are_not_blamed(model: Model, trained: str, tmp_path: Path) -> None:
    several = Choice("csv", _table(tmp_path, MARKS), {"labels": "fever+cough"})
    said = _said(several, model)
    assert said.endswith(f"its targets are the labels fever, cough, but the model was trained for {trained}")
    assert "task=" not in said
    assert "classes=" not in said


def test_what_only_the_models_settings_make_wrong_is_told_with_them(tmp_path: Path) -> None:
    model = _model("classification", ("ill", "well"))
    sick = _table(tmp_path, "a,b,outcome\n1,2,ill\n2,3,sick\n")
    said = _said(Choice("csv", sick, {"label": "outcome"}), model)
    assert 'row 3, column outcome: "sick" is not a class' in said
    assert "The model was trained with classes=ill+well" in said
    said = _said(Choice("csv", sick, {"label": "outcome", "classes": "ill+well"}), model)
    assert "trained with" not in said
    said = _said(Choice("csv", str(tmp_path / "nowhere.csv"), {"label": "outcome"}), model)
    assert "there is no file" in said
    assert "trained with" not in said


@pytest.mark.parametrize(
    ("kind", "x", "vocabulary"),
    [("tokens", np.arange(24).reshape(6, 4), 24), ("features", np.ones((6, 4, 3), np.float32), 0)],
)
def test_arrays_are_of_the_kind_that_the_model_was_trained_on(
    kind: Any, x: Any, vocabulary: int, tmp_path: Path
) -> None:
    """By their shapes alone, one array would be features and the other one images."""
    path = str(tmp_path / "later.npz")
    np.savez(path, x=x, y=np.arange(6) % 2)
    model = _model("classification", ("0", "1"), input_shape=x.shape[1:], input_kind=kind, vocabulary=vocabulary)
    assert npz(path=path).input_kind != kind
    found, _ = examples_in(Choice("npz", path), model)
    assert np.array_equal(found, x)
    assert "but the model takes" in _said(Choice("npz", path, {"kind": npz(path=path).input_kind}), model)


def test_a_peer_is_named_by_its_user_whatever_the_split_has_changed() -> None:
    notes = {"peer1": "alice; view 2", "peer2": "bob", "peer3": "bob", "peer4": ""}
    split = {"peers": [{"id": peer, "note": note} for peer, note in notes.items()]}
    run = cast(RunFolder, SimpleNamespace(read=lambda _: split))
    assert [_peer_of(run, name) for name in ("alice", "bob", "view 2", "peer3", None)] == [
        "peer1", "bob", "view 2", "peer3", None
    ]  # fmt: skip
