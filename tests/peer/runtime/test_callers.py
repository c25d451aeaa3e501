"""Whether others can connect to a peer: it says so when they do, also after it had to say that nobody has."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedpeer.peer.runtime.process import UNREACHED_S, PeerProcess
from fedpeer.peer.state.events import Note, Unreachable
from tests.peer.runtime.alone import alone_at

FEDERATION = {
    "name": "ward",
    "network": "mlp:64+4+10",
    "learning": {"algorithm": "local", "rounds": 1},
    "simulation": {"peers": 2, "split": "blocks:20,test=10"},
}


def test_a_port_that_is_opened_later_is_told_and_waiting_begins_with_the_first_meeting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process: Any = PeerProcess(alone_at(tmp_path, FEDERATION, data={"simulation": 1}))
    now, told, fed = 0.0, list[str](), list[object]()
    other, server = SimpleNamespace(met=False), SimpleNamespace(reached=None)
    state = SimpleNamespace(others={"bob": other}, setup=SimpleNamespace(address="https://10.0.0.1:7401"))

    def say(note: Note) -> None:
        told.append(note.what)

    process._loop, process._server = SimpleNamespace(time=lambda: now), server
    process._steps = SimpleNamespace(node=SimpleNamespace(state=state))
    monkeypatch.setattr(process, "_say", say)
    monkeypatch.setattr(process, "feed", fed.append)
    for seconds, met, reached, expected in (
        (UNREACHED_S, False, None, []),
        (2 * UNREACHED_S, True, None, []),
        (3 * UNREACHED_S - 1, True, None, []),
        (3 * UNREACHED_S, True, None, ["outbound_only"]),
        (4 * UNREACHED_S, True, None, ["outbound_only"]),
        (4 * UNREACHED_S, True, "bob", ["outbound_only", "reachable"]),
        (5 * UNREACHED_S, True, "bob", ["outbound_only", "reachable"]),
    ):
        now, other.met, server.reached = seconds, met, reached
        process._look_for_callers()
        assert told == expected
    assert fed == [Unreachable()]
