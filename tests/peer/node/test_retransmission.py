"""Timers of transfers that are not acknowledged: when a transfer is sent again."""

from __future__ import annotations

from fedpeer.peer.node.retransmission import Retransmissions


def test_what_is_missed_is_not_waited_for_as_long_as_on_a_link_that_carries_nothing() -> None:
    """Once a later number has passed the link, the earlier one is due after the usual wait, even after many repeats."""
    one, other = ("peer2", "everyone", 1), ("peer3", "everyone", 1)
    repeats = Retransmissions()
    for key in (one, other):
        for now in (0, 16, 48):
            repeats.sent(key, now)
    repeats.sent(("peer2", "everyone", 2), 48)
    assert repeats.due(48 + 17) == [("peer2", "everyone", 2)], "waits double"
    repeats.missed("peer2", "everyone", 2)
    assert repeats.due(48 + 15) == []
    assert repeats.due(48 + 17) == [one, ("peer2", "everyone", 2)]
    assert other in repeats.due(48 + 64)
