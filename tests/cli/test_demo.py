"""`fedpeer demo associative`: how answers are drawn, on 80 columns and without colour, and what is said of them."""

from __future__ import annotations

import dataclasses
import io

import numpy as np
import pytest
from rich.console import Console

from fedpeer.cli import demo
from fedpeer.sims import associative
from fedpeer.sims.associative import METHODS, Scene, Shown
from tests.cli.conftest import Fedpeer

EXPECTED = np.array([[True, True, False, False], [False, True, False, True]])
HALF = np.array([[True, True, False, False], [False, False, False, False]])
STRANGE = np.array([[True, False, True, False], [False, True, False, True]])


def scene(*, otherwise: bool = True) -> Scene:
    answers = dict(zip(METHODS, (HALF, STRANGE, EXPECTED), strict=True))
    passes = dict(zip(METHODS, (True, False, True), strict=True))
    return Scene(peer="peer1", otherwise=otherwise, given=HALF, expected=EXPECTED, answers=answers, passes=passes)


def shown(*accuracy: float) -> Shown:
    scores = dict(zip(METHODS, accuracy, strict=True))
    return Shown(peers=15, accuracy=scores, of_others=scores, wrong=scores, scenes=(scene(),))


def rendered(what: object, width: int = 80) -> list[str]:
    console = Console(width=width, no_color=True, record=True, file=io.StringIO())
    console.print(what)
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_right_missing_too_much_and_off_are_told_apart_without_colour() -> None:
    assert str(demo.picture(STRANGE, EXPECTED, ascii_only=False, wide=False)) == "■□×·\n·■·■"
    assert str(demo.picture(STRANGE, EXPECTED, ascii_only=True, wide=False)) == "#ox.\n.#.#"
    assert str(demo.picture(EXPECTED, EXPECTED, ascii_only=True, wide=True)) == "# # . . \n. # . # "
    styles = {str(span.style) for span in demo.picture(STRANGE, EXPECTED, ascii_only=False, wide=False).spans}
    assert styles == {"green", "yellow", "bold red", "dim"}


def test_answers_stand_side_by_side_under_their_names() -> None:
    assert rendered(demo.drawn(scene(), ascii_only=True, wide=False)) == [
        "given  expected  local only  full averaging  partial averaging",
        "##..   ##..      ##..        #ox.            ##..",
        "....   .#.#      .o.o        .#.#            .#.#",
        "                 passes      fails           all right",
        "                 2 missing   1 missing",
        "                             1 too much",
    ]


def test_the_heading_says_who_is_asked_for_what() -> None:
    assert demo.heading(scene(), shown(1, 1, 1)) == (
        "peer1 learnt another completion of this half than most of the 15 peers."
    )
    assert "never shown" in demo.heading(scene(otherwise=False), shown(1, 1, 1))


@pytest.mark.parametrize(
    ("accuracy", "words"),
    [
        ((0.9, 0.95, 1.0), "it does neither"),
        ((0.9, 1.0, 0.95), "full averaging passes most often"),
        ((1.0, 0.9, 1.0), "local only and partial averaging pass as often"),
    ],
    ids=str,
)
def test_the_lesson_is_what_came_out(accuracy: tuple[float, ...], words: str) -> None:
    assert words in demo.lesson(shown(*accuracy))


def test_the_command_draws_two_scenes_a_table_and_a_lesson(fedpeer: Fedpeer, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, object] = {}

    def demonstrate(peers: int, seed: int, **settings: object) -> Shown:
        asked.update(peers=peers, seed=seed, images=settings["images"])
        return dataclasses.replace(shown(0.9, 0.95, 1.0), scenes=(scene(), scene(otherwise=False)))

    monkeypatch.setattr(associative, "demonstrate", demonstrate)
    outcome = fedpeer("demo", "associative", "--peers", "7", "--seed", "3", "--images", "--quiet")
    assert outcome.code == 0, outcome.err
    assert asked == {"peers": 7, "seed": 3, "images": True}
    lines = outcome.out.splitlines()
    assert max(map(len, lines)) <= 80
    for words in ("another completion", "never shown", "right   ", "100.0 %", "does neither"):
        assert any(words in line for line in lines), words


def test_what_was_stopped_shows_nothing(fedpeer: Fedpeer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(associative, "demonstrate", lambda *_, **__: None)
    outcome = fedpeer("demo", "associative", "--quiet")
    assert (outcome.code, outcome.out) == (130, "")


def test_too_few_peers_are_the_users_mistake(fedpeer: Fedpeer) -> None:
    outcome = fedpeer("demo", "associative", "--peers", "4", "--quiet")
    assert outcome.code == 2
    assert "4 peers" in outcome.err
    assert "5 or more" in outcome.err
