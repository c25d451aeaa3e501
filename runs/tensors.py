"""Arrays of a safetensors file where they lie: read when they are looked at, and not before.

The library reads whole arrays into memory; a checkpoint of many peers is larger than that.
"""

from __future__ import annotations

import json
import mmap
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: The names that the format has for numpy's types.
_TYPES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "F16": "<f2", "U32": "<u4", "I32": "<i4",
    "F32": "<f4", "U64": "<u8", "I64": "<i8", "F64": "<f8",
}  # fmt: skip


def map_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays by name, read-only, in one mapping of the file, which `safe_open` has found to be sound.

    On Windows a file cannot be replaced while it is mapped, so there they are copies.
    """
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    found = {}
    for name, each in header.items():
        if name != "__metadata__":
            kind, count = np.dtype(_TYPES[each["dtype"]]), int(np.prod(each["shape"]))
            # What has no numbers has no place either: it may stand at the very end.
            place = 8 + size + each["data_offsets"][0] if count else 0
            flat = np.frombuffer(content, kind, count, place)
            found[name] = (flat.copy() if sys.platform == "win32" else flat).reshape(each["shape"])
    return found
