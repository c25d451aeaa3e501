"""What a node must know of an algorithm with a server; quick to ask, while the work is done beside it (`pupil.py`).

A node knows states as bytes only. A `Course` says how long they are, what they are at the start, who takes part in a
round, and what is wrong with somebody's update.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedpeer.algorithms.updates import Fault

#: Examples with which a peer without an accelerator is halfway to the most capable one of its kind.
MANY_EXAMPLES = 1000


@dataclass(frozen=True, eq=False, kw_only=True)
class Course:
    """What a node must know of an algorithm with a server.

    server_bytes, update_bytes    of each such state
    server, client                at the start, as bytes
    takes_part      (round, ids of all clients in their order) -> ids of those who take part in it
    fault           what is wrong with an update of `update_bytes` bytes, if anything
    sound           whether a server of `server_bytes` bytes is made of numbers
    everyone        whether those train too who do not take part
    patience        how long this peer waits before it stands for coordinator: 0 the most capable, 1 the least
    """

    server_bytes: int
    update_bytes: int
    server: bytes
    client: bytes
    takes_part: Callable[[int, Sequence[str]], tuple[str, ...]]
    fault: Callable[[bytes], Fault | None]
    sound: Callable[[bytes], bool]
    everyone: bool
    patience: float


def patience_of(device: str, examples: int) -> float:
    """Who should coordinate first: peers with an accelerator before those without one, and among them those who hold
    more examples, since who trains on much has the machine for it."""
    return (0.0 if device.startswith("cuda") else 0.5) + 0.5 / (1 + examples / MANY_EXAMPLES)
