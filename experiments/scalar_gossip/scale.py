"""Scaling of gossip: exchanges to a millionth of the disagreement from a hundred to a million peers, and theory.

A sweep has lines (graph, protocol, loss, churn) at several sizes; each cell is a simulation of `simulation.py`.
Finished cells are plain rows, smallest size first, kept by their `key`, so that a stopped sweep can resume.
`scale_page`, `by_graph` and `by_loss` draw rows and read nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter

from fedpeer.config.choice import parse_choice
from fedpeer.experiments.scalar_gossip.averaging import ScalarProtocol
from fedpeer.experiments.scalar_gossip.simulation import ScalarGossipOptions, ScalarGossipOutcome
from fedpeer.runs.canvas import INK, MARKERS, draw_axes, method_colour
from fedpeer.runs.summary import count_text

#: A row of the page, as in JSON.
_Row = Mapping[str, Any]

_SIZES = (100, 1_000, 10_000, 100_000, 1_000_000)
_DOUBLED = (128, 1_024, 16_384, 131_072, 1_048_576)
_EXCHANGES_MAX = 20_000
_TO = 1e-6


@dataclass(frozen=True)
class ScaleRow:
    """One line of the table.

    graph      the graph
    protocol   how the peers average
    loss       probability that a message is lost
    churn      probability that a peer leaves before an exchange
    largest    largest number of peers; beyond it a cell takes minutes, or too many exchanges to be of use
    doubled    whether its sizes are powers of two
    """

    graph: str
    protocol: ScalarProtocol = "push-sum"
    loss: float = 0.0
    churn: float = 0.0
    largest: int = 1_000_000
    doubled: bool = False

    @property
    def label(self) -> str:
        sizes = ", 2^k peers" if self.doubled else ""
        return f"{self.graph}{', push-pull' if self.protocol == 'push-pull' else ''}{sizes}"

    @property
    def trouble(self) -> str:
        return f"{self.loss:.0%} lost" if self.loss else f"{self.churn:.0%} leave" if self.churn else "none"

    def at(self, place: int, seed: int) -> ScalarGossipOptions:
        """Return the simulation of this line at a size, by its index in ascending order."""
        peers = (_DOUBLED if self.doubled else _SIZES)[place]
        return ScalarGossipOptions(
            graph=parse_choice(self.graph), peers=peers, protocol=self.protocol, loss=self.loss, churn=self.churn,
            to=_TO,
            seed=seed, exchanges_max=_EXCHANGES_MAX,
        )  # fmt: skip


LINES = (
    ScaleRow("one-peer-exponential"),
    ScaleRow("one-peer-exponential", doubled=True, largest=1_048_576),
    ScaleRow("exponential"),
    ScaleRow("k-regular:4"),
    ScaleRow("complete", "push-pull"),
    ScaleRow("k-regular:4", "push-pull", largest=100_000),
    ScaleRow("torus", largest=10_000),
    ScaleRow("ring", largest=100),
    ScaleRow("one-peer-exponential", loss=0.1),
    ScaleRow("one-peer-exponential", churn=0.01),
    ScaleRow("exponential", loss=0.1, largest=100_000),
    ScaleRow("exponential", loss=0.3, largest=100_000),
    ScaleRow("exponential", churn=0.01),
    ScaleRow("k-regular:4", loss=0.1),
    ScaleRow("k-regular:4", loss=0.3, largest=100_000),
    ScaleRow("k-regular:4", churn=0.01),
    ScaleRow("one-peer-exponential", loss=0.1, doubled=True, largest=1_048_576),
    ScaleRow("one-peer-exponential", loss=0.3, doubled=True, largest=1_048_576),
)


def cells(most: int, seed: int) -> list[tuple[ScaleRow, ScalarGossipOptions]]:
    """Return the cells of a sweep up to `most` peers, smallest size first."""
    sweep = [(line, line.at(place, seed)) for place in range(len(_SIZES)) for line in LINES]
    return [(line, each) for line, each in sweep if each.peers <= min(line.largest, most * _DOUBLED[-1] / _SIZES[-1])]


def key(options: ScalarGossipOptions) -> str:
    """Return the key of a cell."""
    trouble = f"{options.loss:g} {options.churn:g}"
    return f"{options.graph} {options.peers} {options.protocol} {trouble} {options.to:g} {options.seed}"


def scale_row(line: ScaleRow, outcome: ScalarGossipOutcome) -> dict[str, Any]:
    """Return a finished cell in plain types."""
    options, known = outcome.options, outcome.theory
    return {
        "key": key(options), "line": line.label, "trouble": line.trouble, "peers": options.peers,
        "exchanges": outcome.exchanges if outcome.agreed else None,
        "usual": known.usual, "worst": known.worst, "gap": known.gap, "source": known.source,
        "seconds": outcome.seconds, "exchange_seconds": outcome.exchange_seconds, "peak_bytes": outcome.peak_bytes,
        "shares": outcome.messages(), "repeats": outcome.traffic.repeats / options.peers, "drift": outcome.drift,
        "newcomers": outcome.newcomers, "weight": outcome.weight, "lanes": outcome.channels,
    }  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------- page


def scale_page(rows: Sequence[_Row], command: str, facts: str) -> str:
    """Return the whole page in Markdown; `facts` is a sentence about the machine and versions."""
    largest = max(each["peers"] for each in rows)
    total = sum(each["seconds"] for each in rows)
    texts = [
        "# Gossip at scale",
        _INTRODUCTION,
        "![Exchanges by number of peers, for each graph](scale-graphs.svg)",
        _exchanges([each for each in rows if each["trouble"] == "none"]),
        _REMARKS,
        "## Where messages are lost, or peers leave",
        _TROUBLES,
        "![Exchanges by number of peers, for each part of lost messages](scale-loss.svg)",
        _exchanges([each for each in rows if each["trouble"] != "none"]),
        _moved(rows),
        f"## What it takes: {largest:,} peers",
        _cost([each for each in rows if each["peers"] > largest / 2]),
        _COSTS,
        f"```console\n$ {command}\n```",
        f"{len(rows)} crowds, {total / 60:.0f} min of processor time; {facts}",
    ]
    return "\n\n".join(texts) + "\n"


_INTRODUCTION = """\
How many exchanges until all peers agree on the mean to a millionth, from a hundred peers to a million: one number a
peer, drawn from a normal distribution, and no networks. In brackets what theory foretells for such a start without
losses ([topology-and-gossip.md](../topology-and-gossip.md#large-scale-simulation))."""

_REMARKS = f"""\
A dash: not played; it takes more than {_EXCHANGES_MAX:,} exchanges, or more work than was at hand. Theory is exact in
root mean square over starts, but for push-pull on k-regular graphs, where it is an upper bound. With 2^k peers k
exchanges of one-peer-exponential are the exact mean. In between several periods of as many exchanges are needed, so
that its line goes up and down."""

_TROUBLES = """\
Nobody waits: what is lost is repeated in the next round until it is acknowledged, and comes later; acknowledgements are
lost as often. 1% leave: before each exchange each peer, with this chance, hands what it holds to its neighbors, and a
newcomer takes its seat."""

_COSTS = """\
Processor time is that of one core, with the making of the graph and the theory; memory is what arrays take at the
most, beside the interpreter and its libraries."""


def _exchanges(rows: Sequence[_Row]) -> str:
    """Return a table with a row per line and a column per size."""
    head = ["graph", "trouble", *(count_text(size) for size in _SIZES)]
    if all(each["trouble"] == "none" for each in rows):
        head.remove("trouble")
    lines = [_cells(head), _cells([":--"] * (len(head) - len(_SIZES)) + ["--:"] * len(_SIZES))]
    for label, trouble in dict.fromkeys((each["line"], each["trouble"]) for each in rows):
        of = {each["peers"]: each for each in rows if (each["line"], each["trouble"]) == (label, trouble)}
        found = [_reached(of.get(size) or of.get(doubled)) for size, doubled in zip(_SIZES, _DOUBLED, strict=True)]
        lines.append(_cells([label, *([trouble] if "trouble" in head else []), *found]))
    return "\n".join(lines)


def _reached(each: _Row | None) -> str:
    if each is None or each["exchanges"] is None:
        return "–"
    known = each["usual"] if each["usual"] is not None else each["worst"]
    return f"{each['exchanges']:,}" if known is None else f"{each['exchanges']:,} ({known:,.0f})"


def _cost(rows: Sequence[_Row]) -> str:
    lines = [
        _cells(["graph", "trouble", "exchanges", "processor time", "memory", "shares a peer", "of them repeats"]),
        _cells([":--", ":--", *["--:"] * 5]),
    ]
    for each in rows:
        memory, count = count_text(each["peak_bytes"], "B"), each["exchanges"]
        found = "–" if count is None else f"{count:,}"
        numbers = [found, f"{each['seconds']:.1f} s", memory, f"{each['shares']:.1f}", f"{each['repeats']:.1f}"]
        lines.append(_cells([each["line"], each["trouble"], *numbers]))
    return "\n".join(lines)


def _cells(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _moved(rows: Sequence[_Row]) -> str:
    lost, leave = (_worst_drift(rows, trouble) for trouble in ("lost", "leave"))
    return (
        f"With losses all agree on the mean of the start to {lost:.0e} of its standard deviation: nothing is gone. "
        "Where peers leave, newcomers bring values of their own, and the mean moves by up to "
        f"{leave:.1g} of it, most among the fewest peers."
    )


def _worst_drift(rows: Sequence[_Row], trouble: str) -> float:
    return max((each["drift"] for each in rows if trouble in each["trouble"]), default=0.0)


# ------------------------------------------------------------------------------------------------------------- pictures


def by_graph(rows: Sequence[_Row]) -> str:
    """Return an SVG of exchanges against peers without losses, a line per graph; thin lines are theory."""
    return _picture([each for each in rows if each["trouble"] == "none"], lambda each: str(each["line"]), theory=True)


def by_loss(rows: Sequence[_Row]) -> str:
    """Return an SVG of exchanges against peers, a line per loss; one-peer-exponential has 2^k peers."""
    kept = [each for each in rows if each["line"] in ("one-peer-exponential, 2^k peers", "k-regular:4")]
    kept = [each for each in kept if "leave" not in each["trouble"]]
    return _picture(
        kept,
        lambda each: f"{each['line'].partition(',')[0]}: {each['trouble'].replace('none', '0% lost')}",
        theory=False,
    )


def _picture(rows: Sequence[_Row], name: Callable[[_Row], str], *, theory: bool) -> str:
    names = list(dict.fromkeys(map(name, rows)))

    def draw(axes: Axes) -> None:
        for number, each in enumerate(names):
            of = [one for one in _growing(rows) if name(one) == each and one["exchanges"] is not None]
            colour, x = method_colour(number), [one["peers"] for one in of]
            axes.plot(x, [one["exchanges"] for one in of], color=colour, marker=MARKERS[number], ms=4.5, label=each)
            known = [one["usual"] for one in of]
            if theory and None not in known:
                axes.plot(x, known, color=colour, linewidth=0.9, linestyle=(0, (4, 2)))
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
            axis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("peers")
        axes.set_ylabel("exchanges to a millionth")
        axes.legend(fontsize=8, frameon=False, labelcolor=INK, loc="upper left", bbox_to_anchor=(0, 1.0), ncols=2)
        low, high = axes.get_ylim()
        axes.set_ylim(low, high * (high / low) ** 0.35)  # room for the legend

    summary = "; ".join(f"{each}: {_range([one for one in rows if name(one) == each])}" for each in names)
    return draw_axes(draw, 300, f"Exchanges to a millionth by number of peers. {summary}", right=26, left=66)


def _growing(rows: Sequence[_Row]) -> list[_Row]:
    return sorted(rows, key=lambda one: int(one["peers"]))


def _range(rows: Sequence[_Row]) -> str:
    found = [one["exchanges"] for one in _growing(rows) if one["exchanges"]]
    return f"{found[0]:,} to {found[-1]:,}" if found else "–"
