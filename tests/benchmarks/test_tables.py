"""The table of settings for tables: each row stands beside the linear models with its own examples and weights."""

from __future__ import annotations

from benchmarks.tables import METHODS, _shown


def test_a_row_is_compared_with_its_own_linear_models() -> None:
    def scores(linear: float) -> dict[str, float]:
        return {**dict.fromkeys(METHODS, 0.75), "best round": 0.75, "balanced": 0.5, "linear": linear}

    found = {("wines", choice, 0): scores(linear) for choice, linear in (("plain", 0.75), ("weighted", 0.5))}
    columns = [[*column.cells] for column in _shown("wines", ("plain", "weighted"), (0,), found).columns]
    assert columns[:3] == [["plain", "weighted"], ["75.0 %", "50.0 %"], ["+0.0", "+25.0"]]
