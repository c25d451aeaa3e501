"""Trained models that a command line names, and the examples to evaluate them on.

A name is a peer's own file, its state folder, or a simulation's run with a method, a peer and a seed.
"""

from __future__ import annotations

import inspect
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpeer.cli.peer_config import PeerConfig, load_peer
from fedpeer.config.building import Loader
from fedpeer.config.choice import Choice, bind_settings, own_function
from fedpeer.config.federation import Federation
from fedpeer.config.peer_file import PeerFile
from fedpeer.config.problems import ConfigError, ConfigProblem
from fedpeer.config.settings import TABLES
from fedpeer.data.dataset import ASKED, DataError, Dataset, Task
from fedpeer.data.held import held
from fedpeer.data.own import OWN
from fedpeer.data.own.code import check_allowed, imported
from fedpeer.data.own.images import images, read_images
from fedpeer.learning.anchors import anchored
from fedpeer.learning.holdings import dataset_split, held_by, load_dataset
from fedpeer.learning.models import BestRound, Card, Model, best_round, load_model
from fedpeer.runs.disk import read_json
from fedpeer.runs.folder import RunFolder

#: Settings of a folder of images that decide how each of them is read.
_READ_WITH = ("resize", "colours", "background")
#: Raw inputs (N, *F), and targets as the peer sees them; numeric targets are in units of the data.
_Examples = tuple[NDArray[np.generic], NDArray[np.generic]]


@dataclass(frozen=True, kw_only=True)
class Named:
    """A model as named by a command line.

    where          a peer's file, its state folder, or a run
    method         algorithm, for runs only
    peer           peer id, for runs only
    seed           for runs only; None: the run's first
    runs           folder of all runs
    allow_python   packages whose code the model may run
    best           whether it is the model of the best round, by the examples held out for validation, not the last
                   model; None: if there is one
    """

    where: str
    method: str
    peer: str | None
    seed: int | None
    runs: Path
    allow_python: Sequence[str]
    best: bool | None = False


@dataclass(frozen=True, kw_only=True)
class TrainedModels:
    """A model, and where its peer's examples are.

    own_test_part   loads the test examples
    source          the choice of data that it was trained on; None where it is not recorded
    best            the round of the model, if it is the best one; None: it is the last one
    """

    model: Model
    own_test_part: Callable[[], _Examples]
    source: Choice | None = None
    best: BestRound | None = None


def trained_models(named: Named) -> TrainedModels:
    """Return the model that a command line names.

    Raises:
        ConfigError, RunError, ModelError, DataError: it does not exist or cannot be used.
    """
    path = Path(named.where)
    if path.is_file():
        return _of_peer(load_peer(path), named)
    if (path / "model.json").is_file():
        model, best = _of_state(path, _leave(named.allow_python), best=named.best)
        return TrainedModels(model=model, own_test_part=lambda: _nowhere(named.where), best=best)
    return _of_run(named)


def _of_peer(config: PeerConfig, named: Named) -> TrainedModels:
    file = config.file
    assert file.state is not None, "filled in by `load_peer`"
    code = imported if file.network is not None else _leave([*file.allow_python, *named.allow_python])
    model, best = _of_state(Path(file.state), code, best=named.best)
    return TrainedModels(
        model=model,
        own_test_part=lambda: _own_test_part(file, config.federation),
        source=file.data.source if file.data.part is None else config.federation.simulation.dataset,
        best=best,
    )


def _of_state(folder: Path, code: Loader, *, best: bool | None) -> tuple[Model, BestRound | None]:
    """Return the model in a peer's state folder, and its round if it is the best one."""
    chosen = None if best is False else best_round(folder / "best.json")
    if best and chosen is None:
        way_out = "write data: {validation: 0.1} into the peer's file, and train on"
        raise _no_best(f"{folder} has no best model, since no examples are held out for validation; {way_out}")
    name = "model.safetensors" if chosen is None else "best.safetensors"
    return load_model(folder / name, folder / "model.json", None, code), chosen


def _no_best(text: str) -> ConfigError:
    return ConfigError("the command line", [ConfigProblem((), text, "--model")])


def _peer_of(run: RunFolder, name: str | None) -> str | None:
    """Return the id of the peer that has the examples of the user of that name, else the name.

    A peer's note begins with its user, and goes on with what the split has changed.
    """
    peers = (run.read("split") or {}).get("peers", []) if name else []
    of_user = [peer["id"] for peer in peers if name in (peer.get("note"), str(peer.get("note")).partition("; ")[0])]
    return of_user[0] if len(of_user) == 1 and name not in [peer["id"] for peer in peers] else name


def _of_run(named: Named) -> TrainedModels:
    run = RunFolder.open(named.runs, named.where)
    settings: dict[str, Any] = run.read("settings") or {}
    seed = settings["seeds"][0] if named.seed is None else named.seed
    tensors = run.models(named.method, seed)
    if not tensors.is_file():
        stored = sorted(each.stem for each in tensors.parent.glob("*.safetensors") if not each.stem.endswith("-best"))
        there = f"it has {', '.join(stored)}" if stored else "it was not finished"
        text = f"run {run.id} has no models of {named.method} with seed {seed}: {there}"
        raise ConfigError("the command line", [ConfigProblem((), text, "--method, --seed")])
    best = run.models(named.method, seed, best=True)
    if named.best and not best.is_file():
        way_out = "simulate again with simulation: {validation: 0.1} in the federation file"
        raise _no_best(f"run {run.id} has no best models, since no examples were held out for validation; {way_out}")
    peer, rounds = _peer_of(run, named.peer), dict[str, Any]()
    if named.best is not False and best.is_file():
        rounds = read_json(best.with_name(f"{best.stem}-rounds.json"))
    # Of several peers one must be named, so without a name there is one.
    of_peer = next(iter(rounds.values()), None) if peer is None else rounds.get(peer)
    chosen = None if of_peer is None else BestRound(**of_peer)
    taken = tensors if chosen is None else best
    model = load_model(taken, taken.with_suffix(".json"), peer, _leave(named.allow_python))
    if named.best and chosen is None:
        some = ", ".join(list(rounds)[:8]) + (" ..." if len(rounds) > 8 else "")
        why = "it holds out no example for validation, or no round has a score on them"
        raise _no_best(f"run {run.id} has no best model of {model.peer}: {why}; there are those of {some}")
    if {"data", "network"} & set(settings.get("objects") or ()):
        return TrainedModels(model=model, own_test_part=lambda: _nowhere(run.id), best=chosen)
    federation = Federation.stored({name: settings[name] for name in Federation.model_fields})
    simulation = federation.simulation

    def own_test_part() -> _Examples:
        _check_dataset(simulation.dataset, named.allow_python)
        dataset = load_dataset(simulation.dataset)
        assert simulation.normalise is not None, "a run's settings have everything filled in"
        number = list(model.card.peers).index(model.peer)
        return held(dataset, dataset_split(dataset, federation, seed), number, simulation.normalise).tested(dataset)

    return TrainedModels(model=model, own_test_part=own_test_part, source=simulation.dataset, best=chosen)


def _leave(allowed: Sequence[str]) -> Loader:
    """Return a loader that imports a network's code if its package is allowed."""

    def code(name: str) -> Callable[..., Any]:
        check_allowed(name, allowed, "this model", "add --allow-python {}")
        return imported(name)

    return code


def _check_dataset(choice: Choice, allowed: Sequence[str]) -> None:
    if choice.name == "python":
        check_allowed(own_function(choice)[0], allowed, "this run", "add --allow-python {}")


def _own_test_part(file: PeerFile, federation: Federation) -> _Examples:
    dataset, holding = held_by(file, federation)
    return holding.tested(dataset)


def _nowhere(where: str) -> _Examples:
    text = f"{where} does not record where its peer's data are; name them, such as --data csv:FILE,label=NAME"
    raise ConfigError("the command line", [ConfigProblem((), text, "--data")])


def like_its_own(file: str, found: TrainedModels) -> Choice:
    """Return the choice of a file of the kind that the model was trained on, with the same label and other settings.

    A file of one user need not have the column that names users.

    Raises:
        ConfigError: it was not trained on files of the user's own, or that is not recorded.
    """
    source = found.source
    if source is None or source.name not in OWN or source.name == "python":
        text = f"how {file} is to be read is not recorded with this model; write --data csv:{file},label=NAME instead"
        raise ConfigError("the command line", [ConfigProblem((), text, "FILE")])
    settings = {name: value for name, value in source.settings.items() if name != "path"}
    ending = Path(file).suffix.lower().removeprefix(".")
    kind = ending if ending in TABLES and source.name in TABLES else source.name
    if kind != source.name:
        settings.pop("delimiter", None)
    whole = Choice(kind, file, settings)
    if "user" not in settings or _readable(whole):
        return whole
    alone = Choice(kind, file, {name: value for name, value in settings.items() if name != "user"})
    return alone if _readable(alone) else whole


def images_like_its_own(path: str, found: TrainedModels) -> tuple[list[str], NDArray[np.float32]]:
    """Return names and pixels (N, C, H, W) of an image or a folder of images, read as those of the model's training.

    Raises:
        ConfigError: the model was not trained on a folder of images, or that is not recorded.
        DataError: images that cannot be read, or do not fit the model.
    """
    source, shape = found.source, found.model.card.shape.input_shape
    if source is None or source.name != "images":
        known = "its data are not recorded here" if source is None else f"it was trained on {source.name}"
        own_file = "name its peer's file if it has one, or " if source is None else ""
        text = (
            f"images are read as in the training, for a model that was trained on images:FOLDER, but {known}; "
            f"{own_file}give a CSV with a column for each of {' x '.join(map(str, shape))} pixels, on the scale of the "
            "training, or pass arrays to the program that fedpeer export writes (.pt2, .onnx)"
        )
        raise ConfigError("the command line", [ConfigProblem((), text, "FILE")])
    chosen = bind_settings(source, images)
    return read_images(path, shape, **{name: chosen[name] for name in _READ_WITH if name in chosen})


def examples_in(choice: Choice, model: Model) -> _Examples:
    """Return the examples of a data set or file, such as `csv:ward3.csv,label=outcome`, as the model takes them.

    Raises:
        ChoiceError, DataError: it cannot be read, or does not fit the model.
    """
    text, card = str(choice), model.card
    dataset = _read_as_trained(choice, card)
    y = _targets_in(dataset, card)
    if y is None:
        found, wanted = _asked(dataset.task, dataset.classes), _asked(card.shape.task, card.classes)
        raise DataError(f"{text}: its targets are {found}, but the model was trained for {wanted}")
    targets = math.prod(y.shape[1:])
    if targets != card.shape.targets:
        raise DataError(f"{text}: an example has {targets} targets, but the model predicts {card.shape.targets}")
    x = dataset.x
    if card.features and dataset.feature_names and card.features != dataset.feature_names:
        missing = [name for name in card.features if name not in dataset.feature_names]
        if missing:
            raise DataError(f"{text}: there is no column {', '.join(missing[:8])}, which the model needs")
        x = x[:, [dataset.feature_names.index(name) for name in card.features]]
    kinds = (dataset.input_kind, card.shape.input_kind)
    if tuple(x.shape[1:]) != card.shape.input_shape or kinds[0] != kinds[1]:
        shapes = (tuple(x.shape[1:]), card.shape.input_shape)
        raise DataError(f"{text}: an example is {kinds[0]} {shapes[0]}, but the model takes {kinds[1]} {shapes[1]}")
    if kinds[1] == "tokens" and (most := int(np.max(x))) >= card.shape.vocabulary:
        raise DataError(
            f"{text}: it has token {most}, but the model knows {card.shape.vocabulary}; use the tokenizer of the model"
        )
    return x, y


def _read_as_trained(choice: Choice, card: Card) -> Dataset:
    """Load data by the settings of the choice, and where these are missing by those that the model was trained with.

    Raises:
        DataError: the data cannot be read; the message names the model's settings if the data can be read without them.
    """
    others = _as_trained(choice, card)
    try:
        return _read(Choice(choice.name, choice.value, {**others, **choice.settings}))
    except DataError as problem:
        if not others or not _readable(choice):
            raise
        if choice.name == "python":  # a Dataset has its own task and classes, which are compared with the model's
            return _read(choice)
        settings = textwrap.shorten(str(Choice("", None, others)).removeprefix(","), 80, placeholder=" ...")
        raise DataError(f"{problem}\nThe model was trained with {settings}, so the data are read with it") from None


def _readable(choice: Choice) -> bool:
    try:
        _read(choice)
    except DataError:
        return False
    return True


def _read(choice: Choice) -> Dataset:
    return load_dataset(anchored(choice, Path()))


def _as_trained(choice: Choice, card: Card) -> dict[str, Any]:
    """Return the settings with which a user's own data are read like the data that the model was trained on.

    Only settings that the choice leaves open are returned. So a file with a few rows has all classes of the model,
    whole numbers to predict are not taken for classes, and sequences of features are not taken for images.
    """
    known = inspect.signature(OWN[choice.name]).parameters if choice.name in OWN else {}
    task = card.shape.task
    found: dict[str, Any] = {"kind": card.shape.input_kind}
    if _written_task(choice.settings) in (None, task):
        if task == "classification":
            found["classes"] = card.classes
        elif task == "regression":
            found["task"] = task
        elif task == "multi-label" and "labels" not in known:
            found |= {"task": task, "classes": card.classes}
    return {name: value for name, value in found.items() if value and name in known and name not in choice.settings}


def _written_task(settings: Mapping[str, Any]) -> str | None:
    """Return the task that the settings of a user's own data name; None: the task follows from the data."""
    if "labels" in settings:
        return "multi-label"
    if "task" in settings:
        return str(settings["task"])
    return "next-token" if "text" in settings and "label" not in settings else None


def _asked(task: Task, classes: Sequence[str]) -> str:
    """Return the predicted targets in words."""
    kind = "classes" if task == "classification" else "labels"
    return f"the {kind} {', '.join(classes)}" if classes else ASKED[task]


def _targets_in(dataset: Dataset, card: Card) -> NDArray[np.generic] | None:
    """Return the targets with the model's numbers of classes, or columns of labels; None: these are other ones."""
    if dataset.task != card.shape.task or not {*dataset.classes} <= {*card.classes}:
        return None
    if dataset.classes == card.classes:
        return dataset.y
    if dataset.task == "classification":
        return np.array([card.classes.index(name) for name in dataset.classes])[dataset.y.astype(np.int64)]
    if len(dataset.classes) < len(card.classes):
        return None
    return dataset.y[:, [dataset.classes.index(name) for name in card.classes]]
