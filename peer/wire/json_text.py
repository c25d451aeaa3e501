"""JSON that comes from elsewhere: how deep it is nested is seen before anything goes through it.

What nests a thousand deep is read, and then breaks whatever walks through it by calling itself (comparing, writing it
again). Nothing of ours nests deeper than a handful, so a bound costs nobody anything.
"""

from __future__ import annotations

import json
import re
from typing import Any

#: Arrays and objects within one another: a federation file has eight, a roster four.
DEPTH_MAX = 32
#: A string, whole or to the end of the text where it is not closed. Nothing in it is ever tried twice.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_BRACKET = re.compile(rb"[\[{]|[\]}]")


def parse_json(text: bytes) -> Any:
    """What this JSON says.

    Raises ValueError: it is no JSON in UTF-8, or nested deeper than `DEPTH_MAX`.
    """
    if deeper(text, DEPTH_MAX):
        raise ValueError(f"nested deeper than {DEPTH_MAX}")
    return json.loads(text.decode())


def deeper(text: bytes, most: int) -> bool:
    """Whether arrays and objects stand more than `most` deep within one another."""
    depth = 0
    for bracket in _BRACKET.finditer(_STRING.sub(b"", text)):
        depth += 1 if bracket[0] in b"[{" else -1
        if depth > most:
            return True
    return False
