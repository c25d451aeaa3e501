"""`fedpeer new`: a folder with data, a federation file and a notebook that run at once, to be changed step by step.

The texts are in `templates/`: a folder for each template, and the notebook of all, since what is learned stands in the
federation file. The data come with scikit-learn and are written here.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpeer.config.problems import ConfigError, ConfigProblem

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Folders of texts, in which NAME is the federation's name.
_TEXTS = Path(__file__).parent / "templates"
_HOSPITALS = ("north", "northeast", "east", "southeast", "south", "southwest", "west", "northwest")


def new(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder.", show_default=False)],
    template: Annotated[
        str, typer.Option(help="What to begin with: table, images, or module.", metavar="NAME")
    ] = "table",
) -> None:
    """Make a folder with data, federation file, notebook and README, which runs at once."""
    problems = []
    if template not in _TEMPLATES:
        known = ", ".join(_TEMPLATES)
        problems.append(ConfigProblem((), f'there is no template "{template}"; choose one of {known}', "--template"))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        problems.append(ConfigProblem((), f"{folder} exists already; choose another folder", "FOLDER"))
    if problems:
        raise ConfigError("the command line", problems, ", so nothing was written")
    try:
        _make(folder, template)
    except OSError as error:
        problem = ConfigProblem((), f"{folder} cannot be written ({error.strerror}); choose another folder", "FOLDER")
        raise ConfigError("the command line", [problem]) from None
    print("\n".join([f"{folder} has all that is needed:", "", *_listed(folder, template), "", *_next(folder)]))


def _make(folder: Path, template: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    called = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or "federation"
    for file in [_TEXTS / "explore.ipynb", *(_TEXTS / template).iterdir()]:
        if file.is_file():
            (folder / file.name).write_text(file.read_text(encoding="utf-8").replace("NAME", called), encoding="utf-8")
    write_data, _ = _TEMPLATES[template]
    write_data(folder)


def _listed(folder: Path, template: str) -> list[str]:
    """Return a line for each file and folder that was made."""
    rows = [
        ("README.md", "what it is, and how to put your own in its place"),
        ("federation.yaml", "what is learned, and how"),
        *_TEMPLATES[template][1],
        ("explore.ipynb", "the same in a notebook"),
    ]
    width = max(len(name) for name, _ in rows)
    return [f"  {name:<{width}}  {words}" for name, words in rows]


def _next(folder: Path) -> list[str]:
    return ["Begin with:", "", f"  cd {shlex.quote(str(folder))}", "  fedpeer simulate --config federation.yaml"]


# ------------------------------------------------------------------------------------------------------------ the data


def _write_table(folder: Path) -> None:
    """Write `patients.csv`, with all rows and their hospital, and `hospitals/1.csv` ..., each without the column."""
    import csv

    import numpy as np
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer()
    columns = [str(name).replace(" ", "_") for name in found.feature_names]
    # Equal parts of the rows, by the symmetry of their cells: what differs between the hospitals is whom they see.
    order = np.argsort(found.data[:, columns.index("mean_symmetry")], kind="stable")
    hospital_N = np.empty(len(order), dtype=np.int64)
    hospital_N[order] = np.arange(len(order)) * len(_HOSPITALS) // len(order)
    # Half of the rows go to any of them, so that each sees some of all.
    mixed = np.random.default_rng(0)
    moved_N = mixed.random(len(order)) < 1 / 2
    hospital_N[moved_N] = mixed.integers(len(_HOSPITALS), size=int(moved_N.sum()))

    def write(path: Path, rows: NDArray[np.int64], *, named: bool) -> None:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow([*columns, *(["hospital"] if named else []), "diagnosis"])
            for row in rows:
                own = [_HOSPITALS[hospital_N[row]]] if named else []
                writer.writerow([*found.data[row], *own, found.target_names[found.target[row]]])

    write(folder / "patients.csv", np.arange(len(order)), named=True)
    (folder / "hospitals").mkdir()
    for number in range(len(_HOSPITALS)):
        write(folder / "hospitals" / f"{number + 1}.csv", np.flatnonzero(hospital_N == number), named=False)


def _write_images(folder: Path) -> None:
    """Write `pictures/0/0001.png` ..., 8 by 8 pixels in 256 shades of grey."""
    from PIL import Image
    from sklearn.datasets import load_digits

    found = load_digits()
    for number, (image, digit) in enumerate(zip(found.images, found.target, strict=True), start=1):
        path = folder / "pictures" / str(digit) / f"{number:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * (255 / 16)).round().astype("uint8")).save(path)


#: Name -> what writes the data, and lines about the files that only this template has.
_TEMPLATES: dict[str, tuple[Callable[[Path], None], list[tuple[str, str]]]] = {
    "table": (
        _write_table,
        [("patients.csv", "569 rows of eight hospitals"), ("hospitals", "the same, a table for each, for real peers")],
    ),
    "images": (_write_images, [("pictures", "a folder of images for each class")]),
    "module": (
        _write_table,
        [
            ("nets.py", "the network, plain PyTorch"),
            ("patients.csv", "569 rows of eight hospitals"),
            ("hospitals", "the same, a table for each, for real peers"),
        ],
    ),
}
