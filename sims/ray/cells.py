"""The cells of one simulation as whole runs on a cluster, each in a folder of its own until all are finished.

A finished cell is copied into the simulation's folder at once, in any order. An interrupted one keeps its own folder
(in `cells/`), from which it is resumed.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Collection, Sequence

from fedpeer.config.choice import parse_choice
from fedpeer.runs.disk import read_json
from fedpeer.runs.folder import RunFolder
from fedpeer.runs.index import folders
from fedpeer.sims.events import MethodDone, Remark, SimulationEvent, SimulationStarted
from fedpeer.sims.ray.cluster import Cluster
from fedpeer.sims.ray.remote_run import RemoteRun, Simulate
from fedpeer.sims.ray.sweep import Sweep
from fedpeer.sims.record import CELLS
from fedpeer.sims.request import MethodSeed
from fedpeer.sims.simulation import Simulation


def run_cells(
    simulation: Simulation,
    cluster: Cluster,
    run: RunFolder,
    cells: Sequence[MethodSeed],
    done: Collection[MethodSeed],
    on_event: Callable[[SimulationEvent], None],
    stop: threading.Event,
    simulate: Simulate,
    *,
    unsaid: Collection[str] = (),
) -> bool:
    """Run these cells, or the rest of them.

    Args:
        done: cells that the run's folder already contains.
        simulate: runs a prepared simulation.
        unsaid: remarks of cells that are not passed on.

    Returns:
        Whether all are finished; False if `stop` was set meanwhile.

    Raises:
        EngineError, DataError, ChoiceError: as `Sweep` does.
    """
    run.truncate(lambda row: (row["method"], row["seed"]) in done)
    run.forget_checkpoint()
    parts = _parts(run)
    # Many remarks are the same in all cells, such as repairs of a split; each is passed on once.
    remarks = {*simulation.world.split.remarks, *unsaid}

    def received(remote_run: RemoteRun, event: SimulationEvent) -> None:
        match event:
            case SimulationStarted():
                return
            case Remark(text=text) if text in remarks:
                return
            case Remark(text=text):
                remarks.add(text)
        on_event(event)

    left = list(cells)

    def add(cell: MethodSeed, part: RunFolder) -> None:
        parts[cell] = part
        if part.status == "finished":
            _take_over(run, part, cell)
            left.remove(cell)
            on_event(MethodDone(method=cell.method, seed=cell.seed))

    for cell in cells:
        if cell in parts:
            add(cell, parts[cell])
    with Sweep(cluster, simulation.request.workers or 1, received, stop, simulate, simulation.objects) as sweep:
        for cell in left:
            part = parts.get(cell)
            sweep.begin(
                RemoteRun(
                    key=f"{cell.method} {cell.seed}",
                    name=f"{cell.method}, seed {cell.seed}",
                    request=simulation.request.alone(parse_choice(cell.method), cell.seed),
                    begun=None if part is None else (part.id, part.files()),
                    notes={"cell": {"cell": [*cell]}},
                )
            )
        while some := sweep.finished():
            for remote_run, files in some:
                add(remote_run.request.only, RunFolder.adopt(run.path / CELLS, *files))
    _arrange(run, simulation.cells, parts)
    return not left


def _parts(run: RunFolder) -> dict[MethodSeed, RunFolder]:
    """Return the folders of cells from earlier calls."""
    found = {}
    for path in folders(run.path / CELLS).values():
        part = RunFolder(path)
        found[MethodSeed(*(part.read("cell") or {})["cell"])] = part
    return found


def _take_over(run: RunFolder, part: RunFolder, cell: MethodSeed) -> None:
    """Copy the models and rows of a finished cell. The rows come last, since they show that it is finished."""
    from safetensors.numpy import load_file

    stored = part.models(*cell)
    saved = run.save_models(*cell, load_file(stored), read_json(stored.with_suffix(".json")))
    for path in stored.parent.iterdir():
        if path.name not in (saved.name, saved.with_suffix(".json").name):
            shutil.copyfile(path, saved.with_name(path.name))
    for row in part.rows():
        run.record(row)
    part.forget_models()


def _arrange(run: RunFolder, order: Sequence[MethodSeed], parts: dict[MethodSeed, RunFolder]) -> None:
    """Arrange the run's folder as if the cells had run one after the other."""
    place = {cell: number for number, cell in enumerate(order)}
    run.arrange(lambda row: (place[MethodSeed(row["method"], row["seed"])], row["round"]))
    for cell in sorted(parts, key=place.__getitem__):
        for name in ("relations", "answers"):
            found = parts[cell].read(name)
            if found is not None:
                run.describe(name, (run.read(name) or {}) | found)
