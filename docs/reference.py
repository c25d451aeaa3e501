"""Writes the reference in configuration.md from the program itself: every key, every choice, every setting.

`python docs/reference.py` rewrites what stands below the mark in that page; a test fails while the two differ.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedpeer.algorithms.aggregation import AGGREGATIONS
from fedpeer.algorithms.answer_metrics import ANSWER_METRICS
from fedpeer.algorithms.losses import LOSSES
from fedpeer.algorithms.outer_optimizers import OUTER_OPTIMIZERS
from fedpeer.algorithms.privacy import PRIVACIES
from fedpeer.algorithms.registry import ALGORITHMS
from fedpeer.config.choice import Choice
from fedpeer.config.contract import KEYS as CONTRACT
from fedpeer.config.contract import NEW_FEDERATION
from fedpeer.config.federation import Federation
from fedpeer.config.peer_file import DataSettings, PeerFile
from fedpeer.config.pretrained import PRETRAINED, PretrainedNetwork
from fedpeer.config.registries import OPTIMIZERS, registry
from fedpeer.config.rules import PEERS, RULES, SPREAD
from fedpeer.config.settings import PartialModelSettings, RunOptions
from fedpeer.data.own import OWN
from fedpeer.data.registry import DATASETS
from fedpeer.data.splits import MODIFIERS, SPLITS
from fedpeer.gossip.noise import PHASES
from fedpeer.gossip.reductions import FORMS, PACKERS
from fedpeer.networks.registry import NETWORKS
from fedpeer.runs.trackers.registry import TRACKERS
from fedpeer.sims.network.faults import FAULTS
from fedpeer.topology.graphs import GRAPHS

PAGE = Path(__file__).parent / "configuration.md"
#: Who plays the peers, where it is no engine's own name.
ENGINES = {PEERS: "real peers", SPREAD: "whole runs on Ray"}
MARK = "<!-- What follows is written by docs/reference.py. -->\n"

CHOICES: dict[str, Mapping[str, Callable[..., Any]]] = {
    "`network`": {**NETWORKS, PRETRAINED: PretrainedNetwork},
    "`learning.algorithm`": ALGORITHMS,
    "`learning.aggregation`": AGGREGATIONS,
    "`learning.outer` and `partial_models.NAME.outer`": OUTER_OPTIMIZERS,
    "`learning.privacy`": PRIVACIES,
    "`learning.start`": registry(("learning", "start"))[1],
    "`gossip.topology`": GRAPHS,
    "`gossip.privacy`": PHASES,
    "`gossip.wire`: the first piece": FORMS,
    "`gossip.wire`: the pieces after it": PACKERS,
    "`simulation.metrics`, and `metrics` in a peer's own file: of classes": ANSWER_METRICS["classification"],
    "`simulation.metrics`, and `metrics` in a peer's own file: of labels": ANSWER_METRICS["multi-label"],
    "`simulation.metrics`, and `metrics` in a peer's own file: of numbers": ANSWER_METRICS["regression"],
    "`simulation.tracking`, and `tracking` in a peer's own file": TRACKERS,
    "`simulation.dataset`: known data sets": DATASETS,
    "`simulation.dataset`: your own": OWN,
    "`simulation.split`: who holds what, the first piece": SPLITS,
    "`simulation.split`: differences, the pieces after it": MODIFIERS,
    "`--faults` of `fedpeer simulate --engine network`": FAULTS,
}


def reference() -> str:
    """The part of the page below the mark."""
    lines = ["## Every key", *keys(Federation, ""), "", "## Every choice"]
    for title, functions in CHOICES.items():
        lines += ["", f"### {title}", "", "| name | what | settings |", "| --- | --- | --- |"]
        lines += [f"| `{name}` | {_first_line(f)} | {_settings(f)} |" for name, f in functions.items()]
    lines += ["", "### `learning.loss`", "", "| name | for data that ask for |", "| --- | --- |"]
    lines += [f"| `{name}` | {loss.task} |" for name, loss in LOSSES.items()]
    lines += ["", "### `learning.optimizer`", "", "| name | settings, as in torch |", "| --- | --- |"]
    lines += [
        f"| `{name}` | {', '.join(f'`{each}`' for each in known.split())} |" for name, known in OPTIMIZERS.items()
    ]
    lines += ["", "## What does not go together", *combinations()]
    lines += ["", "## What `fedpeer update` changes in a running federation", "", "| key | may change | how |"]
    lines += ["| --- | --- | --- |"]
    lines += [f"| `{path}` | {'yes' if key.changes else 'no'} | {key.takes} |" for path, key in CONTRACT.items()]
    lines += ["", f"For settings that may not change, {NEW_FEDERATION}."]
    lines += ["", "## Every key of a peer's own file", *keys(PeerFile, "", "At the top of a peer's file")]
    return "\n".join(lines) + "\n"


def combinations() -> Iterator[str]:
    """Yield the table of the rule book: what does not go together, the settings, and for which engines."""
    yield from (
        "",
        "A file, the command line, Python and every engine refuse these with the same sentence and the way out.",
    )
    yield from ("Where no engine is named, the rule holds for all of them and for real peers.", "")
    yield from ("| what does not go together | settings | where |", "| --- | --- | --- |")
    for rule in RULES:
        settings = ", ".join(f"`{'--' if name in RunOptions.model_fields else ''}{name}`" for name in rule.settings)
        yield f"| {rule.name} | {settings} | {', '.join(ENGINES.get(each, each) for each in rule.engines)} |"


def keys(model: type[BaseModel], prefix: str, top: str = "At the top") -> Iterator[str]:
    """A table for each group of settings, the model's own first."""
    plain = {name: field for name, field in model.model_fields.items() if _inner(field) is None}
    yield from ("", f"### {f'`{prefix[:-1]}`' if prefix else top}", "")
    yield from ("| key | default | allowed | what |", "| --- | --- | --- | --- |")
    for name, field in plain.items():
        key = "data.KIND" if (model, name) == (DataSettings, "source") else prefix + name
        yield f"| `{key}` | {_default(field)} | {_allowed(field)} | {_cell(field.description or '')} |"
    for name, field in model.model_fields.items():
        if (inner := _inner(field)) is not None:
            yield from keys(inner, f"{prefix}{name}.NAME." if inner is PartialModelSettings else f"{prefix}{name}.")


def _inner(field: FieldInfo) -> type[BaseModel] | None:
    """The settings that stand under this key, if it has any."""
    for kind in (field.annotation, *typing.get_args(field.annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _default(field: FieldInfo) -> str:
    value = field.default
    if field.is_required():
        return "must be written"
    if isinstance(value, str) and field.validate_default:
        return f"`{value}`"
    if value is None or value in ([], {}, ()):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _allowed(field: FieldInfo) -> str:
    """Names, where only some are; the limits of a number."""
    kinds = [kind for kind in (field.annotation, *typing.get_args(field.annotation)) if _is_literal(kind)]
    names = [f"`{name}`" for kind in kinds for name in typing.get_args(kind) if isinstance(name, str)]
    limits = {sign: getattr(each, key) for each in field.metadata for key, sign in _SIGNS.items() if hasattr(each, key)}
    names = names if len(names) > 1 else []  # one word among other kinds of values, which the description tells
    return ", ".join(names + [f"{sign} {limit:,}" for sign, limit in limits.items()])


_SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def _is_literal(kind: object) -> bool:
    return typing.get_origin(kind) is typing.Literal


def _first_line(function: Callable[..., Any]) -> str:
    return _cell(" ".join((inspect.getdoc(function) or "").split("\n\n")[0].split()))


def _settings(function: Callable[..., Any]) -> str:
    found = inspect.signature(function).parameters.values()
    keywords = [p for p in found if p.kind is inspect.Parameter.KEYWORD_ONLY]
    return ", ".join(f"`{p.name}`" if p.default is p.empty else f"`{p.name}={_written(p.default)}`" for p in keywords)


def _written(value: Any) -> str:
    return "" if value in (None, (), "") else str(Choice("x", value))[2:]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def page() -> str:
    """The whole page as it should be."""
    return PAGE.read_text(encoding="utf-8").partition(MARK)[0] + MARK + "\n" + reference()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
