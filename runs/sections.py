"""The report's sections with pictures, each as HTML; "" if the run has nothing to show there.

Texts and layout are here, pictures in `plots.py`, tables in `tables.py`. All text from outside is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from html import escape

import numpy as np

from fedpeer.runs import plots, tables
from fedpeer.runs.facts import Facts
from fedpeer.runs.history import History
from fedpeer.runs.summary import count_text, spoken
from fedpeer.runs.svg import drawing_only
from fedpeer.runs.units import keep_units


def prose(text: str) -> str:
    """Return text as HTML in which a number is not separated from its unit."""
    return escape(keep_units(text)).replace("\xa0", "&nbsp;")


def _figure(title: str, picture: str, caption: str = "", *, keys: str = "", wide: bool = False) -> str:
    """Return a figure; `picture`, `caption` and `keys` are HTML."""
    inner = f"<div class=scroll>{picture}</div>" if wide else picture
    return (
        f"<figure{' class=wide' * wide}><h3>{escape(title)}</h3>{keys}{inner}"
        + (f"<figcaption>{caption}</figcaption>" if caption else "")
        + "</figure>"
    )


def _keys(run: Facts, methods: Iterable[str], *, baseline: str = "") -> str:
    """Return the legend of a picture; `baseline`: the name of what is drawn in the colour of the text, if anything."""
    items = [f"<li>{run.mark(m)}{escape(spoken(m))}</li>" for m in methods]
    items += [f"<li><span class=mark>{plots.BASELINE_MARK}</span>{escape(baseline)}</li>"] if baseline else []
    return f"<ul class=keys>{''.join(items)}</ul>"


def learning(run: Facts) -> str:
    """Return the section on scores by round, each peer's score, and the bytes sent."""
    drawn = run.evaluated
    sending = [(run.colours[m], history) for m, history in run.histories.items() if history.bytes_T.any()]
    stack, beside = [], ""
    if drawn:
        measure = drawn[0][1].measure
        keys = _keys(run, [history.method for _, history in drawn])
        peers = f"{len(run.peers):,} peers" if len(run.peers) > 1 else "one peer"
        seeds = max(len(history.seeds) for _, history in drawn)
        caption = f"Line: mean over {peers}" + (f" and {seeds} seeds" if seeds > 1 else "") + "."
        if len(run.peers) > 1:
            caption += f" Band: {plots.band(drawn[0][1].score_RP)[2]}."
        if plots.view([history for _, history in drawn])[2]:
            caption += " The first rounds are outside the picture."
        title = f"{measure.capitalize()} by round"
        stack.append(_figure(title, plots.curves(drawn, title), prose(caption), keys=keys))
        losses = [(index, _losses(h)) for index, h in drawn if np.isfinite(h.loss_RP).all()]
        if losses:
            keys_of_losses = _keys(run, [history.method for _, history in losses])
            text = "Mean loss on the peers' own test parts; where it rises while the score stays, answers get too sure."
            stack.append(
                _figure("Loss by round", plots.curves(losses, "Loss by round"), prose(text), keys=keys_of_losses)
            )
        title = f"{measure.capitalize()} of each peer after its last round"
        if run.linear:
            keys = _keys(run, [history.method for _, history in drawn], baseline=f"{run.linear['model']} alone")
        picture = plots.per_peer(drawn, run.names, title, baseline=run.linear.get("per_peer"))
        beside = _figure(title, picture, prose(_gains(run)), keys=keys)
    steady = all(np.ptp(history.bytes_T) == 0 for _, history in sending)
    if sending and not steady:
        sums = [(h.method, count_text(h.bytes_T.sum(), "B"), count_text(h.messages_T.sum())) for _, h in sending]
        caption = "Sum over all peers. Whole run: "
        caption += ", ".join(f"{spoken(m)} {size} in {messages} messages" for m, size, messages in sums) + "."
        title = "Bytes sent in each round"
        keys = _keys(run, [history.method for _, history in sending])
        stack.append(_figure(title, plots.traffic_plot(sending, title), prose(caption), keys=keys))
    same = f"<p>{prose(_steady([history for _, history in sending]))}</p>" if sending and steady else ""
    if not stack and not same:
        return ""
    left = f"<div class=stack>{''.join(stack)}</div>" if stack else ""
    return f"<section><h2>Learning</h2><div class=grid>{left}{beside}</div>{same}</section>"


def _losses(history: History) -> History:
    """Return the history with losses instead of scores."""
    return replace(history, measure="error", score_RP=history.loss_RP)


def _steady(histories: Iterable[History]) -> str:
    """Return a sentence about methods that send the same in each round."""
    each = [
        f"{spoken(h.method)} {count_text(h.bytes_T[0], 'B')} in each round, "
        f"{count_text(h.bytes_T.sum(), 'B')} in the whole run, in {count_text(h.messages_T.sum())} messages"
        for h in histories
    ]
    return f"Sent by all peers together: {'; '.join(each)}."


def _gains(run: Facts) -> str:
    """Return sentences about the peers that gain and lose against local only, for each method."""
    local = run.histories.get("local")
    if local is None or not local.scores_SP.size:
        return ""
    sentences = []
    for _, history in run.evaluated:
        if history.method == "local" or history.round_R[-1] != local.round_R[-1]:
            continue
        gain_P = history.scores_SP.mean(axis=0) - local.scores_SP.mean(axis=0)
        gain_P = gain_P if local.measure == "accuracy" else -gain_P
        known = np.flatnonzero(np.isfinite(gain_P))
        if not len(known):
            continue
        best, worst = known[np.argmax(gain_P[known])], known[np.argmin(gain_P[known])]
        count = np.count_nonzero(gain_P > 0)
        better = f"{count:,} of {len(known):,} peers {'is' if count == 1 else 'are'} better than with local only"
        sentence = f"With {spoken(history.method)}, {better}"
        if gain_P[best] > 0:
            sentence += f"; {run.names[best]} gains most ({_gain(gain_P[best], local.measure)})"
        if gain_P[worst] < 0:
            sentence += f"; {run.names[worst]} loses most ({_gain(gain_P[worst], local.measure)})"
        sentences.append(sentence + ".")
    return " ".join(sentences)


def _gain(gain: float, measure: str) -> str:
    sign = "+" if gain > 0 else "−"
    return (
        f"{sign}{100 * abs(gain):.1f} points"
        if measure == "accuracy"
        else f"error {'−' if gain > 0 else '+'}{abs(gain):.2g}"
    )


def answers_section(run: Facts) -> str:
    """Return the section on the models' answers: a confusion matrix of each method; if measured, their reliability."""
    methods = {method: found for method, found in run.answers.items() if method in run.colours}
    if not methods:
        return ""
    figure, known = "", [method for method, found in methods.items() if "reliability" in found]
    if known:
        title = "Confidence, and part of the answers that is right"
        lines = [(run.colours[method], methods[method]["reliability"]) for method in known]
        caption = prose("On the diagonal a model is right as often as it expects; below it, less often.")
        figure = _figure(title, plots.reliability_diagram(lines, title), caption, keys=_keys(run, known))
    matrices = "".join(
        f"<details{' open' * (place == 0)}><summary>{run.mark(method)}{escape(spoken(method))}</summary>"
        f"{tables.confusion_table(found['classes'], found['confusion'])}</details>"
        for place, (method, found) in enumerate(methods.items())
    )
    confused = f"<figure><h3>Confusion matrix: classes (rows) and answers (columns)</h3>{matrices}</figure>"
    note = "Each peer's last model on its own test part, with labels as that peer has them; all peers together."
    return f"<section><h2>Answers</h2><p class=soft>{prose(note)}</p><div class=grid>{figure}{confused}</div></section>"


def split_section(run: Facts) -> str:
    """Return the section on the examples of each peer."""
    if run.split is None:
        return ""
    remarks = "".join(f"<p class=soft>{escape(str(remark))}</p>" for remark in run.split.get("remarks") or ())
    labels = run.split.get("task") == "multi-label"
    if run.split.get("classes"):
        kind = f"Training examples of each {'label' if labels else 'class'}"
    else:
        kind = f"Quantiles of the {'number of labels' if labels else 'target'} in the training data"
    rule = escape(str(run.split["rule"]))
    return (
        f"<section><h2>Data of each peer</h2><p class=soft>{kind}, for each peer; split: {rule}.</p>{remarks}"
        f"<div class=card>{tables.split_table(run.split)}</div></section>"
    )


def slices_section(run: Facts) -> str:
    """Return the section with the run's drawing of the partial models."""
    svg = run.plan.get("svg")
    if not svg:
        return ""
    picture = drawing_only(svg)
    if picture is None:
        picture = "<p class=soft>The drawing was left out: it contains more than lines, shapes and text.</p>"
    title = "Partial models, their dependencies, and the neurons they own"
    return f"<section><h2>Slices</h2>{_figure(title, picture, wide=True)}</section>"


def graphs(run: Facts) -> str:
    """Return the section with the graph of each averaging group."""
    figures = []
    for graph in run.graphs[: plots.GROUPS_MAX]:
        nodes, edges = [str(node) for node in graph["nodes"]], graph["edges"]
        link = "one-way link" if graph.get("directed") else "link"
        title = f"{graph['group']}: {counted_text(len(nodes), 'peer')}, {counted_text(len(edges), link)}"
        picture = plots.graph(nodes, edges, graph["positions"], title)
        exchanges = counted_text(graph.get("exchanges"), "exchange")
        caption = f"{exchanges} in each averaging." if exchanges else ""
        figures.append(_figure(title, picture, escape(caption)))
    if not figures:
        return ""
    more = len(run.graphs) - len(figures)
    rest = f"<p class=soft>{counted_text(more, 'more averaging group')} not drawn.</p>" if more else ""
    return (
        "<section><h2>Graphs of the exchanges</h2><p class=soft>One graph for each averaging group.</p>"
        f"<div class=grid>{''.join(figures)}</div>{rest}</section>"
    )


def gossip(run: Facts) -> str:
    """Return the section on the accuracy of the averages, for each method that gossips."""
    figures, said = [], dict[str, list[str]]()
    for method, history in run.histories.items():
        colour, key = run.colours[method], _keys(run, [method])
        if history.disagreement:
            title = "Disagreement left after averaging"
            picture = plots.disagreement(history, colour, title)
            caption = "Relative, one line for each averaging group" + _shown(len(history.disagreement)) + "."
            if picture is None:
                said.setdefault("every average was exact", []).append(spoken(method))
            else:
                figures.append(_figure(title, picture, caption, keys=key))
        if history.weight:
            title = "Push-sum weights"
            caption = "From the smallest to the largest in a group" + _shown(len(history.weight)) + "."
            picture = plots.weights_plot(history, colour, title)
            if picture is None:
                said.setdefault("all weights stayed at 1", []).append(spoken(method))
            else:
                figures.append(_figure(title, picture, caption, keys=key))
    sentences = "; ".join(f"{', '.join(methods)}: {fact}" for fact, methods in said.items())
    facts = f"<p>{prose(sentences[:1].upper() + sentences[1:])}.</p>" if said else ""
    grid = f"<div class=grid>{''.join(figures)}</div>" if figures else ""
    return f"<section><h2>Gossip</h2>{grid}{facts}</section>" if figures or said else ""


def timeline(run: Facts) -> str:
    """Return the section on rounds and weights of all peers over virtual time, with faults in the background."""
    figures = []
    for method, timeline in run.timeline.items():
        spans = [(each["begin"], each["end"]) for each in timeline["faults"]]
        words = "; ".join(
            f"{e['begin']:g} to {e['end']:g} s: {e['text']}" for e in timeline["faults"][: plots.SPANS_NAMED]
        )
        more = len(timeline["faults"]) - plots.SPANS_NAMED
        caption = f"Grey: faults, {escape(words)}{f'; and {more} more' if more > 0 else ''}." if words else ""
        key = _keys(run, [method])
        rounds = {peer: (each["seconds"], each["rounds"]) for peer, each in timeline["peers"].items()}
        title = "Rounds finished by each peer, over virtual time"
        figures.append(_figure(title, plots.over_time(rounds, spans, "round", title), caption, keys=key))
        groups = sorted({group for each in timeline["peers"].values() for group in each["weights"]})
        for group in groups[: plots.GROUPS_MAX]:
            held = {
                p: (e["seconds"], e["weights"][group]) for p, e in timeline["peers"].items() if group in e["weights"]
            }
            title = f"Push-sum weight of each peer in {group}, over virtual time"
            figures.append(_figure(title, plots.over_time(held, spans, "weight", title), caption, keys=key))
    return f"<section><h2>Over time</h2><div class=grid>{''.join(figures)}</div></section>" if figures else ""


def coordinated(run: Facts) -> str:
    """Return the section on the algorithms' own numbers of the peers, and on how related their tasks are."""
    figures = []
    for method, numbers in run.statistics.items():
        for name, values in numbers.items():
            title = f"{name.capitalize()} of the peers, after the last round"
            picture = plots.spread_plot(values, run.colours[method], title)
            figures.append(_figure(title, picture, "In ascending order.", keys=_keys(run, [method])))
    for method, relations in run.relations.items():
        title = "How related the tasks are"
        matrix_PP = np.array(relations["matrix"], dtype=np.float64)  # null, as after a divergence, becomes NaN
        picture = plots.relations(matrix_PP, relations["peers"], title)
        caption = "Large square: similar. Empty: unrelated. Cross: opposite."
        figures.append(_figure(title, picture, caption, keys=_keys(run, [method])))
    return f"<section><h2>Other measurements</h2><div class=grid>{''.join(figures)}</div></section>" if figures else ""


def _shown(groups: int) -> str:
    return f"; {plots.GROUPS_MAX} of {groups} groups are drawn" if groups > plots.GROUPS_MAX else ""


def counted_text(count: int | None, noun: str) -> str | None:
    """Return text like "1,024 peers"; None for None."""
    return None if count is None else f"{count:,} {noun}{'s' * (count != 1)}"
