"""A value on its way to a worker process of our own, its classes and functions included.

A user's network may be a class of a notebook's cell, of the script itself, or of a function: no other process can
import it, so cloudpickle sends its code. Only the leading process of a run packs, and only the workers that it started
unpack, from the pipe that they share. Nothing that comes from a file or from another machine is unpacked.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Generic, TypeVar

import cloudpickle

T = TypeVar("T")


class ByValue(Generic[T]):
    """A value that is pickled with the code of its classes and functions, unless another process can import them."""

    def __init__(self, value: T) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Callable[[bytes], ByValue[T]], tuple[bytes]]:
        return _unpacked, (cloudpickle.dumps(self.value),)


def _unpacked(data: bytes) -> ByValue[T]:
    return ByValue(pickle.loads(data))
