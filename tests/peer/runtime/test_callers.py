"""Whether others can connect to a peer: it reports when they do, also after it has reported that nobody has."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fedpeer.peer.runtime.process import UNREACHED_S, PeerProcess
from fedpeer.peer.state.events import Note, Reachability
from fedpeer.peer.wire.versions import LINKS
from tests.peer.runtime.alone import alone_at

FEDERATION = {
    "name": "ward",
    "network": "mlp:64+4+10",
    "learning": {"algorithm": "local", "rounds": 1},
    "simulation": {"peers": 2, "split": "blocks:20,test=10"},
}


class Others(dict[str, Any]):
    """Other peers by id: whether each is met, and what it can do."""

    def can(self, peer: str, capability: str) -> bool:
        return capability in self[peer].capabilities


class Told:
    """Ann's process with a clock of its own, and other peers set by hand; it keeps reports and events for the node."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **others: tuple[str, ...]) -> None:
        self.process = cast(Any, PeerProcess(alone_at(folder, FEDERATION, data={"simulation": 1})))
        self.now, self.told, self.fed = 0.0, list[str](), list[object]()
        self.others = Others({peer: SimpleNamespace(met=False, capabilities=can) for peer, can in others.items()})
        self.server = SimpleNamespace(reached=None)
        state = SimpleNamespace(others=self.others, setup=SimpleNamespace(address="https://10.0.0.1:7401"))
        self.process._loop, self.process._server = SimpleNamespace(time=lambda: self.now), self.server
        self.process._steps = SimpleNamespace(node=SimpleNamespace(state=state))
        monkeypatch.setattr(self.process, "_say", self._say)
        monkeypatch.setattr(self.process, "feed", self.fed.append)

    def _say(self, note: Note) -> None:
        self.told.append(note.what)

    def look(self, seconds: float, met: bool, reached: str | None = None) -> list[str]:
        self.now, self.server.reached = seconds, reached
        for other in self.others.values():
            other.met = met
        self.process._look_for_callers()
        return self.told


def test_a_port_that_is_opened_later_is_told_and_waiting_begins_with_the_first_meeting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann = Told(tmp_path, monkeypatch, abe=(LINKS,))
    for seconds, met, reached, expected in (
        (UNREACHED_S, False, None, []),
        (2 * UNREACHED_S, True, None, []),
        (3 * UNREACHED_S - 1, True, None, []),
        (3 * UNREACHED_S, True, None, ["outbound_only"]),
        (4 * UNREACHED_S, True, None, ["outbound_only"]),
        (4 * UNREACHED_S, True, "abe", ["outbound_only", "reachable"]),
        (5 * UNREACHED_S, True, "abe", ["outbound_only", "reachable"]),
    ):
        assert ann.look(seconds, met, reached) == expected
    assert ann.fed == [Reachability(False), Reachability(True)]


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ({"bob": (LINKS,)}, []),
        ({"bob": (LINKS,), "cid": (LINKS,)}, []),
        ({"bob": (LINKS,), "abe": (LINKS,)}, ["outbound_only"]),
        ({"bob": ()}, ["outbound_only"]),
    ],
    ids=["one with a larger id", "two with larger ids", "one with a smaller id", "one of an earlier release"],
)
def test_only_the_silence_of_who_would_connect_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: dict[str, tuple[str, ...]], expected: list[str]
) -> None:
    """Peers with larger ids use connections that ann opens: she used to be told to open her port, and was put last."""
    ann = Told(tmp_path, monkeypatch, **others)
    for turn in range(9):
        ann.look(turn * UNREACHED_S, met=True)
    assert ann.told == expected
    assert len(ann.fed) == len(expected)
