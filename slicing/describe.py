"""A plan as plain values and as a picture: the DAG in layers, each model's neurons in each part, each group's size.

`describe_slices` returns plain values that convert to JSON, which the command line prints and a report keeps;
`slices_svg` draws them as one self-contained SVG that is readable on light and dark backgrounds. No torch, no IO.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

import numpy as np

from fedpeer.slicing.assign import LOCAL_INDEX
from fedpeer.slicing.models import LOCAL, ModelGraph
from fedpeer.slicing.network import NetworkMap
from fedpeer.slicing.plan import Plan

#: Okabe and Ito's colours, distinct for colour-blind readers and on light and dark backgrounds; models use them in
#: turn.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b0a000")

#: Most kinds of peers that are drawn; further kinds are only counted, since nobody would read a longer picture.
_KINDS_DRAWN_MAX = 8


@dataclass(frozen=True)
class ModelShape:
    """One partial model; `level` is 0 if it depends on nothing, else one more than the deepest of its dependencies."""

    name: str
    depends_on: tuple[str, ...]
    level: int
    members: int


@dataclass(frozen=True)
class GroupShape:
    """One averaging group; `share` is its fraction of the flat vector, 0 to 1, averaged over its members."""

    id: str
    models: tuple[str, ...]
    members: tuple[str, ...]
    length: int
    share: float


@dataclass(frozen=True)
class PartShape:
    """The number of neurons that each model owns in one part; the rest belong to the peer alone."""

    name: str
    size: int
    owned: Mapping[str, int]


@dataclass(frozen=True)
class KindShape:
    """Peers with the same network and the same models; `local` of their n scalars are not averaged.

    `whole` has the names of the tensors that a model, or `local`, owns whole, whatever their neurons.
    """

    peers: tuple[str, ...]
    n: int
    local: int
    parts: tuple[PartShape, ...]
    whole: Mapping[str, tuple[str, ...]]

    def whole_tensors(self) -> dict[str, str]:
        """Return the tensors that each model owns whole, in a few words, by model."""
        return {
            model: f"{names[0]} and {len(names) - 1} more" if len(names) > 2 else " and ".join(names)
            for model, names in self.whole.items()
        }


@dataclass(frozen=True)
class SliceDescription:
    """The parts of a plan that are drawn and printed."""

    models: tuple[ModelShape, ...]
    groups: tuple[GroupShape, ...]
    kinds: tuple[KindShape, ...]

    def to_json(self) -> dict[str, Any]:
        """Convert to plain dicts and lists."""
        return asdict(self)


def describe_slices(plan: Plan, networks: NetworkMap | Mapping[str, NetworkMap]) -> SliceDescription:
    """Describe a plan.

    Args:
        plan: a compiled plan.
        networks: the networks from which it was compiled, or the one network that all peers have.
    """
    of = {peer: networks if isinstance(networks, NetworkMap) else networks[peer] for peer in plan.peers}
    same: dict[tuple[int, int, tuple[str, ...]], list[str]] = {}
    for peer in plan.peers:
        key = (id(of[peer]), id(plan.assignments[peer]), tuple(group.id for group in plan.groups_of(peer)))
        same.setdefault(key, []).append(peer)
    kinds = []
    for peers in same.values():
        network, assignment = of[peers[0]], plan.assignments[peers[0]]
        parts = tuple(
            PartShape(part.name, part.size, _counts(plan.graph, owner))
            for part, owner in zip(network.parts, assignment.model_of_neuron, strict=True)
        )
        whole: dict[str, tuple[str, ...]] = {}
        for tensor, model in sorted(assignment.model_of_tensor.items()):
            owner_name = LOCAL if model == LOCAL_INDEX else plan.graph.order[model]
            whole[owner_name] = (*whole.get(owner_name, ()), network.tensors[tensor].name)
        local = len(plan.local[peers[0]]) // plan.vectors
        kinds.append(KindShape(tuple(peers), network.n, local, parts, whole))
    groups = tuple(
        GroupShape(
            group.id,
            group.models,
            group.members,
            group.length // plan.vectors,
            float(np.mean([group.length / plan.vectors / of[peer].n for peer in group.members])),
        )
        for group in plan.groups
    )
    return SliceDescription(_models(plan), groups, tuple(kinds))


def _counts(graph: ModelGraph, owner: np.ndarray[Any, np.dtype[np.int32]]) -> dict[str, int]:
    counts = np.bincount(owner[owner >= 0], minlength=len(graph.order))
    return {name: int(count) for name, count in zip(graph.order, counts, strict=True) if count}


def _models(plan: Plan) -> tuple[ModelShape, ...]:
    graph, level = plan.graph, dict[str, int]()
    for name in graph.order:
        level[name] = 1 + max((level[above] for above in graph.closure(name)), default=-1)
    implementers = graph.implementers(plan.peers)
    return tuple(
        ModelShape(name, tuple(b for a, b in graph.edges() if a == name), level[name], len(implementers[name]))
        for name in graph.order
    )


# ------------------------------------------------------------------------------------------------------------ drawing

#: The width is that of two boxes, which a phone shows at nearly their size.
_WIDTH, _LINE, _BOX, _GAP = 432, 22, 208, 16


def slices_svg(description: SliceDescription) -> str:
    """Draw the DAG and the ownership as one SVG element; text and lines take the colour of the page around it."""
    colour = {model.name: COLOURS[at % len(COLOURS)] for at, model in enumerate(description.models)}
    dag, height = _dag(description, colour)
    body = [*dag]
    for kind in description.kinds[:_KINDS_DRAWN_MAX]:
        drawn, height = _kind(kind, colour, height + 2 * _LINE)
        body += drawn
    left_out = len(description.kinds) - _KINDS_DRAWN_MAX
    if left_out > 0:
        height += 2 * _LINE
        body.append(_text(0, height, f"and {left_out} more kinds of peers"))
    height += _LINE
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="100%" '
        f'style="max-width:{_WIDTH}px" font-family="system-ui,sans-serif" font-size="13" fill="currentColor" '
        f'role="img"><title>Partial models and the neurons they own</title>{"".join(body)}</svg>'
    )


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 13) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'


def _short(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: characters - 1] + "…"


def _dag(description: SliceDescription, colour: Mapping[str, str]) -> tuple[list[str], float]:
    """Draw a box for each model and a line up to each model that it depends on; return the drawing and its height."""
    per_row = (_WIDTH + _GAP) // (_BOX + _GAP)
    place: dict[str, tuple[float, float]] = {}
    top = 4.0
    for level in sorted({model.level for model in description.models}):
        row = [model.name for model in description.models if model.level == level]
        for at, name in enumerate(row):
            place[name] = (2 + (at % per_row) * (_BOX + _GAP), top + (at // per_row) * 2.5 * _LINE)
        top = place[row[-1]][1] + 4 * _LINE
    size = {group.id: f"{group.length:,} weights, {group.share:.0%}" for group in description.groups}
    drawn = []
    for model in description.models:
        x, y = place[model.name]
        for above in model.depends_on:
            to_x, to_y = place[above]
            drawn.append(
                f'<path d="M{x + _BOX / 2:.1f} {y:.1f}L{to_x + _BOX / 2:.1f} {to_y + 2 * _LINE:.1f}" '
                'stroke="currentColor" opacity="0.6" fill="none"/>'
                f'<circle cx="{to_x + _BOX / 2:.1f}" cy="{to_y + 2 * _LINE:.1f}" r="3.5"/>'
            )
        peers = f"{model.members} peer{'' if model.members == 1 else 's'}"
        drawn.append(
            f"<g><title>{escape(model.name)}</title>"
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{_BOX}" height="{2 * _LINE}" rx="5" fill="none" '
            f'stroke="{colour[model.name]}" stroke-width="2.5"/></g>'
        )
        drawn.append(_text(x + 8, y + 17, _short(model.name, 25)))
        of_it = f"{peers}, {size[model.name]}" if model.name in size else f"{peers}, local"
        drawn.append(_text(x + 8, y + 35, of_it, size=12))
    return drawn, top - 2 * _LINE


def _kind(kind: KindShape, colour: Mapping[str, str], y: float) -> tuple[list[str], float]:
    """Draw a bar for each part, with neurons in the colours of their models; the empty rest is local."""
    names = ", ".join(kind.peers[:4]) + (f" and {len(kind.peers) - 4} more" if len(kind.peers) > 4 else "")
    local = f"{kind.local:,} of {kind.n:,} weights local"
    drawn = [_text(0, y, _short(names, 56)), _text(0, y + _LINE, local)]
    y += _LINE / 2
    left, width = 100, _WIDTH - 100 - 150
    for part in kind.parts:
        y += _LINE
        drawn.append(_text(0, y + 12, _short(part.name, 14)))
        x = float(left)
        for name, count in part.owned.items():
            span = width * count / part.size
            drawn.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{span:.1f}" height="16" fill="{colour[name]}">'
                f"<title>{escape(part.name)}: {count} neurons of {escape(name)}</title></rect>"
            )
            x += span
        drawn.append(
            f'<rect x="{left}" y="{y:.1f}" width="{width}" height="16" fill="none" stroke="currentColor" '
            'stroke-opacity="0.5"/>'
        )
        owned = sum(part.owned.values())
        drawn.append(_text(_WIDTH - 1, y + 12, f"{owned} of {part.size} shared", "end"))
    for model, words in kind.whole_tensors().items():
        y += _LINE
        drawn.append(_text(0, y + 12, "whole tensors"))
        if model in colour:
            drawn.append(f'<rect x="{left}" y="{y:.1f}" width="16" height="16" fill="{colour[model]}"/>')
        drawn.append(_text(left + 24, y + 12, _short(f"{model}: {words}", 80)))
    return drawn, y + 16
