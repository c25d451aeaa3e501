"""Spec of an algorithm with a server: what a node needs to know of it. The trainer does the work itself.

A node knows states as bytes only. An `AlgorithmSpec` says how long they are, what they are at the start, who takes
part in a round, and whether an update is valid. All of it is quick to answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedpeer.peer.wire.leaf_bytes import split_leaves
from fedpeer.rejection import Rejection


@dataclass(frozen=True, eq=False, kw_only=True)
class AlgorithmSpec:
    """Description of an algorithm with a server, as a node needs it.

    server_bytes, update_bytes    lengths of a server's state and of an update
    server, client                their states at the start, as bytes
    takes_part      (round, ids of all clients in order) -> ids of the round's participants
    fault           what is wrong with an update of `update_bytes` bytes; None: nothing
    sound           whether a server's state of `server_bytes` bytes has finite values only
    everyone        whether clients that do not take part in a round train in it, too
    patience        part of the longest wait before this peer stands for coordinator (`capability.py`)
    trains_at_once  whether clients train as soon as a round opens, so that its deadline begins then; False: they train
                    when their other groups are done as well, so the deadline begins with the first update
    number          client number that an update states; None: it states none
    fixed           whether the clients must stay the same as at the start
    server_fault    what else is wrong with a server's state of finite values; None: nothing
    goal            number of updates, also of earlier rounds, that close a round; None: a round waits for the updates
                    of all its participants, and takes no others
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
    trains_at_once: bool = True
    fixed: bool = False
    number: Callable[[bytes], int | None] = lambda content: None
    server_fault: Callable[[bytes], Rejection | None] = lambda server: None
    goal: int | None = None

    def model_fault(self, content: bytes) -> Rejection | None:
        """Return what is wrong with a model that a proposal names; None if nothing is."""
        found = split_leaves(content, self.server_bytes)
        if found is None:
            return Rejection("bad_metadata", "the proposed content is not a model")
        if not self.sound(found[1]):
            return Rejection("not_finite", "the proposed model contains NaN or infinite values")
        return self.server_fault(found[1])
