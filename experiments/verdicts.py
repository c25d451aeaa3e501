"""Verdicts on an experiment's claims, and their table on a page. Pure.

A claim holds if the numbers favour it beyond noise: its two-sided test, paired over the runs, is significant at 5 %
after Holm's correction for all tests of the page. A single run cannot be told from noise, so it is not judged. Bytes of
a round or of an update are counted, not estimated, and so have no test; nor has a claim that hidden groups were found,
or that a goal was reached in all runs: a method that reached it where another did not is favoured within noise.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeGuard

from fedpeer.experiments.experiment import Cell, Experiment, SizeName
from fedpeer.experiments.results import CellResults, ClaimVerdict, PaperClaim
from fedpeer.experiments.significance import ALPHA, PRINTED_FROM, holm


def judged(
    experiment: Experiment,
    size_name: SizeName,
    labels: Sequence[str],
    results: CellResults,
    outdated: Collection[str] = (),
    unsearched: Collection[str] = (),
) -> list[dict[str, Any]]:
    """Return each claim with its verdict on these results.

    Claims about cells that this size lacks are left out, and at sizes other than full also those about printed numbers.
    A claim about an `outdated` cell is not judged, and neither is a claim that compares an `unsearched` cell with a
    searched one.

    Returns:
        For each claim "text" and "words"; "held", None if it is not judged; "noise", whether the numbers favour it
        within noise only; "tested", whether it has a test.
    """
    claims = [
        claim
        for claim in experiment.claims
        if set(labels).issuperset(claim.needs) and (size_name == "full" or not claim.printed)
    ]
    verdicts = [_checked(claim, results, outdated, unsearched) for claim in claims]
    corrected = iter(holm([verdict.p for verdict in verdicts if _tested(verdict.p)]))
    return [
        _entry(claim.text, verdict, next(corrected) if _tested(verdict.p) else verdict.p)
        for claim, verdict in zip(claims, verdicts, strict=True)
    ]


def _tested(p: float | None) -> TypeGuard[float]:
    return p is not None and not math.isnan(p)


def outdated(cells: Sequence[Cell], results: CellResults) -> list[str]:
    """Return the labels of results whose search had other variants than the cells have today."""
    names = {cell.label: set(cell.variants) for cell in cells}
    return [
        label
        for label, measured in results.items()
        if label in names and set(measured.tried) not in (set(), names[label])
    ]


def unsearched(cells: Sequence[Cell], results: CellResults) -> list[str]:
    """Return the labels of results that took the first of several settings, although other cells' were searched."""
    several = {cell.label for cell in cells if len(cell.variants) > 1}
    untried = [label for label, measured in results.items() if label in several and not measured.tried]
    return untried if any(measured.tried for measured in results.values()) else []


def _checked(
    claim: PaperClaim, results: CellResults, outdated: Collection[str], unsearched: Collection[str]
) -> ClaimVerdict:
    verdict = claim.check(results)
    old = [label for label in (*claim.needs, *claim.about) if label in outdated]
    if verdict.held is None:
        return verdict
    if verdict.runs == 1:
        return ClaimVerdict(None, f"{verdict.words}; one run cannot be told from noise")
    if old:
        return ClaimVerdict(None, f"{verdict.words}; {old[0]} was searched over other settings than are tried today")
    searched = [label for label in claim.needs if results[label].tried]
    first = [label for label in claim.needs if label in unsearched]
    if searched and first:
        return ClaimVerdict(None, f"{verdict.words}; {searched[0]} was searched, {first[0]} was not")
    return verdict


def _entry(text: str, verdict: ClaimVerdict, p: float | None) -> dict[str, Any]:
    beyond = p is None or p < ALPHA
    printed = _tested(p) and verdict.held and verdict.runs >= PRINTED_FROM
    return {
        "text": text,
        "held": verdict.held and beyond,
        "noise": bool(verdict.held) and not beyond,
        "tested": _tested(p),
        "words": f"{verdict.words}; p = {p:.2g}" if printed else verdict.words,
    }


def claims_table(claims: Sequence[Mapping[str, Any]]) -> str:
    """Return the claims with their verdicts, and how they were tested; data of earlier versions have no tests."""
    if not claims:
        return ""
    lines = [f"| {each['text']} | {_verdict(each)} | {each['words']} |" for each in claims]
    table = "\n".join(["| claim | here | by how much |", "| :-- | :-- | :-- |", *lines])
    tests = sum(each.get("tested", False) for each in claims)
    return f"{table}\n\n{_explained(claims, tests)}" if tests else table


def _verdict(claim: Mapping[str, Any]) -> str:
    if claim.get("noise"):
        return "within noise"
    return {True: "**held**", False: "**not held**", None: "not judged"}[claim["held"]]


def _explained(claims: Sequence[Mapping[str, Any]], tests: int) -> str:
    corrected = f", corrected for the {tests} tests of this page (Holm)" if tests > 1 else ""
    held = f"by a two-sided t-test at {100 * ALPHA:.0f} %, paired over seeds{corrected}"
    first = ", after the mean where a median is shown" if any("(mean " in each["words"] for each in claims) else ""
    counts = sum(each["held"] is not None and not each.get("tested") for each in claims)
    alike = any(" in each run" in each["words"] for each in claims if each.get("tested"))
    sentences = [
        f"*Held*: the numbers favour the claim beyond noise, {held}.",
        f"Claims without a test: {counts}; they count what these runs had, such as bytes." if counts else "",
        "*Within noise*: they favour it, but not so clearly." if any(each.get("noise") for each in claims) else "",
        f"In brackets: 95 % intervals of the mean over seeds, each by itself{first}.",
        "In each run: all have the same difference, of which p is that of the sign test, 2^(1 - runs)."
        if alike
        else "",
        "p is the corrected one." if any("; p = " in each["words"] for each in claims) else "",
    ]
    return " ".join(filter(None, sentences))
