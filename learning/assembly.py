"""Builds loss, network and initial weights from a federation's settings.

Here the choices of a federation are looked up in the registries of the pure packages. Simulated and real peers both use
this module, so the same file and seed give them the same network, the same initial weights and the same groups.

Data sets, files and imports are elsewhere: `DataShape` is all that a network must know about the data, and the caller
passes a loader for the function of a user's own network (`python:module:function`).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedpeer.algorithms.draws import Draws, guarded
from fedpeer.algorithms.losses import LOSSES, Loss, Task
from fedpeer.algorithms.optimizers import OptimizerChoice
from fedpeer.algorithms.own_loss import check_own_loss, own_loss
from fedpeer.algorithms.own_rule import learns
from fedpeer.algorithms.start import STARTS, put_into
from fedpeer.config.building import Loader, optimizer_of
from fedpeer.config.choice import Choice, ChoiceError, bind_settings, call_choice, lookup, own_function
from fedpeer.config.pretrained import PRETRAINED, PretrainedNetwork, pretrained_network
from fedpeer.config.settings import FederationSettings, LearningSettings, PartialModelSettings
from fedpeer.learning.groups import default_models
from fedpeer.networks.lora import adapt, freeze
from fedpeer.networks.registry import NETWORKS, NetworkError
from fedpeer.slicing.flat import FlatLayout, frozen_parameters, module_copy
from fedpeer.slicing.models import PartialModel
from fedpeer.slicing.network import NetworkMap
from fedpeer.slicing.trace import trace


class Described(Protocol):
    """A data set as this module sees it, such as `fedpeer.data.dataset.Dataset`."""

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
    @property
    def vocabulary(self) -> int: ...
    @property
    def padding(self) -> int | None: ...


@dataclass(frozen=True, kw_only=True)
class DataShape:
    """Shape of the data, as a network must know it.

    input_shape    shape of one example, without the batch
    classes        number of classes, or of labels; 0 for other tasks
    targets        numbers to predict for one example; 1 for classification
    vocabulary     number of different tokens; 0 for other inputs
    padding        token that fills up short texts at their end; None: there is none
    """

    name: str
    input_shape: tuple[int, ...]
    input_kind: Literal["features", "image", "tokens"]
    task: Task
    classes: int
    targets: int
    vocabulary: int
    padding: int | None = None

    @classmethod
    def of(cls, data: Described) -> DataShape:
        tokens = data.input_kind == "tokens"
        seen = (data.x, data.y) if data.task == "next-token" else (data.x,)
        return cls(
            name=data.name,
            input_shape=tuple(data.x.shape[1:]),
            input_kind=data.input_kind,
            task=data.task,
            classes=len(data.classes),
            targets=math.prod(data.y.shape[1:]),
            vocabulary=(data.vocabulary or max(len(data.classes), *(int(np.max(each)) + 1 for each in seen)))
            if tokens
            else 0,
            padding=data.padding if tokens else None,
        )

    @property
    def dtype(self) -> torch.dtype:
        """Type of the inputs."""
        return torch.int64 if self.input_kind == "tokens" else torch.float32

    def example(self, count: int = 2) -> Tensor:
        """Return examples of zeros to trace a network with, (count, *input_shape)."""
        return torch.zeros((count, *self.input_shape), dtype=self.dtype)


#: Loads a pretrained network from its folder, for data of this shape, with this number of outputs.
PretrainedLoader: TypeAlias = Callable[[PretrainedNetwork, DataShape, int], nn.Module]


@dataclass(frozen=True, kw_only=True)
class Assembly:
    """A federation applied to data of some shape.

    options       the federation as its file has it, which is what peers compare
    federation    the federation with network (this peer's own, if it has one), loss, start and partial models filled in
    module        the network; its parameters are used by `start: built` only
    criterion     the loss of its outputs
    optimizer     the local optimizer
    """

    options: FederationSettings
    federation: FederationSettings
    seed: int
    shape: DataShape
    module: nn.Module
    network: NetworkMap
    layout: FlatLayout
    criterion: Loss
    optimizer: OptimizerChoice

    @property
    def draws(self) -> Draws:
        return Draws(self.seed)

    def fits(self, federation: FederationSettings, shape: DataShape, network: Choice | None) -> bool:
        """Return whether `assemble` would build the same from these arguments."""
        choice = network or federation.network or _default_network(shape)
        return self.options == federation and self.shape == shape and self.federation.network == choice

    @property
    def loss(self) -> str:
        """Name of the loss that decides how outputs become answers: for a user's own loss, the name of the task's."""
        return self.criterion.name if self.criterion.name in LOSSES else _USUAL_LOSS[self.shape.task]

    def start(self, peer: str) -> Tensor:
        """Return the peer's initial parameters, (n,): drawn once for all peers, or for each peer."""
        learning = self.federation.learning
        return self.drawn("" if learning.common_start else peer)

    def drawn(self, name: str) -> Tensor:
        """Return initial parameters, (n,), from the random draw of this name; "" is the draw that all peers share."""
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
    code: Loader | None = None,
    pretrained: PretrainedLoader | None = None,
) -> Assembly:
    """Build the network, trace it, and fill in the settings that the federation leaves out.

    Args:
        module: the network, if it is built already.
        network: a peer's own network instead of the federation's.
        trained: tensors of the model to start from, if `learning.start` names one.
        code: imports the federation's own loss and optimizer; default `load`, which imports the network.
        pretrained: loads a pretrained network (`learning.pretrained.build_pretrained`), if there may be one.

    Raises:
        ChoiceError, NetworkError, LossError, SlicingError: the user's mistakes, with the place and the way out.
    """
    learning = federation.learning
    loss = _wanted_loss(learning, shape, code or load)
    outputs = _outputs(loss, shape)
    if loss.name not in LOSSES:
        check_own_loss(loss, outputs)
    choice = network or federation.network or (None if module is not None else _default_network(shape))
    own = module is not None or (choice is not None and choice.name == "python")
    if module is None:
        assert choice is not None
        module = build_network(choice, shape, outputs, Draws(seed), load, pretrained)
    module = prepared(module, learning, Draws(seed), trained)
    _check_outputs(module, shape, outputs, loss)
    _check_rule(module, loss, shape)
    map_n = trace(module, shape.example())
    # Pretrained parameters begin as they were loaded, and adapters as they were made: without effect.
    own = own or learning.lora is not None or (choice is not None and choice.name == PRETRAINED)
    filled = {
        "loss": learning.loss or Choice(loss.name),
        "start": learning.start or _default_start(module, own),
    }
    models = federation.partial_models or {model.name: _settings(model) for model in default_models(map_n)}
    return Assembly(
        options=federation,
        federation=federation.model_copy(
            update={
                "network": choice,
                "partial_models": models,
                "learning": learning.model_copy(update=filled),
            }
        ),
        seed=seed,
        shape=shape,
        module=module,
        network=map_n,
        layout=FlatLayout.of(map_n),
        criterion=loss,
        optimizer=optimizer_of(federation.learning.optimizer, code or load),
    )


def prepared(
    module: nn.Module, learning: LearningSettings, draws: Draws, trained: Mapping[str, Tensor] | None
) -> nn.Module:
    """Return a network with the values of a trained model, with the frozen parameters and the adapters of the settings.

    Raises:
        NetworkError: the trained model does not fit, a name is unknown, or nothing is left to train.
    """
    problem = None
    if learning.changes_network:
        module = module_copy(module)
    if trained is not None:
        problem = _put(module, trained)
    freeze(module, learning.frozen)
    if learning.lora is not None:
        with guarded(draws.key("lora")):
            module = adapt(module, learning.lora.targets, learning.lora.rank, learning.lora.scale)
        if trained is not None and _put(module, trained) is None:  # a model that has adapters itself
            problem = None
    if problem is not None:
        raise NetworkError(f"learning.start: {learning.start}: {problem}")
    if not learns(module) and not any(parameter.requires_grad for parameter in module.parameters()):
        raise NetworkError(
            "learning.frozen: nothing is left to train; freeze less, or add learning.lora"
            if learning.changes_network
            else "the network has nothing to train: no parameter has requires_grad; let some be trained, or add "
            "learning.lora"
        )
    frozen = frozen_parameters(module)
    if trained is None and learning.start is not None and learning.start.name == "file" and frozen:
        raise NetworkError(
            "learning.start: the file with the frozen parameters is needed in each process; name it, as in "
            "file:model.safetensors"
        )
    for name, parameter in frozen.items():
        given = None if trained is None else trained.get(name, trained.get(name.replace(".base.", ".")))
        if given is not None and (given.shape, given.dtype) == (parameter.shape, parameter.dtype):
            parameter.data = (
                given  # the values are the same, but `given` stays in its file, which is mapped into memory
            )
    return module


def _put(module: nn.Module, trained: Mapping[str, Tensor]) -> str | None:
    """Put a trained model into a module; return why it does not fit, or None."""
    try:
        put_into(module, trained)
    except ValueError as problem:
        return str(problem)
    return None


def _wanted_loss(learning: LearningSettings, shape: DataShape, load: Loader) -> Loss:
    """Return the loss of the settings, or the usual one of the task.

    Raises:
        ChoiceError: the loss does not fit the data.
    """
    loss = _USUAL_LOSS[shape.task] if learning.loss is None else learning.loss.name
    if learning.loss is not None and loss == "python":
        if shape.task == "completion":
            raise ChoiceError(f"learning.loss: patterns of {shape.name} are not learned by a loss; leave it out")
        if shape.task == "next-token":
            raise ChoiceError("learning.loss: next tokens are learned by the loss next-token; leave it out")
        name, settings = own_function(learning.loss)
        return own_loss(f"python:{name}", load(name), settings, shape.task)
    if LOSSES[loss].task != shape.task:
        fitting = ", ".join(name for name, each in LOSSES.items() if each.task == shape.task)
        raise ChoiceError(f"learning.loss = {loss} does not fit {shape.name}, a {shape.task} task; choose {fitting}")
    if learning.demands_class_weights and shape.task != "classification":
        raise ChoiceError(
            f"learning.class_weights: {shape.name} is a {shape.task} task, which has no classes; leave it out"
        )
    if loss == "binary" and shape.classes != 2:
        raise ChoiceError(
            f"learning.loss = binary needs two classes, and {shape.name} has {shape.classes}; choose cross-entropy"
        )
    return LOSSES[loss]


_USUAL_LOSS: Mapping[Task, str] = {
    "classification": "cross-entropy",
    "multi-label": "multi-label",
    "regression": "mean-squared-error",
    "completion": "completion",
    "next-token": "next-token",
}


def outputs_of(loss: str, shape: DataShape) -> int:
    """Return the number of outputs that the network needs per example, or for next tokens per position in it."""
    return _outputs(LOSSES[loss], shape)


def _outputs(loss: Loss, shape: DataShape) -> int:
    if shape.task == "next-token":
        return shape.vocabulary
    return loss.outputs(shape.classes) if shape.classes else shape.targets


def _default_network(shape: DataShape) -> Choice:
    if shape.task == "completion":
        return Choice("associative")
    if shape.task == "next-token":
        return Choice("transformer", None, {"causal": True})
    return Choice({"image": "cnn", "tokens": "lstm"}.get(shape.input_kind, "mlp"))


def _default_start(module: nn.Module, own: bool) -> Choice:
    """Return the default start: `built` for a user's own network, because it may be trained already.

    For a perceptron of sigmoids it is U(-1/2, 1/2): any other start leaves it under-trained in the paper's budget. For
    the other networks it is the modules' own draw.
    """
    if own:
        return Choice("built")
    kinds = {type(each) for each in module.modules()} - {type(module)}
    perceptron = isinstance(module, nn.Sequential) and nn.Sigmoid in kinds
    return Choice("uniform" if perceptron and kinds <= {nn.Linear, nn.Sigmoid, nn.Flatten} else "torch")


def build_network(
    choice: Choice,
    shape: DataShape,
    outputs: int,
    draws: Draws,
    load: Loader,
    pretrained: PretrainedLoader | None = None,
) -> nn.Module:
    """Build one of `NETWORKS`, load a pretrained one, or call a user's own function, which `load` imports.

    The user's function gets the settings by name and, if it takes two positional arguments, the shape of one example
    and the number of outputs.
    """
    if choice.name == PRETRAINED:
        assert pretrained is not None, "whoever may meet one passes what loads it"
        with guarded(draws.key("build")):  # a classifier and adapters that are new begin at random
            return pretrained(pretrained_network(choice), shape, outputs)
    if choice.name != "python":
        function = lookup(choice, NETWORKS, "network")
        settings = bind_settings(choice, function)
        of_text = {"vocabulary": shape.vocabulary or None, "padding": shape.padding}
        known = inspect.signature(function).parameters
        for name, value in of_text.items():
            if value is not None and name in known:
                settings.setdefault(name, value)
        with guarded(draws.key("build")):
            return function(shape.input_shape, outputs, **settings)
    name, settings = own_function(choice)
    build_one = load(name)
    positional = [
        p for p in inspect.signature(build_one).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    ]  # fmt: skip
    arguments = (shape.input_shape, outputs) if len(positional) == 2 else ()
    with guarded(draws.key("build")):
        try:
            module = build_one(*arguments, **settings)
        except (Exception, SystemExit) as problem:  # whatever the user's function raises
            reason = f"{type(problem).__name__}: {problem}"
            raise NetworkError(f"network python:{name}: calling it failed: {reason}") from problem
    if not isinstance(module, nn.Module):
        raise NetworkError(f"network python:{name} returned {type(module).__name__}; it must return an nn.Module")
    return module


def _check_outputs(module: nn.Module, shape: DataShape, outputs: int, loss: Loss) -> None:
    if any(isinstance(each, torch.jit.ScriptModule) for each in module.modules()):
        raise NetworkError("the network is TorchScript, which cannot be traced; take the nn.Module that it was made of")
    module.eval()
    two = f"two examples of {shape.name}, of shape {shape.input_shape} ({shape.input_kind})"
    try:
        with torch.no_grad():
            returned = module(shape.example())
    except Exception as problem:  # whatever a user's module raises
        torchs = isinstance(problem, (RuntimeError, TypeError, ValueError, IndexError, AssertionError))
        said = str(problem) if torchs else f"{type(problem).__name__}: {problem}"
        raise NetworkError(f"the network cannot take {two}: {said}; {_fitting(module, shape)}") from None
    places = shape.input_shape[:1] if shape.task == "next-token" else ()
    counted = "one output" if outputs == 1 else f"{outputs} outputs"
    wanted = f"({', '.join(map(str, (2, *places, outputs)))}), {counted} for each "
    wanted += "place of an example" if places else "example"
    if not isinstance(returned, Tensor):
        raise NetworkError(
            f"the network returned {type(returned).__name__} for two examples; it must return one tensor of shape "
            f"{wanted}; return the logits alone"
        )
    found = tuple(returned.shape)
    enough = found[-1:] >= (outputs,) if places else found[-1:] == (outputs,)  # a model may know more tokens
    if found[:-1] != (2, *places) or not enough:
        raise NetworkError(f"the network's output for two examples has shape {found}; it must be {wanted}")
    if not returned.is_floating_point():
        raise NetworkError(f"the network's output is {returned.dtype}; it must be torch.float32, as logits are")
    if loss.name == "cross-entropy" and outputs > 1 and bool((returned >= 0).all()):
        total = returned.sum(dim=-1)
        if torch.allclose(total, torch.ones_like(total), atol=1e-4):
            raise NetworkError(
                "the network's outputs are probabilities, and the loss cross-entropy takes their softmax; return the "
                "logits, without a softmax"
            )


def _fitting(module: nn.Module, shape: DataShape) -> str:
    """Return the way out for a user whose network does not take the examples."""
    others = {each.dtype for each in module.parameters()} - {torch.float32}
    if others and shape.input_kind != "tokens":
        return f"examples are torch.float32, and it has parameters of {others.pop()}; convert it with .float()"
    choose = f"choose a network that fits, such as {_default_network(shape)}"
    if shape.input_kind != "image" or shape.input_shape[0] != 1:
        return choose
    rows = " x ".join(map(str, shape.input_shape[1:]))
    return (
        f"the examples were taken for images of {rows} with one channel: if they are sequences, write kind=features "
        f'(in Python a Dataset with input_kind="features"); else {choose}'
    )


def _check_rule(module: nn.Module, loss: Loss, shape: DataShape) -> None:
    """Check that the network has a learning rule of its own if the task is to complete patterns, and only then."""
    completes = loss.task == "completion"
    if completes and not learns(module):
        raise ChoiceError(
            f"{shape.name} has patterns to complete, which are not learned by gradients; write network: associative, "
            "or choose a module with its own learning rule"
        )
    if learns(module) and not completes:
        raise ChoiceError(
            f"the network has its own learning rule and does not use the gradient of {loss.name}; choose a data set of "
            "patterns to complete, such as associative, or another network"
        )


def _settings(model: PartialModel) -> PartialModelSettings:
    """Return a partial model as a federation file has it."""
    neurons = model.neurons if model.neurons == "all" else dict(model.neurons)
    return PartialModelSettings.model_validate({"neurons": neurons, "modules": list(model.modules)})
