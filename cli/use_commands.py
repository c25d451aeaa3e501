"""`fedpeer evaluate / predict / export`: use trained models."""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO, get_args

import typer

from fedpeer.cli.files import check_writable, runs_folder, writable, write_new_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedpeer.cli.trained import TrainedModels
    from fedpeer.learning.models import Model

#: First characters by which a spreadsheet recognizes a formula, full-width forms included; and numbers, which may begin
#: with + or - and are not formulas.
_FORMULA, _NUMBER = (
    re.compile(r"[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]"),
    re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"),
)
#: Endings of files that are images, and no tables of their pixels.
_IMAGES = (".png", ".jpg", ".jpeg", ".jfif", ".bmp", ".gif", ".tif", ".tiff", ".webp")
#: Standard input, or standard output.
_STREAM = "-"
_Form = Literal["safetensors", "pt2", "onnx", "peft", "hf"]
#: Formats that are folders, and not files.
_FOLDERS = ("peft", "hf")
_Which = Literal["last", "best"]
RUN = "For a run"

_Where = Annotated[
    str, typer.Argument(metavar="MODEL", help="A peer's file or state folder, or a run: its id or folder, or last.")
]
_Method = Annotated[str, typer.Option(metavar="NAME", help="Algorithm that trained it.", rich_help_panel=RUN)]
_Peer = Annotated[
    str | None,
    typer.Option(
        metavar="ID", help="Peer whose model to use, or a user of the data.", rich_help_panel=RUN, show_default=False
    ),
]
_Seed = Annotated[
    int | None,
    typer.Option(metavar="S", help="Seed; default: the run's first.", rich_help_panel=RUN, show_default=False),
]
_Out = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder of runs; default $FEDPEER_RUNS or fedpeer-runs.",
        rich_help_panel=RUN,
        show_default=False,
    ),
]
_Chosen = Annotated[
    _Which | None,
    typer.Option(
        "--model",
        help="The last model, or that of the best round on examples held out for validation; default: best if such "
        "examples were held out.",
        metavar="last|best",
        show_default=False,
    ),
]
_Allow = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PACKAGE", help="Allow the model to run this package's code (python:...).", show_default=False
    ),
]


def _trained(
    where: str, which: _Which | None, method: str, peer: str | None, seed: int | None, out: Path | None, allow: Any
) -> TrainedModels:
    from fedpeer.cli.trained import Named, trained_models

    named = Named(
        where=where,
        method=method,
        peer=peer,
        seed=seed,
        runs=runs_folder(out),
        allow_python=allow or [],
        best=None if which is None else which == "best",
    )
    return trained_models(named)


def _say_round(found: TrainedModels, which: _Which | None) -> None:
    """Say which round's model is taken where the user did not choose, beside what goes to standard output."""
    if which is None and found.best is not None:
        text = (
            f"{found.model.peer}: the model of round {found.best.round}, the best on examples held out for validation"
        )
        print(f"{text}; --model last takes the last one", file=sys.stderr)


def evaluate_command(
    where: _Where,
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE]",
            help="File like those that it was trained on, label column included; default: its own test part.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Other data instead, such as csv:FILE,label=NAME.", show_default=False),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help="Metrics, or python:module:function; default: all that fit the targets.",
            show_default=False,
        ),
    ] = None,
    which: _Chosen = None,
    method: _Method = "partial-averaging",
    peer: _Peer = None,
    seed: _Seed = None,
    out: _Out = None,
    allow_python: _Allow = None,
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="Print one JSON object only.")] = False,
) -> None:
    """Measure a trained model on its peer's own test part, or on other data.

    Prints score and loss, further metrics, precision and recall of classes and labels, and the confusion of classes.
    """
    import json

    from rich.console import Console

    from fedpeer.cli.judgement import judgement_of
    from fedpeer.cli.trained import examples_in, like_its_own
    from fedpeer.config.choice import parse_choice, several
    from fedpeer.config.problems import ConfigError, ConfigProblem
    from fedpeer.runs.disk import json_value
    from fedpeer.runs.summary import score_text

    if file is not None and data is not None:
        text = f"FILE {file} and --data {data} are both data to measure on; leave one out"
        raise ConfigError("the command line", [ConfigProblem((), text, "--data")])
    found = _trained(where, which, method, peer, seed, out, allow_python)
    choice = None if data is None else parse_choice(data)
    if file is not None:
        choice = like_its_own(file, found)
    model = found.model
    x, y = found.own_test_part() if choice is None else examples_in(choice, model)
    score, loss = model.evaluate(x, y)
    measure: Literal["accuracy", "error"] = "accuracy" if model.loss.counts else "error"
    judged = judgement_of(model, x, y, [] if metrics is None else several(metrics))
    if as_json:
        facts = {"schema": 1, "peer": model.peer, measure: score, "loss": loss, "examples": len(x)}
        facts |= {} if found.best is None else {"round": found.best.round}
        print(json.dumps(json_value(facts | judged.to_json()), allow_nan=False))
        return
    examples = f"{len(x):,} examples of {'its own test part' if choice is None else file or data}"
    if found.best is not None:
        examples += f"; the model of round {found.best.round}, the best on examples held out for validation"
    print(f"{model.peer}: {measure} {score_text(score, measure)}, loss {loss:.4g}, {examples}")
    console = Console()
    for shown in judged.shown(console.width):
        console.print(shown, highlight=False, markup=False)


def predict(
    where: _Where,
    inputs: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="CSV or Parquet with the model's features; - for a CSV on standard input; or an image, or a folder of "
            "images.",
        ),
    ],
    to: Annotated[str, typer.Option(metavar="FILE", help="CSV to write; - for standard output.")] = _STREAM,
    delimiter: Annotated[str, typer.Option(metavar="X", help="Separates the cells of the input; tab for a tab.")] = ",",
    as_they_are: Annotated[
        bool,
        typer.Option("--names-as-they-are", metavar="", help="Leave names that look like formulas unchanged."),
    ] = False,
    which: _Chosen = None,
    method: _Method = "partial-averaging",
    peer: _Peer = None,
    seed: _Seed = None,
    out: _Out = None,
    allow_python: _Allow = None,
) -> None:
    """Predict for new examples: the class with each class's probability, the labels with theirs, or the numbers.

    The label column may be absent; other columns are ignored. Predictions come in the order of the rows.

    Images are read as those of the training. Their names are the first column, and the order.

    A name that begins like a spreadsheet formula (=SUM, @, -x) gets an apostrophe before it; numbers never do.
    """
    from fedpeer.cli.trained import images_like_its_own
    from fedpeer.config.problems import ConfigError, ConfigProblem
    from fedpeer.data.own.inputs import read_inputs, read_parquet, read_texts
    from fedpeer.data.own.mistakes import check_there
    from fedpeer.data.own.table import is_parquet, separator_of

    found = _trained(where, which, method, peer, seed, out, allow_python)
    _say_round(found, which)
    model, files = found.model, list[str]()
    name = "standard input" if inputs == _STREAM else inputs
    if model.loss.continues:
        problem = "this model continues text; write it with fedpeer export --format hf, and generate with transformers"
        raise ConfigError("the command line", [ConfigProblem((), problem, "MODEL")])
    card, shape, separator = model.card, model.card.shape.input_shape, separator_of(delimiter)
    of_images, path = card.shape.input_kind == "image" and inputs != _STREAM, Path(inputs)
    x: NDArray[Any]
    if inputs != _STREAM and not (of_images and path.is_dir()):
        check_there(inputs)
    if of_images and (path.is_dir() or path.suffix.lower() in _IMAGES):
        files, x = images_like_its_own(inputs, found)
    elif inputs != _STREAM and is_parquet(inputs):
        x = read_parquet(inputs, card.features, shape, card.text)
    else:
        with _reading(inputs) as file:
            if card.text is not None:
                x = read_texts(file, name, card.text, separator)
            else:
                x = read_inputs(file, name, card.features, shape, separator)
    classes = [*card.classes]
    if not as_they_are:
        classes, files = ([*map(_harmless, names)] for names in (classes, files))
    text = _answers(classes, model.answers(x), files, labels=model.loss.marks)
    if to == _STREAM:
        sys.stdout.write(text)
    else:
        write_new_text(Path(to), text, option="--to")


@contextmanager
def _reading(inputs: str) -> Iterator[TextIO]:
    if inputs == _STREAM:
        if isinstance(sys.stdin, io.TextIOWrapper):  # as a file is read: UTF-8, which may begin with a mark
            sys.stdin.reconfigure(encoding="utf-8-sig", newline="")
        yield sys.stdin
        return
    with open(inputs, newline="", encoding="utf-8-sig") as file:
        yield file


def _harmless(name: str) -> str:
    """Return the name of a class or file, which others may have chosen, so that no program executes it."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in name)
    return f"'{shown}" if _FORMULA.match(name) and not _NUMBER.fullmatch(name) else shown


def _answers(classes: Sequence[str], answers: NDArray[np.float32], files: Sequence[str], *, labels: bool) -> str:
    """Return predictions as CSV: the class and each class's probability, or a column per predicted number.

    For labels: 1 or 0 for each label, then the probability that each label holds. For images: the file before these.
    """
    rows: list[list[object]]
    likely = [f"probability {name}" for name in classes]
    if labels:
        rows = [[*classes, *likely]]
        rows += [[*(int(value > 0.5) for value in row), *(f"{value:.6g}" for value in row)] for row in answers]
    elif classes:
        rows = [["prediction", *likely]]
        rows += [[classes[row.argmax()], *(f"{value:.6g}" for value in row)] for row in answers]
    else:
        outputs = answers.shape[1]
        rows = [["prediction"] if outputs == 1 else [f"prediction {number + 1}" for number in range(outputs)]]
        rows += [[f"{value:.6g}" for value in row] for row in answers]
    if files:
        rows = [[name, *row] for name, row in zip(["file", *files], rows, strict=True)]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def export(
    where: _Where,
    form: Annotated[
        _Form | None,
        typer.Option(
            "--format",
            help="safetensors: parameters; pt2, onnx: programs that take raw inputs; peft: the adapters alone, hf: a "
            "whole pretrained model (folders). Default: the ending of --to, or safetensors.",
            show_default=False,
        ),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File or folder to write; default: PEER.FORMAT.", show_default=False),
    ] = None,
    which: _Chosen = None,
    method: _Method = "partial-averaging",
    peer: _Peer = None,
    seed: _Seed = None,
    out: _Out = None,
    allow_python: _Allow = None,
) -> None:
    """Write a trained model for use without fedpeer, with a JSON file that describes its inputs and outputs."""
    form = _form(form, to)
    if to is not None and form not in _FOLDERS:
        check_writable(to, option="--to")
    from fedpeer.learning.program import write_onnx, write_pt2, write_state_dict  # imports torch
    from fedpeer.runs.disk import write_json

    found = _trained(where, which, method, peer, seed, out, allow_python)
    _say_round(found, which)
    trained = found.model
    path = to or Path(f"{trained.peer}.{form}")
    if form in _FOLDERS:
        _export_folder(trained, form, path)
        return
    if to is None:
        check_writable(path, option="--to")
    model = trained.standalone()
    card = path.with_suffix(path.suffix + ".json")
    with writable(path, option="--to"):
        if form == "safetensors":
            write_state_dict(model.module, path)
        else:
            (write_pt2 if form == "pt2" else write_onnx)(model.program, model.card.shape.example(), path)
        write_json(card, model.own_card.model_dump(mode="json"))
    print(f"{path}\n{card}")


def _export_folder(model: Model, form: _Form, folder: Path) -> None:
    """Write a folder in Hugging Face's format, and say how it is loaded."""
    from fedpeer.cli.files import make_new_folder
    from fedpeer.learning.pretrained import export_adapter, export_pretrained

    make_new_folder(folder, option="--to")
    with writable(folder, option="--to"):
        code = (export_adapter if form == "peft" else export_pretrained)(model.module, model.card.shape.task, folder)
    print(f"{folder}\n\n{code}")


def _form(options: _Form | None, to: Path | None) -> _Form:
    """Return the format that `--format` or the ending of the file's name gives; they must not contradict."""
    from fedpeer.config.problems import ConfigError, ConfigProblem

    if to is None:
        return options or "safetensors"
    ending = to.suffix.lower().removeprefix(".")
    files: list[_Form] = [form for form in get_args(_Form) if form not in _FOLDERS]
    meant = next((form for form in files if form == ending), None)
    if options is not None and meant in (None, options):
        return options
    if meant is None:
        known = ", ".join(f".{form}" for form in files)
        text = f"the ending of {to} is not a known format: use one of {known}, or add --format"
    elif options is None:
        return meant
    else:
        text = f"the ending of {to} means {meant}, but --format is {options}; leave --format out, or rename the file"
    raise ConfigError("the command line", [ConfigProblem((), text, "--to")])
