"""YAML input: plain values are read with their lines, and everything else is refused with its place."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpeer.cli.yaml_marks import FILE_BYTES_MAX, parse_yaml, read_yaml, scalar
from fedpeer.config.problems import ConfigError


def refused(text: str) -> list[tuple[str, str]]:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "file.yaml")
    return [(problem.place, problem.text) for problem in caught.value.problems]


def test_values_are_those_of_yaml_1_2() -> None:
    found, marks = parse_yaml("a: 1e-4\nb: no\nc: [0o17, true, ~, 1.5, '1', 2020-01-01]\n", "file.yaml")
    assert found == {"a": 1e-4, "b": "no", "c": [15, True, None, 1.5, "1", "2020-01-01"]}
    assert marks.problems == []


def test_every_key_and_value_has_its_line_and_column() -> None:
    _, marks = parse_yaml("a: 1\nb:\n  c: [x, y]\n", "file.yaml")
    assert marks.of(("a",)) == "line 1:4"
    assert marks.of(("b", "c"), key=True) == "line 3:3"
    assert marks.of(("b", "c", 1)) == "line 3:10"
    assert marks.of(("b", "missing", "deeper")) == "line 2:1", "what is not there is told at what encloses it"


def test_mistakes_of_single_settings_are_collected_and_the_rest_is_read() -> None:
    found, marks = parse_yaml("a: 1\na: 2\nb: .nan\nc: -.inf\n1: x\nd: [1, .inf, 3]\n", "file.yaml")
    assert found == {"a": 1, "d": [1, 3]}
    assert [(problem.place, problem.dotted) for problem in marks.problems] == [
        ("line 2:1", "a"),
        ("line 3:4", "b"),
        ("line 4:4", "c"),
        ("line 5:1", ""),
        ("line 6:8", "d.1"),
    ]


def test_classes_may_be_named_by_numbers_as_they_are_written() -> None:
    found, marks = parse_yaml("learning: {class_weights: {0: 1, 1.50: 2, true: 3}}", "file.yaml")
    assert found == {"learning": {"class_weights": {"0": 1, "1.50": 2, "true": 3}}}
    assert not marks.problems


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("", "", "empty"),
        ("# only a comment\n", "", "empty"),
        ("- a\n", "line 1:1", "a list, not settings"),
        ("word", "line 1:1", "a single value, not settings"),
        ("a: &x 1", "line 1:4", "anchor &x"),
        ("a: 1\nb: *x", "line 2:4", "alias *x"),
        ("a: !!python/object/apply:os.system [ls]", "line 1:4", "os.system"),
        ("a: !!int 3", "line 1:4", "tag"),
        ("%YAML 1.1\n---\na: no", "line 1:1", "directives"),
        ("a: 1\n---\nb: 2", "line 2:1", "second document"),
        ("a: [1, 2", "line 1:9", "not YAML"),
        ("a: b: c", "line 1:5", "not YAML"),
        ("\ta: 1", "line 1:1", "not YAML"),
        ("a: \x00", "", "not YAML"),
        ("a: " + "[" * 40 + "]" * 40, "line 1:35", "nested deeper"),
    ],
)
def test_refused(text: str, place: str, words: str) -> None:
    (found,) = refused(text)
    assert found[0] == place
    assert words in found[1]


def test_anchors_that_would_grow_without_bound_are_never_expanded() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    assert len(refused("\n".join(lines))) > 30


def test_files_that_are_not_text(tmp_path: Path) -> None:
    file = tmp_path / "federation.yaml"
    for content, words in ((b"a: \xff", "0xff is not UTF-8"), (b"a" * (FILE_BYTES_MAX + 1), "larger than 1 MiB")):
        file.write_bytes(content)
        with pytest.raises(ConfigError, match=words):
            read_yaml(file)
    with pytest.raises(ConfigError, match="folder"):
        read_yaml(tmp_path)
    with pytest.raises(ConfigError, match="no such file"):
        read_yaml(tmp_path / "other.yaml")


def test_options_are_read_as_plain_scalars() -> None:
    texts = ["4", "1e-4", "yes", "true", "pass", "", "null", "a: b", "[1]", "&x", "0x10"]
    assert [scalar(text) for text in texts] == [4, 1e-4, "yes", True, "pass", "", "null", "a: b", "[1]", "&x", 16]
    assert scalar("9" * 5_000) == math.inf


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(ConfigError):
        parse_yaml(text, "file.yaml")
