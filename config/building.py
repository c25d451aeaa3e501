"""Builds the algorithm that a federation chose, with its aggregation and privacy."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from fedpeer.algorithms.aggregation import AGGREGATIONS, Aggregation
from fedpeer.algorithms.answer_metrics import ANSWER_METRICS, AnswerMetric, answer_scores
from fedpeer.algorithms.buffered import Buffered
from fedpeer.algorithms.contract import Algorithm
from fedpeer.algorithms.coordinated import AlgorithmError, CoordinatedAlgorithm, has_server
from fedpeer.algorithms.leaves import leaves_of
from fedpeer.algorithms.losses import Task
from fedpeer.algorithms.optimizers import OptimizerChoice
from fedpeer.algorithms.outer_steps import OuterSteps
from fedpeer.algorithms.privacy import PRIVACIES, Privacy
from fedpeer.algorithms.private import protected
from fedpeer.algorithms.registry import ALGORITHMS, updates_awaited
from fedpeer.algorithms.training_context import TrainingContext
from fedpeer.algorithms.updates import strayed
from fedpeer.config.choice import Choice, ChoiceError, call_choice, own_function, plain_value
from fedpeer.config.methods import method_of
from fedpeer.config.settings import LearningSettings
from fedpeer.rejection import Rejection

#: An algorithm; only the algorithm itself knows the types of its states.
AnyAlgorithm: TypeAlias = Algorithm[Any, Any, Any]
Coordinated: TypeAlias = CoordinatedAlgorithm[Any, Any, Any, Any]
#: Methods that a user's own algorithm must have: all but those that only algorithms without a server have.
_CONTRACT = tuple(
    name
    for side in (CoordinatedAlgorithm, Algorithm)
    for name, value in vars(side).items()
    if inspect.isfunction(value) and name[0] != "_" and name not in ("start_averaged", "weights", "derived_model")
)

#: Imports the user's function `module:function`; raises a sentence for the user if that is not allowed or fails.
Loader: TypeAlias = Callable[[str], Callable[..., Any]]


def algorithm_of(
    choice: Choice,
    learning: LearningSettings,
    context: TrainingContext,
    load: Loader,
    *,
    secret: bytes = b"",
    begun: bool = False,
) -> AnyAlgorithm:
    """Build the algorithm that a federation chose; one with a server gets the aggregation and privacy of the settings.

    Args:
        secret: source of a client's noise (`algorithms/private.py`).
        begun: whether peers have joined or left since the federation began. The aggregation rule is then not checked
            against their number: if too few peers are left for the rule, it works as in a round in which peers are
            absent.

    Raises:
        ChoiceError, AlgorithmError, RobustError, PrivacyError: the user's mistakes.
    """
    make = _maker(choice, load)
    if not method_of(choice).has_server:
        context = replace(context, optimizer_state=learning.optimizer_state, rounds=learning.rounds)
        peer_to_peer: AnyAlgorithm = make(context)
        if context.outer is None:
            return peer_to_peer
        return OuterSteps(peer_to_peer, context.outer.of_parameters(context.layout.n_parameters))
    rule = aggregation_of(learning.aggregation)
    participants = updates_awaited(context.clients, learning.participation, learning.aggregation_goal)
    if not begun:
        rule.check(participants)
    algorithm = make(replace(context, mean=rule))
    if rule.rule != "mean" and not algorithm.takes_mean:
        raise AlgorithmError(f"{choice.name} does not average updates; write learning.aggregation: mean")
    if algorithm.common_start and not learning.common_start:
        raise AlgorithmError(f"{choice.name} needs the same start for all clients; write learning.common_start: true")
    if algorithm.own_loss and learning.demands_class_weights:
        raise AlgorithmError(
            f"{choice} trains by a loss of its own, without weights of classes; write learning.class_weights: none"
        )
    private = protected(algorithm, privacy_of(learning.privacy), participants=participants, secret=secret)
    return private if learning.aggregation_goal is None else Buffered(private, choice.name)


def coordinated_of(*options: Any, **settings: Any) -> Coordinated:
    """Build an algorithm that has a server; see `algorithm_of`."""
    algorithm = algorithm_of(*options, **settings)
    assert has_server(algorithm), "asked where there is a server"
    return algorithm


def _maker(choice: Choice, load: Loader) -> Callable[[TrainingContext], Any]:
    """Return a function that builds the algorithm from a `TrainingContext`: one of fedpeer's, or a user's own class.

    Raises:
        ChoiceError: unknown name or setting. The returned function raises AlgorithmError if the settings do not fit.
    """
    if choice.name != "python":
        return partial(_named, choice.name, call_choice(choice, ALGORITHMS, "algorithm"))
    name, settings = own_function(choice)
    own = load(name)

    def built(context: TrainingContext) -> Coordinated:
        try:
            made = own(context, **settings)
        except AlgorithmError:
            raise
        except Exception as problem:  # whatever the user's class raises
            text = f"algorithm python:{name}: building it failed: {type(problem).__name__}: {problem}"
            raise AlgorithmError(text) from problem
        lacking = [each for each in _CONTRACT if not callable(getattr(made, each, None))]
        if lacking:
            raise AlgorithmError(
                f"algorithm python:{name} has no {', '.join(lacking)}; subclass fedpeer.CoordinatedAlgorithm"
            )
        return made  # type: ignore[no-any-return]

    return built


def _named(name: str, make: Callable[[TrainingContext], Any], context: TrainingContext) -> Any:
    """Build an algorithm; its mistakes name it, because a comparison has several."""
    try:
        return make(context)
    except AlgorithmError as problem:
        text = str(problem)
        raise AlgorithmError(text if text.startswith((name, "learning.")) else f"{name}: {text}") from None


def left_out(
    algorithm: Coordinated, learning: LearningSettings, server: Any, updates: Any, round: int
) -> list[Rejection | None]:
    """Return why `learning.farthest` leaves out each of a round's updates, (K, ...); None for those that it keeps."""
    if learning.farthest is None:
        return [None] * len(next(iter(leaves_of(updates).values())))
    return strayed(algorithm.changes(algorithm.open(server, round), updates), learning.farthest)


def aggregation_of(choice: Choice) -> Aggregation:
    """Return the rule that combines the updates of a round: the `mean` of a `TrainingContext`.

    Raises:
        ChoiceError, RobustError: unknown name or setting, or one out of its range. Whether the rule tolerates its
            Byzantine clients among the updates of a round is checked by `Aggregation.check`, once their number is
            known.
    """
    made: Aggregation = call_choice(choice, AGGREGATIONS, "aggregation")()
    return made


def privacy_of(choice: Choice) -> Privacy | None:
    """Return the protection that `algorithms.private.protected` gives to updates before they are sent; None: none.

    Raises:
        ChoiceError, PrivacyError: unknown name or setting, or one out of its range.
    """
    made: Privacy | None = call_choice(choice, PRIVACIES, "privacy")()
    return made


def metrics_of(
    choices: Iterable[Choice], task: Task, load: Loader, example: tuple[Any, Any] | None = None
) -> dict[str, AnswerMetric]:
    """Return metrics by name, for data that ask for `task`.

    Args:
        example: targets and answers with which users' own metrics are tried (`answer_metrics.example_answers`).

    Raises:
        ChoiceError: a metric is unknown, is for another kind of target, or is a user's own that fails.
    """
    known = ANSWER_METRICS[task]
    found: dict[str, AnswerMetric] = {}
    for choice in choices:
        if choice.name == "python":
            name, settings = own_function(choice)
            own = found[str(choice)] = partial(load(name), **settings)
            if example is not None and (failed := answer_scores({name: own}, *example).failed):
                raise ChoiceError(
                    f"the metric {choice} failed on a try before the training, with {len(example[0])} targets and the "
                    f"answers of a model that knows nothing: {failed[name]}; correct it, or leave it out"
                )
            continue
        for other, metrics in ANSWER_METRICS.items():
            if choice.name in metrics and choice.name not in known:
                fitting = f"choose {', '.join(known)}" if known else "leave it out"
                raise ChoiceError(f"the metric {choice.name} is for {other}, and the data ask for {task}; {fitting}")
        found[str(choice)] = call_choice(choice, known, "metric")
    return found


def optimizer_of(choice: Choice, load: Loader) -> OptimizerChoice:
    """Return a choice like `sgd,lr=0.1,momentum=0.9` with numbers and booleans, as torch takes them.

    A user's own (`python:module:function,lr=0.1`) is imported by `load`.
    """
    if choice.name == "python":
        name, settings = own_function(choice)
        return OptimizerChoice(f"python:{name}", settings, load(name))
    settings = {key: plain_value(value) for key, value in choice.settings.items()}
    if choice.value is not None:
        settings["lr"] = plain_value(choice.value)
    return OptimizerChoice.named(choice.name, settings)
