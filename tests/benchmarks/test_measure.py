"""Clocks, interleaving, intervals and verdicts."""

from __future__ import annotations

import gc
import mmap
import os
import threading
import time

import numpy as np
import pytest

from benchmarks import measure
from benchmarks.measure import (
    Lap,
    Spent,
    clocked,
    cpu_seconds,
    family,
    interleaved,
    peak_memory,
    proportional_bytes,
    ratio_of_medians,
    times,
)
from benchmarks.rows import Row, Section, compared


def test_the_cpu_clock_of_a_process_is_its_own() -> None:
    assert cpu_seconds([os.getpid()]) == pytest.approx(2 * time.process_time(), rel=0.02)


def test_work_is_clocked_on_both_clocks() -> None:
    spent = clocked(lambda: sum(range(1_000_000)))
    assert spent.cpu > 0
    assert spent.wall > 0
    assert spent - spent == Spent(0.0, 0.0)


def test_two_programs_take_turns_and_each_begins_as_often() -> None:
    order: list[str] = []

    def lap(name: str) -> Lap:
        order.append(name)
        return {"round": Spent(float(len(order)), 0.0)}

    a, b = interleaved(lambda: lap("A"), lambda: lap("B"), 4)
    assert "".join(order) == "ABBAABBA"
    assert times(a, "round") == [1, 4, 5, 8]
    assert times(b, "round", per=2) == [1, 1.5, 3, 3.5]


def test_the_interval_holds_the_ratio_of_a_known_pair() -> None:
    noise = np.random.default_rng(0).uniform(0.9, 1.1, size=(2, 31))
    ratio = ratio_of_medians((1.3 * noise[0]).tolist(), noise[1].tolist())
    assert ratio.low < 1.3 < ratio.high
    assert ratio.low < ratio.middle < ratio.high
    assert ratio_of_medians([3.0] * 7, [2.0] * 7).high == 1.5


def test_a_target_is_missed_only_if_all_of_the_interval_lies_above() -> None:
    def row(ours: list[float]) -> Row:
        return compared("a round", "s", ours, [1.0] * 9, target=1.3)

    assert row([1.4] * 9).verdict == "missed"
    assert row([1.2] * 4 + [1.4] * 5).verdict == "met"  # the median is above, the interval is not
    assert row([1.2] * 9).verdict == "met"
    assert compared("a round", "s", [2.0], [1.0]).verdict == ""
    assert Row(name="help", unit="s", ours=0.6, target=0.5).verdict == "missed"


def test_memory_that_is_taken_counts() -> None:
    gc.collect()  # objects of earlier tests must not be freed in between
    before = proportional_bytes()
    with mmap.mmap(-1, 50 * 2**20) as block:  # memory that no allocator had before
        block.write(b"1" * len(block))
        assert before + 40 * 2**20 < proportional_bytes() < before + 4 * len(block)
    assert family(os.getpid())[0] == os.getpid()


def test_the_peak_is_the_largest_of_all_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, enough = iter([1, 5, 3]), threading.Event()

    def look() -> int:
        value = next(looks, None)
        if value is None:
            enough.set()
        return value or 2

    monkeypatch.setattr(measure, "proportional_bytes", look)
    with peak_memory(every_seconds=0.001) as seen:
        assert enough.wait(timeout=10)
        assert seen() == 5


def test_a_section_is_a_table_in_markdown() -> None:
    rows = [compared("a round", "CPU s", [1.0, 1.0], [2.0, 2.0], 1.3)]
    assert Section("The job", "Notes.", rows).markdown("Measured now.").splitlines() == [
        "## The job",
        "",
        "Measured now.",
        "",
        "Notes.",
        "",
        "|  | unit | fedpeer | floor | ratio (95 %) | at most |  |",
        "| --- | --- | ---: | ---: | ---: | ---: | --- |",
        "| a round | CPU s | 1 | 2 | 0.50 (0.50-0.50) | 1.3 x | met |",
    ]
