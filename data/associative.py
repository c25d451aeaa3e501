"""Patterns of 0 and 1 to be completed: the sparse vectors of the partial averaging paper, which are made, not loaded.

Vector number k belongs to class r = k mod s. It has two runs of m ones: the given ones, from coordinate 3mr on, and the
ones to complete, directly after them, or m further for the class that some users learnt with another completion. Then z
bits, at places that depend on k, are flipped in the input. All coordinates are taken modulo n, because with the paper's
own numbers they exceed n.

The input of a training example is the whole vector, the input of a test example its given part; the target of both is
the whole vector without noise. Source: Bouchra Pilet, Frey, Taiani, partial averaging, 2021, section V.5.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedpeer.data.dataset import DataError, Dataset
from fedpeer.data.store import DatasetSource

ASSOCIATIVE = DatasetSource(
    name="associative",
    origin="made by fedpeer: Bouchra Pilet, Frey, Taiani, 2021, section V.5",
    licence="as fedpeer",
    size="15 users, 9 vectors of 50 bits and 100 halves of such to complete each",
)

Bits = NDArray[np.float32]


def vectors(
    number_K: NDArray[np.int64], *, n: int, m: int, z: int, s: int, changed_K: NDArray[np.bool_]
) -> tuple[Bits, Bits, Bits]:
    """Generate the vectors number_K as the paper does.

    Args:
        changed_K: (K,) which vectors have the other completion.

    Returns:
        The whole vectors, the whole vectors with noise, and their given parts with noise: (K, n) of 0 and 1 each.
    """
    row_K1 = np.arange(len(number_K))[:, None]
    given_K1 = 3 * m * (number_K % s)[:, None]
    run_m = np.arange(m)
    part_Kn = np.zeros((len(number_K), n), np.float32)
    part_Kn[row_K1, (given_K1 + run_m) % n] = 1
    whole_Kn = part_Kn.copy()
    whole_Kn[row_K1, (given_K1 + np.where(changed_K, 2 * m, m)[:, None] + run_m) % n] = 1
    flipped_Kn = np.zeros((len(number_K), n), np.bool_)
    if z:
        flipped_Kn[row_K1, ((number_K // s)[:, None] + np.arange(z) * (n // z)) % n] = True
    return whole_Kn, np.where(flipped_Kn, 1 - whole_Kn, whole_Kn), np.where(flipped_Kn, 1 - part_Kn, part_Kn)


def associative_data(
    *,
    n: int = 50,
    m: int = 8,
    z: int = 2,
    s: int = 3,
    users: int = 15,
    others: int = 2,
    changed: int = 0,
    missed: int = 0,
    train: int = 9,
    test: int = 100,
    test_from: int = 1000,
) -> Dataset:
    """Sparse vectors of 50 bits to complete from their halves; 15 users, two of whom learn other completions.

    Vectors have `n` bits, 2 `m` of them ones and `z` flipped as noise, and are of `s` classes; the first `others` of
    the `users` learn another completion of class `changed`. Each user learns `train` vectors, from number 0 on, and
    completes `test` vectors, from number `test_from` on. With `missed` above 0 each user learns that many classes
    fewer, which other users learn; the first `others` users never miss class `changed`, which only they learn so.
    """
    _check(n=n, m=m, z=z, s=s, users=users, others=others, changed=changed, missed=missed, train=train, test=test,
           test_from=test_from)  # fmt: skip
    tests_K = np.arange(test_from, test_from + test)
    x, y, user_N, test_N = [], [], [], []
    for user in range(users):
        known_K = np.array([k for k in range(train) if k % s not in missed_by(user, s, changed, missed, user < others)])
        if not len(known_K):
            raise DataError(f"associative: train = {train}, missed = {missed}: a user has nothing to learn; change one")
        number_K = np.concatenate([known_K, tests_K])
        asked_K = np.arange(len(number_K)) >= len(known_K)
        changed_K = (number_K % s == changed) & (user < others)
        whole_Kn, noisy_Kn, given_Kn = vectors(number_K, n=n, m=m, z=z, s=s, changed_K=changed_K)
        x.append(np.where(asked_K[:, None], given_Kn, noisy_Kn))
        y.append(whole_Kn)
        user_N.append(np.full(len(number_K), user))
        test_N.append(asked_K)
    return patterns(ASSOCIATIVE, x, y, user_N, test_N, user_names(users, others))


def patterns(
    source: DatasetSource,
    x: Sequence[Bits],
    y: Sequence[Bits],
    user_N: Sequence[NDArray[np.int64]],
    test_N: Sequence[NDArray[np.bool_]],
    names: tuple[str, ...],
) -> Dataset:
    """Return a data set of patterns to complete, concatenated from parts: inputs, targets, users, test part or not."""
    return Dataset(
        name=source.name,
        x=np.concatenate(x).astype(np.float32),
        y=np.concatenate(y),
        task="completion",
        input_kind="features",
        user_N=np.concatenate(user_N),
        user_names=names,
        test_N=np.concatenate(test_N),
        source=source.origin,
        licence=source.licence,
    )


def missed_by(user: int, s: int, changed: int, missed: int, other: bool) -> set[int]:
    """Return the `missed` classes that a user does not learn: the next ones for each user in turn."""
    classes = [each for each in range(s) if not (other and each == changed)]
    return {classes[(user + place) % len(classes)] for place in range(missed)}


def user_names(users: int, others: int) -> tuple[str, ...]:
    """Return other-1, other-2, usual-3, ... in sorted order, so that the first few peers include both kinds."""
    digits = len(str(users))
    return tuple(f"{'other' if user < others else 'usual'}-{user + 1:0{digits}d}" for user in range(users))


def _check(**settings: int) -> None:
    least = {"n": 3, "m": 1, "z": 0, "s": 1, "users": 1, "others": 0, "changed": 0, "train": 1, "test": 1}
    for name, value in settings.items():
        if value < least.get(name, 0):
            raise DataError(f"associative: {name} = {value}: write {least.get(name, 0)} or more")
    most = {
        "m": (settings["n"] // 3, "the given part and both completions must fit into the n bits"),
        "z": (settings["n"], "no bit is flipped twice"),
        "others": (settings["users"], "these are some of the users"),
        "changed": (settings["s"] - 1, "classes are numbered from 0"),
        "missed": (settings["s"] - 1, "every user must learn a class"),
    }
    for name, (limit, why) in most.items():
        if settings[name] > limit:
            raise DataError(f"associative: {name} = {settings[name]}: write at most {limit}: {why}")
