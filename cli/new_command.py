"""`fedpeer new`: a folder with data, a federation file and a notebook that run at once, to be changed step by step.

The texts are in `templates/`: a folder for each template, and one notebook for all, since the federation file says what
is learned. `new_data.py` writes the data.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from fedpeer.cli import new_data
from fedpeer.config.problems import ConfigError, ConfigProblem

#: Folders of texts, in which NAME is the federation's name.
_TEXTS = Path(__file__).parent / "templates"


def new(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder.", show_default=False)],
    template: Annotated[
        str, typer.Option(help="What to begin with: table, images, module, text, or flights.", metavar="NAME")
    ] = "table",
) -> None:
    """Make a folder with data, federation file, notebook and README, which runs at once."""
    problems = []
    if template not in _TEMPLATES:
        known = ", ".join(_TEMPLATES)
        problems.append(ConfigProblem((), f'there is no template "{template}"; choose one of {known}', "--template"))
    elif absent := _absent(_TEMPLATES[template].source):
        problems.append(ConfigProblem((), absent, "--template"))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        problems.append(ConfigProblem((), f"{folder} exists already; choose another folder", "FOLDER"))
    if problems:
        raise ConfigError("the command line", problems, ", so nothing was written")
    try:
        _make(folder, template)
    except OSError as error:
        problem = ConfigProblem((), f"{folder} cannot be written ({error.strerror}); choose another folder", "FOLDER")
        raise ConfigError("the command line", [problem]) from None
    print("\n".join([f"{folder} has all that is needed:", "", *_listed(template), "", *_next(folder)]))


def _absent(source: str | None) -> str:
    """Return why the data set of a template is not available here, or ""."""
    if source is None:
        return ""
    from fedpeer.data.registry import SOURCES
    from fedpeer.data.store import no_package

    return "" if SOURCES[source].here else str(no_package(SOURCES[source]))


def _make(folder: Path, template: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    called = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or "federation"
    for file in [_TEXTS / "explore.ipynb", *(_TEXTS / template).iterdir()]:
        if file.is_file():
            (folder / file.name).write_text(file.read_text(encoding="utf-8").replace("NAME", called), encoding="utf-8")
    _TEMPLATES[template].write(folder)


def _listed(template: str) -> list[str]:
    """Return a line for each file and folder that was made."""
    rows = [
        ("README.md", "what it is, and how to put your own in its place"),
        ("federation.yaml", "what is learned, and how"),
        *_TEMPLATES[template].listed,
        ("explore.ipynb", "the same in a notebook"),
    ]
    width = max(len(name) for name, _ in rows)
    return [f"  {name:<{width}}  {words}" for name, words in rows]


def _next(folder: Path) -> list[str]:
    return ["Begin with:", "", f"  cd {shlex.quote(str(folder))}", "  fedpeer simulate --config federation.yaml"]


@dataclass(frozen=True)
class _Template:
    """Data of a template, and files that only it has.

    write     writes its data into the folder
    listed    name and description of each file and folder that only this template has
    source    the data set that it needs, which may not be there; None: it needs none
    """

    write: Callable[[Path], None]
    listed: tuple[tuple[str, str], ...]
    source: str | None = None


_TABLES = (("patients.csv", "569 rows of eight hospitals"), ("hospitals", "the same, a table for each, for real peers"))
_TEMPLATES: dict[str, _Template] = {
    "table": _Template(new_data.write_table, _TABLES),
    "images": _Template(new_data.write_images, (("pictures", "a folder of images for each class"),)),
    "module": _Template(new_data.write_table, (("nets.py", "the network, plain PyTorch"), *_TABLES)),
    "text": _Template(
        new_data.write_texts,
        (
            ("adapters.yaml", "the same with adapters beside a network that is trained already"),
            ("characters.py", "how a text becomes examples"),
            ("texts", "a text of each peer"),
            ("common", "texts for the common network"),
        ),
    ),
    "flights": _Template(
        new_data.write_flights,
        (
            ("crossed.yaml", "the same with slices by airline and by airport"),
            ("airlines", "a table for each airline at an airport, for real peers"),
        ),
        source="flights",
    ),
}
