"""Data are the same if their files are, wherever these are stored; a file that cannot be read is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpeer.config.choice import Choice, parse_choice
from fedpeer.data.dataset import DataError
from fedpeer.learning.anchors import anchored, same_data

_TEXT = "csv:reviews.csv,label=verdict,text=review,tokenizer=model"


def _machine(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


_REVIEWS = {"reviews.csv": "review,verdict\ngood,yes\n", "model/tokenizer.json": "{}"}
_USERS = {f"photos/{user}/{kind}/1.png": user + kind for user in ("north", "south") for kind in ("cat", "dog")}
_IMAGES = {"photos/cat/1.png": "1", "photos/dog/1.png": "2"}


@pytest.mark.parametrize(
    ("text", "files", "others", "same"),
    [
        (_TEXT, _REVIEWS, {}, True),
        (_TEXT, _REVIEWS, {"model/model.safetensors": "much"}, True),  # no part of a tokenizer
        (_TEXT, _REVIEWS, {"model/tokenizer.json": "[]"}, False),
        (_TEXT, _REVIEWS, {"model/special_tokens_map.json": "{}"}, False),
        (_TEXT, _REVIEWS, {"reviews.csv": "review,verdict\nbad,no\n"}, False),
        ("images:photos", _IMAGES, {}, True),
        ("images:photos", _IMAGES, {"photos/cat/.DS_Store": "", "photos/.git/HEAD": ""}, True),  # not read as images
        ("images:photos", _IMAGES, {"photos/dog/2.png": "3"}, False),
        ("images:photos,user=folder", _USERS, {}, True),
        ("images:photos,user=folder", _USERS, {"photos/north/dog/2.png": "3"}, False),
    ],
)
def test_data_at_two_places_are_the_same_if_their_files_are(
    text: str, files: dict[str, str], others: dict[str, str], same: bool, tmp_path: Path
) -> None:
    places = _machine(tmp_path / "one", files), _machine(tmp_path / "other", {**files, **others})
    assert same_data(*(anchored(parse_choice(text), place) for place in places)) is same


def test_a_setting_is_the_same_as_text_and_as_a_number(tmp_path: Path) -> None:
    places = _machine(tmp_path / "one", _REVIEWS), _machine(tmp_path / "other", _REVIEWS)
    typed = Choice("csv", "reviews.csv", {"label": "verdict", "text": "review", "tokenizer": "model", "length": 8})
    assert same_data(anchored(typed, places[0]), anchored(parse_choice(f"{_TEXT},length=8"), places[1]))


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    there, gone = (anchored(parse_choice(_TEXT), tmp_path / name) for name in ("there", "gone"))
    _machine(tmp_path / "there", _REVIEWS)
    with pytest.raises(DataError, match=r"gone/model/tokenizer\.json cannot be read"):
        same_data(there, gone)
    _machine(tmp_path / "gone", {"model/tokenizer.json": _REVIEWS["model/tokenizer.json"]})
    with pytest.raises(DataError, match=r"gone/reviews\.csv cannot be read"):
        same_data(there, gone)


def test_files_are_read_only_where_nothing_else_differs(tmp_path: Path) -> None:
    one, other = (anchored(parse_choice(f"csv:ward.csv,label={label}"), tmp_path) for label in ("ill", "age"))
    assert same_data(one, one)
    assert not same_data(one, other)
    assert not same_data(one, anchored(parse_choice("npz:ward.npz"), tmp_path))
