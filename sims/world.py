"""From settings to things: the data and who holds it, the network and its parts, the plan of each method.

This is where the choices of a federation meet the registries of all rooms. Everything a user can have got wrong that
only shows when data and network are there is raised here, before any worker starts.
"""

from __future__ import annotations

import importlib
import inspect
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedpeer.algorithms.draws import Draws, guarded
from fedpeer.algorithms.losses import LOSSES
from fedpeer.algorithms.registry import ALGORITHMS, Method
from fedpeer.data.dataset import DataError, Dataset, Split
from fedpeer.data.own import OWN
from fedpeer.data.registry import DATASETS
from fedpeer.data.splits import MODIFIERS, SPLITS, default_split, make_split, pieces
from fedpeer.networks.registry import NETWORKS, NetworkError
from fedpeer.peer.core.choice import Choice, bind, lookup, parse, plain
from fedpeer.peer.core.federation import Federation, PartialModelSettings
from fedpeer.slicing.assign import assign_all
from fedpeer.slicing.flat import FlatLayout
from fedpeer.slicing.models import LOCAL, ModelGraph, PartialModel
from fedpeer.slicing.network import NetworkMap
from fedpeer.slicing.plan import Plan, compile_plan
from fedpeer.slicing.trace import trace


def load_dataset(choice: Choice) -> Dataset:
    """A data set by name, or a user's own file."""
    registry: Mapping[str, Callable[..., Dataset]] = {**DATASETS, **OWN}
    function = lookup(choice, registry, "data set")
    if choice.name == "python":
        _look_here()
    return function(**bind(choice, function))


def rule_of(dataset: Dataset, federation: Federation) -> tuple[Choice, ...]:
    """The federation's split, or the data set's own."""
    asked = federation.simulation
    return asked.split or tuple(parse(piece) for piece in pieces(default_split(dataset, asked.peers)))


def split_of(dataset: Dataset, federation: Federation, seed: int) -> Split:
    """Who holds what, drawn from the stream (seed, "split")."""
    rule = rule_of(dataset, federation)
    functions = [
        lookup(rule[0], SPLITS, "split"),
        *(lookup(piece, MODIFIERS, "change of a split") for piece in rule[1:]),
    ]
    bound = [(function, bind(piece, function)) for piece, function in zip(rule, functions, strict=True)]
    return make_split(bound, dataset, federation.simulation.peers, Draws(seed).numpy("split"))


@dataclass(frozen=True, kw_only=True)
class World:
    """One seed's federation, ready to be trained by any method.

    federation     with all that was left open filled in: network, split, loss, start, normalisation, partial models
    """

    federation: Federation
    seed: int
    dataset: Dataset
    split: Split
    peers: tuple[str, ...]
    module: nn.Module
    network: NetworkMap
    layout: FlatLayout

    @property
    def draws(self) -> Draws:
        return Draws(self.seed)

    @property
    def loss(self) -> str:
        assert self.federation.learning.loss is not None, "filled in by `build`"
        return self.federation.learning.loss


def build(federation: Federation, dataset: Dataset, seed: int, module: nn.Module | None = None) -> World:
    """Split the data, build (unless one is given) and trace the network, fill in what the federation leaves open."""
    loss = _loss(federation, dataset)
    split = split_of(dataset, federation, seed)
    network_choice = federation.network if module is not None else federation.network or _default_network(dataset)
    own = module is not None or (network_choice is not None and network_choice.name == "python")
    if module is None:
        assert network_choice is not None
        module = build_network(network_choice, dataset, _outputs(loss, dataset), Draws(seed))
    _check_outputs(module, dataset, _outputs(loss, dataset))
    network = trace(module, _example(dataset))
    peers = tuple(f"peer{number}" for number in range(1, len(split.shares) + 1))
    learning = {"loss": loss, "start": federation.learning.start or _default_start(module, own)}
    simulation = {
        "peers": len(peers),
        "split": rule_of(dataset, federation),
        "normalise": federation.simulation.normalise or _default_normalisation(federation, dataset),
    }
    models = federation.partial_models or {model.name: _settings(model) for model in default_models(network)}
    filled = federation.model_copy(
        update={
            "network": network_choice,
            "partial_models": models,
            "learning": federation.learning.model_copy(update=learning),
            "simulation": federation.simulation.model_copy(update=simulation),
        }
    )
    return World(
        federation=filled,
        seed=seed,
        dataset=dataset,
        split=split,
        peers=peers,
        module=module,
        network=network,
        layout=FlatLayout.of(network),
    )


def _loss(federation: Federation, dataset: Dataset) -> str:
    loss = federation.learning.loss or ("cross-entropy" if dataset.task == "classification" else "mean-squared-error")
    if LOSSES[loss].classifies != (dataset.task == "classification"):
        fitting = ", ".join(name for name, each in LOSSES.items() if each.classifies != LOSSES[loss].classifies)
        raise DataError(f"learning.loss = {loss} does not fit {dataset.name}, a {dataset.task} task; choose {fitting}")
    if loss == "binary" and len(dataset.classes) != 2:
        raise DataError(
            f"learning.loss = binary needs two classes, and {dataset.name} has {len(dataset.classes)}; "
            "choose cross-entropy"
        )
    return loss


def _outputs(loss: str, dataset: Dataset) -> int:
    return LOSSES[loss].outputs(len(dataset.classes)) if dataset.classes else math.prod(dataset.y.shape[1:])


def _default_network(dataset: Dataset) -> Choice:
    return Choice({"image": "cnn", "tokens": "lstm"}.get(dataset.input_kind, "mlp"))


def _default_start(module: nn.Module, own: bool) -> Choice:
    """A user's own network as it was built, since it may be a trained one; U(-1/2, 1/2) for a perceptron of sigmoids,
    which any other start leaves under-trained in the paper's budget; else the modules' own draw."""
    if own:
        return Choice("built")
    kinds = {type(each) for each in module.modules()} - {type(module)}
    perceptron = isinstance(module, nn.Sequential) and nn.Sigmoid in kinds
    return Choice("uniform" if perceptron and kinds <= {nn.Linear, nn.Sigmoid, nn.Flatten} else "torch")


def _default_normalisation(federation: Federation, dataset: Dataset) -> str:
    """One's own files and regression on a common scale; the known data sets as their papers use them."""
    own = federation.simulation.dataset.name in OWN
    return "standard" if own or dataset.task == "regression" else "none"


def _settings(model: PartialModel) -> PartialModelSettings:
    """A partial model as a federation file has it."""
    neurons = model.neurons if model.neurons == "all" else dict(model.neurons)
    return PartialModelSettings.model_validate({"neurons": neurons, "modules": list(model.modules)})


def build_network(choice: Choice, dataset: Dataset, outputs: int, draws: Draws) -> nn.Module:
    """One of `NETWORKS`, or a user's own function (`python:module:function`).

    The user's function is called with the shape of one example and the number of outputs if it takes two positional
    arguments, else with none, and with the settings by name.
    """
    if choice.name != "python":
        function = lookup(choice, NETWORKS, "network")
        settings = bind(choice, function)
        if dataset.input_kind == "tokens" and "vocabulary" in inspect.signature(function).parameters:
            settings.setdefault("vocabulary", max(len(dataset.classes), int(dataset.x.max()) + 1))
        with guarded(draws.key("build")):
            return function(dataset.input_shape, outputs, **settings)
    settings = {key: plain(value) for key, value in choice.settings.items()}
    name = str(choice.value or settings.pop("function", ""))
    build_one = imported(name)
    positional = [
        p for p in inspect.signature(build_one).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    ]  # fmt: skip
    arguments = (dataset.input_shape, outputs) if len(positional) == 2 else ()
    with guarded(draws.key("build")):
        try:
            module = build_one(*arguments, **settings)
        except Exception as problem:  # whatever the user's function raises
            said = f"{type(problem).__name__}: {problem}"
            raise NetworkError(f"network python:{name}: calling it failed: {said}") from problem
    if not isinstance(module, nn.Module):
        raise NetworkError(f"network python:{name} gave {type(module).__name__}; it must return an nn.Module")
    return module


def imported(name: str) -> Callable[..., Any]:
    """The function `module:function`, looked for in the current folder too, as `python -m` does."""
    module_name, _, function = name.partition(":")
    _look_here()
    try:
        module = importlib.import_module(module_name)
    except ImportError as problem:
        raise NetworkError(
            f"python:{name}: cannot import {module_name}: {problem}; start fedpeer in its folder, or install it"
        ) from None
    found: Callable[..., Any] | None = getattr(module, function, None)
    if not callable(found):
        raise NetworkError(f"python:{name}: {module_name} has no function {function}")
    return found


def _look_here() -> None:
    """Let a user's own modules be found in the current folder, as `python -m` does; workers inherit it."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)


def _example(dataset: Dataset) -> Tensor:
    dtype = torch.int64 if dataset.input_kind == "tokens" else torch.float32
    return torch.zeros((2, *dataset.input_shape), dtype=dtype)


def _check_outputs(module: nn.Module, dataset: Dataset, outputs: int) -> None:
    module.eval()
    example = _example(dataset)
    try:
        with torch.no_grad():
            found = tuple(module(example).shape)
    except (RuntimeError, TypeError, ValueError, IndexError) as problem:
        raise NetworkError(
            f"the network cannot take two examples of {dataset.name}, of shape {tuple(example.shape[1:])} "
            f"({dataset.input_kind}): {problem}; choose a network that fits, such as {_default_network(dataset)}"
        ) from None
    if found != (2, outputs):
        raise NetworkError(
            f"the network answers two examples with shape {found}; it must be (2, {outputs}), "
            f"{outputs} outputs for each example"
        )


#: The paper's averaging level 80 of 784-300-100-10 (partial averaging 2021, section V.1); other sizes: four fifths.
LEVEL_80 = {300: 250, 100: 80}


def default_models(network: NetworkMap) -> tuple[PartialModel, ...]:
    """For a federation that names no partial models: one global model with all inputs, outputs and most of the hidden
    neurons, and every module that cannot be sliced."""
    ends = {"input", network.aliases.get("output", "output")}
    neurons: dict[str, Any] = {
        part.name: "all" if part.name in ends else LEVEL_80.get(part.size, round(0.8 * part.size))
        for part in network.parts
    }
    whole = dict.fromkeys(tensor.name for tensor in network.tensors if tensor.unsliceable)
    return (PartialModel("everyone", (), neurons, tuple(whole)),)


def plan_of(world: World, method: Method) -> Plan:
    """Who averages what under this method."""
    return plan_for(world.federation, world.network, world.peers, method)


def plan_for(federation: Federation, network: NetworkMap, peers: Sequence[str], method: Method) -> Plan:
    """The same from the network alone, before there is any data."""
    models: tuple[PartialModel, ...] = ()
    if method.sharing == "everything":
        models = (PartialModel("everyone", (), "all"),)
    elif method.sharing == "partial models":
        models = federation.models() or default_models(network)
    if federation.learning.buffers == "local":
        models = _with_local_norms(models, network)
    networks = dict.fromkeys(peers, network)
    graph = ModelGraph(models)
    return compile_plan(networks, graph, assign_all(networks, graph), cross_model=method.cross_model)


def _with_local_norms(models: tuple[PartialModel, ...], network: NetworkMap) -> tuple[PartialModel, ...]:
    """Normalisation with running statistics, scale and shift included, is each peer's own (FedBN, Li et al. 2021)."""
    norms = dict.fromkeys(tensor.module for tensor in network.tensors if tensor.kind == "buffer")
    before = {module: None for model in models if model.name == LOCAL for module in model.modules}
    private = PartialModel(LOCAL, modules=(*before, *(norm for norm in norms if norm not in before)))
    return (*(model for model in models if model.name != LOCAL), private) if private.modules else models


def method_of(choice: Choice) -> Method:
    function = lookup(choice, ALGORITHMS, "algorithm")
    method: Method = function(**bind(choice, function))
    return method
