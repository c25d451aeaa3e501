"""The report's pictures: curves, a dot for each peer, bytes, gossip, graphs (drawn with `canvas.py`)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from fedpeer.runs.canvas import INK, LINE, MARKERS, PALETTE, TEXT, draw_axes, end_labels, method_colour
from fedpeer.runs.history import Floats, History
from fedpeer.runs.summary import count_text, score_text, spoken

#: Most peers with a row each; more are drawn as one curve, from the worst to the best.
ROWS_MAX = 64
#: Weights that differ from 1 by less than this differ by rounding only.
_WEIGHT_NOISE = 1e-6
#: Most faults in the caption of a picture.
SPANS_NAMED = 6
#: Most averaging groups in one picture, and most nodes of a graph with labels.
GROUPS_MAX, LABELS_MAX = 6, 40
#: Mark of the linear models in a legend; in the picture a mark or line of the same form.
BASELINE_MARK = "❘"
#: Most nodes of a graph that is drawn smaller.
_FEW = 5


def _rounds(axes: Axes, last: int) -> None:
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.grid(visible=False, axis="x")
    if last <= 1:
        axes.set_xlim(0.5, 1.5)
        axes.set_xticks([1])


def band(score_RP: Floats) -> tuple[Floats, Floats, str]:
    """Return lower edge (R,), upper edge (R,) and name of the band over peers: 10-90 % of ten or more, else all."""
    edges = (10, 90) if score_RP.shape[1] >= 10 else (0, 100)
    low_R, high_R = np.percentile(score_RP, edges, axis=1)
    return low_R, high_R, "the middle 80 % of the peers" if edges[0] else "all peers, from the worst to the best"


def view(histories: Sequence[History]) -> tuple[float, float, bool]:
    """Return the lowest and highest score to show, and whether this range leaves out the climb in the first quarter.

    The climb is left out if it takes more than half of the height, because the methods differ after it.
    """
    bands = [np.stack(band(history.score_RP)[:2]) for history in histories]
    every = _finite(bands)
    late = _finite([edges_2R[:, edges_2R.shape[1] // 4 :] for edges_2R in bands])
    climb = len(late) > 0 and bool(np.ptp(late) < 0.5 * np.ptp(every))
    shown = late if climb else every
    return (float(shown.min()), float(shown.max()), climb) if len(shown) else (0.0, 1.0, False)


def _finite(arrays: Sequence[Floats]) -> Floats:
    values: Floats = np.concatenate([array.ravel() for array in arrays])
    return values[np.isfinite(values)]


def curves(histories: Sequence[tuple[int, History]], label: str) -> str:
    """Draw mean score over peers by round, with its band, for (colour number, history) of each evaluated method."""
    measure = histories[0][1].measure

    def draw(axes: Axes) -> None:
        ends = []
        for index, history in histories:
            colour, mean_R = method_colour(index), history.score_RP.mean(axis=1)
            low_R, high_R, _ = band(history.score_RP)
            axes.fill_between(history.round_R, low_R, high_R, color=colour, alpha=0.13, linewidth=0)
            axes.plot(history.round_R, mean_R, color=colour)
            axes.plot(history.round_R[-1:], mean_R[-1:], color=colour, marker=MARKERS[index % PALETTE], markersize=5)
            ends.append((float(mean_R[-1]), score_text(float(mean_R[-1]), measure), colour))
        _rounds(axes, max(int(history.round_R[-1]) for _, history in histories))
        low, high, _ = view([history for _, history in histories])
        margin = 0.04 * (high - low) or 0.01 + 0.01 * abs(high)
        axes.set_ylim(low - margin, high + margin)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value, measure)))
        end_labels(axes, ends)

    return draw_axes(draw, 250, label, right=52)


def draw_scores(axes: Axes, histories: Sequence[History]) -> None:
    """Draw mean score over peers by round, with its band, in the user's own style of matplotlib."""
    for history in histories:
        if len(history.round_R):
            [line] = axes.plot(history.round_R, history.score_RP.mean(axis=1), label=spoken(history.method))
            low_R, high_R, _ = band(history.score_RP)
            axes.fill_between(history.round_R, low_R, high_R, color=line.get_color(), alpha=0.15, linewidth=0)
    measure = histories[0].measure
    axes.set_xlabel("round")
    axes.set_ylabel(f"{measure}, mean over peers")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value, measure)))
    axes.legend()


def _tick(value: float, measure: str) -> str:
    return f"{100 * value:.3g} %" if measure == "accuracy" else f"{value:.3g}"


def per_peer(
    histories: Sequence[tuple[int, History]],
    peers: Sequence[str],
    label: str,
    *,
    baseline: Sequence[float] | None = None,
) -> str:
    """Draw each peer's last scores: one row per peer, or curves over sorted peers if there are more than `ROWS_MAX`.

    Args:
        baseline: a score of each peer to compare with; None: there is none.
    """
    if len(peers) > ROWS_MAX:
        return draw_axes(lambda axes: _sorted_curves(axes, histories, baseline), 250, label)
    names = [peer if len(peer) <= 16 else peer[:15] + "…" for peer in peers]
    row = 15 if len(peers) <= 32 else 11
    left = 14 + 0.6 * TEXT * max(map(len, names))
    return draw_axes(
        lambda axes: _dots(axes, histories, names, baseline),
        32 + row * len(peers),
        label,
        left=left,
        right=14,
        bottom=22,
    )


def _dots(
    axes: Axes, histories: Sequence[tuple[int, History]], names: Sequence[str], baseline: Sequence[float] | None
) -> None:
    place_P = np.arange(len(names))
    scores = {index: history.scores_SP.mean(axis=0) for index, history in histories}
    stacked = np.stack(list(scores.values()))
    axes.hlines(place_P, stacked.min(axis=0), stacked.max(axis=0), color=LINE, linewidth=2)
    for index, score_P in scores.items():
        marker = MARKERS[index % PALETTE]
        axes.plot(score_P, place_P, marker, color=method_colour(index), markersize=5.5, alpha=0.9, markeredgewidth=0)
    if baseline is not None:  # above the dots, which are wider
        axes.plot(baseline, place_P, "|", color=INK, markersize=9, markeredgewidth=1.6)
    axes.set_yticks(place_P, names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(6))
    measure = histories[0][1].measure
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value, measure)))


def _sorted_curves(axes: Axes, histories: Sequence[tuple[int, History]], baseline: Sequence[float] | None) -> None:
    measure, ends = histories[0][1].measure, []
    curves = [(history.scores_SP.mean(axis=0), method_colour(index), "-") for index, history in histories]
    if baseline is not None:
        curves.append((np.array(baseline, dtype=np.float64), INK, "--"))
    for unsorted_P, colour, form in curves:
        score_P = np.sort(unsorted_P)
        score_P = score_P if measure == "accuracy" else score_P[::-1]
        axes.plot(np.linspace(0, 1, len(score_P)), score_P, form, color=colour)
        ends.append((float(score_P[-1]), score_text(float(score_P[-1]), measure), colour))
    axes.set_xlabel("peers, from the worst to the best")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.0f} %"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value, measure)))
    end_labels(axes, ends)


def reliability_diagram(lines: Sequence[tuple[int, Sequence[Sequence[float]]]], label: str) -> str:
    """Draw (colour number, rows of mean confidence, part that is right, examples) for each method, and the diagonal."""

    def draw(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], color=LINE, linewidth=1.2)
        most = max((row[2] for _, rows in lines for row in rows), default=1)
        for index, rows in lines:
            confidence_B, part_B, count_B = np.array(rows, dtype=np.float64).reshape(-1, 3).T
            colour = method_colour(index)
            axes.plot(confidence_B, part_B, color=colour, linewidth=1)
            sizes = 6 + 54 * count_B / most
            axes.scatter(confidence_B, part_B, s=sizes, color=colour, marker=MARKERS[index % PALETTE], linewidths=0)
        axes.set(xlim=(0, 1.02), ylim=(0, 1.02), xlabel="confidence")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.0f} %"))

    return draw_axes(draw, 280, label, right=14)


def traffic_plot(histories: Sequence[tuple[int, History]], label: str) -> str:
    """Draw the bytes that all peers together send in each round."""

    def draw(axes: Axes) -> None:
        ends = []
        for index, history in histories:
            colour = method_colour(index)
            axes.plot(history.round_T, history.bytes_T, color=colour)
            axes.plot(history.round_T[-1:], history.bytes_T[-1:], MARKERS[index % PALETTE], color=colour, markersize=5)
            ends.append((float(history.bytes_T[-1]), count_text(history.bytes_T[-1], "B"), colour))
        axes.set_ylim(bottom=0, top=1.08 * max(float(history.bytes_T.max()) for _, history in histories))
        _rounds(axes, max(int(history.round_T[-1]) for _, history in histories))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: count_text(value, "B")))
        end_labels(axes, ends)

    return draw_axes(draw, 200, label, left=56, right=60)


def disagreement(history: History, index: int, label: str) -> str | None:
    """Draw the relative disagreement left after each round's averaging, one line per group; None if always zero."""
    lines = {group: np.where(left_T > 0, left_T, np.nan) for group, left_T in history.disagreement.items()}
    # It is measured in evaluated rounds only; a line through all rounds would consist of gaps.
    measured = {group: ~np.isnan(left_T) for group, left_T in history.disagreement.items()}
    shown = sorted((g for g in lines if np.isfinite(lines[g]).any()), key=lambda g: -float(np.nanmax(lines[g])))

    def draw(axes: Axes) -> None:
        left = _finite([lines[group] for group in shown[:GROUPS_MAX]])
        axes.set_yscale("log")  # whole decades: a part of a decade may have no labelled tick
        axes.set_ylim(10 ** np.floor(np.log10(left.min()) - 0.01), 10 ** np.ceil(np.log10(left.max()) + 0.01))
        ends = []
        for group in shown[:GROUPS_MAX]:
            there_T = measured[group]
            style = _dot(int(np.count_nonzero(there_T)))
            axes.plot(history.round_T[there_T], lines[group][there_T], style, color=method_colour(index))
            ends.append((float(lines[group][np.isfinite(lines[group])][-1]), group[:14], INK))
        _rounds(axes, int(history.round_T[-1]))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0e}".replace("e-0", "e-")))
        end_labels(axes, ends)

    return draw_axes(draw, 200, label, right=90) if shown else None


def _dot(rounds: int) -> str:
    """Return the style of a line, with dots if there are too few rounds for a line."""
    return ".-" if rounds < 3 else "-"


def weights_plot(history: History, index: int, label: str) -> str | None:
    """Draw least and greatest push-sum weight in each round, one band per group; None if all stayed at 1."""
    if all(np.nanmax(np.abs(weight_T2 - 1), initial=0) < _WEIGHT_NOISE for weight_T2 in history.weight.values()):
        return None

    def draw(axes: Axes) -> None:
        ends = []
        for group, weight_T2 in itertools.islice(history.weight.items(), GROUPS_MAX):
            colour = method_colour(index)
            axes.fill_between(history.round_T, weight_T2[:, 0], weight_T2[:, 1], color=colour, alpha=0.2, linewidth=0)
            for side in (0, 1):
                axes.plot(history.round_T, weight_T2[:, side], _dot(len(history.round_T)), color=colour, linewidth=1)
            ends.append((float(weight_T2[-1].mean()), group[:14], INK))
        _rounds(axes, int(history.round_T[-1]))
        end_labels(axes, ends)

    return draw_axes(draw, 180, label, right=90)


def over_time(
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    spans: Sequence[tuple[float, float]],
    what: str,
    label: str,
) -> str:
    """Draw step lines of each peer, (seconds, values), on grey time spans; few peers are named at the line ends."""
    named = len(lines) <= PALETTE

    def draw(axes: Axes) -> None:
        ends = []
        for begin, end in spans:
            axes.axvspan(begin, end, color=LINE, alpha=0.5, linewidth=0, zorder=0)
        for number, (peer, (seconds, values)) in enumerate(lines.items()):
            known = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
            colour = method_colour(number) if named else INK
            axes.plot(seconds, known, color=colour, drawstyle="steps-post", linewidth=1.2, alpha=1.0 if named else 0.4)
            if named and len(known):
                ends.append((float(known[-1]), peer[:14], colour))
        axes.set_xlabel("seconds")
        axes.set_ylabel(what)
        axes.set_ylim(bottom=0)
        end_labels(axes, ends)

    return draw_axes(draw, 220, label, left=56, right=76)


def graph(nodes: Sequence[str], edges: Sequence[Sequence[int]], places: Sequence[Sequence[float]], label: str) -> str:
    """Draw a graph: nodes at `places` (N, 2), edges as pairs of indices into `nodes`.

    The labels are inside the nodes, so that a phone shows them at a readable size.
    """
    positions = np.array(places, dtype=np.float64)
    labelled = len(nodes) <= LABELS_MAX
    size, colour = (150, LINE) if labelled else (5, INK)

    def draw(axes: Axes) -> None:
        axes.set_axis_off()
        lines = [(positions[source], positions[target]) for source, target in edges]
        faint = 1.0 if len(edges) <= 200 else 0.35
        axes.add_collection(LineCollection(lines, colors=LINE, linewidths=1.2, alpha=faint, zorder=1))
        axes.scatter(positions[:, 0], positions[:, 1], s=size, color=colour, zorder=2)
        for (x, y), name in zip(positions, _shortest(nodes) if labelled else (), strict=labelled):
            axes.text(x, y, name, ha="center", va="center", fontsize=8.5, zorder=3)
        axes.set_aspect("equal", adjustable="datalim")
        axes.margins(0.08)

    height = 300 if len(nodes) > _FEW else 60 + 40 * len(nodes)
    return draw_axes(draw, height, label, left=10, right=10, bottom=10)


def _shortest(names: Sequence[str]) -> Iterator[str]:
    """Yield names that fit into a node: the number alone if all are peer1, peer2, ..."""
    numbered = all(re.fullmatch(r"peer\d+", name) for name in names)
    return (name.removeprefix("peer") if numbered else name[:8] for name in names)


def spread_plot(values: Sequence[float | None], colour: int, label: str) -> str:
    """Draw one number per peer, in ascending order; the axis is logarithmic if they differ by a factor above 100.

    Args:
        values: null for a peer that diverged, which is left out.
        colour: number of the method's colour.
        label: text for screen readers.
    """
    known = np.sort(_finite([np.array(values, dtype=np.float64)]))  # null becomes NaN

    def draw(axes: Axes) -> None:
        axes.plot(np.arange(1, len(known) + 1), known, "o", color=method_colour(colour), markersize=4)
        if len(known) and known[0] > 0 and known[-1] > 100 * known[0]:
            axes.set_yscale("log")
        axes.set_xlabel("peers")
        axes.grid(visible=False, axis="x")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.set_xlim(0.5, max(len(known), 1) + 0.5)

    return draw_axes(draw, 180, label, left=56, right=12)


def relations(matrix_PP: Floats, peers: Sequence[str], label: str) -> str:
    """Draw how related tasks are, from -1 to 1, as areas of squares; negative relations are crosses."""
    count = len(matrix_PP)
    side = 300 / max(count, 1)

    def draw(axes: Axes) -> None:
        row_M, column_M = np.indices(matrix_PP.shape).reshape(2, -1)
        value_M = np.clip(np.nan_to_num(matrix_PP.reshape(-1)), -1, 1)
        for marker, some_M in (("s", value_M > 0), ("x", value_M < 0)):
            size_M = (0.9 * side * 0.72 * np.sqrt(np.abs(value_M[some_M]))) ** 2
            axes.scatter(column_M[some_M], row_M[some_M], s=size_M, marker=marker, color=INK, linewidths=1)
        axes.set(xlim=(-0.5, count - 0.5), ylim=(count - 0.5, -0.5), xticks=[], yticks=[])
        axes.grid(visible=False)
        if count <= LABELS_MAX:
            axes.set_yticks(range(count), peers)

    return draw_axes(draw, 340, label, left=64, right=16, bottom=12)
