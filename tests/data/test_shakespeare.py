"""Shakespeare by LEAF's rules: a small text checked by hand, the whole text's counts, and LEAF's JSON."""

from __future__ import annotations

import gzip
import json
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from fedpeer.data import shakespeare
from fedpeer.data.dataset import DataError
from fedpeer.data.shakespeare import VOCABULARY, WINDOW

LONG = "Now is the winter of our discontent made glorious summer by this sun of York; and all the clouds"

TEXT = f"""Shakespeare, complete
1609

THE SONNETS

by William Shakespeare

  POET. In the first work nobody speaks.
  POET. In the first work nobody speaks.
  POET. In the first work nobody speaks.
  THOU. In the first work nobody speaks.

1593

KING RICHARD, THE THIRD


by William Shakespeare

  Dramatis Personae
  RICHARD. {LONG}
    that  lour'd   upon our house
    In the deep bosom of the ocean buried.
 <<A line that belongs to nobody>>
  Clarence. Brother, good day.
  CLARENCE. What means this armed guard?
    That waits upon your Grace? {LONG}
  Sir MAYOR. One line.
  richard. Was ever woman in this humour woo'd?

1595

A POEM OF ONE VOICE

by William Shakespeare

  ONLY. {LONG}
    {LONG}
    {LONG}

1595

THE COMEDY OF ERRORS

by William Shakespeare

ACT I. Scene 1
ANGELO. I sent you money, sir, {LONG}
to buy a rope.
Saving your reverence.
<A line that ends the speech>
Nobody says this.
DROMIO. A rope. {LONG}
for whom?
Sir?
"""


def test_roles_speak_as_leaf_reads_them() -> None:
    found = shakespeare.roles(TEXT)
    richard = f"{LONG} that lour'd upon our house In the deep bosom of the ocean buried. "
    assert found == {
        # Each blank and each other sign becomes one underscore, as in LEAF's own names.
        "KING_RICHARD__THE_THIRD_RICHARD": richard + "Was ever woman in this humour woo'd? ",
        "KING_RICHARD__THE_THIRD_CLARENCE": f"Brother, good day. What means this armed guard? "
        f"That waits upon your Grace? {LONG} ",
        "THE_COMEDY_OF_ERRORS_ANGELO": f"I sent you money, sir, {LONG} to buy a rope. Saving your reverence. ",
        "THE_COMEDY_OF_ERRORS_DROMIO": f"A rope. {LONG} for whom? Sir? ",
    }


def test_speeches_are_told_apart() -> None:
    assert shakespeare.speeches_of(TEXT) == {
        "KING RICHARD, THE THIRD": {
            "RICHARD": [
                f"{LONG} that lour'd upon our house In the deep bosom of the ocean buried.",
                "Was ever woman in this humour woo'd?",
            ],
            "CLARENCE": ["Brother, good day.", f"What means this armed guard? That waits upon your Grace? {LONG}"],
            "SIR MAYOR": ["One line."],
        },
        "A POEM OF ONE VOICE": {"ONLY": [f"{LONG} {LONG} {LONG}"]},
        "THE COMEDY OF ERRORS": {
            "ANGELO": [f"I sent you money, sir, {LONG} to buy a rope. Saving your reverence."],
            "DROMIO": [f"A rope. {LONG} for whom? Sir?"],
        },
    }


def text_of(tokens: np.ndarray) -> str:
    return "".join(VOCABULARY[token] for token in tokens)


@pytest.mark.parametrize("name", ["raw_data.txt", "raw_data.txt.gz", "1994-01-100.zip"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_windows_slide_over_what_a_role_says(name: str, line_end: str, folder: Path) -> None:
    path = folder / "shakespeare" / name
    path.parent.mkdir()
    raw = TEXT.replace("Saving", "Sav~ng").replace("\n", line_end).encode("latin1")
    if name.endswith("zip"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("100.txt", raw)
    else:
        path.write_bytes(gzip.compress(raw) if name.endswith("gz") else raw)
    found = shakespeare.shakespeare(users=3, samples=None)
    said = {name: text.replace("Saving", "Sav ng") for name, text in shakespeare.roles(TEXT).items()}
    largest = sorted(said, key=lambda name: len(said[name]))[1:]
    assert found.user_names == tuple(sorted(largest))
    assert found.user_N is not None
    for number, name in enumerate(found.user_names):
        mine = np.flatnonzero(found.user_N == number)
        assert len(mine) == len(said[name]) - WINDOW
        for place, row in enumerate(mine):
            assert text_of(found.x[row]) == said[name][place : place + WINDOW]
            assert VOCABULARY[found.y[row]] == said[name][place + WINDOW]
    few = shakespeare.shakespeare(samples=5)
    assert np.bincount(few.user_N).tolist() == [5] * 4  # type: ignore[arg-type]
    assert (few.input_kind, few.x.dtype.name, len(few.classes), few.test_N) == ("tokens", "int64", 80, None)


def test_pieces_follow_one_another_and_each_place_has_its_next_character(folder: Path) -> None:
    (folder / "shakespeare").mkdir()
    (folder / "shakespeare/raw_data.txt").write_text(TEXT)
    found = shakespeare.shakespeare(users=None, samples=None, each=True)
    assert (found.task, found.classes, found.vocabulary) == ("next-token", (), 80)
    assert found.user_N is not None
    for number, name in enumerate(found.user_names):
        said, mine = shakespeare.roles(TEXT)[name], found.user_N == number
        assert len(found.x[mine]) == (len(said) - 1) // WINDOW
        assert said.startswith(text_of(found.x[mine].ravel()))
        assert said[1:].startswith(text_of(found.y[mine].ravel()))
    assert len(shakespeare.shakespeare(samples=1, each=True)) == 4
    with pytest.raises(DataError, match="form=leaf has all plays"):
        shakespeare.shakespeare(form="leaf", each=True)


def test_plays_are_chosen_by_genre(folder: Path) -> None:
    (folder / "shakespeare").mkdir()
    (folder / "shakespeare/raw_data.txt").write_text(TEXT)
    named = {genre: shakespeare.shakespeare(plays=(genre,)).user_names for genre in ("comedies", "histories")}
    assert {name.rpartition("_")[0] for name in named["comedies"]} == {"THE_COMEDY_OF_ERRORS"}
    assert {name.rpartition("_")[0] for name in named["histories"]} == {"KING_RICHARD__THE_THIRD"}
    both = shakespeare.shakespeare(plays=("histories", "comedies")).user_names
    assert set(both) == {*named["comedies"], *named["histories"]}
    with pytest.raises(DataError, match="it has no speaking role"):
        shakespeare.shakespeare(plays=("tragedies",))


def test_the_whole_text_has_leafs_counts(real: Path) -> None:
    path = next(real.glob("shakespeare/raw_data.txt*"))
    found = shakespeare.roles(gzip.decompress(path.read_bytes()).decode("latin1"))
    # LEAF's own program finds these numbers in this text; its paper counts 1,129 users.
    assert len(found) == 1130
    assert sum(len(text) - WINDOW for text in found.values()) == 4_226_206
    loaded = shakespeare.shakespeare(users=20, samples=100)
    assert loaded.x.shape == (2000, 80)
    assert "THE_TRAGEDY_OF_HAMLET__PRINCE_OF_DENMARK_HAM" in loaded.user_names
    # The First Folio has 14 comedies, 10 histories and 12 tragedies, here with A Lover's Complaint, which is no play.
    text = gzip.decompress(path.read_bytes()).decode("latin1")
    genres = Counter(shakespeare.genre_of(title) for title, _ in shakespeare._works(text))
    assert genres == {"comedies": 14, "histories": 10, "tragedies": 13}
    assert shakespeare.genre_of("THE_WINTER_S_TALE_LEONTES") == "comedies"
    assert shakespeare.genre_of("THE TRAGEDY OF KING LEAR") == "tragedies"


def put(path: Path, **users: str) -> None:
    """Write the texts of users as LEAF's JSON."""
    data = {
        name: {
            "x": [text[place : place + WINDOW] for place in range(len(text) - WINDOW)],
            "y": list(text[WINDOW:]),
        }
        for name, text in users.items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    counts = [len(each["y"]) for each in data.values()]
    path.write_text(json.dumps({"users": list(users), "num_samples": counts, "user_data": data, "hierarchies": []}))


def test_leafs_json(folder: Path) -> None:
    data = folder / "shakespeare/data"
    put(data / "train/a.json", PLAY_A=LONG + " more", PLAY_B=LONG, PLAY_C=LONG[: WINDOW + 1])
    put(data / "test/a.json", PLAY_B=LONG + " and much, much more", PLAY_A=LONG[:90])
    found = shakespeare.shakespeare(form="leaf", users=2)
    assert found.user_names == ("PLAY_A", "PLAY_B")
    assert found.user_N is not None
    assert found.test_N is not None
    assert np.bincount(found.user_N[~found.test_N]).tolist() == [len(LONG) + 5 - WINDOW, len(LONG) - WINDOW]
    assert np.bincount(found.user_N[found.test_N]).tolist() == [10, len(LONG) + 20 - WINDOW]
    assert text_of(found.x[3]) == LONG[3 : 3 + WINDOW]
    assert VOCABULARY[found.y[3]] == LONG[3 + WINDOW]


def test_the_largest_roles_are_kept_whatever_is_kept_of_them(folder: Path) -> None:
    data = folder / "shakespeare/data"
    put(data / "train/a.json", PLAY_A=LONG, PLAY_B=LONG + " more")
    put(data / "test/a.json", PLAY_A=LONG, PLAY_B=LONG)
    found = shakespeare.shakespeare(form="leaf", users=1, samples=3)
    assert (found.user_names, len(found)) == (("PLAY_B",), 6)


def test_json_of_other_windows_is_named(folder: Path) -> None:
    put(folder / "shakespeare/data/train/a.json", A=LONG)
    path = folder / "shakespeare/data/train/a.json"
    path.write_text(path.read_text().replace(LONG[:WINDOW], LONG[1:WINDOW]))
    put(folder / "shakespeare/data/test/a.json", A=LONG)
    with pytest.raises(DataError, match="shakespeare/data cannot be used: an example is not 80 characters"):
        shakespeare.shakespeare(form="leaf")


def test_what_cannot_be_meant_is_an_error(folder: Path) -> None:
    (folder / "shakespeare").mkdir()
    (folder / "shakespeare/raw_data.txt").write_text("no play at all")
    with pytest.raises(DataError, match="users = 0: write 1 or more, or none for all"):
        shakespeare.shakespeare(users=0)
    with pytest.raises(DataError, match=r"raw_data.txt cannot be used: it has no speaking role"):
        shakespeare.shakespeare()
    with pytest.raises(DataError, match=r"shakespeare/data is missing; .*form=text does not need them"):
        shakespeare.shakespeare(form="leaf")
