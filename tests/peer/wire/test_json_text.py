"""JSON from others: its depth is checked before it is parsed, whatever its strings contain."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpeer.peer.wire.json_text import DEPTH_MAX, deeper, parse_json

BRACKETS = st.text(st.sampled_from('[]{}"\\ax'), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | BRACKETS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(BRACKETS, inner, max_size=3),
    max_leaves=20,
)


def depth_of(value: Any) -> int:
    """Return the depth of a value; slow and recursive, as a reference."""
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


@pytest.mark.slow
@settings(max_examples=60)
@given(VALUES)
def test_the_depth_is_that_of_what_is_read(value: Any) -> None:
    text, depth = json.dumps(value).encode(), depth_of(value)
    assert not deeper(text, depth)
    assert depth == 0 or deeper(text, depth - 1)
    assert parse_json(text) == value


@pytest.mark.parametrize("depth", [DEPTH_MAX + 1, 962, 30_000])
@pytest.mark.parametrize("pair", ["[]", '{"a":}'])
def test_what_is_nested_too_deep_is_no_json_of_ours(depth: int, pair: str) -> None:
    text = pair[:-1] * depth + "1" + pair[-1] * depth
    with pytest.raises(ValueError, match="nested deeper"):
        parse_json(text.encode())


@pytest.mark.parametrize("text", [b"", b"[", b'"', b"\xff", b'"\\', b"9" * 10_000, b"\xef\xbb\xbf[]"])
def test_what_is_no_json_raises_nothing_else(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (the words are json's)
        parse_json(text)


@pytest.mark.parametrize("text", [b'"' + b'\\"' * 500_000, b'"' * 1_000_001, b"[" * 1_000_000, b"\\" * 1_000_000])
def test_a_megabyte_of_anything_takes_no_time(text: bytes) -> None:
    """The limit is in processor time; a check that tried each quotation mark anew would take hours."""
    began = time.process_time()
    deeper(text, DEPTH_MAX)
    assert time.process_time() - began < 2.0
