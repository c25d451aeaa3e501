"""A plan in a form to draw: the DAG in layers, who owns how many neurons of each part, the size of each group.

`describe` makes plain values (JSON-able), which the command line prints and a report keeps; `slices_svg` draws them as
one self-contained SVG that is readable on light and dark ground. No torch, no IO.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

import numpy as np

from fedpeer.slicing.models import ModelGraph
from fedpeer.slicing.network import NetworkMap
from fedpeer.slicing.plan import Plan

#: Okabe and Ito's colours, told apart by the colour-blind and on light and dark ground; models take them in turn.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b0a000")

#: More kinds of peers than this are counted, not drawn: beyond it a picture is longer than anybody reads.
_KINDS_DRAWN_MAX = 8


@dataclass(frozen=True)
class ModelShape:
    """A partial model. `level` 0 depends on nothing, others stand below all that they depend on."""

    name: str
    depends_on: tuple[str, ...]
    level: int
    members: int


@dataclass(frozen=True)
class GroupShape:
    """An averaging group. `share` is its part of the flat vector, averaged over its members, 0 to 1."""

    id: str
    models: tuple[str, ...]
    members: tuple[str, ...]
    length: int
    share: float


@dataclass(frozen=True)
class PartShape:
    """How many neurons of a part each model owns; the rest are the peer's own."""

    name: str
    size: int
    owned: Mapping[str, int]


@dataclass(frozen=True)
class KindShape:
    """Peers with the same network and the same models; `local` is how many of their n scalars are not averaged."""

    peers: tuple[str, ...]
    n: int
    local: int
    parts: tuple[PartShape, ...]


@dataclass(frozen=True)
class SliceDescription:
    """All of a plan that is worth drawing."""

    models: tuple[ModelShape, ...]
    groups: tuple[GroupShape, ...]
    kinds: tuple[KindShape, ...]

    def to_json(self) -> dict[str, Any]:
        """The same as plain dicts and lists."""
        return asdict(self)


def describe_slices(plan: Plan, networks: NetworkMap | Mapping[str, NetworkMap]) -> SliceDescription:
    """Describe a plan.

    Args:
        plan: as compiled.
        networks: what it was compiled from, or the one network that all peers have.
    """
    of = {peer: networks if isinstance(networks, NetworkMap) else networks[peer] for peer in plan.peers}
    alike: dict[tuple[int, int, tuple[str, ...]], list[str]] = {}
    for peer in plan.peers:
        key = (id(of[peer]), id(plan.assignments[peer]), tuple(group.id for group in plan.groups_of(peer)))
        alike.setdefault(key, []).append(peer)
    kinds = []
    for peers in alike.values():
        network, assignment = of[peers[0]], plan.assignments[peers[0]]
        parts = tuple(
            PartShape(part.name, part.size, _counts(plan.graph, owner))
            for part, owner in zip(network.parts, assignment.model_of_neuron, strict=True)
        )
        kinds.append(KindShape(tuple(peers), network.n, len(plan.local[peers[0]]) // plan.vectors, parts))
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

_WIDTH, _LINE, _BOX, _GAP = 720, 22, 215, 32


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


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _short(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: characters - 1] + "…"


def _dag(description: SliceDescription, colour: Mapping[str, str]) -> tuple[list[str], float]:
    """Boxes, the models that others depend on above, and an arrow from each model up to what it depends on."""
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
        drawn.append(_text(x + 8, y + 17, _short(model.name, 26)))
        drawn.append(_text(x + 8, y + 35, f"{peers}, {size[model.name]}" if model.name in size else f"{peers}, local"))
    return drawn, top - 2 * _LINE


def _kind(kind: KindShape, colour: Mapping[str, str], y: float) -> tuple[list[str], float]:
    """A bar for each part, its neurons in the colours of the models that own them; an empty rest is local."""
    names = ", ".join(kind.peers[:4]) + (f" and {len(kind.peers) - 4} more" if len(kind.peers) > 4 else "")
    local = f"{kind.local:,} of {kind.n:,} weights local"
    drawn = [_text(0, y, _short(names, 60)), _text(_WIDTH - 1, y, local, "end")]
    left, width = 150, _WIDTH - 150 - 130
    for part in kind.parts:
        y += _LINE
        drawn.append(_text(0, y + 12, _short(part.name, 20)))
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
    return drawn, y + 16
