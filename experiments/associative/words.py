"""Sentences about the answers of `fedpeer demo associative`, for the terminal and the page.

Each sentence follows from what was measured: none claims what this answer, or this seed, does not show.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedpeer.runs.summary import score_text

if TYPE_CHECKING:
    from fedpeer.experiments.associative.recall import Cells, Recalled, Relation
    from fedpeer.experiments.associative.shown import Scene, Shown

NAMES = {"local": "local only", "full-averaging": "full averaging", "partial-averaging": "partial averaging"}
RULE = "An answer passes with at least as many ones right as missing and too much together."


def heading(scene: Scene, shown: Shown) -> str:
    """Return the heading of a scene: the peer, and its relation to the pattern."""
    if scene.differs:
        return f"{scene.peer} learnt another completion of this half than most of the {shown.peers} peers."
    return f"{scene.peer} was never shown what goes with this half; most of the others were."


def verdict(passes: bool, missing: int, too_much: int) -> list[str]:
    """Return whether an answer passes, and its counts of missing and superfluous cells, in words."""
    counts = [f"{count} {what}" for count, what in ((missing, "missing"), (too_much, "too much")) if count]
    return ["passes" if passes else "fails", *counts] if counts else ["all right"]


def says(found: Recalled, method: str, peer: str, given: Cells, *, images: bool) -> str:
    """Return a sentence about one recall."""
    thing = "digit" if images else "pattern"
    other = None if found.taken_for is None else f"{thing} {found.taken_for.name}"
    if not given.any():
        return "Nothing is given, so no unit fires and the answer is empty."
    if found.pattern is None:
        count = f"{int(found.answer.sum())} cells that form no known {thing}" if found.answer.any() else "nothing"
        return f"This is not part of a {thing} in the tests of {peer}. It answers with {other or count}."
    name, relation = f"{thing} {found.pattern.name}", found.pattern.relation(peer)
    return f"{_known(relation, peer, name)}{_done(found, relation, method, other, name, adds=_adds(found, given))}."


def _adds(found: Recalled, given: Cells) -> bool:
    """Return whether the answer has a cell that was not given."""
    return bool((found.answer & ~given).any())


def _known(relation: Relation, peer: str, name: str) -> str:
    """Return the first part of the sentence: the peer's relation to the pattern."""
    known = {
        "learnt": f"{peer} learnt {name} itself",
        "otherwise": f"{peer} learnt another completion of this half than most, {name}",
        "never": f"{peer} was never shown {name}",
    }
    return known[relation]


def _done(found: Recalled, relation: Relation, method: str, other: str | None, name: str, *, adds: bool) -> str:
    """Return the second part of the sentence: the peer's answer."""
    foreign = other is not None and other != name
    what = " and ".join(verdict(bool(found.passes), found.missing, found.too_much)[1:])
    if not what:
        helped = ", and completes it with what the others taught it" if method != "local" else ", and guesses it"
        return {"learnt": ", and completes it", "otherwise": ", and keeps it", "never": helped}[relation]
    if found.passes and not adds:
        return "; it only repeats what it was given"
    if found.passes:
        return f"; it answers with {other}, which is close enough to pass" if foreign else f"; it passes, with {what}"
    if foreign and relation == "otherwise":
        return f", and lost it: it answers with {other}, as the majority does"
    if foreign:
        return f", and answers with {other} instead"
    return f", and makes up an answer: {what}" if relation == "never" else f", and fails: {what}"


def recall_scores(shown: Shown) -> tuple[list[str], list[list[str]]]:
    """Return headings and a row per method: the scores over all peers and patterns."""
    from fedpeer.experiments.associative.demonstration import OTHERS

    headings = ["method", "passed", f"by the {OTHERS} that learnt another", "wrong units per answer"]
    rows = [
        [
            NAMES[method],
            score_text(accuracy, "accuracy"),
            score_text(shown.of_others[method], "accuracy"),
            f"{shown.wrong[method]:.1f}",
        ]
        for method, accuracy in shown.accuracy.items()
    ]
    return headings, rows


def lesson(shown: Shown) -> str:
    """Return a sentence that compares the methods by what was measured."""
    if shown.best == "partial-averaging":
        return (
            "Trained alone, a peer makes up what it was never shown; with full averaging, it gives the answer of the "
            "majority even if it learnt another; with partial averaging, it does neither."
        )
    if shown.best is None:
        best = max(shown.accuracy.values())
        names = [NAMES[method] for method, accuracy in shown.accuracy.items() if accuracy == best]
        return f"With this seed {_joined(names)} pass equally often; another seed may show a difference."
    return f"With this seed {NAMES[shown.best]} passes most often; another seed may give another result."


def _joined(names: Sequence[str]) -> str:
    return " and ".join(names)
