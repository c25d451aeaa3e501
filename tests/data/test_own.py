"""A user's own data: it is read unchanged, and each mistake gives one message with the place and a remedy."""

from __future__ import annotations

import csv as csv_format
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from fedpeer.config.choice import ChoiceError, bind_settings, call_choice, lookup, parse_choice
from fedpeer.data.dataset import DataError, Dataset
from fedpeer.data.own import OWN, csv, images, npz, parquet, python_arrays
from fedpeer.data.own.arrays import of_objects
from fedpeer.data.own.images import read_images
from fedpeer.data.own.inputs import read_inputs
from fedpeer.data.own.mistakes import SHOWN_MAX
from fedpeer.data.splits import SPLITS

GOOD = "age,weight,ward,outcome\n61,70.5,a,sick\n45,80,b,well\n\n33,65.25,a,well\n"


@pytest.fixture
def table(tmp_path: Path) -> Callable[[str | bytes], str]:
    def write(content: str | bytes) -> str:
        path = tmp_path / "wards.csv"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return write


def _message(read: Callable[..., Dataset], **settings: Any) -> str:
    with pytest.raises(DataError) as caught:
        read(**settings)
    return str(caught.value)


# CSV


def test_a_table_is_read_as_it_stands(table: Callable[[str | bytes], str]) -> None:
    found = csv(path=table(GOOD), label="outcome", user="ward")
    assert found.name == "wards"
    assert found.feature_names == ("age", "weight")
    assert found.x.dtype == np.float32
    assert found.x.tolist() == [[61, 70.5], [45, 80], [33, 65.25]]
    assert found.task == "classification"
    assert found.classes == ("sick", "well")
    assert found.y.tolist() == [0, 1, 1]
    assert found.user_names == ("a", "b")
    assert found.user_N is not None
    assert found.user_N.tolist() == [0, 1, 0]
    assert found.test_N is None
    assert "read as 2 classes (guessed; write task=regression if that is wrong)" in found.source


def test_it_is_a_choice_like_any_data_set(table: Callable[[str | bytes], str]) -> None:
    choice = parse_choice(f"csv:{table(GOOD)},label=outcome,drop=ward+age")
    read = lookup(choice, OWN, "kind of file")
    assert read(**bind_settings(choice, read)).feature_names == ("weight",)


def test_patterns_to_complete_are_no_task_of_a_table() -> None:
    with pytest.raises(ChoiceError, match="task = completion: allowed are classification, multi-label, regression"):
        bind_settings(parse_choice("csv:wards.csv,label=outcome,task=completion"), csv)


def test_a_cell_may_be_as_long_as_a_book(table: Callable[[str | bytes], str]) -> None:
    limit = csv_format.field_size_limit()
    path = table(f"age,book,outcome\n61,{'x' * (limit + 1)},sick\n45,y,well\n")
    assert csv(path=path, label="outcome", drop=("book",)).x.tolist() == [[61], [45]]
    with open(path) as file:
        assert read_inputs(file, path, ("age",), (1,)).tolist() == [[61], [45]]
    assert csv_format.field_size_limit() == limit


@pytest.mark.parametrize("mark", [";", "tab"])
def test_other_delimiters_quotes_and_a_byte_order_mark(mark: str, table: Callable[[str | bytes], str]) -> None:
    sign = "\t" if mark == "tab" else mark
    text = '\ufeffa;b;y\r\n1;"2";"x;1"\r\n3;4;"z"\r\n'.replace(";", sign)
    found = csv(path=table(text), label="y", delimiter=mark)
    assert found.x.tolist() == [[1, 2], [3, 4]]
    assert found.classes == (f"x{sign}1", "z")
    assert found.feature_names == ("a", "b")


def test_numbers_to_predict_are_guessed_or_said(table: Callable[[str | bytes], str]) -> None:
    path = table("a,y\n1,0.5\n2,1.5\n3,-2\n")
    found = csv(path=path, label="y")
    assert found.task == "regression"
    assert found.y.dtype == np.float32
    assert found.classes == ()
    assert found.y.tolist() == [0.5, 1.5, -2]
    whole = table("a,y\n1,1\n2,10\n3,2\n")
    assert csv(path=whole, label="y").classes == ("1", "2", "10"), "numbers are in order of size"
    assert csv(path=whole, label="y", task="regression").y.tolist() == [1, 10, 2]
    many = table("a,y\n" + "".join(f"0,{n}\n" for n in range(60)))
    assert csv(path=many, label="y").task == "regression"


SEVERAL = "age,fever,cough,ward\n61,1,0,a\n45,0,0,b\n33,1,1,a\n"


def test_several_columns_are_labels_that_hold_or_do_not(table: Callable[[str | bytes], str]) -> None:
    found = csv(path=table(SEVERAL), labels=("fever", "cough"), user="ward")
    assert (found.task, found.classes, found.feature_names) == ("multi-label", ("fever", "cough"), ("age",))
    assert found.y.dtype == np.float32
    assert found.y.tolist() == [[1, 0], [0, 0], [1, 1]]
    assert "columns fever, cough read as 2 labels" in found.source
    words = (
        SEVERAL.replace("61,1,0", "61,True,false").replace("45,0,0", "45,0.0,FALSE").replace("33,1,1", "33,1.0,true")
    )
    assert np.array_equal(csv(path=table(words), labels=("fever", "cough"), user="ward").y, found.y)
    choice = parse_choice(f"csv:{table(SEVERAL)},labels=fever+cough,drop=ward,test_fraction=0.34")
    read = lookup(choice, OWN, "kind of file")
    assert read(**bind_settings(choice, read)).test_N is not None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"labels": ("fever", "cough"), "label": "fever"}, "leave one of the two out"),
        ({"label": "fever", "task": "multi-label"}, "write labels=NAME+NAME instead of label"),
        ({"task": "multi-label"}, "labels= names the columns of several labels"),
        ({"labels": ("fever",)}, "for one column write label=NAME"),
        ({"labels": ("fever", "fever")}, "names a column twice"),
        ({"labels": ("fever", "cough"), "task": "regression"}, "task=multi-label and not regression"),
        ({"labels": ("fever", "cough"), "classes": ("no", "yes")}, "leave classes out"),
        ({"labels": ("fever", "cofgh")}, 'labels=cofgh: there is no such column; did you mean "cough"?'),
        ({"labels": ("fever", "cough"), "drop": ("cough",)}, "drop=cough: this column is to be predicted"),
        ({"labels": ("fever", "age")}, 'row 2, column age: "61" is neither 0 nor 1; write 0 or 1, or delete the row'),
    ],
    ids=str,
)
def test_each_mistake_about_labels_is_told(
    settings: dict[str, Any], said: str, table: Callable[[str | bytes], str]
) -> None:
    assert said in _message(csv, path=table(SEVERAL), user="ward", **settings)


def test_a_label_that_is_missing_has_a_place(table: Callable[[str | bytes], str]) -> None:
    path = table(SEVERAL.replace("45,0,0", "45,,0"))
    said = _message(csv, path=path, labels=("fever", "cough"), user="ward")
    assert "row 3, column fever: the label is missing" in said


def test_classes_that_peers_agreed_on_fix_the_numbers(table: Callable[[str | bytes], str]) -> None:
    found = csv(path=table(GOOD), label="outcome", drop=("ward",), classes=("dead", "well", "sick"))
    assert found.y.tolist() == [2, 1, 1]
    assert found.classes == ("dead", "well", "sick")
    said = _message(csv, path=table(GOOD), label="outcome", drop=("ward",), classes=("wel", "ok"))
    assert '"well" is not a class; did you mean "wel"? (and 1 more like it)' in said


def test_a_test_fraction_is_taken_class_by_class_and_always_the_same(table: Callable[[str | bytes], str]) -> None:
    path = table("a,y\n" + "".join(f"{n},{'rare' if n % 10 == 0 else 'often'}\n" for n in range(200)))
    found, again = (csv(path=path, label="y", test_fraction=0.25) for _ in range(2))
    assert found.test_N is not None
    assert again.test_N is not None
    assert np.array_equal(found.test_N, again.test_N)
    assert np.bincount(found.y[found.test_N]).tolist() == [45, 5]


@pytest.mark.parametrize(
    ("text", "settings", "said"),
    [
        ("", {}, ["the file is empty"]),
        ("a,outcome\n", {}, ["column names but no rows"]),
        (GOOD, {"label": "outcom"}, ["label=outcom: there is no such column", 'did you mean "outcome"?']),
        (GOOD, {"drop": ("wart",)}, ["drop=wart", 'did you mean "ward"?']),
        (GOOD, {"user": "nobody"}, ["user=nobody", "there are: age, weight, ward, outcome"]),
        (
            GOOD,
            {"user": "outcome", "drop": ("ward", "outcome")},
            [
                "user=outcome: this column is to be predicted; name another one",
                "drop=outcome: this column is to be predicted; leave it out of drop",
            ],
        ),
        (GOOD, {}, ["row 2, column ward", '"a" is text', "drop=ward", "and 2 more like it"]),
        ("a,outcome\n1,x\n,y\n", {}, ["row 3, column a", "the cell is empty"]),
        ("a,outcome\n1,x\nNaN,y\n", {}, ["row 3, column a", "NaN is not a number"]),
        ("a,outcome\n1,x\n-inf,y\n", {}, ["row 3, column a", "-inf is not a finite number"]),
        ("a,outcome\n1,x\n1e300,y\n", {}, ["row 3, column a", "not a finite number in float32"]),
        ("a,outcome\n1,x\n2,\n", {}, ["row 3, column outcome", "the label is missing"]),
        ("a,outcome\n1,x\n2,x\n", {}, ["column outcome", 'of the class "x"']),
        ("a,outcome\n1,x\n2,3,y\n4,z\n", {}, ["row 3: it has 3 cells, but the first line names 2"]),
        ("a,outcome\n1,x,\n2,y,\n", {}, ["row 2: it has 3 cells, but the first line names 2 (and 1 more like it)"]),
        ("a,b,a,outcome\n1,2,3,x\n", {}, ['row 1: columns 1, 3 are all called "a"']),
        ("a;outcome\n1;x\n", {}, ['try delimiter=";"']),
        ('a,outcome\n1,x\n"2,5",y\n', {}, ['row 3, column a: "2,5" has a decimal comma; write 2.5']),
        ("a;outcome\n1.234,5;x\n2;y\n", {"delimiter": ";"}, ['"1.234,5" has a decimal comma; write 1234.5']),
        ("a;outcome\n1;3,5\n2;4\n", {"delimiter": ";"}, ['column outcome: "3,5" has a decimal comma; write 3.5']),
        ('a,outcome\n1,x\n"1,234.5",y\n', {}, ['column a: "1,234.5" has thousands set off; write 1234.5, and export']),
        (
            'a,outcome\n1,x\n"1,234",y\n',
            {},
            ['"1,234" has a decimal comma; write 1.234 (or 1234, if it has thousands set off), and export'],
        ),
        ("a,outcome\n1'234'567,x\n2,y\n", {}, ["has thousands set off; write 1234567"]),
        ("a,outcome\n1.234.567,x\n2,y\n", {}, ["has thousands set off; write 1234567"]),
        ('a,outcome\n1,"1,200.50"\n2,"900.10"\n', {}, ['row 2, column outcome: "1,200.50" has thousands set off']),
        ("a,outcome\n1_000,x\n2,y\n", {}, ['row 2, column a: "1_000" is text']),
        (
            ",a,outcome\n0,1,x\n1,2,y\n",
            {},
            ['row 1: column 1 has no name; name each, or leave out what has none with drop=""'],
        ),
        ("a,outcome,,\n1,x,,\n2,y,,\n", {}, ["row 1: columns 3, 4 have no name"]),
        (
            "__index_level_0__,a,outcome\n0,1,x\n1,2,y\n",
            {},
            ["is the index of a pandas table", "drop=__index_level_0__"],
        ),
        ("a,outcome\nNA,x\n2,y\n", {}, ['row 2, column a: "NA" stands for no value; fill it in, delete the row']),
        ("a,outcome\n1,x\n2,y\n3,NA\n", {}, ['the label is missing ("NA"; if that is a class, name all: classes=a+b']),
        ("a,outcome\n1,3.5\n2,3.5\n", {}, ["column outcome: all rows have 3.5; name another column, or write task="]),
        (
            GOOD,
            {"label": "OUTCOME", "drop": ("ward",)},
            ['label=OUTCOME: there is no such column; did you mean "outcome"?'],
        ),
        (GOOD, {"delimiter": ":"}, ['there is one column, "age,weight,ward,outcome"; leave delimiter out']),
        (
            GOOD,
            {"drop": ("ward",), "classes": ("sick", "well", "sick")},
            ['"sick" is named twice; name each class once'],
        ),
        (GOOD, {"drop": ("ward",), "classes": ("sick",)}, ["classes=sick: there must be two classes or more"]),
        ("5.1,3.5,ill\n4.9,3.0,well\n", {}, ['no column "outcome"', "a row of examples (5.1, 3.5, ill)", "above it"]),
        ("5.1,north,ill\n4.9,south,well\n", {}, ['no column "outcome"', "a row of examples (5.1, north, ill)"]),
        (
            "5.1,3.5,0\n4.9,3.0,1\n",
            {"label": "0"},
            ["row 1: it looks like a row of examples (5.1, 3.5, 0)", "above it"],
        ),
        ("outcome\nx\ny\n", {}, ["no column is left as a feature"]),
        ('a,outcome\n1,"x\n', {}, ["cannot be read as CSV"]),
        (
            "a,outcome\n1,0.5\n2,x\n3,\n",
            {"task": "regression"},
            [
                'row 3, column outcome: "x" is text',
                "or write task=classification",
                "is empty; fill it in or delete the row",
            ],
        ),
        ("a,who,outcome\n1,,x\n2,u,y\n", {"user": "who"}, ["row 2, column who: the user is missing"]),
        ("a,outcome\n1,x\n", {"delimiter": "ab"}, ["use one character"]),
        ("a,outcome\n" + "".join(f"1,n{n}\n" for n in range(99)), {}, ["99 different labels in 99 rows"]),
    ],
)
def test_each_mistake_names_its_place(
    text: str, settings: dict[str, Any], said: list[str], table: Callable[[str | bytes], str]
) -> None:
    message = _message(csv, **{"path": table(text), "label": "outcome", **settings})
    for words in said:
        assert words in message


def test_all_mistakes_come_at_once_but_not_more_than_a_screen(table: Callable[[str | bytes], str]) -> None:
    message = _message(csv, path=table("a,b,y\n1,x,u\n,2,v\n3,4\n5,inf,\n"), label="y")
    assert "has 5 problems, so it was not read" in message
    for words in ("row 2, column b", "row 3, column a", "row 4:", "row 5, column b", "row 5, column y"):
        assert words in message
    names = [f"c{n}" for n in range(30)]
    wide = ",".join([*names, "y"]) + "\n" + ",".join(["x"] * 30 + ["u"]) + "\n" + ",".join(["1"] * 30 + ["v"]) + "\n"
    message = _message(csv, path=table(wide), label="y")
    assert message.count("is text") == SHOWN_MAX
    assert "and 20 more" in message


def test_rows_are_lines_of_the_file_even_in_later_batches_and_after_quoted_lines(
    table: Callable[[str | bytes], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedpeer.data.own.table.BATCH_ROWS", 2)
    text = 'a,y\n1,"u\nu"\n\n2,v\n3,v\nbad,v\n'
    assert "row 7, column a" in _message(csv, path=table(text), label="y")
    assert csv(path=table(text.replace("bad", "4")), label="y").x[:, 0].tolist() == [1, 2, 3, 4]


def test_bytes_that_are_no_text_and_files_that_are_none(table: Callable[[str | bytes], str], tmp_path: Path) -> None:
    latin = table("a,y\n1,well\n2,krank\xe4\n".encode("latin-1"))
    assert "row 3: it is not UTF-8" in _message(csv, path=latin, label="y")
    assert 'did you mean "wards.csv"?' in _message(csv, path=str(tmp_path / "ward.csv"), label="y")
    assert "is a folder" in _message(csv, path=str(tmp_path), label="y")
    for content, said in (
        (b"PK\x03\x04\x14\x00\x06\x00\xff\xff", "it is an Excel or other zip file; save the sheet as CSV UTF-8"),
        (b"PAR1\xff\xff", "it is a Parquet file; write parquet:FILE"),
        ("a,y\n1,x\n".encode("utf-16"), "it is UTF-16 text; save it as UTF-8"),
    ):
        assert said in _message(csv, path=table(content), label="y")


def test_a_column_without_a_name_can_be_left_out(table: Callable[[str | bytes], str]) -> None:
    """pandas writes its index as such a column."""
    found = csv(path=table(",a,outcome\n0,1,x\n1,2,y\n"), label="outcome", drop=("",))
    assert (found.feature_names, found.x.tolist()) == (("a",), [[1.0], [2.0]])


@pytest.mark.parametrize("read", [csv, npz, images], ids=lambda read: read.__name__)
def test_what_may_not_be_read_is_told_as_that(
    read: Callable[..., Dataset], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user who runs the tests may be able to read every file, so the refusal is simulated."""
    path = tmp_path / "mine"
    if read is images:
        path.mkdir()
    else:
        path.write_bytes(b"a,y")

    def refused(*given: Any, **more: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refused)
    monkeypatch.setattr(Path, "iterdir", refused)
    more = {"label": "y"} if read is csv else {}
    assert f"{path}: it cannot be opened (Permission denied)" in _message(read, path=str(path), **more)


def test_a_class_may_be_called_as_missing_values_are_elsewhere(table: Callable[[str | bytes], str]) -> None:
    path = table("a,y\n1,NA\n2,EU\n")
    assert csv(path=path, label="y", classes=("EU", "NA")).y.tolist() == [1, 0]
    same = table("a,y\n1,3.5\n2,3.5\n")
    assert csv(path=same, label="y", task="regression").y.tolist() == [3.5, 3.5]


@settings(max_examples=40)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=2, max_size=20))
def test_numbers_survive_writing_and_reading(tmp_path_factory: pytest.TempPathFactory, values: list[float]) -> None:
    path = tmp_path_factory.mktemp("own") / "t.csv"
    path.write_text("a,y\n" + "".join(f"{value!r},{n % 2}\n" for n, value in enumerate(values)))
    assert csv(path=str(path), label="y").x[:, 0].tolist() == values


# Parquet


def test_labels_of_a_parquet_file_are_columns_of_numbers_or_of_true_and_false(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra fedpeer[parquet]")
    stored = pytest.importorskip("pyarrow.parquet", reason="needs the extra fedpeer[parquet]")
    path = str(tmp_path / "t.parquet")
    stored.write_table(pyarrow.table({"a": [1, 2, 3], "fever": [1, 0, 1], "cough": [False, False, True]}), path)
    found = parquet(path=path, labels=("fever", "cough"))
    assert (found.task, found.classes, found.x.shape) == ("multi-label", ("fever", "cough"), (3, 1))
    assert found.y.tolist() == [[1, 0], [0, 0], [1, 1]]


def test_only_what_is_no_number_of_a_parquet_file_is_told(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra fedpeer[parquet]")
    stored = pytest.importorskip("pyarrow.parquet", reason="needs the extra fedpeer[parquet]")
    path, wards = tmp_path / "t.parquet", {"old": [True, None, False], "dose": [1.0, 1e300, 2.0], "y": [0, 1, 0]}
    stored.write_table(pyarrow.table(wards), path)
    message = _message(parquet, path=str(path), label="y")
    assert "has 2 problems" in message
    assert "row 2, column old: the cell is empty" in message
    assert "row 2, column dose: 1e+300 is not a finite number" in message


def test_times_of_a_parquet_file_are_text_and_what_is_no_text_is_told(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra fedpeer[parquet]")
    stored = pytest.importorskip("pyarrow.parquet", reason="needs the extra fedpeer[parquet]")
    path, days = tmp_path / "t.parquet", pyarrow.array([2**30, 2], pyarrow.date32())
    stored.write_table(pyarrow.table({"seen": days, "y": [0, 1]}), path)
    message = _message(parquet, path=str(path), label="y")
    assert "row 1, column seen: " in message
    assert "is text, and a network needs numbers" in message
    places, letters = pyarrow.py_buffer(np.arange(3, dtype=np.int32).tobytes()), pyarrow.py_buffer(b"\xff\xfe")
    stored.write_table(pyarrow.table({"a": pyarrow.StringArray.from_buffers(2, places, letters), "y": [0, 1]}), path)
    assert "column a: it cannot be read as text ('utf-8' codec" in _message(parquet, path=str(path), label="y")


def test_parquet_reads_as_csv_does(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra fedpeer[parquet]")
    stored = pytest.importorskip("pyarrow.parquet", reason="needs the extra fedpeer[parquet]")
    path = str(tmp_path / "t.parquet")
    columns: dict[str, list[Any]] = {"a": [1, 2, 3], "b": [0.5, 1.5, 2.5], "c": [True, False, True]}
    columns |= {"who": ["u", "v", "u"], "y": ["p", "q", "p"]}
    stored.write_table(pyarrow.table(columns), path)
    found = parquet(path=path, label="y", user="who")
    assert found.x.tolist() == [[1, 0.5, 1], [2, 1.5, 0], [3, 2.5, 1]]
    assert found.y.tolist() == [0, 1, 0]
    assert found.user_names == ("u", "v")
    assert "row 1, column who" in _message(parquet, path=path, label="y")
    columns["b"][1] = None
    stored.write_table(pyarrow.table(columns), path)
    assert "row 2, column b: the cell is empty" in _message(parquet, path=path, label="y", user="who")
    stored.write_table(pyarrow.table({"a": [1], "y": ["p"]}).slice(0, 0), path)
    assert "no rows" in _message(parquet, path=path, label="y")
    Path(path).write_bytes(b"PAR1 and nothing")
    assert "cannot be read as Parquet" in _message(parquet, path=path, label="y")


def test_the_extras_are_named_where_they_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert "fedpeer[parquet]" in _message(parquet, path="t.parquet", label="y")
    assert "fedpeer[images]" in _message(images, path=str(tmp_path))


# NPZ


def _npz(tmp_path: Path, **arrays: Any) -> str:
    path = str(tmp_path / "t.npz")
    np.savez(path, **arrays)
    return path


def test_npz_arrays_are_taken_as_they_are(tmp_path: Path) -> None:
    x = np.arange(12.0).reshape(4, 3)
    path = _npz(tmp_path, x=x, y=np.array([0, 2, 1, 0]), user=np.array(["b", "a", "b", "b"]), test=x[:, 0] > 5)
    found = npz(path=path)
    assert (found.name, found.input_kind, found.task, found.classes) == (
        "t",
        "features",
        "classification",
        ("0", "1", "2"),
    )
    assert found.x.dtype == np.float32
    assert np.array_equal(found.x, x)
    assert found.user_N is not None
    assert found.user_N.tolist() == [1, 0, 1, 1]
    assert found.test_N is not None
    assert found.test_N.tolist() == [False, False, True, True]


def test_the_kind_of_input_follows_from_the_shape_or_is_said(tmp_path: Path) -> None:
    y = np.array([0, 1])
    assert npz(path=_npz(tmp_path, x=np.zeros((2, 5, 6)), y=y)).input_shape == (1, 5, 6)
    assert npz(path=_npz(tmp_path, x=np.zeros((2, 3, 5, 6)), y=y)).input_kind == "image"
    tokens = npz(path=_npz(tmp_path, x=np.ones((2, 9), np.int32), y=y), kind="tokens")
    assert tokens.x.dtype == np.int64
    assert tokens.input_kind == "tokens"
    outputs = npz(path=_npz(tmp_path, x=np.zeros((2, 3)), y=np.zeros((2, 4))))
    assert (outputs.task, outputs.y.shape) == ("regression", (2, 4))
    assert npz(path=_npz(tmp_path, x=np.zeros((2, 3)), y=np.array([[1.5], [2]]))).y.shape == (2,)


def test_arrays_of_true_and_false_are_labels_and_others_are_if_it_is_said(tmp_path: Path) -> None:
    y = np.array([[True, False, True], [False, False, True]])
    guessed = npz(path=_npz(tmp_path, x=np.zeros((2, 3)), y=y))
    said = npz(
        path=_npz(tmp_path, x=np.zeros((2, 3)), y=y.astype(np.int64)), task="multi-label", classes=("a", "b", "c")
    )
    assert (guessed.task, guessed.classes) == ("multi-label", ("0", "1", "2"))
    assert [each.source.endswith("read as 3 labels (guessed)") for each in (guessed, said)] == [True, False]
    assert (said.task, said.classes) == ("multi-label", ("a", "b", "c"))
    for each in (guessed, said):
        assert each.y.dtype == np.float32
        assert np.array_equal(each.y, y)


X = np.zeros((3, 2))


@pytest.mark.parametrize(
    ("arrays", "settings", "said"),
    [
        ({"x": X}, {}, "no array y"),
        ({"z": X}, {}, "no array x and no array y; it has: z"),
        ({"x": X, "y": [0, 1]}, {}, "y: it has 2 entries, but x has 3"),
        ({"x": X, "y": [0, 1, 1], "user": [1, 2]}, {}, "user: it has 2 entries"),
        ({"x": X, "y": [0, 1, 1], "test": [0, 1, 1]}, {}, "test: it must be an array of true"),
        ({"x": X, "y": [0, -1, 1]}, {}, "y[1]: -1 is out of range"),
        ({"x": X, "y": [0, 1.5, 1]}, {"task": "classification"}, "y[1]: 1.5 is out of range"),
        (
            {"x": X, "y": [0, 4, 1]},
            {"classes": ("a", "b")},
            "y[1]: 4 is out of range: class numbers are whole and from 0 to 1",
        ),
        ({"x": X, "y": [1, 1, 1]}, {}, "of class 1"),
        ({"x": X, "y": [0.5, np.nan, 1]}, {}, "y[1]: nan is not a finite number"),
        (
            {"x": np.where(np.eye(3), np.inf, 0), "y": [0, 1, 0]},
            {},
            "x[0, 0]: inf is not a finite number in float32, nor are 2",
        ),
        ({"x": np.zeros(3), "y": [0, 1, 0]}, {}, "x: its shape is (3,)"),
        ({"x": np.zeros((0, 3)), "y": []}, {}, "not empty"),
        ({"x": np.zeros((3, 2, 2, 2, 2)), "y": [0, 1, 0]}, {}, "such as volumes, write kind=features"),
        ({"x": X, "y": np.zeros((3, 2))}, {"task": "classification"}, "task=regression"),
        ({"x": X, "y": np.zeros((3, 2))}, {"task": "classification"}, "task=multi-label for labels of 0 and 1"),
        (
            {"x": X, "y": [0, 1, 1]},
            {"task": "multi-label"},
            "y: its shape is (3,); task=multi-label has (examples, labels)",
        ),
        ({"x": X, "y": np.eye(3) * 2}, {"task": "multi-label"}, "y[0, 0]: 2.0 is neither 0 nor 1, and 2 more"),
        ({"x": X, "y": np.eye(3)}, {"task": "multi-label", "classes": ("a", "b")}, "there are 2 names, and 3 labels"),
        ({"x": [["a", "b"]] * 3, "y": [0, 1, 0]}, {}, "x: it holds <U1, not numbers; encode it"),
        ({"x": X, "y": [0, 1, 0]}, {"kind": "tokens"}, "tokens are whole numbers"),
        ({"x": X, "y": [0, 1, 0]}, {"task": "completion"}, "task=completion: x and y have classes, labels or numbers"),
    ],
)
def test_each_mistake_of_an_npz_is_named(
    arrays: dict[str, Any], settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    message = _message(npz, path=_npz(tmp_path, **arrays), **settings)
    assert said in message
    assert "t.npz" in message


def test_what_is_under_a_mask_is_no_value() -> None:
    x_NF = np.ma.masked_greater(np.arange(6.0).reshape(3, 2), 3)
    with pytest.raises(DataError, match="x: 2 of its values are masked"):
        of_objects((x_NF, [0, 1, 0]))


def test_a_tensor_that_numpy_does_not_take_is_told_why() -> None:
    with pytest.raises(DataError, match=r"x: it cannot be converted to an array \(Can't call numpy"):
        of_objects((torch.zeros(3, 2, requires_grad=True), [0, 1, 0]))


WHOLE = Dataset(
    name="mine",
    x=np.zeros((4, 3), np.float32),
    y=np.array([0, 1, 0, 1]),
    task="classification",
    input_kind="features",
    classes=("ill", "well"),
)


NEXT: dict[str, Any] = {"task": "next-token", "classes": (), "input_kind": "tokens", "x": np.zeros((4, 3), np.int64)}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"input_kind": "foo"}, 'input_kind: it is "foo"; write one of features, image, tokens'),
        (
            {"task": "ranking"},
            'task: it is "ranking"; write one of classification, multi-label, regression, completion',
        ),
        ({"x": np.zeros((4, 3))}, "x: it holds float64; convert it with x.astype(numpy.float32)"),
        ({"input_kind": "tokens"}, "x: it holds float32; convert it with x.astype(numpy.int64)"),
        ({"input_kind": "image"}, "images have (examples, channels, height, width)"),
        ({"x": np.zeros((5, 3), np.float32)}, "y: it has 4 entries, but x has 5"),
        ({"x": np.array(1.0, np.float32)}, "x: its shape is (); it must be (examples, ...), and not empty"),
        ({"y": np.array(1)}, "y: its shape is (); it must be (examples, ...)"),
        ({"x": np.full((4, 3), np.nan, np.float32)}, "x[0, 0]: nan is not a finite number"),
        ({"y": np.array([0, 1, 2, 1])}, "y[2]: 2 is out of range"),
        ({"y": np.array([0, 1, 0, 1], np.int32)}, "y: it holds int32; convert it with y.astype(numpy.int64)"),
        ({"classes": ()}, "classes: there are none"),
        ({"task": "regression", "y": np.zeros(4, np.float32)}, "classes: there are classes, but task=regression"),
        ({"task": "regression", "classes": (), "y": np.full(4, np.inf, np.float32)}, "y[0]: inf is not a finite"),
        ({"task": "multi-label"}, "y: its shape is (4,); task=multi-label has"),
        (
            {"task": "multi-label", "y": np.zeros((4, 2), np.int64)},
            "y: it holds int64; convert it with y.astype(numpy.float32)",
        ),
        ({"task": "multi-label", "y": np.zeros((4, 3), np.float32)}, "classes: there are 2 names, and 3 labels in y"),
        ({"user_N": np.array([0, 1])}, "user_N: its shape is (2,), but x has 4 examples; it must be (4,)"),
        ({"user_N": np.array([0, 1, -2, 1])}, "user_N: numbers from -2 to 1 are not from 0 on"),
        (
            {"user_N": np.array([0, 2, 0, 2]), "user_names": ("a", "b")},
            "from 0 to 2 are not those of 2 names, from 0 on",
        ),
        ({"user_N": np.zeros(4), "user_names": ("a",)}, "user_N: it holds float64; convert it"),
        ({"user_N": np.array([0, 1, 2, -1]), "user_names": ("a", "b", "c")}, "from -1 to 2 are not those of 3 names"),
        ({"test_N": np.array([True])}, "test_N: its shape is (1,), but x has 4 examples; it must be (4,)"),
        ({"test_N": np.array([0, 0, 1, 1])}, "test_N: it holds int64; it must be True (for testing) and False: write"),
        ({"y": [0, 1, 0, 1]}, "y: it is a list; convert it with numpy.asarray(y)"),
        ({"name": 3}, "name: it is 3; write text"),
        ({"classes": "ab"}, "classes: it is a str; write a tuple of names"),
        ({"classes": (0, 1)}, "classes: 0 is no text; write tuple(map(str, classes))"),
        ({"user_N": np.array(["a", "b", "a", "b"])}, "number them: user_names, user_N = numpy.unique(user_N, return"),
        ({"x": np.array([[np.nan, 0, 0]] + [[0] * 3] * 3, np.float32)}, "nan is not a finite number in float32; clean"),
        ({"feature_names": ("age",)}, "feature_names: there are 1, but x has 3 features; name each"),
        ({"input_kind": "tokens", "x": np.full((4, 3), -2)}, "x: it holds -2; numbers of tokens are 0 or more"),
        (
            {"input_kind": "tokens", "x": np.full((4, 3), 7), "vocabulary": 7},
            "x: it holds token 7, but the vocabulary is 7; set it to 8 or more",
        ),
        (
            {**NEXT, "y": np.zeros(4, np.int64)},
            "y: it holds int64 (4,); next tokens are int64 in the shape of x, (4, 3)",
        ),
        ({**NEXT, "y": np.full((4, 3), -2)}, "y: it holds -2; numbers of tokens are -1 or more"),
    ],
    ids=str,
)
def test_a_data_set_that_a_user_has_put_together_is_looked_at(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError) as found:
        of_objects(replace(WHOLE, **changed), "mine")
    assert said in str(found.value)


def test_a_data_set_that_fits_is_taken_as_it_is() -> None:
    images = replace(WHOLE, x=np.zeros((4, 1, 5, 5), np.float32), input_kind="image")
    sequences = replace(WHOLE, x=np.zeros((4, 5, 2), np.float32))
    tokens = replace(WHOLE, x=np.zeros((4, 5), np.int64), input_kind="tokens")
    numbers = replace(WHOLE, y=np.zeros((4, 2), np.float32), task="regression", classes=())
    labels = replace(WHOLE, y=np.eye(4, 2, dtype=np.float32), task="multi-label")
    for each in (WHOLE, images, sequences, tokens, numbers, labels):
        assert of_objects(each) is each


def test_settings_beside_a_data_set_count_or_are_refused(tmp_path: Path) -> None:
    found = of_objects(WHOLE, classes=("well", "ill", "dead"), test_fraction=0.5)
    assert [found.classes[number] for number in found.y] == ["ill", "well", "ill", "well"]
    assert found.classes == ("well", "ill", "dead")
    assert found.test_N is not None
    assert found.test_N.sum() == 2
    labels = replace(WHOLE, y=np.eye(4, 2, dtype=np.float32), task="multi-label")
    assert of_objects(labels, classes=("well", "ill")).y.tolist() == [[0, 1], [1, 0], [0, 0], [0, 0]]
    with pytest.raises(DataError, match='the Dataset has no label "dead"; leave it out'):
        of_objects(labels, classes=("well", "ill", "dead"))
    with pytest.raises(DataError, match=r"(?s)task=regression: the Dataset says .*kind=image: .*\"well\", a class"):
        of_objects(WHOLE, task="regression", kind="image", classes=("ill", "dead"))


def test_a_test_part_may_be_a_column_and_is_replaced_by_a_fraction(tmp_path: Path) -> None:
    path = _npz(tmp_path, x=np.zeros((8, 2)), y=np.arange(8) % 2, test=(np.arange(8) > 6)[:, None])
    assert npz(path=path).test_N.tolist() == [False] * 7 + [True]  # type: ignore[union-attr]
    assert npz(path=path, test_fraction=0.5).test_N.sum() == 4  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32, np.uint64, np.int64])
@pytest.mark.parametrize("what", ["user", "subclass"])
def test_whose_an_example_is_may_be_of_any_type_of_whole_numbers(what: str, kind: Any) -> None:
    numbers: dict[str, Any] = {f"{what}_N": np.array([1, 0, 1, 1], kind), f"{what}_names": ("north", "south")}
    found = of_objects(replace(WHOLE, **numbers))
    assert getattr(found, f"{what}_N").dtype == np.int64
    assert getattr(found, f"{what}_N").tolist() == [1, 0, 1, 1]
    assert getattr(found, f"{what}_names") == ("north", "south")


def test_a_word_that_does_not_exist_is_told_where_it_is_written() -> None:
    with pytest.raises(DataError, match='mine: input_kind: it is "foo"; write one of features, image, tokens'):
        Dataset(name="mine", x=WHOLE.x, y=WHOLE.y, task="classification", input_kind="foo")  # type: ignore[arg-type]


def test_names_may_be_a_list() -> None:
    names: Any = list(WHOLE.classes)
    assert of_objects(replace(WHOLE, classes=names)).classes == WHOLE.classes


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (3, "data is int, not a Dataset, (x, y), or items"),
        ({"x": [1.0], "y": [1]}, "give a pair, (x, y)"),
        (np.zeros((4, 3)), "data is ndarray, not a Dataset, (x, y), or items (input, label) of one shape: give the"),
        (Path("ward.csv"), "name the file by its kind, such as csv:ward.csv,label=NAME"),
        ((1, 2, 3), "data is a tuple of 3; it must be (x, y)"),
    ],
    ids=str,
)
def test_what_is_no_data_set_is_told_as_what_it_is(given: object, said: str) -> None:
    with pytest.raises(DataError) as found:
        of_objects(given)
    assert said in str(found.value)


def test_a_loader_is_told_to_be_its_data_set() -> None:
    with pytest.raises(DataError, match=r"data is DataLoader, .*give the data set itself, loader\.dataset"):
        of_objects(DataLoader(TensorDataset(torch.zeros(4, 3), torch.zeros(4))))


def test_a_file_of_another_kind_is_no_pickle_to_be_loaded_unsafely(tmp_path: Path) -> None:
    path = tmp_path / "table.npz"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="it is another kind of file") as found:
        npz(path=str(path))
    assert "pickle" not in str(found.value)


def test_without_names_users_are_named_by_their_numbers() -> None:
    found = of_objects(replace(WHOLE, user_N=np.array([700, 10, 9, 700], np.int32)))
    assert found.user_N is not None
    assert [found.user_names[number] for number in found.user_N] == ["700", "10", "9", "700"]
    assert found.user_names == ("9", "10", "700")


def test_sequences_are_features_with_a_further_dimension(tmp_path: Path) -> None:
    path = _npz(tmp_path, x=np.ones((4, 16, 3)), y=np.array([0, 1, 0, 1]))
    assert npz(path=path).input_shape == (1, 16, 3)
    assert npz(path=path, kind="features").input_shape == (16, 3)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    path = _npz(tmp_path, x=np.array([print, print], dtype=object), y=np.array([0, 1]))
    assert "plain arrays" in _message(npz, path=path)
    Path(path).write_bytes(b"PK\x03\x04 not a zip")
    assert "cannot be read as an .npz" in _message(npz, path=path)
    Path(path).write_bytes(b"")
    assert "cannot be read as an .npz" in _message(npz, path=path)
    np.save(tmp_path / "one.npy", X)
    assert "it holds one array" in _message(npz, path=str(tmp_path / "one.npy"))


def _declared(shape: tuple[int, ...], content: bytes, version: bytes = b"\1\0") -> bytes:
    """Return an array's bytes in numpy's format; the header's shape need not match the content."""
    said = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY" + version + len(said).to_bytes(2, "little") + said + content


@pytest.mark.parametrize("packing", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize(
    ("x", "said"),
    [
        (_declared((10**12, 1), bytes(8)), "4,000,000,000,000 bytes, but 8 bytes"),
        (_declared((2, 1), bytes(800)), "8 bytes, but 800 bytes"),
        (_declared((2**40, 2**40), b""), "but 0 bytes"),
        (_declared((2, 1), bytes(8), b"\3\0"), "version (3, 0)"),
        (_declared((-2, -1), bytes(8)), "cannot be read as an .npz"),
        (b"", "cannot be read as an .npz"),
    ],
)
def test_an_array_that_says_to_be_longer_than_it_is_is_not_allocated(
    tmp_path: Path, x: bytes, said: str, packing: int
) -> None:
    path = str(tmp_path / "t.npz")
    with zipfile.ZipFile(path, "w", packing) as archive:
        archive.writestr("x.npy", x)
        archive.writestr("y.npy", _declared((2,), bytes(8)))
    message = _message(npz, path=path)
    assert said in message
    assert "\n" not in message


def test_an_archive_that_lies_about_how_long_a_member_is_is_not_believed(tmp_path: Path) -> None:
    """The archive's directory states 4 GB for a few packed bytes, and so does the array's header."""
    path = tmp_path / "t.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("x", "y"):
            archive.writestr(f"{name}.npy", _declared((10**9, 1), bytes(8)))
    content, long = path.read_bytes(), 4 * 10**9 + 128
    true = len(_declared((10**9, 1), bytes(8))).to_bytes(4, "little")
    assert content.count(true) >= 2
    path.write_bytes(content.replace(true, long.to_bytes(4, "little")))
    assert "4,000,000,000 bytes, but" in _message(npz, path=str(path))


def test_one_array_that_says_to_be_huge_is_not_allocated_either(tmp_path: Path) -> None:
    path = tmp_path / "one.npz"
    path.write_bytes(_declared((10**12, 1), bytes(8)))
    assert "it holds one array" in _message(npz, path=str(path))


# Images

#: The reader of images, typed to accept any settings.
IMAGES: Callable[..., Dataset] = images


def _paint(path: Path, shape: tuple[int, ...], value: int = 255) -> None:
    pillow = pytest.importorskip("PIL.Image", reason="needs the extra fedpeer[images]")
    path.parent.mkdir(exist_ok=True, parents=True)
    pillow.fromarray(np.full(shape, value, dtype=np.uint8)).save(path)


def test_folders_are_classes(tmp_path: Path) -> None:
    _paint(tmp_path / "dog" / "1.png", (4, 6, 3), 51)
    _paint(tmp_path / "cat" / "1.png", (4, 6, 3))
    _paint(tmp_path / "cat" / "2.png", (4, 6, 3))
    (tmp_path / "cat" / ".hidden").write_text("not an image")
    found = images(path=str(tmp_path))
    assert found.x.shape == (3, 3, 4, 6)
    assert found.classes == ("cat", "dog")
    assert found.y.tolist() == [0, 0, 1]
    assert found.x[2].max() == np.float32(0.2)
    assert images(path=str(tmp_path), resize=(5,), colours="grey").x.shape == (3, 1, 5, 5)
    assert images(path=str(tmp_path), resize=(5, 7)).x.shape == (3, 3, 7, 5)


def test_images_that_do_not_fit_are_named(tmp_path: Path) -> None:
    assert "there is no folder" in _message(images, path=str(tmp_path / "none"))
    assert "it has 0 folders" in _message(images, path=str(tmp_path))
    _paint(tmp_path / "a" / "1.png", (4, 6))
    (tmp_path / "b").mkdir()
    assert "b: there is no image" in _message(images, path=str(tmp_path))
    _paint(tmp_path / "b" / "1.png", (4, 7))
    _paint(tmp_path / "b" / "2.png", (4, 6, 3))
    message = _message(images, path=str(tmp_path))
    assert "b/1.png: it is 7 x 4 grey, but a/1.png is 6 x 4 grey" in message.replace("\\", "/")
    assert "b/2.png: it is 6 x 4 RGB" in message.replace("\\", "/")
    _paint(tmp_path / "b" / "3.png", (4, 6, 4))
    (tmp_path / "b" / "4.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    message = _message(images, path=str(tmp_path), resize=(6, 4))
    assert "b/3.png: its pixels are RGBA" in message
    assert "b/4.png: it cannot be read as an image" in message
    for side in (0, 99_999_999):  # Pillow would allocate the memory
        assert "write one size in pixels, or width+height, each at most" in _message(
            images, path=str(tmp_path), resize=(side,)
        )
    assert "is a file, not a folder" in _message(images, path=str(tmp_path / "a" / "1.png"))


def test_whatever_pillow_raises_for_a_damaged_image_is_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(file: Path) -> None:
        raise RuntimeError("Failed to decode frame 0")  # as for AVIF

    pillow = pytest.importorskip("PIL.Image", reason="needs the extra fedpeer[images]")
    monkeypatch.setattr(pillow, "open", opened)
    with pytest.raises(DataError, match="it cannot be read as an image \\(RuntimeError\\); repair or remove it"):
        read_images(str(tmp_path / "1.png"), (1, 4, 6))


def test_new_images_that_a_model_does_not_take_are_named_at_once(tmp_path: Path) -> None:
    """The way out is never a setting: the model was trained with those that it has."""
    with pytest.raises(DataError, match="there is no image in this folder"):
        read_images(str(tmp_path), (1, 4, 6))
    for name, shape in (("x/fits", (4, 6)), ("x/y/wide", (4, 7)), ("rgb", (4, 6, 3)), ("clear", (4, 6, 4))):
        _paint(tmp_path / f"{name}.png", shape)
    (tmp_path / "x" / "again").symlink_to(tmp_path)
    assert read_images(str(tmp_path / "x" / "fits.png"), (1, 4, 6))[0] == ["fits.png"]
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    with pytest.raises(DataError) as caught:
        read_images(str(tmp_path), (1, 4, 6))
    trained_on = "as in the images that the model was trained on"
    assert str(caught.value).split("\n\n")[1].splitlines() == [
        "  broken.png: it cannot be read as an image (UnidentifiedImageError); repair or remove it",
        f"  clear.png: its pixels are RGBA, not grey or RGB; save it in one of these, {trained_on}",
        "  rgb.png: it is 6 x 4 RGB, but the model takes 6 x 4 grey; save it like that",
        "  x/y/wide.png: it is 7 x 4 grey, but the model takes 6 x 4 grey; save it like that",
    ]
    pillow = pytest.importorskip("PIL.Image", reason="needs the extra fedpeer[images]")
    pillow.new("LA", (6, 4)).save(tmp_path / "rgb.png")
    with pytest.raises(DataError, match=r"transparent pixels; save it without any, as in the images"):
        read_images(str(tmp_path / "rgb.png"), (1, 4, 6), colours="grey")


def test_of_many_images_of_other_sizes_the_first_is_named(tmp_path: Path) -> None:
    for number in range(20):
        _paint(tmp_path / "ab"[number % 2] / f"{number}.png", (4 + number, 6))
    message = _message(images, path=str(tmp_path))
    assert message.count("bring them to one size with resize=") == 1
    assert "(and 18 more like it)" in message


@pytest.fixture
def pillow() -> Any:
    return pytest.importorskip("PIL.Image", reason="needs the extra fedpeer[images]")


@pytest.mark.parametrize("ending", ["png", "tiff"])
def test_pixels_of_16_bits_keep_their_shades(ending: str, tmp_path: Path, pillow: Any) -> None:
    shade_HW = np.arange(0, 65536, 4369, dtype=np.uint16).reshape(4, 4)
    for name, pixels in (("dark", shade_HW // 2), ("light", shade_HW)):
        (tmp_path / name).mkdir()
        pillow.fromarray(pixels).save(tmp_path / name / f"1.{ending}")
    for colours, channels in ({}, 1), ({"colours": "grey"}, 1), ({"colours": "rgb"}, 3):
        found = IMAGES(path=str(tmp_path), **colours)
        assert found.x.shape == (2, channels, 4, 4)
        assert found.x[1] == pytest.approx(np.broadcast_to(shade_HW / 65535, (channels, 4, 4)), abs=1e-6)
        assert found.x[0].max() == pytest.approx(0.5, abs=1e-5)
    small = np.unique(images(path=str(tmp_path), resize=(2,)).x.astype(np.float32))
    assert len(small) == 8
    assert small[0] >= 0
    assert small[-1] <= 1


def test_pixels_of_32_bits_have_no_known_white(tmp_path: Path, pillow: Any) -> None:
    for name, kind in (("a", np.int32), ("b", np.float32)):
        (tmp_path / name).mkdir()
        pillow.fromarray(np.ones((2, 2), kind)).save(tmp_path / name / "1.tiff")
    said = _message(images, path=str(tmp_path), colours="grey")
    assert "a/1.tiff: its pixels have 32 bits, whose white is not known; save it with 8 or 16 bits (and 1 more" in said


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "L"])
def test_what_is_behind_transparent_pixels_is_said_or_asked(mode: str, tmp_path: Path, pillow: Any) -> None:
    """A black drawing on a transparent background is all black without its transparency."""
    ink_HW = np.zeros((2, 2), np.uint8)
    ink_HW[0] = 255
    drawing = pillow.merge("LA", [pillow.new("L", (2, 2), 0), pillow.fromarray(ink_HW)])
    if mode in ("P", "L"):  # one shade is the transparent one
        drawing = pillow.fromarray(np.where(ink_HW, 0, 3).astype(np.uint8), mode="L").convert(mode)
    for name in "ab":
        (tmp_path / name).mkdir()
        drawing.convert(mode).save(tmp_path / name / "1.png", **({"transparency": 3} if mode in ("P", "L") else {}))
    assert "a/1.png: it has transparent pixels; say what is behind them with background=white" in _message(
        images, path=str(tmp_path), colours="grey"
    )
    for background, value in (("white", 1), ("black", 0)):
        found = IMAGES(path=str(tmp_path), colours="grey", background=background)
        assert found.x[0, 0].tolist() == [[0, 0], [value, value]]


def _png(file: Path, bits: int, colours: int, row: bytes, width: int, transparent: bytes) -> None:
    """Write a PNG of one row by its specification: Pillow writes neither few bits nor 16 with a transparent shade."""
    file.parent.mkdir(exist_ok=True)
    header = struct.pack(">IIBBBBB", width, 1, bits, colours, 0, 0, 0)
    chunks = {b"IHDR": header, b"tRNS": transparent, b"IDAT": zlib.compress(b"\0" + row), b"IEND": b""}
    parts = (
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks.items()
    )
    file.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))


@pytest.mark.parametrize(
    ("bits", "row", "shade", "shown"),
    [
        (16, struct.pack(">4H", 0, 13107, 13108, 65535), 13107, [0, None, 0.2, 1]),
        (8, bytes([0, 51, 52, 255]), 51, [0, None, 52 / 255, 1]),
        (4, bytes([0x03, 0x4F]), 3, [0, None, 4 / 15, 1]),
        (2, bytes([0b00011011]), 1, [0, None, 2 / 3, 1]),
        (1, bytes([0b01000000]), 1, [0, None, 0, 0]),
    ],
)
@pytest.mark.usefixtures("pillow")
def test_one_transparent_shade_is_seen_through_at_any_number_of_bits(
    bits: int, row: bytes, shade: int, shown: list[float | None], tmp_path: Path
) -> None:
    for name in "ab":
        _png(tmp_path / name / "1.png", bits, 0, row, 4, struct.pack(">H", shade))
    assert "a/1.png: it has transparent pixels; say" in _message(images, path=str(tmp_path), colours="grey")
    for background, value in (("white", 1.0), ("black", 0.0)):
        found = IMAGES(path=str(tmp_path), colours="grey", background=background)
        wanted = [value if each is None else each for each in shown]
        assert found.x[0, 0, 0].tolist() == pytest.approx(wanted, abs=1e-4)
    for name in "ab":
        _png(tmp_path / name / "1.png", 8, 0, bytes([0, 5, 6, 255]), 4, struct.pack(">H", 9))  # no pixel has this shade
    assert images(path=str(tmp_path)).x[0, 0, 0].tolist() == pytest.approx([0, 5 / 255, 6 / 255, 1])


@pytest.mark.usefixtures("pillow")
def test_a_transparent_colour_of_16_bits_is_refused(tmp_path: Path) -> None:
    """Two colours that differ only in their lower bits would become one."""
    for name in "ab":
        _png(tmp_path / name / "1.png", 16, 2, struct.pack(">6H", 0, 1, 2, 0, 1, 3), 2, struct.pack(">3H", 0, 1, 2))
    said = _message(images, path=str(tmp_path), background="white")
    assert "a/1.png: its transparent colour has 16 bits, of which 8 are read; save it with 8 bits for a colour" in said


def test_opaque_images_palettes_and_inks_are_converted(tmp_path: Path, pillow: Any) -> None:
    red = pillow.new("RGB", (2, 2), (255, 0, 0))
    for name, mode, ending in (("a", "RGBA", "png"), ("b", "P", "png"), ("c", "CMYK", "tiff"), ("d", "RGB", "bmp")):
        (tmp_path / name).mkdir()
        red.convert(mode).save(tmp_path / name / f"1.{ending}")
    found = images(path=str(tmp_path), colours="rgb")
    assert found.x == pytest.approx(np.broadcast_to(np.array([1, 0, 0])[:, None, None], (4, 3, 2, 2)))


def test_a_photo_stands_as_its_camera_was_held(tmp_path: Path, pillow: Any) -> None:
    for name in "ab":
        photo = pillow.fromarray(np.array([[0, 0, 0, 255]], np.uint8))
        (tmp_path / name).mkdir()
        turned = photo.getexif()
        turned[0x0112] = 6  # show it turned by 90 degrees
        photo.save(tmp_path / name / "1.png", exif=turned)
    assert images(path=str(tmp_path)).x[0, 0].tolist() == [[0], [0], [0], [1]]


def test_folders_and_classes_go_together(tmp_path: Path) -> None:
    for name in ("cat", "dog", "bird"):
        _paint(tmp_path / name / "1.png", (2, 2))
    assert 'bird: this folder is not a class; did you mean "birds"?' in _message(
        images, path=str(tmp_path), classes=("cat", "dog", "birds")
    )
    found = images(path=str(tmp_path), classes=("dog", "cat", "cow", "bird"))
    assert (found.classes, found.y.tolist()) == (("dog", "cat", "cow", "bird"), [0, 1, 3]), "a class may have none"
    (tmp_path / "cow").mkdir()
    assert images(path=str(tmp_path), classes=("dog", "cat", "cow", "bird")).y.tolist() == [0, 1, 3]
    assert "cow: there is no image in this folder" in _message(images, path=str(tmp_path))
    (tmp_path / "cow").rmdir()
    _paint(tmp_path / "cat" / "more" / "2.png", (2, 2))
    assert "cat/more: it is a folder; put its images into cat itself" in _message(images, path=str(tmp_path))


def test_users_are_folders_of_folders_of_classes(tmp_path: Path) -> None:
    for number, place in enumerate(("north/cat/2", "north/dog/1", "south/dog/1", "north/cat/1"), 1):
        _paint(tmp_path / f"{place}.png", (2, 2), 51 * number)
    found = images(path=str(tmp_path), user="folder")
    assert (found.classes, found.user_names) == (("cat", "dog"), ("north", "south"))
    assert found.user_N is not None
    shade_N = [round(5 * float(x.max())) for x in found.x]
    assert list(zip(shade_N, found.user_N.tolist(), found.y.tolist(), strict=True)) == [
        (4, 0, 0),
        (1, 0, 0),
        (2, 0, 1),
        (3, 1, 1),
    ]
    chosen = images(path=str(tmp_path), user="folder", classes=("dog", "cat"))
    assert (chosen.y.tolist(), chosen.user_N.tolist() if chosen.user_N is not None else []) == (
        [0, 1, 1, 0],
        [0, 0, 0, 1],
    )


def test_users_whose_folders_do_not_fit_are_named(tmp_path: Path) -> None:
    for place in ("north/cat/1", "north/dog/1", "south/dog/1"):
        _paint(tmp_path / f"{place}.png", (2, 2))
    assert "write user=folder if north is a user and cat a class" in _message(images, path=str(tmp_path))
    (tmp_path / "east" / "cat").mkdir(parents=True)
    (tmp_path / "south" / "bird").mkdir()
    (tmp_path / "north" / "cat" / "deep").mkdir()
    message = _message(images, path=str(tmp_path), user="folder")
    assert "  east: this user has no image in a folder of a class" in message
    assert "  */bird: no user has an image of this class" in message
    assert "  north/cat/deep: it is a folder; put its images into north/cat itself" in message
    assert "user=folder" not in message
    message = _message(images, path=str(tmp_path / "north"), user="folder")
    assert "the 2 folders in it have 1 folders in them; there must be one for each class" in message


# Python


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_wards.py").write_text(
        "import numpy as np\n"
        "class Items:\n"
        "    def __len__(self): return 4\n"
        "    def __getitem__(self, i): return np.full((1, 2, 2), i), i % 2\n"
        "def pair(): return np.ones((4, 3)), np.array([0, 1, 2, 0])\n"
        "def items(): return Items()\n"
        "def whole():\n"
        "    from my_wards import missing\n"
        "def three(): return 1, 2, 3\n"
        "def nothing(): return None\n"
        "def needs(x): return x\n"
        "def ends(): raise SystemExit(3)\n"
        "value = 3\n"
    )
    (tmp_path / "my_broken.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return "my_wards"


def test_a_function_of_ones_own_gives_the_data(module: str) -> None:
    assert python_arrays(function=f"{module}:pair").y.tolist() == [0, 1, 2, 0]
    found = python_arrays(function=f"{module}:items")
    assert found.input_shape == (1, 2, 2)
    assert found.y.tolist() == [0, 1, 0, 1]
    assert found.x[3].max() == 3


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("my_wards", "write package.module:function"),
        ("my_wrads:pair", "on PYTHONPATH"),
        ("my_broken:pair", "importing my_broken failed: ZeroDivisionError"),
        ("my_broken.py:pair", "my_broken.py is a file; write the module's name, as my_broken:pair"),
        ("./own/code.py:pair", "./own/code.py is a file; write the module's name, as own.code:pair"),
        ("my_wards:pear", "has no function pear"),
        ("my_wards:value", "has no function value"),
        ("my_wards:needs", "calling it without arguments failed: TypeError"),
        ("my_wards:whole", "failed: ImportError"),
        ("my_wards:ends", "calling it without arguments failed: SystemExit: 3"),
        ("my_wards:three", "returned a tuple of 3"),
        ("my_wards:nothing", "returned NoneType, not a Dataset"),
    ],
)
def test_what_is_wrong_with_a_function_is_said(function: str, said: str, module: str) -> None:
    assert said in _message(python_arrays, function=function)


def test_where_a_missing_file_was_looked_for_is_said_of_relative_paths_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert _message(csv, path="nowhere.csv", label="y") == f"there is no file nowhere.csv (looked in {tmp_path})"
    whole = f"{tmp_path}/elsewhere/nowhere.csv"
    assert _message(csv, path=whole, label="y") == f"there is no file {whole}"


def test_a_data_set_all_of_which_is_for_testing_is_told(tmp_path: Path) -> None:
    path = tmp_path / "all.npz"
    np.savez(path, x=np.ones((6, 2)), y=np.arange(6) % 2, test=np.ones(6, bool))
    for rule in ("iid", "dirichlet:0.5"):
        choice = parse_choice(rule)
        split = call_choice(choice, SPLITS, "split")
        with pytest.raises(DataError, match="no example to train on: all are for testing; mark fewer, or set test_fr"):
            split(npz(path=str(path)), 2, np.random.default_rng(0))
