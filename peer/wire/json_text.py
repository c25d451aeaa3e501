"""Untrusted JSON: its nesting depth is checked before it is parsed.

A text that nests a thousand levels deep parses, and then breaks every recursive function that walks through the result
(comparison, writing it again). Our own files nest a few levels, so the bound has no cost.
"""

from __future__ import annotations

import json
import re
from typing import Any

#: Levels of arrays and objects: a federation file has eight, a roster four.
DEPTH_MAX = 32
#: A string, up to the end of the text if it is not closed. Possessive, so no part of it is ever tried twice.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_BRACKET = re.compile(rb"[\[{]|[\]}]")


def parse_json(text: bytes) -> Any:
    """Return the value of a JSON text.

    Raises ValueError: it is not JSON in UTF-8, or is nested deeper than `DEPTH_MAX`.
    """
    if deeper(text, DEPTH_MAX):
        raise ValueError(f"nested deeper than {DEPTH_MAX}")
    return json.loads(text.decode())


def deeper(text: bytes, most: int) -> bool:
    """Return whether arrays and objects are nested more than `most` levels deep."""
    depth = 0
    for bracket in _BRACKET.finditer(_STRING.sub(b"", text)):
        depth += 1 if bracket[0] in b"[{" else -1
        if depth > most:
            return True
    return False
