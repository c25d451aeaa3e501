"""Options of `simulate` as settings: each is a setting of the federation file under another name.

So options and file pass the same checks together, before a run folder is made. A few options belong to the run instead
of the federation (`RunOptions`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedpeer.cli.config import ConfigSource, refuse
from fedpeer.cli.setting_options import OPTIONS
from fedpeer.config.choice import Choice, ChoiceError, from_data, parse_choice, side_by_side
from fedpeer.config.federation import Federation
from fedpeer.config.problems import ConfigProblem
from fedpeer.config.reading import typed
from fedpeer.config.rules import Combination, Vocabulary, problems_of
from fedpeer.config.settings import FederationSettings, RunOptions
from fedpeer.learning.anchors import anchored_federation
from fedpeer.sims.request import DEFAULT_METHODS, SimulationRequest, beside_local, default_methods

#: Options that may change when a run is resumed: where it runs.
HERE = ("device", "workers", "address", "shards")

NOTHING_STARTED = ", so nothing was started"


def options_of(
    given: Mapping[str, Any],
    config: Path | None = None,
    *,
    argument: str = "",
    consequence: str = NOTHING_STARTED,
    runs: bool = True,
) -> SimulationRequest:
    """Return the simulation that the options and the file describe.

    Args:
        given: value of each given option, by its name in `OPTIONS` or `RunOptions`, or `compare` or `lr`.
        config: the federation file.
        argument: the name that this command takes as its argument instead of as an option.
        consequence: end of the error's first line, such as ", so nothing was started".
        runs: whether the simulation is to run, so that its engine has to support it.

    Raises:
        ConfigError: all problems of options and file.
    """
    source = ConfigSource.of_file(config) if config else ConfigSource()
    problems = [*source.marks.problems, *_lay(source, given)]
    if argument:
        source.options[OPTIONS[argument]] = "NAME"
    options, more = _run_options(source, given)
    federation, wrong = typed(Federation, source.data)
    problems += [*more, *wrong]
    methods = _methods(given, federation, problems)
    if federation is not None:
        together = Combination(
            federation=federation,
            methods=methods,
            compared="compare" in given,
            several=len(methods) * options.repeats > 1,
            engine=options.engine if runs else "",
            **options.model_dump(include={"device", "faults", "address", "shards"}),
        )
        problems += problems_of(together, OptionNames(source))
    refuse(source, problems, consequence)
    assert federation is not None
    return SimulationRequest(
        federation=anchored_federation(federation, config.parent if config else Path(), source.options),
        methods=methods,
        seeds=tuple(range(federation.seed, federation.seed + options.repeats)),
        **options.model_dump(exclude={"repeats"}),
    )


def resumed_request(given: Mapping[str, Any], config: Path | None) -> Callable[[dict[str, Any]], SimulationRequest]:
    """Return a function for `--resume`: settings of a run folder -> its request, with the device and workers given now.

    Raises:
        ConfigError: an option would change the run.
    """
    text = "a resumed run keeps its settings; leave this out, or start a new run without --resume"
    kept = {*given, *(["config"] if config else [])} - {"resume", *HERE}
    source = ConfigSource()
    options, problems = _run_options(source, {name: given[name] for name in HERE if name in given})
    refuse(source, [*problems, *(ConfigProblem((), text, flag(name)) for name in sorted(kept))], NOTHING_STARTED)

    def request(settings: dict[str, Any]) -> SimulationRequest:
        federation = {name: settings[name] for name in Federation.model_fields}
        before = SimulationRequest.from_json({**settings, "federation": federation})
        return replace(before, **options.model_dump(include=set(HERE), exclude_unset=True))

    return request


def flag(name: str) -> str:
    """Return the option as typed: `batch_size` -> `--batch-size`."""
    return f"--{name.replace('_', '-')}"


class OptionNames(Vocabulary):
    """Names of settings on the command line: the option, if it is given or there is no file; else the key."""

    def __init__(self, source: ConfigSource | None = None) -> None:
        self._source = source or ConfigSource()

    def name(self, key: str) -> str:
        path = tuple(key.split("."))
        if key in RunOptions.model_fields:
            return flag(key)
        if path in self._source.options:
            return self._source.options[path]
        options = {} if self._source.file else {setting: flag(option) for option, setting in OPTIONS.items()}
        return options.get(path, key)

    def put(self, key: str, value: str) -> str:
        name = self.name(key)
        return f"{name} {value}" if name.startswith("--") else f"{name}: {value}"


def _lay(source: ConfigSource, given: Mapping[str, Any]) -> list[ConfigProblem]:
    """Lay the options over the file's settings, and return the problems found."""
    gossip = source.data.get("gossip")
    if isinstance(gossip, dict) and ("tolerance" in given) != ("exchanges" in given):  # an option replaces the others
        for name in ("tolerance", "max_exchanges") if "exchanges" in given else ("exchanges",):
            gossip.pop(name, None)
    for name, path in OPTIONS.items():
        if name in given:
            source.lay(flag(name), path, given[name])
    return _lay_rate(source, given["lr"]) if "lr" in given else []


def _lay_rate(source: ConfigSource, text: str) -> list[ConfigProblem]:
    """Lay `--lr` over the settings of the chosen optimizer, or of the default one for these data."""
    path = OPTIONS["optimizer"]
    learning = source.data.get("learning")
    before = learning.get("optimizer") if isinstance(learning, dict) else None
    try:
        optimizer = from_data(before) if before is not None else _default_optimizer(source)
    except ChoiceError:
        return []  # reported where the optimizer itself is checked
    own = optimizer.name == "python"  # its value is its name, not a rate
    if path in source.options and ((optimizer.value is not None and not own) or "lr" in optimizer.settings):
        return [ConfigProblem((), f'the optimizer "{optimizer}" has a learning rate too; leave one out', "--lr")]
    value = optimizer.value if own else None
    source.lay("--lr", path, Choice(optimizer.name, value, {**optimizer.settings, "lr": text}))
    return []


def _default_optimizer(source: ConfigSource) -> Choice:
    """Return the default optimizer for these data: tables have one of their own."""
    simulation = source.data.get("simulation")
    data = {key: simulation[key] for key in ("dataset",) if key in simulation} if isinstance(simulation, dict) else {}
    suited, _ = typed(FederationSettings, {"simulation": data})  # what is wrong with them is reported elsewhere
    return (suited or FederationSettings()).learning.optimizer


def _run_options(source: ConfigSource, given: Mapping[str, Any]) -> tuple[RunOptions, list[ConfigProblem]]:
    data = {name: given[name] for name in RunOptions.model_fields if name in given}
    source.options |= {(name,): flag(name) for name in data}
    source.options[("methods",)] = "--compare"
    options, problems = typed(RunOptions, data)
    assert options is not None, "every option has a default"
    return options, problems


def _methods(
    given: Mapping[str, Any], federation: Federation | None, problems: list[ConfigProblem]
) -> tuple[Choice, ...]:
    """Return the algorithms to compare: those of `--compare`, or local and that of `--algorithm`, or the defaults."""
    if "compare" in given:
        if "algorithm" in given:
            problems.append(
                ConfigProblem((), "--algorithm names one method and --compare several; leave one out", "--compare")
            )
        return _compared(given["compare"], problems)
    if federation is None:
        return tuple(map(Choice, DEFAULT_METHODS))
    return beside_local(federation.learning.algorithm) if "algorithm" in given else default_methods(federation)


def _compared(text: str, problems: list[ConfigProblem]) -> tuple[Choice, ...]:
    """Return the algorithms of `a,b,c`; a piece with `=` is a setting of the one before it, as in `a,lr=1,b`."""
    methods: list[Choice] = []
    for piece in side_by_side(text):
        try:
            methods.append(parse_choice(piece))
        except ChoiceError as error:
            problems.append(ConfigProblem((), str(error), "--compare"))
    return tuple(methods)
