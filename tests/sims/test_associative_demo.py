"""What the demonstration of the associative network asks, and whether partial averaging comes out as it tells."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from fedpeer.sims import associative
from fedpeer.sims.associative import METHODS, Shown, demonstrate
from fedpeer.sims.events import Event, RoundDone


def played(monkeypatch: pytest.MonkeyPatch, *, images: bool = False) -> Shown:
    monkeypatch.setattr(associative, "ROUNDS", 2)
    found = demonstrate(6, 0, images=images, workers=1)
    assert found is not None
    return found


def test_one_learnt_otherwise_and_one_was_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    found = played(monkeypatch)
    first, second = found.scenes
    assert (first.otherwise, second.otherwise) == (True, False)
    # Class 1 of the paper's generator, which the fifth peer misses: usually 32 to 39 are to be completed, or 40 to 47.
    assert (first.peer, second.peer) == ("peer1", "peer5")
    assert np.flatnonzero(first.expected).tolist() == [*range(24, 32), *range(40, 48)]
    assert np.flatnonzero(second.expected).tolist() == list(range(24, 40))
    assert np.array_equal(first.given, second.given)
    for scene in found.scenes:
        assert scene.given.shape == scene.expected.shape == (5, 10)
        assert 8 <= int((scene.given & scene.expected).sum()) <= 10
        for method in METHODS:
            both, one = scene.expected & scene.answers[method], scene.expected ^ scene.answers[method]
            assert scene.passes[method] == (both.sum() >= one.sum())
    assert set(found.accuracy) == set(found.of_others) == set(found.wrong) == set(METHODS)
    assert all(0 <= share <= 1 for share in (*found.accuracy.values(), *found.of_others.values()))


@pytest.mark.slow
def test_images_are_asked_for_by_their_upper_half(monkeypatch: pytest.MonkeyPatch) -> None:
    for scene in played(monkeypatch, images=True).scenes:
        assert scene.given.shape == (8, 8)
        assert np.array_equal(scene.given[:4], scene.expected[:4])
        assert not scene.given[4:].any()
        assert scene.expected[4:].any()


def test_stopped_it_shows_nothing() -> None:
    stop = threading.Event()

    def tell(event: Event) -> None:
        if isinstance(event, RoundDone):
            stop.set()

    assert demonstrate(6, 0, workers=1, tell=tell, stop=stop) is None


@pytest.mark.slow
@pytest.mark.parametrize("images", [False, True])
def test_a_part_does_justice_to_both(images: bool) -> None:
    found = demonstrate(15, 0, images=images)
    assert found is not None
    assert found.best == "partial-averaging"
    assert found.accuracy["partial-averaging"] == 1.0
    assert found.of_others["full-averaging"] < 0.7
    assert found.accuracy["local"] < 0.95
