"""P9: faults of the machine, under a running peer or before `fedpeer start`: disk, port, file handles, addresses.

No other peer is rejected for them. A fault is named and counted, the peer goes on as far as it can, and it sends
nothing that is not saved. If only a person can repair a fault, a sentence says so and nothing is started. Ids are those
of the table of bad inputs.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import resource
import shutil
import socket
import struct
import threading
import zlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from fedpeer.cli.main import run
from fedpeer.cli.peer_config import load_peer
from fedpeer.learning import models
from fedpeer.peer.runtime import blocks
from fedpeer.peer.runtime.carrier import Carrier
from fedpeer.peer.runtime.client import PeerLinks
from fedpeer.peer.runtime.job_runner import JobRunner
from fedpeer.peer.runtime.limits import Limits
from fedpeer.peer.runtime.prepared import prepare_peer
from fedpeer.peer.runtime.roster_file import RosterFile
from fedpeer.peer.runtime.server import PeerServer
from fedpeer.peer.state.events import Enrol, Evaluate, Persist, Work, Worked
from fedpeer.peer.wire.messages import Ack, Pong
from tests.cli.peers import federation_on_disk
from tests.peer.runtime.bob import Bob
from tests.peer.runtime.whole import PATIENCE, Whole, whole

pytestmark = pytest.mark.slow

WARD = "a,b,outcome\n1,2,ill\n3,4,well\n5,6,ill\n7,8,well\n"


# ------------------------------------------------------------------------------------------------- under a running peer


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EROFS, errno.EIO], ids=["D03-full", "D03-read-only", "D03-failing"]
)
def test_nothing_is_said_that_cannot_be_saved(bob: Bob, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transfer is neither saved nor acknowledged, and a ping after it is not answered, until the disk works again."""
    bob.pardon()
    since, counted, taken, said = len(bob.peer.lines), bob.peer.counted("persist_failed"), bob.taken(), bob.next()
    ear, whole_write, tried = bob.ears["ann"], blocks.write, threading.Semaphore(0)
    received = len(ear.delivered)

    def half(descriptor: int, parts: Sequence[bytes]) -> int:
        whole_write(descriptor, parts[:1])
        tried.release()
        raise OSError(number, os.strerror(number))

    with bob.tells("ann", lambda message: isinstance(message, Ack)):
        with monkeypatch.context() as disk:
            disk.setattr(blocks, "write", half)
            assert bob.say(said) is None
            assert bob.say(bob.ping()) is None
            assert tried.acquire(timeout=PATIENCE)
            assert tried.acquire(timeout=PATIENCE), "it tries again"
            assert not [message for _, _, message in ear.delivered[received:] if isinstance(message, Ack | Pong)]
        bob.peer.line("saving_again", since)
    assert os.strerror(number) in bob.peer.line("persist_failed", since).text
    assert bob.peer.counted("persist_failed") >= counted + 2
    assert bob.taken() == taken + 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS], ids=["D03-model-full", "D03-model-read-only"])
def test_a_model_that_cannot_be_kept_ends_no_peer(file: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure to write the model or a new roster is logged, and the peer goes on."""

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(models, "save", refuse)
    monkeypatch.setattr(RosterFile, "write", refuse)
    with started(file) as peer:
        x_n, after = peer.state.durable.x_n, len(peer.lines)
        peer.inside(lambda: peer.process._carry_out(Evaluate(1, x_n)))
        assert os.strerror(number) in peer.line("model_not_kept").text
        peer.inside(lambda: peer.process._carry_out(Enrol(peer.process._members.roster)))
        assert "could not be saved" in peer.line("roster", after).text
        peer.line("evaluated")


@pytest.mark.parametrize("number", [pytest.param(errno.EPERM, id="D03-old-file")])
def test_an_old_state_that_cannot_be_removed_is_told(file: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each start and each pause writes a snapshot, of which two are kept."""

    def forbidden(self: Path, missing_ok: bool = False) -> None:
        if self.stem.isdigit():  # else it is the temporary file of a save
            raise OSError(number, os.strerror(number))

    for _ in range(2):
        lived(file)
    with started(file) as peer:
        monkeypatch.setattr(Path, "unlink", forbidden)
        peer.inside(lambda: peer.process._pipeline.put([Persist("snapshot", peer.state.durable.copy())]))
        assert os.strerror(number) in peer.line("old_state_stays").text
        monkeypatch.undo()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=["D03-training-full", "D03-training-failing"])
def test_training_waits_for_its_disk(file: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training is tried again after a disk error, such as no room for numba's compiled code or unreadable data."""
    tries, work = itertools.count(), JobRunner.work

    def reluctant(self: JobRunner, job: Work) -> Worked:
        if next(tries) < 2:
            raise OSError(number, os.strerror(number))
        return work(self, job)

    monkeypatch.setattr(JobRunner, "work", reluctant)
    with started(file) as peer:
        x_n = peer.state.durable.x_n
        peer.inside(lambda: peer.process._carry_out(Evaluate(1, x_n)))
        assert os.strerror(number) in peer.line("training_waits").text
        peer.line("evaluated")
    assert next(tries) >= 3


@pytest.mark.parametrize("peer", [pytest.param("eve", id="D04-address")])
def test_an_address_that_leads_nowhere_is_told_and_counted(bob: Bob, peer: str) -> None:
    line = bob.peer.line("link_down")
    assert line.text.startswith(f"{peer} cannot be reached: ")
    assert bob.peer.inside(lambda: bob.peer.process.status.as_json()["counters"]["links_down"])
    assert bob.say(bob.ping()) is None


@pytest.mark.parametrize("peer", [pytest.param("eve", id="D04-address-again")])
def test_what_keeps_a_peer_away_is_told_anew_once_it_was_forgotten(bob: Bob, peer: str) -> None:
    """To a reader of the log, a member that was removed and comes back with another key is a new one."""
    bob.peer.line("link_down")
    since = len(bob.peer.lines)
    bob.peer.inside(lambda: bob.peer.process._sender.forget([peer]))
    bob.peer.afresh()
    assert bob.peer.line("link_down", since).text.startswith(f"{peer} cannot be reached: ")


@pytest.mark.parametrize("left", [0, 1], ids="D04-{}-handles".format)
def test_without_file_handles_it_waits_for_some(bob: Bob, left: int) -> None:
    """A connection needs two file handles during its handshake, so a peer with none or one left waits for more."""
    bob.pardon()
    since, durable = len(bob.peer.lines), bob.peer.durable()
    before = bob.peer.counted("out_of_handles")
    with socket.socket() as plain, few_handles(left):
        plain.connect(bob.address)
        line = bob.peer.line("out_of_handles", since)
    assert os.strerror(errno.EMFILE) in line.text
    assert bob.say(bob.ping()) is None
    assert bob.peer.counted("out_of_handles") > before
    assert bob.peer.durable() == durable


@contextmanager
def few_handles(left: int) -> Iterator[None]:
    """Leave the whole process only so many more file handles."""
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as taken:
        highest = taken.enter_context(socket.socket()).fileno()
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + left, usual[1]))
        taken.callback(resource.setrlimit, resource.RLIMIT_NOFILE, usual)
        yield


def test_a_peer_keeps_connections_for_all_of_its_roster(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    among = Limits.among
    monkeypatch.setattr(Limits, "among", lambda peers: among(1000 + peers))
    with started(file) as peer:
        room = among(1000 + len(peer.state.peer_groups.roster.entries))
        assert peer.server.admission.limits == room


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_links_are_closed_although_the_server_cannot_be_stopped(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    async def broken(self: PeerServer) -> None:
        await stop(self)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    stop = PeerServer.stop
    monkeypatch.setattr(PeerServer, "stop", broken)
    for each in (Carrier, PeerLinks):
        monkeypatch.setattr(each, "close", noted(each.close, each.__name__, closed))
    with started(file):
        pass
    assert closed == ["Carrier", "PeerLinks"]


def noted(close: Callable[[Any], Awaitable[None]], name: str, closed: list[str]) -> Callable[[Any], Awaitable[None]]:
    """Return the function, wrapped to append the name to `closed` at its end."""

    async def closing(self: Any) -> None:
        await close(self)
        closed.append(name)

    return closing


# ---------------------------------------------------------------------------------------------- before `fedpeer start`


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A peer's file, and all files that it names."""
    return settled(tmp_path / "wards")


def settled(folder: Path) -> Path:
    file = federation_on_disk(folder, data={"csv": "ward.csv", "label": "outcome"})
    (file.parent / "ward.csv").write_text(WARD)
    change(file, listen="127.0.0.1:0", dashboard=None)
    return file


def change(file: Path, **settings: object) -> None:
    """Overwrite settings of a file; None removes a setting."""
    data = {**YAML(typ="safe", pure=True).load(file.read_text()), **settings}
    file.write_text(json.dumps({key: value for key, value in data.items() if value is not None}))


def started(file: Path) -> AbstractContextManager[Whole]:
    peer = load_peer(file)
    return whole(prepare_peer(peer.file, peer.federation))


def lived(file: Path) -> bytes:
    """Run the peer once until it pauses; return its durable state without the number of starts."""
    with started(file) as peer:
        return peer.durable(generation=0)


def newest(file: Path, kind: str) -> Path:
    return max((file.parent / "peer1-state" / kind).iterdir())


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


SNAPSHOTS: dict[str, Callable[[Path], object]] = {
    "D01-flipped-bit": lambda path: flip(path, path.stat().st_size // 2),
    "D01-cut-short": lambda path: os.truncate(path, path.stat().st_size // 2),
    "D01-empty": lambda path: os.truncate(path, 0),
    "D01-zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
}


@pytest.mark.parametrize("damage", SNAPSHOTS.values(), ids=SNAPSHOTS)
def test_the_snapshot_before_stands_in_for_a_damaged_one(file: Path, damage: Callable[[Path], object]) -> None:
    before = lived(file)
    damage(newest(file, "snapshots"))
    with started(file) as peer:
        assert peer.counted("snapshot_corrupt") == 1
        assert "the one before is used" in peer.line("snapshot_corrupt").text
        assert peer.durable(generation=0) == before


@pytest.mark.parametrize("times", [pytest.param(3, id="D01-again-and-again")])
def test_a_sound_snapshot_is_written_at_once_behind_a_damaged_one(file: Path, times: int) -> None:
    """Before each start the newest snapshot is damaged, and after it power is cut, so that no pause saves anything."""
    before, state, cut = lived(file), file.parent / "peer1-state", file.parent / "cut"
    for _ in range(times):
        flip(newest(file, "snapshots"), newest(file, "snapshots").stat().st_size // 2)
        with started(file) as peer:
            peer.line("snapshot_corrupt")
            assert peer.durable(generation=0) == before
            assert peer.inside(lambda: len(list((state / "snapshots").iterdir()))) == 2
            peer.inside(lambda: shutil.copytree(state, cut))
        shutil.rmtree(state)
        cut.rename(state)


@pytest.mark.parametrize("at", [pytest.param(5, id="D01-journal")])
def test_a_damaged_journal_is_lost_memory(file: Path, at: int) -> None:
    lived(file)
    flip(newest(file, "journal"), at)
    with started(file) as peer:
        assert peer.counted("journal_corrupt") == 1
        assert "cannot be read" in peer.line("journal_corrupt").text
        peer.line("reborn")
        assert peer.inside(lambda: peer.state.durable.incarnation) == 2


def of_another_peer(file: Path) -> Path:
    other = file.parents[1] / "peer2" / "peer2.yaml"
    (other.parent / "ward.csv").write_text(WARD)
    change(other, listen="127.0.0.1:0", dashboard=None, state=str(file.parent / "peer1-state"))
    return other


def of_another_federation(file: Path) -> Path:
    other = settled(file.parents[2] / "elsewhere")
    change(other, state=str(file.parent / "peer1-state"))
    return other


def of_another_contract(file: Path) -> Path:
    contract = file.parent / "federation.yaml"
    contract.write_text(contract.read_text() + "seed: 7\n")
    return file


def of_a_later_version(file: Path) -> Path:
    path = newest(file, "snapshots")
    data = path.read_bytes()
    name = blocks.SNAPSHOT + struct.pack("<H", blocks.VERSION + 1) + data[6:14]
    path.write_bytes(name + struct.pack("<I", zlib.crc32(name)) + data[blocks.HEAD_BYTES :])
    return file


NOT_STARTED: dict[str, tuple[Callable[[Path], Path], str]] = {
    "D02-peer": (of_another_peer, "the state belongs to peer peer1 and not peer2"),
    "D02-federation": (of_another_federation, "the state belongs to federation"),
    "D02-contract": (of_another_contract, "seed is 0 in the state and 7 in the file"),
    "D02-later-version": (
        of_a_later_version,
        "start the peer with the release of fedpeer that wrote it, or a later one",
    ),
}


@pytest.mark.parametrize(("spoil", "words"), NOT_STARTED.values(), ids=NOT_STARTED)
def test_a_foreign_state_is_not_touched(
    file: Path, spoil: Callable[[Path], Path], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lived(file)
    wrong = spoil(file)
    kept = {path: path.read_bytes() for path in (file.parent / "peer1-state" / "snapshots").iterdir()}
    assert run(["start", "--quiet", "--config", str(wrong)]) == 2
    assert words in " ".join(capsys.readouterr().err.split())
    assert {path: path.read_bytes() for path in (file.parent / "peer1-state" / "snapshots").iterdir()} == kept
