"""All experiments on one HTML page: which claims hold, every figure and table, and how each was made.

The page is one self-contained file in the style of a run's report (`runs/report.py`). Its sections are the Markdown
pages of `table.py`, whose tables get row headings and, for narrow screens, the column's name beside each number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from itertools import groupby
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token

from fedpeer.experiments.pictures import figure_picture
from fedpeer.experiments.table import lasting_text, stem_of, table_page

Page = Mapping[str, Any]

#: Style that a run's report does not need: sentences in tables, and verdicts.
_STYLE = """
.results:not(.wordy) th { white-space: normal; min-width: min(5em, 20vw); }
.results:not(.wordy) tbody th { min-width: min(14em, 40vw); }
.wordy :is(th, td) { text-align: left; white-space: normal; vertical-align: top; font-weight: 400; }
.wordy tbody :is(th, td) { padding-right: 24px; }
.wordy tbody th { min-width: min(24em, 50vw); }
.wordy thead th { font-weight: 500; }
.index td { white-space: nowrap; }
.results .group th { color: var(--soft); font-weight: 500; padding-top: 18px; }
.held, .failed { white-space: nowrap; }
.held { color: var(--m3); } .failed { color: var(--m2); }
section { margin-top: 56px; } section h2 { margin-top: 0; }
a { color: var(--m1); }
@media (max-width: 640px) {
  .results.wordy tr { grid-template-columns: minmax(0, 1fr); }
  .results.wordy td { padding-right: 0; }
  .results.index tr { grid-template-columns: 1fr 1fr 1fr; }
  .results.index td { display: block; white-space: normal; }
  .results.index td::before { margin-right: .4em; }
}
"""
_HELD = {"held": "held", "not held": "failed"}


def book(pages: Sequence[Page]) -> str:
    """Return the HTML page of these experiments' data, in their order."""
    style = (files("fedpeer.runs") / "report.css").read_text(encoding="utf-8") + _STYLE
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>fedpeer: experiments</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<style>\n{style}</style>\n</head>\n<body>\n<h1 id="top">What the papers say, played on this machine</h1>\n'
        f"<p>{_summary(pages)}</p>\n{_contents(pages)}\n" + "\n".join(map(_section, pages)) + "\n</body>\n</html>\n"
    )


def index(pages: Sequence[Page]) -> str:
    """Return a Markdown index with a line for each page beside it (`STEM.md`), and the command that made the page."""
    failed = _failed(pages)
    end = " [What did not hold](#what-did-not-hold) is named at the end." if failed else ""
    lines = [
        f"# What the papers say, played on {_machines(pages)}",
        f"{_summary(pages)}{end} Everything on one page: [experiments.html](experiments.html).",
    ]
    held = _held_by_page(pages)
    for paper, those in groupby(pages, key=_paper):
        rows = "\n".join(
            f"| {data['name']} | [{data['title']}]({stem_of(data)}.md) | {held[stem_of(data)]} | "
            f"{lasting_text(_seconds(data))} | "
            f"`{data['command']}` |"
            for data in those
        )
        lines.append(
            f"## {paper}\n\n| name | page | claims held | runs | command |\n| :-- | :-- | --: | --: | :-- |\n{rows}"
        )
    return "\n\n".join([*lines, *failed]) + "\n"


def _failed(pages: Sequence[Page]) -> list[str]:
    """Return the section that names each claim that did not hold, with a link to its page; nothing if all hold.

    Claims that the numbers favour within noise are counted, since they may hold with more runs.
    """
    rows = [
        f"| [{data['name']}]({stem_of(data)}.md) | {_named(failed)} | {sum(map(len, noisy.values())) or ''} |"
        for data in _counted(pages)
        for failed, noisy in [(_claims(data, noise=False), _claims(data, noise=True))]
        if failed or noisy
    ]
    if not rows:
        return []
    table = "\n".join(["| page | what did not hold | favoured, within noise |", "| :-- | :-- | --: |", *rows])
    return [
        "## What did not hold",
        "Each page has by how much, and its notes what else was tried, where anything was.",
        table,
    ]


def _claims(data: Page, *, noise: bool) -> dict[str, list[str]]:
    """Return the claims of a page that did not hold: claim -> the places where it is made, such as "level 60".

    Args:
        noise: those that the numbers favour within noise, instead of the others.
    """
    found: dict[str, list[str]] = {}
    for claim in data["claims"]:
        if claim["held"] is False and bool(claim.get("noise")) is noise:
            place, colon, what = str(claim["text"]).partition(": ")
            found.setdefault(what if colon else place, []).append(place if colon else "")
    return found


def _named(claims: Mapping[str, Sequence[str]]) -> str:
    """Return claims with their places in brackets, as one cell of a table."""
    return "; ".join(what + (f" ({', '.join(places)})" if any(places) else "") for what, places in claims.items())


def _contents(pages: Sequence[Page]) -> str:
    """Return a table of contents with a line per experiment, grouped by paper."""
    rows, held = [], _held_by_page(pages)
    for paper, those in groupby(pages, key=_paper):
        rows.append(f'<tr class="group"><th colspan="4" scope="colgroup">{escape(paper)}</th></tr>')
        for data in those:
            link = f'<a href="#{stem_of(data)}">{escape(data["title"])}</a>'
            size = ", ".join([data["size"], *data.get("otherwise", {}).values()])
            cells = {"size": size, "claims held": held[stem_of(data)], "runs": lasting_text(_seconds(data))}
            numbers = "".join(f'<td data-label="{name}">{words}</td>' for name, words in cells.items())
            rows.append(f'<tr><th scope="row"><code>{escape(data["name"])}</code> {link}</th>{numbers}</tr>')
    head = "".join(f'<th scope="col">{name}</th>' for name in ("experiment", "size", "claims held", "runs"))
    return _scrolled(
        f'<table class="results wordy index"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    )


def _section(data: Page) -> str:
    """Return one experiment's page as HTML, with the picture in place of the link to it."""
    drawing = f"<figure>{figure_picture(data)}</figure>" if data.get("figure") is not None and data["measured"] else ""
    html = re.sub(r"<p><img [^>]*></p>", lambda found: drawing, _rendered(table_page(data)))
    html = html.replace("<h1>", "<h2>").replace("</h1>", "</h2>")
    for words, name in _HELD.items():
        html = html.replace(f"<strong>{words}</strong>", f'<strong class="{name}">{words}</strong>')
    return f'<section id="{stem_of(data)}">\n{html}<p class="soft"><a href="#top">All experiments</a></p>\n</section>'


def _rendered(text: str) -> str:
    """Return Markdown as HTML; tables whose first heading is claim or settings have sentences, the others numbers."""
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(text)
    heads: list[str] = []
    table, column = tokens[0], 0
    for at, token in enumerate(tokens):
        if token.type == "table_open":
            table, heads = token, []
        elif token.type == "tr_open":
            column = 0
        elif token.type == "th_open":
            heads.append(tokens[at + 1].content)
            token.attrs = {"scope": "col"}
            table.attrs = {"class": "results wordy" if heads[0] in ("claim", "settings") else "results"}
        elif token.type == "td_open":
            _cell(token, None if not column else heads[column])
        elif token.type == "td_close":
            token.tag = "td" if column else "th"
            column += 1
    html: str = markdown.renderer.render(tokens, markdown.options, {})
    return re.sub(r"<table.*?</table>", lambda found: _scrolled(found[0]), html, flags=re.DOTALL)


def _cell(token: Token, head: str | None) -> None:
    """Give a table cell the name of its column, or make it the heading of its row if there is none."""
    if head is None:
        token.tag, token.attrs = "th", {"scope": "row"}
    else:
        token.attrs = {"data-label": head}


def _scrolled(table: str) -> str:
    return f'<div class="scroll">{table}</div>'


def _summary(pages: Sequence[Page]) -> str:
    """Return a sentence with the number of pages, the time of their runs, and how many claims hold."""
    counted, quick, repeats = _counted(pages), _counted_apart(pages), _repeats(pages)
    sentence = f"{len(pages)} pages, {lasting_text(sum(map(_seconds, pages)))} of runs; {_held(counted)} claims held"
    sentence += _within_noise(counted)
    sentence += f"; on quick pages, which are counted apart, {_held(quick)}." if quick else "."
    if repeats:
        named = ", ".join(dict.fromkeys(f"{data['name']} as {first['name']}" for data, first in repeats.values()))
        sentence += f" Pages with the same numbers are counted once: {named}."
    return sentence


def _counted(pages: Sequence[Page]) -> list[Page]:
    """Return the pages whose claims are counted: quick pages only if there are no others, and equal numbers once."""
    return [data for data in _once(pages) if not _quick(data)] or _once(pages)


def _counted_apart(pages: Sequence[Page]) -> list[Page]:
    """Return the quick pages if there are other pages; of pages with equal numbers, only one."""
    return [] if all(map(_quick, pages)) else list(filter(_quick, _once(pages)))


def _once(pages: Sequence[Page]) -> list[Page]:
    repeats = _repeats(pages)
    return [data for data in pages if stem_of(data) not in repeats]


def _repeats(pages: Sequence[Page]) -> dict[str, tuple[Page, Page]]:
    """Return the pages with the numbers and claims of an earlier one: stem -> (page, the earlier one).

    Quick pages repeat quick ones only, since they are counted apart.
    """
    first: dict[str, Page] = {}
    found = {}
    for data in pages:
        numbers = [[each[name] for name in ("label", "seeds", "per_seed", "statistics")] for each in data["measured"]]
        same = first.setdefault(json.dumps([_quick(data), numbers, data["claims"]], sort_keys=True), data)
        if numbers and same is not data:
            found[stem_of(data)] = data, same
    return found


def _quick(data: Page) -> bool:
    return bool(data["size"] == "quick")


def _held_by_page(pages: Sequence[Page]) -> dict[str, str]:
    """Return the index's text on the claims of each page, by stem."""
    repeats = _repeats(pages)
    return {
        stem: f"as {repeats[stem][1]['name']}" if stem in repeats else _held([data])
        for stem, data in ((stem_of(data), data) for data in pages)
    }


def _paper(data: Page) -> str:
    return str(data["source"]).partition(", ")[0]


def _machines(pages: Sequence[Page]) -> str:
    """Return the cores of the machines that ran the experiments, as text."""
    cores = sorted({int(data["environment"]["processors"]) for data in pages})
    return f"{' and '.join(map(str, cores))} cores"


def _held(pages: Sequence[Page]) -> str:
    """Return how many claims hold, of how many that were judged, as text."""
    judged = [claim["held"] for data in pages for claim in data["claims"] if claim["held"] is not None]
    return f"{sum(judged)} of {len(judged)}" if judged else "–"


def _within_noise(pages: Sequence[Page]) -> str:
    """Return how many more claims the numbers favour within noise, as text; "" if there are none."""
    count = sum(bool(claim.get("noise")) for data in pages for claim in data["claims"])
    return f" ({count} more are favoured within noise)" if count else ""


def _seconds(data: Page) -> float:
    return sum(float(cell["seconds"]) for cell in data["measured"])
