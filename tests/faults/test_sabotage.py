"""Each rule, when it is broken, is missed by the scenario that stands for it; unbroken, that scenario passes."""

from __future__ import annotations

import pytest

from tests.faults.sabotage import SABOTAGE, Switch


def first_failure(switch: Switch) -> int | None:
    for seed in switch.seeds:
        try:
            switch.play(seed)
        except AssertionError:
            return seed
    return None


@pytest.mark.slow
@pytest.mark.parametrize("rule", SABOTAGE)
def test_a_broken_rule_is_noticed(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    switch = SABOTAGE[rule]
    with monkeypatch.context() as patch:
        switch.breaks(patch)
        failed = first_failure(switch)
    assert failed is not None, f"nothing noticed that peers {rule}"
    switch.play(failed)
