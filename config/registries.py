"""The registry of each setting that is a choice, and the checks of a single choice.

Nothing here runs code that a setting names or imports torch (except for the settings of an algorithm with a server),
so that checking is quick and safe.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

from fedpeer.algorithms.aggregation import AGGREGATIONS
from fedpeer.algorithms.answer_metrics import ANSWER_METRICS
from fedpeer.algorithms.byzantine import RobustError
from fedpeer.algorithms.outer_optimizers import OUTER_OPTIMIZERS, OuterOptimizerError
from fedpeer.algorithms.privacy import PRIVACIES, PrivacyError
from fedpeer.algorithms.registry import ALGORITHMS
from fedpeer.algorithms.start import STARTS
from fedpeer.config.choice import Choice, ChoiceError, bind_settings, call_choice, lookup, nearest_name, own_function
from fedpeer.config.pretrained import PRETRAINED, PretrainedNetwork, pretrained_network
from fedpeer.config.problems import ConfigProblem, Path, found_text
from fedpeer.config.settings import TABLES, FederationSettings, Strict
from fedpeer.data.own import OWN
from fedpeer.data.registry import DATASETS
from fedpeer.data.splits import MODIFIERS, SPLITS
from fedpeer.gossip.noise import PHASES, NoiseError
from fedpeer.networks.registry import NETWORKS
from fedpeer.runs.trackers.registry import TRACKERS
from fedpeer.topology.graphs import GRAPHS

#: Torch's optimizers and their settings, so that a file is checked without importing torch. A test compares the table
#: with torch.
OPTIMIZERS = {
    "adadelta": "lr rho eps weight_decay maximize",
    "adafactor": "lr beta2_decay eps d weight_decay maximize",
    "adagrad": "lr lr_decay weight_decay initial_accumulator_value eps maximize",
    "adam": "lr betas eps weight_decay amsgrad maximize decoupled_weight_decay",
    "adamax": "lr betas eps weight_decay maximize",
    "adamw": "lr betas eps weight_decay amsgrad maximize",
    "asgd": "lr lambd alpha t0 weight_decay maximize",
    "muon": "lr weight_decay momentum nesterov eps ns_steps adjust_lr_fn",
    "nadam": "lr betas eps weight_decay momentum_decay decoupled_weight_decay maximize",
    "radam": "lr betas eps weight_decay decoupled_weight_decay maximize",
    "rmsprop": "lr alpha eps weight_decay momentum centered maximize",
    "rprop": "lr etas step_sizes maximize",
    "sgd": "lr momentum dampening weight_decay nesterov maximize",
}


def _plain() -> None:
    """Take no settings: there are none."""


#: Losses, likewise without torch; a test compares them with `algorithms.losses`.
LOSSES: dict[str, Callable[..., None]] = dict.fromkeys(
    (
        "cross-entropy",
        "squared-error",
        "binary",
        "multi-label",
        "mean-squared-error",
        "mean-absolute-error",
        "huber",
        "completion",
        "next-token",
    ),
    _plain,
)


def _top_k(*, share: float, pace: float | None = None) -> None:
    for name, value in (("share", share), ("pace", share if pace is None else pace)):
        if not 0 < value <= 1:
            raise ChoiceError(f"top-k: {name} = {value:g}: write a number above 0 and up to 1, such as top-k:0.1")


def _zstd(*, level: int = 3) -> None:
    if not 1 <= level <= 19:
        raise ChoiceError(f"zstd: level = {level}: write 1 (quick) to 19 (small)")


#: Wire encodings and the lossless compression after them, likewise without torch; a test compares them with
#: `gossip.reductions`.
FORMS: dict[str, Callable[..., None]] = {
    "float32": _plain,
    "float64": _plain,
    "bfloat16": _plain,
    "int8": _plain,
    "top-k": _top_k,
}
PACKERS: dict[str, Callable[..., None]] = {"zstd": _zstd}


def _python_choice(choice: Choice) -> None:
    """Check the form of `python:module:function`; the function, which has the settings, is not imported here."""
    found, _ = own_function(choice)
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", found):
        raise ChoiceError(f'"{found_text(found)}" is not module:function; write it like python:mypkg.nets:build')


def _own_algorithm(choice: Choice) -> None:
    """Check the name of a user's own algorithm, which each training process imports."""
    _python_choice(choice)
    name, _ = own_function(choice)
    module, _, kind = name.partition(":")
    if module == "__main__":
        raise ChoiceError(
            f'"{name}" is a class of a script or a cell, which training processes cannot import; write it into a file, '
            f"such as loops.py, and name it python:loops:{kind}"
        )


#: `python` beside the names of a registry.
_PYTHON: dict[str, Callable[..., Any]] = {"python": _python_choice}
#: The metrics of all kinds of tasks.
_METRICS = {name: metric for metrics in ANSWER_METRICS.values() for name, metric in metrics.items()}
#: The noun for the choice at each path, and the functions to choose from. Algorithms are imported when looked up.
_REGISTRIES: Mapping[Path, tuple[str, Mapping[str, Callable[..., Any]]]] = {
    ("network",): ("network", ChainMap(_PYTHON, {PRETRAINED: PretrainedNetwork}, NETWORKS)),
    ("learning", "algorithm"): ("algorithm", ChainMap(_PYTHON, cast(dict[str, Callable[..., Any]], ALGORITHMS))),
    ("learning", "loss"): ("loss", ChainMap(_PYTHON, LOSSES)),
    ("learning", "optimizer"): ("optimizer", ChainMap(_PYTHON, dict.fromkeys(OPTIMIZERS, _plain))),
    ("learning", "start"): ("start", STARTS),
    ("learning", "aggregation"): ("aggregation", AGGREGATIONS),
    ("learning", "outer"): ("outer optimizer", OUTER_OPTIMIZERS),
    ("learning", "privacy"): ("privacy", PRIVACIES),
    ("gossip", "topology"): ("topology", GRAPHS),
    ("gossip", "privacy"): ("privacy of gossip", PHASES),
    ("simulation", "dataset"): ("data set", ChainMap(OWN, DATASETS)),
    ("simulation", "metrics"): ("metric", ChainMap(_PYTHON, _METRICS)),
    ("simulation", "tracking"): ("tracker", TRACKERS),
}


def registry(path: Path) -> tuple[str, Mapping[str, Callable[..., Any]]]:
    """Return the noun for the choice at a path, and the functions to choose from."""
    return _REGISTRIES[path]


#: Paths whose choice is looked up in one registry.
CHOICES: tuple[Path, ...] = (
    ("network",),
    ("learning", "algorithm"),
    ("learning", "loss"),
    ("learning", "start"),
    ("learning", "aggregation"),
    ("learning", "outer"),
    ("learning", "privacy"),
    ("gossip", "topology"),
    ("gossip", "privacy"),
    ("simulation", "dataset"),
)


#: Paths whose choice checks its settings when it is called, which takes no time.
_CALLED: tuple[Path, ...] = (
    ("learning", "aggregation"),
    ("learning", "outer"),
    ("learning", "privacy"),
    ("gossip", "privacy"),
)
#: Settings of choices that must be above 0, and that nothing else checks before a run has trained or measured.
_POSITIVE = frozenset({("uniform", "half_width"), ("ece", "bins")})
#: Settings of a partial model, and the paths from whose registries they are chosen.
_OF_SLICES: tuple[tuple[Path, Path], ...] = (
    (("gossip", "topology"), ("gossip", "topology")),
    (("gossip", "privacy"), ("gossip", "privacy")),
    (("outer",), ("learning", "outer")),
)


def choices_in(federation: FederationSettings) -> list[ConfigProblem]:
    """Return the mistakes in single choices: unknown names, unknown settings, values out of their range."""
    return [
        *_unknown(federation),
        *_optimizer(federation.learning.optimizer),
        *_split(federation.simulation.split),
        *_wires(federation),
        *metric_problems(federation.simulation.metrics),
        *tracker_problems(federation.simulation.tracking),
    ]


def _unknown(federation: FederationSettings) -> Iterator[ConfigProblem]:
    for path in CHOICES:
        choice = _at(federation, path)
        problem = None if choice is None else choice_problem(path, choice) or _out_of_range(path, choice)
        if problem is not None:
            yield problem
    for name, choice in federation.simulation.networks.items():
        problem = choice_problem(("network",), choice)
        if problem is not None:
            yield replace(problem, path=("simulation", "networks", name))
    for name, model in federation.partial_models.items():
        for path, like in _OF_SLICES:
            choice = _at(model, path)
            problem = None if choice is None else choice_problem(like, choice) or _out_of_range(like, choice)
            if problem is not None:
                yield replace(problem, path=("partial_models", name, *path))


def _at(settings: Strict, path: Path) -> Any:
    """Return the value at a path; None where a section is left out."""
    value: Any = settings
    for key in path:
        value = None if value is None else getattr(value, str(key))
    return value


def _out_of_range(path: Path, choice: Choice) -> ConfigProblem | None:
    """Return the mistake that a choice of `_CALLED` finds in its own settings, if any."""
    if path not in _CALLED:
        return None
    what, known = registry(path)
    try:
        call_choice(choice, known, what)()
    except (RobustError, PrivacyError, NoiseError, OuterOptimizerError) as error:
        return ConfigProblem(path, str(error))
    return None


def choice_problem(path: Path, choice: Choice) -> ConfigProblem | None:
    """Return why this choice is invalid at this path; None if it is valid."""
    what, known = registry(path)
    _, point, ending = choice.name.rpartition(".")
    kind = ending.lower() if point else ""
    if path == ("simulation", "dataset") and choice.name not in known and kind in ("csv", "parquet", "npz"):
        label = "" if kind == "npz" else ",label=NAME"
        return ConfigProblem(path, f"a file needs its kind; write {kind}:{found_text(choice.name)}{label}")
    try:
        function = lookup(choice, known, what)
        if choice.name == "python":
            (_own_algorithm if path == ("learning", "algorithm") else _python_choice)(choice)
        elif function is PretrainedNetwork:
            pretrained_network(choice)
        else:
            bound = bind_settings(choice, function)
            for name, value in bound.items():
                if (choice.name, name) in _POSITIVE and value <= 0:
                    raise ChoiceError(f"{choice.name}: {name} = {value:g}: write a number above 0")
            a_table = path == ("simulation", "dataset") and choice.name in TABLES
            if a_table and not {"label", "labels", "text"} & set(bound):
                raise ChoiceError(f'"{choice.name}" needs label; write {choice.name}:FILE,label=NAME')
    except ChoiceError as error:
        return ConfigProblem(path, str(error))
    return None


def _optimizer(choice: Choice) -> Iterator[ConfigProblem]:
    path = ("learning", "optimizer")
    if choice.name == "python":
        problem = choice_problem(path, choice)
        yield from () if problem is None else (problem,)
        return
    if choice.name not in OPTIMIZERS:
        yield ConfigProblem(
            path, f'there is no optimizer "{found_text(choice.name)}"; {nearest_name(choice.name, list(OPTIMIZERS))}'
        )
        return
    known = OPTIMIZERS[choice.name].split()
    for name, value in choice.settings.items():
        if name not in known:
            yield ConfigProblem(
                path, f'"{choice.name}" has no setting "{found_text(name)}"; {nearest_name(name, known)}'
            )
        elif name != "lr" and str(value).lstrip("+-").lower() in ("nan", "inf", "infinity"):
            yield ConfigProblem(path, f"{choice.name}: {name} = {found_text(value)}: write a finite number")
    rate = choice.settings.get("lr", choice.value)
    if choice.value is not None and "lr" in choice.settings:
        yield ConfigProblem(path, f'"{found_text(choice)}" sets lr twice, after the colon and by name')
    elif rate is not None:
        try:
            lr = bind_settings(Choice("lr", rate), _rate)["lr"]
        except ChoiceError:
            lr = -1.0
        if lr <= 0:
            yield ConfigProblem(path, f"lr = {found_text(rate)}: write a number above 0, such as {choice.name},lr=0.1")


def _rate(*, lr: float) -> None:
    """Declare the type of `lr`, by which it is converted."""


def _split(chain: tuple[Choice, ...] | None) -> Iterator[ConfigProblem]:
    for number, choice in enumerate(chain or ()):
        what, known = ("change of a split", MODIFIERS) if number else ("split", SPLITS)
        try:
            bind_settings(choice, lookup(choice, known, what))
        except ChoiceError as error:
            yield ConfigProblem(("simulation", "split"), str(error))


def metric_problems(metrics: tuple[Choice, ...]) -> Iterator[ConfigProblem]:
    """Yield the mistakes in a list of metrics, each by itself."""
    for choice in metrics:
        problem = choice_problem(("simulation", "metrics"), choice)
        if problem is not None:
            yield problem


def tracker_problems(trackers: tuple[Choice, ...]) -> Iterator[ConfigProblem]:
    """Yield the mistakes in a list of trackers: in each by itself, and a tracker that is named twice."""
    path: Path = ("simulation", "tracking")
    for choice in trackers:
        problem = choice_problem(path, choice)
        if problem is not None:
            yield problem
    names = [choice.name for choice in trackers]
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            yield ConfigProblem(path, f"{found_text(name)} is listed twice; list each tracker once")


def _wires(federation: FederationSettings) -> Iterator[ConfigProblem]:
    yield from _wire(("gossip", "wire"), federation.gossip.wire)
    for name, model in federation.partial_models.items():
        if model.gossip is not None and model.gossip.wire is not None:
            yield from _wire(("partial_models", name, "gossip", "wire"), model.gossip.wire)


def _wire(path: Path, chain: tuple[Choice, ...]) -> Iterator[ConfigProblem]:
    for number, choice in enumerate(chain):
        what, known = ("compression", PACKERS) if number else ("wire encoding", FORMS)
        try:
            call_choice(choice, known, what)()
        except ChoiceError as error:
            yield ConfigProblem(path, str(error))
