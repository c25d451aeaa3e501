"""Questions and answers of the page of `--web`, as JSON documents: pure functions of the trained peers.

The page has no data of its own: `tellable` gives it the peers, methods and patterns, and each answer (`answered`) has
its verdict and its sentence. An invalid question is rejected by name (`QuestionError`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpeer.experiments.associative.page.server import QuestionError
from fedpeer.experiments.associative.recall import Cells, Pattern, Recall, Recalled
from fedpeer.experiments.associative.shown import HIDDEN, Shown
from fedpeer.experiments.associative.words import NAMES, RULE, lesson, recall_scores, says, verdict
from fedpeer.peer.wire.json_text import parse_json

#: Most characters of a name in a question that the error repeats.
_NAME_MAX = 40


@dataclass(frozen=True)
class Question:
    """Cells given to one peer, as trained by each of these methods."""

    peer: str
    methods: tuple[str, ...]
    given: Cells


def tellable(shown: Shown, seed: int) -> dict[str, Any]:
    """Return the content of the page before the first question."""
    recall, first = shown.recall, shown.scenes[0]
    (rows, columns), images = recall.canvas.shape, recall.canvas.images
    headings, results = recall_scores(shown)
    averaged = int(recall.memories["partial-averaging"][first.peer].averaged_H.sum())
    facts = [f"{shown.peers} peers", f"{HIDDEN} hidden units, of which partial averaging shares {averaged}"]
    if images:
        facts.append("each block of 2×2 pixels is one of 15 visible units")
    return {
        "thing": "digit" if images else "pattern",
        "images": images,
        "rows": rows,
        "columns": columns,
        "facts": [*facts, f"seed {seed}"],
        "rule": RULE,
        "methods": [{"id": method, "name": NAMES[method]} for method in recall.memories],
        "peers": [
            {"id": peer, "patterns": [_pattern(each, peer) for each in expected]}
            for peer, expected in recall.expected.items()
        ],
        "start": {"peer": first.peer, "given": _bits(_half_of(recall, first.peer))},
        "scores": {"headings": headings, "rows": results, "best": _best(shown)},
        "lesson": lesson(shown),
    }


def _half_of(recall: Recall, peer: str) -> Cells:
    """Return the half pattern for which the peer learnt another completion than most peers."""
    return next(pattern.half for pattern in recall.expected[peer] if pattern.differs)


def _pattern(pattern: Pattern, peer: str) -> dict[str, Any]:
    return {"name": pattern.name, "relation": pattern.relation(peer), "half": _bits(pattern.half)}


def _best(shown: Shown) -> int | None:
    return None if shown.best is None else list(shown.accuracy).index(shown.best)


def question_in(body: bytes, recall: Recall) -> Question:
    """Parse a question: `{"peer": "peer1", "methods": ["local"], "given": [0, 1, ...]}`, cells row by row.

    Raises:
        QuestionError: it is something else.
    """
    try:
        found = parse_json(body)
    except ValueError:
        raise QuestionError("not_json", "The question is not JSON.") from None
    if not isinstance(found, dict) or set(found) != {"peer", "methods", "given"}:
        raise QuestionError("not_a_question", "A question must be an object of peer, methods and given.")
    peer, methods, given = found["peer"], found["methods"], found["given"]
    if not isinstance(peer, str) or peer not in recall.expected:
        raise QuestionError(
            "unknown_peer", f"There is no peer {_named(peer)}; there are {_some(list(recall.expected))}."
        )
    if not isinstance(methods, list) or not methods:
        raise QuestionError("no_methods", "methods must be a list of one or more methods.")
    for method in methods:
        if not isinstance(method, str) or method not in recall.memories:
            raise QuestionError(
                "unknown_method", f"There is no method {_named(method)}; there are {_some(list(NAMES))}."
            )
    rows, columns = recall.canvas.shape
    if not isinstance(given, list) or len(given) != rows * columns:
        raise QuestionError(
            "wrong_length", f"given must be a list of {rows * columns} cells, {rows} rows of {columns}."
        )
    if any(type(cell) is not int or cell not in (0, 1) for cell in given):
        raise QuestionError("not_0_or_1", "Each given cell must be 0 or 1.")
    return Question(peer, tuple(dict.fromkeys(methods)), np.array(given, np.bool_).reshape(rows, columns))


def answered(recall: Recall, question: Question) -> dict[str, Any]:
    """Return the firing units, the answer and its verdict for each method."""
    found = {method: recall.ask(method, question.peer, question.given) for method in question.methods}
    return {method: _answer(recall, question, method, each) for method, each in found.items()}


def answer_to(body: bytes, recall: Recall) -> dict[str, Any]:
    """Return the answer to the body of a request.

    Raises:
        QuestionError: it is not a valid question about these peers.
    """
    return answered(recall, question_in(body, recall))


def _answer(recall: Recall, question: Question, method: str, found: Recalled) -> dict[str, Any]:
    pattern = found.pattern
    return {
        "hidden": _bits(found.hidden_H),
        "averaged": _bits(recall.memories[method][question.peer].averaged_H),
        "answer": _bits(found.answer),
        "expected": None if pattern is None else _bits(pattern.whole),
        "passes": found.passes,
        "verdict": None if found.passes is None else verdict(found.passes, found.missing, found.too_much),
        "says": says(found, method, question.peer, question.given, images=recall.canvas.images),
    }


def _bits(cells: Cells) -> list[int]:
    bits: list[int] = cells.reshape(-1).astype(int).tolist()
    return bits


def _named(value: object) -> str:
    """Return a value from a question, short enough for a sentence."""
    text = json.dumps(value)
    return text if len(text) <= _NAME_MAX else f"{text[:_NAME_MAX]}..."


def _some(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{names[0]} to {names[-1]}"
