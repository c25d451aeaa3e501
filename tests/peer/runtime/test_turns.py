"""Turns at training: as many at once as there are places, in the order of asking, and nobody holds up the others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait

import pytest

from fedpeer.peer.runtime import turns as module
from fedpeer.peer.runtime.turns import SECONDS_FIRST, SECONDS_LEAST, TrainingTurn, TrainingTurns

#: Seconds in which everything happens, on a busy machine.
PATIENCE = 60.0


class Peer:
    """A peer's end, of which each message is read by the parent at once."""

    def __init__(self, turns: TrainingTurns) -> None:
        self.turns, self.end = turns, turns.seat()
        self.ours = turns.connections[-1]

    def asks(self, now: float) -> None:
        self._says(b"asks", now)

    def ends(self, now: float) -> None:
        self._says(b"ends", now)

    def _says(self, word: bytes, now: float) -> None:
        self.end.send_bytes(word)
        self.turns.heed(self.ours, now)
        self.turns.give(now)

    def begins(self) -> bool:
        """Return whether it has got a turn since the last look."""
        return self.end.poll() and self.end.recv_bytes() == b"given"


def test_there_are_as_many_turns_at_once_as_places_in_the_order_of_asking() -> None:
    turns = TrainingTurns(2)
    a, b, c, d = (Peer(turns) for _ in range(4))
    for peer in (c, a, d, b):
        peer.asks(0.0)
    assert [peer.begins() for peer in (a, b, c, d)] == [True, False, True, False]
    a.ends(1.0)
    assert [peer.begins() for peer in (b, d)] == [False, True]
    a.asks(1.0)
    d.ends(2.0)
    assert [peer.begins() for peer in (a, b)] == [False, True], "who has just had a turn stands behind"
    c.ends(2.0)
    assert a.begins()


def test_who_ends_leaves_a_place_and_no_gap_in_the_queue() -> None:
    turns = TrainingTurns(1)
    a, b, c = (Peer(turns) for _ in range(3))
    for peer in (a, b, c):
        peer.asks(0.0)
    b.end.close()
    a.end.close()
    for peer in (b, a):
        turns.heed(peer.ours, 1.0)
        turns.give(1.0)
    assert c.begins()
    assert turns.connections == [c.ours]


def test_a_turn_that_lasts_far_longer_than_others_holds_nobody_up() -> None:
    turns = TrainingTurns(1)
    a, b = Peer(turns), Peer(turns)
    a.asks(0.0)
    b.asks(0.0)
    assert turns.give(SECONDS_FIRST - 1) == 1.0, "as none has ended, nobody knows how long one lasts"
    assert not b.begins()
    assert turns.give(SECONDS_FIRST) is None
    assert b.begins()
    a.ends(SECONDS_FIRST + 1)
    assert a.begins()
    a.asks(SECONDS_FIRST + 1)
    assert not a.begins(), "its late end is not the end of the turn that another one has"


def test_a_turn_counts_for_three_times_as_long_as_they_usually_last() -> None:
    """So a peer with far more examples does not hold up the others, and one that is only slower does."""
    turns = TrainingTurns(1)
    a, b = Peer(turns), Peer(turns)
    for lasts in (1.0, 9.0, 2.0):
        a.asks(0.0)
        a.ends(lasts)
    a.asks(10.0)
    b.asks(10.0)
    assert turns.give(10.0) == 6.0
    turns.give(15.9)
    assert not b.begins()
    turns.give(16.0)
    assert b.begins()
    a.ends(30.0)
    a.asks(30.0)
    assert turns.give(30.0) == 2.5, "b has had its turn for 14 of three times 5.5 seconds"


def test_short_turns_are_not_cut_shorter() -> None:
    turns = TrainingTurns(1)
    a, b = Peer(turns), Peer(turns)
    a.asks(0.0)
    a.ends(0.01)
    a.asks(1.0)
    b.asks(1.0)
    assert turns.give(1.0) == SECONDS_LEAST
    turns.give(1.0 + SECONDS_LEAST)
    assert b.begins()


@contextmanager
def giving(turns: TrainingTurns) -> Iterator[None]:
    """Play the parent in a thread until all peers have ended."""

    def give() -> None:
        while turns.connections:
            for ready in wait(turns.connections, PATIENCE):
                assert isinstance(ready, Connection)
                turns.heed(ready, 0.0)
                turns.give(0.0)

    parent = threading.Thread(target=give, daemon=True)
    parent.start()
    yield
    parent.join(PATIENCE)
    assert not parent.is_alive()


def test_never_more_peers_are_within_their_turns_than_there_are_places() -> None:
    turns, most, within = TrainingTurns(2), list[int](), set[int]()
    lock = threading.Lock()

    def train(number: int, end: Connection) -> None:
        turn = TrainingTurn(end)
        for _ in range(20):
            with turn:
                with lock:
                    within.add(number)
                    most.append(len(within))
                with lock:
                    within.discard(number)
        end.close()

    peers = [threading.Thread(target=train, args=(number, turns.seat())) for number in range(5)]
    with giving(turns):
        for peer in peers:
            peer.start()
        for peer in peers:
            peer.join(PATIENCE)
    assert len(most) == 100
    assert max(most) <= 2


def test_without_a_parent_a_turn_begins_at_once() -> None:
    turns = TrainingTurns(1)
    end = turns.seat()
    turns.connections[0].close()
    with TrainingTurn(end):
        pass


@pytest.mark.parametrize(("left", "given_back"), [(0, 0), (1, 1)])
def test_what_a_large_training_has_freed_goes_back(monkeypatch: pytest.MonkeyPatch, left: int, given_back: int) -> None:
    sizes = iter([100 << 20, (116 << 20) + left, 100 << 20])
    calls = list[str]()
    monkeypatch.setattr(module, "resident_bytes", lambda: next(sizes))
    monkeypatch.setattr(module, "give_back_freed_memory", lambda: calls.append("given back"))
    turns = TrainingTurns(1)
    end = turns.seat()
    turns.connections[0].close()
    with TrainingTurn(end):
        pass
    assert len(calls) == given_back
