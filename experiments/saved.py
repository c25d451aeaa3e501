"""Pages written earlier (`fedpeer experiment report --to DIR`), read again from their numbers.

So pages of several days or machines can be put on one page. Today's claims are checked on their numbers; if today's
experiment searches settings that were not tried then, the page says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedpeer.experiments.experiment import SizeName
from fedpeer.experiments.registry import experiment
from fedpeer.experiments.results import Measured
from fedpeer.experiments.table import stem_of, table_page
from fedpeer.experiments.verdicts import judged, outdated, unsearched
from fedpeer.runs.disk import RunError, read_json


def saved(folder: Path, names: Sequence[str], sizes: Sequence[SizeName]) -> list[dict[str, Any]]:
    """Return the data of the pages of these experiments and sizes in a folder, in this order.

    Files with other names are ignored.

    Raises:
        RunError: a file has the name of such a page, but is something else.
    """
    stems = [f"{name}-{size}" for name in names for size in sizes]
    paths = [
        path
        for path in sorted(folder.glob("*.json"))
        if any(path.stem == stem or path.stem.startswith(f"{stem}-") for stem in stems)
    ]
    place = {stem: number for number, stem in enumerate(stems)}
    return sorted(map(_page_of, paths), key=lambda data: (place[f"{data['name']}-{data['size']}"], stem_of(data)))


def _page_of(path: Path) -> dict[str, Any]:
    try:
        data: dict[str, Any] = read_json(path)
        table_page(data)
        whole = stem_of(data) == path.stem
    except (KeyError, TypeError, ValueError, AttributeError):
        whole = False
    if not whole:
        raise RunError(
            f"{path} has the name of a page's numbers, but is something else; write it again with fedpeer experiment "
            "report --to, or move it away"
        )
    kept = {name: value for name, value in data.items() if name not in ("outdated", "folds", "folds_today", "one_part")}
    return {**kept, **_of_today(kept)}


def _of_today(data: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a page that follow from its numbers and from today's experiment.

    Notes of an experiment that has other lines or columns today, or searches otherwise, would not be true of these
    numbers, so the page keeps its own.
    """
    today, size = experiment(data["name"]), data["size"]
    results = {each["label"]: Measured.from_json(each) for each in data["measured"]}
    cells = today.cells(today.sizes[size])
    old = outdated(cells, results)
    claims = judged(today, size, data["cells"], results, old, unsearched(cells, results))
    one_part = [
        cell.label
        for cell in cells
        if cell.folds > 1 and (known := results.get(cell.label)) is not None and known.tried and known.folds == 1
    ]
    earlier: dict[str, Any] = {"outdated": old} if old else {}
    earlier |= {"one_part": one_part} if one_part else {}
    shown = [cell.label for cell in cells], list(today.columns)
    same = not earlier and shown == (data["cells"], data["columns"])
    return {"claims": claims, **earlier, **({"notes": today.notes} if same else {})}
