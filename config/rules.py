"""The rules that join settings: each invalid combination once, for files, command line, Python and every engine.

A `Rule` has the settings that it joins, the engines that it holds for, the condition that breaks it, and the sentence
for the user. Federation file, command line, Python and engines all call `problems_of`; only the names of settings
differ (`Vocabulary`): keys in a file, options on the command line, keywords in Python. The table of combinations in
docs/configuration.md is made from `RULES`.

The checks of single choices are in `registries.py`. Nothing here runs code that a setting names or imports torch
(except for the settings of an algorithm with a server).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel

from fedpeer.algorithms.aggregation import AGGREGATIONS, Aggregation
from fedpeer.algorithms.assignment import AssignmentError
from fedpeer.algorithms.byzantine import JUDGES, RobustError
from fedpeer.algorithms.contract import Method
from fedpeer.algorithms.privacy import PRIVACIES, Privacy
from fedpeer.algorithms.registry import updates_awaited
from fedpeer.config import contract
from fedpeer.config.capacity import capacity_problem
from fedpeer.config.choice import Choice, ChoiceError, bind_settings, call_choice
from fedpeer.config.clustering import NOBODY_SHARES, NOTHING_TO_SHARE, clustering_settings_of
from fedpeer.config.methods import method_of
from fedpeer.config.plain_network import plain_network
from fedpeer.config.problems import ConfigProblem, Path
from fedpeer.config.registries import choice_problem, choices_in
from fedpeer.config.settings import (
    FederationSettings,
    GossipSettings,
    LearningSettings,
    RunOptions,
    SliceGossipSettings,
)
from fedpeer.gossip.drift import EXCHANGES_MIN
from fedpeer.slicing.assign import assign
from fedpeer.slicing.models import ModelGraph, SlicingError, model_mistakes
from fedpeer.topology.graphs import DRAWN_ANEW, GRAPHS, TopologyError
from fedpeer.topology.overlay import overlay_mistakes as topology_problems

#: Peers of the graph that is built to check the ranges of its settings.
_SMALL_GROUP = 8
#: Real peers on one machine: each takes some 100 MB and a share of the cores.
_PROCESSES_MAX = 64
#: Beside the engines of a simulation: real peers on their own machines, and whole runs spread over a Ray cluster.
PEERS, SPREAD = "peers", "spread"


class Vocabulary:
    """The names of settings where the user writes them: here the keys of a federation file."""

    def name(self, key: str) -> str:
        """Return the name of a key, such as `learning.mode`, or of an option of a run, such as `engine`."""
        return key

    def put(self, key: str, value: str) -> str:
        """Return the text that the user writes to set a key to a value."""
        return f"{self.name(key)}: {value}"


class _Keywords(Vocabulary):
    """The names in Python: options of a run are keywords of `fedpeer.simulate`."""

    def put(self, key: str, value: str) -> str:
        return f'{key}="{value}"' if key in RunOptions.model_fields else super().put(key, value)


KEYS, KEYWORDS = Vocabulary(), _Keywords()


@dataclass(frozen=True, kw_only=True)
class Combination:
    """All settings of one federation or one simulation, together.

    methods       the algorithms to run
    compared      whether the methods are given beside the federation, not in its `learning.algorithm`
    engine        an engine of simulations, `PEERS`, or "" if it is not known
    several       whether there are several runs
    objects       which of "data", "network", "loss", "optimizer" and "metrics" came as Python objects, not by name
    roster        whether the peers are those of a roster, which nobody knows here, and not those of the simulation
    """

    federation: FederationSettings
    methods: tuple[Choice, ...]
    compared: bool = False
    engine: str = ""
    several: bool = False
    device: str = "auto"
    faults: str = ""
    address: str = ""
    shards: int | None = None
    objects: tuple[str, ...] = ()
    roster: bool = False

    @classmethod
    def of(cls, federation: FederationSettings, engine: str = "", *, roster: bool = False) -> Combination:
        """Return the combination of a federation's settings, with its own algorithm."""
        return cls(federation=federation, methods=(federation.learning.algorithm,), engine=engine, roster=roster)

    @property
    def count(self) -> int | None:
        """Number of peers; None: it is not known."""
        return None if self.roster else self.federation.simulation.peers

    @property
    def learning(self) -> LearningSettings:
        return self.federation.learning

    @property
    def gossip(self) -> GossipSettings:
        return self.federation.gossip

    @cached_property
    def kinds(self) -> list[tuple[Choice, Method]]:
        """The algorithms with valid names and settings, and what each shares."""
        return [
            (choice, method_of(choice))
            for choice in self.methods
            if choice_problem(("learning", "algorithm"), choice) is None
        ]

    @property
    def played_by(self) -> tuple[str, ...]:
        """The engines whose rules this combination has to keep."""
        spread = self.engine == "ray" and self.shards is None and self.several
        return (SPREAD, "vector") if spread else (self.engine,)


#: One case of a broken rule: values for the braces of its sentence; "path" if it is shown at another setting.
_Broken = Mapping[str, object]


@dataclass(frozen=True)
class Rule:
    """One invalid combination of settings.

    name       the combination in a few words, for the table of the documentation
    settings   the settings that it joins; the problem is shown at the first
    says       the sentence, with the way out: {name[key]} is the name of a setting where the user writes it,
               {put[key=value]} what the user writes to set it; other braces are filled by `broken`
    broken     finds each case
    engines    engines that it holds for; empty: all, and also if no engine is known
    """

    name: str
    settings: tuple[str, ...]
    says: str
    broken: Callable[[Combination], Iterable[_Broken]] = field(repr=False)
    engines: tuple[str, ...] = ()

    def problems(self, options: Combination, words: Vocabulary) -> Iterator[ConfigProblem]:
        """Yield the problems that this rule finds in a combination."""
        if self.engines and not set(self.engines) & set(options.played_by):
            return
        for found in self.broken(options):
            path = found.get("path", tuple(self.settings[0].split(".")))
            assert isinstance(path, tuple)
            if path == ("learning", "algorithm") and options.compared:
                path = ("methods",)
            text = self.says.format(name=_Named(words), put=_Put(words), engine=options.engine, **_without_path(found))
            yield ConfigProblem(path, text, rule=self.name)


def problems_of(options: Combination, words: Vocabulary = KEYS) -> list[ConfigProblem]:
    """Return all mistakes in well-typed settings: in single choices, and in combinations.

    A rule is skipped if one of its settings is invalid by itself.
    """
    found = [*_single(options)]
    wrong = {".".join(map(str, problem.path)) for problem in found}
    if "methods" in wrong:
        wrong.add("learning.algorithm")
    for rule in RULES:
        if wrong.isdisjoint(rule.settings):
            found += rule.problems(options, words)
    return list(dict.fromkeys(found))


_Settings = TypeVar("_Settings", bound=BaseModel)
_Federation = TypeVar("_Federation", bound=FederationSettings)


def used_by(method: Choice, federation: _Federation) -> _Federation:
    """Return the federation with this algorithm alone, without the settings that the algorithm does not use.

    A simulation may compare algorithms that use different settings, such as outer steps. With any one of them alone,
    the federation has to keep all rules.
    """
    alone = _with(federation, ("learning", "algorithm"), method)
    for rule in RULES:
        if "learning.algorithm" in rule.settings[1:]:
            for problem in rule.problems(Combination.of(alone), KEYS):
                alone = _with(alone, problem.path)
    return alone


def _with(settings: _Settings, path: Path, value: object = None) -> _Settings:
    """Return the settings with this value at this path; None: with the path's default."""
    key, rest = str(path[0]), path[1:]
    if not rest:
        return settings.model_copy(update={key: getattr(type(settings)(), key) if value is None else value})
    inner = getattr(settings, key)
    if isinstance(inner, dict):
        return settings.model_copy(update={key: {**inner, rest[0]: _with(inner[rest[0]], rest[1:], value)}})
    return settings.model_copy(update={key: _with(inner, rest, value)})


def peer_ids(peers: int) -> list[str]:
    """Return the ids of a simulation's peers."""
    return [f"peer{number}" for number in range(1, peers + 1)]


def _single(options: Combination) -> Iterator[ConfigProblem]:
    given = {
        "data": ("simulation", "dataset"),
        "network": ("network",),
        "loss": ("learning", "loss"),
        "optimizer": ("learning", "optimizer"),
    }
    beside = [given[name] for name in options.objects if name in given]  # metrics may come as both
    yield from (problem for problem in choices_in(options.federation) if problem.path not in beside)
    if options.compared:
        for method in options.methods:
            problem = choice_problem(("learning", "algorithm"), method)
            if problem is not None and method != options.learning.algorithm:
                yield replace(problem, path=("methods",))


class _Named(dict[str, str]):
    """Fills `{name[key]}` in a sentence."""

    def __init__(self, words: Vocabulary) -> None:
        super().__init__()
        self._words = words

    def __missing__(self, key: str) -> str:
        return self._words.name(key)


class _Put(_Named):
    """Fills `{put[key=value]}` in a sentence."""

    def __missing__(self, key: str) -> str:
        name, _, value = key.partition("=")
        return self._words.put(name, value)


def _without_path(found: _Broken) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name != "path"}


def _when(condition: object, **words: object) -> list[_Broken]:
    return [words] if condition else []


def _no_such_fold(options: Combination) -> list[_Broken]:
    share, fold = options.federation.simulation.validation, options.federation.simulation.fold
    count = int(1 / share + 1e-9) if share else math.inf  # another rule is about a fold of nothing
    return _when(fold >= count, share=share, count=count)


#: Settings of `gossip` that earlier releases did not dump.
_LATER = {
    path.removeprefix("gossip.") for path, key in contract.KEYS.items() if key.since and path.startswith("gossip.")
}


def _written(gossip: GossipSettings, key: str) -> bool:
    """Return whether the user chose a setting; in settings that were dumped, only values other than defaults count."""
    chosen = gossip.model_fields_set
    if getattr(gossip, key) != getattr(GossipSettings(), key):
        return True
    return key in chosen and not chosen >= GossipSettings.model_fields.keys() - _LATER


# ------------------------------------------------------------------------------------------------ longer conditions


def _topology(options: Combination) -> Iterator[_Broken]:
    """Yield the mistakes in the topology: in the ranges of its settings, and in its fit to the number of peers.

    A small graph is built for the ranges. The default topology is not checked: it adapts to few peers.
    """
    everybody = None if options.count is None else peer_ids(options.count)
    if _written(options.gossip, "topology"):
        yield from ({"why": text} for text in _unfit(options.gossip.topology, everybody))
    for name, own in _slices(options):
        if own.topology is not None and choice_problem(("gossip", "topology"), own.topology) is None:
            written = options.federation.partial_models[name].members
            members = everybody if isinstance(written, str) else written
            path = ("partial_models", name, "gossip", "topology")
            yield from ({"path": path, "why": text} for text in _unfit(own.topology, members))


def _unfit(choice: Choice, peers: Sequence[str] | None) -> list[str]:
    """Return the mistakes in a topology among these peers; None: the peers are not known."""
    settings = bind_settings(choice, GRAPHS[choice.name])
    found = [] if peers is None else topology_problems(choice.name, settings, peers)
    if not found and "edges" not in settings:
        try:
            GRAPHS[choice.name](peer_ids(_SMALL_GROUP), np.random.default_rng(0), **settings)
        except TopologyError as error:
            found = [str(error)]
    return found


def _slices(options: Combination) -> Iterator[tuple[str, SliceGossipSettings]]:
    """Yield each partial model that has averaging settings of its own, with these settings."""
    for name, model in options.federation.partial_models.items():
        if model.gossip is not None:
            yield name, model.gossip


def _drifts(options: Combination) -> Iterator[_Broken]:
    """Yield the case of a rule for each place that makes averaging event-triggered."""
    if options.gossip.drift is not None:
        yield {}
    yield from _of_slices(options, lambda own: own.drift is not None, "drift")


def _protocol(options: Combination, own: SliceGossipSettings) -> str:
    return own.protocol or options.gossip.protocol


def _led(options: Combination, own: SliceGossipSettings) -> bool:
    """Return whether a slice is averaged by a coordinator."""
    return _protocol(options, own) == "coordinator"


def _drift(options: Combination, own: SliceGossipSettings) -> float | None:
    return options.gossip.drift if own.drift is None else own.drift


def _eager(options: Combination, own: SliceGossipSettings) -> bool:
    """Return whether a slice is averaged while its peers train."""
    return (own.mode or options.learning.mode) == "asynchronous"


def _needs_rounds(own: SliceGossipSettings) -> bool:
    """Return whether a slice has a setting that has a meaning in rounds only."""
    rounds = own.every, own.exchanges, own.tolerance, own.max_exchanges, own.deadline
    return any(each is not None for each in rounds)


def _eager_outer_steps(options: Combination) -> Iterator[_Broken]:
    """Yield the case of outer steps after asynchronous averaging."""
    learning = options.learning
    if learning.mode == "asynchronous" and learning.outer.name != "none":
        yield {}
    for name, model in options.federation.partial_models.items():
        own = model.gossip or SliceGossipSettings()
        said = model.outer is not None or own.mode is not None
        if said and _eager(options, own) and (model.outer or learning.outer).name != "none":
            yield {"path": ("partial_models", name, "outer")}


def _triggered_outer_steps(options: Combination) -> Iterator[_Broken]:
    """Yield the case of outer steps after event-triggered averaging, of the federation and of each slice by itself."""
    steps, drift = options.learning.outer, options.gossip.drift
    if drift is not None and steps.name != "none":
        yield {}
    for name, model in options.federation.partial_models.items():
        own = model.gossip.drift if model.gossip else None
        if (own or drift) is None or (model.outer or steps).name == "none":
            continue
        if model.outer is not None:
            yield {"path": ("partial_models", name, "outer")}
        elif own is not None:
            yield {"path": ("partial_models", name, "gossip", "drift")}


def _short_deadlines(options: Combination) -> Iterator[_Broken]:
    """Yield the case of a deadline shorter than a tick, for the federation and for each slice."""
    tick = options.gossip.tick
    for broken in _everywhere(options, ("deadline",), lambda own: (own.deadline or options.gossip.deadline) < tick):
        yield {**broken, "tick": tick}


def _drawn_anew(options: Combination, own: SliceGossipSettings) -> bool:
    """Return whether the push-sum of a slice has a graph that is drawn anew for each exchange."""
    topology = own.topology or options.gossip.topology
    return _protocol(options, own) == "push-sum" and topology.name in DRAWN_ANEW


def _in_one_exchange(options: Combination, own: SliceGossipSettings) -> bool:
    """Return whether a slice averages by drift with fewer exchanges than that needs."""
    if _drift(options, own) is None:
        return False
    gossip = options.gossip if own.exchanges is None and own.tolerance is None else own
    return (gossip.exchanges or gossip.max_exchanges or EXCHANGES_MIN) < EXCHANGES_MIN


def _takes_outer_steps(options: Combination, condition: object) -> Iterator[_Broken]:
    """Yield the case of a rule for each place that names an outer optimizer, if the condition holds."""
    named: dict[Path, Choice | None] = {("learning", "outer"): options.learning.outer}
    for name, model in options.federation.partial_models.items():
        named["partial_models", name, "outer"] = model.outer
    for path, choice in named.items():
        if choice is not None and choice.name != "none" and condition:
            yield {"path": path, "methods": _named(options.methods)}


def _averages_no_single_model(options: Combination) -> bool:
    """Return whether no algorithm averages a model among peers, or one averages something else beside it."""
    averaging = [method for _, method in options.kinds if method.averages]
    return not averaging or not all(method.averages_models for method in averaging)


def _of_slices(
    options: Combination, condition: Callable[[SliceGossipSettings], object], setting: str = ""
) -> Iterator[_Broken]:
    """Yield the case of a rule for each partial model that says how it is averaged, if the condition holds."""
    for name, own in _slices(options):
        if condition(own):
            yield {"path": ("partial_models", name, "gossip", *filter(None, [setting]))}


def _everywhere(
    options: Combination, names: Sequence[str], condition: Callable[[SliceGossipSettings], object]
) -> Iterator[_Broken]:
    """Yield the case of a rule about how groups are averaged, for the federation and for each slice that breaks it.

    Args:
        names: settings of a slice; the mistake is the slice's own only if it has one of them.
        condition: whether a slice with these settings of its own breaks the rule.
    """
    if condition(SliceGossipSettings()):  # a slice without settings of its own: averaged as the federation says
        yield {}
    yield from _of_slices(options, lambda own: any(getattr(own, name) is not None for name in names) and condition(own))


def _liars(options: Combination) -> Iterator[_Broken]:
    learning, peers = options.learning, options.count
    rule: Aggregation = call_choice(learning.aggregation, AGGREGATIONS, "aggregation")()
    try:
        if peers is not None:
            rule.check(updates_awaited(peers, learning.participation, learning.aggregation_goal))
    except RobustError as error:
        yield {"why": error}


def _too_few_to_judge(options: Combination) -> list[_Broken]:
    learning, peers = options.learning, options.count
    if learning.farthest is None or peers is None:
        return []
    updates = updates_awaited(peers, learning.participation, learning.aggregation_goal)
    return _when(updates < JUDGES, updates=updates, judges=JUDGES)


def _noise_in_a_sum(options: Combination, condition: object, **facts: object) -> list[_Broken]:
    privacy: Privacy | None = call_choice(options.learning.privacy, PRIVACIES, "privacy")()
    return _when(privacy is not None and privacy.where == "sum" and condition, **facts)


def _models(options: Combination) -> Iterator[_Broken]:
    """Yield the mistakes in the models as they are, and with all peers as members of the automatic ones."""
    federation = everybodys = options.federation
    for name in federation.automatic:
        everybodys = everybodys.decided(name, "all")
    count = options.count
    found = [*_models_of(federation, count), *(_models_of(everybodys, count) if federation.automatic else ())]
    yield from ({"path": _path(place, federation), "why": why} for place, why in dict.fromkeys(found))


def _models_of(federation: FederationSettings, count: int | None) -> list[tuple[str, str]]:
    """Return the mistakes in the models and their members, and for a `plain_network` in their neurons.

    Args:
        count: the number of peers; None: it is not known, so that whoever is listed is a peer.
    """
    models, own = federation.models(), federation.own_networks()
    listed = {peer for model in models if model.members != "all" for peer in model.members} | own.keys()
    peers = sorted(listed) if count is None else peer_ids(count)
    found = [(each.place, each.message) for each in model_mistakes(models, peers)]
    if found or federation.learning.changes_network:
        return found
    graph = ModelGraph(models)
    networks = {str(choice): plain_network(choice) for choice in (federation.network, *own.values())}
    lines: dict[tuple[str, str], None] = {}  # an ordered set: peers with the same models make the same mistakes
    kinds = {(graph.implemented(peer), str(own.get(peer))): peer for peer in [*sorted(listed), ""]}
    for peer in kinds.values():
        network = networks[str(own.get(peer, federation.network))]
        if network is None:
            continue
        whose = f" (in the network of {peer})" if peer in own else ""
        try:
            assign(network, graph, peer)
        except SlicingError as error:
            lines |= dict.fromkeys((line, whose) for line in str(error).splitlines())
    pairs = ((line.partition(": "), whose) for line, whose in lines)
    return [(place, message + whose) for (place, _, message), whose in pairs]


def _path(dotted: str, federation: FederationSettings) -> Path:
    """Return the path of `partial_models.NAME.setting`; NAME may contain dots."""
    for name in federation.partial_models:
        rest = dotted.removeprefix(f"partial_models.{name}")
        if rest != dotted and rest[:1] in ("", "."):
            return ("partial_models", name, *filter(None, rest.split(".")))
    return tuple(dotted.split("."))


def _automatic(options: Combination) -> tuple[str, ...]:
    """Return the partial models whose members the peers are to find, if an algorithm averages them."""
    averaged = any(method.sharing == "partial models" for _, method in options.kinds)
    return options.federation.automatic if averaged else ()


def _members(options: Combination, condition: Callable[[str], object]) -> list[_Broken]:
    """Return a case for each model whose members are to be found and for which the condition holds."""
    return [{"path": ("partial_models", name, "members")} for name in _automatic(options) if condition(name)]


def _listed_edges(options: Combination, name: str) -> bool:
    """Return whether trials or averages of a partial model are sent along edges that the user lists."""
    own = options.federation.partial_models[name].gossip or SliceGossipSettings()
    return any(each is not None and each.name == "edges" for each in (options.gossip.topology, own.topology))


def _assignment_settings(options: Combination) -> Iterator[_Broken]:
    for name in _automatic(options):
        try:
            after = clustering_settings_of(options.federation, name).after
        except (AssignmentError, ChoiceError) as error:
            yield {"path": ("partial_models", name, "members"), "why": error}
            continue
        if after >= options.learning.rounds:
            why = f"after = {after} and there are {options.learning.rounds} rounds; write fewer"
            yield {"path": ("partial_models", name, "members"), "why": why}


def _different_assignments(options: Combination) -> Iterator[_Broken]:
    """Yield the case of models whose members are to be found with different examples."""
    names = _automatic(options)
    try:
        found = [clustering_settings_of(options.federation, name) for name in names]
    except (AssignmentError, ChoiceError):
        return  # another rule reports it
    for name, each in zip(names, found, strict=True):
        if each.kept_back != found[0].kept_back:
            yield {"path": ("partial_models", name, "members"), "other": names[0]}


def _unknown_owners(options: Combination) -> Iterator[_Broken]:
    """Yield the case of a network that is named neither after a peer nor after a partial model with listed members."""
    federation, count = options.federation, options.federation.simulation.peers
    for name in federation.simulation.networks:
        model = federation.partial_models.get(name)
        if model is not None and isinstance(model.members, str):
            yield {"why": f'"{name}" has no listed members; name its peers'}
        elif model is None and count is not None and name not in peer_ids(count):
            yield {"why": f'there is no peer and no partial model "{name}"; there are peer1 to peer{count}'}


def _several_networks(options: Combination) -> Iterator[_Broken]:
    """Yield the case of a peer that gets two networks, by its own name or by those of its partial models."""
    given = Counter(
        peer for name in options.federation.simulation.networks for peer in options.federation.peers_of(name)
    )
    yield from ({"peer": peer} for peer, count in given.items() if count > 1)


def _needing_one_network(options: Combination) -> list[Choice]:
    """Return the algorithms under which all peers have the same network."""
    return [choice for choice, method in options.kinds if method.sharing not in ("nothing", "partial models")]


def _shares_nothing(options: Combination, name: str) -> bool:
    model = options.federation.partial_models[name]
    return len(options.federation.partial_models) > 1 and not (model.neurons or model.modules or model.parameters)


def _namesakes(options: Combination) -> Iterator[_Broken]:
    for name in _automatic(options):
        for other in options.federation.partial_models:
            if other.startswith(name) and other[len(name) :].isdecimal():
                yield {"path": ("partial_models", name, "members"), "name1": name, "other": other}
                break


def _without_a_server(options: Combination) -> bool:
    return not any(method.has_server for _, method in options.kinds)


def _named(methods: Sequence[Choice]) -> str:
    return ", ".join(map(str, methods))


def _served(options: Combination) -> list[Choice]:
    return [choice for choice, method in options.kinds if method.has_server]


def _keeping(options: Combination) -> list[Choice]:
    return [choice for choice, method in options.kinds if method.own_weights]


def _of_more_than_models(options: Combination) -> list[Choice]:
    """Return the algorithms that average several vectors, or something from which peers derive their models."""
    return [choice for choice, method in options.kinds if method.averages and not method.averages_models]


def _dividing(options: Combination, condition: object, **words: object) -> list[_Broken]:
    """Return the case of a rule that is broken if algorithms divide averages and the condition holds."""
    dividing = [choice for choice, method in options.kinds if method.ratio]
    return _when(dividing and condition, methods=_named(dividing), **words)


def _weighing(options: Combination, condition: object, **words: object) -> list[_Broken]:
    """Return the case of a rule that is broken if classes must have weights and the condition holds."""
    return _when(options.learning.demands_class_weights and condition, **words)


def _with_own_loss(options: Combination) -> list[Choice]:
    return [choice for choice, method in options.kinds if method.own_loss]


def _pooled(options: Combination) -> bool:
    return any(method.pooled for _, method in options.kinds)


def _over_capacity(options: Combination) -> Iterator[_Broken]:
    if any(_models(options)):
        return  # invalid models are not measured
    for _, method in options.kinds:
        problem = capacity_problem(options.federation.models(), method)
        if problem is not None:
            yield {"path": _path(problem.place, options.federation), "why": problem.message}


def _twice(options: Combination) -> Iterator[_Broken]:
    texts = [*map(str, options.methods)]
    yield from ({"method": text} for text in dict.fromkeys(texts) if texts.count(text) > 1)


def _averages_slices(options: Combination) -> bool:
    return any(method.sharing == "partial models" and not method.has_server for _, method in options.kinds)


def _noisy(options: Combination, own: SliceGossipSettings | None = None) -> bool:
    """Return whether averaging starts with a noise phase, in the federation or in this slice."""
    privacy = options.gossip.privacy if own is None or own.privacy is None else own.privacy
    return privacy.name != "none"


def _noise(options: Combination) -> Iterator[_Broken]:
    """Yield the case of a rule for each place that names a noise phase."""
    if _noisy(options):
        yield {}
    yield from _of_slices(options, lambda own: own.privacy is not None and _noisy(options, own), "privacy")


def _wire(options: Combination) -> str:
    return _encoding(options.gossip.wire)


def _encoding(wire: Sequence[Choice]) -> str:
    return "/".join(map(str, wire))


# ---------------------------------------------------------------------------------------------------------- the rules

_MODE, _ASYNCHRONOUS = "{put[learning.mode=synchronous]}", "learning.mode"

RULES: tuple[Rule, ...] = (
    Rule(
        "a tolerance and a number of exchanges",
        ("gossip.exchanges", "gossip.tolerance"),
        "{name[gossip.tolerance]} and {name[gossip.exchanges]} both determine when an averaging ends; leave one out",
        lambda options: _when(
            options.gossip.exchanges is not None
            and options.gossip.tolerance is not None
            and _written(options.gossip, "tolerance")
        ),
    ),
    Rule(
        "a number of exchanges and a bound on it",
        ("gossip.exchanges", "gossip.max_exchanges"),
        "{name[gossip.max_exchanges]} is a bound on the exchanges that a tolerance takes; leave it out, or "
        "{name[gossip.exchanges]}",
        lambda options: _when(options.gossip.exchanges is not None and options.gossip.max_exchanges is not None),
    ),
    Rule(
        "neither a tolerance nor a number of exchanges",
        ("gossip.tolerance", "gossip.exchanges"),
        "nothing determines when an averaging ends; write {put[gossip.tolerance=1e-4]}",
        lambda options: _when(options.gossip.exchanges is None and options.gossip.tolerance is None),
    ),
    Rule(
        "a slice with a tolerance and a number of exchanges",
        ("partial_models.*.gossip",),
        "tolerance and exchanges both determine when an averaging ends; leave one out",
        lambda options: _of_slices(options, lambda own: own.tolerance and own.exchanges, "exchanges"),
    ),
    Rule(
        "a slice with a bound on exchanges, and no tolerance of its own",
        ("partial_models.*.gossip",),
        "max_exchanges is a bound on the exchanges that this slice's own tolerance takes; write tolerance beside it, "
        "or leave it out",
        lambda options: _of_slices(options, lambda own: own.max_exchanges and not own.tolerance, "max_exchanges"),
    ),
    Rule(
        "a slice with a coordinator, and a graph or exchanges of its own",
        ("partial_models.*.gossip", "gossip.protocol"),
        "a coordinator averages this slice, without a graph and in one exchange; leave out topology, exchanges, "
        "tolerance and max_exchanges, or write protocol: push-sum beside them",
        lambda options: _of_slices(
            options,
            lambda own: _led(options, own) and (own.topology or own.exchanges or own.tolerance or own.max_exchanges),
        ),
    ),
    Rule(
        "a slice with a rhythm, exchanges or a deadline of its own, and asynchronous averaging",
        ("partial_models.*.gossip", "learning.mode"),
        "an asynchronous slice is pushed when it has news, without rounds; leave out every, exchanges, tolerance, "
        "max_exchanges and deadline, or write mode: synchronous for this slice",
        lambda options: _of_slices(options, lambda own: _eager(options, own) and _needs_rounds(own)),
    ),
    Rule(
        "a slice with gossip of its own, and an algorithm that does not average partial models",
        ("partial_models.*.gossip", "learning.algorithm"),
        "{methods} does not average this slice by gossip; leave it out, or write "
        "{put[learning.algorithm=partial-averaging]}",
        lambda options: (
            {**broken, "methods": _named(options.methods)}
            for broken in _of_slices(options, lambda _: not _averages_slices(options))
        ),
    ),
    Rule(
        "an outer optimizer, and an algorithm that averages no model, or not a model alone",
        ("learning.outer", "learning.algorithm"),
        "{methods} averages no model, or not a model alone, so outer steps have no meaning; leave it out, or write "
        "{put[learning.algorithm=partial-averaging]}",
        lambda options: _takes_outer_steps(options, _averages_no_single_model(options)),
    ),
    Rule(
        "an outer optimizer of a slice, and an algorithm that does not average partial models",
        ("partial_models.*.outer", "learning.algorithm"),
        "{methods} does not average this slice by itself; leave it out, or write "
        "{put[learning.algorithm=partial-averaging]}",
        lambda options: (
            broken
            for broken in _takes_outer_steps(options, not _averages_slices(options))
            if broken["path"] != ("learning", "outer") and not _averages_no_single_model(options)
        ),
    ),
    Rule(
        "an outer optimizer, and asynchronous peers",
        ("learning.outer", "learning.mode"),
        "asynchronous averaging has no end, after which to take outer steps; write none, or mode: synchronous",
        _eager_outer_steps,
    ),
    Rule(
        "an outer optimizer, and event-triggered averaging",
        ("learning.outer", "gossip.drift"),
        "with {name[gossip.drift]} only some peers average, and the others would take outer steps by themselves; leave "
        "one of them out",
        _triggered_outer_steps,
    ),
    Rule(
        "an outer optimizer, and members that the peers find",
        ("learning.outer", "partial_models.*.members"),
        "outer steps begin with the first round, when the groups of {found} are not found yet; leave it out, or write "
        "its members",
        lambda options: (
            {**broken, "found": ", ".join(options.federation.automatic)}
            for broken in _takes_outer_steps(options, options.federation.automatic)
        ),
    ),
    Rule(
        "a slice with one exchange, and event-triggered averaging",
        ("partial_models.*.gossip", "gossip.drift"),
        "a peer that a share activates answers in a later exchange; write 2 exchanges or more",
        lambda options: _of_slices(
            options,
            lambda own: _protocol(options, own) not in ("exact", "coordinator") and _in_one_exchange(options, own),
        ),
    ),
    Rule(
        "a coordinator and a wire encoding other than float32",
        ("gossip.wire", "gossip.protocol"),
        "a coordinator sends and receives values as float32; write {put[gossip.wire=float32]}, or "
        "{put[gossip.protocol=push-sum]}",
        lambda options: _when(options.gossip.protocol == "coordinator" and _wire(options) != "float32"),
    ),
    Rule(
        "a slice with a coordinator and a wire encoding other than float32",
        ("partial_models.*.gossip", "gossip.wire", "gossip.protocol"),
        "a coordinator sends and receives values as float32; write wire: float32 for this slice, or protocol: push-sum",
        lambda options: _of_slices(
            options,
            lambda own: (
                (own.protocol is not None or own.wire is not None)
                and _led(options, own)
                and _encoding(own.wire or options.gossip.wire) != "float32"
            ),
        ),
    ),
    Rule(
        "a topology that the peers cannot form",
        ("gossip.topology", "simulation.peers"),
        "{why}",
        _topology,
    ),
    Rule(
        "a noise phase with push-pull",
        ("gossip.privacy", "gossip.protocol"),
        "push-pull draws new partners in each exchange; write {put[gossip.protocol=push-sum]} or exact",
        lambda options: _everywhere(
            options,
            ("protocol", "privacy"),
            lambda own: _protocol(options, own) == "push-pull" and _noisy(options, own),
        ),
    ),
    Rule(
        "a noise phase on a graph that is drawn anew",
        ("gossip.privacy", "gossip.topology"),
        "a noise phase comes before the first true share to a neighbor, and here each exchange has others; write "
        "{put[gossip.topology=k-regular:4]}, or {put[gossip.privacy=none]}",
        lambda options: _everywhere(
            options,
            ("topology", "protocol", "privacy"),
            lambda own: _drawn_anew(options, own) and _noisy(options, own),
        ),
    ),
    Rule(
        "asynchronous peers on a graph that is drawn anew",
        ("gossip.topology", "learning.mode"),
        "asynchronous peers have no common exchanges for which a graph could be drawn; write "
        "{put[gossip.topology=k-regular:4]}, or {put[learning.mode=synchronous]}",
        lambda options: _everywhere(
            options,
            ("topology", "protocol", "mode"),
            lambda own: _drawn_anew(options, own) and _eager(options, own),
        ),
    ),
    Rule(
        "a noise phase with a coordinator",
        ("gossip.privacy", "gossip.protocol"),
        "peers send their values to the coordinator, not to neighbors; write {put[gossip.protocol=push-sum]} or exact, "
        "or for a slice privacy: none",
        lambda options: _everywhere(
            options, ("protocol", "privacy"), lambda own: _led(options, own) and _noisy(options, own)
        ),
    ),
    Rule(
        "a noise phase in asynchronous averaging",
        ("gossip.privacy", "learning.mode"),
        "an asynchronous average has no start, before which a noise phase could be; write "
        "{put[learning.mode=synchronous]}, or for a slice privacy: none",
        lambda options: _everywhere(
            options, ("mode", "privacy"), lambda own: _eager(options, own) and _noisy(options, own)
        ),
    ),
    Rule(
        "a noise phase and sparse values (top-k)",
        ("gossip.privacy", "gossip.wire"),
        "top-k sends only the largest changes, and cannot send noise; write another {name[gossip.wire]}",
        lambda options: _when(_noisy(options) and options.gossip.wire[0].name == "top-k"),
    ),
    Rule(
        "a noise phase and sparse values (top-k) of a slice",
        ("partial_models.*.gossip", "gossip.privacy"),
        "top-k sends only the largest changes, and cannot send noise; write another wire encoding, or "
        "{put[gossip.privacy=none]}",
        lambda options: _of_slices(
            options,
            lambda own: (
                (own.wire is not None or own.privacy is not None)
                and _noisy(options, own)
                and (own.wire or options.gossip.wire)[0].name == "top-k"
            ),
        ),
    ),
    Rule(
        "a noise phase and an algorithm that sends everything to a server",
        ("gossip.privacy", "learning.algorithm"),
        "{methods} has a server, and a noise phase is for gossip; write {put[gossip.privacy=none]}, and "
        "{name[learning.privacy]} to protect updates",
        lambda options: _when(
            _noisy(options) and _served(options) and not any(method.averages for _, method in options.kinds),
            methods=_named(_served(options)),
        ),
    ),
    Rule(
        "event-triggered averaging with a coordinator",
        ("gossip.drift", "gossip.protocol"),
        "a coordinator averages all members, whether they have moved or not; write {put[gossip.protocol=push-sum]} or "
        "exact, or {name[gossip.drift]} only for slices without a coordinator",
        lambda options: _everywhere(
            options, ("protocol", "drift"), lambda own: _led(options, own) and _drift(options, own) is not None
        ),
    ),
    Rule(
        "event-triggered averaging with a noise phase",
        ("gossip.drift", "gossip.privacy"),
        "an inactive peer sends no noise, so its first true share would not be masked; write "
        "{put[gossip.privacy=none]}",
        lambda options: _everywhere(
            options, ("drift", "privacy"), lambda own: _drift(options, own) is not None and _noisy(options, own)
        ),
    ),
    Rule(
        "event-triggered averaging in one exchange",
        ("gossip.drift", "gossip.exchanges", "gossip.max_exchanges", "gossip.protocol"),
        "a peer that a share activates answers in a later exchange; write {put[gossip.exchanges=2]} or more",
        lambda options: _when(
            options.gossip.drift is not None
            and (options.gossip.exchanges or options.gossip.max_exchanges or EXCHANGES_MIN) < EXCHANGES_MIN
            and options.gossip.protocol not in ("exact", "coordinator")
        ),
    ),
    Rule(
        "passes and a number of local steps",
        ("learning.passes", "learning.steps_between_averaging"),
        "a round has {steps} local steps; leave {name[learning.passes]} out, or write "
        "{put[learning.steps_between_averaging=pass]}",
        lambda options: _when(
            options.learning.passes > 1 and options.learning.steps_between_averaging != "pass",
            steps=options.learning.steps_between_averaging,
        ),
    ),
    Rule(
        "class weights and a loss of something else",
        ("learning.class_weights", "learning.loss"),
        "{loss} has no weights of classes; write {put[learning.loss=cross-entropy]}, or "
        "{put[learning.class_weights=none]}",
        lambda options: _weighing(
            options,
            options.learning.loss is not None and options.learning.loss.name not in ("cross-entropy", "binary"),
            loss=options.learning.loss,
        ),
    ),
    Rule(
        "class weights and an algorithm with a loss of its own",
        ("learning.class_weights", "learning.algorithm"),
        "{methods} trains by a loss of its own, without weights of classes; write {put[learning.class_weights=none]}, "
        "or choose other algorithms",
        lambda options: _weighing(options, _with_own_loss(options), methods=_named(_with_own_loss(options))),
    ),
    Rule(
        "class weights and a network with its own learning rule",
        ("learning.class_weights", "network"),
        "the associative network has a learning rule of its own and no loss; write {put[learning.class_weights=none]}",
        lambda options: _weighing(
            options, options.federation.network is not None and options.federation.network.name == "associative"
        ),
    ),
    Rule(
        "class weights and batches of one example",
        ("learning.class_weights", "learning.batch_size"),
        "the mean over a batch is divided by the weights of its examples, so with one example they have no effect; "
        "write {put[learning.batch_size=16]}, or another number above 1",
        lambda options: _weighing(options, options.learning.batch_size == 1),
    ),
    Rule(
        "a deadline shorter than a tick",
        ("gossip.deadline", "gossip.tick"),
        "shorter than a tick of {tick:g} s, so that no peer could meet it; write a longer {name[gossip.deadline]}",
        _short_deadlines,
    ),
    Rule(
        "asynchronous averaging with weights that start anew",
        ("learning.mode", "learning.weights"),
        "asynchronous averaging has no start, at which weights could be set; write {put[learning.weights=uniform]}",
        lambda options: _everywhere(
            options, ("mode",), lambda own: _eager(options, own) and options.learning.weights != "uniform"
        ),
    ),
    Rule(
        "asynchronous averaging by another protocol than push-sum",
        ("learning.mode", "gossip.protocol"),
        "asynchronous averaging needs push-sum; write {put[gossip.protocol=push-sum]} or "
        "{put[learning.mode=synchronous]}, or for a slice protocol: push-sum or mode: synchronous",
        lambda options: _everywhere(
            options,
            ("mode", "protocol"),
            lambda own: _eager(options, own) and _protocol(options, own) != "push-sum",
        ),
    ),
    Rule(
        "asynchronous peers and a server",
        ("learning.mode", "learning.algorithm"),
        "{methods} has synchronous rounds; write {put[learning.mode=synchronous]}, or choose algorithms without a "
        "server",
        lambda options: _when(
            options.learning.mode == "asynchronous" and _served(options), methods=_named(_served(options))
        ),
    ),
    Rule(
        "asynchronous peers and an algorithm with its own push-sum weights",
        ("learning.mode", "learning.algorithm"),
        "{methods} starts each averaging with its own weights; write {put[learning.mode=synchronous]}, or choose "
        "other algorithms",
        lambda options: _when(
            options.learning.mode == "asynchronous" and _keeping(options), methods=_named(_keeping(options))
        ),
    ),
    Rule(
        "asynchronous peers and averages of more than models",
        ("learning.mode", "learning.algorithm"),
        "{methods} averages in common rounds, which asynchronous peers do not have; write "
        "{put[learning.mode=synchronous]}, or choose other algorithms",
        lambda options: _when(
            options.learning.mode == "asynchronous" and _of_more_than_models(options),
            methods=_named(_of_more_than_models(options)),
        ),
    ),
    Rule(
        "averages of more than models with weights by samples",
        ("learning.weights", "learning.algorithm"),
        "{methods} relies on an unweighted sum over the peers; write {put[learning.weights=uniform]}, or choose other "
        "algorithms",
        lambda options: _when(
            options.learning.weights == "samples" and _of_more_than_models(options),
            methods=_named(_of_more_than_models(options)),
        ),
    ),
    Rule(
        "averages that are divided by one another with a coarse wire encoding",
        ("gossip.wire", "learning.algorithm"),
        "{methods} divides averages by one another, and {wire} would leave the error of both where nobody has a value; "
        "write {put[gossip.wire=float32]}, or choose other algorithms",
        lambda options: _dividing(
            options, options.gossip.wire[0].name not in ("float32", "float64"), wire=_wire(options)
        ),
    ),
    Rule(
        "averages that are divided by one another with a noise phase",
        ("gossip.privacy", "learning.algorithm"),
        "{methods} divides averages by one another, and noise would be left in both; write {put[gossip.privacy=none]}, "
        "or choose other algorithms",
        lambda options: _dividing(options, _noisy(options)),
    ),
    Rule(
        "more Byzantine clients than the rule tolerates among those that take part",
        ("learning.aggregation", "learning.participation", "simulation.peers"),
        "{why}",
        _liars,
    ),
    Rule(
        "a bound on updates among fewer than three",
        ("learning.farthest", "learning.participation", "learning.aggregation_goal", "simulation.peers"),
        "in a round of {updates} nobody can tell who goes too far; let it wait for {judges} or more, or leave "
        "{name[learning.farthest]} out",
        _too_few_to_judge,
    ),
    Rule(
        "noise for a sum of updates and an aggregation rule without a sum",
        ("learning.privacy", "learning.aggregation"),
        "the clients' noise suffices only in a sum, which {rule} does not compute; write where=client, or "
        "{put[learning.aggregation=mean]}",
        lambda options: _noise_in_a_sum(
            options, options.learning.aggregation.name != "mean", rule=options.learning.aggregation.name
        ),
    ),
    Rule(
        "noise for a sum of updates and a bound on updates",
        ("learning.privacy", "learning.farthest"),
        "the clients' noise suffices only in a sum, from which an update that is left out takes its share of it away; "
        "write where=client, or leave {name[learning.farthest]} out",
        lambda options: _noise_in_a_sum(options, options.learning.farthest is not None),
    ),
    *(
        Rule(
            f"{what} without a server",
            (f"learning.{setting}", "learning.algorithm"),
            f"{{methods}} has no server, which this setting needs; {way_out}, or choose an algorithm with a server",
            lambda options, setting=setting, plain=plain: _when(  # type: ignore[misc]
                _without_a_server(options) and str(getattr(options.learning, setting)) != plain,
                methods=_named(options.methods),
            ),
        )
        for setting, what, plain, way_out in (
            ("aggregation", "an aggregation rule", "mean", "write {put[learning.aggregation=mean]}"),
            ("privacy", "noise on updates", "none", "write {put[learning.privacy=none]}"),
            ("farthest", "a bound on updates", "None", "leave {name[learning.farthest]} out"),
            ("aggregation_goal", "an aggregation goal", "None", "leave {name[learning.aggregation_goal]} out"),
        )
    ),
    Rule(
        "an aggregation goal and a draw of participants",
        ("learning.aggregation_goal", "learning.participation", "learning.everyone_trains"),
        "all peers train all the time, and the first {goal} updates close a round; leave {setting} out",
        lambda options: [
            {"goal": options.learning.aggregation_goal, "setting": f"learning.{name}"}
            for name, plain in (("participation", 1.0), ("everyone_trains", False))
            if options.learning.aggregation_goal is not None and getattr(options.learning, name) != plain
        ],
    ),
    Rule(
        "an aggregation goal above the number of peers",
        ("learning.aggregation_goal", "simulation.peers"),
        "{peers} peers cannot send {goal} updates; write at most {peers}",
        lambda options: _when(
            (options.learning.aggregation_goal or 0) > (options.federation.simulation.peers or math.inf),
            peers=options.federation.simulation.peers,
            goal=options.learning.aggregation_goal,
        ),
        ("vector", "ray", SPREAD, "network", "processes"),
    ),
    Rule(
        "an aggregation goal without time",
        ("learning.aggregation_goal", "engine"),
        "the {engine} engine has no time, in which some updates come earlier than others; use {put[engine=network]}",
        lambda options: _when(options.learning.aggregation_goal is not None),
        ("vector", "ray"),
    ),
    Rule(
        "partial models that contradict one another, the network or the peers",
        ("partial_models", "network", "simulation.peers"),
        "{why}",
        _models,
    ),
    Rule(
        "members of several partial models to be found with different examples",
        ("partial_models.*.members",),
        "the peers find the members of {other} too, with the same examples; write the same kept_back for both",
        _different_assignments,
    ),
    Rule(
        "members to be found after the last round",
        ("partial_models.*.members", "learning.rounds"),
        "{why}",
        _assignment_settings,
    ),
    Rule(
        "members to be found while no model is averaged by all",
        ("partial_models.*.members", "partial_models"),
        NOBODY_SHARES,
        lambda options: _members(options, lambda _: len(options.federation.partial_models) == len(_automatic(options))),
    ),
    Rule(
        "members to be found for a model that owns nothing",
        (
            "partial_models.*.members",
            "partial_models.*.neurons",
            "partial_models.*.modules",
            "partial_models.*.parameters",
        ),
        NOTHING_TO_SHARE,
        lambda options: _members(options, lambda name: _shares_nothing(options, name)),
    ),
    Rule(
        "groups to be found, and a model with the name of one",
        ("partial_models.*.members", "partial_models"),
        "the groups that the peers find are named {name1}1, {name1}2, ...; rename {other}",
        _namesakes,
    ),
    Rule(
        "members to be found, and event-triggered averaging",
        ("partial_models.*.members", "gossip.drift"),
        "inactive peers do not show how they differ; leave out {name[gossip.drift]}",
        lambda options: _members(options, lambda _: any(True for _ in _drifts(options))),
    ),
    Rule(
        "members to be found, and your own edges",
        ("partial_models.*.members", "gossip.topology"),
        "your own edges may not connect the groups that the peers will find; choose another topology",
        lambda options: _members(options, lambda name: _listed_edges(options, name)),
    ),
    Rule(
        "networks of peers that do not exist",
        ("simulation.networks", "simulation.peers"),
        "{why}",
        _unknown_owners,
    ),
    Rule(
        "several networks for one peer",
        ("simulation.networks",),
        "{peer} gets several networks; write one for it",
        _several_networks,
    ),
    Rule(
        "different networks, and no partial models",
        ("simulation.networks", "partial_models"),
        "peers whose networks differ share slices of them; write {name[partial_models]} to say which, or leave "
        "{name[simulation.networks]} out",
        lambda options: _when(options.federation.simulation.networks and not options.federation.partial_models),
    ),
    Rule(
        "different networks, and an algorithm for one network",
        ("simulation.networks", "learning.algorithm"),
        "{methods} needs the same network on all peers; choose local or partial-averaging, or leave "
        "{name[simulation.networks]} out",
        lambda options: _when(
            options.federation.simulation.networks and _needing_one_network(options),
            methods=_named(_needing_one_network(options)),
        ),
    ),
    Rule(
        "different networks, and members to be found",
        ("simulation.networks", "partial_models.*.members"),
        "members are found by comparing peers with the same network; write down the members, or leave "
        "{name[simulation.networks]} out",
        lambda options: _when(options.federation.simulation.networks and _automatic(options)),
    ),
    Rule(
        "an algorithm that is named twice",
        ("learning.algorithm",),
        '"{method}" is listed twice; list each method once',
        _twice,
    ),
    # ---------------------------------------------------------------------------------------- what an engine cannot do
    Rule(
        "faults without a network",
        ("faults", "engine"),
        "faults are simulated, and the {engine} engine has no network; use {put[engine=network]}",
        lambda options: _when(options.faults),
        ("vector", "ray", SPREAD, "processes"),
    ),
    *(
        Rule(
            f"{what} without Ray",
            (setting, "engine"),
            f"{{name[{setting}]}} is for a Ray cluster, not for the {{engine}} engine; use {{put[engine=ray]}}",
            lambda options, setting=setting: _when(options.engine != "ray" and getattr(options, setting)),  # type: ignore[misc]
            ("vector", "network", "processes"),
        )
        for setting, what in (("address", "the address of a cluster"), ("shards", "shards"))
    ),
    Rule(
        "asynchronous peers without messages",
        ("learning.mode", "engine"),
        "the {engine} engine does not support {put[learning.mode=asynchronous]}, nor a slice of this mode; use "
        "{put[engine=network]}",
        lambda options: _everywhere(options, ("mode",), lambda own: _eager(options, own)),
        ("vector", "ray"),
    ),
    Rule(
        "wire encodings without messages",
        ("gossip.wire", "engine"),
        "the {engine} engine does not support {name[gossip.wire]} = {wire}; use {put[engine=network]}",
        lambda options: _when(_wire(options) != "float32", wire=_wire(options)),
        ("vector", "ray"),
    ),
    Rule(
        "a slice's wire encoding without messages",
        ("partial_models.*.gossip", "engine"),
        "the {engine} engine sends no messages; leave the slice's wire out, or use {put[engine=network]}",
        lambda options: _of_slices(
            options, lambda own: own.wire is not None and _encoding(own.wire) != "float32", "wire"
        ),
        ("vector", "ray"),
    ),
    Rule(
        "a noise phase on shards of Ray",
        ("gossip.privacy", "engine"),
        "the ray engine does not support {name[gossip.privacy]}; use {put[engine=vector]}",
        _noise,
        ("ray",),
    ),
    Rule(
        "event-triggered averaging on shards of Ray",
        ("gossip.drift", "engine"),
        "the ray engine does not support {name[gossip.drift]}; use {put[engine=vector]}",
        _drifts,
        ("ray",),
    ),
    Rule(
        "an accelerator and Ray",
        ("device", "engine"),
        "the ray engine trains on CPUs; leave out the device {device}",
        lambda options: _when(options.device not in ("auto", "cpu"), device=options.device),
        ("ray", SPREAD),
    ),
    Rule(
        "an accelerator and peers in virtual time",
        ("device", "engine"),
        "the network engine trains on the CPU; leave out the device {device}",
        lambda options: _when(options.device not in ("auto", "cpu"), device=options.device),
        ("network",),
    ),
    Rule(
        "members to be found by whole peers",
        ("partial_models.*.members", "engine"),
        "only the vector engine finds members; run it first, and write down the partial models that it finds",
        lambda options: _members(options, lambda _: True),
        ("ray", "network", "processes"),
    ),
    Rule(
        "members to be found by real peers",
        ("partial_models.*.members",),
        "only simulations find members; write down the members, or the models that fedpeer simulate found",
        lambda options: _members(options, lambda _: True),
        (PEERS,),
    ),
    Rule(
        "different networks on a Ray cluster",
        ("simulation.networks", "engine"),
        "shards train peers with the same network; use {put[engine=vector]}, or leave {name[simulation.networks]} out",
        lambda options: _when(options.federation.simulation.networks),
        ("ray",),
    ),
    Rule(
        "pooled examples, and peers with separate examples",
        ("learning.algorithm", "engine"),
        "global pools the examples of all peers, which the {engine} engine keeps apart; use {put[engine=vector]}",
        lambda options: _when(_pooled(options)),
        ("ray", "network", "processes"),
    ),
    Rule(
        "pooled examples, and real peers",
        ("learning.algorithm",),
        "global pools the examples of all peers, so it is only for simulations; choose another algorithm",
        lambda options: _when(_pooled(options)),
        (PEERS,),
    ),
    Rule(
        "a fold without validation",
        ("simulation.fold", "simulation.validation"),
        "there are parts to choose from only of a fraction that is held out; write {put[simulation.validation=0.1]}, "
        "or leave {name[simulation.fold]} out",
        lambda options: _when(options.federation.simulation.fold and not options.federation.simulation.validation),
    ),
    Rule(
        "a fold that validation does not leave",
        ("simulation.fold", "simulation.validation"),
        "with {name[simulation.validation]} = {share:g} there are {count} parts to hold out; write "
        "{name[simulation.fold]} below {count}",
        _no_such_fold,
    ),
    Rule(
        "partial models too large for messages",
        ("partial_models", "engine"),
        "{why}; or use {put[engine=vector]}, which sends no messages",
        _over_capacity,
        ("network", "processes"),
    ),
    Rule(
        "partial models too large for messages of real peers",
        ("partial_models",),
        "{why}",
        _over_capacity,
        (PEERS,),
    ),
    Rule(
        "Python objects and processes",
        ("engine",),
        "real peers read their data and code themselves, and {objects} came as a Python object; write data into a file "
        "(npz:FILE) and name code (python:module:function), or use {put[engine=network]}",
        lambda options: _when(options.objects, objects=" and ".join(options.objects)),
        ("processes",),
    ),
    Rule(
        f"more than {_PROCESSES_MAX} processes",
        ("simulation.peers", "engine"),
        "{peers} peers are too many processes for one machine; use {most} or fewer, or {put[engine=network]}",
        lambda options: _when(
            (options.federation.simulation.peers or 0) > _PROCESSES_MAX,
            peers=options.federation.simulation.peers,
            most=_PROCESSES_MAX,
        ),
        ("processes",),
    ),
)
