"""The folder of one run: settings, measurements, models, and the checkpoint from which it is resumed.

    run.json        id, name, start, status, seconds      settings.json           settings with defaults filled in
    metrics.jsonl   one row per method, seed and round    environment.json        versions, device, revision
    summary.json    the results, after the end or a stop  split.json, ...         descriptions for the report
    models/         final models and their cards          checkpoint.safetensors  until the run is finished
    report.html     the report                            run.lock                locked by the process that writes

The first write takes the lock, so that only one process at a time writes a run, and others see whether it is still
running. A killed process leaves a readable folder: files are replaced atomically, and an incomplete last row of the
metrics is dropped.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedpeer.runs.disk import RunError, dumps, read_json, replacing, take_lock, write_json, write_text
from fedpeer.runs.index import Index, RunStatus, folders, living, row_of
from fedpeer.runs.tensors import map_arrays

if TYPE_CHECKING:
    from _typeshed import SupportsRichComparison

log = logging.getLogger(__name__)

#: The file from which a run is resumed, and the file that makes a folder a run.
_CHECKPOINT, _LAST = "checkpoint.safetensors", "run.json"

#: A row, a summary or a description: values of JSON's and numpy's types.
Data = Mapping[str, Any]
#: numpy arrays, or torch tensors on any device; torch is not imported here.
_Tensors = Mapping[str, Any]


class RunFolder:
    """A run on disk: `create` starts one, `open` finds one; writing to an old one (`record`, ...) resumes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = path.name
        self._release: weakref.finalize[Any, Any] | None = None
        self._since = 0.0

    @classmethod
    def create(cls, root: Path, *, name: str, settings: Data, environment: Data) -> RunFolder:
        """Make `<root>/<id>/` and its row "running" in the index. Ids sort by time: 20261121-034501-digits-7f3a.

        Raises:
            RunError: the folder cannot be made.
        """
        started = datetime.now(UTC)
        word = re.sub(r"[^a-z0-9]+", "-", name.lower())[:40].strip("-") or "run"
        path = root / f"{started:%Y%m%d-%H%M%S}-{word}-{secrets.token_hex(2)}"
        while path.exists():  # another run of this second drew the same number
            path = path.with_name(f"{path.name[:-4]}{secrets.token_hex(2)}")
        try:
            path.mkdir(parents=True)
        except OSError as problem:
            raise RunError(f"{path} cannot be made ({problem.strerror}); choose another folder with --out") from None
        Index(root).ready()
        run = cls(path)
        write_json(path / "settings.json", settings)
        write_json(path / "environment.json", environment)
        run._take()
        run._note(name=name, started=started.isoformat(), status="running", seconds=None)
        return run

    @classmethod
    def open(cls, root: Path, run_id: str) -> RunFolder:
        """Return the run with this id, with an id that alone begins so, or with this path; "last": the latest run.

        Raises:
            RunError: there is no such run, or several; the message lists similar ids.
        """
        if run_id and (Path(run_id) / "run.json").is_file():
            return cls(Path(run_id))
        known = folders(root)
        if not known:
            raise RunError(f"there are no runs in {root}; start one with fedpeer simulate, or name a folder with --out")
        if run_id == "last":
            return cls(max(known.values(), key=lambda path: str(read_json(path / "run.json")["started"])))
        found = [run_id] if run_id in known else [each for each in known if run_id and each.startswith(run_id)]
        if len(found) == 1:
            return cls(known[found[0]])
        near = found or get_close_matches(run_id, known, n=3, cutoff=0.5) or list(known)[-3:]
        problem = "several runs begin with" if found else "there is no run"
        raise RunError(f'{problem} "{run_id}" in {root}; did you mean {" or ".join(near[:5])}?')

    @classmethod
    def adopt(cls, root: Path, run_id: str, files: Mapping[str, bytes]) -> RunFolder:
        """Make `<root>/<run_id>/` from the result of `files` on another machine, or update an older copy.

        The files are written in the given order, so a crash in between leaves no run, or the older one. Machines draw
        their ids apart, so another run, with another start, may have this id; then this one gets a longer id.
        """
        run = cls(root / run_id)
        known = run.read("run")
        if known is not None and known["started"] != json.loads(files[_LAST])["started"]:
            run = cls(root / f"{run_id}-{secrets.token_hex(4)}")
        run.path.mkdir(parents=True, exist_ok=True)
        Index(root).ready()
        run._take()
        for name, content in files.items():
            path = run.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if name == _LAST and _CHECKPOINT not in files:
                run.forget_checkpoint()
            with replacing(path) as temporary:
                temporary.write_bytes(content)
        Index(root).put(row_of(run.path))
        run.let_go()
        return run

    @property
    def status(self) -> RunStatus:
        """The current status; "interrupted" if the process that was running it has ended."""
        return living(self.path, read_json(self.path / "run.json")["status"])

    def read(self, name: str) -> dict[str, Any] | None:
        """Return the content of `<name>.json`, which `describe` or `finish` wrote; None if it does not exist."""
        path = self.path / f"{name}.json"
        return dict(read_json(path)) if path.exists() else None

    def files(self) -> dict[str, bytes]:
        """Return all files by name for `adopt`: the checkpoint after the rows that it needs, and `run.json` last."""
        paths = {path.relative_to(self.path).as_posix(): path for path in self.path.rglob("*") if path.is_file()}
        names = sorted(paths.keys() - {"run.lock"}, key=lambda name: (name == _LAST, name == _CHECKPOINT, name))
        return {name: paths[name].read_bytes() for name in names}

    # ---- measurements

    def record(self, row: Data) -> None:
        """Append one row to the metrics; it has been passed to the system when the call returns."""
        self._take()
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(dumps(row) + "\n")

    def rows(self) -> list[dict[str, Any]]:
        """Return all rows in the order of recording. A last row that a crash cut off is left out and logged.

        Raises:
            RunError: any other row is damaged; the message names its line.
        """
        path = self.path / "metrics.jsonl"
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n") if path.exists() else [""]
        *whole, torn = lines
        if torn:
            log.warning("the last row of %s was cut off by a crash and is left out", path)
        rows = []
        for number, line in enumerate(whole, start=1):
            try:
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError("not an object")
            except ValueError as problem:
                raise RunError(f"{path}, line {number} is damaged ({problem}); restore it, or delete the run") from None
            rows.append(row)
        return rows

    def truncate(self, keep: Callable[[dict[str, Any]], bool]) -> None:
        """Keep only these rows; used to resume from a checkpoint that is older than the last row."""
        self._take()
        self._rewrite(row for row in self.rows() if keep(row))

    def arrange(self, order: Callable[[Data], SupportsRichComparison]) -> None:
        """Sort the rows; used if several processes wrote them at once."""
        self._take()
        self._rewrite(sorted(self.rows(), key=order))

    def _rewrite(self, rows: Iterable[Data]) -> None:
        write_text(self.path / "metrics.jsonl", "".join([dumps(row) + "\n" for row in rows]))

    # ---- descriptions and tensors

    def describe(self, name: str, data: Data) -> None:
        """Write `<name>.json`, such as "split", "plan" or "graphs", for the report and for readers."""
        write_json(self.path / f"{name}.json", data)

    def models(self, method: str, seed: int, *, best: bool = False) -> Path:
        """Return the path of the final parameters of all peers; their card is beside it, with the ending `.json`.

        Args:
            best: return the path of the parameters of each peer's best round on its validation examples instead.
        """
        return self.path / "models" / f"{file_stem(method, seed)}{'-best' * best}.safetensors"

    def save_models(self, method: str, seed: int, tensors: _Tensors, card: Data, *, best: bool = False) -> Path:
        """Write `models/<method>-seed<seed>.safetensors` with names such as "peer1/hidden1.weight", and the card."""
        path = self.models(method, seed, best=best)
        path.parent.mkdir(exist_ok=True)
        write_json(path.with_suffix(".json"), card)
        _save(path, _arrays(tensors), {"run": self.id, "method": method, "seed": str(seed)})
        return path

    def forget_models(self) -> None:
        """Delete the models, which take gigabytes in some runs."""
        shutil.rmtree(self.path / "models", ignore_errors=True)

    def save_checkpoint(self, tensors: _Tensors, state: Data) -> None:
        """Replace the checkpoint by this one. `state` is JSON data; exact values belong into the tensors."""
        self._take()
        metrics = self.path / "metrics.jsonl"
        if metrics.exists():  # the rows that the checkpoint needs must survive a power cut too
            with metrics.open("r+b") as file:
                os.fsync(file.fileno())
        arrays, text = _arrays(tensors), dumps(state)
        _save(self.path / _CHECKPOINT, arrays, {"state": text, "digest": _digest(arrays, text)})

    def load_checkpoint(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]] | None:
        """Return the last checkpoint's arrays, read-only and mapped from the file, and its state; None without one.

        Raises:
            RunError: the file is damaged.
        """
        from safetensors import SafetensorError, safe_open

        path = self.path / _CHECKPOINT
        if not path.exists():
            return None
        try:
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
        except SafetensorError as problem:
            raise RunError(f"{path} is damaged ({problem}); delete it and start the run again") from None
        arrays, text = map_arrays(path), metadata.get("state", "")
        if metadata.get("digest") != _digest(arrays, text):
            raise RunError(f"{path} is damaged (its digest differs); delete it and start the run again")
        return arrays, json.loads(text)

    def forget_checkpoint(self) -> None:
        """Delete the checkpoint."""
        (self.path / _CHECKPOINT).unlink(missing_ok=True)

    # ---- the end

    def finish(self, summary: Data, status: RunStatus = "finished") -> None:
        """Write the summary, the status and the index row. The checkpoint stays unless the run is finished."""
        self._take()
        write_json(self.path / "summary.json", summary)
        if status == "finished":
            self.forget_checkpoint()
        run = read_json(self.path / "run.json")
        seconds = (run["seconds"] or 0.0) + time.monotonic() - self._since
        self._note(name=run["name"], started=run["started"], status=status, seconds=round(seconds, 3))
        self.let_go()

    def _note(self, *, name: str, started: str, status: RunStatus, seconds: float | None) -> None:
        run = {"schema": 1, "id": self.id, "name": name, "started": started, "status": status, "seconds": seconds}
        write_json(self.path / "run.json", run)
        Index(self.path.parent).put(row_of(self.path))

    def _take(self) -> None:
        """Become the only process that writes this run; set an old run to running, without an incomplete last row.

        Its summary goes: readers compute one from the rows, which are soon more than those of the summary.
        """
        if self._release is not None:
            return
        lock = take_lock(self.path / "run.lock")
        if lock is None:
            raise RunError(f"run {self.id} is being written by another process; wait for it, or stop it")
        self._release = weakref.finalize(self, os.close, lock)
        self._since = time.monotonic()
        if (self.path / "run.json").exists():
            self._rewrite(self.rows())
            (self.path / "summary.json").unlink(missing_ok=True)
            run = read_json(self.path / "run.json")
            self._note(name=run["name"], started=run["started"], status="running", seconds=run["seconds"])

    def let_go(self) -> None:
        """Let other processes write this run. One that is neither finished nor failed counts as interrupted."""
        if self._release is not None:
            self._release()
            self._release = None


def file_stem(method: str, seed: int) -> str:
    """Return the beginning of the names of files about one method with one seed.

    >>> file_stem("virtual,exponent=n/N", 0)
    'virtual,exponent=n%2FN-seed0'
    """
    return f"{method.replace('/', '%2F')}-seed{seed}"


def _arrays(tensors: _Tensors) -> dict[str, NDArray[Any]]:
    """Return numpy arrays on the CPU in C order; torch tensors are recognised by their `detach`."""
    plain = {n: x.detach().cpu().numpy() if hasattr(x, "detach") else np.asarray(x) for n, x in tensors.items()}
    return {name: np.asarray(array, order="C") for name, array in plain.items()}


def _save(path: Path, arrays: dict[str, NDArray[Any]], metadata: dict[str, str]) -> None:
    from safetensors.numpy import save_file

    with replacing(path) as temporary:
        save_file(arrays, temporary, metadata=metadata)


def _digest(arrays: Mapping[str, NDArray[Any]], text: str) -> str:
    """Return the BLAKE2b-256 digest, in hex, of the state and of every array's name, type, shape and bytes."""
    digest = hashlib.blake2b(text.encode(), digest_size=32)
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"\n{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.data.cast("B") if array.size else b"")
    return digest.hexdigest()
