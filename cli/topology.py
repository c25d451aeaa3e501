"""`fedpeer topology`: draw a graph, and print how fast it mixes and how many exchanges an accuracy takes.

`fedpeer topology NAME` is `fedpeer topology draw NAME`: a word that is not a command is the graph to draw.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from fedpeer.cli import topology_simulation
from fedpeer.cli.setting_options import number

if TYPE_CHECKING:
    from rich.table import Table

    from fedpeer.config.settings import FederationSettings
    from fedpeer.topology.overlay import Overlay

#: Disagreements for which exchanges are predicted, down to float32 rounding; 1e-4 is the default tolerance.
_TOLERANCES = (1e-1, 1e-2, 1e-4, 1e-6)
#: Most peers in a drawing; with more, the edges cover one another.
DRAWN_MAX = 64


class _Drawing(typer.core.TyperGroup):
    """A group of commands whose default is `draw`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["draw", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_Drawing,
    help="Draw a graph (fedpeer topology NAME, or draw NAME), or simulate averaging among many peers on it.",
)
app.command("simulate")(topology_simulation.topology_simulate_command)
app.command("sweep")(topology_simulation.sweep)


@app.command("draw")
def topology(
    name: Annotated[str, typer.Argument(help="A graph, such as ring or erdos-renyi:0.3.")] = "k-regular:4",
    peers: Annotated[int, number("Number of peers.")] = 16,
    seed: Annotated[int, number("Seed of a random graph.", "S")] = 0,
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also draw the graph into this file.", show_default=False)
    ] = None,
) -> None:
    """Draw a graph; print its spectral gap and the exchanges that an accuracy takes. The default command."""
    from rich.console import Console
    from rich.markup import escape

    from fedpeer.cli.files import write_new_text
    from fedpeer.cli.simulate_options import options_of
    from fedpeer.topology.describe import topology_svg

    federation = options_of(
        {"topology": name, "peers": peers, "seed": seed}, argument="topology", consequence=""
    ).federation
    overlay = _overlay_of(federation)
    if svg is not None:
        write_new_text(svg, topology_svg(overlay.union, overlay.members), option="--svg")
    console = Console()
    console.print(f"[bold]{escape(str(federation.gossip.topology))}[/], {len(overlay.members)} peers", highlight=False)
    if len(overlay.members) <= DRAWN_MAX:
        for line in _drawing(overlay, console.width, ascii_only=console.options.ascii_only):
            console.print(line, style="cyan", highlight=False, markup=False)
    console.print(_numbers(overlay))
    for remark in overlay.remarks:
        console.print(f"note: {remark}", style="dim", highlight=False, markup=False)
    if svg is not None:
        console.print(f"Drawn in {svg}", highlight=False, markup=False, soft_wrap=True)


def _overlay_of(federation: FederationSettings) -> Overlay:
    """Return the overlay of a group of all peers."""
    import numpy as np

    from fedpeer.config.choice import bind_settings
    from fedpeer.config.rules import peer_ids
    from fedpeer.topology.graphs import GRAPHS
    from fedpeer.topology.overlay import overlay

    build, choice = GRAPHS[federation.gossip.topology.name], federation.gossip.topology
    settings = bind_settings(choice, build)
    members = peer_ids(federation.simulation.peers or 16)
    return overlay(lambda m, draws: build(m, draws, **settings), members, np.random.default_rng(federation.seed))


def _drawing(overlay: Overlay, width: int, *, ascii_only: bool) -> list[str]:
    from fedpeer.cli.canvas import graph_lines
    from fedpeer.topology.describe import layout_of_graph

    labels = [member.removeprefix("peer") for member in overlay.members]
    columns = min(width - 2, 44 if len(labels) <= 16 else 76)
    lines = graph_lines(
        layout_of_graph(overlay.union),
        overlay.union.edges,
        labels,
        columns=columns,
        rows=columns // 2,
        ascii_only=ascii_only,
    )
    return [line for line in lines if line.strip()]


def _numbers(overlay: Overlay) -> Table:
    from rich.box import SIMPLE
    from rich.table import Table

    from fedpeer.topology.describe import describe_topology

    found = describe_topology(overlay, "push-sum", _TOLERANCES)
    pulled = describe_topology(overlay, "push-pull", _TOLERANCES)
    one = found.degree_min == found.degree_max
    neighbors = f"{found.degree_min}" if one else f"{found.degree_min} to {found.degree_max}"
    arrows = "directed edges" if found.directed else "edges"
    phases = f", in {found.phases} alternating phases" if found.phases > 1 else ""
    table = Table(box=SIMPLE, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_row("graph", f"{len(found.edges)} {arrows}, {neighbors} neighbors each{phases}")
    table.add_row("diameter", f"{found.diameter} steps")
    table.add_row("spectral gap", f"{found.spectral_gap:.3g} of the disagreement removed by each exchange of push-sum")
    table.add_row("", "")
    table.add_row("disagreement left", "exchanges: push-sum / push-pull (upper bound)")
    for tolerance in _TOLERANCES:
        table.add_row(
            f"  {tolerance:g}", f"{_count(found.exchanges[tolerance])} / {_count(pulled.exchanges[tolerance])}"
        )
    return table


def _count(exchanges: int | None) -> str:
    return "too many" if exchanges is None else str(exchanges)
