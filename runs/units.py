"""Durations and spreads as text; `summary.py` formats bytes, counts and scores, as in the report."""

from __future__ import annotations

import re


def duration_text(seconds: float) -> str:
    """Return a duration as text: 0.4 ms, 0.53 s, 12 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 0.1:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 59.5:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.0f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def apart(spread: float | None, measure: str) -> str:
    """Return a spread or standard error as text: in percentage points of accuracy, or in the error's unit."""
    if spread is None:
        return "–"
    return f"{100 * spread:.1f}" if measure == "accuracy" else f"{spread:.3g}"


def keep_units(text: str) -> str:
    """Return text with non-breaking spaces between numbers and their units."""
    return re.sub(r"(?<=\d) (?=%|points|[kMGT]?B\b|[kMG]\b)", "\xa0", text)
