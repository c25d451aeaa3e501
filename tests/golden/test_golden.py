"""The golden cases for which fedpeer has an adapter, and the runner itself."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.golden.adapters import ADAPTERS
from tests.golden.compare import Leaf, compare
from tests.golden.run import STEMS, Case, load, main, run

FOLDER = os.environ.get("FEDPEER_GOLDEN")

#: Case 13 with numbers of our own: seven examples, cut at 2 and 3.
SLICING: Case = {
    "description": "seven examples",
    "inputs": {"order": [6, 5, 4, 3, 2, 1, 0], "cut_indices": [2, 3]},
    "expected": {"parts": [[6, 5], [4], [3, 2, 1, 0]], "sizes": [2, 1, 4]},
    "tolerance": {"exact": True},
}
STEM = "13_random_slicing"


@pytest.fixture(scope="module")
def cases() -> dict[str, Case]:
    return load(Path(FOLDER or ""))


@pytest.mark.skipif(FOLDER is None, reason="FEDPEER_GOLDEN is not set")
@pytest.mark.parametrize("stem", ADAPTERS)
def test_golden(cases: dict[str, Case], stem: str) -> None:
    right, line = run(cases[stem], ADAPTERS[stem], stem, {})
    assert right, line


@pytest.mark.skipif(FOLDER is None, reason="FEDPEER_GOLDEN is not set")
def test_the_table_of_stems_is_that_of_the_cases() -> None:
    assert sorted(path.stem for path in Path(FOLDER or "").glob("*.json")) == sorted(STEMS)


def folder_of(path: Path, **cases: Case | str) -> str:
    """Write a folder of cases by stem and return its path; stems that begin with a digit get an underscore here."""
    for name, case in cases.items():
        text = case if isinstance(case, str) else json.dumps(case)
        (path / f"{name.removeprefix('_')}.json").write_text(text, encoding="utf-8")
    return str(path)


def test_a_right_case_passes_with_its_leaves_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([folder_of(tmp_path, _13_random_slicing=SLICING)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "naive_limit" in lines[0]
    assert lines[1:] == ["13_random_slicing ok 10/10", "1 passed, 0 failed"]


def test_a_wrong_number_fails_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = {**SLICING, "expected": {"parts": [[6, 5], [4], [3, 2, 1, 0]], "sizes": [2, 1, 5]}}
    assert main([folder_of(tmp_path, _13_random_slicing=wrong)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "13_random_slicing failed 9/10, first at sizes[2]: expected 5, found 4"
    assert lines[2] == "0 passed, 1 failed"


def test_a_case_without_answers_is_run_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "computed.txt"
    folder = folder_of(tmp_path, _13_random_slicing={"inputs": SLICING["inputs"]})
    assert main([folder, str(out)]) == 0
    assert "13_random_slicing ok 0/0" in capsys.readouterr().out
    assert json.loads(out.read_text()) == {STEM: SLICING["expected"]}


def test_the_adapter_never_sees_the_answers(tmp_path: Path) -> None:
    seen: list[Case] = []

    def adapter(inputs: Case) -> Case:
        seen.append(inputs)
        return {"parts": [], "sizes": []}

    assert main([folder_of(tmp_path, _13_random_slicing=SLICING)], {STEM: adapter}) == 1
    assert seen == [SLICING["inputs"]]


def test_one_broken_case_does_not_stop_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(tmp_path, _01a_push_sum_atomic={"inputs": {}}, _13_random_slicing=SLICING)
    assert main([folder]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "01a_push_sum_atomic failed: KeyError: 'x0'"
    assert lines[3] == "1 passed, 1 failed"


def test_a_case_without_adapter_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([folder_of(tmp_path, _13_random_slicing=SLICING)], {}) == 1
    assert capsys.readouterr().out.splitlines()[1:] == ["13_random_slicing no adapter yet", "0 passed, 1 failed"]


@pytest.mark.parametrize(
    ("cases", "words"),
    [
        ({}, "holds no golden case"),
        ({"14_unheard_of": SLICING, STEM: SLICING}, "14_unheard_of.json is no golden case"),
        ({STEM: "{"}, "not a JSON file"),
        ({STEM: "[1]"}, 'an object with "inputs"'),
        ({STEM: {"expected": {}}}, 'an object with "inputs"'),
    ],
)
def test_what_is_no_folder_of_cases_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], cases: dict[str, Case | str], words: str
) -> None:
    assert main([folder_of(tmp_path, **cases)]) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert said.out == ""


@pytest.mark.parametrize("arguments", [[], ["a", "b", "c"], ["no/such/folder"]])
def test_so_is_a_call_without_a_folder(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err


def agree(expected: Case, found: Any, **tolerance: Any) -> list[bool]:
    return [leaf.agrees for leaf in compare(expected, found, tolerance)]


@pytest.mark.parametrize(
    ("expected", "found", "same"),
    [
        (1.0, 1.0 + 9e-7, True),
        (1.0, 1.0 + 2e-6, False),
        (1e6, 1e6 + 9e-4, True),
        (2.0, 2, True),
        (0.0, float("nan"), False),
        (0.0, None, False),
        (0.0, True, False),
        (3, 3, True),
        (3, 3.0000001, False),
        (1, True, False),
        (True, True, True),
        (True, 1, False),
        ("a", "a", True),
        ("a", "b", False),
    ],
)
def test_a_leaf_agrees_by_its_kind(expected: Any, found: Any, same: bool) -> None:
    assert agree({"x": expected}, {"x": found}, atol=1e-6) == [same]


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("optimum", "atol_optimum"),
        ("optimum_w", "atol_optimum"),
        ("subproblem_optimum", "atol_optimum"),
        ("theta", "atol_optimum"),
        ("limit_weight", "atol_limits"),
        ("naive_limit", "atol_limits"),
        ("fixed_point", "atol_fixed_point"),
    ],
)
def test_what_comes_out_of_an_iteration_has_the_looser_tolerance_of_its_file(name: str, key: str) -> None:
    near = {name: {"w": [1.0001]}}
    assert agree({name: {"w": [1.0]}}, near, atol=1e-6, **{key: 1e-3}) == [True]
    assert agree({name: {"w": [1.0]}}, near, atol=1e-6) == [False]
    assert agree({"other": 1.0}, {"other": 1.0001}, atol=1e-6, **{key: 1e-3}) == [False]


def test_names_of_models_are_sets_and_other_lists_are_not() -> None:
    for name in ("R", "closure", "dependency_closure", "implementers"):
        assert agree({name: {"m": [["a", "b"], []]}}, {name: {"m": [["b", "a"], []]}}) == [True, True]
        assert agree({name: {"m": ["a", "b"]}}, {name: {"m": ["a", "a"]}}) == [False]
        assert agree({name: {"m": ["a"]}}, {name: {"m": ["a", "b"]}}) == [False]
    assert agree({"parts": ["a", "b"]}, {"parts": ["b", "a"]}) == [False, False]


def test_what_is_missing_or_too_much_fails() -> None:
    assert agree({"x": [1, 2]}, {"x": [1]}) == [True, False]
    assert agree({"x": [1]}, {"x": [1, 2]}) == [True, False]
    assert agree({"x": {"y": 1}}, {}) == [False]
    assert agree({"x": {"y": 1}}, {"x": 1}) == [False]
    assert compare({"x": {"y": [1]}}, {"x": 3}, {}) == [Leaf("x.y[0]", False, 1, compare({"z": 1}, {}, {})[0].found)]


def test_contrasts_may_be_left_out_but_not_wrong() -> None:
    for name in ("naive_limit", "jensen_lower_bound", "algebraic_connectivity", "w_if_biased", "relu_mean"):
        assert agree({name: 1.0}, {}) == []
        assert agree({name: 1.0}, {name: 2.0}) == [False]
    assert agree({"x_if_y_WRONG": [1.0]}, {}) == []


def test_what_a_known_mistake_produces_must_differ() -> None:
    wrong = {"square_WRONG": [1.0, 2.0]}
    assert agree(wrong, {"square": [1.0, 3.0]}) == [True]
    assert agree(wrong, {"square": [1.0, 2.0]}) == [False]
    assert agree(wrong, {}) == [False]
