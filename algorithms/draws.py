"""Randomness as an argument: every draw comes from a named stream, and nothing reads a global generator.

A stream is keyed by a hash of (run seed, peer, round, purpose). Two engines that name the same stream draw the same
numbers, whatever each has drawn before and in whatever order it trains its peers; so the seed determines the run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Draws:
    """All the randomness of one run."""

    seed: int

    def key(self, purpose: str, peer: str = "", round: int = 0) -> int:
        """Return the 128 bits that name the stream; a digest, so that similar names give unrelated streams."""
        name = f"{self.seed}\x1f{peer}\x1f{round}\x1f{purpose}".encode()
        return int.from_bytes(hashlib.blake2b(name, digest_size=16, person=b"fedpeer-draws").digest(), "little")

    def numpy(self, purpose: str, peer: str = "", round: int = 0) -> np.random.Generator:
        """Return a numpy generator (PCG64) on the stream of this name."""
        return np.random.Generator(np.random.PCG64(self.key(purpose, peer, round)))

    def torch(self, purpose: str, peer: str = "", round: int = 0) -> torch.Generator:
        """Return a torch CPU generator on the stream of this name; its seed holds 63 of the 128 bits."""
        return torch.Generator().manual_seed(self.key(purpose, peer, round) >> 65)


def branch(key: int, number: int) -> int:
    """Return the key of part `number` of a task whose parts must not draw the same numbers."""
    return Draws(key).key("part", round=number)


@contextmanager
def guarded(key: int) -> Iterator[None]:
    """Seed torch's global generator from `key` inside, and restore it afterwards.

    For library code that draws from it (`nn.Dropout`, the modules' own initialization): the one exception to "nothing
    seeds a global generator". CUDA devices have their own generators, which are seeded and restored in the same way.
    """
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        # Not `torch.manual_seed`: for each kind of device that is absent it formats the stack, which takes a
        # millisecond.
        torch.default_generator.manual_seed(key >> 65)
        if devices:
            torch.cuda.manual_seed_all(key >> 65)
        if torch.backends.mps.is_available():
            torch.mps.manual_seed(key >> 65)
        yield
