"""Arrays of a safetensors file, mapped into memory and read when they are used.

The library reads whole arrays into memory, and a checkpoint of many peers may be larger than the memory.
"""

from __future__ import annotations

import json
import mmap
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: numpy's types by their names in the format.
_TYPES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "F16": "<f2", "U32": "<u4", "I32": "<i4",
    "F32": "<f4", "U64": "<u8", "I64": "<i8", "F64": "<f8",
}  # fmt: skip


def map_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays by name, read-only, from one mapping of a file that `safe_open` has already checked.

    On Windows a file cannot be replaced while it is mapped, so there the arrays are copies.
    """
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    found = {}
    for name, each in header.items():
        if name != "__metadata__":
            kind, count = np.dtype(_TYPES[each["dtype"]]), int(np.prod(each["shape"]))
            # The offset of an empty array may be the end of the file, which `frombuffer` rejects.
            place = 8 + size + each["data_offsets"][0] if count else 0
            flat = np.frombuffer(content, kind, count, place)
            found[name] = (flat.copy() if sys.platform == "win32" else flat).reshape(each["shape"])
    return found
