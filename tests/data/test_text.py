"""Text in users' tables: tokens of the model's own tokenizer, pieces to continue, and mistakes."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest

from fedpeer.data.dataset import NO_TOKEN, DataError, Dataset, TextColumn
from fedpeer.data.own import csv, parquet
from fedpeer.data.own.inputs import read_texts
from fedpeer.data.own.text import TextTokenizer
from tests.learning.pretrained_models import SPECIAL, WORDS, saved_model

NUMBER = {word: i for i, word in enumerate([*SPECIAL, *WORDS])}
PAD, UNKNOWN, FIRST, LAST = range(4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_model("bert", tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer that adds no tokens of its own, and has no padding token."""
    return saved_model("gpt2", tmp_path_factory.mktemp("models"))


def table(tmp_path: Path, *rows: str, header: str = "site,review,verdict") -> str:
    path = tmp_path / "reviews.csv"
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return str(path)


def reviews(path: str, folder: Path, **settings: object) -> Dataset:
    chosen = {"label": "verdict", "user": "site", "text": "review", "tokenizer": str(folder), "length": 6}
    return csv(path=path, **{**chosen, **settings})  # type: ignore[arg-type]


def test_a_text_is_its_tokens(tmp_path: Path, folder: Path) -> None:
    found = reviews(table(tmp_path, "a,good film,yes", 'b,"bad, plot",no', "a,the film was very very dull,no"), folder)
    good, film, bad, plot = (NUMBER[word] for word in ("good", "film", "bad", "plot"))
    the, was, very = (NUMBER[word] for word in ("the", "was", "very"))
    assert found.x.tolist() == [
        [FIRST, good, film, LAST, PAD, PAD],
        [FIRST, bad, UNKNOWN, plot, LAST, PAD],
        [FIRST, the, film, was, very, LAST],
    ]
    assert found.x.dtype == np.int64
    assert (found.input_kind, found.vocabulary, found.padding) == ("tokens", len(NUMBER), PAD)
    assert [found.classes[number] for number in found.y] == ["yes", "no", "no"]
    assert found.user_names == ("a", "b")
    assert "1 of 3 texts were cut to 6 tokens" in found.source
    assert found.text == TextColumn(column="review", tokenizer=str(folder), length=6)


def test_texts_that_fit_are_not_said_to_be_cut(tmp_path: Path, folder: Path) -> None:
    assert "cut" not in reviews(table(tmp_path, "a,good film,yes", "b,bad,no"), folder).source


def test_numbers_are_predicted_from_text(tmp_path: Path, folder: Path) -> None:
    found = reviews(table(tmp_path, "a,good,4.5", "b,bad,1.25"), folder)
    assert (found.task, found.y.tolist()) == ("regression", [4.5, 1.25])


def test_text_is_continued(tmp_path: Path, plain: Path) -> None:
    """Every token but a text's first is predicted once, from the tokens before it in its piece."""
    path = table(tmp_path, "a,the film was a dull film and a poor plot", "b,good", "b,good film", header="site,review")
    found = csv(path=path, user="site", text="review", tokenizer=str(plain), length=4)
    words = [NUMBER[word] for word in ["the", "film", "was", "a", "dull", "film", "and", "a", "poor", "plot"]]
    good, film = NUMBER["good"], NUMBER["film"]
    filler = LAST  # the end of text, since there is no padding token
    assert found.x.tolist() == [words[:4], words[4:8], [words[8], *[filler] * 3], [good, *[filler] * 3]]
    nothing = [NO_TOKEN] * 3
    assert found.y.tolist() == [words[1:5], words[5:9], [words[9], *nothing], [film, *nothing]]
    assert found.user_N is not None
    assert found.user_N.tolist() == [0, 0, 0, 1]
    assert (found.task, found.classes) == ("next-token", ())


def test_parquet_has_text_too(tmp_path: Path, folder: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="the extra fedpeer[parquet] is missing")
    import pyarrow.parquet as pq

    path = str(tmp_path / "reviews.parquet")
    pq.write_table(pa.table({"review": ["good film", None, "bad"], "verdict": ["yes", "no", "no"]}), path)
    found = parquet(path=path, label="verdict", text="review", tokenizer=str(folder), length=4)
    assert found.x[1].tolist() == [FIRST, LAST, PAD, PAD]
    assert found.x.shape == (3, 4)


def test_new_texts_are_read_like_those_trained_on(folder: Path) -> None:
    text = TextColumn(column="review", tokenizer=str(folder), length=5)
    x = read_texts(io.StringIO("id,review\n1,good film\n2,bad\n"), "new.csv", text)
    assert x.tolist() == TextTokenizer(str(folder)).whole(["good film", "bad"], 5).x_NT.tolist()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tokenizer": None}, "text=review needs a tokenizer; add tokenizer=FOLDER"),
        ({"length": 1}, "length = 1: write 2 or more"),
        ({"text": "reviw"}, 'there is no such column; did you mean "review"'),
        ({"text": None}, "has no text to read; add text=NAME"),
        ({"label": None, "task": "classification"}, "needs a column to predict; add label=NAME"),
        ({"task": "next-token"}, "predicts the text itself; leave out label=verdict"),
        ({"user": None}, "site is neither label, user nor text; leave out .* drop=site"),
        ({"tokenizer": "nowhere"}, "there is no nowhere/tokenizer.json; name the folder of a model"),
    ],
)
def test_mistakes(tmp_path: Path, folder: Path, settings: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        reviews(table(tmp_path, "a,good film,yes", "b,bad,no"), folder, **settings)


def test_a_table_without_label_and_text_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the column to predict is not named; add label=NAME"):
        csv(path=table(tmp_path, "a,1,2"))


def test_nothing_to_continue(tmp_path: Path, plain: Path) -> None:
    path = table(tmp_path, "good", "bad", header="review")
    with pytest.raises(DataError, match="no text has two tokens"):
        csv(path=path, text="review", tokenizer=str(plain))


def test_a_new_file_without_the_column(folder: Path) -> None:
    text = TextColumn(column="review", tokenizer=str(folder), length=5)
    with pytest.raises(DataError, match=r'no column "review".*did you mean "reviews"'):
        read_texts(io.StringIO("reviews\ngood\n"), "new.csv", text)


def test_damaged_tokenizers(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(DataError, match=r"tokenizer\.json is damaged"):
        TextTokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    with pytest.raises(DataError, match='names no padding token; write "pad_token"'):
        TextTokenizer(str(tmp_path))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"pad_token": {"content": "[UNK]"}}))
    assert TextTokenizer(str(tmp_path)).padding == UNKNOWN
