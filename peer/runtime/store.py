"""Store of a peer's durable state: one folder, safe against a crash between any two system calls.

    lock                           held by the running process, which writes its process number into it
    life                           the generation: how often a process was started on this folder
    snapshots/00000007.snapshot    one whole state; the last two are kept
    journal/00000007.journal       what was saved after snapshot 7, batch after batch
    lost                           what durable state was found to be lost; exists only until the next snapshot

Snapshots and entries are opaque bytes here. Journal n begins before snapshot n is in place, so every snapshot has its
journal, and journal n - 1 leads from snapshot n - 1 to snapshot n: if the newest snapshot cannot be read, the one
before and both journals give the same state. "Snapshot 0" is the empty initial state.

A batch of entries is flushed to the disk at once. Nothing relies on it before that, so a batch that a crash cut short
at the end of the last journal is dropped: its peer never sent anything that follows from it. Anything else that is
missing was durable once, and `Recovered.whole` is False: at this start, and at each later one until a snapshot is saved
that takes the loss into account. So a process that ends before it has acted on the loss does not hide it from the next.
(A flipped bit in the very last batch cannot be distinguished from a write that was cut short; the neighbors, which
remember more than the peer does, then detect it in the handshake.)
"""

from __future__ import annotations

import os
import signal
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from fedpeer.peer.runtime import blocks
from fedpeer.peer.runtime.blocks import HEAD_BYTES, JOURNAL, SNAPSHOT, Batch, DamagedError
from fedpeer.peer.runtime.transient import disk_may_recover
from fedpeer.peer.state.events import Note, RejectEffect
from fedpeer.peer.state.saving import Recovered
from fedpeer.peer.wire.framing import leading_fields
from fedpeer.rejection import Rejection
from fedpeer.runs.disk import flush_folder, is_locked, replacing, take_lock

#: Snapshots kept: the newest, and the one to fall back on if that is unreadable.
SNAPSHOTS_KEPT = 2


class StateError(Exception):
    """The user's mistake about a peer's folder, or a folder damaged beyond repair; the message says what to do."""


class DuplicatePeerError(StateError):
    """Another process on this machine already runs this peer."""


class StoreError(Exception):
    """Nothing could be saved (disk full, read-only, failing). What was durable still is; try the same again."""


class Store:
    """The folder of one peer, locked by this process until `close`. First `recover`, then `append` and `snapshot`."""

    def __init__(self, folder: Path, lock: int, generation: int) -> None:
        self.folder, self.generation = folder, generation
        self._lock, self._file = lock, -1
        self._number = self._sound_bytes = 0  # the open journal's number, and its durable bytes
        self._version = blocks.VERSION  # of the open journal
        self._trailing = False  # whether other bytes may follow these

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Lock the folder, made if need be, and begin the next generation in it.

        Raises:
            DuplicatePeerError: another process holds the lock.
            StateError: this user may not write it, or its file `life` is damaged.
            StoreError: the disk is full, read-only or failing.
        """
        with usable(folder):
            for each in (folder, folder / "snapshots", folder / "journal"):
                each.mkdir(mode=0o700, parents=True, exist_ok=True)
                _check_own(each)
            flush_folder(folder.parent)
            lock = take_lock(folder / "lock")
        if lock is None:
            owner = _digits(folder / "lock")
            raise DuplicatePeerError(
                f"another process{f' ({owner})' if owner else ''} already runs this peer from {folder}; "
                "stop it first, or give this peer its own configuration and `state:`"
            )
        try:
            with usable(folder):
                os.ftruncate(lock, 0)
                os.write(lock, str(os.getpid()).encode())
                return cls(folder, lock, _next_generation(folder))
        except BaseException:
            os.close(lock)
            raise

    def close(self) -> None:
        """Unlock the folder. What was appended is durable already."""
        for descriptor in (self._file, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- reading

    def recover(self) -> Recovered:
        """Return what was saved last. Unusable files are removed, so that later entries follow what was read.

        Raises:
            StateError: there are files but no state can be read from them, or a later version of fedpeer wrote them.
            StoreError: the disk is full, read-only or failing; open the folder anew.
        """
        assert self._file < 0, "recover is done once, before anything is saved"
        with usable(self.folder):
            for leftover in self.folder.glob("*/.*.tmp"):
                leftover.unlink()
            remarks: list[Note | RejectEffect] = []
            number, snapshot = self._newest(remarks)
            batches, lost = self._replay(number, remarks)
            for late in self._numbers("snapshot"):
                if late > number:
                    self._path("snapshot", late).unlink()
        if lost:
            remarks.append(RejectEffect(Rejection("journal_corrupt", f"{lost}; everything saved after it is lost")))
        entries = (entry for batch in batches for entry in batch.entries())
        spare = not any(
            isinstance(each, RejectEffect) and each.rejection.code == "snapshot_corrupt" for each in remarks
        )
        return Recovered(snapshot=snapshot, entries=entries, whole=not lost, spare=spare, remarks=tuple(remarks))

    def _newest(self, remarks: list[Note | RejectEffect]) -> tuple[int, bytes | None]:
        """Return number and content of the newest readable snapshot; (0, None) if the state begins with journal 0."""
        known = self._numbers("snapshot")
        for number in reversed(known):
            try:
                return number, blocks.read_snapshot(self._path("snapshot", number), number)
            except DamagedError as problem:
                self._refuse_later(problem, "snapshot", number)
                remarks.append(
                    RejectEffect(Rejection("snapshot_corrupt", f"snapshot {number} {problem}; the one before is used"))
                )
        journals = self._numbers("journal")
        if (known or journals) and journals[:1] != [0]:
            raise StateError(
                f"no state of this peer can be read: none of the snapshots in {self.folder} is intact; restore "
                "the folder from a backup, or move it away and the peer joins again with the others' current model"
            )
        return 0, None

    def _replay(self, number: int, remarks: list[Note | RejectEffect]) -> tuple[list[Batch], str]:
        """Return the batches after snapshot `number`, and what is lost ("": nothing).

        The last intact journal stays open for more entries.
        """
        later = [n for n in self._numbers("journal") if n >= number]
        batches: list[Batch] = []
        last, sound_bytes, lost = number, 0, ""
        version = blocks.VERSION
        for n in range(number, max([*later, *self._numbers("snapshot")], default=-1) + 1):
            try:
                found = blocks.scan(self._path("journal", n), n)
            except FileNotFoundError:
                lost = f"journal {n} is missing"
                break
            except DamagedError as problem:
                self._refuse_later(problem, "journal", n)
                last, sound_bytes, lost = n, 0, f"journal {n} {problem}"
                break
            last, sound_bytes, version = n, found.sound_bytes, found.version
            batches += found.batches
            cut = self._path("journal", n).stat().st_size - sound_bytes
            if cut and found.torn and not any(self._holds(m) for m in later if m > n):
                remarks.append(Note("info", "journal_torn", f"journal {n}: {cut} bytes of an unfinished save removed"))
                break
            if cut:
                lost = f"journal {n} is damaged at byte {sound_bytes}"
                break
        lost = self._remembered(lost)
        for n in later:
            if n > last:
                self._path("journal", n).unlink()
        flush_folder(self._path("journal", 0).parent)
        self._resume(last, sound_bytes, version)
        return batches, lost

    def _remembered(self, lost: str) -> str:
        """Return what is lost, now or at an earlier start that did not act on it ("": nothing), and write it down."""
        if lost:
            with replacing(self._lost) as temporary:
                temporary.write_text(lost, encoding="ascii")
        elif self._lost.exists():
            return self._lost.read_text(encoding="ascii", errors="replace")[:200] or "something"
        return lost

    @property
    def _lost(self) -> Path:
        return self.folder / "lost"

    def _holds(self, number: int) -> bool:
        return self._path("journal", number).stat().st_size > HEAD_BYTES

    def _refuse_later(self, problem: DamagedError, kind: str, number: int) -> None:
        if problem.later:
            raise StateError(
                f"{self._path(kind, number)} {problem}, which this release does not know; "
                "start the peer with the release of fedpeer that wrote it, or a later one"
            )

    # ---- writing

    def append(self, entries: Sequence[bytes]) -> None:
        """Make these entries durable, all or none, with one flush.

        Raises:
            StoreError: they are not saved; nothing else has changed.
        """
        with self._saving():
            self._trailing = True
            self._sound_bytes += blocks.write(
                self._file, blocks.batch(self._number, self._sound_bytes, entries, self._version)
            )
            self._trailing = False

    def snapshot(self, data: bytes) -> str:
        """Replace everything saved so far by this state; the files to fall back on are kept, older ones removed.

        Return why an older one stays ("": none does). The state is saved all the same, and the next snapshot tries to
        remove it again.

        Raises:
            StoreError: it is not saved; nothing else has changed.
        """
        with self._saving():
            if not self._number or self._holds(self._number) or self._path("snapshot", self._number).exists():
                self._begin(self._number + 1)
            number = self._number
            with replacing(self._path("snapshot", number)) as temporary, temporary.open("wb", buffering=0) as file:
                parts = (blocks.head(SNAPSHOT, number), *blocks.block(number, HEAD_BYTES, (data,)))
                blocks.write(file.fileno(), parts)
            if self._lost.exists():
                self._lost.unlink()
                flush_folder(self.folder)
            oldest = [0, *self._numbers("snapshot")][-SNAPSHOTS_KEPT]
            files = [self._path(kind, n) for kind in ("snapshot", "journal") for n in self._numbers(kind) if n < oldest]
        stays = ""
        for old in files:
            try:
                old.unlink()
            except OSError as problem:
                stays = f"{old} is not needed any more and cannot be removed: {problem.strerror}"
        return stays

    @contextmanager
    def _saving(self) -> Iterator[None]:
        assert self._file >= 0, "recover comes first"
        try:
            self._cut()
            yield
        except OSError as problem:
            raise StoreError(f"cannot save in {self.folder}: {problem.strerror}") from problem

    def _cut(self) -> None:
        """Remove what a failed save left after the last durable byte.

        After a failed flush a system may forget what it could not write and report the next flush as a success, so
        everything that was not durable is written anew.
        """
        if self._trailing:
            os.ftruncate(self._file, self._sound_bytes)
            os.fsync(self._file)
            self._trailing = False

    def _begin(self, number: int) -> None:
        path = self._path("journal", number)
        with replacing(path) as temporary:
            temporary.write_bytes(blocks.head(JOURNAL, number))
        self._use(number, HEAD_BYTES, blocks.VERSION)

    def _resume(self, number: int, sound_bytes: int, version: int) -> None:
        if sound_bytes < HEAD_BYTES:
            self._begin(number)
            return
        self._use(number, sound_bytes, version)
        self._trailing = True
        self._cut()

    def _use(self, number: int, sound_bytes: int, version: int) -> None:
        descriptor = os.open(self._path("journal", number), os.O_WRONLY | os.O_APPEND)
        if self._file >= 0:
            os.close(self._file)
        self._file, self._number, self._version = descriptor, number, version
        self._sound_bytes, self._trailing = sound_bytes, False

    def _path(self, kind: str, number: int) -> Path:
        return self.folder / {"snapshot": "snapshots", "journal": "journal"}[kind] / f"{number:08}.{kind}"

    def _numbers(self, kind: str) -> list[int]:
        return sorted(int(path.stem) for path in self._path(kind, 0).parent.iterdir() if path.stem.isdigit())


def ask_to_leave(folder: Path) -> int | None:
    """Ask the process that runs on this folder to leave; return its process number, None if none runs."""
    if not is_locked(folder / "lock"):
        return None
    process = int(_digits(folder / "lock") or 0)
    try:
        if process:
            os.kill(process, signal.SIGUSR1)
    except ProcessLookupError:  # it has just ended, or this is a file system without locks
        return None
    return process or None


@contextmanager
def usable(folder: Path) -> Iterator[None]:
    """Turn an OSError on a state folder into a StoreError if it may pass by itself, else into a StateError."""
    try:
        yield
    except OSError as problem:
        if disk_may_recover(problem):
            raise StoreError(f"cannot save in {folder}: {problem.strerror}") from problem
        raise StateError(
            f"the peer's state folder {folder} cannot be used ({problem.strerror}); "
            "make it readable and writable for this user, or name another one with `state:`"
        ) from None


def _check_own(folder: Path) -> None:
    """Raise StateError if another user could put something there, such as a link through which this peer would write.

    Root may use anybody's folder: in a container it is often the only user.
    """
    if sys.platform == "win32":
        return
    found, me = folder.stat(), os.geteuid()
    if found.st_mode & stat.S_IWOTH:
        raise StateError(f"every user of this machine can write {folder}; run  chmod o-w {folder}")
    if me and found.st_uid not in (me, 0):
        raise StateError(f"{folder} belongs to another user of this machine; name another one with `state:`")


def _next_generation(folder: Path) -> int:
    """Count this start durably and return its number, the generation.

    A number may be skipped but never used twice: other peers go by the largest that they have seen.
    """
    path = folder / "life"
    text = _digits(path)
    if not text and (path.exists() or any((folder / "journal").iterdir())):
        raise StateError(
            f"{path}, which counts the starts of this peer, is damaged or missing; write a larger number than ever "
            f"into it:  date +%s > {path}"
        )
    generation = int(text or 0) + 1
    with replacing(path) as temporary:
        temporary.write_text(f"{generation}\n", encoding="ascii")
    return generation


def _digits(path: Path) -> str:
    """Return the number in a small file as text, of at most 18 digits; "" if there is none."""
    try:
        text = path.read_bytes()[:20].decode("ascii", errors="replace").strip()
    except FileNotFoundError:
        return ""
    return text if text.isascii() and text.isdigit() and len(text) <= 18 else ""


def beginning(path: Path) -> dict[str, Any]:
    """Return the fields of a snapshot, which may be large, without reading its tensors.

    Raises:
        DamagedError, FrameError, OSError: the file is damaged or cannot be read.
    """
    with path.open("rb") as file:
        blocks.check_snapshot(file, int(path.stem))
        return dict(leading_fields(file)[1])
