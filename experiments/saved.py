"""Pages written earlier (`fedpeer experiment report --to DIR`), read again from their numbers.

So pages of several days or machines can be put on one page. Claims are checked again on their numbers if the experiment
still has the same cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedpeer.experiments.experiment import SizeName
from fedpeer.experiments.registry import experiment
from fedpeer.experiments.results import Measured
from fedpeer.experiments.table import judged, stem_of, table_page
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
    return {**data, "claims": _claims_of(data)}


def _claims_of(data: dict[str, Any]) -> list[dict[str, Any]]:
    today = experiment(data["name"])
    labels = [cell.label for cell in today.cells(today.sizes[data["size"]])]
    if labels != data["cells"]:
        claims: list[dict[str, Any]] = data["claims"]
        return claims
    results = {each["label"]: Measured.from_json(each) for each in data["measured"]}
    return judged(today, data["size"], labels, results)
