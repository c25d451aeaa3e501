"""What a node must know of an algorithm with a server; quick to ask, while the work is done beside it (`trainer.py`).

A node knows states as bytes only. An `AlgorithmSpec` says how long they are, what they are at the start, who takes
part in a round, and what is wrong with somebody's update.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedpeer.peer.wire.leaf_bytes import split_leaves
from fedpeer.rejection import Rejection


@dataclass(frozen=True, eq=False, kw_only=True)
class AlgorithmSpec:
    """What a node must know of an algorithm with a server.

    server_bytes, update_bytes    of each such state
    server, client                at the start, as bytes
    takes_part      (round, ids of all clients in their order) -> ids of those who take part in it
    fault           what is wrong with an update of `update_bytes` bytes, if anything
    sound           whether a server of `server_bytes` bytes is made of numbers
    everyone        whether those train too in a round who do not take part in it
    patience        how long this peer waits before it stands for coordinator (`capability.py`)
    number          whose update it says to be, as a number of the clients, where an update says so
    fixed           whether the clients are those of the beginning, and no others
    server_fault    what else is wrong with a server that is made of numbers, if anything
    """

    server_bytes: int
    update_bytes: int
    server: bytes
    client: bytes
    takes_part: Callable[[int, Sequence[str]], tuple[str, ...]]
    fault: Callable[[bytes], Rejection | None]
    sound: Callable[[bytes], bool]
    everyone: Callable[[int], bool]
    patience: float
    fixed: bool = False
    number: Callable[[bytes], int | None] = lambda content: None
    server_fault: Callable[[bytes], Rejection | None] = lambda server: None

    def model_fault(self, content: bytes) -> Rejection | None:
        """What is wrong with a model that a committed round names, if anything."""
        found = split_leaves(content, self.server_bytes)
        if found is None:
            return Rejection("bad_metadata", "what was decreed is no model")
        if not self.sound(found[1]):
            return Rejection("not_finite", "what was decreed is a model with NaN in it")
        return self.server_fault(found[1])
