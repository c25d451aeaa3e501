"""All that was played on one page of HTML: every figure and table, which claims held, and how it was made.

One file with everything in it, as a run's report is (`runs/report.py`), in the same style.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from markdown_it import MarkdownIt

from fedpeer.sims.experiments.pictures import picture
from fedpeer.sims.experiments.table import page


def book(pages: Sequence[Mapping[str, Any]]) -> str:
    """The page of these experiments' data, in their order."""
    style = (files("fedpeer.runs") / "report.css").read_text(encoding="utf-8")
    judged = [claim["held"] for data in pages for claim in data["claims"] if claim["held"] is not None]
    said = f"{len(pages)} experiments; {sum(judged)} of {len(judged)} claims held."
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>fedpeer: experiments</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>\n{style}</style>\n</head>\n<body>\n<h1>What the papers say, played on this machine</h1>\n"
        f"<p>{said}</p>\n{_contents(pages)}\n" + "\n".join(map(_section, pages)) + "\n</body>\n</html>\n"
    )


def _contents(pages: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for data in pages:
        judged = [claim["held"] for claim in data["claims"] if claim["held"] is not None]
        found = f"{sum(judged)} of {len(judged)}" if judged else "–"
        link = f'<a href="#{_anchor(data)}">{escape(data["title"])}</a>'
        rows.append(f"<tr><td>{link}</td><td>{escape(data['source'])}, {data['size']}</td><td>{found}</td></tr>")
    head = "<tr><th>experiment</th><th>paper, size</th><th>claims held</th></tr>"
    return f'<div class="scroll"><table class="pairs"><thead>{head}</thead><tbody>{"".join(rows)}</tbody></table></div>'


def _section(data: Mapping[str, Any]) -> str:
    """One experiment: its page, with the picture in the place of the link to it."""
    html = MarkdownIt("commonmark").enable("table").render(page(data))
    drawing = f"<figure>{picture(data)}</figure>" if data.get("figure") is not None and data["measured"] else ""
    html = re.sub(r"<p><img [^>]*></p>", lambda found: drawing, html)
    html = html.replace("<h1>", f'<h2 id="{_anchor(data)}">').replace("</h1>", "</h2>")
    return html.replace("<table>", '<div class="scroll"><table class="results">').replace("</table>", "</table></div>")


def _anchor(data: Mapping[str, Any]) -> str:
    return f"{data['name']}-{data['size']}"
