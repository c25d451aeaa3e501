"""The types that loaders, splits and training share: a data set, and the shares of its examples that peers have.

Nothing here reads a file. Arrays are numpy, so that code can read data without torch. A `Dataset` is never copied for a
peer: a `Share` has indices into it and the peer's transformations (labels exchanged, pixels permuted), so that sixteen
peers with a common test part store it once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

Task = Literal["classification", "multi-label", "regression", "completion", "next-token"]
#: The answers that each task asks for, as text.
ASKED: Mapping[Task, str] = {
    "classification": "classes",
    "multi-label": "labels that hold or do not, several for an example",
    "regression": "numbers to predict",
    "completion": "patterns to complete",
    "next-token": "the next token at each place of a text",
}
#: Target of next-token prediction at a place without a next token, since the text has ended.
NO_TOKEN = -1
#: Input of a network's first layer: a vector, an image (channels first), or token numbers.
InputKind = Literal["features", "image", "tokens"]


class DataError(Exception):
    """The user's mistake about data; the message has the place (file, row, column), the problem and the way out."""


@dataclass(frozen=True, kw_only=True)
class TextColumn:
    """A column of text, and how its cells become token numbers.

    column      name of the column
    tokenizer   folder of a model with its tokenizer, `tokenizer.json`
    length      tokens of an example: longer texts are cut, shorter ones padded
    """

    column: str
    tokenizer: str
    length: int


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Examples and their description.

    x            (N, *F) float32, or (N, T) int64 token numbers if `input_kind` is "tokens"
    y            (N,) int64 class numbers 0..C-1; or (N, C) float32 of 0 and 1 for multi-label: which labels hold; or
                 (N,) or (N, outputs) float32 for regression; or (N, F) float32 of 0 and 1 for completion: the whole
                 pattern, which a training example's x shows in full and a test example's x in part; or (N, T) int64
                 for next-token: the token after each place of x, or NO_TOKEN
    classes      names of the C classes in the order of their numbers, or of the C labels; empty for other tasks
    user_N       (N,) int64, each example's user as an index into `user_names`; None if unknown. In a user's own data
                 whole numbers of any type are accepted, and without names the numbers are the names
    subclass_N   (N,) int64 fine labels (CIFAR-100), whose coarse labels are `y`; None for other data sets
    test_N       (N,) bool, the official test part; None if the source has no official split (never for completion)
    vocabulary   number of different tokens that x may have; 0: as many as it has
    padding      token that fills up short texts at their end; None: no text is filled up
    text         the column of text that x was made of; None: no text
    """

    name: str
    x: NDArray[np.generic]
    y: NDArray[np.generic]
    task: Task
    input_kind: InputKind
    classes: tuple[str, ...] = ()
    user_N: NDArray[np.int64] | None = None
    user_names: tuple[str, ...] = ()
    subclass_N: NDArray[np.int64] | None = None
    subclass_names: tuple[str, ...] = ()
    test_N: NDArray[np.bool_] | None = None
    feature_names: tuple[str, ...] = ()
    vocabulary: int = 0
    padding: int | None = None
    text: TextColumn | None = None
    source: str = ""
    licence: str = ""

    def __post_init__(self) -> None:
        """Check the task and the kind of input, which decide how the other fields are read.

        Raises:
            DataError: there is no such task or kind of input.
        """
        for field_name, known in (("task", get_args(Task)), ("input_kind", get_args(InputKind))):
            if (found := getattr(self, field_name)) not in known:
                raise DataError(f'{self.name}: {field_name}: it is "{found}"; write one of {", ".join(known)}')

    def __len__(self) -> int:
        return len(self.x)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example, without the batch: (64,), (1, 28, 28) or (80,) for token sequences."""
        return tuple(self.x.shape[1:])


@dataclass(frozen=True, kw_only=True)
class Share:
    """The examples of one peer, and how it transforms them.

    train_M, test_M   (M,) int64 indices into the data set; a training index is in one share only, a test index may be
                      in several
    label_map_C       (C,) int64: the peer's label of class c is `label_map_C[c]`, in training and test; None: the
                      official labels
    feature_map_F     (F,) int64 over the flattened example: the peer has feature `feature_map_F[i]` at place i; None:
                      the official order
    note              a short phrase for the preview, such as "8 and 9 exchanged" or "writer f0123"
    valid_M           (M,) int64 indices of training examples held out for validation, to choose settings and rounds
    """

    train_M: NDArray[np.int64]
    test_M: NDArray[np.int64]
    label_map_C: NDArray[np.int64] | None = None
    feature_map_F: NDArray[np.int64] | None = None
    note: str = ""
    valid_M: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))


@dataclass(frozen=True, kw_only=True)
class Split:
    """The shares of all peers, in the order of the peers. `rule`: the choice that made it, such as "dirichlet:0.3"."""

    rule: str
    shares: tuple[Share, ...]
    remarks: tuple[str, ...] = field(default=())  # for the user: repairs made, examples left over

    @property
    def validates(self) -> bool:
        """True if a peer holds out examples for validation."""
        return any(len(share.valid_M) for share in self.shares)

    def labels(self, dataset: Dataset, peer: int, *, test: bool = False) -> NDArray[np.generic]:
        """Return the labels of a peer (0, 1, ...), (M,)."""
        share = self.shares[peer]
        return self.labels_of(dataset, peer, share.test_M if test else share.train_M)

    def labels_of(self, dataset: Dataset, peer: int, rows_M: NDArray[np.int64]) -> NDArray[np.generic]:
        """Return a peer's labels of these examples, (M,)."""
        y, map_C = dataset.y[rows_M], self.shares[peer].label_map_C
        return y if map_C is None else map_C[y.astype(np.int64)]

    def keeping_back(self, share: float, draws: np.random.Generator, fold: int = 0, *, rows: int = 0) -> Split:
        """Return the split with a share of each peer's training examples held out; at least one remains for training.

        Args:
            share: the share, below 1.
            draws: draws the order of a peer's examples.
            fold: number of the held-out part of that order, 0, 1, ...; parts for the same share are disjoint.
            rows: training examples below which a peer keeps all.
        """

        def cut(one: Share) -> Share:
            drawn_M = draws.permutation(one.train_M)
            if len(drawn_M) < rows:
                return one
            start, end = (int(share * number * len(drawn_M) + 0.5) for number in (fold, fold + 1))
            back = np.sort(drawn_M[start : min(end, start + len(drawn_M) - 1)])
            return replace(one, train_M=one.train_M[~np.isin(one.train_M, back)], valid_M=back)

        shares = tuple(map(cut, self.shares))
        without = 0 if rows else sum(not len(each.valid_M) for each in shares)
        remark = f"{without} of {len(shares)} peers have too few examples to hold one out for validation"
        return replace(self, shares=shares, remarks=(*self.remarks, *([remark] if without else [])))

    def inputs(self, dataset: Dataset, peer: int, *, test: bool = False) -> NDArray[np.generic]:
        """Return the inputs of a peer (0, 1, ...), (M, *F)."""
        share = self.shares[peer]
        x = dataset.x[share.test_M if test else share.train_M]
        if share.feature_map_F is None:
            return x
        return x.reshape(len(x), -1)[:, share.feature_map_F].reshape(x.shape)
