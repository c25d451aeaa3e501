"""Next-character prediction in Shakespeare's plays; each speaking role of each play is one user.

It is read from the raw text (Project Gutenberg's 100th etext of January 1994, the edition that LEAF parses) or from
LEAF's JSON. The text is parsed by LEAF's rules (Caldas et al., 2018): a speech begins with two blanks, the role and a
full stop; lines indented by four blanks continue it ("The Comedy of Errors" lacks these blanks); roles with fewer than
three lines are skipped. The lines of a role are joined, and every window of 80 characters predicts the next one. This
gives 1,130 users and 4,226,206 windows; LEAF's paper counts 1,129 and some 4,226,150.
"""

from __future__ import annotations

import io
import itertools
import re
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedpeer.data import store
from fedpeer.data.dataset import DataError, Dataset
from fedpeer.data.leaf import read_folder
from fedpeer.data.store import DatasetSource, OfficialFile

#: LEAF's 80 characters, in its order. Any other character is read as a blank, LEAF's sign for unknown ones.
VOCABULARY = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
#: Characters in a window.
WINDOW = 80
Genre = Literal["comedies", "histories", "tragedies"]
#: Words of the titles of the comedies and histories in the First Folio of 1623, with the two later plays among the
#: comedies; all other plays are its tragedies.
_GENRES: Mapping[Genre, tuple[str, ...]] = {
    "comedies": (
        *(
            "ALLS WELL",
            "AS YOU LIKE IT",
            "COMEDY OF ERRORS",
            "LABOUR'S LOST",
            "MEASURE FOR",
            "MERCHANT OF",
            "MERRY WIVES",
        ),
        *("MIDSUMMER", "MUCH ADO", "TAMING OF", "TEMPEST", "TWELFTH NIGHT", "TWO GENTLEMEN", "WINTER'S TALE"),
    ),
    "histories": ("HENRY", "KING JOHN", "KING RICHARD"),
}

SHAKESPEARE = DatasetSource(
    name="shakespeare",
    origin="Project Gutenberg etext 100 (January 1994), roles and windows as in LEAF, Caldas et al., 2018",
    licence="copies for personal use, no commercial distribution (World Library, Inc.)",
    size="4.2 million windows of 80 characters, 80 classes, 1,130 roles; 2 MB",
    files=(
        OfficialFile(
            path="shakespeare/1994-01-100.zip",
            also=("shakespeare/raw_data.txt.gz", "shakespeare/raw_data.txt"),
            url="https://www.gutenberg.org/files/100/old/1994-01-100.zip",
        ),
    ),
)
_LEAF = DatasetSource(
    name="shakespeare",
    origin=SHAKESPEARE.origin,
    licence=SHAKESPEARE.licence,
    size=SHAKESPEARE.size,
    files=(OfficialFile(path="shakespeare/data"),),
    by_hand="LEAF's data/shakespeare/preprocess.sh makes the JSON files; the setting form=text does not need them",
)

_SPEECH = re.compile(r"  ([a-zA-Z][a-zA-Z ]*)\. (.*)")
_MORE = re.compile(r"    (.*)")
_ERRORS_SPEECH = re.compile(r"([a-zA-Z][a-zA-Z ]*)\. (.*)")


def shakespeare(
    *,
    users: int | None = 100,
    samples: int | None = 1000,
    form: Literal["text", "leaf"] = "text",
    plays: tuple[Genre, ...] = (),
    each: bool = False,
) -> Dataset:
    """Next character after 80 in Shakespeare's plays; each role of each play is a user.

    The `users` roles with the most windows are kept, and the first `samples` windows of each (of each part, for
    form=leaf): 64 MB by default, 2.8 GB for all (`users=none,samples=none`). The text has no official test part.

    Args:
        plays: comedies, histories, tragedies; default: all plays.
        each: whether windows do not overlap, and each place of a window has its next character to predict.
    """
    if form == "leaf" and (plays or each):
        raise DataError("shakespeare: form=leaf has all plays, and one character to predict; leave out plays and each")
    for name, limit in (("users", users), ("samples", samples)):
        if limit is not None and limit < 1:
            raise DataError(f"shakespeare: {name} = {limit}: write 1 or more, or none for all")
    sizes, parts = Counter[str](), list[tuple[str, bool, NDArray[np.int64], NDArray[np.int64]]]()
    if form == "leaf":
        folder = store.fetch(_LEAF, _LEAF.files[0])
        with store.reading(folder):
            for role in read_folder(folder):
                sizes[role.name] += len(role.y)
                parts.append((role.name, role.test, *_from_leaf(role.x, role.y, samples)))
        kept = set(_largest(sizes, users))
        parts = [part for part in parts if part[0] in kept]
    else:
        path = store.fetch(SHAKESPEARE, SHAKESPEARE.files[0])
        with store.reading(path):
            speeches = roles(_text(path), plays)
        if not speeches:
            raise store.damaged(path, "it has no speaking role")
        sizes.update({name: len(speech) for name, speech in speeches.items()})
        cut = _pieces if each else _windows
        parts = [(name, False, *cut(speeches[name], samples)) for name in _largest(sizes, users)]
    counts = [len(y) for _, _, _, y in parts]
    names, user_N = np.unique([name for name, _, _, _ in parts], return_inverse=True)
    return Dataset(
        name="shakespeare",
        x=np.concatenate([x for _, _, x, _ in parts]),
        y=np.concatenate([y for _, _, _, y in parts]),
        task="next-token" if each else "classification",
        input_kind="tokens",
        classes=() if each else tuple(VOCABULARY),
        vocabulary=len(VOCABULARY),
        user_N=np.repeat(user_N, counts).astype(np.int64),
        user_names=tuple(names.tolist()),
        test_N=np.repeat([test for _, test, _, _ in parts], counts) if form == "leaf" else None,
        source=SHAKESPEARE.origin,
        licence=SHAKESPEARE.licence,
    )


def roles(text: str, plays: Sequence[Genre] = ()) -> dict[str, str]:
    """Return the text of each role, by LEAF's names ("ALLS_WELL_THAT_ENDS_WELL_KING"); `plays`: only these genres.

    Line ends and runs of blanks become one blank. Roles with fewer than three lines or without a whole window, the
    first work (the sonnets) and works with a single role are left out.
    """
    spoken: dict[str, str] = {}
    for title, lines in _works(text):
        if plays and genre_of(title) not in plays:
            continue
        play: dict[str, list[str]] = {}
        for role, line, _ in _spoken(title, lines):
            play.setdefault(role, []).append(line)
        for role, speech in play.items() if len(play) > 1 else ():
            whole = re.sub(" {2,}", " ", " ".join([*speech, ""]))
            if len(speech) > 2 and len(whole) > WINDOW:
                spoken[re.sub(r"\W+", "_", f"{title}_{role}".replace(" ", "_"))] = whole
    return spoken


def published_text() -> str:
    """Return the text of all works.

    Raises:
        DataError: the text is missing.
    """
    path = store.fetch(SHAKESPEARE, SHAKESPEARE.files[0])
    with store.reading(path):
        return _text(path)


def speeches_of(text: str) -> dict[str, dict[str, list[str]]]:
    """Return the speeches of each role of each play, in their order; runs of blanks become one blank."""
    found: dict[str, dict[str, list[str]]] = {}
    for title, lines in _works(text):
        for role, line, begins in _spoken(title, lines):
            said = found.setdefault(title, {}).setdefault(role, [])
            if begins:
                said.append(line)
            else:
                said[-1] = f"{said[-1]} {line}"
    return {
        title: {role: [re.sub(" {2,}", " ", each).strip() for each in said] for role, said in roles.items()}
        for title, roles in found.items()
    }


def genre_of(title: str) -> Genre:
    """Return the genre of a play in the First Folio; `title` as in the text, or as LEAF's names begin."""
    words = title.replace("_S_", "'S_").replace("_", " ")
    return next((name for name, parts in _GENRES.items() if any(part in words for part in parts)), "tragedies")


def _works(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield title and lines of each work but the first; the title is 2 to 7 lines above "by William Shakespeare"."""
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines) if "by William Shakespeare" in line][1:]
    for start, end in itertools.pairwise([*starts, len(lines)]):
        above = [line.strip() for line in lines[max(start - 7, 0) : max(start - 1, 0)]]
        yield next((line for line in reversed(above) if line), ""), lines[start + 1 : end]


def _spoken(title: str, lines: list[str]) -> Iterator[tuple[str, str, bool]]:
    """Yield role and text of each spoken line of a play, and whether a speech begins with it."""
    role, errors = None, title == "THE COMEDY OF ERRORS"
    for line in lines:
        if begun := (_ERRORS_SPEECH if errors else _SPEECH).match(line):
            role = begun[1].upper()
            if errors and role.startswith("ACT "):
                role = None
            else:
                yield role, begun[2], True
        elif role and errors and line.startswith("<"):
            role = None
        elif role and errors:
            yield role, line, False
        elif role and (more := _MORE.match(line)):
            yield role, more[1], False


def _text(path: Path) -> str:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            raw = archive.read("100.txt")
    else:
        raw = store.content(path)
    return io.TextIOWrapper(io.BytesIO(raw), "latin1").read()  # accepts any kind of line end


def _largest(sizes: Mapping[str, int], users: int | None) -> list[str]:
    return sorted(sizes, key=lambda name: (-sizes[name], name))[:users]


def _tokens(text: str) -> NDArray[np.int64]:
    """Return the numbers of the characters in the vocabulary, (len(text),)."""
    number = np.full(256, VOCABULARY.index(" "), np.int64)
    number[[ord(each) for each in VOCABULARY]] = np.arange(len(VOCABULARY))
    codes = np.frombuffer(text.encode("utf-32-le"), "<u4")
    return number[np.where(codes < 256, codes, ord(" "))]


def _windows(text: str, samples: int | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first windows of a text, (M, 80), and the characters after them, (M,)."""
    tokens = _tokens(text if samples is None else text[: samples + WINDOW])
    return np.lib.stride_tricks.sliding_window_view(tokens[:-1], WINDOW), tokens[WINDOW:]


def _pieces(text: str, samples: int | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first pieces of a text, (M, 80), without overlap, and the character after each place, (M, 80)."""
    tokens = _tokens(text)
    count = min((len(tokens) - 1) // WINDOW, len(tokens) if samples is None else samples)
    whole = tokens[: count * WINDOW + 1]
    return whole[:-1].reshape(count, WINDOW), whole[1:].reshape(count, WINDOW)


def _from_leaf(x: list[str], y: list[str], samples: int | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    x, y = x[:samples], y[:samples]
    if any(len(each) != WINDOW for each in x) or any(len(each) != 1 for each in y):
        raise ValueError(f"an example is not {WINDOW} characters and the next one")
    return _tokens("".join(x)).reshape(-1, WINDOW), _tokens("".join(y))
