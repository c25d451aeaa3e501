"""The HTML report of a run: one self-contained file, for a light or dark browser, a phone, or paper.

It is made from the files that the folder has: an interrupted run, or one without evaluations, has a report too. Text
from outside (names, notes, settings) is escaped, and a drawing from outside is included only if it has nothing but
shapes and text. Beside the rows of `history.py` it reads these descriptions, each of them optional:

    split.json    {"rule", "remarks": [...], "classes": [...],
                   "peers": [{"id", "note", "train", "test", "train_counts": [C ints]
                              or "train_quantiles": [[least, 25 %, median, 75 %, greatest] of each output]}]}
    plan.json     {"svg": text or null}
    graphs.json   {"groups": [{"group", "nodes": [ids], "edges": [[i, j]], "positions": [[x, y]], "directed": bool,
                               "exchanges": int}]}
    relations.json   {method: {"peers": [P ids], "matrix": [P][P] from -1 to 1}}
    answers.json     {method: {"classes": [...], "confusion": [C][C],
                      with metrics "reliability": [[confidence, part that is right, examples], ...]}}
    timeline.json    {method: {"peers": {id: {"seconds": [...], "rounds": [...], "weights": {group: [...]}}},
                               "faults": [{"begin": s, "end": s, "text"}]}}
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from html import escape
from importlib.resources import files
from pathlib import Path

from fedpeer.runs import sections, tables
from fedpeer.runs.compare import flat
from fedpeer.runs.disk import write_text
from fedpeer.runs.facts import Facts, gather_facts
from fedpeer.runs.folder import RunFolder
from fedpeer.runs.sections import counted_text, prose
from fedpeer.runs.summary import best_text, headline, linear_text, measure_of, spoken


def write_report(run: RunFolder) -> Path:
    """Write or replace `report.html` in the run's folder; return its path.

    Raises:
        RunError: a file of the run is damaged.
    """
    path = run.path / "report.html"
    write_text(path, _page(gather_facts(run)))
    return path


def _page(run: Facts) -> str:
    title = escape(f"{run.settings.get('name', 'run')}: {headline(run.methods, brief=True)}")
    style = (files("fedpeer.runs") / "report.css").read_text(encoding="utf-8")
    pictures = (
        sections.learning,
        sections.answers_section,
        sections.split_section,
        sections.slices_section,
        sections.graphs,
        sections.gossip,
        sections.timeline,
        sections.coordinated,
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>\n{style}</style>\n</head>\n<body>\n"
        + "\n".join(filter(None, (part(run) for part in (_header, _results, *pictures, _again))))
        + "\n</body>\n</html>\n"
    )


def _header(run: Facts) -> str:
    learning, simulation = run.settings.get("learning", {}), run.settings.get("simulation", {})
    seeds = sorted({seed for history in run.histories.values() for seed in history.seeds})
    facts = [
        simulation.get("dataset"),
        simulation.get("split"),
        counted_text(len(run.peers) or simulation.get("peers"), "peer"),
        counted_text(learning.get("rounds"), "round"),
        _seeds(seeds) if seeds else None,
        f"started {datetime.fromisoformat(run.started):%d %B %Y, %H:%M} UTC" if run.started else None,
        None if run.seconds is None else f"took {_duration(run.seconds)}",
        run.environment.get("device"),
    ]
    spans = "".join(f"<span>{escape(str(fact))}</span>" for fact in facts if fact)
    return (
        f'<header><p class="soft">fedpeer run {escape(run.id)}</p><h1>{prose(headline(run.methods, brief=True))}</h1>'
        f'<p class="facts">{spans}</p>{_notice(run)}</header>'
    )


def _notice(run: Facts) -> str:
    if run.status == "finished":
        return ""
    rounds = run.settings.get("learning", {}).get("rounds", "?")
    place = "before its first round"
    if run.last is not None:
        place = f"after round {run.last['round']} of {rounds} of {spoken(run.last['method'])}, seed {run.last['seed']}"
    notice = {
        "running": f"This run is still running; the report was written {place}.",
        "interrupted": f"This run was interrupted {place}. Resume it with",
        "failed": f"This run failed with an error {place}.",
    }[run.status]
    resume = f" <code>fedpeer simulate --resume {escape(run.id)}</code>"
    if run.settings.get("objects"):
        resume = f' the same call of <code>fedpeer.simulate</code> with <code>resume="{escape(run.id)}"</code>'
    return f'<p class="notice">{escape(notice)}{resume if run.status == "interrupted" else ""}</p>'


def _seeds(seeds: Sequence[int]) -> str:
    if len(seeds) > 2 and seeds[-1] - seeds[0] == len(seeds) - 1:
        return f"seeds {seeds[0]} to {seeds[-1]}"
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def _results(run: Facts) -> str:
    if not run.methods:
        return '<p class="notice">Nothing was measured.</p>'
    measure = measure_of(run.methods)
    less = " Less is better." if measure == "error" else ""
    said = [f"{headline(run.methods)}.", best_text(run.methods), linear_text(run.linear, measure)]
    marks = {method: run.mark(method) for method in run.methods}
    return (
        "<section><h2>Results</h2>"
        f'<p class="soft">Each peer on its own test data, after its last round.{less}</p>'
        f"{tables.results(run.methods, marks)}{tables.scores_table(run.methods, marks)}"
        f"{tables.metrics_table(run.methods, marks)}"
        f'<p class="soft">{" ".join(prose(each) for each in said if each)}</p></section>'
    )


def _again(run: Facts) -> str:
    command = run.settings.get("command")
    settings = [(key, value) for key, value in flat(run.settings) if key != "command" and value != "null"]
    again = f"<h2>How to repeat it</h2><pre>{escape(str(command))}</pre>" if command else ""
    return (
        f"<section>{again}<details><summary>Settings</summary>{tables.pairs(settings)}</details>"
        f"<details><summary>Environment</summary>{tables.pairs(flat(run.environment))}</details>"
        "<p class=soft>All these numbers are in the run's folder, in summary.json and metrics.jsonl.</p></section>"
    )
