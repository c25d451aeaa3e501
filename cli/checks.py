"""Checks that need several settings, or the registries of other rooms: every choice exists and its settings bind, the
partial models form an order, their neurons fit the network, nothing contradicts.

Nothing here runs code named in a file, nor imports torch (unless an algorithm with a server is named, for its
settings), so that `config check` is quick and safe. What only the data can tell (its number of features, of peers) is
checked when it is loaded.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import numpy as np

from fedpeer.algorithms.aggregation import AGGREGATIONS, Aggregation
from fedpeer.algorithms.byzantine import RobustError
from fedpeer.algorithms.privacy import PRIVACIES, Privacy, PrivacyError
from fedpeer.algorithms.registry import ALGORITHMS, taking_part
from fedpeer.algorithms.start import STARTS
from fedpeer.cli.errors import Path, Problem, shown
from fedpeer.config.capacity import crowding
from fedpeer.config.choice import Choice, ChoiceError, bind, called, lookup, nearest
from fedpeer.config.federation import Federation, GossipSettings
from fedpeer.config.methods import method_of
from fedpeer.config.undecided import unfit as unsought
from fedpeer.data.own import OWN
from fedpeer.data.registry import DATASETS
from fedpeer.data.splits import MODIFIERS, SPLITS
from fedpeer.gossip.drift import unfit as drift_unfit
from fedpeer.gossip.noise import PHASES, Noise, NoiseError, unfit
from fedpeer.networks.registry import NETWORKS
from fedpeer.slicing.assign import assign
from fedpeer.slicing.models import ModelGraph, SlicingError, problems
from fedpeer.slicing.network import NetworkMap, Part, TensorSpec
from fedpeer.topology.graphs import GRAPHS, TopologyError
from fedpeer.topology.overlay import problems as topology_problems

#: Peers of the graph that is built to see whether its settings are in range.
SMALL_GROUP = 8

#: Torch's optimisers and their settings, so that a file is checked without importing torch. A test holds it against
#: torch itself.
OPTIMIZERS = {
    "adadelta": "lr rho eps weight_decay maximize",
    "adafactor": "lr beta2_decay eps d weight_decay maximize",
    "adagrad": "lr lr_decay weight_decay initial_accumulator_value eps maximize",
    "adam": "lr betas eps weight_decay amsgrad maximize decoupled_weight_decay",
    "adamax": "lr betas eps weight_decay maximize",
    "adamw": "lr betas eps weight_decay amsgrad maximize",
    "asgd": "lr lambd alpha t0 weight_decay maximize",
    "nadam": "lr betas eps weight_decay momentum_decay decoupled_weight_decay maximize",
    "radam": "lr betas eps weight_decay decoupled_weight_decay maximize",
    "rmsprop": "lr alpha eps weight_decay momentum centered maximize",
    "rprop": "lr etas step_sizes maximize",
    "sgd": "lr momentum dampening weight_decay nesterov maximize",
}


def _plain() -> None:
    """A form without settings."""


def _top_k(*, share: float) -> None:
    if not 0 < share <= 1:
        raise ChoiceError(f"top-k: share = {share:g}: write a part of 1, such as top-k:0.1")


def _zstd(*, level: int = 3) -> None:
    if not 1 <= level <= 19:
        raise ChoiceError(f"zstd: level = {level}: write 1 (quick) to 19 (small)")


#: Ways to send a value and what may follow them, likewise without torch; a test holds them against `gossip.reductions`.
FORMS: dict[str, Callable[..., None]] = {
    "float32": _plain,
    "float64": _plain,
    "bfloat16": _plain,
    "int8": _plain,
    "top-k": _top_k,
}
PACKERS: dict[str, Callable[..., None]] = {"zstd": _zstd}


def python(choice: Choice) -> None:
    """Check `python:module:function`; its settings are the function's own, which is not imported here."""
    found = str(choice.value or choice.settings.get("function", ""))
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", found):
        raise ChoiceError(f'"{shown(found)}" is not module:function; write it like python:mypkg.nets:build')


def registry(path: Path) -> tuple[str, Mapping[str, Callable[..., Any]]]:
    """What is chosen at a path, in words, and the functions to choose from."""
    known: dict[Path, tuple[str, Mapping[str, Callable[..., Any]]]] = {
        ("network",): ("network", {**NETWORKS, "python": python}),
        ("learning", "algorithm"): ("algorithm", _algorithms()),
        ("learning", "start"): ("start", STARTS),
        ("learning", "aggregation"): ("aggregation", AGGREGATIONS),
        ("learning", "privacy"): ("privacy", PRIVACIES),
        ("gossip", "topology"): ("topology", GRAPHS),
        ("gossip", "privacy"): ("privacy of gossip", PHASES),
        ("simulation", "dataset"): ("data set", {**DATASETS, **OWN}),
    }
    return known[path]


def _algorithms() -> Mapping[str, Callable[..., Any]]:
    """Ours and a reader's own; none of them is imported before it is looked up."""
    own: dict[str, Callable[..., Any]] = {"python": python}
    return ChainMap(own, cast(dict[str, Callable[..., Any]], ALGORITHMS))


#: Paths whose choice is looked up in one registry.
CHOICES: tuple[Path, ...] = (
    ("network",),
    ("learning", "algorithm"),
    ("learning", "start"),
    ("learning", "aggregation"),
    ("learning", "privacy"),
    ("gossip", "topology"),
    ("gossip", "privacy"),
    ("simulation", "dataset"),
)


def contradictions(federation: Federation, data: Mapping[str, Any]) -> list[Problem]:
    """Everything wrong with well-typed settings. `data` tells what was written from what is a default."""
    return [
        *_choices(federation),
        *_optimizer(federation.learning.optimizer),
        *_aggregation(federation),
        *_privacy(federation),
        *_split(federation.simulation.split),
        *_gossip(federation, data),
        *_noise(federation),
        *_drift(federation.gossip),
        *_wire(federation.gossip.wire),
        *_passes(federation),
        *_mode(federation),
        *_partial_models(federation),
        *_undecided(federation),
    ]


def between_peers(federation: Federation) -> list[Problem]:
    """What is wrong with settings in which nothing else is, where peers send messages: what these have no room for."""
    method = method_of(federation.learning.algorithm)
    if method.served and (found := [*_served(federation)]):
        return found
    if method.pooled:
        text = "global pools the examples of all peers, and real peers do not: it is for simulations, to compare with"
        return [Problem(("learning", "algorithm"), text)]
    if method.own_weights and federation.learning.mode != "synchronous":
        text = f"{federation.learning.algorithm} begins each averaging anew, by weights of its own"
        return [Problem(("learning", "mode"), f"{text}; write mode: synchronous")]
    if method.served and federation.gossip.privacy.name != "none":
        text = f"{federation.learning.algorithm} has a coordinator, whom nobody tells noise; write privacy: none"
        return [Problem(("gossip", "privacy"), f"{text}, and learning.privacy for what updates are to hide")]
    for name, plain in (("aggregation", "mean"), ("privacy", "none")):
        if not method.served and getattr(federation.learning, name).name != plain:
            text = f"{federation.learning.algorithm} has no coordinator, to whom this belongs; write {name}: {plain}"
            return [Problem(("learning", name), text)]
    if not method.served and federation.learning.farthest is not None:
        text = f"{federation.learning.algorithm} has no coordinator, to whom this belongs; leave it out"
        return [Problem(("learning", "farthest"), text)]
    if federation.undecided and method.sharing == "partial models":
        name = federation.undecided[0]
        text = "who is alike is found in simulations; write down the members, or the models that fedpeer simulate found"
        return [Problem(("partial_models", name, "members"), text)]
    problem = crowding(federation.models(), method)
    return [] if problem is None else [Problem(_path(problem.place, federation), problem.message)]


def _served(federation: Federation) -> Iterator[Problem]:
    """What does not go with an algorithm that has a server."""
    learning = federation.learning
    if learning.mode != "synchronous":
        text = f"{learning.algorithm} goes round by round, with all who take part; write mode: synchronous"
        yield Problem(("learning", "mode"), text)


def peer_ids(peers: int) -> list[str]:
    """The ids in a simulation."""
    return [f"peer{number}" for number in range(1, peers + 1)]


def choice_problem(path: Path, choice: Choice) -> Problem | None:
    """Why this choice cannot be taken at this path, if so."""
    what, known = registry(path)
    ending = choice.name.rpartition(".")[2].lower()
    if path == ("simulation", "dataset") and choice.name not in known and ending in ("csv", "parquet", "npz"):
        label = "" if ending == "npz" else ",label=NAME"
        return Problem(path, f"a file is named with its kind; write {ending}:{shown(choice.name)}{label}")
    try:
        function = lookup(choice, known, what)
        if choice.name == "python":
            python(choice)
        if function is not python:
            bind(choice, function)
    except ChoiceError as error:
        return Problem(path, str(error))
    return None


def _choices(federation: Federation) -> Iterator[Problem]:
    for path in CHOICES:
        choice = _at(federation, path)
        problem = choice_problem(path, choice) if choice is not None else None
        if problem is not None:
            yield problem


def _at(federation: Federation, path: Path) -> Any:
    value: Any = federation
    for key in path:
        value = getattr(value, str(key))
    return value


def _optimizer(choice: Choice) -> Iterator[Problem]:
    path = ("learning", "optimizer")
    if choice.name not in OPTIMIZERS:
        yield Problem(path, f'there is no optimizer "{shown(choice.name)}"; {nearest(choice.name, list(OPTIMIZERS))}')
        return
    known = OPTIMIZERS[choice.name].split()
    for name in choice.settings:
        if name not in known:
            yield Problem(path, f'"{choice.name}" has no setting "{shown(name)}"; {nearest(name, known)}')
    rate = choice.settings.get("lr", choice.value)
    if rate is not None:
        try:
            lr = bind(Choice("lr", rate), _rate)["lr"]
        except ChoiceError:
            lr = -1.0
        if lr <= 0:
            yield Problem(path, f"lr = {shown(rate)}: write a number above 0, such as {choice.name},lr=0.1")


def _rate(*, lr: float) -> None:
    """Only for its annotation."""


def _aggregation(federation: Federation) -> Iterator[Problem]:
    """Settings out of range, and more liars than those who take part in a round can stand."""
    learning, path = federation.learning, ("learning", "aggregation")
    if choice_problem(path, learning.aggregation) is not None:
        return
    try:
        rule: Aggregation = called(learning.aggregation, AGGREGATIONS, "aggregation")()
        if federation.simulation.peers is not None:
            rule.check(taking_part(federation.simulation.peers, learning.participation))
    except RobustError as error:
        yield Problem(path, str(error))


def _privacy(federation: Federation) -> Iterator[Problem]:
    """Settings out of range, and noise that only a sum has under a rule that takes no sum."""
    learning, path = federation.learning, ("learning", "privacy")
    if choice_problem(path, learning.privacy) is not None:
        return
    try:
        asked: Privacy | None = called(learning.privacy, PRIVACIES, "privacy")()
    except PrivacyError as error:
        yield Problem(path, str(error))
        return
    if asked is not None and asked.where == "sum" and learning.aggregation.name != "mean":
        yield Problem(
            path,
            f"the clients' noise adds up in a sum, and {learning.aggregation.name} takes none; write where=client, or "
            "aggregation: mean",
        )


def _split(chain: tuple[Choice, ...] | None) -> Iterator[Problem]:
    for number, choice in enumerate(chain or ()):
        what, known = ("difference", MODIFIERS) if number else ("split", SPLITS)
        try:
            bind(choice, lookup(choice, known, what))
        except ChoiceError as error:
            yield Problem(("simulation", "split"), str(error))


def _gossip(federation: Federation, data: Mapping[str, Any]) -> Iterator[Problem]:
    gossip, peers = federation.gossip, federation.simulation.peers
    written = data.get("gossip") or {}
    path = ("gossip", "topology")
    if gossip.exchanges is not None and written.get("tolerance") is not None:
        text = "tolerance and exchanges both say when an average is reached; leave one out"
        yield Problem(("gossip", "exchanges"), text)
    if gossip.exchanges is None and gossip.tolerance is None:
        yield Problem(("gossip", "tolerance"), "nothing says when an average is reached; write tolerance: 1e-4")
    if gossip.protocol == "coordinator" and [str(each) for each in gossip.wire] != ["float32"]:
        text = "to a coordinator, and from it, values travel as they are; write wire: float32"
        yield Problem(("gossip", "wire"), text)
    if "topology" in written and choice_problem(path, gossip.topology) is None:
        for text in _topology(gossip.topology, peers):
            yield Problem(path, text)


def _noise(federation: Federation) -> Iterator[Problem]:
    """Settings of a phase of noise out of range, and what has no room for one."""
    gossip, place = federation.gossip, ("gossip", "privacy")
    if choice_problem(place, gossip.privacy) is not None:
        return
    try:
        noise: Noise | None = called(gossip.privacy, PHASES, "privacy of gossip")()
    except NoiseError as error:
        yield Problem(place, str(error))
        return
    asynchronous, forms = federation.learning.mode == "asynchronous", [each.name for each in gossip.wire]
    problem = noise and unfit(gossip.protocol, asynchronous=asynchronous, forms=forms)
    if problem:
        yield Problem(place, problem)


def _drift(gossip: GossipSettings) -> Iterator[Problem]:
    """What averaging by drift does not go with."""
    if gossip.drift is None:
        return
    problem = drift_unfit(gossip.protocol, exchanges=gossip.exchanges, noise=gossip.privacy.name != "none")
    if problem:
        yield Problem(("gossip", "drift"), problem)


def _wire(chain: tuple[Choice, ...]) -> Iterator[Problem]:
    for number, choice in enumerate(chain):
        what, known = ("change of a form", PACKERS) if number else ("form", FORMS)
        try:
            called(choice, known, what)()
        except ChoiceError as error:
            yield Problem(("gossip", "wire"), str(error))


def _passes(federation: Federation) -> Iterator[Problem]:
    learning = federation.learning
    if learning.passes > 1 and learning.steps_between_averaging != "pass":
        text = f"a round has {learning.steps_between_averaging} updates; leave this out, or take pass as their number"
        yield Problem(("learning", "passes"), text)


def _mode(federation: Federation) -> Iterator[Problem]:
    gossip, learning = federation.gossip, federation.learning
    if gossip.deadline < gossip.tick:
        text = f"shorter than a tick of {gossip.tick:g} s; nobody could keep it"
        yield Problem(("gossip", "deadline"), text)
    if learning.mode == "synchronous":
        return
    path = ("learning", "mode")
    if learning.weights == "samples":
        text = "asynchronous averages as it learns and keeps no weights by samples; write weights: uniform"
        yield Problem(path, text)
    if gossip.protocol != "push-sum":
        yield Problem(path, f"asynchronous goes by push-sum, and gossip.protocol is {gossip.protocol}; change one")


def _topology(choice: Choice, peers: int | None) -> list[str]:
    """Settings out of range show when a graph is built, whatever its size; the rest needs the number of peers."""
    settings = bind(choice, GRAPHS[choice.name])
    found = [] if peers is None else topology_problems(choice.name, settings, peer_ids(peers))
    if not found and "edges" not in settings:
        try:
            GRAPHS[choice.name](peer_ids(SMALL_GROUP), np.random.default_rng(0), **settings)
        except TopologyError as error:
            found = [str(error)]
    return found


def _partial_models(federation: Federation) -> list[Problem]:
    """What is wrong with the models, also if those whose members are to be found were everybody's."""
    everybodys = federation
    for name in federation.undecided:
        everybodys = everybodys.decided(name, "all")
    found = [*_models(federation), *(_models(everybodys) if federation.undecided else ())]
    return list(dict.fromkeys(found))


def _models(federation: Federation) -> list[Problem]:
    """What is wrong with the models and their members and, where the network is plain, with their neurons."""
    models, peers = federation.models(), federation.simulation.peers
    ids = None if peers is None else peer_ids(peers)
    found = [Problem(_path(problem.place, federation), problem.message) for problem in problems(models, ids)]
    network = plain_network(federation.network)
    if found or network is None:
        return found
    graph = ModelGraph(models)
    listed = {peer for model in models if model.members != "all" for peer in model.members}
    lines: dict[str, None] = {}  # an ordered set: peers with the same models make the same mistakes
    for peer in {graph.implemented(peer): peer for peer in [*sorted(listed), ""]}.values():
        try:
            assign(network, graph, peer)
        except SlicingError as error:
            lines |= dict.fromkeys(str(error).splitlines())
    pairs = (line.partition(": ") for line in lines)
    return [Problem(_path(place, federation), message) for place, _, message in pairs]


def _undecided(federation: Federation) -> Iterator[Problem]:
    """What members that are to be found do not go with, where the models are averaged."""
    path = ("learning", "algorithm")
    if not federation.undecided or choice_problem(path, federation.learning.algorithm) is not None:
        return
    if method_of(federation.learning.algorithm).sharing == "partial models":
        problem = unsought(federation)
        if problem is not None:
            yield Problem(("partial_models", federation.undecided[0], "members"), problem)


def written_layers(choice: Choice | None) -> tuple[int, ...] | None:
    """The sizes of a multi-layer perceptron whose layers are written out; None for other networks."""
    if choice is None or choice.name != "mlp" or choice_problem(("network",), choice) is not None:
        return None
    sizes: tuple[int, ...] | None = bind(choice, NETWORKS["mlp"]).get("layers")
    return sizes if sizes is not None and len(sizes) >= 2 and min(sizes) >= 1 else None


def plain_network(choice: Choice | None) -> NetworkMap | None:
    """The parts and tensors of a multi-layer perceptron whose layers are written out; None for other networks.

    Which weight leads where is left out: to see whether claims fit, names and sizes are enough.
    """
    sizes = written_layers(choice)
    if choice is None or sizes is None:
        return None
    bias = bind(choice, NETWORKS["mlp"]).get("bias", True)
    names = ["input", *(f"hidden{depth}" for depth in range(1, len(sizes) - 1)), "output"]
    tensors: list[TensorSpec] = []
    for module, inputs, outputs in zip(names[1:], sizes, sizes[1:], strict=False):
        for kind, shape in (("weight", (outputs, inputs)), ("bias", (outputs,)))[: 1 + bias]:
            offset = tensors[-1].span.stop if tensors else 0
            tensors.append(TensorSpec(f"{module}.{kind}", shape, offset, "parameter", module))
    nowhere = np.zeros(tensors[-1].span.stop, dtype=np.int32)
    parts = tuple(Part(name, size) for name, size in zip(names, sizes, strict=True))
    return NetworkMap(parts, tuple(tensors), nowhere, nowhere, nowhere, nowhere)


def _path(dotted: str, federation: Federation) -> Path:
    """The path of `partial_models.NAME.setting`, where NAME may hold dots."""
    for name in federation.partial_models:
        rest = dotted.removeprefix(f"partial_models.{name}")
        if rest != dotted and rest[:1] in ("", "."):
            return ("partial_models", name, *filter(None, rest.split(".")))
    return tuple(dotted.split("."))
