"""Trained models: a network with the scales of the peer that trained it, and its card.

A card is a small JSON file beside the parameters: the network, the shape of the data, the names of classes and
features, and for each peer how it scales inputs and targets (fitted on its own training data). With it the network can
be rebuilt on any machine without the data. A peer's state folder has `model.json` beside `model.safetensors`; a
simulation's run has `models/<method>-seed<k>.json` beside the parameters of all its peers. Where examples are held out
for validation, `best.safetensors` has the parameters of the round that was best on them, and `best.json` that round.

Files may come from other people: they are checked and never executed. Code that a card names
(`python:module:function`) is imported by a loader that the caller passes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, ValidationError, field_validator
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from fedpeer.algorithms.batches import BatchView, Examples
from fedpeer.algorithms.draws import Draws
from fedpeer.algorithms.evaluation import EVALUATED_AT_ONCE, evaluate
from fedpeer.algorithms.loop import Loop
from fedpeer.algorithms.losses import LOSSES, Loss
from fedpeer.algorithms.optimizers import OptimizerChoice
from fedpeer.algorithms.precision import unrounded
from fedpeer.config.building import Loader
from fedpeer.config.choice import Choice
from fedpeer.config.peer_id import is_id
from fedpeer.config.pretrained import without_adapters
from fedpeer.config.settings import ChoiceField, LearningSettings, LoraSettings, Strict
from fedpeer.data.dataset import DataError, Dataset, TextColumn
from fedpeer.data.held import PeerExamples
from fedpeer.data.normalise import Normaliser
from fedpeer.learning.assembly import Assembly, DataShape, build_network, outputs_of, prepared
from fedpeer.learning.holdings import trained_of
from fedpeer.learning.local_task import flat_scale
from fedpeer.learning.pretrained import build_pretrained
from fedpeer.learning.program import Program
from fedpeer.networks.lora import merged
from fedpeer.runs.disk import replacing, write_json
from fedpeer.slicing.flat import FlatLayout, frozen_parameters


class ModelError(Exception):
    """The user's mistake about a trained model, or a damaged model file, with the place and the way out."""


class PeerScales(Strict):
    """Scaling of one peer's data. Inputs are `(x[feature_map] - shift) / scale`, over the flattened example."""

    feature_map: tuple[int, ...] | None
    shift: tuple[float, ...] | None
    scale: tuple[float, ...] | None
    target_shift: float | tuple[float, ...] = Field(
        description="regression: a prediction is output * target_scale + target_shift; several: one for each output"
    )
    target_scale: float

    @classmethod
    def of(cls, held: PeerExamples, shape: DataShape) -> PeerScales:
        scale = None if held.inputs is None else flat_scale(held.inputs, shape)
        target = held.targets
        target_shift = (0.0,) if target is None else tuple(target.shift_F.reshape(-1).tolist())
        return cls(
            feature_map=None if held.feature_map_F is None else tuple(held.feature_map_F.tolist()),
            shift=None if scale is None else tuple(scale[0].tolist()),
            scale=None if scale is None else tuple(scale[1].tolist()),
            target_shift=target_shift if len(target_shift) > 1 else target_shift[0],
            target_scale=1.0 if target is None else float(target.scale_F.reshape(-1)[0]),
        )

    def view(self) -> BatchView:
        map_F = None if self.feature_map is None else torch.tensor(self.feature_map)
        shift_F, scale_F = (None if each is None else torch.tensor(each) for each in (self.shift, self.scale))
        return BatchView(map_F, shift_F, scale_F)


class Card(Strict):
    """Description of trained parameters, without which they cannot be used.

    network     choice of the network; None: it was passed as a Python object
    networks    networks of peers that have another one, by peer id
    loss        loss of the training, which decides how outputs become probabilities
    seed        the federation's seed, for the random draws of the network's builder
    frozen      patterns of the parameters that were not trained, and are not in the file of the tensors
    lora        adapters of the network
    start       file of the model whose parameters were frozen; None: the network's builder makes them
    classes     names in the order of the outputs
    features    names in the order of the inputs; empty: the data has none
    text        how a column of text becomes inputs; None: the inputs are not text
    peers       scales by peer id
    """

    version: Literal[1] = 1
    network: ChoiceField | None
    loss: str
    seed: int
    shape: DataShape
    classes: tuple[str, ...]
    features: tuple[str, ...]
    peers: dict[str, PeerScales]
    frozen: tuple[str, ...] = ()
    lora: LoraSettings | None = None
    start: ChoiceField | None = None
    text: TextColumn | None = None
    networks: dict[str, ChoiceField] = Field(default_factory=dict)

    @field_validator("loss")
    @classmethod
    def _known(cls, loss: str) -> str:
        if loss not in LOSSES:
            raise ValueError(f"{loss[:40]!r} is not a loss; known are {', '.join(LOSSES)}")
        return loss

    @field_validator("peers")
    @classmethod
    def _ids(cls, peers: dict[str, PeerScales]) -> dict[str, PeerScales]:
        """Reject invalid ids: an id becomes a file's name and is shown on terminals, and cards may come from others."""
        for peer in peers:
            if not is_id(peer):
                raise ValueError(f"{peer[:40]!r} is not an id: letters, digits, - _ and .")
        return peers

    @classmethod
    def of(
        cls,
        assembly: Assembly,
        dataset: Dataset,
        holdings: Mapping[str, PeerExamples],
        networks: Mapping[str, Choice] = MappingProxyType({}),
    ) -> Card:
        learning = assembly.federation.learning
        based = learning.start is not None and learning.start.name == "file" and frozen_parameters(assembly.module)
        return cls(
            network=assembly.federation.network,
            loss=assembly.loss,
            seed=assembly.seed,
            shape=assembly.shape,
            classes=dataset.classes,
            features=dataset.feature_names,
            peers={peer: PeerScales.of(held, assembly.shape) for peer, held in holdings.items()},
            frozen=tuple(learning.frozen),
            lora=learning.lora,
            start=learning.start if based else None,
            text=dataset.text,
            networks=dict(networks),
        )

    def network_of(self, peer: str) -> Choice | None:
        """Return the choice of a peer's network; None: it was passed as a Python object."""
        return self.networks.get(peer, self.network)


class BestRound(Strict):
    """A round and how good its model was on the examples held out for validation.

    score      accuracy (0 to 1), or error
    examples   digest of these examples; "": unknown, as in files of older releases, or always the same
    """

    round: int
    score: float
    loss: float
    examples: str = ""

    @classmethod
    def of(cls, round: int, score: float, loss: float, examples: str = "") -> BestRound | None:
        """Return a round that may be the best one; None if score or loss is not a number, as after a divergence."""
        if not (math.isfinite(score) and math.isfinite(loss)):
            return None
        return cls(round=round, score=score, loss=loss, examples=examples)

    def beats(self, other: BestRound | None, *, counts: bool) -> bool:
        """Return whether this round is better than another one; of equal scores, the smaller loss is better.

        Scores on different examples cannot be compared, so the first round on new examples is better than all before.

        Args:
            other: the other round; None: there is none yet.
            counts: whether the score is an accuracy, so that more is better.
        """
        if other is None or (self.examples and other.examples and self.examples != other.examples):
            return True
        return self._rank(counts=counts) > other._rank(counts=counts)

    def _rank(self, *, counts: bool) -> tuple[float, float]:
        """Return a sort key, which is larger for a better round."""
        return (self.score if counts else -self.score), -self.loss


@dataclass(frozen=True, kw_only=True, eq=False)
class Model:
    """One peer's trained network.

    module    the network in evaluation mode with the trained parameters
    """

    card: Card
    peer: str
    module: nn.Module

    @classmethod
    def of(cls, card: Card, peer: str, module: nn.Module, layout: FlatLayout, x_n: Tensor) -> Model:
        """Return a peer's model with these parameters (n,), which are written into `module`."""
        module.load_state_dict(layout.unflatten(x_n), strict=False)  # counters are each peer's own and not kept
        return cls(card=card, peer=peer, module=module.eval())

    @property
    def scales(self) -> PeerScales:
        return self.card.peers[self.peer]

    @property
    def own_card(self) -> Card:
        """Card of this peer alone."""
        own = {"peers": {self.peer: self.scales}, "network": self.card.network_of(self.peer), "networks": {}}
        return self.card.model_copy(update=own)

    def standalone(self) -> Model:
        """Return the model as a plain network: adapters are added into their layers, and no parameters are left out."""
        own = self.own_card
        plain = {"network": without_adapters(own.network), "frozen": (), "lora": None, "start": None}
        card = own.model_copy(update=plain)
        return Model(card=card, peer=self.peer, module=merged(self.module))

    @property
    def loss(self) -> Loss:
        return LOSSES[self.card.loss]

    @cached_property
    def program(self) -> Program:
        """Network that takes raw inputs and returns probabilities, or numbers in the data's units."""
        return Program(
            self.module,
            self.scales.view(),
            self.loss,
            shift=self.scales.target_shift,
            scale=self.scales.target_scale,
        ).to(self._device)

    @property
    def _device(self) -> torch.device:
        return next((each.device for each in self.module.parameters()), torch.device("cpu"))

    @torch.no_grad()
    def answers(self, x: NDArray[np.generic]) -> NDArray[np.float32]:
        """Return the probabilities (N, C) for raw inputs (N, *F), or the numbers (N, outputs) in the data's units."""
        inputs = torch.from_numpy(np.ascontiguousarray(x)).to(self.card.shape.dtype)
        pieces = (inputs[first : first + EVALUATED_AT_ONCE] for first in range(0, len(inputs), EVALUATED_AT_ONCE))
        with unrounded(str(self._device)):
            return np.concatenate([self.program(piece.to(self._device)).cpu().numpy() for piece in pieces])

    def evaluate(self, x: NDArray[np.generic], y: NDArray[np.generic]) -> tuple[float, float]:
        """Return score and loss on raw inputs (N, *F) and targets (N,); numbers are in the data's units."""
        layout = FlatLayout.of(self.module)
        scales = self.scales
        if self.loss.task == "regression":
            shift, scale = (np.array(each, np.float32) for each in (scales.target_shift, scales.target_scale))
            y = Normaliser(shift.reshape(y.shape[1:]) if shift.ndim else shift, scale).apply(y)
        inputs = torch.from_numpy(np.ascontiguousarray(x)).to(self.card.shape.dtype)
        examples = Examples(inputs, torch.arange(len(inputs)), torch.from_numpy(np.ascontiguousarray(y)))
        stepper = Loop(self.module, layout, self.loss, OptimizerChoice())
        x_n = layout.flatten(self.module)
        return evaluate(stepper, self.loss, x_n, examples, scales.view(), scales.target_scale)


# --------------------------------------------------------------------------------------------------------------- files


def save(folder: Path, card: Card, x_n: Tensor, layout: FlatLayout) -> None:
    """Write a peer's model into its state folder: the card, then the parameters.

    Raises:
        OSError: the disk is full, read-only or failing; the previous model is kept.
    """
    write_json(folder / "model.json", card.model_dump(mode="json"))
    _write_parameters(folder / "model.safetensors", x_n, layout)


def save_best(folder: Path, card: Card, x_n: Tensor, layout: FlatLayout, found: BestRound) -> bool:
    """Write a peer's model as its best one, unless an earlier round was better; return whether it was written.

    Raises:
        OSError: as `save`.
        ModelError: the score of the earlier round cannot be read.
    """
    if not found.beats(best_round(folder / "best.json"), counts=LOSSES[card.loss].counts):
        return False
    _write_parameters(folder / "best.safetensors", x_n, layout)
    write_json(folder / "best.json", found.model_dump(mode="json"))
    return True


def forget_best(folder: Path) -> BestRound | None:
    """Delete a peer's best model, and return its round; None: there was none.

    Raises:
        OSError, ModelError: as `save_best`.
    """
    found = best_round(folder / "best.json")
    if found is not None:
        for name in ("best.json", "best.safetensors"):
            (folder / name).unlink(missing_ok=True)
    return found


def best_round(path: Path) -> BestRound | None:
    """Read the round of the best model; None: there is none.

    Raises:
        ModelError: the file is damaged.
    """
    try:
        return BestRound.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as problem:
        reason = str(problem).splitlines()[0]
        raise ModelError(f"{path} is damaged ({reason}); remove it: the next evaluated round begins anew") from None


def _write_parameters(path: Path, x_n: Tensor, layout: FlatLayout) -> None:
    from safetensors.torch import save as packed

    with replacing(path) as temporary:
        temporary.write_bytes(packed({name: value.contiguous() for name, value in layout.unflatten(x_n).items()}))


def load_model(tensors: Path, card: Path, peer: str | None, code: Loader) -> Model:
    """Load one peer's model from the files of its tensors and its card.

    Args:
        peer: the peer, if the files have several models; tensor names then begin with it ("peer1/hidden1.weight").
        code: imports the function of a network `python:module:function`, or rejects it.

    Raises:
        ModelError: a file is missing or damaged, or the files do not belong together.
    """
    described = _read_card(card)
    known = list(described.peers)
    whose = known[0] if peer is None and len(known) == 1 else peer
    if whose not in described.peers:
        advice = "choose a peer with --peer" if whose is None else f'it has no peer "{whose}"'
        names = ", ".join(known[:8]) + (" ..." if len(known) > 8 else "")
        raise ModelError(f"{card}: {advice}; it has {names}")
    network = described.network_of(whose)
    if network is None:
        raise ModelError(f"{card}: the network was passed as a Python object; use Results.state_dict in Python")
    outputs = outputs_of(described.loss, described.shape)
    draws = Draws(described.seed)
    learning = LearningSettings(frozen=list(described.frozen), lora=described.lora, start=described.start)
    module = build_network(network, described.shape, outputs, draws, code, build_pretrained)
    try:
        module = prepared(module, learning, draws, trained_of(learning)).eval()
    except DataError as problem:
        raise ModelError(f"{card}: its frozen parameters cannot be read: {problem}") from None
    wanted = {tensor.name: tensor.shape for tensor in FlatLayout.of(module).tensors}
    prefix = f"{whose}/"
    try:
        with safe_open(tensors, framework="pt") as file:
            held = set(file.keys())
            prefix = prefix if any(name.startswith(prefix) for name in held) else ""
            found = {name: file.get_tensor(prefix + name) for name in wanted if prefix + name in held}
    except (OSError, SafetensorError) as problem:
        raise ModelError(f"{tensors} cannot be read ({problem}); train again, or restore it") from None
    wrong = [name for name, shape in wanted.items() if name not in found or tuple(found[name].shape) != shape]
    if wrong:
        raise ModelError(f"{tensors} does not fit the network of {card}: {wrong[0]} is missing or of another shape")
    module.load_state_dict(found, strict=False)  # counters are each peer's own and not kept
    return Model(card=described, peer=whose, module=module)


def _read_card(path: Path) -> Card:
    """Read a card.

    Raises:
        ModelError: the card is missing or damaged.
    """
    try:
        return Card.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        text = "a peer writes its model when it first evaluates it, and runs of version 0.1 have none"
        raise ModelError(f"there is no {path}: {text}") from None
    except OSError as problem:
        raise ModelError(f"{path} cannot be read ({problem.strerror})") from None
    except (ValidationError, UnicodeDecodeError) as problem:
        first = str(problem).splitlines()[:3]
        raise ModelError(f"{path} is damaged ({' '.join(first)}); train again, or restore it") from None
