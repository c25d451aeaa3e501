"""`fedpeer demo associative`: how answers are drawn, on 80 columns and without colour, and described in sentences."""

from __future__ import annotations

import io
import socket

import numpy as np
import pytest
from rich.console import Console

from fedpeer.experiments.associative import demonstration, words
from fedpeer.experiments.associative.demonstration import METHODS
from fedpeer.experiments.associative.drawing import DrawingMarks, draw_marks, draw_picture
from fedpeer.experiments.associative.recall import Cells, Pattern, Recall, Recalled
from fedpeer.experiments.associative.shown import Scene, Shown
from tests.cli.conftest import Fedpeer
from tests.experiments import recalls
from tests.experiments.recalls import STRANGE as STRANGE_PATTERN
from tests.experiments.recalls import A, B, C

EXPECTED = np.array([[True, True, False, False], [False, True, False, True]])
HALF = np.array([[True, True, False, False], [False, False, False, False]])
STRANGE = np.array([[True, False, True, False], [False, True, False, True]])


def scene(*, differs: bool = True) -> Scene:
    answers = dict(zip(METHODS, (HALF, STRANGE, EXPECTED), strict=True))
    passes = dict(zip(METHODS, (True, False, True), strict=True))
    return Scene(peer="peer1", differs=differs, given=HALF, expected=EXPECTED, answers=answers, passes=passes)


@pytest.fixture(scope="module")
def recall() -> Recall:
    return recalls.made()


def shown(recall: Recall, *accuracy: float) -> Shown:
    scores = dict(zip(METHODS, accuracy, strict=True))
    scenes = (scene(), scene(differs=False))
    return Shown(peers=15, accuracy=scores, of_others=scores, wrong=scores, scenes=scenes, recall=recall)


def rendered(what: object, width: int = 80) -> list[str]:
    console = Console(width=width, no_color=True, record=True, file=io.StringIO())
    console.print(what)
    return [line.rstrip() for line in console.export_text().splitlines()]


@pytest.mark.parametrize(
    ("width", "settings", "drawing"),
    [
        (80, {"images": False, "ascii_only": False}, "■□×·\n·■·■"),
        (80, {"images": False, "ascii_only": True}, "#ox.\n.#.#"),
        (120, {"images": False, "ascii_only": True}, "# o x . \n. # . # "),
        (80, {"images": True, "ascii_only": False}, "██░░××· \n· ██· ██"),
        (140, {"images": True, "ascii_only": True}, "##ooxx. \n. ##. ##"),
    ],
    ids=["cells", "plain cells", "wide cells", "pixels", "plain pixels"],
)
def test_right_missing_too_much_and_off_are_told_apart_without_colour(
    width: int, settings: dict[str, bool], drawing: str
) -> None:
    found = draw_picture(STRANGE, EXPECTED, DrawingMarks.suited(width, **settings))
    assert str(found) == drawing
    assert {str(span.style) for span in found.spans} == {"green", "yellow", "bold red", "dim"}


def test_answers_stand_side_by_side_under_their_names() -> None:
    marks = DrawingMarks.suited(80, images=False, ascii_only=True)
    assert rendered(draw_marks(scene(), marks, images=False)) == [
        "given  expected  local only  full averaging  partial averaging",
        "##..   ##..      ##..        #ox.            ##..",
        "....   .#.#      .o.o        .#.#            .#.#",
        "                 passes      fails           all right",
        "                 2 missing   1 missing",
        "                             1 too much",
    ]


def test_images_are_pixels_and_fit_80_columns() -> None:
    half, whole = np.zeros((8, 8), np.bool_), np.ones((8, 8), np.bool_)
    half[:4] = True
    answers = dict.fromkeys(METHODS, half)
    passes = dict.fromkeys(METHODS, True)
    digit = Scene(peer="peer1", differs=True, given=half, expected=whole, answers=answers, passes=passes)
    lines = rendered(draw_marks(digit, DrawingMarks.suited(80, images=True, ascii_only=False), images=True))
    assert lines[0] == "half and rest     local only        full averaging    partial averaging"
    assert lines[1] == "  ".join(["█" * 16] * 4)
    assert lines[8] == "  ".join(["░" * 16] * 4)


def test_the_heading_says_who_is_asked_for_what(recall: Recall) -> None:
    assert words.heading(scene(), shown(recall, 1, 1, 1)) == (
        "peer1 learnt another completion of this half than most of the 15 peers."
    )
    assert "never shown" in words.heading(scene(differs=False), shown(recall, 1, 1, 1))


ONE = "peer1 learnt another completion of this half than most, pattern A′"


@pytest.mark.parametrize(
    ("method", "peer", "given", "sentence"),
    [
        ("local", "peer3", A.half, "peer3 learnt pattern A itself, and completes it."),
        ("local", "peer1", STRANGE_PATTERN.half, f"{ONE}, and keeps it."),
        (
            "full-averaging",
            "peer1",
            STRANGE_PATTERN.half,
            f"{ONE}, and lost it: it answers with pattern A, as the majority does.",
        ),
        (
            "full-averaging",
            "peer2",
            A.half,
            "peer2 was never shown pattern A, and completes it with what the others taught it.",
        ),
        ("full-averaging", "peer1", A.half & ~A.half, "Nothing is given, so no unit fires and the answer is empty."),
        (
            "full-averaging",
            "peer1",
            A.whole & ~A.half,
            "This is not part of a pattern in the tests of peer1. It answers with pattern A.",
        ),
    ],
    ids=["learnt", "kept", "lost", "taught", "silent", "stranger"],
)
def test_a_sentence_says_what_happened(recall: Recall, method: str, peer: str, given: Cells, sentence: str) -> None:
    found = recall.ask(method, peer, given)
    assert words.says(found, method, peer, given, images=False) == sentence
    assert words.says(found, method, peer, given, images=True) == sentence.replace("pattern", "digit")


def answer(cells: Cells, pattern: Pattern | None, *, passes: bool | None, taken_for: Pattern | None = None) -> Recalled:
    hidden_H = np.ones(4, np.bool_)
    return Recalled(hidden_H=hidden_H, answer=cells, pattern=pattern, passes=passes, taken_for=taken_for)


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (answer(A.half, A, passes=True), "; it only repeats what it was given."),
        (answer(A.half | C.half, A, passes=True), "; it passes, with 5 missing and 5 too much."),
        (answer(C.half, A, passes=True, taken_for=B), "; it answers with pattern B, which is close enough to pass."),
        (answer(C.half, A, passes=False), ", and makes up an answer: 10 missing and 5 too much."),
        (answer(B.whole, A, passes=False, taken_for=B), ", and answers with pattern B instead."),
        (answer(A.whole, A, passes=True), ", and guesses it."),
    ],
    ids=["nothing added", "nearly", "close", "made up", "instead", "guessed"],
)
def test_what_was_never_shown_is_told_by_what_comes_out(found: Recalled, sentence: str) -> None:
    assert words.says(found, "local", "peer2", A.half, images=False) == f"peer2 was never shown pattern A{sentence}"


def test_what_was_learnt_and_fails_is_told_as_that() -> None:
    said = words.says(answer(C.half, A, passes=False), "local", "peer3", A.half, images=False)
    assert said == "peer3 learnt pattern A itself, and fails: 10 missing and 5 too much."


def test_what_nobody_asked_for_is_told_by_how_much_comes_out() -> None:
    for cells, told in ((A.half, "5 cells that form no known pattern"), (A.half & ~A.half, "nothing")):
        said = words.says(answer(cells, None, passes=None), "local", "peer2", C.half, images=False)
        assert said == f"This is not part of a pattern in the tests of peer2. It answers with {told}."


@pytest.mark.parametrize(
    ("accuracy", "told"),
    [
        ((0.9, 0.95, 1.0), "it does neither"),
        ((0.9, 1.0, 0.95), "full averaging passes most often"),
        ((1.0, 0.9, 1.0), "local only and partial averaging pass equally often"),
    ],
    ids=str,
)
def test_the_lesson_is_what_came_out(recall: Recall, accuracy: tuple[float, ...], told: str) -> None:
    assert told in words.lesson(shown(recall, *accuracy))


def test_the_command_draws_two_scenes_a_table_and_a_lesson(
    recall: Recall, fedpeer: Fedpeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, object] = {}

    def demonstrate(peers: int, seed: int, **settings: object) -> Shown:
        options.update(peers=peers, seed=seed, images=settings["images"])
        return shown(recall, 0.9, 0.95, 1.0)

    monkeypatch.setattr(demonstration, "demonstrate", demonstrate)
    outcome = fedpeer("demo", "associative", "--peers", "7", "--seed", "3", "--images", "--quiet")
    assert outcome.code == 0, outcome.err
    assert options == {"peers": 7, "seed": 3, "images": True}
    lines = outcome.out.splitlines()
    assert max(map(len, lines)) <= 80
    for told in ("another completion", "never shown", "right   ", "100.0 %", "does neither"):
        assert any(told in line for line in lines), told


def test_what_was_stopped_shows_nothing(fedpeer: Fedpeer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demonstration, "demonstrate", lambda *_, **__: None)
    outcome = fedpeer("demo", "associative", "--quiet")
    assert (outcome.code, outcome.out) == (130, "")


def test_too_few_peers_are_the_users_mistake(fedpeer: Fedpeer) -> None:
    outcome = fedpeer("demo", "associative", "--peers", "4", "--quiet")
    assert outcome.code == 2
    assert "4 peers" in outcome.err
    assert "5 or more" in outcome.err


def test_options_of_the_page_need_the_page(fedpeer: Fedpeer) -> None:
    outcome = fedpeer("demo", "associative", "--port", "7600", "--open")
    assert outcome.code == 2
    for name in ("--port", "--open"):
        assert f"{name}  applies to the page only; add --web" in outcome.err


def test_a_port_that_is_taken_is_told_before_anything_is_trained(fedpeer: Fedpeer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        outcome = fedpeer("demo", "associative", "--web", "--port", str(port), "--quiet")
    assert outcome.code == 2
    assert f"127.0.0.1:{port} cannot be listened on" in outcome.err
    assert "choose another port" in outcome.err
