"""Recall from trained associative networks: both layers, the pattern that was meant, the quality of the answer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedpeer.algorithms.losses import completed
from fedpeer.experiments.associative.demonstration import METHODS
from fedpeer.experiments.associative.recall import Canvas, Cells, Recall, RecallMemory, closeness

from . import recalls
from .recalls import STRANGE, A, B, C


@pytest.fixture(scope="module")
def recall() -> Recall:
    return recalls.made()


def slow(recall: Recall, method: str, peer: str, given: Cells) -> tuple[list[bool], list[bool]]:
    """Return the hidden units and the answer by Algorithm 3 of the paper, unit by unit."""
    memory = recall.memories[method][peer]
    on = [float(cell) for cell in given.reshape(-1)]
    hidden = [sum(w * x for w, x in zip(row, on, strict=True)) >= recall.threshold for row in memory.hidden_HV.tolist()]
    answer = [
        sum(w * x for w, x in zip(row, hidden, strict=True)) >= recall.threshold for row in memory.output_VH.tolist()
    ]
    return hidden, answer


@pytest.mark.parametrize("method", METHODS)
def test_layers_follow_from_what_is_given_as_unit_by_unit(recall: Recall, method: str) -> None:
    draws = np.random.default_rng(3)
    for cells in [*(pattern.half for pattern in recall.patterns), draws.random((5, 10)) < 0.3]:
        found = recall.ask(method, "peer2", cells)
        hidden, answer = slow(recall, method, "peer2", cells)
        assert found.hidden_H.tolist() == hidden
        assert found.answer.reshape(-1).tolist() == answer
        assert 0 < sum(hidden) < recalls.HIDDEN


def test_what_nothing_is_given_to_stays_silent(recall: Recall) -> None:
    found = recall.ask("local", "peer1", np.zeros((5, 10), np.bool_))
    assert not found.hidden_H.any()
    assert not found.answer.any()
    assert (found.pattern, found.passes, found.taken_for) == (None, None, None)


def test_each_part_of_a_pattern_means_it_and_noise_is_allowed(recall: Recall) -> None:
    for pattern, peer in ((STRANGE, "peer1"), (B, "peer1"), (A, "peer2")):
        for part in (pattern.half, pattern.whole & ~pattern.half, pattern.whole):
            noisy = part.copy()
            noisy[3, 5] = noisy[3, 6] = True
            assert recall.ask("local", peer, part).pattern is pattern
            assert recall.ask("local", peer, noisy).pattern is pattern
    assert recall.ask("local", "peer1", A.whole & ~A.half).pattern is None, "this peer learnt another completion"
    assert recall.ask("local", "peer2", A.half | C.half).pattern is None, "it may be the one or the other"
    assert recall.ask("local", "peer2", B.half & (np.arange(10) < 2)).pattern is None, "two cells of five are too few"


def test_the_relation_is_what_a_peer_was_shown() -> None:
    assert [STRANGE.relation("peer1"), A.relation("peer2"), A.relation("peer3")] == ["otherwise", "never", "learnt"]


def test_the_comparison_counts_cells_and_the_rule_judges(recall: Recall) -> None:
    verdicts = set()
    for method in METHODS:
        for peer, expected in recall.expected.items():
            for pattern in expected:
                found = recall.ask(method, peer, pattern.half)
                assert found.pattern is pattern
                right = (found.answer & pattern.whole).sum()
                assert found.missing == pattern.whole.sum() - right
                assert found.too_much == found.answer.sum() - right
                assert found.passes == (right >= found.missing + found.too_much)
                verdicts.add(found.passes)
    assert verdicts == {True, False}


def test_who_only_repeats_what_is_given_just_passes(recall: Recall) -> None:
    mirror = RecallMemory(hidden_HV=torch.eye(50), output_VH=torch.eye(50), averaged_H=np.zeros(50, np.bool_))
    mirrors = replace(recall, memories={"local": {"peer2": mirror}})
    found = mirrors.ask("local", "peer2", A.half)
    assert np.array_equal(found.answer, A.half)
    assert (found.passes, found.missing, found.too_much) == (True, 5, 0)
    less = A.half & (np.arange(10) > 0)
    assert mirrors.ask("local", "peer2", less).passes is False


def test_an_answer_is_taken_for_the_pattern_that_it_completes_best(recall: Recall) -> None:
    exact = 0
    for method in METHODS:
        for peer, expected in recall.expected.items():
            for pattern in expected:
                found = recall.ask(method, peer, pattern.half)
                gains = {each.name: closeness(each.whole, found.answer) for each in recall.patterns}
                best = [name for name, gain in gains.items() if gain == max(gains.values()) >= 0]
                assert (found.taken_for and found.taken_for.name) == (best[0] if len(best) == 1 else None)
                exact += found.taken_for is not None and np.array_equal(found.answer, found.taken_for.whole)
    assert exact > 0


def test_closeness_judges_as_the_score_does() -> None:
    draws = np.random.default_rng(0)
    expected, answers = draws.random((2, 200, 12)) < [[[0.5]], [[0.6]]]
    passes = completed(torch.from_numpy(answers).float(), torch.from_numpy(expected).float()).tolist()
    assert [closeness(c, a) >= 0 for c, a in zip(expected, answers, strict=True)] == passes
    assert set(passes) == {True, False}


@pytest.mark.parametrize("images", [False, True])
def test_cells_become_units_and_cells_again(images: bool) -> None:
    canvas = Canvas.of(240 if images else 50, images=images)
    assert canvas.shape == ((8, 8) if images else (5, 10))
    cells = np.random.default_rng(1).random(canvas.shape) < 0.4
    units = canvas.units(cells)
    assert units.shape == (240 if images else 50,)
    assert units.dtype == np.float32
    assert np.array_equal(canvas.cells(units), cells)
