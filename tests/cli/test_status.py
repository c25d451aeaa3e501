"""`fedpeer status` and `fedpeer dashboard` on the command line, with a real listener."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from fedpeer.cli.status import screen
from fedpeer.peer.runtime.dashboard.access import DashboardListener
from fedpeer.peer.runtime.dashboard.server import Dashboard
from fedpeer.peer.runtime.status import Status
from fedpeer.peer.state.events import Note
from tests.peer.runtime.fake_status import TOKEN, FakePeer

from .conftest import Fedpeer


class Running:
    """A fake peer with a dashboard that listens in its own thread; `file` is its peer file."""

    def __init__(self, folder: Path, peers: int = 4) -> None:
        self.peer = FakePeer(peers)
        for _ in range(40):
            self.peer.round()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.board = Dashboard(DashboardListener("127.0.0.1", 0, TOKEN), self.peer.status.as_json, None)
        self._do(self.board.start)
        token = folder / "peer3.token"
        token.write_text(TOKEN)
        token.chmod(0o600)
        self.url = self.board.listener.door.url
        self.file = folder / "peer3.yaml"
        self.file.write_text(
            "federation: federation.yaml\nid: peer3\nlisten: 127.0.0.1:7403\ntransport: plain-http\n"
            f"data: {{csv: ward3.csv, label: outcome}}\n"
            f"dashboard: {{listen: '127.0.0.1:{self.board.listener.port}', token_file: peer3.token}}\n"
        )

    def _do(self, what: object) -> None:
        asyncio.run_coroutine_threadsafe(what(), self._loop).result(10)  # type: ignore[operator]

    def stop(self) -> None:
        self._do(self.board.stop)

    def close(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    found = Running(tmp_path)
    yield found
    found.close()


def test_the_federation_as_a_table(fedpeer: Fedpeer, running: Running) -> None:
    found = fedpeer("status", "--config", "peer3.yaml")
    assert (found.code, found.err) == (0, "")
    assert max(map(len, found.out.splitlines())) <= 80
    assert found.out.startswith("peer3 in wards: averaging, round 40 of 100\n")
    for words in ("peer2  suspect", "peer4  dead", "this peer", "everyone", "ward-a", "bad_signature from peer4"):
        assert words in found.out
    assert "round 39: accuracy" in found.out, "the round after it is held back: routine lines are told now and then"


def test_the_whole_status_as_json(fedpeer: Fedpeer, running: Running) -> None:
    found = fedpeer("status", "--url", running.url, "--token-file", "peer3.token", "--json")
    assert found.code == 0
    assert json.loads(found.out) == json.loads(json.dumps(running.peer.status.as_json()))


def test_the_address_of_the_dashboard(fedpeer: Fedpeer, running: Running) -> None:
    found = fedpeer("dashboard", "--config", "peer3.yaml")
    assert (found.code, found.out) == (0, f"{running.url}/?token={TOKEN}\n")


def test_watching_goes_on_until_ctrl_c_and_says_when_the_peer_is_gone(
    fedpeer: Fedpeer, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []

    def between(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 1:
            running.peer.round()
        elif len(looks) == 2:
            running.stop()
        else:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", between)
    found = fedpeer("status", "--config", "peer3.yaml", "--watch")
    assert found.code == 130
    assert looks == [1.0, 1.0, 1.0]
    assert "round 41 of 100" in found.out
    assert "No peer answers" in found.out.replace("\n", " ")


def test_no_peer_there(fedpeer: Fedpeer, running: Running) -> None:
    running.stop()
    for command in ("status", "dashboard"):
        found = fedpeer(command, "--config", "peer3.yaml")
        assert (found.code, found.out) == (2, "")
        said = " ".join(found.err.split())
        assert f"No peer answers at {running.url} (Connection refused): it ended after its last round" in said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "name the peer's file"),
        (("--config", "peer3.yaml", "--url", "http://127.0.0.1:1"), "name the peer's file"),
        (("--url", "http://127.0.0.1:1"), "name the file with the token"),
        (("--url", "127.0.0.1:7503", "--token-file", "peer3.token"), "write it like http://127.0.0.1:7503"),
        (("--url", "file:///etc/passwd", "--token-file", "peer3.token"), "write it like http://127.0.0.1:7503"),
        (("--url", "http://127.0.0.1:99999", "--token-file", "peer3.token"), "write it like"),
        (("--config", "missing.yaml"), "missing.yaml"),
    ],
)
def test_wrong_options(fedpeer: Fedpeer, running: Running, options: tuple[str, ...], words: str) -> None:
    found = fedpeer("status", *options)
    assert (found.code, found.out) == (2, "")
    assert words in found.err


def test_a_peer_without_a_dashboard_is_told_how_to_get_one(fedpeer: Fedpeer, running: Running) -> None:
    text = running.file.read_text()
    running.file.write_text(text[: text.index("dashboard")])
    found = fedpeer("status", "--config", "peer3.yaml")
    assert found.code == 2
    assert "add dashboard: {listen: 127.0.0.1:7503" in found.err.replace("\n", " ").replace("  ", "")


def test_a_token_that_all_may_read_is_not_used(fedpeer: Fedpeer, running: Running) -> None:
    (running.file.parent / "peer3.token").chmod(0o644)
    found = fedpeer("status", "--config", "peer3.yaml")
    assert found.code == 2
    assert "chmod 600" in found.err


def shown(status: Status, width: int) -> str:
    console = Console(width=width, color_system=None, force_terminal=False, highlight=False)
    with console.capture() as capture:
        console.print(screen(status.as_json(), width))
    return capture.get()


@pytest.mark.parametrize("width", [80, 140])
@pytest.mark.parametrize("peers", [1, 4, 64])
def test_it_fits_the_terminal(peers: int, width: int) -> None:
    peer = FakePeer(peers)
    empty = shown(peer.status, width)
    assert "not measured yet" in empty
    assert "No averaging group yet: waiting for the peers to connect.\n" in empty
    for _ in range(40):
        peer.round()
    found = shown(peer.status, width)
    assert max(map(len, found.splitlines())) <= width
    assert ("https://10.0.0.1:7401" in found) is (width == 140)
    order = [line.split()[0] for line in found.splitlines() if line.strip().startswith("peer")][1:]
    assert order[1 : peers + 1] == list(peer.ids)


@pytest.mark.parametrize("width", [80, 140])
def test_who_coordinates_and_the_servers_model(width: int) -> None:
    peer = FakePeer(served=True)
    for _ in range(40):
        peer.round()
    found = shown(peer.status, width)
    assert max(map(len, found.splitlines())) <= width
    (head,) = [line for line in found.splitlines() if line.startswith("accuracy")]
    assert f"(the server's model {peer.status.as_json()['server_scores'][-1][1]:.1%})".replace("%", " %") in head
    (row,) = [line.split() for line in found.splitlines() if line.strip().startswith("everyone")]
    assert row[1:7] == ["peer3", "3", "40", "4", "of", "4"]
    assert row[-1] == "peer4", "whose update is waited for"
    for _ in range(20):
        peer.round()
    (paused,) = [line for line in shown(peer.status, width).splitlines() if line.strip().startswith("everyone")]
    assert "none: rounds are paused" in paused
    assert "2 of 4" in paused


@pytest.mark.parametrize("width", [80, 140])
def test_a_slice_with_a_coordinator_has_a_row_beside_the_others(width: int) -> None:
    peer = FakePeer(led=True)
    for _ in range(20):
        peer.round()
    lines = shown(peer.status, width).splitlines()
    assert max(map(len, lines)) <= width
    headings, rows = (
        [line.split() for line in lines if line.strip().startswith(words)] for words in ("group", ("everyone", "ward"))
    )
    assert [heading[1] for heading in headings] == ["members", "coordinator"]
    assert [row[0] for row in rows] == ["everyone", "ward-a"]
    assert rows[1][1:6] == ["peer3", "2", "20", "2", "of"], "its coordinator, term, round and voters"


def test_words_from_peers_are_neither_markup_nor_obeyed() -> None:
    peer = FakePeer()
    peer.round()
    evil = "[red]peer[/red]\x1b[2J\x9b31m"
    view = peer.status.view
    peer.status.look(replace(view, peers=(replace(view.peers[0], id=evil), *view.peers[1:])))
    peer.log_effect(Note("info", "met", evil))
    found = shown(peer.status, 140)
    assert found.count("[red]peer[/red]?[2J?31m") == 2
    assert "\x1b" not in found
    assert "\x9b" not in found
