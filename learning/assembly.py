"""From a federation's settings to the things that learn: loss, network, first weights.

This is where the choices of a federation meet the registries of the pure rooms. A simulated peer and a real one come
through here alike, so from the same file and seed they get the same network, the same first weights, the same groups.

Data sets, files and imports are elsewhere: what must be known about the data comes in as a `DataShape`, and the
function that a user's own network (`python:module:function`) names comes from a loader that is handed in.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedpeer.algorithms.draws import Draws, guarded
from fedpeer.algorithms.losses import LOSSES, Task
from fedpeer.algorithms.own_rule import learns
from fedpeer.algorithms.start import STARTS, put_into
from fedpeer.config.building import Loader
from fedpeer.config.choice import Choice, ChoiceError, bind_settings, call_choice, lookup, plain_value
from fedpeer.config.settings import FederationSettings, LearningSettings, PartialModelSettings
from fedpeer.learning.groups import default_models
from fedpeer.networks.registry import NETWORKS, NetworkError
from fedpeer.slicing.flat import FlatLayout
from fedpeer.slicing.models import PartialModel
from fedpeer.slicing.network import NetworkMap
from fedpeer.slicing.trace import trace


class Described(Protocol):
    """What a data set says of itself; `fedpeer.data.dataset.Dataset` does."""

    @property
    def name(self) -> str: ...
    @property
    def x(self) -> NDArray[np.generic]: ...
    @property
    def y(self) -> NDArray[np.generic]: ...
    @property
    def task(self) -> Task: ...
    @property
    def input_kind(self) -> Literal["features", "image", "tokens"]: ...
    @property
    def classes(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, kw_only=True)
class DataShape:
    """What a network must know of the data that it is for.

    input_shape    of one example, without the batch
    classes        how many there are; 0 where the task is another
    targets        numbers to predict for one example; 1 for classification
    vocabulary     how many tokens there are; 0 where the inputs are none
    """

    name: str
    input_shape: tuple[int, ...]
    input_kind: Literal["features", "image", "tokens"]
    task: Task
    classes: int
    targets: int
    vocabulary: int

    @classmethod
    def of(cls, data: Described) -> DataShape:
        tokens = data.input_kind == "tokens"
        return cls(
            name=data.name,
            input_shape=tuple(data.x.shape[1:]),
            input_kind=data.input_kind,
            task=data.task,
            classes=len(data.classes),
            targets=math.prod(data.y.shape[1:]),
            vocabulary=max(len(data.classes), int(np.max(data.x)) + 1) if tokens else 0,
        )

    @property
    def dtype(self) -> torch.dtype:
        """Of the inputs."""
        return torch.int64 if self.input_kind == "tokens" else torch.float32

    def example(self, count: int = 2) -> Tensor:
        """(count, *input_shape) of zeros, to trace a network with."""
        return torch.zeros((count, *self.input_shape), dtype=self.dtype)


@dataclass(frozen=True, kw_only=True)
class Assembly:
    """What a federation is for data of some shape.

    asked         the federation as its file says, which is what peers compare
    federation    with network (this peer's own, if it has one), loss, start and partial models filled in
    module        its own tensors matter for `start: built` only; else its form does
    """

    options: FederationSettings
    federation: FederationSettings
    seed: int
    shape: DataShape
    module: nn.Module
    network: NetworkMap
    layout: FlatLayout

    @property
    def draws(self) -> Draws:
        return Draws(self.seed)

    @property
    def loss(self) -> str:
        assert self.federation.learning.loss is not None, "filled in by `assemble`"
        return self.federation.learning.loss

    def start(self, peer: str) -> Tensor:
        """(n,) the peer's initial parameters: one draw for all peers, or one for each."""
        learning = self.federation.learning
        return self.drawn("" if learning.common_start else peer)

    def drawn(self, name: str) -> Tensor:
        """(n,) initial parameters from the draw of that name; the common one has none."""
        learning = self.federation.learning
        assert learning.start is not None, "filled in by `assemble`"
        x_n: Tensor = call_choice(learning.start, STARTS, "start")(self.module, self.layout, self.draws, name)
        return x_n


def assemble(
    federation: FederationSettings,
    shape: DataShape,
    seed: int,
    load: Loader,
    *,
    module: nn.Module | None = None,
    network: Choice | None = None,
    trained: Mapping[str, Tensor] | None = None,
) -> Assembly:
    """Build the network, trace it, and fill in what the federation leaves open.

    `module` is the network itself, where it is there already; `network` a peer's own instead of the federation's;
    `trained` the tensors of a model to begin with, where `learning.start` names one.

    Raises:
        ChoiceError, NetworkError, SlicingError: the user's mistakes, with the place and the way out.
    """
    loss = wanted_loss(federation.learning, shape)
    outputs = outputs_of(loss, shape)
    choice = network or federation.network or (None if module is not None else _default_network(shape))
    own = module is not None or (choice is not None and choice.name == "python")
    if module is None:
        assert choice is not None
        module = build_network(choice, shape, outputs, Draws(seed), load)
    if trained is not None:
        try:
            put_into(module, trained)
        except ValueError as problem:
            raise NetworkError(f"learning.start: {federation.learning.start}: {problem}") from None
    _check_outputs(module, shape, outputs)
    _check_rule(module, loss, shape)
    map_n = trace(module, shape.example())
    filled = {"loss": loss, "start": federation.learning.start or _default_start(module, own)}
    models = federation.partial_models or {model.name: _settings(model) for model in default_models(map_n)}
    return Assembly(
        options=federation,
        federation=federation.model_copy(
            update={
                "network": choice,
                "partial_models": models,
                "learning": federation.learning.model_copy(update=filled),
            }
        ),
        seed=seed,
        shape=shape,
        module=module,
        network=map_n,
        layout=FlatLayout.of(map_n),
    )


def wanted_loss(learning: LearningSettings, shape: DataShape) -> str:
    """The loss asked for, or the usual one of the task.

    Raises:
        ChoiceError: it does not fit the data.
    """
    loss = learning.loss or _USUAL_LOSS[shape.task]
    if LOSSES[loss].task != shape.task:
        fitting = ", ".join(name for name, each in LOSSES.items() if each.task == shape.task)
        raise ChoiceError(f"learning.loss = {loss} does not fit {shape.name}, a {shape.task} task; choose {fitting}")
    if loss == "binary" and shape.classes != 2:
        raise ChoiceError(
            f"learning.loss = binary needs two classes, and {shape.name} has {shape.classes}; choose cross-entropy"
        )
    return loss


_USUAL_LOSS: Mapping[Task, str] = {
    "classification": "cross-entropy",
    "regression": "mean-squared-error",
    "completion": "completion",
}


def outputs_of(loss: str, shape: DataShape) -> int:
    """Outputs that the network needs."""
    return LOSSES[loss].outputs(shape.classes) if shape.classes else shape.targets


def _default_network(shape: DataShape) -> Choice:
    if shape.task == "completion":
        return Choice("associative")
    return Choice({"image": "cnn", "tokens": "lstm"}.get(shape.input_kind, "mlp"))


def _default_start(module: nn.Module, own: bool) -> Choice:
    """A user's own network as it was built, since it may be a trained one; U(-1/2, 1/2) for a perceptron of sigmoids,
    which any other start leaves under-trained in the paper's budget; else the modules' own draw."""
    if own:
        return Choice("built")
    kinds = {type(each) for each in module.modules()} - {type(module)}
    perceptron = isinstance(module, nn.Sequential) and nn.Sigmoid in kinds
    return Choice("uniform" if perceptron and kinds <= {nn.Linear, nn.Sigmoid, nn.Flatten} else "torch")


def build_network(choice: Choice, shape: DataShape, outputs: int, draws: Draws, load: Loader) -> nn.Module:
    """One of `NETWORKS`, or a user's own function (`python:module:function`), which `load` finds.

    The user's function is called with the shape of one example and the number of outputs if it takes two positional
    arguments, else with none, and with the settings by name.
    """
    if choice.name != "python":
        function = lookup(choice, NETWORKS, "network")
        settings = bind_settings(choice, function)
        if shape.vocabulary and "vocabulary" in inspect.signature(function).parameters:
            settings.setdefault("vocabulary", shape.vocabulary)
        with guarded(draws.key("build")):
            return function(shape.input_shape, outputs, **settings)
    settings = {key: plain_value(value) for key, value in choice.settings.items()}
    name = str(choice.value or settings.pop("function", ""))
    build_one = load(name)
    positional = [
        p for p in inspect.signature(build_one).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    ]  # fmt: skip
    arguments = (shape.input_shape, outputs) if len(positional) == 2 else ()
    with guarded(draws.key("build")):
        try:
            module = build_one(*arguments, **settings)
        except Exception as problem:  # whatever the user's function raises
            said = f"{type(problem).__name__}: {problem}"
            raise NetworkError(f"network python:{name}: calling it failed: {said}") from problem
    if not isinstance(module, nn.Module):
        raise NetworkError(f"network python:{name} gave {type(module).__name__}; it must return an nn.Module")
    return module


def _check_outputs(module: nn.Module, shape: DataShape, outputs: int) -> None:
    module.eval()
    example = shape.example()
    try:
        with torch.no_grad():
            found = tuple(module(example).shape)
    except (RuntimeError, TypeError, ValueError, IndexError) as problem:
        raise NetworkError(
            f"the network cannot take two examples of {shape.name}, of shape {shape.input_shape} "
            f"({shape.input_kind}): {problem}; choose a network that fits, such as {_default_network(shape)}"
        ) from None
    if found != (2, outputs):
        raise NetworkError(
            f"the network answers two examples with shape {found}; it must be (2, {outputs}), "
            f"{outputs} outputs for each example"
        )


def _check_rule(module: nn.Module, loss: str, shape: DataShape) -> None:
    """A network with a learning rule of its own completes patterns, and only such a network does."""
    completes = LOSSES[loss].task == "completion"
    if completes and not learns(module):
        raise ChoiceError(
            f"{shape.name} has patterns to complete, of which there is no gradient to learn along; write network: "
            "associative, or a module with a learning rule of its own"
        )
    if learns(module) and not completes:
        raise ChoiceError(
            f"the network learns by a rule of its own, not along the gradient of {loss}; choose data that are to be "
            "completed, such as associative, or another network"
        )


def _settings(model: PartialModel) -> PartialModelSettings:
    """A partial model as a federation file has it."""
    neurons = model.neurons if model.neurons == "all" else dict(model.neurons)
    return PartialModelSettings.model_validate({"neurons": neurons, "modules": list(model.modules)})
