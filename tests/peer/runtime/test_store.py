"""The store compared with a list of its saves: no cut, flipped bit or interruption loses anything durable."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedpeer.peer.runtime import agreement, blocks
from fedpeer.peer.runtime.store import (
    SNAPSHOTS_KEPT,
    DuplicatePeerError,
    StateError,
    Store,
    StoreError,
    ask_to_leave,
)
from fedpeer.peer.state.events import RejectEffect
from fedpeer.peer.state.saving import Recovered

#: A state is the list of all numbers ever saved; an entry adds one, a snapshot holds them all.
State = list[int]


def state_of(recovered: Recovered) -> State:
    return [*json.loads(recovered.snapshot or b"[]"), *(int(entry) for entry in recovered.entries)]


def restart(folder: Path) -> tuple[State, Recovered]:
    with Store.open(folder) as store:
        recovered = store.recover()
        return state_of(recovered), recovered


def codes(recovered: Recovered) -> list[str]:
    return [each.rejection.code if isinstance(each, RejectEffect) else each.what for each in recovered.remarks]


def played(folder: Path, script: str, said: Callable[[State], None] = lambda state: None) -> State:
    """Open the folder and save: a digit is a batch of that many entries, "s" a snapshot. Pass safe states to `said`."""
    with Store.open(folder) as store:
        state = state_of(store.recover())
        said(state)
        for step in script:
            if step == "s":
                store.snapshot(json.dumps(state).encode())
            else:
                new = [len(state) + i for i in range(int(step))]
                store.append([str(each).encode() for each in new])
                state = state + new
                said(state)
    return state


@pytest.fixture
def no_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip `os.fsync`, for tests that restart a thousand times on a sound disk."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.mark.parametrize("script", ["", "1", "3", "12", "s", "1s", "1s1", "1s2s", "ss", "s1s1s1s1", "12s21s3s1s11"])
def test_what_was_saved_comes_back(tmp_path: Path, script: str) -> None:
    told = played(tmp_path / "peer", script)
    state, recovered = restart(tmp_path / "peer")
    assert state == told
    assert recovered.whole
    assert not recovered.remarks
    assert played(tmp_path / "peer", "2s1") == [*told, *range(len(told), len(told) + 3)]


def test_two_snapshots_and_what_leads_from_them_are_kept(tmp_path: Path) -> None:
    played(tmp_path, "1s1s1s1s1")
    assert sorted(path.name for path in (tmp_path / "snapshots").iterdir()) == [
        "00000003.snapshot",
        "00000004.snapshot",
    ]
    assert sorted(path.name for path in (tmp_path / "journal").iterdir()) == ["00000003.journal", "00000004.journal"]


def test_every_start_is_another_incarnation(tmp_path: Path) -> None:
    lives = []
    for _ in range(3):
        with Store.open(tmp_path / "peer") as store:
            lives.append(store.generation)
    assert lives == [1, 2, 3]


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "9" * 30, "٣"])
def test_a_damaged_incarnation_is_reported_and_not_guessed(tmp_path: Path, text: str) -> None:
    played(tmp_path, "1")
    (tmp_path / "life").write_text(text, encoding="utf-8")
    with pytest.raises(StateError, match=r"larger number .* into it:  date \+%s > "):
        Store.open(tmp_path)


def test_one_process_a_folder(tmp_path: Path) -> None:
    with (
        Store.open(tmp_path) as store,
        pytest.raises(DuplicatePeerError, match=rf"another process \({os.getpid()}\).*stop it"),
    ):
        Store.open(tmp_path)
    assert store.generation == 1
    with Store.open(tmp_path) as store:
        assert store.generation == 2


def test_who_has_just_ended_is_not_asked_to_leave(tmp_path: Path) -> None:
    with Store.open(tmp_path):
        (tmp_path / "lock").write_text("999999999")  # no system has so many processes
        assert ask_to_leave(tmp_path) is None


# ------------------------------------------------------------------------------------------------ damage to the files


@pytest.mark.usefixtures("no_flush")
@pytest.mark.parametrize("script", ["3", "21", "2s12"])
def test_a_journal_cut_anywhere_gives_its_whole_batches(tmp_path: Path, script: str) -> None:
    told = played(tmp_path, script)
    before = played(tmp_path / "copy", script[:-1])
    path = max((tmp_path / "journal").iterdir())
    data = path.read_bytes()
    last = len(max((tmp_path / "copy" / "journal").iterdir()).read_bytes())
    for size in range(last, len(data)):
        path.write_bytes(data[:size])
        state, recovered = restart(tmp_path)
        assert state == before, f"cut to {size} of {len(data)} bytes"
        assert recovered.whole
        assert codes(recovered) == (["journal_torn"] if size > last else [])
    path.write_bytes(data)
    assert restart(tmp_path)[0] == told


@pytest.mark.usefixtures("no_flush")
def test_room_that_was_given_but_not_written_is_cut_off(tmp_path: Path) -> None:
    told = played(tmp_path, "12")
    path = max((tmp_path / "journal").iterdir())
    path.write_bytes(path.read_bytes() + bytes(100))
    state, recovered = restart(tmp_path)
    assert (state, recovered.whole, codes(recovered)) == (told, True, ["journal_torn"])


@pytest.mark.usefixtures("no_flush")
def test_a_flipped_bit_in_the_journal_never_gives_another_state(tmp_path: Path) -> None:
    """Everything before the damage comes back, and the loss is reported.

    Damage in the last batch looks like a save that was cut short, and is reported as one.
    """
    batches = [2, 1, 3]
    told = played(tmp_path, "".join(map(str, batches)))
    path = max((tmp_path / "journal").iterdir())
    data = path.read_bytes()
    starts = [blocks.HEAD_BYTES, *(each.offset + sum(each.lengths) for each in blocks.scan(path, 0).batches)]
    for bit in range(0, 8 * len(data), 7):  # each byte, and each place in a byte
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        (tmp_path / "lost").unlink(missing_ok=True)
        state, recovered = restart(tmp_path)
        hit = sum(start <= bit // 8 for start in starts) - 1  # -1: the head; 0, 1, 2: that batch
        assert state == told[: sum(batches[: max(hit, 0)])], f"bit {bit}"
        assert codes(recovered) == ["journal_torn" if recovered.whole else "journal_corrupt"]
        if hit < 2 or bit // 8 >= starts[hit] + 8:  # a damaged length of the last one may look like either
            assert recovered.whole == (hit == 2), f"bit {bit}"
        if bit % 3 == 0:
            played(tmp_path, "1")
            assert restart(tmp_path)[0] == [*state, len(state)], "what is saved after a damage is found again"


@pytest.mark.usefixtures("no_flush")
@pytest.mark.parametrize(("zeros", "whole"), [(1, False), (2, True)])
def test_zeros_are_a_save_cut_short_only_if_no_later_one_is_there(tmp_path: Path, zeros: int, whole: bool) -> None:
    """A save before a later one was durable: a vote in it counts as lost, not as never given."""
    played(tmp_path, "213")
    path = max((tmp_path / "journal").iterdir())
    ends = [each.offset + sum(each.lengths) for each in blocks.scan(path, 0).batches]
    data = bytearray(path.read_bytes())
    data[ends[0] : ends[zeros]] = bytes(ends[zeros] - ends[0])
    path.write_bytes(data)
    state, recovered = restart(tmp_path)
    assert (state, recovered.whole) == ([0, 1], whole)


@pytest.mark.usefixtures("no_flush")
def test_a_damaged_newest_snapshot_loses_nothing(tmp_path: Path) -> None:
    told = played(tmp_path, "1s2s11")
    path = max((tmp_path / "snapshots").iterdir())
    data = path.read_bytes()
    kept = {each: each.read_bytes() for each in tmp_path.glob("*/*.*")}
    damaged = [data[:size] for size in range(len(data))] + [bytes(len(data)), data + b"x"]
    for bit in range(0, 8 * len(data), 7):  # each byte, and each place in a byte
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(flipped))
    for number, each in enumerate(damaged):
        for file, content in kept.items():
            file.write_bytes(content)
        path.write_bytes(each)
        state, recovered = restart(tmp_path)
        assert (state, recovered.whole, codes(recovered)) == (told, True, ["snapshot_corrupt"])
        if number % 4 == 0:
            assert played(tmp_path, "s1s1")[: len(told)] == told
        for file in tmp_path.glob("*/*.*"):
            file.unlink()


def test_a_damage_before_the_last_journal_is_lost_memory(tmp_path: Path) -> None:
    played(tmp_path, "1s2s2")
    newest = max((tmp_path / "snapshots").iterdir())
    newest.write_bytes(b"")
    first = min((tmp_path / "journal").glob("*1.journal"))
    first.write_bytes(first.read_bytes()[:-1])
    state, recovered = restart(tmp_path)
    assert (state, recovered.whole) == ([0], False)
    assert codes(recovered) == ["snapshot_corrupt", "journal_corrupt"]
    assert restart(tmp_path)[0] == [0], "what came after the damage does not come back"


def test_a_missing_journal_is_lost_memory(tmp_path: Path) -> None:
    played(tmp_path, "1s2")
    max((tmp_path / "journal").iterdir()).unlink()
    state, recovered = restart(tmp_path)
    assert (state, recovered.whole, codes(recovered)) == ([0], False, ["journal_corrupt"])


def test_a_start_that_ended_early_does_not_hide_what_is_lost(tmp_path: Path) -> None:
    """The node has to give up its vote after a loss: each start reports it until a snapshot follows."""
    played(tmp_path, "1s2")
    max((tmp_path / "journal").iterdir()).unlink()
    for start in range(3):
        state, recovered = restart(tmp_path)
        assert (state, recovered.whole, codes(recovered)) == ([0], False, ["journal_corrupt"]), f"start {start}"
    played(tmp_path, "1")
    assert not restart(tmp_path)[1].whole, "entries may be of anything"
    played(tmp_path, "s")
    assert restart(tmp_path)[1].whole


def test_the_journal_of_a_damaged_snapshot_is_missed(tmp_path: Path) -> None:
    """The journal was there before the snapshot, so its entries are lost."""
    played(tmp_path, "1s2s3")
    max((tmp_path / "snapshots").iterdir()).write_bytes(b"")
    max((tmp_path / "journal").iterdir()).unlink()
    state, recovered = restart(tmp_path)
    assert (state, recovered.whole) == ([0, 1, 2], False)
    assert codes(recovered) == ["snapshot_corrupt", "journal_corrupt"]


def test_a_copy_that_a_person_made_is_not_the_stores(tmp_path: Path) -> None:
    told = played(tmp_path, "1s2")
    newest = max((tmp_path / "snapshots").iterdir())
    newest.with_name("00000001-copy.snapshot").write_bytes(newest.read_bytes())
    assert restart(tmp_path)[0] == told
    assert agreement.state_of(tmp_path) is None, "these snapshots are no frames"


def test_no_readable_snapshot_is_the_users_to_decide(tmp_path: Path) -> None:
    played(tmp_path, "1s2s2")
    for path in (tmp_path / "snapshots").iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    with Store.open(tmp_path) as store, pytest.raises(StateError, match="restore the folder from a backup, or move"):
        store.recover()
    assert len(list((tmp_path / "snapshots").iterdir())) == 2, "nothing is deleted"


@pytest.mark.parametrize("script", ["12", "1s2", "s1s1s2"])
def test_files_of_version_1_are_read_and_continued(
    tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A journal of version 1 is continued in version 1, and later files have the newest version."""
    with monkeypatch.context() as patch:
        patch.setattr(blocks, "VERSION", 1)
        patch.setattr(blocks.batch, "__defaults__", (1,))
        patch.setattr(blocks.block, "__defaults__", (1,))
        played(tmp_path, script)
    old = max((tmp_path / "journal").iterdir())
    assert old.read_bytes()[4:6] == b"\1\0"
    for further in ("1", "2s1", "s2"):
        told = played(tmp_path, further)
        state, recovered = restart(tmp_path)
        assert (state, recovered.whole, recovered.remarks) == (told, True, ())
    assert max((tmp_path / "journal").iterdir()).read_bytes()[4:6] == b"\2\0"


@pytest.mark.parametrize("kind", ["snapshots", "journal"])
def test_files_of_a_later_version_are_not_touched(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(blocks, "VERSION", blocks.VERSION + 1)
        played(tmp_path, "1s1s1")
    if kind == "journal":
        for path in (tmp_path / "snapshots").iterdir():
            data, number = path.read_bytes(), int(path.stem)
            path.write_bytes(blocks.head(blocks.SNAPSHOT, number) + data[blocks.HEAD_BYTES :])
    before = {path: path.read_bytes() for path in tmp_path.glob("*/*.*")}
    with (
        Store.open(tmp_path) as store,
        pytest.raises(StateError, match=f"{kind}.*version {blocks.VERSION + 1}.*or a later one"),
    ):
        store.recover()
    assert before == {path: path.read_bytes() for path in tmp_path.glob("*/*.*")}


def test_a_file_under_anothers_name_is_not_taken_for_it(tmp_path: Path) -> None:
    told = played(tmp_path, "1s2s2")
    older, newer = sorted((tmp_path / "snapshots").iterdir())
    newer.write_bytes(older.read_bytes())
    state, recovered = restart(tmp_path)
    assert (state, recovered.whole, codes(recovered)) == (told, True, ["snapshot_corrupt"])


def test_a_batch_in_anothers_place_is_not_taken_for_it(tmp_path: Path) -> None:
    played(tmp_path, "111")
    path = max((tmp_path / "journal").iterdir())
    data, head = path.read_bytes(), blocks.HEAD_BYTES
    size = (len(data) - head) // 3
    path.write_bytes(data[: head + size] + data[head : head + size] + data[head + 2 * size :])
    state, recovered = restart(tmp_path)
    assert (state, recovered.whole) == ([0], False)


# ---------------------------------------------------------------------------------------------------- failing disks


class FailingDisk:
    """`os.write` that fails after `left` bytes until `left` is set again, and `os.fsync` that fails without `flush`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left, self.write, self.flush = 1 << 60, os.write, True
        monkeypatch.setattr(os, "write", self._write)
        monkeypatch.setattr(os, "fsync", self._fsync)

    def _write(self, descriptor: int, data: memoryview) -> int:
        if not self.left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = self.write(descriptor, data[: self.left])
        self.left -= taken
        return taken

    def _fsync(self, descriptor: int) -> None:
        if not self.flush:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_full_disk_costs_nothing_but_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FailingDisk(monkeypatch)
    for left in range(60):
        folder = tmp_path / f"{left}-bytes-left"  # a failure's message names the folder
        with Store.open(folder) as store:
            store.recover()
            store.snapshot(b"[]")
            store.append([b"0"])
            for _ in range(2):
                disk.left = left
                with pytest.raises(StoreError, match=f"{left}-bytes-left.*No space left"):
                    store.append([b"1" * 40])
                disk.left = left
                with pytest.raises(StoreError, match=f"{left}-bytes-left.*No space left"):
                    store.snapshot(b"[" + b" " * 60 + b"]")
            disk.left = 1 << 60
            store.append([b"1"])
            store.append([b"2"])
        assert restart(folder)[0] == [0, 1, 2], folder


def test_an_old_file_that_cannot_be_removed_stops_no_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(tmp_path) as store:
        store.recover()
        for number in range(SNAPSHOTS_KEPT):
            assert store.snapshot(json.dumps([number]).encode()) == ""
            store.append([str(number).encode()])
        with monkeypatch.context() as stubborn:
            stubborn.setattr(Path, "unlink", forbidden)
            for state in (b"[6]", b"[6, 7]"):
                stays = store.snapshot(state)
                assert re.search(f"{tmp_path}.* cannot be removed: {os.strerror(errno.EPERM)}", stays)
                store.append([b"8"])
            assert len(numbers(tmp_path)) == SNAPSHOTS_KEPT + 1, "what can be removed is"
        assert store.snapshot(b"[6, 7, 8]") == "", "it is removed later"
        assert len(numbers(tmp_path)) == SNAPSHOTS_KEPT
        store.append([b"9"])
    assert restart(tmp_path)[0] == [6, 7, 8, 9]


unlink = Path.unlink


def forbidden(self: Path, missing_ok: bool = False) -> None:
    """Remove the file, and fail for snapshot number 1."""
    if self.name == "00000001.snapshot":
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))
    unlink(self, missing_ok)


def numbers(folder: Path) -> list[str]:
    return sorted(each.stem for each in (folder / "snapshots").iterdir())


def test_a_failed_flush_is_not_believed_the_second_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FailingDisk(monkeypatch)
    with Store.open(tmp_path) as store:
        store.recover()
        disk.flush = False
        with pytest.raises(StoreError):
            store.append([b"0"])
        disk.flush, disk.left = True, 1 << 20
        store.append([b"0"])
        assert disk.left < 1 << 20, "written anew"
    assert restart(tmp_path)[0] == [0]


def test_a_folder_that_cannot_be_made_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(StateError, match="name another one with `state:`"):
        Store.open(tmp_path / "file" / "peer")


# ------------------------------------------------------------------------------------- a crash after any system call


class Crash(BaseException):
    """The end of the process, or of the machine."""


class Machine:
    """The system calls of a store: it ends the store after call number `last` and models the result of a power cut.

    Flushed bytes stay. Any first part of the bytes written to a file since then may also be there. A name that was
    made, changed or removed is as it was when its folder was last flushed.
    """

    def __init__(self, root: Path, last: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.last, self.calls = root, last, 0
        self.files: dict[int, tuple[bytes, int]] = {}  # by inode: flushed bytes, and a descriptor that keeps the file
        self.names: dict[int, dict[str, int]] = {}  # by inode of the folder
        self.open = os.open
        self.off = False
        for name in ("open", "write", "ftruncate", "replace", "unlink", "mkdir"):
            monkeypatch.setattr(os, name, self._counted(getattr(os, name)))
        monkeypatch.setattr(os, "fsync", self._counted(self._fsync))

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            result = call(*arguments, **named)
            if not self.off:
                self.calls += 1
                if self.calls == self.last:
                    raise Crash
            return result

        return counted

    def _fsync(self, descriptor: int) -> None:
        about = os.fstat(descriptor)
        if stat.S_ISDIR(about.st_mode):
            self.names[about.st_ino] = {each.name: each.inode() for each in os.scandir(descriptor)}
        else:
            _, kept = self.files.get(about.st_ino) or (b"", self.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY))
            self.files[about.st_ino] = self._content(kept), kept

    def _content(self, descriptor: int) -> bytes:
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0)

    def power_cut(self, target: Path, draws: random.Random) -> None:
        """Write under `target` the files that another start would find."""
        self._restore(os.stat(self.root).st_ino, target, draws)

    def _restore(self, inode: int, target: Path, draws: random.Random) -> None:
        target.mkdir(parents=True)
        for name, child in self.names.get(inode, {}).items():
            if child in self.names or (not Path(name).suffix and name in ("peer", "snapshots", "journal")):
                self._restore(child, target / name, draws)
                continue
            flushed, descriptor = self.files.get(child, (b"", -1))
            now = flushed if descriptor < 0 else self._content(descriptor)
            more = now[len(flushed) :] if now.startswith(flushed) else b""
            (target / name).write_bytes(flushed + more[: draws.randint(0, len(more))])

    def close(self) -> None:
        for _, descriptor in self.files.values():
            os.close(descriptor)


SCRIPT = "1s2s12s1"


def crashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, Machine, State, Path]]:
    """Yield a crash after each system call of a script: the call's number, machine, safe state, and folder."""
    last = 0
    while True:
        last += 1
        root = tmp_path / f"{last}"
        root.mkdir()
        safe: list[State] = [[]]
        with monkeypatch.context() as patch:
            machine = Machine(root, last, patch)
            try:
                played(root / "peer", SCRIPT, safe.append)
            except Crash:
                machine.off = True
                yield last, machine, safe[-1], root / "peer"
            else:
                break
            finally:
                machine.close()


def allowed(state: State, safe: State) -> bool:
    """Return whether a state has all safe entries, and beyond these none or the whole batch in progress."""
    return state[: len(safe)] == safe and len(state) - len(safe) in (0, 1, 2)


def test_a_process_killed_after_any_system_call_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0
    for count, _, safe, folder in crashes(tmp_path, monkeypatch):
        state, recovered = restart(folder)
        assert allowed(state, safe), f"after call {count}: {state}, safe was {safe}"
        assert recovered.whole
        assert not {*codes(recovered)} - {"journal_torn"}
        told = played(folder, "1s1")
        assert restart(folder)[0] == told == [*state, len(state), len(state) + 1]
    assert count > 60


def test_a_power_cut_after_any_system_call_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for count, machine, safe, _ in crashes(tmp_path, monkeypatch):
        for seed in range(3):
            target = tmp_path / f"{count}-{seed}"
            machine.power_cut(target, random.Random(seed))
            state, recovered = restart(target / "peer")
            assert allowed(state, safe), f"after call {count}: {state}, safe was {safe}"
            assert recovered.whole
            if seed == count % 3:  # the store goes on from each cut, with one of its outcomes
                told = played(target / "peer", "1s1")
                assert restart(target / "peer")[0] == told


def test_a_process_killed_while_it_finds_a_loss_does_not_hide_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files that show the loss are cut and removed only after it is written down."""
    for last in range(1, 100):
        root = tmp_path / f"{last:03}"
        played(root, "1s1s2s2")
        (root / "snapshots" / "00000003.snapshot").write_bytes(b"")
        first = root / "journal" / "00000002.journal"
        first.write_bytes(first.read_bytes()[:-1])
        store = Store.open(root)
        with monkeypatch.context() as patched, store:
            machine = Machine(root, last, patched)
            try:
                store.recover()
            except Crash:
                ended = False
            else:
                ended = True
            machine.off = True
        assert not restart(root)[1].whole, f"killed after system call {last}"
        machine.close()
        if ended:
            return
    raise AssertionError("it never came to its end")


# ------------------------------------------------------------------------------------------------ folders of somebody's


def test_a_folder_has_one_owner_whatever_it_is_called(tmp_path: Path) -> None:
    """A link leads to the same folder, with the same lock and the same state."""
    (tmp_path / "link").symlink_to(tmp_path / "state", target_is_directory=True)
    kept = played(tmp_path / "state", "12s3")
    with Store.open(tmp_path / "state"), pytest.raises(DuplicatePeerError, match="already runs this peer"):
        Store.open(tmp_path / "link")
    assert restart(tmp_path / "link")[0] == kept


@pytest.mark.parametrize("target", ["nowhere", "link", "file"])
def test_a_link_to_no_folder_is_said_to_be_so(tmp_path: Path, target: str) -> None:
    (tmp_path / "file").write_text("somebody's")
    (tmp_path / "link").symlink_to(tmp_path / target)
    with pytest.raises(StateError, match="cannot be used"):
        Store.open(tmp_path / "link")
    assert (tmp_path / "file").read_text() == "somebody's"


def test_a_link_in_the_place_of_the_lock_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("not to be touched")
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "lock").symlink_to(tmp_path / "theirs")
    with pytest.raises(StateError, match="cannot be used"):
        Store.open(tmp_path / "state")
    assert (tmp_path / "theirs").read_text() == "not to be touched"


@pytest.mark.skipif(os.name != "posix", reason="needs modes of files (POSIX)")
@pytest.mark.parametrize("inner", [".", "snapshots", "journal"])
def test_a_folder_that_every_user_can_write_is_not_taken(tmp_path: Path, inner: str) -> None:
    played(tmp_path / "state", "1")
    (tmp_path / "state" / inner).chmod(0o777)
    with pytest.raises(StateError, match="chmod o-w"):
        Store.open(tmp_path / "state")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="needs root, to give a folder away")
def test_a_folder_of_another_user_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played(tmp_path / "state", "1")
    os.chown(tmp_path / "state", 4242, 4242)
    monkeypatch.setattr(os, "geteuid", lambda: 4343)
    with pytest.raises(StateError, match="belongs to another user"):
        Store.open(tmp_path / "state")
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    Store.open(tmp_path / "state").close()
