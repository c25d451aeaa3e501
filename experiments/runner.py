"""Runs an experiment's cells, here or on a cluster, and keeps finished runs.

Each cell and seed is a run with a folder of its own under `experiments/NAME-SIZE/`, which records its request. So a
second call finds finished runs, resumes interrupted ones, and runs only what is new: more seeds, another cell. A cell
whose definition has changed is another request, and runs again; a setting that a later version adds changes nothing, as
recorded requests are read with that setting's default.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

from fedpeer.config.federation import Federation
from fedpeer.config.methods import method_of
from fedpeer.config.problems import ConfigError
from fedpeer.config.rules import SPREAD, Combination
from fedpeer.data.dataset import DataError
from fedpeer.data.registry import describe_dataset
from fedpeer.experiments.events import Begun, CellDone
from fedpeer.experiments.executors import Executor, OnExperimentEvent, WantedRun, Where, executor_for
from fedpeer.experiments.experiment import Cell, Experiment, RunSize, SizeName, stem
from fedpeer.experiments.moments import read_at
from fedpeer.experiments.results import CellResults, Measured, validation_score
from fedpeer.experiments.table import page_data
from fedpeer.learning.device import device_of
from fedpeer.runs.disk import read_json, write_json
from fedpeer.runs.environment import environment, source_commit
from fedpeer.runs.folder import RunFolder
from fedpeer.runs.index import folders
from fedpeer.sims.checks import check_combination
from fedpeer.sims.ray.options import check_ray
from fedpeer.sims.request import SimulationRequest, cores

_Rows = Sequence[Mapping[str, Any]]


#: File in an experiment's folder with its page's data.
RESULTS = "results.json"
#: Sentence on the page of a size whose search was left out.
_UNSEARCHED = "No search: where none is shown below, a method has those that an earlier search found, or its first."


@dataclass(frozen=True, kw_only=True)
class ExperimentOptions:
    """Options of a run of an experiment.

    experiment   the experiment
    size_name    its size
    root         folder of all runs
    seeds        number of seeds; None: the size's own
    search       whether to search variants if the size does; if not, a finished search's result is taken, or else
                 `Cell.unsearched`
    only         labels of cells; empty: all
    overrides    settings that the paper leaves open, in place of the experiment's own
    device       where to train, such as "cpu" or "auto"
    workers      training processes per run; None: the default
    cluster      address of a Ray cluster for the runs, "" for a new one on this machine, None for this process
    command      command line that repeats it, for the page
    """

    experiment: Experiment
    size_name: SizeName
    root: Path
    seeds: int | None = None
    search: bool = True
    only: tuple[str, ...] = ()
    overrides: Mapping[str, str] = field(default_factory=dict)
    device: str = "auto"
    workers: int | None = None
    cluster: str | None = None
    command: str = ""

    @cached_property
    def size(self) -> RunSize:
        size = self.experiment.sizes[self.size_name]
        if size.searches and not self.search:
            size = replace(size, searches=False, differs=f"{size.differs} {_UNSEARCHED}".strip())
        if self.overrides:
            chosen = ", ".join(f"{name} {value}" for name, value in self.overrides.items())
            differs = f"{size.differs} Chosen otherwise: {chosen}.".strip()
            size = replace(size, overrides=self.overrides, differs=differs)
        return size if self.seeds is None else replace(size, seeds=self.seeds)

    @property
    def folder(self) -> Path:
        return folder_of(self.root, self.experiment.name, self.size_name, self.overrides)

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        return self.experiment.cells(self.size)


def folder_of(root: Path, name: str, size: SizeName, overrides: Mapping[str, str] | None = None) -> Path:
    """Return the folder of an experiment's runs and page."""
    return root / "experiments" / stem(name, size, overrides or {})


def played(root: Path, name: str, size: SizeName) -> list[Path]:
    """Return the folders of an experiment that have results, including those with overridden settings."""
    own = folder_of(root, name, size)
    return [path for path in (own, *sorted(own.parent.glob(f"{own.name}-*"))) if (path / RESULTS).exists()]


def kept_page(folder: Path) -> dict[str, Any]:
    """Return the page's data from an experiment's folder that has results."""
    data: dict[str, Any] = read_json(folder / RESULTS)
    return data


def _chosen_cells(options: ExperimentOptions) -> tuple[Cell, ...]:
    """Return the wanted cells, after checking their algorithms, the cluster, and that the data are on this machine.

    Raises:
        DataError: data are missing, or no cell has that label.
        ChoiceError: an algorithm is unknown, or the cluster cannot be used.
    """
    if options.cluster is not None:
        check_ray(options.cluster)
        check_combination(Combination(federation=Federation(), methods=(), engine=SPREAD, device=options.device))
    known = {cell.label: cell for cell in options.cells}
    unknown = [label for label in options.only if label not in known]
    if unknown:
        raise DataError(f'{options.experiment.name} has no cell "{unknown[0]}"; it has: {"; ".join(known)}')
    cells = tuple(cell for label, cell in known.items() if label in options.only or not options.only)
    requests = [request for cell in cells for request in cell.variants.values()]
    for name in dict.fromkeys(request.federation.simulation.dataset.name for request in requests):
        if not describe_dataset(name).here:
            raise DataError(
                f"{name} is not on this machine, and {options.experiment.name} needs it; "
                f"see fedpeer data prepare {name}"
            )
    for request in requests:
        for method in request.methods:
            method_of(method)
    return cells


def run_experiment(
    options: ExperimentOptions, on_event: OnExperimentEvent = lambda event: None, stop: threading.Event | None = None
) -> bool:
    """Run what is not finished yet; `results.json` is rewritten after each cell.

    Returns:
        Whether everything is finished; False if `stop` was set before that.

    Raises:
        DataError, ChoiceError, ...: a mistake of the user, before anything runs, or once the data are loaded.
    """
    return _Player(options, on_event, stop or threading.Event()).play()


def found(options: ExperimentOptions) -> CellResults:
    """Return the finished cells, from the folder only."""
    return _Player(options, lambda event: None, threading.Event()).known()


def refresh(experiment: Experiment, root: Path, sizes: Sequence[SizeName]) -> None:
    """Rewrite the pages of an experiment that summarizes others; do nothing for any other experiment.

    The pages are those of the largest size at which any summarized experiment was run, and of sizes that have a page
    already. `sizes` are in ascending order.
    """
    pages = {size: _pages(root, experiment.reads, size) for size in sizes}
    largest = [size for size in sizes if pages[size]][-1:]
    for size in sizes:
        own = _pages(root, (experiment.name,) if experiment.reads else (), size)
        if size not in largest and not own:
            continue
        option = "" if size == "default" else f" --{size}"
        command = f"fedpeer experiment run {experiment.name}{option}"
        player = _Player(
            ExperimentOptions(experiment=experiment, size_name=size, root=root, command=command),
            lambda event: None,
            threading.Event(),
        )
        if player.known():
            made = kept_page((pages[size] or own)[0])
            player.write({"environment": made["environment"], "workers": made["workers"]})


def _pages(root: Path, names: Sequence[str], size: SizeName) -> list[Path]:
    """Return the folders of those experiments that have results at that size."""
    paths = [folder_of(root, name, size) for name in names]
    return [path for path in paths if (path / RESULTS).exists()]


class _Player:
    def __init__(self, options: ExperimentOptions, on_event: OnExperimentEvent, stop: threading.Event) -> None:
        self.options, self.on_event, self.stop = options, on_event, stop
        self.runs = dict(_runs(options.folder))
        self.measured: dict[str, _Rows] = {}
        self.elsewhere: dict[str, str] = {}
        for name, digest, run in _played_elsewhere(options):
            if self._rows(digest) is None:
                self.runs[digest], self.elsewhere[digest] = run, name
        self.cells_of = Counter(digest for cell in options.cells for digest in self._all_digests(cell))
        self.finished: dict[str, Measured] = {}

    def play(self) -> bool:
        cells, options = _chosen_cells(self.options), self.options
        runs = {digest for cell in cells for digest in self._digests(cell)}
        finished = sum(self._rows(digest) is not None for digest in runs)
        where = Where(
            root=options.folder,
            device=options.device,
            workers=options.workers,
            cluster=options.cluster,
            command=options.command,
        )
        with executor_for(where, self.on_event, self.stop) as players:
            self.on_event(Begun(runs=len(runs), finished=finished, at_once=players.at_once))
            return self._play({cell.label: cell for cell in cells}, players)

    def _play(self, left: dict[str, Cell], players: Executor) -> bool:
        """Run these cells: for each cell first the runs that choose a variant, then that variant's own."""
        awaited: dict[str, set[str]] = {}
        begun: set[str] = set()
        while True:
            for cell in list(left.values()):
                if awaited.get(cell.label) or not players.free:
                    continue
                unfinished = self._unfinished(cell)
                if not unfinished:
                    del left[cell.label]
                    self._write()
                    self.on_event(CellDone(measured=self.finished[cell.label]))
                awaited[cell.label] = {wanted.digest for wanted in unfinished}
                for wanted in unfinished:
                    if wanted.digest not in begun:
                        begun.add(wanted.digest)
                        players.begin(wanted)
            played = players.finished() if left else {}
            if not played:
                self._write()
                return not left
            self.runs.update(played)
            for digests in awaited.values():
                digests.difference_update(played)

    def _unfinished(self, cell: Cell) -> list[WantedRun]:
        """Return a cell's known runs that are not finished."""
        return [
            WantedRun(digest=digest, label=cell.label, what=what, request=request, folder=self.runs.get(digest))
            for what, request in self._runs_of(cell)
            if self._rows(digest := request_digest(request)) is None
        ]

    def _digests(self, cell: Cell) -> list[str]:
        """Return the digest of each of a cell's runs; a placeholder for seeds of a variant that is not chosen yet."""
        known = [request_digest(request) for _, request in self._runs_of(cell)]
        if self._variant(cell) is not None:
            return known
        # Where all runs hold examples out, a trial is the variant's own run with that seed.
        coming = [seed for seed, one in _single(cell.variants[cell.unsearched]) if request_digest(one) not in known]
        return known + [f"{cell.label} {seed}" for seed in coming]

    def _all_digests(self, cell: Cell) -> set[str]:
        """Return the digests of all runs that a cell may need."""
        seeds = {request_digest(one) for request in cell.variants.values() for _, one in _single(request)}
        return seeds.union(request_digest(one) for _, one in self._searched(cell))

    def known(self) -> dict[str, Measured]:
        """Return the cells that have a finished seed, by label."""
        known = {}
        for cell in self.options.cells:
            measured = self.finished.get(cell.label) or self._measured(cell)
            if measured is not None:
                known[cell.label] = measured
                if len(measured.seeds) == len(cell.variants[measured.variant].seeds):
                    self.finished[cell.label] = measured
        return known

    def _runs_of(self, cell: Cell) -> list[tuple[str, SimulationRequest]]:
        """Return a cell's known runs, by name; those of the seeds are known once a variant is chosen."""
        variant = self._variant(cell)
        seeds = () if variant is None else _single(cell.variants[variant])
        return [*self._searched(cell), *((f"seed {seed}", request) for seed, request in seeds)]

    def _searched(self, cell: Cell) -> list[tuple[str, SimulationRequest]]:
        """Return the runs that choose a variant, if there is a choice; without a search, only if all are finished."""
        size = self.options.size
        if len(cell.variants) == 1:
            return []
        trials = [
            (f"trying {variant}" + (f", part {fold} of {cell.folds}" if cell.folds > 1 else ""), one)
            for variant in cell.variants
            for fold, request in enumerate(cell.searching(variant, size.search_seeds), 1)
            for _, one in _single(request)
        ]
        whole = size.searches or all(self._rows(request_digest(one)) is not None for _, one in trials)
        return trials if whole else []

    def _tried(self, cell: Cell) -> dict[str, float] | None:
        """Return the variants' validation scores, or None while some are missing."""
        if not self._searched(cell):
            return {}
        scores = {}
        for variant in cell.variants:
            parts = [self._all_rows(each) for each in cell.searching(variant, self.options.size.search_seeds)]
            known = [rows for rows in parts if rows is not None]
            if len(known) < len(parts):
                return None
            scores[variant] = validation_score([row for rows in known for row in rows], cell.judged)
        return scores

    def _variant(self, cell: Cell) -> str | None:
        """Return the chosen variant: the best by validation score, the first of equals; None while unknown."""
        scores = self._tried(cell)
        if scores is None:
            return None
        return max(scores, key=scores.__getitem__) if scores else cell.unsearched

    def _measured(self, cell: Cell) -> Measured | None:
        """Return the results of a cell's finished seeds, or None before the first."""
        scores, variant = self._tried(cell), self._variant(cell)
        rows = [] if variant is None else self._finished_rows(cell.variants[variant])
        if scores is None or variant is None or not rows:
            return None
        if cell.read is not None:
            rows = read_at(rows, cell.read)
        runs = [digest for digest in self._finished_runs(cell) if digest not in self.elsewhere]
        seconds = sum(_seconds(self.runs[digest]) / self.cells_of[digest] for digest in runs)
        return Measured.of(cell.label, rows, variant=variant, tried=scores, folds=cell.folds, seconds=seconds)

    def _finished_runs(self, cell: Cell) -> list[str]:
        """Return the digests of a cell's finished runs; a run that is a trial and a seed's counts once."""
        digests = dict.fromkeys(request_digest(request) for _, request in self._runs_of(cell))
        return [digest for digest in digests if self._rows(digest) is not None]

    def _all_rows(self, request: SimulationRequest) -> _Rows | None:
        """Return the rows of all seeds of a request, or None while some are missing."""
        finished = [self._rows(request_digest(one)) is not None for _, one in _single(request)]
        return self._finished_rows(request) if all(finished) else None

    def _finished_rows(self, request: SimulationRequest) -> _Rows:
        """Return the rows of a request's finished seeds."""
        return [row for _, one in _single(request) for row in self._rows(request_digest(one)) or ()]

    def _rows(self, digest: str) -> _Rows | None:
        """Return the rows of a finished run, or None; they do not change, so they are read once."""
        run = self.runs.get(digest)
        if digest not in self.measured and run is not None and run.status == "finished":
            self.measured[digest] = run.rows()
        return self.measured.get(digest)

    def _write(self) -> None:
        self.write({"environment": self._environment, "workers": self._workers})

    @property
    def _workers(self) -> int:
        return self.options.workers or (cores() if self.options.cluster is None else 1)

    @cached_property
    def _environment(self) -> dict[str, Any]:
        # Its "git" is of the working folder, which need not be fedpeer's.
        return {**environment(device_of(self.options.device)), "source": source_commit()}

    def write(self, where: Mapping[str, Any]) -> None:
        """Write the page's data; `where` is the environment and workers of its runs."""
        options = self.options
        names = {self.elsewhere.get(digest) for cell in options.cells for digest in self._finished_runs(cell)}
        shared = [name for name in options.experiment.others if name in names]
        made = {"command": options.command, "shared": shared, **where}
        data = page_data(options.experiment, options.size, options.size_name, options.cells, self.known(), made)
        options.folder.mkdir(parents=True, exist_ok=True)
        write_json(options.folder / RESULTS, data)


def request_digest(request: SimulationRequest) -> str:
    """Return the digest of a run's request without device and workers, by which the run is found again."""
    stored = request.to_json()
    del stored["device"], stored["workers"]
    return hashlib.blake2b(json.dumps(stored, sort_keys=True).encode(), digest_size=16).hexdigest()


def _single(request: SimulationRequest) -> Iterator[tuple[int, SimulationRequest]]:
    """Yield each seed with its request."""
    yield from ((seed, replace(request, seeds=(seed,))) for seed in request.seeds)


def _runs(folder: Path) -> Iterator[tuple[str, RunFolder]]:
    """Yield the runs in a folder, by digest; a killed process may have left one without a record, which is skipped."""
    for path in folders(folder).values():
        run = RunFolder(path)
        cell = run.read("cell")
        if cell is None or "asked" not in cell:  # an earlier version did not record it
            continue
        with contextlib.suppress(ConfigError):  # made by a version with other settings
            yield request_digest(SimulationRequest.from_json(cell["asked"])), run


def _played_elsewhere(options: ExperimentOptions) -> Iterator[tuple[str, str, RunFolder]]:
    """Yield the finished runs of experiments that count as this one's: (experiment, digest, run)."""
    for name in options.experiment.others:
        for size in get_args(SizeName):
            for digest, run in _runs(folder_of(options.root, name, size)):
                if run.status == "finished":
                    yield name, digest, run


def _seconds(run: RunFolder) -> float:
    return float(read_json(run.path / "run.json")["seconds"] or 0.0)
