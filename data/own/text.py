"""Text in users' tables: a model's own tokenizer turns the cells of one column into token numbers.

A tokenizer is read from `tokenizer.json` in the model's folder, which is data, not code.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedpeer.data.dataset import NO_TOKEN, DataError, TextColumn

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Tokens = NDArray[np.int64]

#: File with the tokenizer in a model's folder.
_TOKENIZER = "tokenizer.json"
#: Files in a model's folder that name its special tokens.
_SPECIAL = ("tokenizer_config.json", "special_tokens_map.json")


@dataclass(frozen=True, kw_only=True)
class TextTokens:
    """Texts as token numbers.

    x_NT         (N, T) int64
    y_NT         (N, T) int64, the token after each place, or NO_TOKEN; None: the texts themselves have targets
    row_N        (N,) int64, the text that each example comes from
    vocabulary   number of different tokens
    padding      token that fills up short texts
    cut          number of texts that were longer than T tokens and lost their ends
    """

    x_NT: Tokens
    y_NT: Tokens | None
    row_N: Tokens
    vocabulary: int
    padding: int
    cut: int = 0


class TextTokenizer:
    """A model's tokenizer.

    vocabulary   number of different tokens
    padding      token that fills up short texts
    """

    def __init__(self, folder: str) -> None:
        self._tokenizer = _opened(folder)
        self.vocabulary = self._tokenizer.get_vocab_size(with_added_tokens=True)
        self.padding = _padding(folder, self._tokenizer)

    def whole(self, texts: Sequence[str], length: int) -> TextTokens:
        """Return one example for each text."""
        self._tokenizer.enable_truncation(length)
        encoded = self._tokenizer.encode_batch(list(texts))
        x_NT = self._filled([each.ids for each in encoded], length, self.padding)
        cut = sum(bool(each.overflowing) for each in encoded)
        return TextTokens(
            x_NT=x_NT,
            y_NT=None,
            row_N=np.arange(len(texts)),
            vocabulary=self.vocabulary,
            padding=self.padding,
            cut=cut,
        )

    def continued(self, texts: Sequence[str], length: int) -> TextTokens:
        """Return the pieces of the texts, and the token after each place of a piece."""
        self._tokenizer.no_truncation()
        pieces, rows = list[list[int]](), list[int]()
        for row, encoded in enumerate(self._tokenizer.encode_batch(list(texts))):
            starts = range(0, len(encoded.ids) - 1, length)
            pieces += [encoded.ids[start : start + length + 1] for start in starts]
            rows += [row] * len(starts)
        return TextTokens(
            x_NT=self._filled([each[:-1] for each in pieces], length, self.padding),
            y_NT=self._filled([each[1:] for each in pieces], length, NO_TOKEN),
            row_N=np.array(rows, np.int64),
            vocabulary=self.vocabulary,
            padding=self.padding,
        )

    @staticmethod
    def _filled(rows: Sequence[Sequence[int]], length: int, filler: int) -> Tokens:
        filled_NT = np.full((len(rows), length), filler, np.int64)
        for number, row in enumerate(rows):
            filled_NT[number, : len(row)] = row
        return filled_NT


def text_column(column: str | None, tokenizer: str | None, length: int) -> TextColumn | None:
    """Return the settings of a column of text; None: no such column.

    Raises:
        DataError: a column without a tokenizer, or the other way round, or a length out of range.
    """
    if column is None and tokenizer is not None:
        raise DataError(f"tokenizer={tokenizer} has no text to read; add text=NAME, the column of text")
    if column is None:
        return None
    if not tokenizer:
        raise DataError(f"text={column} needs a tokenizer; add tokenizer=FOLDER, the folder of the model")
    if length < 2:
        raise DataError(f"length = {length}: write 2 or more tokens")
    return TextColumn(column=column, tokenizer=tokenizer, length=length)


def tokens_of(texts: Sequence[str], column: TextColumn, *, continued: bool) -> TextTokens:
    """Return the tokens of texts: one example for each text, or if `continued` pieces with the next tokens.

    Raises:
        DataError: the tokenizer cannot be read.
    """
    tokenizer = TextTokenizer(column.tokenizer)
    return (tokenizer.continued if continued else tokenizer.whole)(texts, column.length)


def tokenizer_files(folder: Path) -> list[Path]:
    """Return the files in a model's folder that its tokenizer uses; the first one must exist."""
    return [folder / _TOKENIZER, *(folder / name for name in _SPECIAL if (folder / name).exists())]


def _opened(folder: str) -> Tokenizer:
    path = Path(folder) / _TOKENIZER
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise DataError("reading text needs the tokenizers library; run pip install fedpeer[hf]") from None
    if not path.is_file():
        raise DataError(
            f"tokenizer={folder}: there is no {path}; name the folder of a model, into which its tokenizer was saved "
            "with save_pretrained"
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as problem:  # the library raises plain exceptions
        raise DataError(f"{path} is damaged ({problem}); save the tokenizer again") from None
    tokenizer.no_padding()
    return tokenizer


def _padding(folder: str, tokenizer: Tokenizer) -> int:
    """Return the padding token: the one that the model names, or else its end-of-text token."""
    named = [_read(Path(folder) / name) for name in _SPECIAL]
    for key in ("pad_token", "eos_token"):
        for settings in named:
            found = settings.get(key)
            text = found.get("content") if isinstance(found, dict) else found
            number = tokenizer.token_to_id(text) if isinstance(text, str) else None
            if number is not None:
                return number
    raise DataError(f'tokenizer={folder}: it names no padding token; write "pad_token" into tokenizer_config.json')


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as problem:
        raise DataError(f"{path} cannot be read ({problem}); save the tokenizer again") from None
    return found if isinstance(found, dict) else {}
