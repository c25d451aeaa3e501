"""`fedpeer slices`: the partial models, their dependencies, their neurons, and the averaging groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpeer.cli.setting_options import number

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.tree import Tree

    from fedpeer.config.choice import Choice
    from fedpeer.config.settings import FederationSettings
    from fedpeer.slicing.describe import KindShape, ModelShape, SliceDescription
    from fedpeer.slicing.network import NetworkMap
    from fedpeer.slicing.plan import Plan

#: Colours of the models in turn; local parameters are grey.
COLOURS = ("blue", "yellow", "green", "magenta", "cyan", "red")
#: Most kinds of peers, and most averaging groups, that are listed; nobody reads more.
KINDS_MAX, GROUPS_MAX = 6, 24


def slices_command(
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="A federation file.", show_default=False)] = None,
    network: Annotated[
        str | None, typer.Option(metavar="NAME", help="Network, such as mlp:64+300+100+10.", show_default=False)
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Data set that sets the network's input and output size.", show_default=False
        ),
    ] = None,
    peers: Annotated[
        int | None, number("Number of peers; default: as the data's split has.", show_default=False)
    ] = None,
    algorithm: Annotated[
        str | None, typer.Option(metavar="NAME", help="Algorithm, such as full-averaging.", show_default=False)
    ] = None,
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also draw them into this file.", show_default=False)
    ] = None,
) -> None:
    """Draw the partial models, their dependencies, and which peers average which weights."""
    from rich.console import Console

    from fedpeer.cli.files import write_new_text
    from fedpeer.cli.simulate_options import options_of
    from fedpeer.slicing.describe import describe_slices, slices_svg

    given = {"network": network, "dataset": dataset, "peers": peers, "algorithm": algorithm}
    written = {name: value for name, value in given.items() if value is not None}
    request = options_of(written, config, consequence="", runs=False)
    plan, networks = planned(request.federation)
    found = describe_slices(plan, networks)
    if svg is not None:
        write_new_text(svg, slices_svg(found), option="--svg")
    console = Console()
    elsewhere = _elsewhere(request.federation.learning.algorithm)
    for drawn in () if elsewhere else _drawing(found):
        console.print(drawn, highlight=False)
    for each in [
        *elsewhere,
        *_frozen(networks),
        *(f"{text[0].upper()}{text[1:]}." for text in plan.unshared()),
        *_to_be_found(request.federation),
        *_without_exchanges(plan, request.federation),
        *_sent(plan, request.federation),
        *_outer_steps(plan, request.federation),
    ]:
        console.print(each, highlight=False, markup=False)
    if svg is not None:
        console.print(f"Drawn in {svg}", highlight=False, markup=False, soft_wrap=True)


def planned(federation: FederationSettings) -> tuple[Plan, Mapping[str, NetworkMap]]:
    """Return the plan and each peer's network.

    The data set is loaded only if sizes or the number of peers depend on it.
    """
    from fedpeer.config.plain_network import written_layers
    from fedpeer.config.rules import peer_ids
    from fedpeer.learning.groups import plan_for
    from fedpeer.learning.holdings import dataset_split, load_dataset
    from fedpeer.sims.world import build_world

    learning, different = federation.learning, federation.simulation.networks
    layers = None if learning.changes_network or different else written_layers(federation.network)
    if layers is not None:
        network, count = _traced(federation.network, layers), federation.simulation.peers
        if count is None:
            dataset = load_dataset(federation.simulation.dataset)
            count = len(dataset_split(dataset, federation, federation.seed).shares)
        networks = dict.fromkeys(peer_ids(count), network)
    else:
        networks = build_world(federation, load_dataset(federation.simulation.dataset), federation.seed).networks
    return plan_for(federation, networks, tuple(networks), learning.algorithm), networks


def _traced(choice: Choice | None, layers: tuple[int, ...]) -> NetworkMap:
    import torch

    from fedpeer.config.choice import bind_settings
    from fedpeer.networks.registry import NETWORKS
    from fedpeer.slicing.trace import trace

    assert choice is not None, "a network whose layers are written has a name"
    build = NETWORKS[choice.name]
    return trace(build(layers[:1], layers[-1], **bind_settings(choice, build)), torch.zeros(2, layers[0]))


def _elsewhere(algorithm: Choice) -> list[str]:
    """Return a sentence about an algorithm that combines elsewhere what peers have learned, or nothing."""
    from fedpeer.config.methods import method_of

    method = method_of(algorithm)
    if method.has_server:
        return [f"{algorithm} has a server, which combines what peers send to it; they average no slices themselves."]
    return (
        [f"{algorithm} trains one network on the examples of all peers; there are no slices."] if method.pooled else []
    )


def _drawing(found: SliceDescription) -> list[RenderableType]:
    """Return the dependencies as a tree, the owners of each part as bars, and the averaging groups as a table."""
    colour = {model.name: COLOURS[number % len(COLOURS)] for number, model in enumerate(found.models)}
    drawn: list[RenderableType] = [_tree(found, colour)]
    for kind in found.kinds[:KINDS_MAX]:
        drawn += [_title(kind), _parts(kind, colour), *_whole(kind, colour)]
    if len(found.kinds) > KINDS_MAX:
        drawn.append(f"... and {len(found.kinds) - KINDS_MAX} more kinds of peers")
    return [*drawn, _groups(found)]


def _tree(found: SliceDescription, colour: dict[str, str]) -> Tree:
    """Return a tree with each model below one that it depends on: the deepest, if it depends on several."""
    from rich.markup import escape
    from rich.tree import Tree

    tree = Tree("[bold]partial models[/]" if found.models else "[bold]no partial models: nothing is averaged[/]")
    nodes = {"": tree}
    for model in sorted(found.models, key=lambda each: (each.level, each.name)):
        direct = _nearest(model, found)
        beside = f", depends on {escape(', '.join(direct[:-1]))} too" if len(direct) > 1 else ""
        peers = f"{model.members} peer{'s' if model.members != 1 else ''}"
        label = f"[bold {colour[model.name]}]{escape(model.name)}[/]  {peers}{beside}"
        nodes[model.name] = nodes[direct[-1] if direct else ""].add(label)
    return tree


def _nearest(model: ModelShape, found: SliceDescription) -> list[str]:
    """Return the models on which a model depends directly, the deepest last."""
    level = {each.name: each.level for each in found.models}
    above = {each.name: set(each.depends_on) for each in found.models}
    direct = [name for name in model.depends_on if not any(name in above[other] for other in model.depends_on)]
    return sorted(direct, key=lambda name: (level[name], name))


def _title(kind: KindShape) -> str:
    from rich.markup import escape

    names = ", ".join(kind.peers[:3]) + (f" and {len(kind.peers) - 3} more" if len(kind.peers) > 3 else "")
    local = f"{kind.local:,} of them local" if kind.local else "none of them local"
    return f"\n[bold]{escape(names)}[/]  {kind.n:,} parameters, {local}"


def _parts(kind: KindShape, colour: dict[str, str]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    width = 24
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for part in kind.parts:
        bar, words = "", []
        for name, count in part.owned.items():
            bar += f"[{colour[name]}]{'█' * max(1, round(width * count / part.size))}[/]"
            words.append(f"[{colour[name]}]{escape(name)} {count:,}[/]")
        local = part.size - sum(part.owned.values())
        if local:
            bar += f"[dim]{'░' * max(1, round(width * local / part.size))}[/]"
            words.append(f"[dim]local {local:,}[/]")
        table.add_row(escape(part.name), f"{part.size:,}", bar, ", ".join(words))
    return table


def _whole(kind: KindShape, colour: dict[str, str]) -> Iterator[RenderableType]:
    """Yield a line for each model that owns whole tensors, and one for whole tensors that stay local."""
    from rich.markup import escape

    for model, words in kind.whole_tensors().items():
        yield f"[{colour.get(model, 'dim')}]{escape(model)}[/] owns whole: {escape(words)}"


def _groups(found: SliceDescription) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("averaging group")
    for column in ("weights", "of the network", "peers"):
        table.add_column(column, justify="right")
    table.add_column("members")
    for group in found.groups[:GROUPS_MAX]:
        members = ", ".join(group.members[:4]) + (" ..." if len(group.members) > 4 else "")
        table.add_row(
            escape(group.id),
            f"{group.length:,}",
            f"{100 * group.share:.1f} %",
            str(len(group.members)),
            escape(members),
        )
    if len(found.groups) > GROUPS_MAX:
        table.add_row(f"... and {len(found.groups) - GROUPS_MAX} more")
    return table


def _to_be_found(federation: FederationSettings) -> list[str]:
    """Return a sentence for each model whose members are found during the run, which says when."""
    from fedpeer.config.clustering import clustering_settings_of
    from fedpeer.config.methods import method_of

    if method_of(federation.learning.algorithm).sharing != "partial models":
        return []
    return [
        f"{name}: the peers find its members during the run, after round "
        f"{clustering_settings_of(federation, name).after}; until then its neurons are local."
        for name in federation.automatic
    ]


def _frozen(networks: Mapping[str, NetworkMap]) -> list[str]:
    """Return a sentence about the parameters that nobody trains, or nothing if there are none."""
    frozen = {network.frozen for network in networks.values()}
    if not any(frozen):
        return []
    most = f"{'up to ' if len(frozen) > 1 else ''}{max(frozen):,}"
    return [f"{most} more parameters are frozen: nobody trains, averages or sends them."]


def _without_exchanges(plan: Plan, federation: FederationSettings) -> list[str]:
    """Return a sentence about the groups that coordinators average, and one about those that average without rounds."""
    from fedpeer.learning.groups import gossip_of, is_asynchronous

    led = [group.id for group in plan.groups if gossip_of(plan, federation, group.id).protocol == "coordinator"]
    eager = [group.id for group in plan.groups if is_asynchronous(plan, federation, group.id)]
    sentences = (
        (led, "averaged by a coordinator that the group's members elect"),
        (eager, "averaged while peers train, at their own pace"),
    )
    return [f"{', '.join(ids)}: {how}." for ids, how in sentences if ids]


def _sent(plan: Plan, federation: FederationSettings) -> list[str]:
    """Return a sentence about what a peer sends in a round, or nothing if peers average nothing with each other.

    Groups with rhythms of their own have a sentence for each rhythm.
    """
    from fedpeer.learning.bandwidth import rhythms, sending
    from fedpeer.learning.groups import is_asynchronous
    from fedpeer.runs.summary import count_text

    found = {
        every: [group for group in groups if not is_asynchronous(plan, federation, group)]
        for every, groups in rhythms(plan, federation, federation.seed).items()
    }
    sentences = []
    for every, groups in found.items():
        sent = [each for each in sending(plan, federation, federation.seed, groups).values() if each.messages]
        if not sent:
            continue
        few, many = min(sent, key=lambda each: each.bytes), max(sent, key=lambda each: each.bytes)
        texts = [
            f"{count_text(each.bytes, 'B')} in {each.messages:,} message{'s' * (each.messages != 1)}"
            for each in (few, many)
        ]
        when = "In each round" if every == 1 else f"In every {_ordinal(every)} round"
        whose = f" for {', '.join(groups)}" if len(groups) < len(plan.groups) else ""
        sentences.append(f"{when} a peer sends {' to '.join(dict.fromkeys(texts))}{whose}.")
    return sentences


def _outer_steps(plan: Plan, federation: FederationSettings) -> list[str]:
    """Return a sentence for each outer optimizer, with the groups whose averagings its steps follow."""
    from fedpeer.learning.outer import outer_of

    groups: dict[str, list[str]] = {}
    for group in plan.groups:
        if (outer := outer_of(plan, federation, group.id)) is not None:
            kind = "Nesterov momentum" if outer.nesterov else "momentum"
            groups.setdefault(f"rate {outer.lr:g}, {kind} {outer.momentum:g}", []).append(group.id)
    return [
        f"After an averaging of {', '.join(ids)} a peer takes an outer step: {text}." for text, ids in groups.items()
    ]


def _ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"
