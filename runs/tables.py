"""The report's tables as HTML: results, splits, names and values. All text from outside is escaped."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from fedpeer.runs.history import Measure
from fedpeer.runs.plots import ROWS_MAX
from fedpeer.runs.scores import LATE, METRICS
from fedpeer.runs.summary import (
    NUMBERS_MAX,
    count_text,
    measure_of,
    metric_names,
    metric_text,
    score_text,
    server_score,
    spoken,
)

#: Rows of the split if there are more than `ROWS_MAX` peers; each row is for several consecutive peers.
_BINS = 32
#: Most notes in one row.
NOTES_MAX = 3


def results(methods: Mapping[str, Mapping[str, Any]], marks: Mapping[str, str]) -> str:
    """Return the table of results, one row per method; `marks`: the HTML of each method's mark."""
    measure = measure_of(methods)
    seeds = max((len(result.get("seeds") or [0]) for result in methods.values()), default=1)
    uneven = len({result.get("rounds") for result in methods.values()}) > 1
    served = any(server_score(result) is not None for result in methods.values())
    labels = [
        measure,
        *(["server's model"] if served else []),
        "worst peer",
        "spread",
        "bytes sent",
        "messages",
        "seconds per round",
    ]
    labels += ["after round"] * uneven
    lines = []
    for method, result in methods.items():
        mean, sem, spread = (result.get(f"{measure}_{key}") for key in ("mean", "sem", "spread"))
        cells = [
            score_text(mean, measure, sem),
            *([_server(result, measure)] if served else []),
            score_text(result.get(f"{measure}_worst"), measure),
            _width(spread, measure),
            count_text(result["bytes_sent"], "B"),
            count_text(result["messages_sent"]),
            f"{result['seconds_per_round']:.3g}",
            *([str(result.get("rounds") or "–")] * uneven),
        ]
        columns = "".join(
            f'<td data-label="{label}"{" class=main" * (not place)}>{cell}</td>'
            for place, (label, cell) in enumerate(zip(labels, cells, strict=True))
        )
        lines.append(f"<tr><th scope=row>{marks[method]}{escape(spoken(method))}</th>{columns}</tr>")
    head = "".join(f"<th scope=col>{label}</th>" for label in labels)
    note = "Spread: standard deviation over peers."
    note += f" {measure.capitalize()} is that of the peers' own models." if served else ""
    note += f" ±: standard error of the mean, over {seeds} seeds." if seeds > 1 else ""
    table = f"<table class=results><thead><tr><th></th>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    return f"<div class=card>{table}</div><p class=soft>{note}</p>"


def _server(result: Mapping[str, Any], measure: Measure) -> str:
    sem = result["scores"].get("GM", {}).get("final_sem") if result.get("scores") else None
    return score_text(server_score(result), measure, sem)


def scores_table(methods: Mapping[str, Mapping[str, Any]], marks: Mapping[str, str]) -> str:
    """Return the table of four scores per method, in the last and the best round; "" without a server's model.

    If the last rounds were all evaluated, it has the mean over these, too.
    """
    measure = measure_of(methods)
    found = {method: result["scores"] for method, result in methods.items() if result.get("scores")}
    if not any("GM" in each for each in found.values()):
        return ""
    shown = {"final": "last", "late": f"last {LATE}", "best": "best"}
    if not any("late" in each[name] for each in found.values() for name in each):
        del shown["late"]
    lines = []
    for method, each in found.items():
        cells = ""
        for name in METRICS:
            for column in shown:
                score = each.get(name, {})
                cells += f"<td>{score_text(score.get(column), measure, score.get(f'{column}_sem'))}</td>"
        lines.append(f"<tr><th scope=row>{marks[method]}{escape(spoken(method))}</th>{cells}</tr>")
    chosen = {each[name]["best_by"] for each in found.values() for name in each}
    by = "on validation examples" if chosen == {"validation"} else "on the test data itself, which is optimistic"
    names = "".join(f"<th scope=colgroup colspan={len(shown)}>{name}</th>" for name in METRICS)
    columns = "".join(f"<th scope=col>{title}</th>" for title in shown.values()) * len(METRICS)
    note = (
        "PM, MT: the peers' own models; GM, S: the server's. PM, GM: each peer counts the same; MT, S: weighted by "
        f"test examples. Best: the round that was best {by}."
    )
    note += f" Last {LATE}: the mean over these rounds." if "late" in shown else ""
    head = f"<thead><tr><th></th>{names}</tr><tr><th></th>{columns}</tr></thead>"
    table = f"<table class=split>{head}<tbody>{''.join(lines)}</tbody></table>"
    return f"<div class=card><div class=scroll>{table}</div></div><p class=soft>{note}</p>"


def metrics_table(methods: Mapping[str, Mapping[str, Any]], marks: Mapping[str, str]) -> str:
    """Return the table of the further metrics, one row per method; "" if none were wanted."""
    names = metric_names(methods)
    if not names:
        return ""
    lines = []
    for method, result in methods.items():
        found = result.get("metrics") or {}
        cells = "".join(f'<td data-label="{escape(name)}">{metric_text(found.get(name))}</td>' for name in names)
        lines.append(f"<tr><th scope=row>{marks[method]}{escape(spoken(method))}</th>{cells}</tr>")
    head = "".join(f"<th scope=col>{escape(name)}</th>" for name in names)
    table = f"<table class=results><thead><tr><th></th>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    note = "Each peer's last model on its own test part, mean over peers; in brackets, for how many it is defined."
    return f"<div class=card>{table}</div><p class=soft>{note}</p>"


def confusion_table(classes: Sequence[str], confusion: Sequence[Sequence[int]]) -> str:
    """Return a confusion matrix: rows are the classes of the examples, columns those that the models answered."""
    named = list(classes) or [str(place) for place in range(len(confusion))]
    tall = " class=tall" if max(map(len, named)) > 3 else ""
    head = "".join(f"<th scope=col><span{tall}>{escape(name)}</span></th>" for name in named)
    lines = []
    for name, row in zip(named, confusion, strict=True):
        whole = sum(row) or 1
        cells = "".join(
            f'<td class=cell style="--s:{count / whole:.2f}" title="{escape(name)} as {escape(other)}: {count}">'
            f"{(count if len(named) <= NUMBERS_MAX else '') or ''}</td>"
            for other, count in zip(named, row, strict=True)
        )
        lines.append(f"<tr><th scope=row>{escape(name)}</th>{cells}</tr>")
    table = f"<table class=split><thead><tr><th></th>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    return f"<div class=scroll>{table}</div>"


def _width(value: float | None, measure: str) -> str:
    """Format a spread: in points, or in the error's own unit."""
    if value is None:
        return "–"
    return f"{100 * value:.1f} points" if measure == "accuracy" else f"{value:.2g}"


def split_table(data: Mapping[str, Any]) -> str:
    """Return the table of a split: training examples by peer and class, shaded; or quantiles of the target."""
    peers = _binned(data["peers"]) if len(data["peers"]) > ROWS_MAX else data["peers"]
    counted = [peer.get("train_counts") or [] for peer in peers]
    most = max((count for row in counted for count in row), default=0) or 1
    names = [str(name) for name in data.get("classes") or ("least", "25 %", "median", "75 %", "greatest")]
    tall = " class=tall" if data.get("classes") and max(map(len, names)) > 3 else ""
    head = "".join(f"<th scope=col><span{tall}>{escape(name)}</span></th>" for name in names)
    lines = []
    for peer, counts in zip(peers, counted, strict=True):
        shown = len(names) <= NUMBERS_MAX
        cells = "".join(
            f'<td class=cell style="--s:{count / most:.2f}" title="{escape(name)}: {count}">{count * shown or ""}</td>'
            for name, count in zip(names, counts, strict=False)
        )
        cells += "".join(f"<td>{float(value):.4g}</td>" for value in _quantiles(peer))
        lines.append(
            f"<tr><th scope=row>{escape(str(peer['id']))}</th>{cells}<td>{peer['train']}</td><td>{peer['test']}</td>"
            f"<td class=note>{escape(str(peer.get('note') or ''))}</td></tr>"
        )
    head = f"<tr><th></th>{head}<th scope=col>train</th><th scope=col>test</th><th></th></tr>"
    return f"<div class=scroll><table class=split><thead>{head}</thead><tbody>{''.join(lines)}</tbody></table></div>"


def _binned(peers: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Merge many peers into `_BINS` rows: sums of examples, means of quantiles, the most frequent notes."""
    step = math.ceil(len(peers) / _BINS)
    bins = [peers[start : start + step] for start in range(0, len(peers), step)]
    return [
        {
            "id": f"{several[0]['id']} … {several[-1]['id']}",
            "note": _notes(several),
            "train": sum(peer["train"] for peer in several),
            "test": sum(peer["test"] for peer in several),
            "train_counts": [
                sum(counts) for counts in zip(*(p.get("train_counts") or [] for p in several), strict=False)
            ],
            "train_quantiles": [[sum(q) / len(q) for q in zip(*map(_quantiles, several), strict=False)]],
        }
        for several in bins
    ]


def _notes(peers: Sequence[Mapping[str, Any]]) -> str:
    counted = Counter(str(peer["note"]) for peer in peers if peer.get("note"))
    notes = [f"{note} ({count})" for note, count in counted.most_common(NOTES_MAX)]
    return "; ".join(notes) + ("; …" if len(counted) > NOTES_MAX else "")


def _quantiles(peer: Mapping[str, Any]) -> list[float]:
    """Return the quantiles of the first output; empty for classes."""
    return list((peer.get("train_quantiles") or [[]])[0])


def pairs(lines: Iterable[tuple[str, str]]) -> str:
    """Return a table of names and values."""
    body = "".join(f"<tr><th scope=row>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in lines)
    return f"<table class=pairs><tbody>{body}</tbody></table>"
