"""States of an algorithm with a server as bytes, and back: for messages, committed rounds and the disk.

A `LeafForm` takes the names, shapes and types of the leaves (`algorithms/leaves.py`) from any state of its kind. The
bytes are the leaves one directly after the other, little-endian, so their number is known beforehand and none of them
has to be trusted.

The *content* that a committed round names is what every peer must know of a finished round: for each client the last
round in which its update counted, then the server's leaves. So a peer that was away for many rounds still learns
whether its last update is part of the server state that it takes over.

    clients u32 | for each, in the order of ids: letters u8, id, round u64 | the server's leaves
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from struct import Struct
from typing import Any

import torch
from torch import Tensor

from fedpeer.algorithms.leaves import leaves_of, rebuilt
from fedpeer.config.peer_id import PEER_ID
from fedpeer.gossip.tensor_bytes import raw

_COUNT, _LETTERS, _ROUND = Struct("<I"), Struct("<B"), Struct("<Q")
#: Characters of an id, and bytes of one client's entry.
_ID_LETTERS_MAX = 63
ENTRY_BYTES_MAX = _LETTERS.size + _ID_LETTERS_MAX + _ROUND.size
#: Clients in a content: as many as a roster may have entries.
_CLIENTS_MAX = 4096


@dataclass(frozen=True, eq=False)
class LeafForm:
    """Names, shapes and types of the leaves of one kind of state.

    template   any state of this kind; the values of its leaves do not matter
    size       bytes of a state
    """

    template: Any
    size: int = field(init=False)
    _places: Mapping[str, tuple[int, int, Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        places, at = {}, 0
        for name, leaf in leaves_of(self.template).items():
            places[name] = at, at + leaf.numel() * leaf.element_size(), leaf.new_empty(leaf.shape, device="cpu")
            at = places[name][1]
        object.__setattr__(self, "size", at)
        object.__setattr__(self, "_places", places)

    def written(self, state: Any) -> bytes:
        """Return the bytes of a state of this kind, on any device."""
        return b"".join(raw(leaf.cpu()) for leaf in leaves_of(state).values())

    def leaves(self, data: bytes) -> dict[str, Tensor]:
        """Return copies of the leaves in these `size` bytes."""
        return {name: self.leaf(data, name) for name in self._places}

    def leaf(self, data: bytes, name: str) -> Tensor:
        """Return a copy of one leaf in these `size` bytes."""
        assert len(data) == self.size, "callers check the number of bytes of others"
        at, end, like = self._places[name]
        # torch cannot view empty buffers; a copy is aligned.
        flat = torch.frombuffer(bytearray(data[at:end]), dtype=like.dtype) if end > at else like.new_empty(0)
        return flat.reshape(like.shape)

    def read(self, data: bytes) -> Any:
        """Return the state in these `size` bytes."""
        return rebuilt(self.template, self.leaves(data))

    def finite(self, data: bytes) -> bool:
        """Return whether all numbers in these `size` bytes are finite."""
        return all(bool(leaf.isfinite().all()) for leaf in self.leaves(data).values())


def content_of(counted: Mapping[str, int], server: bytes) -> bytes:
    """Return the content of a round: by client the last round in which its update counted, and the server's leaves."""
    parts = [_COUNT.pack(len(counted))]
    for client in sorted(counted):
        letters = client.encode()
        parts += [_LETTERS.pack(len(letters)), letters, _ROUND.pack(counted[client])]
    return b"".join((*parts, server))


def content_bytes(server_bytes: int) -> tuple[int, int]:
    """Return the fewest and the most bytes of a content whose server has `server_bytes`."""
    return _COUNT.size + server_bytes, _COUNT.size + _CLIENTS_MAX * ENTRY_BYTES_MAX + server_bytes


def split_leaves(content: bytes, server_bytes: int) -> tuple[dict[str, int], bytes] | None:
    """Return the two parts of a content whose server has `server_bytes`; None if the content is invalid."""
    end = len(content) - server_bytes
    if end < _COUNT.size:
        return None
    (count,), at = _COUNT.unpack_from(content), _COUNT.size
    counted: dict[str, int] = {}
    last = ""
    if count > _CLIENTS_MAX:
        return None
    for _ in range(count):
        if at + _LETTERS.size > end:
            return None
        (letters,) = _LETTERS.unpack_from(content, at)
        at += _LETTERS.size
        if at + letters + _ROUND.size > end:
            return None
        client = content[at : at + letters].decode("ascii", "replace")
        if not PEER_ID.fullmatch(client) or client <= last:
            return None
        last = client
        (counted[client],) = _ROUND.unpack_from(content, at + letters)
        at += letters + _ROUND.size
    return (counted, content[at:]) if at == end else None
