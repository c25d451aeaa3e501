"""Plays an experiment's cells one after the other, and keeps what is finished.

Each cell and seed is a run with a folder of its own under `experiments/NAME-SIZE/`, which knows by the digest of its
request what it is for. So a second call finds what is finished, goes on with what was interrupted, and plays only what
is new: more seeds, another cell. A cell whose definition has changed is another request, and is played again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedpeer.data.dataset import DataError, Dataset
from fedpeer.data.registry import describe
from fedpeer.peer.core.choice import Choice
from fedpeer.peer.core.methods import method_of
from fedpeer.peer.device import device_of
from fedpeer.peer.holdings import load_dataset
from fedpeer.runs.disk import read_json, write_json
from fedpeer.runs.environment import environment
from fedpeer.runs.folder import RunFolder
from fedpeer.runs.index import folders
from fedpeer.sims.events import Event
from fedpeer.sims.experiments.experiment import Cell, Experiment, Size, SizeName
from fedpeer.sims.experiments.results import Measured, Results, validation_score
from fedpeer.sims.experiments.table import page_data
from fedpeer.sims.prepare import prepare
from fedpeer.sims.record import begin
from fedpeer.sims.request import SimulationRequest, cores
from fedpeer.sims.simulate import simulate

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Begun:
    """An experiment begins: how many runs it has in all, and how many of them are finished already."""

    runs: int
    finished: int


@dataclass(frozen=True, kw_only=True)
class CellBegun:
    """A run of a cell begins. `what` says which: a seed, or a variant that is tried."""

    label: str
    what: str
    rounds: int


@dataclass(frozen=True, kw_only=True)
class CellDone:
    """All runs of a cell are finished."""

    measured: Measured


Tell = Callable[[Begun | CellBegun | CellDone | Event], None]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is played, where and with what.

    seeds     in place of the size's own
    only      labels of cells; none: all
    command   repeats it, for the page
    """

    experiment: Experiment
    size_name: SizeName
    root: Path
    seeds: int | None = None
    only: tuple[str, ...] = ()
    device: str = "auto"
    workers: int | None = None
    command: str = ""

    @property
    def size(self) -> Size:
        size = self.experiment.sizes[self.size_name]
        return size if self.seeds is None else replace(size, seeds=self.seeds)

    @property
    def folder(self) -> Path:
        return folder_of(self.root, self.experiment.name, self.size_name)

    @property
    def cells(self) -> tuple[Cell, ...]:
        return self.experiment.cells(self.size)


def folder_of(root: Path, name: str, size: SizeName) -> Path:
    """Where the runs and the page of an experiment are."""
    return root / "experiments" / f"{name}-{size}"


def chosen(asked: Asked) -> tuple[Cell, ...]:
    """The cells that are asked for, all their algorithms and settings known, and the data here.

    Raises:
        DataError: data is missing, or no cell has that label; ChoiceError: an algorithm is not known.
    """
    known = {cell.label: cell for cell in asked.cells}
    unknown = [label for label in asked.only if label not in known]
    if unknown:
        raise DataError(f'{asked.experiment.name} has no cell "{unknown[0]}"; it has: {"; ".join(known)}')
    cells = tuple(cell for label, cell in known.items() if label in asked.only or not asked.only)
    requests = [request for cell in cells for request in cell.variants.values()]
    for name in dict.fromkeys(request.federation.simulation.dataset.name for request in requests):
        if not describe(name).here:
            raise DataError(
                f"{name} is not on this machine, and {asked.experiment.name} needs it; see fedpeer data prepare {name}"
            )
    for request in requests:
        for method in request.methods:
            method_of(method)
    return cells


def carry_out(asked: Asked, tell: Tell = lambda event: None, stop: threading.Event | None = None) -> bool:
    """Play what is not finished yet; after each cell `results.json` has what is known.

    Returns:
        Whether all that was asked for is finished now; False if `stop` was set meanwhile.

    Raises:
        DataError, ChoiceError, ...: the user's mistakes, before anything is played, or that only the data shows.
    """
    return _Player(asked, tell, stop or threading.Event()).play()


def found(asked: Asked) -> Results:
    """The finished cells, from the folder alone."""
    return _Player(asked, lambda event: None, threading.Event()).known()


class _Player:
    def __init__(self, asked: Asked, tell: Tell, stop: threading.Event) -> None:
        self.asked, self.tell, self.stop = asked, tell, stop
        self.runs = dict(_runs(asked.folder))
        self.data: tuple[Choice, Dataset] | None = None

    def play(self) -> bool:
        cells = chosen(self.asked)
        runs = sum(len(self._searched(cell)) + self.asked.size.seeds for cell in cells)
        finished = sum(
            self._rows(digest_of(request)) is not None for cell in cells for _, request in self._runs_of(cell)
        )
        self.tell(Begun(runs=runs, finished=finished))
        for cell in cells:
            # Once for the runs that choose a variant, and once more for that variant's own.
            for _ in range(2):
                for what, request in self._runs_of(cell):
                    if not self._played(cell.label, what, request):
                        return False
            measured = self._measured(cell)
            assert measured is not None, "all its runs are finished"
            self._write()
            self.tell(CellDone(measured=measured))
        return True

    def known(self) -> dict[str, Measured]:
        """The finished cells by label."""
        every = {cell.label: self._measured(cell) for cell in self.asked.cells}
        return {label: measured for label, measured in every.items() if measured is not None}

    def _runs_of(self, cell: Cell) -> list[tuple[str, SimulationRequest]]:
        """All its runs as far as they are known: those of the seeds are once a variant is chosen."""
        variant = self._variant(cell)
        seeds = () if variant is None else _single(cell.variants[variant])
        return [*self._searched(cell), *((f"seed {seed}", request) for seed, request in seeds)]

    def _searched(self, cell: Cell) -> list[tuple[str, SimulationRequest]]:
        """The runs by which a variant is chosen, if there is a choice."""
        size = self.asked.size
        if not size.searches or len(cell.variants) == 1:
            return []
        return [
            (f"trying {variant}", one)
            for variant in cell.variants
            for _, one in _single(cell.searching(variant, size.search_seeds))
        ]

    def _tried(self, cell: Cell) -> dict[str, float] | None:
        """The variants' scores on what was kept back; None while some are missing."""
        if not self._searched(cell):
            return {}
        scores = {}
        for variant in cell.variants:
            rows = self._all_rows(cell.searching(variant, self.asked.size.search_seeds))
            if rows is None:
                return None
            scores[variant] = validation_score(rows, cell.judged)
        return scores

    def _variant(self, cell: Cell) -> str | None:
        """That which is taken: the best of those tried, the first of equals."""
        scores = self._tried(cell)
        if scores is None:
            return None
        return max(scores, key=scores.__getitem__) if scores else next(iter(cell.variants))

    def _measured(self, cell: Cell) -> Measured | None:
        scores, variant = self._tried(cell), self._variant(cell)
        rows = None if variant is None else self._all_rows(cell.variants[variant])
        if scores is None or variant is None or rows is None:
            return None
        seconds = sum(_seconds(self.runs[digest_of(request)]) for _, request in self._runs_of(cell))
        return Measured.of(cell.label, rows, variant=variant, tried=scores, seconds=seconds)

    def _all_rows(self, request: SimulationRequest) -> Rows | None:
        """The rows of all its seeds; None while some are missing."""
        every: list[Mapping[str, Any]] = []
        for _, one in _single(request):
            rows = self._rows(digest_of(one))
            if rows is None:
                return None
            every += rows
        return every

    def _rows(self, digest: str) -> Rows | None:
        """What a finished run measured."""
        run = self.runs.get(digest)
        return run.rows() if run is not None and run.status == "finished" else None

    def _played(self, label: str, what: str, request: SimulationRequest) -> bool:
        """Play a run, or the rest of it; False if it was stopped."""
        digest = digest_of(request)
        run = self.runs.get(digest)
        if run is not None and run.status == "finished":
            return True
        if self.stop.is_set():
            return False
        self.tell(CellBegun(label=label, what=what, rounds=request.federation.learning.rounds))
        asked = replace(request, device=self.asked.device, workers=self.asked.workers)
        simulation = prepare(asked, dataset=self._dataset(request.federation.simulation.dataset))
        if run is None:
            run = begin(self.asked.folder, simulation, self.asked.command)
            run.describe("cell", {"digest": digest, "label": label, "what": what})
            self.runs[digest] = run
        simulate(simulation, run, self.tell, self.stop)
        shutil.rmtree(run.path / "models", ignore_errors=True)  # gigabytes in some, and no table looks at them
        return run.status == "finished"

    def _dataset(self, choice: Choice) -> Dataset:
        """Loaded once for neighbouring cells."""
        if self.data is None or self.data[0] != choice:
            self.data = (choice, load_dataset(choice))
        return self.data[1]

    def _write(self) -> None:
        where = {
            "command": self.asked.command,
            "environment": environment(device_of(self.asked.device)),
            "workers": self.asked.workers or cores(),
        }
        data = page_data(
            self.asked.experiment, self.asked.size, self.asked.size_name, self.asked.cells, self.known(), where
        )
        write_json(self.asked.folder / "results.json", data)


def digest_of(request: SimulationRequest) -> str:
    """What a run is for: all of its request but where it is played."""
    asked = request.to_json()
    del asked["device"], asked["workers"]
    return hashlib.blake2b(json.dumps(asked, sort_keys=True).encode(), digest_size=16).hexdigest()


def _single(request: SimulationRequest) -> Iterator[tuple[int, SimulationRequest]]:
    """One request a seed."""
    yield from ((seed, replace(request, seeds=(seed,))) for seed in request.seeds)


def _runs(folder: Path) -> Iterator[tuple[str, RunFolder]]:
    """The runs that are there by what they are for; a killed process may have left one that says nothing."""
    for path in folders(folder).values():
        run = RunFolder(path)
        cell = run.read("cell")
        if cell is not None:
            yield cell["digest"], run


def _seconds(run: RunFolder) -> float:
    return float(read_json(run.path / "run.json")["seconds"] or 0.0)
