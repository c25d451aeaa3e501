"""Loads the data that a federation's or a peer's file names, and builds the peer's `LocalTask`.

It connects `data/` and `config/`, which do not import each other. Simulators and real peers both use it, so a real peer
with `data: {simulation: 3}` holds exactly the examples that peer3 holds in a simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from fedpeer.algorithms.draws import Draws
from fedpeer.algorithms.start import STARTS
from fedpeer.config.building import Loader
from fedpeer.config.choice import Choice, bind_settings, call_choice, own_function, parse_choice
from fedpeer.config.peer_file import PeerFile
from fedpeer.config.settings import (
    TABLE_VALIDATION,
    TABLE_VALIDATION_ROWS,
    TABLES,
    FederationSettings,
    LearningSettings,
)
from fedpeer.data.dataset import DataError, Dataset, Split
from fedpeer.data.held import PeerExamples, held
from fedpeer.data.own import OWN
from fedpeer.data.own.code import check_allowed, imported
from fedpeer.data.registry import DATASETS
from fedpeer.data.splits import MODIFIERS, SPLITS, default_split, make_split, pieces, undivided
from fedpeer.learning.assembly import Assembly, DataShape, assemble
from fedpeer.learning.local_task import LocalTask
from fedpeer.learning.pretrained import build_pretrained


def load_dataset(choice: Choice) -> Dataset:
    """Load a data set by name, or a user's own file."""
    registry: Mapping[str, Callable[..., Dataset]] = {**DATASETS, **OWN}
    dataset: Dataset = call_choice(choice, registry, "data set")()
    return dataset


def rule_of(dataset: Dataset, federation: FederationSettings) -> tuple[Choice, ...]:
    """Return the federation's split, or the data set's own."""
    simulation = federation.simulation
    return simulation.split or tuple(parse_choice(piece) for piece in pieces(default_split(dataset, simulation.peers)))


def dataset_split(dataset: Dataset, federation: FederationSettings, seed: int) -> Split:
    """Divide the examples among the peers, with random numbers from the stream (seed, "split")."""
    base, *changes = rule_of(dataset, federation)
    rule = [
        call_choice(base, SPLITS, "split"),
        *(call_choice(each, MODIFIERS, "change of a split") for each in changes),
    ]
    split = make_split(rule, dataset, federation.simulation.peers, Draws(seed).numpy("split"))
    simulation, draws = federation.simulation, Draws(seed).numpy("validation")
    return _kept_back(dataset, split, simulation.validation, "simulation", simulation.dataset, draws, simulation.fold)


def _kept_back(
    dataset: Dataset,
    split: Split,
    fraction: float | None,
    section: str,
    choice: Choice,
    draws: np.random.Generator,
    fold: int = 0,
) -> Split:
    """Return the split with a fraction of the training examples held out for validation.

    Args:
        fraction: None: the default, which only tables have, and of them only peers with enough examples.
        choice: the choice of the data.
    """
    if fraction is None and choice.name in TABLES:
        return split.keeping_back(TABLE_VALIDATION, draws, rows=TABLE_VALIDATION_ROWS)
    if fraction and dataset.task == "completion":
        raise DataError(
            f"{section}.validation: patterns of {dataset.name} cannot be held out; write 0, or leave it out"
        )
    return split.keeping_back(fraction, draws, fold) if fraction else split


def normalisation_of(dataset: Dataset, choice: Choice) -> str:
    """Return the default normalisation: standard for own files and regression; else none, as in the papers."""
    return "standard" if choice.name in OWN or dataset.task == "regression" else "none"


def inputs_of(dataset: Dataset) -> Tensor:
    """Return the inputs of all examples, (N, *F), in the type that networks take."""
    return torch.from_numpy(np.ascontiguousarray(dataset.x)).to(DataShape.of(dataset).dtype)


def held_by(
    file: PeerFile, federation: FederationSettings, load: Callable[[Choice], Dataset] = load_dataset
) -> tuple[Dataset, PeerExamples]:
    """Return the data set of a real peer, and the examples in it that the peer holds.

    Args:
        load: loads a data set; processes with the same one may share it.

    Raises:
        DataError, ChoiceError: the user's mistakes.
    """
    part = file.data.part
    choice = file.data.source if part is None else federation.simulation.dataset
    if part is not None and choice.name == "python":
        check_allowed(own_function(choice)[0], file.allow_python, "the federation file")
    dataset = load(choice)
    stated = file.data.normalise if part is None else federation.simulation.normalise
    normalise = stated or normalisation_of(dataset, choice)
    if part is None:
        draws = Draws(federation.seed)
        split = undivided(dataset, file.data.test_fraction, draws.numpy("test part", file.id))
        split = _kept_back(dataset, split, file.data.validation, "data", choice, draws.numpy("validation", file.id))
        return dataset, held(dataset, split, 0, normalise)
    split = dataset_split(dataset, federation, federation.seed)
    if part > len(split.shares):
        raise DataError(f"data: simulation: {part}: the simulation has {len(split.shares)} peers; name one of them")
    return dataset, held(dataset, split, part - 1, normalise)


def trained_of(learning: LearningSettings) -> dict[str, Tensor] | None:
    """Load the tensors of the model that `learning.start: file:PATH` names; None if it names no file.

    Raises:
        DataError: the file cannot be read.
    """
    start = learning.start
    if start is None or start.name != "file":
        return None
    path = str(bind_settings(start, STARTS["file"]).get("path", ""))
    if not path:  # the contract of a running federation, which has started already
        return None
    try:
        return dict(load_file(path))
    except (OSError, SafetensorError) as problem:
        raise DataError(
            f"learning.start: {path} cannot be read ({problem}); name a file that fedpeer export --to "
            "MODEL.safetensors has written"
        ) from None


def loader_of(file: PeerFile) -> Loader:
    """Return a loader of the federation file's functions; it raises DataError unless the peer's file allows them."""

    def load(name: str) -> Callable[..., Any]:
        check_allowed(name, file.allow_python, "the federation file")
        return imported(name)

    return load


@dataclass(frozen=True, kw_only=True)
class Outfit:
    """A real peer's data, network and local task.

    assembly     the federation's, with the peer's own network if its file names one
    """

    assembly: Assembly
    dataset: Dataset
    held: PeerExamples
    local_task: LocalTask


def outfit(
    file: PeerFile,
    federation: FederationSettings,
    device: str,
    load: Callable[[Choice], Dataset] = load_dataset,
    assembled: Iterable[Assembly] = (),
) -> Outfit:
    """Load the data, build the network, make the local task. Paths in both files must be resolved.

    Args:
        load: as for `held_by`.
        assembled: networks that are built already; one that fits is taken.

    Raises:
        DataError, NetworkError, ChoiceError, SlicingError, OptimizerError: the user's mistakes.
    """
    dataset, found = held_by(file, federation, load)
    shape = DataShape.of(dataset)
    fitting = (each for each in assembled if each.fits(federation, shape, file.network))
    assembly = next(fitting, None) or assembly_of(file, federation, shape)
    local_task = LocalTask.of(assembly, found, inputs_of(dataset), file.id, device, classes=dataset.classes)
    return Outfit(assembly=assembly, dataset=dataset, held=found, local_task=local_task)


def assembly_of(file: PeerFile, federation: FederationSettings, shape: DataShape) -> Assembly:
    """Build the network of a peer for data of this shape.

    Raises:
        DataError, NetworkError, ChoiceError, SlicingError, OptimizerError: the user's mistakes.
    """
    allowed = loader_of(file)
    return assemble(
        federation,
        shape,
        federation.seed,
        imported if file.network is not None else allowed,
        network=file.network,
        trained=trained_of(federation.learning),
        code=allowed,
        pretrained=build_pretrained,
    )
