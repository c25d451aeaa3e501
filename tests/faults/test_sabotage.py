"""The scenario of each rule fails when the rule is broken, and passes when it is not."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from tests.faults.sabotage import SABOTAGE, Switch
from tests.faults.test_scenarios import SEEDS


def first_failure(switch: Switch) -> int | None:
    for seed in switch.seeds:
        try:
            switch.play(seed)
        except AssertionError:
            return seed
    return None


@cache
def assert_passes(play: Callable[[int], None], seed: int) -> None:
    """Run a seed once for all rules, or leave it to `test_scenarios.py` if that runs it."""
    always, _ = SEEDS.get(play.__name__, ((), ()))
    if seed not in always:
        play(seed)


@pytest.mark.slow
@pytest.mark.parametrize("rule", SABOTAGE)
def test_a_broken_rule_is_noticed(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    switch = SABOTAGE[rule]
    with monkeypatch.context() as patch:
        switch.breaks(patch)
        failed = first_failure(switch)
    assert failed is not None, f"nothing noticed that peers {rule}"
    assert_passes(switch.play, failed)
