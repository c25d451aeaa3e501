"""The decoder's part of the table of bad inputs, for tests that break it on purpose."""

from __future__ import annotations

from fedpeer.peer.core.codec import decode
from fedpeer.peer.core.refusals import Rejected
from tests.peer.hostile import Hostile
from tests.peer.wire import GATE, PARTY


def refusal(bad: Hostile) -> str:
    """The code that the decoder gives it, or "taken"."""
    found = decode(bad.build(PARTY), GATE)
    return found.code if isinstance(found, Rejected) else "taken"
