"""RESULTS.md: a part is measured again, and the others stay."""

from __future__ import annotations

from pathlib import Path

from benchmarks.rows import Row, Section, write


def section(title: str, ours: float) -> Section:
    return Section(title, "What a reader must know.", [Row(name="a round", unit="s", ours=ours)])


def test_a_part_replaces_its_section_and_no_other(tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"
    write(page, [section("One", 1.0), section("Two", 2.0)], whole=True)
    whole = page.read_text()
    write(page, [section("One", 1.0)], whole=False)
    assert page.read_text() == whole
    write(page, [section("One", 3.0)], whole=False)
    assert page.read_text() == whole.replace("| a round | s | 1 |", "| a round | s | 3 |")
    write(page, [section("Three", 4.0)], whole=False)
    assert [line for line in page.read_text().splitlines() if line[:3] == "## "] == ["## One", "## Two", "## Three"]


def test_a_whole_run_drops_what_is_not_measured_any_more(tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"
    write(page, [section("Of an earlier release", 1.0)], whole=True)
    write(page, [section("One", 1.0)], whole=True)
    assert "Of an earlier release" not in page.read_text()
